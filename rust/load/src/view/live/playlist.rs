//! Live playlists of HLS with partial segments (RFC 8216bis: draft-pantos-hls-rfc8216bis-16, section 4.4), as much of
//! them as a viewer needs that does not decode. A segment whose parts are listed is those parts; any other is one piece.
//! What would change which bytes are media, and is not known here, is an error and not ignored.

use std::mem::size_of;

use super::super::playlist::{self, attribute, is_uri, nanoseconds, Playlist, MOST_ENTRIES};
use super::date::unix_ns;

/// Where a piece stands: its segment's media sequence number, and which part of that it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub sequence: u64,
    pub part: u32,
}

/// A part, or a whole segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub at: Position,
    pub duration_ns: i64,
    /// When its first moment was made, by the server's clock, since 1970; None: it does not tell.
    pub made_ns: Option<i64>,
    /// Play can begin with it.
    pub is_independent: bool,
    pub uri: String,
}

impl Piece {
    /// When its last moment was made.
    pub fn made_until_ns(&self) -> Option<i64> {
        Some(self.made_ns?.saturating_add(self.duration_ns))
    }

    /// How long ago its last moment was made, at this time of the server's. None: that is not told, or the first was to be
    /// made only later, and so is dated by another clock.
    pub fn age_ns(&self, theirs_ns: i64) -> Option<i64> {
        self.made_ns.filter(|made_ns| *made_ns <= theirs_ns)?;
        Some(theirs_ns.saturating_sub(self.made_until_ns()?))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    pub target_ns: i64,
    /// None: there are no parts.
    pub part_target_ns: Option<i64>,
    /// How far from the end play begins.
    pub hold_back_ns: i64,
    /// A request can be held back until the playlist has what it asks for.
    pub can_block: bool,
    /// Ascending.
    pub pieces: Vec<Piece>,
    /// The piece that is to come next.
    pub next: Position,
    /// Where it can be asked for before it is there.
    pub hint: Option<String>,
    pub ended: bool,
}

impl Live {
    pub fn held_bytes(&self) -> usize {
        let of = |piece: &Piece| size_of::<Piece>() + piece.uri.len();
        self.pieces.iter().map(of).sum()
    }

    /// Where a viewer begins (6.3.3): at the last piece from which the end is as far as it must be, and with which play
    /// can begin; of what has ended, at the first.
    pub fn begin(&self) -> Option<&Piece> {
        if self.ended {
            return self.pieces.first();
        }
        let mut left_ns = 0_i64;
        let far = self.pieces.iter().rev().find(|piece| {
            left_ns = left_ns.saturating_add(piece.duration_ns);
            left_ns >= self.hold_back_ns && piece.is_independent
        });
        far.or(self.pieces.first())
    }

    /// The first piece behind this one.
    pub fn after(&self, last: Position) -> Option<&Piece> {
        let index = self.pieces.partition_point(|piece| piece.at <= last);
        self.pieces.get(index)
    }
}

/// Read a whole one; the error says what is wrong with it. One of variants is `Playlist::Master`.
pub fn parse(text: &[u8]) -> Result<Playlist, &'static str> {
    if text.len() > playlist::MOST_BYTES {
        return Err("too long");
    }
    let whole = text;
    let text = std::str::from_utf8(text).map_err(|_| "not UTF-8")?;
    let mut lines = text.lines().map(str::trim_end);
    if lines.next() != Some("#EXTM3U") {
        return Err("it does not begin with #EXTM3U");
    }
    let mut read = Reading::default();
    for line in lines {
        if line.starts_with("#EXT-X-STREAM-INF:") {
            return playlist::parse(whole);
        }
        read.line(line)?;
    }
    read.end().map(Playlist::Live)
}

#[derive(Default)]
struct Reading {
    target_ns: Option<i64>,
    part_target_ns: Option<i64>,
    hold_back_ns: Option<i64>,
    part_hold_back_ns: Option<i64>,
    can_block: bool,
    pieces: Vec<Piece>,
    hint: Option<String>,
    ended: bool,
    /// Of the segment that is read: its number, which pieces before it are others', and when it begins.
    sequence: u64,
    others: usize,
    made_ns: Option<i64>,
    /// A date is told of it, and not reckoned from the segment before.
    is_dated: bool,
    duration_ns: Option<i64>,
}

impl Reading {
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        if let Some(tag) = line.strip_prefix("#EXT-X-") {
            let (name, value) = tag.split_once(':').unwrap_or((tag, ""));
            self.tag(name, value)
        } else if let Some(duration) = line.strip_prefix("#EXTINF:") {
            let seconds = duration.split(',').next().unwrap_or("");
            self.duration_ns = Some(nanoseconds(seconds).ok_or("a segment's duration is none")?);
            Ok(())
        } else if line.is_empty() || line.starts_with('#') {
            Ok(())
        } else {
            self.segment(line)
        }
    }

    fn tag(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        let seconds = |name| match attribute(value, name) {
            None => Ok(None),
            Some(told) => nanoseconds(told).map(Some).ok_or("a time that is none"),
        };
        match name {
            "TARGETDURATION" => {
                self.target_ns = Some(nanoseconds(value).ok_or("a target duration that is none")?);
            }
            "MEDIA-SEQUENCE" if self.pieces.is_empty() => {
                self.sequence = playlist::media_sequence(value)?;
            }
            "MEDIA-SEQUENCE" => return Err("a media sequence behind the first segment"),
            "SERVER-CONTROL" => {
                self.can_block = attribute(value, "CAN-BLOCK-RELOAD") == Some("YES");
                self.hold_back_ns = seconds("HOLD-BACK")?;
                self.part_hold_back_ns = seconds("PART-HOLD-BACK")?;
            }
            "PART-INF" => self.part_target_ns = seconds("PART-TARGET")?,
            "PART" => return self.part(value, seconds("DURATION")?),
            "PRELOAD-HINT" => self.hint = hinted(value).or(self.hint.take()),
            "PROGRAM-DATE-TIME" => (self.made_ns, self.is_dated) = (unix_ns(value), true),
            // Both are the segment's that follows, in whatever order (4.4.4).
            "DISCONTINUITY" if !self.is_dated => self.made_ns = None,
            "ENDLIST" => self.ended = true,
            "BYTERANGE" | "SKIP" | "GAP" | "MAP" => return Err("a tag that is not known here"),
            "KEY" if playlist::is_encrypted(value) => return Err("encryption is not known here"),
            _ => {}
        }
        Ok(())
    }

    fn part(&mut self, value: &str, duration_ns: Option<i64>) -> Result<(), &'static str> {
        let uri = attribute(value, "URI").and_then(unquoted);
        let known = ["BYTERANGE", "GAP"].map(|name| attribute(value, name)) == [None, None];
        let (Some(uri), Some(duration_ns), true) = (uri, duration_ns, known) else {
            return Err("a part that is none, or is not known here");
        };
        let part = self.pieces.len() - self.others;
        let before = self.pieces.last().filter(|_| part > 0);
        let made_ns = before.map_or(self.made_ns, Piece::made_until_ns);
        let is_independent = attribute(value, "INDEPENDENT") == Some("YES");
        self.piece(part as u32, duration_ns, made_ns, is_independent, uri)
    }

    /// A segment's URI: it is its parts where those are listed.
    fn segment(&mut self, uri: &str) -> Result<(), &'static str> {
        let duration_ns = self
            .duration_ns
            .take()
            .ok_or("a URI that nothing is told of")?;
        if !is_uri(uri) {
            return Err("a line that is no URI");
        }
        if self.pieces.len() == self.others {
            self.piece(0, duration_ns, self.made_ns, true, uri)?;
        }
        let made_ns = self.made_ns.take();
        self.made_ns = made_ns.map(|made_ns| made_ns.saturating_add(duration_ns));
        (self.sequence, self.others) = (self.sequence + 1, self.pieces.len());
        self.is_dated = false;
        Ok(())
    }

    fn piece(
        &mut self,
        part: u32,
        duration_ns: i64,
        made_ns: Option<i64>,
        is_independent: bool,
        uri: &str,
    ) -> Result<(), &'static str> {
        if self.pieces.len() >= MOST_ENTRIES {
            return Err("too many entries");
        }
        self.pieces.push(Piece {
            at: Position {
                sequence: self.sequence,
                part,
            },
            duration_ns,
            made_ns,
            is_independent,
            uri: uri.to_owned(),
        });
        Ok(())
    }

    fn end(self) -> Result<Live, &'static str> {
        let target_ns = self.target_ns.ok_or("no target duration")?;
        if self.duration_ns.is_some() {
            return Err("it ends where a URI should follow");
        }
        // What it must be at least, where it is not told (4.4.3.8).
        let hold_back_ns = match self.part_target_ns {
            Some(part_target_ns) => self.part_hold_back_ns.unwrap_or(3 * part_target_ns),
            None => self.hold_back_ns.unwrap_or(3 * target_ns),
        };
        let part = (self.pieces.len() - self.others) as u32;
        Ok(Live {
            target_ns,
            part_target_ns: self.part_target_ns,
            hold_back_ns,
            can_block: self.can_block,
            pieces: self.pieces,
            next: Position {
                sequence: self.sequence,
                part,
            },
            hint: self.hint.filter(|_| !self.ended),
            ended: self.ended,
        })
    }
}

/// Where the next part is to be; of an initialization section, or a byte range, a viewer here makes no use.
fn hinted(value: &str) -> Option<String> {
    let is_whole = ["BYTERANGE-START", "BYTERANGE-LENGTH"].map(|name| attribute(value, name));
    let is_part = attribute(value, "TYPE") == Some("PART") && is_whole == [None, None];
    let uri = attribute(value, "URI").and_then(unquoted);
    uri.filter(|_| is_part).map(str::to_owned)
}

fn unquoted(value: &str) -> Option<&str> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    (!inner.is_empty() && is_uri(inner)).then_some(inner)
}

#[cfg(test)]
#[path = "playlist_tests.rs"]
mod tests;
