//! Low-latency HLS, live (RFC 8216bis): parts of segments, which are fetched whole and one after another, on one
//! connection. A part counts as media when its last byte has come and a playlist lists it; one without any is none.
//!
//! Play begins where PART-HOLD-BACK says. At the live edge the part that is hinted at is asked for before it is there, and
//! when it has come the playlist that must list it by then. Without a hint the playlist is asked for, to be held back until
//! it has the part that is next (6.2.5.2); of a server that cannot hold it back, after a part target where it changed, and
//! half of one where it did not. A hint need not be kept: where what it hints at is not there (404), the playlist is asked
//! for anew, as without a hint. A server without parts is watched by its segments, in the same way.
//!
//! Most of what a viewer does at the edge is brought about by what comes. So that it is known whether the generator looks in
//! time, a viewer also looks up by itself, once in a part target.
//!
//! *Age*: when a part is there, how long ago its last moment was made, by the server's clock (`clock.rs`); of those that
//! the first playlist lists already it is not told, for they were not waited for. *Live latency*: how long ago the moment
//! was made that is played just then. Nobody plays faster to catch up: what a stall has cost stays.

pub mod clock;
mod date;
pub mod playlist;

use std::cell::RefCell;
use std::rc::Rc;

use super::asking::{keep, Answer, Asking};
use super::fetch::{Right, Site};
use super::library::Library;
use super::playlist::{resolved, Playlist, MOST_BYTES};
use super::protocol::{Now, Protocol, Want};
use super::segmented::{fits_at, Format, LEAST_RELOAD_NS};
use super::text;
use crate::tally::Failure;
use clock::Clock;
use playlist::{Live, Piece, Position};

/// Between when media were made that follow each other: dates are of milliseconds, and durations are rounded.
const MOST_GAP_NS: i64 = 50_000_000;

/// What to ask for.
#[derive(Debug)]
pub struct Source {
    pub site: Site,
    /// Of the playlist; of one of variants the best is watched.
    pub path: String,
    /// Each part's path must name a piece of the endless text, and bring that piece.
    pub text: bool,
    /// None: nobody tells the server's time, and ages are not known.
    pub clock: Option<Clock>,
}

/// What is under way.
enum Asked {
    Playlist(Vec<u8>),
    Piece(Piece),
    /// What is hinted at by this URI.
    Hinted(String),
}

pub struct LowLatency<'a> {
    source: &'a Source,
    library: Rc<RefCell<Library>>,
    asking: Asking<Asked>,
    /// Of the playlist of media, as soon as it is known.
    path: String,
    listed: Option<Rc<Playlist>>,
    listed_ns: i64,
    /// When the playlist may be asked for anew.
    reload_ns: i64,
    /// The piece that came last, and where the first playlist ended.
    last: Option<Piece>,
    first_next: Position,
    /// What was hinted at has come from here, and no playlist lists it yet.
    hinted: Option<String>,
    /// What was hinted at here was not there.
    unkept: Option<String>,
    /// How long a part is, or a segment; and when it looks up.
    unit_ns: i64,
    looks_ns: i64,
    is_whole: bool,
}

impl<'a> LowLatency<'a> {
    pub fn new(source: &'a Source, library: Rc<RefCell<Library>>) -> Self {
        LowLatency {
            source,
            library,
            asking: Asking::default(),
            path: source.path.clone(),
            listed: None,
            listed_ns: 0,
            reload_ns: 0,
            last: None,
            first_next: Position::default(),
            hinted: None,
            unkept: None,
            unit_ns: LEAST_RELOAD_NS,
            looks_ns: 0,
            is_whole: false,
        }
    }

    /// What to ask for next; or until when to wait, where nothing is to be asked for. None: it is asked for.
    fn choose(&mut self, now: &mut Now) -> Option<Want> {
        let Some(playlist) = self.listed.clone() else {
            return self.ask_playlist(None, now);
        };
        let Playlist::Live(live) = &*playlist else {
            return Some(Want::Fail(Failure::Parse)); // never: nothing else is kept
        };
        if !live.ended && now.ns >= self.listed_ns + live.target_ns.max(LEAST_RELOAD_NS) {
            return self.ask_playlist(None, now); // what it lists may be gone
        }
        let next = match &self.last {
            None => live.begin(),
            Some(last) => live.after(last.at),
        };
        match next {
            Some(piece) => self.choose_piece(piece, now),
            None if live.ended => {
                self.is_whole = true;
                now.media(0, true);
                Some(Want::Nothing)
            }
            None => self.choose_at_the_edge(live, now),
        }
    }

    fn choose_piece(&mut self, piece: &Piece, now: &mut Now) -> Option<Want> {
        if let Some(at_ns) = fits_at(piece.duration_ns, now) {
            return Some(Want::Idle(at_ns));
        }
        if self.hinted.take().as_ref() == Some(&piece.uri) {
            self.got(piece.clone(), now);
            return None;
        }
        self.ask_media(&piece.uri, Asked::Piece(piece.clone()), now)
    }

    /// All that is listed has come.
    fn choose_at_the_edge(&mut self, live: &Live, now: &mut Now) -> Option<Want> {
        if let (Some(hint), None) = (&live.hint, &self.hinted) {
            if self.unkept.as_ref() != Some(hint) {
                return self.ask_media(hint, Asked::Hinted(hint.clone()), now);
            }
        }
        if self.reload_ns > now.ns {
            return Some(Want::Idle(self.reload_ns));
        }
        self.ask_playlist(live.can_block.then_some(live), now)
    }

    /// None, where it is asked for.
    fn ask_media(&mut self, uri: &str, what: Asked, now: &Now) -> Option<Want> {
        let Some(path) = resolved(&self.source.site.authority, &self.path, uri) else {
            return Some(Want::Fail(Failure::Parse));
        };
        let piece = text::piece(&path).filter(|_| self.source.text);
        if self.source.text && piece.is_none() {
            return Some(Want::Fail(Failure::Content)); // it could be anything
        }
        let request = self.source.site.get(&path);
        let right = Right {
            may_lack: matches!(what, Asked::Hinted(_)),
            ..piece.map_or(Right::default(), Right::piece)
        };
        self.asking.ask(request, what, right, now.ns);
        None
    }

    /// As it is; or, where it is not there yet, what `until` has not listed.
    fn ask_playlist(&mut self, until: Option<&Live>, now: &mut Now) -> Option<Want> {
        let mut path = self.path.clone();
        if let Some(live) = until {
            path.push(if path.contains('?') { '&' } else { '?' });
            path += &format!("_HLS_msn={}", live.next.sequence);
            if live.part_target_ns.is_some() {
                path += &format!("&_HLS_part={}", live.next.part);
            }
        }
        let request = self.source.site.get(&path);
        let what = Asked::Playlist(Vec::new());
        self.asking.ask(request, what, Right::default(), now.ns);
        now.count(|seen| seen.live.reloads += 1);
        None
    }

    fn answered(&mut self, answer: Answer<Asked>, now: &mut Now) -> Result<(), Failure> {
        now.count(|seen| seen.answers += 1);
        match answer.what {
            Asked::Playlist(text) => {
                let format = Format::LowLatency;
                let playlist = self.library.borrow_mut().parsed(text, format)?;
                self.learn(playlist, now)
            }
            Asked::Hinted(uri) if answer.lacks => {
                now.count(|seen| seen.live.unkept += 1);
                self.unkept = Some(uri);
                Ok(())
            }
            Asked::Piece(_) | Asked::Hinted(_) if answer.body_bytes == 0 => Err(Failure::Length),
            Asked::Piece(piece) => {
                self.got(piece, now);
                Ok(())
            }
            Asked::Hinted(uri) => {
                now.count(|seen| seen.live.hinted += 1);
                self.hinted = Some(uri);
                self.reload_ns = now.ns; // it must be listed by now
                Ok(())
            }
        }
    }

    fn learn(&mut self, playlist: Rc<Playlist>, now: &mut Now) -> Result<(), Failure> {
        match &*playlist {
            Playlist::Master(variants) if self.path == self.source.path => {
                let best = variants.last().ok_or(Failure::Parse)?;
                let path = resolved(&self.source.site.authority, &self.path, &best.uri);
                self.path = path
                    .filter(|path| *path != self.source.path)
                    .ok_or(Failure::Parse)?;
            }
            Playlist::Live(live) => {
                if live.ended && live.pieces.is_empty() {
                    return Err(Failure::Parse); // nothing, and there never will be
                }
                let is_new = self.listed.as_ref() != Some(&playlist);
                let goes_on = match self.listed.as_deref() {
                    Some(Playlist::Live(before)) => live.next > before.next,
                    _ => true,
                };
                let unit_ns = live.part_target_ns.unwrap_or(live.target_ns);
                self.unit_ns = unit_ns.max(LEAST_RELOAD_NS);
                let after_ns = match (live.can_block, is_new) {
                    (true, _) if goes_on => 0,
                    (true, _) => LEAST_RELOAD_NS,
                    (false, true) => self.unit_ns,
                    (false, false) => (unit_ns / 2).max(LEAST_RELOAD_NS),
                };
                if self.listed.is_none() {
                    self.first_next = live.next;
                }
                (self.listed_ns, self.reload_ns) = (now.ns, now.ns + after_ns);
                self.listed = Some(playlist);
            }
            _ => return Err(Failure::Parse),
        }
        Ok(())
    }

    /// A piece is there, and listed.
    fn got(&mut self, piece: Piece, now: &mut Now) {
        let skipped = self
            .last
            .as_ref()
            .map_or(0, |last| skipped_between(last, &piece));
        now.count(|seen| {
            seen.segments += 1;
            seen.skipped += skipped;
        });
        now.media(piece.duration_ns, false);
        let clock = self.source.clock.as_ref();
        let theirs_ns = clock.and_then(|clock| clock.theirs_ns(now.ns));
        if let Some(age_ns) = theirs_ns.and_then(|theirs_ns| piece.age_ns(theirs_ns)) {
            if piece.at >= self.first_next {
                now.count_age(now.ns.saturating_sub(age_ns), now.ns);
                now.count(|seen| seen.live.ages.record(age_ns.max(0) as u64));
            }
            if now.player.is_playing() {
                let latency_ns = age_ns.saturating_add(now.player.ahead_ns()).max(0);
                now.count(|seen| seen.live.latencies.record(latency_ns as u64));
            }
        }
        self.last = Some(piece);
    }
}

/// How many segments are missing, or of which some is, between two pieces that came one after the other.
fn skipped_between(last: &Piece, piece: &Piece) -> u64 {
    let follows = match (last.made_until_ns(), piece.made_ns) {
        (Some(until_ns), Some(made_ns)) => made_ns.saturating_sub(until_ns) <= MOST_GAP_NS,
        _ if piece.at.sequence == last.at.sequence => piece.at.part == last.at.part + 1,
        _ => piece.at.sequence == last.at.sequence + 1 && piece.at.part == 0,
    };
    let segments = piece.at.sequence - last.at.sequence;
    if follows {
        0
    } else {
        segments.max(1)
    }
}

impl Protocol for LowLatency<'_> {
    fn want(&mut self, now: &mut Now) -> Want {
        if self.is_whole {
            return Want::Nothing;
        }
        if now.ns >= self.looks_ns {
            self.looks_ns = now.ns + self.unit_ns;
        }
        while self.asking.is_idle() {
            if let Some(want) = self.choose(now) {
                return want;
            }
        }
        self.asking.want()
    }

    fn take(&mut self, input: &[u8], now: &mut Now) -> Result<(), Failure> {
        let mut media_bytes = 0;
        let answer = self.asking.take(input, |what, body| match what {
            Asked::Playlist(text) => keep(text, body, MOST_BYTES),
            Asked::Piece(_) | Asked::Hinted(_) => {
                media_bytes += body.len() as u64;
                true
            }
        })?;
        let lacks = answer
            .as_ref()
            .map_or(self.asking.lacks(), |answer| answer.lacks);
        if !lacks {
            now.count(|seen| seen.media_bytes += media_bytes);
        }
        answer.map_or(Ok(()), |answer| self.answered(answer, now))
    }

    fn closed(&mut self, now: &mut Now) -> Result<(), Failure> {
        let answer = self.asking.closed()?;
        answer.map_or(Ok(()), |answer| self.answered(answer, now))
    }

    fn wakes_ns(&self) -> i64 {
        match self.is_whole {
            true => i64::MAX,
            false => self.looks_ns,
        }
    }

    fn reset(&mut self) -> bool {
        self.asking.reset()
    }

    fn is_idle(&self) -> bool {
        self.asking.is_idle()
    }

    fn resume(&mut self) {
        (self.listed, self.last) = (None, None);
        (self.hinted, self.unkept) = (None, None);
        self.is_whole = false;
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
