//! HLS and DASH: a manifest (playlists, or an MPD), and segments that are fetched whole and one after another, on one
//! connection where the server keeps it. A segment counts as media when its last byte has come; one without any is none.
//!
//! Paced, the next segment is asked for when it fits into the buffer; a long one, when what a player resumes with is
//! left ahead. A live playlist (one without an end) is asked for anew before it is read again: a target duration after it
//! changed, half of one after it did not (RFC 8216, 6.3.4); a segment that is gone by then is skipped, and counted.
//!
//! Of several tracks (DASH has audio and video apart) the one that reaches the least far is next, and play goes on as far
//! as all of them have come. An initialization segment is asked for before the first segment of its quality; it is an
//! answer, and no media.
//!
//! Quality: the lowest or the highest; or *adaptive*, by a plain rule: the highest whose bit rate (with the other tracks',
//! as they are) is below 0.8 of the throughput of the segment before (from its request to its last byte), the lowest first.

use std::cell::RefCell;
use std::rc::Rc;

use serde::Deserialize;

use super::asking::{keep, Answer, Asking};
use super::fetch::{Right, Site};
use super::library::Library;
use super::live;
use super::mpd;
use super::playlist::{self, Playlist};
use super::protocol::{Looks, Now, Protocol, Want};
use super::text;
use super::track::{self, Level, Track};
use crate::tally::Failure;

/// No playlist is asked for more often, whatever target duration it tells.
pub const LEAST_RELOAD_NS: i64 = 100_000_000;
/// Of the throughput, what a quality may need: in hundredths.
const SAFE_PERCENT: u128 = 80;

/// Of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Hls,
    /// With partial segments.
    LowLatency,
    Dash,
}

impl Format {
    /// Read a whole one; the error says what is wrong with it.
    pub fn parse(self, text: &[u8]) -> Result<Playlist, &'static str> {
        match self {
            Format::Hls => playlist::parse(text),
            Format::LowLatency => live::playlist::parse(text),
            Format::Dash => mpd::parse(text),
        }
    }
}

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
    /// Of the manifest.
    pub path: String,
    pub format: Format,
    pub quality: Quality,
    /// Each segment's path must name a piece of the endless text, and bring that piece.
    pub text: bool,
}

/// What is under way.
enum Asked {
    Manifest(Vec<u8>),
    Initialization,
    Segment { duration_ns: i64 },
}

pub struct Segmented<'a> {
    stream: &'a Stream,
    library: Rc<RefCell<Library>>,
    /// Whether the first manifest has come: before that, there is one track of one level, of that path.
    is_known: bool,
    tracks: Vec<Track>,
    /// Whose segment is under way, or was last.
    track: usize,
    asking: Asking<Asked>,
    looks: Looks,
    is_whole: bool,
}

impl<'a> Segmented<'a> {
    /// `seed`: of what is drawn, so that viewers do not look up all at once.
    pub fn new(stream: &'a Stream, library: Rc<RefCell<Library>>, seed: u64) -> Self {
        Segmented {
            stream,
            library,
            is_known: false,
            tracks: vec![Track::new(vec![Level::at(stream.path.clone(), 0)])],
            track: 0,
            asking: Asking::default(),
            looks: Looks::new(seed),
            is_whole: false,
        }
    }

    fn ask(&mut self, path: &str, what: Asked, right: Right, now: &Now) {
        let request = self.stream.site.get(path);
        self.asking.ask(request, what, right, now.ns);
    }

    fn ask_manifest(&mut self, now: &Now) {
        let path = self.tracks[self.track].level().variant.uri.clone();
        let what = Asked::Manifest(Vec::new());
        self.ask(&path, what, Right::default(), now);
    }

    /// What to ask for next; or until when to wait, where nothing is to be asked for. None: it is asked for, or a track has
    /// ended and another has not.
    fn choose(&mut self, now: &mut Now) -> Option<Want> {
        self.track = track::hindmost(&self.tracks);
        let track = &mut self.tracks[self.track];
        let level = track.level();
        let Some(media) = level.media() else {
            self.ask_manifest(now);
            return None;
        };
        if !media.ended && level.reload_ns <= now.ns {
            self.ask_manifest(now);
            return None;
        }
        let wanted = track.sequence.unwrap_or_else(|| media.begin());
        let sequence = if wanted < media.sequence {
            media.begin()
        } else {
            wanted
        };
        let Some(segment) = media.segment(sequence) else {
            if !media.ended {
                return Some(Want::Idle(level.reload_ns));
            }
            track.is_whole = true;
            self.tell(now);
            return self.is_whole.then_some(Want::Nothing);
        };
        if let Some(at_ns) = fits_at(segment.duration_ns, now) {
            return Some(Want::Idle(at_ns));
        }
        let duration_ns = segment.duration_ns;
        let Some(path) = level.path(&self.stream.site, segment) else {
            return Some(Want::Fail(Failure::Parse)); // never: it was resolved when the manifest came
        };
        now.count(|seen| seen.skipped += sequence - wanted);
        track.sequence = Some(sequence);
        if let Some(path) = track.level_mut().initialization.take() {
            self.ask(&path, Asked::Initialization, Right::default(), now);
            return None;
        }
        let piece = self.stream.text.then(|| text::piece(&path)).flatten();
        let right = piece.map_or(Right::default(), Right::piece);
        self.ask(&path, Asked::Segment { duration_ns }, right, now);
        None
    }

    fn answered(&mut self, answer: Answer<Asked>, now: &mut Now) -> Result<(), Failure> {
        now.count(|seen| seen.answers += 1);
        match answer.what {
            Asked::Manifest(text) => {
                let format = self.stream.format;
                let playlist = self.library.borrow_mut().parsed(text, format)?;
                self.learn(playlist, now.ns)
            }
            Asked::Initialization | Asked::Segment { .. } if answer.body_bytes == 0 => {
                Err(Failure::Length)
            }
            Asked::Initialization => Ok(()),
            Asked::Segment { duration_ns } => {
                now.count(|seen| seen.segments += 1);
                self.tracks[self.track].got(duration_ns);
                self.tell(now);
                if !self.tracks[self.track].is_whole {
                    self.adapt(answer.body_bytes, now.ns - answer.sent_ns, now);
                }
                Ok(())
            }
        }
    }

    /// Tell the player what has come of all tracks.
    fn tell(&mut self, now: &mut Now) {
        let (until_ns, is_whole) = track::come(&self.tracks);
        self.is_whole = is_whole;
        now.media(until_ns - now.player.got_ns(), is_whole);
    }

    fn learn(&mut self, playlist: Rc<Playlist>, now_ns: i64) -> Result<(), Failure> {
        let (site, is_text) = (&self.stream.site, self.stream.text);
        let base = self.tracks[self.track].level().variant.uri.clone();
        match &*playlist {
            Playlist::Master(variants) if !self.is_known => {
                self.tracks = vec![Track::new(track::variants(site, &base, variants)?)];
                self.begin();
            }
            Playlist::Presentation(all) if !self.is_known => {
                self.tracks = track::presented(site, &base, &playlist, all, is_text)?;
                self.begin();
            }
            // A variant is a playlist of media.
            Playlist::Master(_) | Playlist::Presentation(_) | Playlist::Live(_) => {
                return Err(Failure::Parse);
            }
            Playlist::Media(media) if media.ended && media.segments.is_empty() => {
                return Err(Failure::Parse); // nothing, and there never will be
            }
            Playlist::Media(media) => {
                track::checked(site, &base, media, is_text)?;
                let level = self.tracks[self.track].level_mut();
                let changed = level.learn(playlist.clone());
                let after_ns = if changed {
                    media.target_ns
                } else {
                    media.target_ns / 2
                };
                level.reload_ns = now_ns + after_ns.max(LEAST_RELOAD_NS);
            }
        }
        self.is_known = true;
        Ok(())
    }

    /// With the quality that comes first.
    fn begin(&mut self) {
        for track in &mut self.tracks {
            if self.stream.quality == Quality::Highest {
                track.level = track.levels.len() - 1;
            }
        }
    }

    fn adapt(&mut self, bytes: u64, took_ns: i64, now: &mut Now) {
        if self.stream.quality != Quality::Adaptive || took_ns <= 0 {
            return;
        }
        let bit_per_s = u128::from(bytes) * 8_000_000_000 / took_ns as u128;
        let rate = |level: &Level| u128::from(level.variant.bit_per_s);
        let all: u128 = self.tracks.iter().map(|track| rate(track.level())).sum();
        let track = &mut self.tracks[self.track];
        let others = all - rate(track.level());
        let affordable = |level: &Level| (rate(level) + others) * 100 < bit_per_s * SAFE_PERCENT;
        let level = track.levels.iter().rposition(affordable).unwrap_or(0);
        if level != track.level {
            now.count(|seen| seen.switches += 1);
            track.level = level;
            track.level_mut().forget_live();
        }
    }
}

/// When a segment so long fits into the buffer; None: by now.
pub fn fits_at(duration_ns: i64, now: &Now) -> Option<i64> {
    let rules = now.player.rules();
    if !rules.paced || !now.player.is_playing() {
        return None;
    }
    let fits_ns = (rules.buffer_ns - duration_ns).max(rules.resume_ns);
    let at_ns = now.player.at_most_ahead_ns(fits_ns);
    at_ns.filter(|at_ns| *at_ns > now.ns)
}

impl Protocol for Segmented<'_> {
    fn want(&mut self, now: &mut Now) -> Want {
        if self.is_whole {
            return Want::Nothing;
        }
        self.looks.look(now.ns);
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
            Asked::Initialization => true,
            Asked::Manifest(text) => keep(text, body, playlist::MOST_BYTES),
            Asked::Segment { .. } => {
                media_bytes += body.len() as u64;
                true
            }
        })?;
        now.count(|seen| seen.media_bytes += media_bytes);
        answer.map_or(Ok(()), |answer| self.answered(answer, now))
    }

    fn closed(&mut self, now: &mut Now) -> Result<(), Failure> {
        let answer = self.asking.closed()?;
        answer.map_or(Ok(()), |answer| self.answered(answer, now))
    }

    fn wakes_ns(&self) -> i64 {
        match self.asking.is_idle() {
            true => i64::MAX, // it has its times
            false => self.looks.due_ns(),
        }
    }

    fn reset(&mut self) -> bool {
        self.asking.reset()
    }
}

#[cfg(test)]
#[path = "segmented_tests.rs"]
mod tests;
