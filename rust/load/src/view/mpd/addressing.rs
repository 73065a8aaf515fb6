//! Which segments a representation has: SegmentTemplate and SegmentList (ISO/IEC 23009-1, 5.3.9), as expanded lists.

use std::mem::size_of;

use roxmltree::Node;

use super::schema;
use crate::view::playlist::{is_uri, Media, Segment, MOST_DURATION_S, MOST_ENTRIES};

/// A media time, in units of the timescale.
const MOST_TICKS: u64 = 1 << 53;
/// Of all segments of an MPD together: a short template makes many.
const MOST_HELD_BYTES: usize = 8 << 20;
/// Of what all qualities' segments are relative to, and of initialization segments: each viewer keeps them.
const MOST_ADDRESS_BYTES: usize = 128 << 10;
const MOST_DURATION_NS: i64 = MOST_DURATION_S as i64 * 1_000_000_000;

/// What the segments and qualities read so far take.
#[derive(Default)]
pub struct Held {
    entries: usize,
    bytes: usize,
    address_bytes: usize,
}

impl Held {
    fn one_more(&mut self, uri: &str) -> Result<(), &'static str> {
        self.entries += 1;
        self.bytes += size_of::<Segment>() + uri.len();
        match self.entries <= MOST_ENTRIES && self.bytes <= MOST_HELD_BYTES {
            true => Ok(()),
            false => Err("too many segments"),
        }
    }

    pub fn one_more_quality(&mut self, address_bytes: usize) -> Result<(), &'static str> {
        self.address_bytes += address_bytes;
        match self.address_bytes <= MOST_ADDRESS_BYTES {
            true => Ok(()),
            false => Err("too long addresses of too many qualities"),
        }
    }
}

/// Where a segment lies, in units of the timescale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    begin: u64,
    end: u64,
}

/// The id and the bandwidth of a representation.
type Identity<'a> = (&'a str, u64);

/// The elements of one kind that tell of a representation's segments, the outermost first: what an inner one does not say
/// is as the next outer one says.
pub struct Addressing<'a> {
    told: Vec<Node<'a, 'a>>,
    is_list: bool,
}

impl<'a> Addressing<'a> {
    /// `around`: the period, the adaptation set and the representation.
    pub fn of(around: [Node<'a, 'a>; 3]) -> Result<Self, &'static str> {
        let of_kind = |name| {
            let all = around
                .iter()
                .flat_map(move |node| schema::children(*node, name));
            all.collect::<Vec<_>>()
        };
        let (templates, lists) = (of_kind("SegmentTemplate"), of_kind("SegmentList"));
        let (told, is_list) = match (templates.is_empty(), lists.is_empty()) {
            (false, true) => (templates, false),
            (true, false) => (lists, true),
            (true, true) => return Err("neither a segment template nor a list"),
            (false, false) => return Err("a segment template and a list"),
        };
        let parents: Vec<_> = told.iter().map(Node::parent).collect();
        match parents.windows(2).any(|pair| pair[0] == pair[1]) {
            true => Err("two segment templates, or lists, of one element"),
            false => Ok(Addressing { told, is_list }),
        }
    }

    fn attribute(&self, name: &str) -> Option<&'a str> {
        self.told.iter().rev().find_map(|node| node.attribute(name))
    }

    fn number(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, &'static str> {
        let told = self.told.iter().rev().find(|node| node.has_attribute(name));
        told.map_or(Ok(None), |node| schema::number(*node, name, least..=most))
    }

    /// The children of this name, of the innermost element that has any.
    fn children(&self, name: &'static str) -> Vec<Node<'a, 'a>> {
        let all = self.told.iter().rev();
        all.map(|node| schema::children(*node, name).collect::<Vec<_>>())
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    }

    /// The URI of the initialization segment.
    pub fn initialization(&self, identity: Identity) -> Result<Option<String>, &'static str> {
        let elements = self.children("Initialization");
        match (self.attribute("initialization"), &elements[..]) {
            (None, []) => Ok(None),
            (Some(template), []) => Ok(Some(expanded(template, identity, None, None)?)),
            (None, [element]) => {
                let uri = element.attribute("sourceURL").unwrap_or("");
                Ok(Some(usable(uri.to_owned())?))
            }
            _ => Err("more than one initialization segment"),
        }
    }

    /// All segments, as far as they lie within the period; `length_ns`: its length, where that is told.
    pub fn media(
        &self,
        identity: Identity,
        length_ns: Option<i64>,
        held: &mut Held,
    ) -> Result<Media, &'static str> {
        let timescale = self.number("timescale", 1, u64::from(u32::MAX))?;
        let timescale = timescale.unwrap_or(1);
        let begin = self.number("presentationTimeOffset", 0, MOST_TICKS)?;
        let begin = begin.unwrap_or(0);
        let end = length_ns.map(|length_ns| begin.saturating_add(ticks(length_ns, timescale)));
        let spans = self.spans(begin, end)?;
        if spans.first().is_some_and(|first| first.begin > begin) {
            return Err("a gap at the beginning of the period");
        }
        let uris = match self.is_list {
            true => listed(&self.children("SegmentURL"), spans.len(), held)?,
            false => self.templated(identity, &spans, held)?,
        };
        let length_ns = length_ns.unwrap_or(i64::MAX);
        let at_ns = |at: u64| nanoseconds(at.saturating_sub(begin), timescale).min(length_ns);
        let mut segments = Vec::with_capacity(spans.len());
        for (span, uri) in spans.iter().zip(uris) {
            let duration_ns = at_ns(span.end) - at_ns(span.begin);
            if !(1..=MOST_DURATION_NS).contains(&duration_ns) {
                return Err("a segment of no duration within the period, or of more than a day");
            }
            segments.push(Segment { duration_ns, uri });
        }
        let longest_ns = segments.iter().map(|segment| segment.duration_ns).max();
        Ok(Media {
            target_ns: longest_ns.ok_or("a representation without segments")?,
            sequence: 0,
            segments,
            ended: true,
        })
    }

    /// `begin`, `end`: of the period, by the clock of the media; none, where its length is not told.
    fn spans(&self, begin: u64, end: Option<u64>) -> Result<Vec<Span>, &'static str> {
        let duration = self.number("duration", 1, MOST_TICKS)?;
        match (&self.children("SegmentTimeline")[..], duration, end) {
            ([timeline], None, _) => from_timeline(*timeline, end),
            ([], Some(each), _) if self.is_list => {
                let end = end.unwrap_or(u64::MAX);
                evenly(
                    Span { begin, end },
                    each,
                    Some(self.children("SegmentURL").len()),
                )
            }
            ([], Some(each), Some(end)) => evenly(Span { begin, end }, each, None),
            ([], Some(_), None) => Err("equal segments of a period of no known length"),
            ([], None, _) => Err("segments of no known durations"),
            _ => Err("durations that are told twice"),
        }
    }

    fn templated(
        &self,
        identity: Identity,
        spans: &[Span],
        held: &mut Held,
    ) -> Result<Vec<String>, &'static str> {
        let template = self.attribute("media").ok_or("a template without media")?;
        let first = self.number("startNumber", 0, MOST_TICKS)?.unwrap_or(1);
        let is_timed = !self.children("SegmentTimeline").is_empty();
        let mut uris: Vec<String> = Vec::with_capacity(spans.len());
        for (number, span) in (first..).zip(spans) {
            let time = is_timed.then_some(span.begin); // without a timeline there is none (table 16)
            let uri = expanded(template, identity, Some(number), time)?;
            held.one_more(&uri)?;
            if uris.last() == Some(&uri) {
                return Err("a template that does not tell segments apart");
            }
            uris.push(uri);
        }
        Ok(uris)
    }
}

/// Those of a SegmentList, which are as many as their durations.
fn listed(nodes: &[Node], count: usize, held: &mut Held) -> Result<Vec<String>, &'static str> {
    if nodes.len() != count {
        return Err("not as many segments as durations");
    }
    let mut uri = |node: &Node| {
        let uri = node.attribute("media").ok_or("a segment without a URI")?;
        held.one_more(uri)?;
        usable(uri.to_owned())
    };
    nodes.iter().map(&mut uri).collect()
}

/// As the entries of a SegmentTimeline say; an entry that repeats to the end goes to the next, or to that of the period.
fn from_timeline(node: Node, end: Option<u64>) -> Result<Vec<Span>, &'static str> {
    let entries: Vec<_> = schema::children(node, "S").collect();
    let (mut spans, mut at) = (Vec::<Span>::new(), 0);
    for (index, entry) in entries.iter().enumerate() {
        let told = schema::number(*entry, "t", 0..=MOST_TICKS)?;
        if index > 0 && told.is_some_and(|told| told != at) {
            return Err("a gap, or an overlap, in a timeline");
        }
        let each = schema::number(*entry, "d", 1..=MOST_TICKS)?;
        let each = each.ok_or("an entry of a timeline without a duration")?;
        let begin = if index == 0 { told.unwrap_or(0) } else { at };
        let more = match entry.attribute("r").map(str::trim) {
            Some("-1") => {
                let next = match entries.get(index + 1) {
                    Some(next) => schema::number(*next, "t", 0..=MOST_TICKS)?,
                    None => end,
                };
                let end = next.ok_or("an entry that repeats to no known end")?;
                evenly(Span { begin, end }, each, None)?
            }
            _ => {
                let most = MOST_ENTRIES as u64;
                let again = schema::number(*entry, "r", 0..=most)?.unwrap_or(0);
                let length = each.checked_mul(again + 1);
                let end = length.and_then(|length| begin.checked_add(length));
                let end = end.filter(|end| *end <= MOST_TICKS);
                let end = end.ok_or("a time that is too large")?;
                evenly(Span { begin, end }, each, None)?
            }
        };
        at = more.last().map_or(begin, |last| last.end);
        spans.extend(more);
        if spans.len() > MOST_ENTRIES {
            return Err("too many segments");
        }
    }
    Ok(spans)
}

/// Segments of equal lengths, as many as there are or as begin before the end; the last may be shorter.
fn evenly(span: Span, each: u64, count: Option<usize>) -> Result<Vec<Span>, &'static str> {
    let needed = span.end.saturating_sub(span.begin).div_ceil(each);
    let count = count.map_or(needed, |count| count as u64);
    if count > MOST_ENTRIES as u64 {
        return Err("too many segments");
    }
    let mut spans = Vec::with_capacity(count as usize);
    let mut begin = span.begin;
    for _ in 0..count {
        let end = begin.saturating_add(each).min(span.end);
        if end <= begin {
            return Err("a segment beyond the end of the period");
        }
        spans.push(Span { begin, end });
        begin = end;
    }
    Ok(spans)
}

/// A template's URI (5.3.9.4.4). What is not known here, or has no value, is an error.
fn expanded(
    template: &str,
    (id, bandwidth): Identity,
    number: Option<u64>,
    time: Option<u64>,
) -> Result<String, &'static str> {
    let mut uri = String::new();
    for (index, piece) in template.split('$').enumerate() {
        if index % 2 == 0 {
            uri.push_str(piece);
            continue;
        }
        let (name, width) = match piece.split_once('%') {
            Some((name, format)) => (name, width(format)?),
            None => (piece, None),
        };
        let value = match (name, width) {
            ("", None) => "$".to_owned(),
            ("RepresentationID", None) if !id.is_empty() => id.to_owned(),
            ("Number", _) => padded(number, width)?,
            ("Time", _) => padded(time, width)?,
            ("Bandwidth", _) => padded(Some(bandwidth), width)?,
            _ => return Err("a template with what is not known here"),
        };
        uri.push_str(&value);
    }
    if template.split('$').count() % 2 == 0 {
        return Err("a template with half an identifier");
    }
    usable(uri)
}

fn padded(value: Option<u64>, width: Option<usize>) -> Result<String, &'static str> {
    let value = value.ok_or("a template with what has no value")?;
    Ok(format!("{value:0width$}", width = width.unwrap_or(1)))
}

/// Of a format tag: `0`, the width, `d`.
fn width(format: &str) -> Result<Option<usize>, &'static str> {
    let wrong = "a template with a wrong width";
    let digits = format
        .strip_prefix('0')
        .and_then(|rest| rest.strip_suffix('d'));
    let width: usize = digits.ok_or(wrong)?.parse().map_err(|_| wrong)?;
    match width <= 20 {
        true => Ok(Some(width)),
        false => Err(wrong),
    }
}

fn usable(uri: String) -> Result<String, &'static str> {
    match is_uri(&uri) && !uri.is_empty() {
        true => Ok(uri),
        false => Err("what should be a URI is none"),
    }
}

fn nanoseconds(ticks: u64, timescale: u64) -> i64 {
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(timescale);
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// So many that none of that time is left.
fn ticks(ns: i64, timescale: u64) -> u64 {
    let ticks = (ns.max(0) as u128 * u128::from(timescale)).div_ceil(1_000_000_000);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}
