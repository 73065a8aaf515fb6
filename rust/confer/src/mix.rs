//! What a participant hears: the stream of the mix that the server sends it. Numbers that are missing, how evenly it comes,
//! and where nothing was to be heard.
//!
//! Where nothing comes for 150 ms after what has come was played, that is a gap: of concealed audio libwebrtc's NetEq calls
//! so much an interruption (`kInterruptionLenMs`). NetEq's buffer, which would bridge some of it, is not imitated.

use super::counting::Counting;
use super::first::First;
use super::sound::FRAME_NS;
use super::tally::{Heard, Span};

/// Of Opus (RFC 7587, 4.1).
const CLOCK_HZ: u32 = 48_000;
const GAP_NS: i64 = 150_000_000;
/// Packets: twice what a mix has.
const MOST_PER_S: u64 = 100;

/// A packet that came, decrypted.
#[derive(Clone, Copy)]
pub struct Packet {
    /// Counting on beyond 2^16.
    pub number: u64,
    pub timestamp: u32,
    pub came_ns: i64,
    /// Of Opus.
    pub bytes: usize,
}

/// Times are nanoseconds, by CLOCK_MONOTONIC.
#[derive(Debug)]
pub struct Mix {
    /// When its listener came in.
    since_ns: i64,
    first: First,
    first_ns: Option<i64>,
    /// Until when what has come lasts.
    heard_ns: i64,
    counting: Counting,
}

impl Mix {
    pub fn new(since_ns: i64) -> Self {
        Mix {
            since_ns,
            first: First::new(since_ns),
            first_ns: None,
            heard_ns: i64::MAX,
            counting: Counting::new(CLOCK_HZ, MOST_PER_S),
        }
    }

    pub fn came(&mut self, packet: Packet, span: Span, heard: &mut Heard) {
        let now_ns = packet.came_ns;
        let in_window = span.holds(now_ns);
        match self.first_ns {
            None => {
                self.first_ns = Some(now_ns);
                self.first.came(now_ns, &mut heard.first_packet);
            }
            Some(_) => self.gap(now_ns, span, heard),
        }
        self.heard_ns = now_ns + FRAME_NS;
        self.counting
            .packet(packet.number, packet.timestamp, now_ns, in_window);
        if in_window {
            heard.packets += 1;
            heard.bytes += packet.bytes as u64;
        }
    }

    #[cfg(test)]
    pub fn has_begun(&self) -> bool {
        self.first_ns.is_some()
    }

    /// Nothing came from the last packet's end until then.
    fn gap(&mut self, until_ns: i64, span: Span, heard: &mut Heard) {
        if until_ns.saturating_sub(self.heard_ns) < GAP_NS {
            return;
        }
        let part_ns = span.part_ns(self.heard_ns, until_ns);
        heard.gaps += u64::from(part_ns > 0);
        heard.silent_ns += part_ns;
    }

    /// The participant gives up before it has come in.
    pub fn give_up(&mut self, heard: &mut Heard) {
        heard.no_first_packet += self.first.give_up();
    }

    /// The participant leaves, maybe within the window.
    pub fn leave(&mut self, span: Span, now_ns: i64, patience_ns: i64, heard: &mut Heard) {
        if now_ns >= span.from_ns {
            self.end(span, now_ns.min(span.until_ns - 1), patience_ns, heard);
        }
    }

    /// The window is over, or the participant leaves within it: tell what is counted only then, and count anew. `at_ns`:
    /// when.
    pub fn end(&mut self, span: Span, at_ns: i64, patience_ns: i64, heard: &mut Heard) {
        let until_ns = span.until_ns.min(at_ns);
        heard.listeners += u64::from(at_ns >= span.until_ns);
        let first_ns = self.first_ns.unwrap_or(i64::MAX);
        heard.unheard +=
            u64::from(self.first_ns.is_none() && until_ns - self.since_ns >= patience_ns);
        heard.no_first_packet += self.first.missing(span, at_ns, patience_ns);
        heard.there_ns += span.part_ns(self.since_ns, until_ns);
        heard.waiting_ns += span.part_ns(self.since_ns, first_ns.min(until_ns));
        self.gap(until_ns, span, heard);
        let (received, jitter_ns) = self.counting.end_window();
        heard.expected += received.expected;
        heard.lost += received.lost;
        heard.useless += received.useless();
        if let Some(jitter_ns) = jitter_ns {
            heard.jitter.record(jitter_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;
    const SPAN: Span = Span {
        from_ns: 1000 * MS,
        until_ns: 2000 * MS,
    };

    /// What is told of packets 20 ms apart, by when each came, of one who came in at 100 ms.
    fn heard(given: impl Iterator<Item = (u64, i64)>) -> Heard {
        let (mut mix, mut heard) = (Mix::new(100 * MS), Heard::default());
        for (number, came_ms) in given {
            let packet = Packet {
                number,
                timestamp: number as u32 * 960,
                came_ns: came_ms * MS,
                bytes: 80,
            };
            mix.came(packet, SPAN, &mut heard);
        }
        mix.end(SPAN, SPAN.until_ns, 1000 * MS, &mut heard);
        heard
    }

    /// A packet each 20 ms from 300 ms on, until 2100 ms, but for those that are left out.
    fn without(missing: std::ops::Range<i64>) -> Heard {
        let numbers = (0..90).filter(|number| !missing.contains(number));
        heard(numbers.map(|number| (number as u64, 300 + number * 20)))
    }

    #[test]
    fn of_a_whole_mix_everything_is_there() {
        let heard = without(0..0);
        assert_eq!((heard.packets, heard.bytes), (50, 4000));
        assert_eq!((heard.expected, heard.lost, heard.useless), (50, 0, 0));
        assert_eq!((heard.there_ns, heard.waiting_ns), (1000 * MS, 0));
        assert_eq!((heard.gaps, heard.silent_ns, heard.listeners), (0, 0, 1));
        let first: Vec<_> = heard.first_packet.buckets().collect();
        assert_eq!(first.len(), 1);
        assert!((first[0].0..first[0].1).contains(&200_000_000), "{first:?}");
        assert_eq!(heard.jitter.total(), 1);
    }

    #[test]
    fn what_lacks_150_ms_is_a_gap_and_less_is_none() {
        // Packet 39 is heard until 1100 ms; the next comes then and as many times 20 ms later as are lost.
        let short = without(40..47);
        assert_eq!((short.lost, short.gaps, short.silent_ns), (7, 0, 0));
        let long = without(40..48);
        assert_eq!((long.lost, long.gaps, long.silent_ns), (8, 1, 160 * MS));
    }

    #[test]
    fn a_gap_counts_where_it_lies_in_the_window() {
        let across = without(20..45); // from 700 ms to 1200 ms
        assert_eq!((across.gaps, across.silent_ns), (1, 200 * MS));
        let to_the_end = without(60..90); // from 1500 ms on
        assert_eq!((to_the_end.gaps, to_the_end.silent_ns), (1, 500 * MS));
        let before = without(5..30); // from 400 ms to 900 ms
        assert_eq!((before.gaps, before.silent_ns), (0, 0));
    }

    #[test]
    fn who_hears_nothing_waits() {
        let heard = heard(std::iter::empty());
        assert_eq!((heard.waiting_ns, heard.there_ns), (1000 * MS, 1000 * MS));
        assert_eq!((heard.unheard, heard.gaps, heard.expected), (1, 0, 0));
        assert_eq!((heard.first_packet.total(), heard.no_first_packet), (0, 1));
    }

    #[test]
    fn a_source_that_begins_anew_is_followed() {
        let leaps = (0..90).map(|number| {
            let leaped = number + if number < 50 { 0 } else { 20_000 };
            (leaped, 300 + number as i64 * 20)
        });
        let heard = heard(leaps);
        assert_eq!((heard.packets, heard.gaps), (50, 0));
        assert_eq!((heard.expected, heard.lost, heard.useless), (50, 0, 0));
    }
}
