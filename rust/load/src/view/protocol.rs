//! What differs between streaming protocols: a state machine without input and output of its own.
//!
//! A viewer is one of these and a `Player`. Whoever drives it (`worker.rs`) asks what it wants, does that, and tells it
//! what came; then asks again. What the machine makes of the bytes goes to the player, as media that came.

use virtoll_generator::random::Random;
use virtoll_generator::reception::Received;
use virtoll_wire::hist::Histogram;

use super::player::{Player, Watched};
use crate::tally::Failure;

/// What a viewer wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// A new connection, in place of the one that it has.
    Connect,
    /// These bytes are sent.
    Send(Vec<u8>),
    /// The same, where a connection is one conversation: if the server has closed it, what it said before is read.
    Say(Vec<u8>),
    /// So many pairs of sockets for datagrams, the first port of each even (RFC 3550, 11); `bound` tells which.
    Bind(usize),
    /// A datagram is sent to the server from this socket, at best: its loss is nobody's concern.
    Datagram {
        socket: usize,
        port: u16,
        bytes: Vec<u8>,
    },
    /// At most so many bytes of what comes.
    Read(usize),
    /// Nothing is read before this time: what comes meanwhile stays in the kernel, whose window bounds the server.
    Pause(i64),
    /// Nothing is to come before this time, and the server may close.
    Idle(i64),
    /// Nothing more: the media are whole.
    Nothing,
    /// Nothing can come of it any more.
    Fail(Failure),
}

/// When a packet came: for what lies between two, by the stamp of the kernel that received it (CLOCK_REALTIME); and by
/// CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    pub stamp_ns: i64,
    pub at_ns: i64,
}

impl Came {
    /// It is not known better than that it has just been read.
    pub fn just(now_ns: i64) -> Self {
        Came {
            stamp_ns: now_ns,
            at_ns: now_ns,
        }
    }
}

/// When a viewer looks up by itself, while all that it does is brought about by what comes: so it is known whether the
/// generator looks in time. Who joined together do not look together.
#[derive(Debug)]
pub struct Looks {
    random: Random,
    due_ns: i64,
}

/// Between two looks: so long, and up to as much again.
const LOOK_NS: i64 = 100_000_000;

impl Looks {
    pub fn new(seed: u64) -> Self {
        Looks {
            random: Random(seed),
            due_ns: 0,
        }
    }

    pub fn look(&mut self, now_ns: i64) {
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + LOOK_NS + self.random.below(LOOK_NS as u64) as i64;
        }
    }

    pub fn due_ns(&self) -> i64 {
        self.due_ns
    }
}

/// Ten times from 0 on, by what it tells each time that it has looked; when it then looks next.
#[cfg(test)]
pub fn looks_up_by_itself(mut wakes_ns: impl FnMut(i64) -> i64) -> i64 {
    (0..10).fold(0, |now_ns, _| {
        let next_ns = wakes_ns(now_ns);
        assert!((100_000_000..200_000_000).contains(&(next_ns - now_ns)));
        next_ns
    })
}

/// The time, and the player that gets the media.
pub struct Now<'a> {
    pub ns: i64,
    pub player: &'a mut Player,
    pub watched: &'a mut Watched,
    pub seen: &'a mut Seen,
}

impl Now<'_> {
    /// So much media has come.
    pub fn media(&mut self, media_ns: i64, is_whole: bool) {
        self.player.media(self.ns, media_ns, is_whole, self.watched);
    }

    /// A message of media came, and when its publisher sent it, where that is known.
    pub fn count_media(&mut self, bytes: u64, sent_ns: Option<i64>) {
        self.count(|seen| {
            seen.messages += 1;
            seen.media_bytes += bytes;
        });
        if let Some(sent_ns) = sent_ns {
            self.count_age(sent_ns, self.ns);
        }
    }

    /// Live media came then which their publisher sent at `sent_ns`.
    pub fn count_age(&mut self, sent_ns: i64, came_ns: i64) {
        let age_ns = came_ns.saturating_sub(sent_ns).max(0);
        self.count(|seen| {
            seen.ages += 1;
            seen.age_ns = seen.age_ns.saturating_add(age_ns);
        });
    }

    /// Count what came within the window.
    pub fn count(&mut self, what: impl FnOnce(&mut Seen)) {
        if self.watched.holds(self.ns) {
            what(self.seen);
        }
    }
}

/// What came within the window, all viewers together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Reads that brought something.
    pub reads: u64,
    /// Bytes of media, without what frames them.
    pub media_bytes: u64,
    /// Requests that were answered whole: files, playlists, MPDs, initialization segments, segments.
    pub answers: u64,
    pub segments: u64,
    /// RTMP: audio and video messages.
    pub messages: u64,
    /// Live media whose age was known when they came, and how old they were in sum.
    pub ages: u64,
    pub age_ns: i64,
    /// HLS and DASH: segments that were gone before they could be asked for, and changes of quality.
    pub skipped: u64,
    pub switches: u64,
    pub rtp: Received,
    pub live: SeenLive,
}

/// Low-latency HLS: of the parts that came, all viewers together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenLive {
    /// How old they were, and what was played just then: `live/mod.rs`.
    pub ages: Histogram,
    pub latencies: Histogram,
    /// Parts that were asked for before they were there, and came; those that were not there; and playlists that were
    /// asked for.
    pub hinted: u64,
    pub unkept: u64,
    pub reloads: u64,
}

impl SeenLive {
    fn add(&mut self, other: &SeenLive) {
        self.ages.merge(&other.ages);
        self.latencies.merge(&other.latencies);
        self.hinted += other.hinted;
        self.unkept += other.unkept;
        self.reloads += other.reloads;
    }
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        self.reads += other.reads;
        self.media_bytes += other.media_bytes;
        self.answers += other.answers;
        self.segments += other.segments;
        self.messages += other.messages;
        self.ages += other.ages;
        self.age_ns = self.age_ns.saturating_add(other.age_ns);
        self.skipped += other.skipped;
        self.switches += other.switches;
        self.rtp.add(&other.rtp);
        self.live.add(&other.live);
    }
}

pub trait Protocol {
    fn want(&mut self, now: &mut Now) -> Want;

    /// These bytes came.
    fn take(&mut self, input: &[u8], now: &mut Now) -> Result<(), Failure>;

    /// The server has closed the connection.
    fn closed(&mut self, now: &mut Now) -> Result<(), Failure>;

    /// When it may want something else, though nothing came.
    fn wakes_ns(&self) -> i64 {
        i64::MAX
    }

    /// The ports of each pair of sockets: numbers 2n and 2n + 1.
    fn bound(&mut self, _ports: Vec<(u16, u16)>) {}

    /// A datagram came over a socket.
    fn datagram(
        &mut self,
        _socket: usize,
        _datagram: &[u8],
        _came: Came,
        _now: &mut Now,
    ) -> Result<(), Failure> {
        Ok(())
    }

    /// The window is over: what is told of it as a whole is told, and counts for no other.
    fn end_window(&mut self, _now: &mut Now) {}

    /// The viewer goes; what it says last.
    fn leave(&mut self, _now: &mut Now) -> Option<Vec<u8>> {
        None
    }

    /// The status of an answer that was a refusal.
    fn refused(&self) -> Option<u16> {
        None
    }

    /// The connection broke; true: it goes on over another.
    fn reset(&mut self) -> bool {
        false
    }

    /// The server may close now: how the connection ends, by a reset or as it should, changes nothing.
    fn may_close(&self) -> bool {
        false
    }

    /// Nothing of what it asked for is under way.
    fn is_idle(&self) -> bool {
        true
    }

    /// It goes on after a pause, of what is live: at the live edge, over the connection that it has.
    fn resume(&mut self) {}
}
