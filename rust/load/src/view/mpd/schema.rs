//! What elements and attributes of an MPD are known here, and the types of their values.

use std::ops::RangeInclusive;

use roxmltree::Node;

const NAMESPACE: &str = "urn:mpeg:dash:schema:mpd:2011";
/// Its attributes say that the element is elsewhere.
const XLINK: &str = "http://www.w3.org/1999/xlink";
const SECOND_NS: u64 = 1_000_000_000;
const MOST_LENGTH_NS: u64 = 30 * 86_400 * SECOND_NS;
/// Units of a duration, in nanoseconds.
const DAYS: [(char, u64); 1] = [('D', 86_400 * SECOND_NS)];
const TIME: [(char, u64); 3] = [
    ('H', 3600 * SECOND_NS),
    ('M', 60 * SECOND_NS),
    ('S', SECOND_NS),
];

/// Elements that say what media are like, and change no request for them; nor does what is in them.
#[rustfmt::skip]
const DESCRIPTIONS: [&str; 18] = [
    "Accessibility", "AssetIdentifier", "AudioChannelConfiguration", "ContentComponent", "ContentProtection",
    "EventStream", "FramePacking", "GroupLabel", "InbandEventStream", "Label", "Metrics", "ProducerReferenceTime",
    "ProgramInformation", "Rating", "Role", "SupplementalProperty", "UTCTiming", "Viewpoint",
];

/// An element that says what to request.
struct Known {
    name: &'static str,
    /// What it may be in.
    within: &'static [&'static str],
    /// What it may have; and whether the `COMMON` ones, too.
    attributes: &'static [&'static str],
    has_common: bool,
}

const fn known(
    name: &'static str,
    within: &'static [&'static str],
    attributes: &'static [&'static str],
) -> Known {
    Known {
        name,
        within,
        attributes,
        has_common: false,
    }
}

#[rustfmt::skip]
const KNOWN: [Known; 11] = [
    known("MPD", &[], &[
        "availabilityEndTime", "availabilityStartTime", "id", "maxSegmentDuration", "maxSubsegmentDuration",
        "mediaPresentationDuration", "minBufferTime", "profiles", "publishTime", "type",
    ]),
    known("Period", &["MPD"], &["bitstreamSwitching", "duration", "id", "start"]),
    Known { has_common: true, ..known("AdaptationSet", &["Period"], &[
        "bitstreamSwitching", "contentType", "group", "lang", "maxBandwidth", "maxFrameRate", "maxHeight", "maxWidth",
        "minBandwidth", "minFrameRate", "minHeight", "minWidth", "par", "segmentAlignment", "selectionPriority",
        "subsegmentAlignment", "subsegmentStartsWithSAP",
    ]) },
    Known { has_common: true, ..known("Representation", &["AdaptationSet"], &["bandwidth", "qualityRanking"]) },
    known("BaseURL", &["MPD", "Period", "AdaptationSet", "Representation"], &[
        "availabilityTimeComplete", "availabilityTimeOffset", "serviceLocation",
    ]),
    known("SegmentTemplate", &SETS, &[
        "availabilityTimeComplete", "availabilityTimeOffset", "duration", "initialization", "media",
        "presentationTimeOffset", "startNumber", "timescale",
    ]),
    known("SegmentList", &SETS, &[
        "availabilityTimeComplete", "availabilityTimeOffset", "duration", "presentationTimeOffset", "startNumber",
        "timescale",
    ]),
    known("SegmentTimeline", &["SegmentTemplate", "SegmentList"], &[]),
    known("S", &["SegmentTimeline"], &["d", "r", "t"]),
    known("SegmentURL", &["SegmentList"], &["media"]),
    known("Initialization", &["SegmentTemplate", "SegmentList"], &["sourceURL"]),
];
const SETS: [&str; 3] = ["Period", "AdaptationSet", "Representation"];

/// What an adaptation set, or a representation, has besides its own (5.3.7.2).
#[rustfmt::skip]
const COMMON: [&str; 17] = [
    "audioSamplingRate", "codecs", "codingDependency", "containerProfiles", "frameRate", "height", "id", "maxPlayoutRate",
    "maximumSAPPeriod", "mimeType", "profiles", "sar", "scanType", "segmentProfiles", "startWithSAP", "tag", "width",
];

/// Whether it is this element of an MPD.
pub fn is(node: Node, name: &str) -> bool {
    node.has_tag_name((NAMESPACE, name))
}

/// The children of this name.
pub fn children<'a>(
    node: Node<'a, 'a>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'a>> + 'a {
    node.children().filter(move |child| is(*child, name))
}

/// Whether all of an element and of what is in it is known; what is of other namespaces is an extension, and passed over.
pub fn checked(top: Node) -> Result<(), &'static str> {
    let mut left = vec![top];
    while let Some(node) = left.pop() {
        let name = node.tag_name();
        if name.namespace() != Some(NAMESPACE) || DESCRIPTIONS.contains(&name.name()) {
            continue;
        }
        let known = KNOWN.iter().find(|known| known.name == name.name());
        let known = known.ok_or("an element that is not known here")?;
        let parent = node.parent_element().map(|parent| parent.tag_name().name());
        if parent.is_some_and(|parent| !known.within.contains(&parent)) {
            return Err("an element where it does not belong");
        }
        for attribute in node.attributes() {
            match attribute.namespace() {
                Some(XLINK) => return Err("an element that is elsewhere (xlink)"),
                Some(_) => {}
                None if known.attributes.contains(&attribute.name()) => {}
                None if known.has_common && COMMON.contains(&attribute.name()) => {}
                None => return Err("an attribute that is not known here"),
            }
        }
        left.extend(node.children().filter(Node::is_element));
    }
    Ok(())
}

/// A whole number; None: there is no such attribute.
pub fn number(
    node: Node,
    name: &str,
    range: RangeInclusive<u64>,
) -> Result<Option<u64>, &'static str> {
    let Some(told) = node.attribute(name) else {
        return Ok(None);
    };
    let number: u64 = told.trim().parse().map_err(|_| "a number that is none")?;
    match range.contains(&number) {
        true => Ok(Some(number)),
        false => Err("a number that is too small, or too large"),
    }
}

/// An xs:duration of days and less, as nanoseconds; at most 30 days. Years and months are of no certain length.
pub fn duration_ns(text: &str) -> Result<i64, &'static str> {
    let wrong = "a duration that is none";
    let told = text.trim().strip_prefix('P').ok_or(wrong)?;
    let (days, time) = told.split_once('T').unwrap_or((told, ""));
    if told.is_empty() || told.ends_with('T') {
        return Err(wrong);
    }
    let mut sum_ns: u64 = 0;
    for (mut rest, units) in [(days, &DAYS[..]), (time, &TIME[..])] {
        for (unit, each_ns) in units {
            if let Some((number, after)) = rest.split_once(*unit) {
                let part_ns = times(number, *each_ns).ok_or(wrong)?;
                sum_ns = sum_ns.saturating_add(part_ns);
                rest = after;
            }
        }
        if !rest.is_empty() {
            return Err(wrong);
        }
    }
    match sum_ns <= MOST_LENGTH_NS {
        true => Ok(sum_ns as i64),
        false => Err("a duration of more than 30 days"),
    }
}

/// A decimal number times a unit; digits beyond a billionth of one are left out. Of seconds alone there are fractions.
fn times(number: &str, each_ns: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) || (number != whole && each_ns != SECOND_NS) {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<9.9}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(each_ns)?.checked_add(fraction)
}
