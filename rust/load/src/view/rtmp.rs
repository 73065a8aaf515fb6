//! RTMP: a stream that is played, on demand or live.
//!
//! Media time is that of the timestamps (`timeline.rs`). A stream on demand must come whole, which its server says the
//! end of; a live one must not end.
//!
//! Paced, a server on demand is told how much it may send ahead, and what it sends beyond that stays in the kernel, whose
//! window bounds it: the player reads until `buffer_ns` are ahead of the play head (and what a last read brings), and
//! reads again when half a second of that (at most a quarter) has been played. What is live is read as it comes.

use serde::Deserialize;
use virtoll_generator::time::TIME_MAX_NS;
use virtoll_generator::Failed;

use super::protocol::{Looks, Now, Protocol, Want};
use super::timeline::Timeline;
use crate::rtmp::media::{mark_of, sent_ns, Mark};
use crate::rtmp::session::{checked_name, Application, Event, Session};
use crate::tally::Failure;

const READ_BYTES: usize = 64 * 1024;
/// What a server may send ahead of one who does not play but takes all: ten hours, as rtmpdump says.
const UNPACED_MS: u32 = 36_000_000;
const MS: i64 = 1_000_000;

/// What is asked for, as it is specified; the target is the application's URL, `rtmp://host:port/application`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Play {
    application: String,
    stream: String,
    live: bool,
    /// Null: whatever length it has.
    duration_ns: Option<i64>,
    gap_ns: i64,
    /// Sixteen letters; see `rtmp/media.rs`.
    mark: Option<String>,
}

impl Play {
    pub fn checked(&self, url: &str) -> Result<Played, Failed> {
        if !(MS..=TIME_MAX_NS).contains(&self.gap_ns) || self.duration_ns.is_some_and(|ns| ns < 1) {
            let why = "gap_ns must be at least a millisecond, and duration_ns above 0";
            return Err(Failed(format!("the specification cannot be run: {why}")));
        }
        Ok(Played {
            application: Application::checked(&self.application, url)?,
            stream: checked_name(&self.stream)?,
            is_live: self.live,
            duration_ns: self.duration_ns,
            gap_ns: self.gap_ns,
            mark: self.mark.as_deref().map(mark_of).transpose()?,
        })
    }
}

/// What to ask for.
#[derive(Clone, Debug)]
pub struct Played {
    pub application: Application,
    pub stream: String,
    pub is_live: bool,
    /// Of all of it; None: nobody knows, or it is live.
    pub duration_ns: Option<i64>,
    /// What may be missing between two frames, and at the end.
    pub gap_ns: i64,
    /// By which it is known when its publisher, on this machine, sent a frame.
    pub mark: Option<Mark>,
}

pub struct Rtmp<'a> {
    played: &'a Played,
    session: Session<'a>,
    timeline: Timeline,
    looks: Looks,
    is_connected: bool,
    /// It has its buffer full, and waits until there is room again.
    is_full: bool,
    is_whole: bool,
}

impl<'a> Rtmp<'a> {
    /// `seed`: of what is drawn, so that viewers do not look up all at once.
    pub fn new(played: &'a Played, seed: u64) -> Self {
        Rtmp {
            played,
            session: Session::new(&played.application),
            timeline: Timeline::new(played.gap_ns / MS),
            looks: Looks::new(seed),
            is_connected: false,
            is_full: false,
            is_whole: false,
        }
    }

    fn read_or_pause(&mut self, now: &Now) -> Want {
        let rules = now.player.rules();
        if !rules.paced || self.played.is_live {
            return Want::Read(READ_BYTES);
        }
        self.is_full |= now.player.ahead_ns() >= rules.buffer_ns;
        let low_ns = rules.buffer_ns - rules.refill_ns();
        match now.player.at_most_ahead_ns(low_ns) {
            Some(at_ns) if self.is_full && at_ns > now.ns => Want::Pause(at_ns),
            _ => {
                self.is_full = false;
                Want::Read(READ_BYTES)
            }
        }
    }

    fn heard(&mut self, event: Event, now: &mut Now) -> Result<(), Failure> {
        match event {
            Event::Created => {
                let rules = now.player.rules();
                let buffer_ms = match rules.paced {
                    true => u32::try_from(rules.buffer_ns / MS).unwrap_or(UNPACED_MS),
                    false => UNPACED_MS,
                };
                let (name, is_live) = (&self.played.stream, self.played.is_live);
                self.session.play(name, is_live, buffer_ms);
                Ok(())
            }
            Event::Media(media, bytes) => {
                let sent_ns = match &self.played.mark {
                    Some(mark) if media.is_key => sent_ns(self.session.head(), mark),
                    _ => None,
                };
                now.count_media(bytes as u64, sent_ns);
                let more_ns = self.timeline.came(&media)?;
                if more_ns > 0 {
                    now.media(more_ns, false);
                }
                Ok(())
            }
            Event::Ended => self.ends(now),
            Event::Published => Ok(()),
        }
    }

    /// The server says that there is no more.
    fn ends(&mut self, now: &mut Now) -> Result<(), Failure> {
        let lacks = |duration_ns| !self.timeline.holds(duration_ns);
        if self.played.is_live
            || now.player.got_ns() == 0
            || self.played.duration_ns.is_some_and(lacks)
        {
            return Err(Failure::Length);
        }
        self.is_whole = true;
        now.count(|seen| seen.answers += 1);
        now.media(0, true);
        Ok(())
    }
}

impl Protocol for Rtmp<'_> {
    fn want(&mut self, now: &mut Now) -> Want {
        if self.is_whole {
            return Want::Nothing;
        }
        self.looks.look(now.ns);
        if !self.is_connected {
            self.is_connected = true;
            return Want::Connect;
        }
        match self.session.said() {
            Some(said) => Want::Say(said),
            None => self.read_or_pause(now),
        }
    }

    fn take(&mut self, mut input: &[u8], now: &mut Now) -> Result<(), Failure> {
        while let Some(event) = self.session.next(&mut input)? {
            if self.is_whole {
                return Ok(()); // it says more than once that it is over
            }
            self.heard(event, now)?;
        }
        Ok(())
    }

    fn wakes_ns(&self) -> i64 {
        match self.is_full || self.is_whole {
            true => i64::MAX, // it has its times
            false => self.looks.due_ns(),
        }
    }

    fn closed(&mut self, _: &mut Now) -> Result<(), Failure> {
        Err(match self.session.is_created() {
            true => Failure::Length,
            false => Failure::Reset,
        })
    }
}

#[cfg(test)]
#[path = "rtmp_tests.rs"]
mod tests;
