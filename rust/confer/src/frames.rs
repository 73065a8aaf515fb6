//! Which frames of a stream a receiver could show, without decoding any: those that are whole, once all since a key
//! frame before them are whole; and where showing them froze.
//!
//! A frame's packets have numbers one after another; RTP's marker says where it ends, and so where the next begins; what
//! they hold says whether it is a key frame (`codec.rs`). A hole in the numbers stops what is shown until it is mended, or
//! until a whole key frame has come behind it.

/// Numbers ahead of what is shown that are kept in mind, a byte each: the packets of a key frame that is a second of
/// 20 Mbit/s, nearly twice.
pub const KEPT: u64 = 4096;
/// Numbers count no farther: SRTP rolls 2^16 of them over 2^32 times at most (RFC 3711, 3.3.1). str0m tells more of a
/// repair of what was sent before number 0.
pub const NUMBERS: u64 = 1 << 48;
const CAME: u8 = 1;
const ENDS: u8 = 2;
/// What a decoder needs to begin with a frame: the parameters of all pictures, in which packet a key frame begins; those of
/// the picture; the picture itself, which depends on none before.
pub const SEQUENCE: u8 = 4;
pub const PICTURE: u8 = 8;
pub const INTRA: u8 = 16;
/// A key frame's packets hold all of that.
pub const KEY: u8 = SEQUENCE | PICTURE | INTRA;

/// What a packet says of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub ends: bool,
    /// Of `KEY`: what it holds.
    pub key: u8,
}

impl Part {
    fn flags(self) -> u8 {
        CAME | if self.ends { ENDS } else { 0 } | self.key
    }
}

/// Frames that can be shown since a packet came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub frames: u64,
    pub keys: u64,
}

/// Times are nanoseconds.
#[derive(Debug)]
pub struct Frames {
    /// The number that goes on with what was shown. None: nothing can be shown before a key frame.
    next: Option<u64>,
    /// Of those from `next` on that came, by number; without `next`, of all around the highest.
    ahead: Box<[u8; KEPT as usize]>,
    highest: u64,
    /// Where key frames begin behind a hole: the first that may yet become whole, and the last.
    keys: Vec<u64>,
    /// Of `KEY`: what the frame at `next` has had so far.
    had: u8,
    /// Since when packets have come and none could be shown.
    stuck_ns: Option<i64>,
}

impl Default for Frames {
    fn default() -> Self {
        Frames {
            next: None,
            ahead: Box::new([0; KEPT as usize]),
            highest: 0,
            keys: Vec::new(),
            had: 0,
            stuck_ns: None,
        }
    }
}

impl Frames {
    /// A packet came that had not come before; `number` counts on beyond 2^16.
    pub fn packet(&mut self, number: u64, part: Part, now_ns: i64) -> Shown {
        let is_shown = self.next.is_some_and(|next| number < next);
        if is_shown || number >= NUMBERS || number + KEPT <= self.highest {
            return Shown::default();
        }
        self.make_room(number);
        self.ahead[(number % KEPT) as usize] = part.flags();
        let may_begin = part.key & SEQUENCE != 0 && self.next != Some(number);
        if may_begin && !self.keys.contains(&number) {
            self.keys.push(number);
            self.keys.sort_unstable();
            if self.keys.len() > 2 {
                self.keys.remove(1);
            }
        }
        let mut shown = self.show();
        if shown.frames == 0 {
            let mut lasts = self.keys.iter().rev().copied();
            if let Some(key) = lasts.find(|key| self.is_whole(*key)) {
                (self.next, self.had) = (Some(key), 0);
                shown = self.show();
            }
        }
        let is_stuck = self.next.is_none_or(|next| next <= self.highest);
        self.stuck_ns = match self.stuck_ns {
            _ if !is_stuck => None,
            Some(since_ns) if shown.frames == 0 => Some(since_ns),
            _ => Some(now_ns),
        };
        shown
    }

    /// Since when packets have come, and nothing could be shown for want of others.
    pub fn stuck_ns(&self) -> Option<i64> {
        self.stuck_ns
    }

    /// Up to a number that is higher than all before.
    fn make_room(&mut self, number: u64) {
        if number <= self.highest && self.highest > 0 {
            return;
        }
        if self.next.is_some_and(|next| number >= next + KEPT) {
            self.next = None; // too much is missing
        }
        let from = (self.highest + 1).max((number + 1).saturating_sub(KEPT));
        for between in from..=number {
            self.ahead[(between % KEPT) as usize] = 0;
        }
        self.highest = number;
        self.keys.retain(|key| key + KEPT > number);
    }

    /// All that goes on without a hole.
    fn show(&mut self) -> Shown {
        let mut shown = Shown::default();
        let Some(mut next) = self.next else {
            return shown;
        };
        while next <= self.highest {
            let flags = std::mem::take(&mut self.ahead[(next % KEPT) as usize]);
            if flags & CAME == 0 {
                break;
            }
            self.had |= flags & KEY;
            if flags & ENDS != 0 {
                shown.frames += 1;
                shown.keys += u64::from(self.had == KEY);
                self.had = 0;
            }
            next += 1;
        }
        self.next = Some(next);
        self.keys.retain(|key| *key >= next);
        shown
    }

    /// Whether all packets of the frame that begins there have come, and it is a key frame.
    fn is_whole(&self, begin: u64) -> bool {
        let mut had = 0;
        for number in begin..=self.highest {
            let flags = self.ahead[(number % KEPT) as usize];
            had |= flags & KEY;
            if flags & CAME == 0 || flags & ENDS != 0 {
                return flags & CAME != 0 && had == KEY;
            }
        }
        false
    }
}

/// The gaps of which a freeze is told (W3C webrtc-stats, freezeCount: the last 30 frames).
const GAPS: usize = 30;
/// Of fewer there is no mean to speak of, and libwebrtc tells nothing. The slowest footage has a frame a second: a gap of
/// thrice that is a freeze of any, or who shows one picture and stops would move for good.
const GAPS_MIN: usize = 5;
const SLOWEST_NS: u64 = 1_000_000_000;
const MORE_NS: u64 = 150_000_000;

/// When frames were shown. A gap is a freeze where it is at least three times the mean of the gaps before it, and at least
/// 150 ms longer; of the first few, where it is at least three seconds.
#[derive(Debug, Default)]
pub struct Showing {
    pub first_ns: Option<i64>,
    pub last_ns: i64,
    gaps_us: [u32; GAPS],
    count: usize,
    sum_us: u64,
}

impl Showing {
    /// Frames are shown. The gap before them, where it was a freeze: from when to when.
    pub fn shown(&mut self, frames: u64, now_ns: i64) -> Option<(i64, i64)> {
        if self.first_ns.is_none() {
            (self.first_ns, self.last_ns) = (Some(now_ns), now_ns);
            return None;
        }
        let frozen = self.frozen(now_ns);
        for number in 0..frames.min(GAPS as u64) {
            let gap_ns = if number == 0 {
                now_ns - self.last_ns
            } else {
                0
            };
            let slot = &mut self.gaps_us[self.count % GAPS];
            let gap_us = u32::try_from(gap_ns.max(0) / 1000).unwrap_or(u32::MAX);
            self.sum_us = self.sum_us + u64::from(gap_us) - u64::from(*slot);
            *slot = gap_us;
            self.count += 1;
        }
        self.last_ns = self.last_ns.max(now_ns);
        frozen
    }

    /// The gap from the last frame until then, where it is long enough for a freeze.
    pub fn frozen(&self, until_ns: i64) -> Option<(i64, i64)> {
        let gap_ns = u64::try_from(until_ns - self.last_ns).unwrap_or(0);
        let count = self.count.min(GAPS);
        self.first_ns?;
        let mean_ns = match count {
            GAPS_MIN.. => self.sum_us * 1000 / count as u64,
            _ => SLOWEST_NS,
        };
        (gap_ns >= (3 * mean_ns).max(mean_ns + MORE_NS)).then_some((self.last_ns, until_ns))
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
