//! DASH: an MPD of media on demand (ISO/IEC 23009-1, type *static*), as much of it as a viewer needs that does not decode:
//! one period, in it an adaptation set, or one of audio and one of video; their representations, and the segments of each
//! by SegmentTemplate or SegmentList. What describes media, and changes no request, is passed over; whatever else is not
//! known here is an error and not ignored.
//!
//! Bounds: of the text (`MOST_BYTES`), of a tag, of nodes and namespaces (the XML parser compares attributes of a tag, and
//! namespaces, with each other), of segments and of their URIs.

mod addressing;
mod schema;

use roxmltree::{Document, Node, ParsingOptions};

use super::playlist::{is_uri, Media, Playlist, MOST_BYTES, MOST_VARIANTS};
use addressing::{Addressing, Held};

const MOST_NODES: u32 = 150_000;
const MOST_TAG_BYTES: usize = 8192;
const MOST_NAMESPACES: usize = 32;
const MOST_BIT_PER_S: u64 = 1 << 53;

/// One quality of a track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Representation {
    /// Which track it belongs to: 0, or 1 where audio and video are apart.
    pub track: usize,
    pub bit_per_s: u64,
    /// What its segments' URIs are relative to: each relative to the one before, the first to the MPD's own.
    pub bases: Vec<String>,
    pub initialization: Option<String>,
    pub media: Media,
}

impl Representation {
    /// Of what its segments are relative to, and of its initialization segment.
    pub fn address_bytes(&self) -> usize {
        let all = self.bases.iter().chain(&self.initialization);
        all.map(String::len).sum()
    }
}

/// Read a whole MPD; the error says what is wrong with it.
pub fn parse(text: &[u8]) -> Result<Playlist, &'static str> {
    let text = bounded(text)?;
    let options = ParsingOptions {
        nodes_limit: MOST_NODES,
        ..ParsingOptions::default() // no DTD
    };
    let document = Document::parse_with_options(text, options)
        .map_err(|_| "it is no well-formed XML, or has too many nodes")?;
    let mpd = document.root_element();
    if !schema::is(mpd, "MPD") {
        return Err("it is no MPD");
    }
    schema::checked(mpd)?;
    if mpd.attribute("type").unwrap_or("static") != "static" {
        return Err("its type is not static");
    }
    let period = only(mpd, "Period")?;
    let length_ns = match (
        period.attribute("duration"),
        mpd.attribute("mediaPresentationDuration"),
    ) {
        (Some(told), _) | (None, Some(told)) => Some(schema::duration_ns(told)?),
        (None, None) => None,
    };
    if schema::duration_ns(period.attribute("start").unwrap_or("PT0S"))? != 0 {
        return Err("its only period does not start at 0");
    }
    let sets: Vec<_> = schema::children(period, "AdaptationSet").collect();
    apart(&sets)?;
    let mut held = Held::default();
    let mut all = Vec::new();
    for (track, set) in sets.iter().enumerate() {
        all.extend(representations(
            track,
            [mpd, period, *set],
            length_ns,
            &mut held,
        )?);
    }
    Ok(Playlist::Presentation(all))
}

fn bounded(text: &[u8]) -> Result<&str, &'static str> {
    if text.len() > MOST_BYTES {
        return Err("too long");
    }
    if text
        .split(|byte| *byte == b'<')
        .any(|tag| tag.len() > MOST_TAG_BYTES)
    {
        return Err("a tag, or what follows it, is too long");
    }
    if memchr::memmem::find_iter(text, b"xmlns").count() > MOST_NAMESPACES {
        return Err("too many namespaces");
    }
    std::str::from_utf8(text).map_err(|_| "not UTF-8")
}

fn only<'a>(parent: Node<'a, 'a>, name: &'static str) -> Result<Node<'a, 'a>, &'static str> {
    let mut found = schema::children(parent, name);
    match (found.next(), found.next()) {
        (Some(node), None) => Ok(node),
        _ => Err("not one period alone"),
    }
}

/// One adaptation set, of whatever; or one of audio and one of video. Among others a player's user chooses.
fn apart(sets: &[Node]) -> Result<(), &'static str> {
    match sets {
        [] => Err("no adaptation set"),
        [_] => Ok(()),
        [one, other] => match (content(*one), content(*other)) {
            (Some("audio"), Some("video")) | (Some("video"), Some("audio")) => Ok(()),
            _ => Err("two adaptation sets that are not one of audio and one of video"),
        },
        _ => Err("more than two adaptation sets"),
    }
}

/// What an adaptation set holds: "video".
fn content<'a>(set: Node<'a, 'a>) -> Option<&'a str> {
    let inside = schema::children(set, "Representation").next();
    let mime = set
        .attribute("mimeType")
        .or_else(|| inside?.attribute("mimeType"));
    set.attribute("contentType")
        .or_else(|| mime?.split('/').next())
}

/// Of an adaptation set, ascending by bit rate; `above`: it, and what it is in.
fn representations(
    track: usize,
    above: [Node; 3],
    length_ns: Option<i64>,
    held: &mut Held,
) -> Result<Vec<Representation>, &'static str> {
    let [mpd, period, set] = above;
    let mut all = Vec::new();
    for node in schema::children(set, "Representation") {
        if all.len() >= MOST_VARIANTS {
            return Err("too many representations");
        }
        let bit_per_s = schema::number(node, "bandwidth", 1..=MOST_BIT_PER_S)?;
        let bit_per_s = bit_per_s.ok_or("a representation without a bandwidth")?;
        let bases = [mpd, period, set, node].into_iter().filter_map(base);
        let bases: Vec<String> = bases.collect::<Result<_, _>>()?;
        let addressing = Addressing::of([period, set, node])?;
        let identity = (node.attribute("id").unwrap_or(""), bit_per_s);
        let initialization = addressing.initialization(identity)?;
        let each = Representation {
            track,
            bit_per_s,
            bases,
            initialization,
            media: addressing.media(identity, length_ns, held)?,
        };
        held.one_more_quality(each.address_bytes())?;
        all.push(each);
    }
    let Some(first) = all.first() else {
        return Err("an adaptation set without a representation");
    };
    if all
        .iter()
        .any(|each| !is_aligned(&each.media, &first.media))
    {
        return Err("representations whose segments do not begin together");
    }
    all.sort_by_key(|each| each.bit_per_s);
    Ok(all)
}

/// Of several that are alternatives the first (5.6.5).
fn base(node: Node) -> Option<Result<String, &'static str>> {
    let base = schema::children(node, "BaseURL").next()?;
    let uri = base.text().unwrap_or("").trim();
    let is_all = base.children().count() == 1; // a comment would part it
    Some(match is_all && is_uri(uri) && !uri.is_empty() {
        true => Ok(uri.to_owned()),
        false => Err("a BaseURL that is no URI"),
    })
}

/// Whether a viewer can go from one to the other after any segment.
fn is_aligned(one: &Media, other: &Media) -> bool {
    let durations = |media: &Media| -> Vec<i64> {
        let all = media.segments.iter();
        all.map(|segment| segment.duration_ns).collect()
    };
    durations(one) == durations(other)
}

#[cfg(test)]
mod tests;
