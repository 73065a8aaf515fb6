//! HLS playlists (RFC 8216), as much of them as a viewer needs that does not decode: variants, segments and their
//! durations, where the playlist begins and whether it ends. What would change which bytes are media, and is not known
//! here, is an error and not ignored.

use std::mem::size_of;

use super::live::playlist::Live;
use super::mpd::Representation;

/// A playlist that is longer is none.
pub const MOST_BYTES: usize = 1024 * 1024;
pub const MOST_ENTRIES: usize = 50_000;
/// Each viewer keeps a list of them.
pub const MOST_VARIANTS: usize = 100;
const MOST_SEQUENCE: u64 = 1 << 53;
const MOST_URI_BYTES: usize = 2048;
pub const MOST_DURATION_S: u32 = 86_400;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    pub bit_per_s: u64,
    /// As it stands in the playlist.
    pub uri: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub duration_ns: i64,
    pub uri: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Media {
    pub target_ns: i64,
    /// Of the first segment.
    pub sequence: u64,
    pub segments: Vec<Segment>,
    /// No more will be added.
    pub ended: bool,
}

impl Media {
    pub fn segment(&self, sequence: u64) -> Option<&Segment> {
        let index = sequence.checked_sub(self.sequence)?;
        self.segments.get(usize::try_from(index).ok()?)
    }

    fn held_bytes(&self) -> usize {
        let of = |segment: &Segment| size_of::<Segment>() + segment.uri.len();
        self.segments.iter().map(of).sum()
    }

    /// Whether there is no such segment, and never will be.
    pub fn ends_before(&self, sequence: u64) -> bool {
        self.ended && sequence >= self.sequence + self.segments.len() as u64
    }

    /// Where a viewer begins: at the first, or where it goes on live with three target durations from its end (6.3.3).
    pub fn begin(&self) -> u64 {
        if self.ended {
            return self.sequence;
        }
        let mut left_ns = 0;
        let far = self.segments.iter().rposition(|segment| {
            left_ns += segment.duration_ns;
            left_ns >= 3 * self.target_ns
        });
        self.sequence + far.unwrap_or(0) as u64
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Playlist {
    /// Ascending by bit rate, and never empty.
    Master(Vec<Variant>),
    Media(Media),
    /// DASH: all qualities of all tracks with their segments; by track, ascending by bit rate, and never empty.
    Presentation(Vec<Representation>),
    /// Low-latency HLS.
    Live(Live),
}

impl Playlist {
    /// What it takes to hold its segments and what they are relative to, about.
    pub fn held_bytes(&self) -> usize {
        match self {
            Playlist::Master(_) => 0,
            Playlist::Media(media) => media.held_bytes(),
            Playlist::Live(live) => live.held_bytes(),
            Playlist::Presentation(all) => all
                .iter()
                .map(|each| each.media.held_bytes() + each.address_bytes())
                .sum(),
        }
    }
}

/// Read a whole playlist; the error says what is wrong with it.
pub fn parse(text: &[u8]) -> Result<Playlist, &'static str> {
    if text.len() > MOST_BYTES {
        return Err("too long");
    }
    let text = std::str::from_utf8(text).map_err(|_| "not UTF-8")?;
    let mut lines = text.lines().map(str::trim_end);
    if lines.next() != Some("#EXTM3U") {
        return Err("it does not begin with #EXTM3U");
    }
    let mut read = Reading::default();
    for line in lines {
        read.line(line)?;
    }
    read.end()
}

/// Of EXT-X-KEY: no player plays what follows without the key.
pub fn is_encrypted(value: &str) -> bool {
    attribute(value, "METHOD") != Some("NONE")
}

#[derive(Default)]
struct Reading {
    variants: Vec<Variant>,
    segments: Vec<Segment>,
    target_ns: Option<i64>,
    sequence: u64,
    ended: bool,
    /// Of the URI that is to follow.
    bit_per_s: Option<u64>,
    duration_ns: Option<i64>,
}

impl Reading {
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        if let Some(tag) = line.strip_prefix("#EXT-X-") {
            self.tag(tag)
        } else if let Some(duration) = line.strip_prefix("#EXTINF:") {
            let seconds = duration.split(',').next().unwrap_or("");
            self.duration_ns = Some(nanoseconds(seconds).ok_or("a segment's duration is none")?);
            Ok(())
        } else if line.is_empty() || line.starts_with('#') {
            Ok(())
        } else {
            self.uri(line)
        }
    }

    fn tag(&mut self, tag: &str) -> Result<(), &'static str> {
        let (name, value) = tag.split_once(':').unwrap_or((tag, ""));
        match name {
            "TARGETDURATION" => {
                self.target_ns = Some(nanoseconds(value).ok_or("a target duration that is none")?);
            }
            "MEDIA-SEQUENCE" => {
                self.sequence = media_sequence(value)?;
            }
            "ENDLIST" => self.ended = true,
            "STREAM-INF" => {
                let told = attribute(value, "BANDWIDTH").and_then(|value| value.parse().ok());
                self.bit_per_s = Some(told.ok_or("a variant without a bandwidth")?);
            }
            "BYTERANGE" => return Err("byte ranges are not known here"),
            "GAP" => return Err("gaps are not known here"),
            "MAP" => return Err("segments that begin elsewhere (EXT-X-MAP) are not known here"),
            "KEY" if is_encrypted(value) => return Err("encryption is not known here"),
            "MEDIA" if is_apart(value) => return Err("audio or video apart is not known here"),
            _ => {}
        }
        Ok(())
    }

    fn uri(&mut self, line: &str) -> Result<(), &'static str> {
        if !is_uri(line) {
            return Err("a line that is no URI");
        }
        if self.variants.len() >= MOST_VARIANTS || self.segments.len() >= MOST_ENTRIES {
            return Err("too many entries");
        }
        let uri = line.to_owned();
        match (self.bit_per_s.take(), self.duration_ns.take()) {
            (Some(bit_per_s), None) => self.variants.push(Variant { bit_per_s, uri }),
            (None, Some(duration_ns)) => self.segments.push(Segment { duration_ns, uri }),
            (None, None) => return Err("a URI that nothing is told of"),
            (Some(_), Some(_)) => return Err("a URI that is variant and segment"),
        }
        Ok(())
    }

    fn end(mut self) -> Result<Playlist, &'static str> {
        if self.bit_per_s.is_some() || self.duration_ns.is_some() {
            return Err("it ends where a URI should follow");
        }
        match (self.variants.is_empty(), self.target_ns) {
            (false, None) if self.segments.is_empty() => {
                self.variants.sort_by_key(|variant| variant.bit_per_s);
                Ok(Playlist::Master(self.variants))
            }
            (true, Some(target_ns)) => Ok(Playlist::Media(Media {
                target_ns,
                sequence: self.sequence,
                segments: self.segments,
                ended: self.ended,
            })),
            (true, None) => Err("neither variants nor a target duration"),
            (false, _) => Err("variants and segments in one playlist"),
        }
    }
}

/// Whether a rendition (4.3.4.1) has media of its own, to be played with a variant's.
fn is_apart(rendition: &str) -> bool {
    let is_played = matches!(attribute(rendition, "TYPE"), Some("AUDIO" | "VIDEO"));
    is_played && attribute(rendition, "URI").is_some()
}

/// The number of a playlist's first segment.
pub fn media_sequence(value: &str) -> Result<u64, &'static str> {
    let told: u64 = value.parse().map_err(|_| "a media sequence that is none")?;
    let known = Some(told).filter(|sequence| *sequence <= MOST_SEQUENCE);
    known.ok_or("a media sequence beyond 2^53")
}

/// Whether a request can ask for it.
pub fn is_uri(text: &str) -> bool {
    text.len() <= MOST_URI_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A decimal number of seconds, above 0 and at most a day.
pub fn nanoseconds(text: &str) -> Option<i64> {
    let seconds: f64 = text.trim().parse().ok()?;
    let ns = (seconds * 1e9).round();
    (ns >= 1.0 && seconds <= f64::from(MOST_DURATION_S)).then_some(ns as i64)
}

/// The value of an attribute in a list of them; commas within quotes separate nothing.
pub fn attribute<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    let mut in_quotes = false;
    let separates = |c: char| {
        in_quotes ^= c == '"';
        c == ',' && !in_quotes
    };
    list.split(separates)
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

/// The path that `uri`, in a playlist at `base` (a path) of the server `authority`, means (RFC 3986, 5.2.2); None: on
/// another server. A fragment is none of the server's.
pub fn resolved(authority: &str, base: &str, uri: &str) -> Option<String> {
    let without_query = base.split('?').next().unwrap_or(base);
    let uri = uri.split('#').next().unwrap_or(uri);
    let path = if uri.is_empty() {
        base.to_owned()
    } else if uri.starts_with('?') {
        format!("{without_query}{uri}")
    } else if let Some(rest) = uri.strip_prefix("http://") {
        rest.strip_prefix(authority)
            .filter(|path| path.starts_with('/'))?
            .to_owned()
    } else if uri.starts_with("//") || uri.split(['/', '?']).next()?.contains(':') {
        return None;
    } else if uri.starts_with('/') {
        uri.to_owned()
    } else {
        let directory = without_query
            .rfind('/')
            .map_or("/", |slash| &without_query[..=slash]);
        format!("{directory}{uri}")
    };
    let (path, query) = match path.find('?') {
        Some(at) => path.split_at(at),
        None => (path.as_str(), ""),
    };
    Some(without_dots(path) + query)
}

/// RFC 3986, section 5.2.4.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut names = path.split('/').skip(1).peekable();
    while let Some(name) = names.next() {
        match name {
            "." | ".." => {
                if name == ".." {
                    kept.pop();
                }
                if names.peek().is_none() {
                    kept.push("");
                }
            }
            name => kept.push(name),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
#[path = "playlist_tests.rs"]
mod tests;
