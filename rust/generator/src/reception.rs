//! What comes of one source of RTP packets (RFC 3550): numbers that are missing, come twice or late, and the jitter of
//! their arrival. It keeps the last 128 numbers in mind (the RFC's MAX_MISORDER is 100): what comes later than that is
//! lost, as for any player.

use serde::Serialize;

/// How many numbers behind the highest a packet may be, and is not lost.
pub const KEPT: i64 = 128;
/// RFC 3550, A.1: a greater gap is none; where the next packet goes on from there, the source leaped.
const MOST_GAP: i64 = 3000;
/// RFC 3550, A.8: the gain of the estimate.
const GAIN: i64 = 16;
/// No change of a transit time counts for more, whatever a source's clock says.
const MOST_CHANGE_NS: i64 = 1_000_000_000_000;
/// Times are within this, so that any two can be added.
const MOST_NS: i128 = 1 << 61;

/// What came within the window, all viewers together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Received {
    /// All that came of the tracks, twice or late too.
    pub packets: u64,
    /// Numbers that were passed: those of packets that came, and of those that should have.
    pub expected: u64,
    /// Of those, what had not come by the window's end, or 128 numbers later.
    pub lost: u64,
    pub duplicates: u64,
    /// They came after one of a higher number (RFC 4737).
    pub reordered: u64,
    /// So long after that they are told as lost: more than 128 numbers.
    pub late: u64,
    /// Of another source, or of none that was asked for, or no packets.
    pub strays: u64,
    /// Datagrams that this machine's kernel threw away, for its sockets were full.
    pub dropped: u64,
    pub sender_reports: u64,
    pub receiver_reports: u64,
    /// Views of which there is a jitter: the mean, over the window's packets, of the estimate after each (RFC 3550, A.8),
    /// of the view's worst track. Their sum, and the largest.
    pub jitters: u64,
    pub jitter_sum_ns: u64,
    pub jitter_worst_ns: u64,
}

impl Received {
    pub fn add(&mut self, other: &Received) {
        self.packets += other.packets;
        self.expected += other.expected;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.late += other.late;
        self.strays += other.strays;
        self.dropped += other.dropped;
        self.sender_reports += other.sender_reports;
        self.receiver_reports += other.receiver_reports;
        self.jitters += other.jitters;
        self.jitter_sum_ns += other.jitter_sum_ns;
        self.jitter_worst_ns = self.jitter_worst_ns.max(other.jitter_worst_ns);
    }

    /// What brought nothing: it came before, or too late, or nobody had asked for it.
    pub fn useless(&self) -> u64 {
        self.duplicates + self.late + self.strays
    }

    /// Of those that were expected.
    pub fn had(&self) -> u64 {
        self.expected - self.lost
    }

    /// A view of this jitter is over.
    pub fn jitter(&mut self, jitter_ns: u64) {
        self.jitters += 1;
        self.jitter_sum_ns += jitter_ns;
        self.jitter_worst_ns = self.jitter_worst_ns.max(jitter_ns);
    }
}

/// Where a packet stands among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    First,
    /// The highest so far, so many numbers after the highest before.
    Next(i64),
    /// One of a higher number came before it.
    Behind,
    /// It brings nothing: it came before, or too late, or its number is nowhere near.
    Useless,
}

/// The source went on with other numbers: what is counted must begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaped;

#[derive(Clone, Debug)]
pub struct Reception {
    clock_hz: u32,
    /// The highest number, and the lowest, extended to count on beyond 2^16; None: nothing has come.
    numbers: Option<(i64, i64)>,
    /// Bit n: the packet n below the highest has come.
    came: u128,
    /// What would go on after a leap.
    after_leap: Option<u16>,
    /// All that came, twice or late too, as RFC 3550 counts.
    received: u64,
    /// The first number that counts for the window.
    counted_from: Option<i64>,
    /// The timestamp of the last that came, extended.
    timestamp: i64,
    /// When it came, less its timestamp; None: nothing has come.
    transit_ns: Option<i64>,
    /// `GAIN` times the jitter.
    jitter: i64,
    /// Of the window: how many, and the sum of the jitters after them.
    jitters: u64,
    jitter_sum_ns: u64,
}

impl Reception {
    pub fn new(clock_hz: u32) -> Self {
        Reception {
            clock_hz,
            numbers: None,
            came: 0,
            after_leap: None,
            received: 0,
            counted_from: None,
            timestamp: 0,
            transit_ns: None,
            jitter: 0,
            jitters: 0,
            jitter_sum_ns: 0,
        }
    }

    /// A packet came; `window`: within it. An error where its source leaped.
    pub fn packet(
        &mut self,
        number: u16,
        timestamp: u32,
        came_ns: i64,
        window: Option<&mut Received>,
    ) -> Result<Place, Leaped> {
        let is_in_window = window.is_some();
        let mut outside = Received::default();
        let counts = window.unwrap_or(&mut outside);
        let place = self.number(number, is_in_window, counts)?;
        if place != Place::Useless {
            self.timestamp += i64::from(timestamp.wrapping_sub(self.timestamp as u32) as i32);
            self.arrival(came_ns, is_in_window);
        }
        Ok(place)
    }

    /// A packet came again because it was asked for (RFC 4588): its arrival tells of no jitter.
    pub fn repaired(
        &mut self,
        number: u16,
        window: Option<&mut Received>,
    ) -> Result<Place, Leaped> {
        let is_in_window = window.is_some();
        let mut outside = Received::default();
        self.number(number, is_in_window, window.unwrap_or(&mut outside))
    }

    /// A source that seemed to leap did not: all before this packet was lost, and it was no stray. (The one before it, by
    /// which that is known, stays one: it may have come in another window.)
    pub fn after_outage(
        &mut self,
        number: u16,
        timestamp: u32,
        came_ns: i64,
        mut window: Option<&mut Received>,
    ) -> Result<Place, Leaped> {
        let (highest, lowest) = self.numbers.ok_or(Leaped)?;
        let missing = i64::from(number.wrapping_sub(highest as u16).wrapping_sub(1));
        self.counts_from(highest, window.is_some());
        (self.numbers, self.came) = (Some((highest + missing, lowest)), 0);
        if let Some(counts) = window.as_deref_mut() {
            counts.strays -= 1;
            counts.expected += missing as u64;
            counts.lost += missing as u64;
        }
        self.packet(number, timestamp, came_ns, window)?;
        Ok(Place::Next(missing + 1))
    }

    /// Another window begins: what counts for the last one no longer does.
    pub fn renew(&mut self) {
        self.counted_from = None;
        (self.jitters, self.jitter_sum_ns) = (0, 0);
    }

    /// It begins anew at a number of which, and of the one before it, packets have come; within the same window: what
    /// this has of its jitter stays. `is_lost`: of those before them, which are counted as lost, some may yet come; else
    /// there are none.
    pub fn leap(&mut self, number: u16, is_lost: bool, in_window: bool) {
        let highest = 1 << 16 | i64::from(number);
        let lowest = highest - KEPT + 1;
        *self = Reception {
            jitters: self.jitters,
            jitter_sum_ns: self.jitter_sum_ns,
            numbers: Some((highest, lowest)),
            came: if is_lost { 0b11 } else { u128::MAX },
            counted_from: in_window.then_some(lowest),
            ..Reception::new(self.clock_hz)
        };
    }

    fn number(
        &mut self,
        number: u16,
        in_window: bool,
        counts: &mut Received,
    ) -> Result<Place, Leaped> {
        let Some((highest, lowest)) = self.numbers else {
            let first = 1 << 16 | i64::from(number); // so that those before it are above 0
            self.numbers = Some((first, first));
            self.counted_from = in_window.then_some(first);
            (self.came, self.received) = (1, 1);
            counts.packets += 1;
            counts.expected += 1;
            return Ok(Place::First);
        };
        let ahead = i64::from(number.wrapping_sub(highest as u16) as i16);
        if ahead.abs() >= MOST_GAP {
            counts.strays += 1;
            if self.after_leap == Some(number) {
                return Err(Leaped);
            }
            self.after_leap = Some(number.wrapping_add(1));
            return Ok(Place::Useless);
        }
        self.after_leap = None;
        self.received += 1;
        counts.packets += 1;
        self.counts_from(highest, in_window);
        if ahead > 0 {
            self.numbers = Some((highest + ahead, lowest));
            self.came = self.came.checked_shl(ahead as u32).unwrap_or(0) | 1;
            counts.expected += ahead as u64;
            counts.lost += ahead as u64 - 1;
            return Ok(Place::Next(ahead));
        }
        if -ahead >= KEPT {
            counts.late += 1;
            counts.reordered += 1;
            return Ok(Place::Useless);
        }
        if self.came >> -ahead & 1 == 1 {
            counts.duplicates += 1;
            return Ok(Place::Useless);
        }
        self.came |= 1 << -ahead;
        counts.reordered += 1;
        let extended = highest + ahead;
        if extended < lowest {
            self.before(extended, (highest, lowest), counts);
        } else if in_window && self.counted_from.is_some_and(|from| extended >= from) {
            counts.lost -= 1;
        }
        Ok(Place::Behind)
    }

    /// What is passed outside of the window is not counted, and cannot be counted off.
    fn counts_from(&mut self, highest: i64, in_window: bool) {
        let from = self.counted_from.unwrap_or(highest + 1);
        self.counted_from = in_window.then_some(from);
    }

    /// What came first was not the first that was sent.
    fn before(&mut self, extended: i64, (highest, lowest): (i64, i64), counts: &mut Received) {
        self.numbers = Some((highest, extended));
        if self.counted_from == Some(lowest) {
            self.counted_from = Some(extended);
            counts.expected += (lowest - extended) as u64;
            counts.lost += (lowest - extended) as u64 - 1;
        }
    }

    /// RFC 3550, A.8, in nanoseconds.
    fn arrival(&mut self, came_ns: i64, is_in_window: bool) {
        let transit_ns = came_ns.saturating_sub(self.ns(self.timestamp));
        if let Some(before_ns) = self.transit_ns.replace(transit_ns) {
            let change_ns = transit_ns
                .saturating_sub(before_ns)
                .saturating_abs()
                .min(MOST_CHANGE_NS);
            self.jitter += change_ns - (self.jitter + GAIN / 2) / GAIN;
            if is_in_window {
                self.jitters += 1;
                self.jitter_sum_ns += (self.jitter / GAIN) as u64;
            }
        }
    }

    /// So many ticks of its clock.
    pub fn ns(&self, ticks: i64) -> i64 {
        let ns = i128::from(ticks) * 1_000_000_000 / i128::from(self.clock_hz);
        ns.clamp(-MOST_NS, MOST_NS) as i64
    }

    /// Of the packet that came last, extended beyond 2^32.
    pub fn timestamp(&self) -> i64 {
        self.timestamp
    }

    /// The mean of the window; None: too few came in it.
    pub fn jitter_ns(&self) -> Option<u64> {
        (self.jitters > 0).then(|| self.jitter_sum_ns / self.jitters)
    }

    /// For a receiver report (RFC 3550, 6.4.1): the extended highest number, how many were lost in all (with what came
    /// twice taken off), all that were expected, and the jitter in ticks. None: nothing has come.
    pub fn told(&self) -> Option<Told> {
        let (highest, lowest) = self.numbers?;
        let expected = highest - lowest + 1;
        Some(Told {
            highest: (highest - (1 << 16)) as u32,
            expected,
            lost: expected - self.received as i64,
            jitter: (i128::from(self.jitter / GAIN) * i128::from(self.clock_hz) / 1_000_000_000)
                as u32,
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub highest: u32,
    pub expected: i64,
    pub lost: i64,
    pub jitter: u32,
}

#[cfg(test)]
#[path = "reception_tests.rs"]
mod tests;
