//! HLS: playlists, and segments that are fetched whole and one after another, on one connection where the server keeps
//! it. A segment counts as media when its last byte has come.
//!
//! Paced, the next segment is asked for when it fits into the buffer; a long one, when what a player resumes with is
//! left ahead. A live playlist (one without an end) is asked for anew before it is read again: a target duration after it
//! changed, half of one after it did not (RFC 8216, 6.3.4); a segment that is gone by then is skipped, and counted.
//!
//! Quality: the lowest or the highest; or *adaptive*, by a plain rule: the highest whose bit rate is below 0.8 of the
//! throughput of the segment before (from its request to its last byte), the lowest first.

use std::cell::RefCell;
use std::rc::Rc;

use serde::Deserialize;

use super::fetch::{Fetch, Right, Site};
use super::library::Library;
use super::playlist::{self, Media, Playlist, Variant};
use super::protocol::{Now, Protocol, Want};
use super::text;
use crate::tally::Failure;

const READ_BYTES: usize = 64 * 1024;
/// No playlist is asked for more often, whatever target duration it tells.
const LEAST_RELOAD_NS: i64 = 100_000_000;
/// Of the throughput, what a quality may need: in hundredths.
const SAFE_PERCENT: u128 = 80;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    Lowest,
    Highest,
    Adaptive,
}

/// What to ask for.
#[derive(Clone, Debug)]
pub struct Stream {
    pub site: Site,
    /// Of the playlist.
    pub path: String,
    pub quality: Quality,
    /// Each segment's path must name a piece of the endless text, and bring that piece.
    pub text: bool,
}

/// What is under way.
enum Asked {
    Playlist(Vec<u8>),
    Segment { duration_ns: i64 },
}

struct Request {
    what: Asked,
    bytes: Vec<u8>,
    fetch: Fetch,
    sent_ns: i64,
    /// Something of the answer has come.
    is_answered: bool,
    /// It went over a connection that had brought an answer before.
    is_reused: bool,
}

/// One quality.
struct Level {
    variant: Variant,
    /// None: to be asked for.
    media: Option<Rc<Playlist>>,
    /// When it is to be asked for anew.
    reload_ns: i64,
}

impl Level {
    fn media(&self) -> Option<&Media> {
        match self.media.as_deref() {
            Some(Playlist::Media(media)) => Some(media),
            _ => None,
        }
    }
}

pub struct Hls<'a> {
    stream: &'a Stream,
    library: Rc<RefCell<Library>>,
    /// Whether the first playlist has come: before that, there is one level, of that path.
    is_known: bool,
    levels: Vec<Level>,
    level: usize,
    /// Of the next segment, once one was chosen.
    sequence: Option<u64>,
    request: Option<Request>,
    /// To be sent, as soon as there is a connection.
    unsent: Option<Vec<u8>>,
    is_connected: bool,
    /// The connection has brought an answer.
    is_used: bool,
    is_whole: bool,
}

impl<'a> Hls<'a> {
    pub fn new(stream: &'a Stream, library: Rc<RefCell<Library>>) -> Self {
        let variant = Variant {
            bit_per_s: 0,
            uri: stream.path.clone(),
        };
        Hls {
            stream,
            library,
            is_known: false,
            levels: vec![level(variant)],
            level: 0,
            sequence: None,
            request: None,
            unsent: None,
            is_connected: false,
            is_used: false,
            is_whole: false,
        }
    }

    fn ask(&mut self, path: &str, what: Asked, right: Right, now: &Now) {
        let bytes = self.stream.site.get(path);
        self.unsent = Some(bytes.clone());
        self.request = Some(Request {
            what,
            bytes,
            fetch: Fetch::new(right),
            sent_ns: now.ns,
            is_answered: false,
            is_reused: self.is_connected && self.is_used,
        });
    }

    fn ask_playlist(&mut self, now: &Now) {
        let path = self.levels[self.level].variant.uri.clone();
        self.ask(&path, Asked::Playlist(Vec::new()), Right::default(), now);
    }

    /// What to ask for next; or until when to wait, where nothing is to be asked for.
    fn choose(&mut self, now: &mut Now) -> Option<Want> {
        let Some(media) = self.levels[self.level].media() else {
            self.ask_playlist(now);
            return None;
        };
        let reload_ns = self.levels[self.level].reload_ns;
        if !media.ended && reload_ns <= now.ns {
            self.ask_playlist(now);
            return None;
        }
        let wanted = self.sequence.unwrap_or_else(|| media.begin());
        let sequence = if wanted < media.sequence {
            media.begin()
        } else {
            wanted
        };
        if let Some(segment) = media.segment(sequence) {
            let rules = now.player.rules();
            if rules.paced && now.player.is_playing() {
                let fits_ns = (rules.buffer_ns - segment.duration_ns).max(rules.resume_ns);
                match now.player.at_most_ahead_ns(fits_ns) {
                    Some(at_ns) if at_ns > now.ns => return Some(Want::Idle(at_ns)),
                    _ => {}
                }
            }
            let what = Asked::Segment {
                duration_ns: segment.duration_ns,
            };
            // It was resolved when the playlist came.
            let base = &self.levels[self.level].variant.uri;
            let path = playlist::resolved(&self.stream.site.authority, base, &segment.uri)?;
            let piece = self.stream.text.then(|| text::piece(&path)).flatten();
            let right = piece.map_or(Right::default(), Right::piece);
            now.count(|seen| seen.skipped += sequence - wanted);
            self.sequence = Some(sequence);
            self.ask(&path, what, right, now);
            return None;
        }
        if !media.ended {
            return Some(Want::Idle(reload_ns));
        }
        self.is_whole = true;
        now.media(0, true);
        Some(Want::Nothing)
    }

    /// An answer is whole.
    fn answered(&mut self, now: &mut Now) -> Result<(), Failure> {
        let Some(request) = self.request.take() else {
            return Ok(());
        };
        self.is_connected &= request.fetch.keep_alive();
        self.is_used = true;
        now.count(|seen| seen.answers += 1);
        match request.what {
            Asked::Playlist(text) => {
                let playlist = self.library.borrow_mut().parsed(text)?;
                self.learn(playlist, now.ns)
            }
            Asked::Segment { duration_ns } => {
                now.count(|seen| seen.segments += 1);
                let next = self.sequence.map_or(0, |sequence| sequence + 1);
                self.sequence = Some(next);
                let media = self.levels[self.level].media();
                self.is_whole = media.is_some_and(|media| media.ends_before(next));
                now.media(duration_ns, self.is_whole);
                if self.is_whole {
                    return Ok(());
                }
                let took_ns = now.ns - request.sent_ns;
                self.adapt(request.fetch.body_bytes(), took_ns, now);
                Ok(())
            }
        }
    }

    fn learn(&mut self, playlist: Rc<Playlist>, now_ns: i64) -> Result<(), Failure> {
        let base = self.levels[self.level].variant.uri.clone();
        let authority = &self.stream.site.authority;
        let path = |uri: &str| playlist::resolved(authority, &base, uri).ok_or(Failure::Parse);
        match &*playlist {
            Playlist::Master(variants) if !self.is_known => {
                let absolute = |variant: &Variant| {
                    let uri = path(&variant.uri)?;
                    Ok(level(Variant { uri, ..*variant }))
                };
                self.levels = variants.iter().map(absolute).collect::<Result<_, _>>()?;
                if self.stream.quality == Quality::Highest {
                    self.level = self.levels.len() - 1;
                }
            }
            Playlist::Master(_) => return Err(Failure::Parse), // a variant is a playlist of media
            Playlist::Media(media) if media.ended && media.segments.is_empty() => {
                return Err(Failure::Parse); // nothing, and there never will be
            }
            Playlist::Media(media) => {
                for segment in &media.segments {
                    let path = path(&segment.uri)?;
                    if self.stream.text && text::piece(&path).is_none() {
                        return Err(Failure::Content); // it could be anything
                    }
                }
                let level = &mut self.levels[self.level];
                let changed = level.media.as_deref() != Some(&*playlist);
                let after_ns = if changed {
                    media.target_ns
                } else {
                    media.target_ns / 2
                };
                level.reload_ns = now_ns + after_ns.max(LEAST_RELOAD_NS);
                level.media = Some(playlist.clone());
            }
        }
        self.is_known = true;
        Ok(())
    }

    fn adapt(&mut self, bytes: u64, took_ns: i64, now: &mut Now) {
        if self.stream.quality != Quality::Adaptive || took_ns <= 0 {
            return;
        }
        let bit_per_s = u128::from(bytes) * 8_000_000_000 / took_ns as u128;
        let affordable =
            |level: &Level| u128::from(level.variant.bit_per_s) * 100 < bit_per_s * SAFE_PERCENT;
        let level = self.levels.iter().rposition(affordable).unwrap_or(0);
        if level != self.level {
            now.count(|seen| seen.switches += 1);
            self.level = level;
            // What is known of a live playlist is old by now.
            let known = &mut self.levels[level];
            if known.media().is_some_and(|media| !media.ended) {
                known.media = None;
            }
        }
    }
}

fn level(variant: Variant) -> Level {
    Level {
        variant,
        media: None,
        reload_ns: 0,
    }
}

impl Protocol for Hls<'_> {
    fn want(&mut self, now: &mut Now) -> Want {
        if self.is_whole {
            return Want::Nothing;
        }
        if self.request.is_none() {
            if let Some(want) = self.choose(now) {
                return want;
            }
        }
        if !self.is_connected {
            (self.is_connected, self.is_used) = (true, false);
            return Want::Connect;
        }
        match self.unsent.take() {
            Some(request) => Want::Send(request),
            None => Want::Read(READ_BYTES),
        }
    }

    fn take(&mut self, input: &[u8], now: &mut Now) -> Result<(), Failure> {
        let Some(Request {
            what,
            fetch,
            is_answered,
            ..
        }) = &mut self.request
        else {
            return Err(Failure::Parse); // it talks unasked
        };
        *is_answered = true;
        let before_bytes = fetch.body_bytes();
        let mut is_too_long = false;
        let is_whole = match what {
            Asked::Segment { .. } => fetch.take(input, |_| ())?,
            Asked::Playlist(text) => fetch.take(input, |body| {
                is_too_long |= text.len() + body.len() > playlist::MOST_BYTES;
                if !is_too_long {
                    text.extend_from_slice(body);
                }
            })?,
        };
        if is_too_long {
            return Err(Failure::Parse);
        }
        if let Asked::Segment { .. } = what {
            let came_bytes = fetch.body_bytes() - before_bytes;
            now.count(|seen| seen.media_bytes += came_bytes);
        }
        match is_whole {
            true => self.answered(now),
            false => Ok(()),
        }
    }

    fn closed(&mut self, now: &mut Now) -> Result<(), Failure> {
        if self.reset() {
            return Ok(());
        }
        let Some(request) = &mut self.request else {
            return Ok(());
        };
        match request.fetch.closed()? {
            true => self.answered(now),
            false => Ok(()),
        }
    }

    /// A server may close a connection that it had kept while the next request is on its way to it: that one is asked
    /// anew (RFC 9112, 9.3.1), once, for then the connection is a new one.
    fn reset(&mut self) -> bool {
        self.is_connected = false;
        match &mut self.request {
            Some(request) if request.is_reused && !request.is_answered => {
                request.is_reused = false;
                self.unsent = Some(request.bytes.clone());
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
#[path = "hls_tests.rs"]
mod tests;
