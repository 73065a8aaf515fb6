//! What a participant receives of one stream: numbers that are missing, before and after they were asked for again; how
//! evenly it comes; which frames can be shown, and where they freeze.

use super::codec::Codec;
use super::counting::Counting;
use super::first::First;
use super::frames::{Frames, Showing};
use super::tally::{Counts, Span};

/// Of video (RFC 7741, 4; RFC 6184, 8.2.1).
pub const CLOCK_HZ: u32 = 90_000;
/// Packets: twice what any footage has (20 Mbit/s).
const MOST_PER_S: u64 = 5_000;
/// Where nothing could be shown for so long though packets come, a key frame is asked for; and again after as long.
const STUCK_NS: i64 = 500_000_000;

/// A packet that came, decrypted.
pub struct Packet<'a> {
    /// Counting on beyond 2^16.
    pub number: u64,
    pub timestamp: u32,
    pub marker: bool,
    pub payload: &'a [u8],
    /// It came because it was asked for again.
    pub is_repair: bool,
    pub came_ns: i64,
    pub datagram_bytes: usize,
}

/// Times are nanoseconds, by CLOCK_MONOTONIC.
#[derive(Debug)]
pub struct Stream {
    /// By which role, or nobody of ours, it is sent: the number of its counts.
    pub role: usize,
    codec: Codec,
    /// When it was heard of.
    since_ns: i64,
    first_packet: First,
    first_key_frame: First,
    counting: Counting,
    frames: Frames,
    showing: Showing,
    asked_ns: i64,
}

impl Stream {
    pub fn new(role: usize, codec: Codec, since_ns: i64) -> Self {
        Stream {
            role,
            codec,
            since_ns,
            first_packet: First::new(since_ns),
            first_key_frame: First::new(since_ns),
            counting: Counting::new(CLOCK_HZ, MOST_PER_S),
            frames: Frames::default(),
            showing: Showing::default(),
            asked_ns: i64::MIN,
        }
    }

    /// A packet came; true: its sender is to be asked for a key frame.
    pub fn came(&mut self, packet: &Packet, span: Span, counts: &mut Counts) -> bool {
        let now_ns = packet.came_ns;
        let in_window = span.holds(now_ns);
        self.first_packet.came(now_ns, &mut counts.first_packet);
        let had = self.counting.had();
        let (number, timestamp) = (packet.number, packet.timestamp);
        let is_of_use = match packet.is_repair {
            true => self.counting.repaired(number, now_ns, in_window),
            false => self.counting.packet(number, timestamp, now_ns, in_window),
        };
        if in_window {
            counts.packets += 1;
            counts.bytes += packet.datagram_bytes as u64;
        }
        if is_of_use && in_window {
            let is_expected = self.counting.had() > had; // and was not passed before the window
            counts.repaired += u64::from(packet.is_repair && is_expected);
            counts.media_bytes += packet.payload.len() as u64;
        }
        self.show(packet, span, counts);
        self.is_to_ask(now_ns)
    }

    fn show(&mut self, packet: &Packet, span: Span, counts: &mut Counts) {
        let Some(part) = self.codec.part(packet.payload, packet.marker) else {
            return;
        };
        let now_ns = packet.came_ns;
        let shown = self.frames.packet(packet.number, part, now_ns);
        if shown.frames == 0 {
            return;
        }
        self.first_key_frame
            .came(now_ns, &mut counts.first_key_frame);
        let frozen = self.showing.shown(shown.frames, now_ns);
        if span.holds(now_ns) {
            counts.frames += shown.frames;
            counts.key_frames += shown.keys;
        }
        if let Some((from_ns, until_ns)) = frozen.filter(|_| now_ns >= span.from_ns) {
            counts.freezes += u64::from(span.part_ns(from_ns, until_ns) > 0);
            counts.frozen_ns += span.part_ns(from_ns, until_ns);
        }
    }

    fn is_to_ask(&mut self, now_ns: i64) -> bool {
        let stuck_ns = self.frames.stuck_ns().unwrap_or(i64::MAX);
        let is_due = now_ns.saturating_sub(stuck_ns.max(self.asked_ns)) >= STUCK_NS;
        if is_due {
            self.asked_ns = now_ns;
        }
        is_due
    }

    /// Whoever watches gives up before it has come in.
    pub fn give_up(&mut self, counts: &mut Counts) {
        counts.no_first_packet += self.first_packet.give_up();
        counts.no_first_key_frame += self.first_key_frame.give_up();
    }

    /// The window is over, or the stream within it: tell what is counted only then, and count anew. `at_ns`: when.
    pub fn end(&mut self, span: Span, at_ns: i64, patience_ns: i64, counts: &mut Counts) {
        let until_ns = span.until_ns.min(at_ns);
        counts.streams += u64::from(at_ns >= span.until_ns);
        counts.no_first_packet += self.first_packet.missing(span, at_ns, patience_ns);
        counts.no_first_key_frame += self.first_key_frame.missing(span, at_ns, patience_ns);
        let first_ns = self.showing.first_ns.unwrap_or(i64::MAX);
        counts.watched_ns += span.part_ns(first_ns, until_ns);
        counts.waiting_ns += span.part_ns(self.since_ns, first_ns.min(until_ns));
        if let Some((from_ns, until_ns)) = self.showing.frozen(until_ns) {
            counts.freezes += u64::from(span.part_ns(from_ns, until_ns) > 0);
            counts.frozen_ns += span.part_ns(from_ns, until_ns);
        }
        let (received, jitter_ns) = self.counting.end_window();
        counts.expected += received.expected;
        counts.lost += received.lost;
        counts.duplicates += received.useless();
        if let Some(jitter_ns) = jitter_ns {
            counts.jitter.record(jitter_ns);
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

    /// A frame of one packet each 40 ms, from number 0 at time 0 on; every tenth is a key frame.
    fn packet(number: u64, is_repair: bool, came_ms: i64) -> Packet<'static> {
        Packet {
            number,
            timestamp: number as u32 * 3600,
            marker: true,
            payload: if number.is_multiple_of(10) {
                &[0x10, 0]
            } else {
                &[0x10, 1]
            },
            is_repair,
            came_ns: came_ms * MS,
            datagram_bytes: 40,
        }
    }

    fn watched(given: impl Iterator<Item = (u64, bool, i64)>) -> (Counts, u64) {
        let (mut stream, mut counts, mut asked) =
            (Stream::new(0, Codec::Vp8, -100 * MS), Counts::default(), 0);
        for (number, is_repair, came_ms) in given {
            asked += u64::from(stream.came(&packet(number, is_repair, came_ms), SPAN, &mut counts));
        }
        stream.end(SPAN, SPAN.until_ns, 1000 * MS, &mut counts);
        (counts, asked)
    }

    #[test]
    fn of_a_whole_stream_everything_is_there() {
        let (counts, asked) = watched((0..60).map(|number| (number, false, number as i64 * 40)));
        assert_eq!((counts.expected, counts.lost, counts.repaired), (25, 0, 0));
        assert_eq!(
            (counts.packets, counts.frames, counts.key_frames),
            (25, 25, 2)
        );
        assert_eq!((counts.watched_ns, counts.waiting_ns), (1000 * MS, 0));
        assert_eq!((counts.freezes, counts.frozen_ns, asked), (0, 0, 0));
        assert_eq!(counts.first_packet.buckets().count(), 1);
        assert_eq!((counts.jitter.total(), counts.streams), (1, 1));
    }

    #[test]
    fn padding_between_frames_is_no_hole() {
        let (mut stream, mut counts) = (Stream::new(0, Codec::Vp8, -100 * MS), Counts::default());
        for number in 0..120 {
            let came = packet(number / 2, false, number as i64 * 20);
            let came = match number % 2 {
                0 => Packet { number, ..came },
                _ => Packet {
                    number,
                    marker: false,
                    payload: &[],
                    ..came
                },
            };
            stream.came(&came, SPAN, &mut counts);
        }
        stream.end(SPAN, SPAN.until_ns, 1000 * MS, &mut counts);
        assert_eq!((counts.frames, counts.freezes, counts.lost), (25, 0, 0));
    }

    #[test]
    fn what_is_asked_for_again_is_repaired_and_the_rest_lost() {
        let whole = (0..60).filter(|number| ![30, 33].contains(number));
        let mut given: Vec<_> = whole
            .map(|number| (number, false, number as i64 * 40))
            .collect();
        given.push((30, true, 1250));
        given.sort_by_key(|(_, _, came_ms)| *came_ms);
        let (counts, _) = watched(given.into_iter());
        assert_eq!((counts.expected, counts.lost, counts.repaired), (25, 1, 1));
        // From 33 on nothing can be shown before the key frame 40, which comes 320 ms after 32.
        assert_eq!((counts.freezes, counts.frozen_ns), (1, 320 * MS));
        assert_eq!(counts.frames, 25 - 7);
    }

    #[test]
    fn what_was_lost_before_the_window_and_comes_again_in_it_is_none_of_its() {
        let whole = (0..60).filter(|number| *number != 23); // which 24 passed at 960 ms, before the window
        let mut given: Vec<_> = whole
            .map(|number| (number, false, number as i64 * 40))
            .collect();
        given.push((23, true, 1010));
        given.sort_by_key(|(_, _, came_ms)| *came_ms);
        let (counts, _) = watched(given.into_iter());
        assert_eq!((counts.expected, counts.lost, counts.repaired), (25, 0, 0));
    }

    /// At 4,000 packets a second, of which none comes for 800 ms.
    #[test]
    fn of_an_outage_all_is_lost_however_many_it_are() {
        let whole = (0..12_000u64).filter(|number| !(4400..7600).contains(number));
        let given = whole.map(|number| (number, false, number as i64 / 4));
        let (counts, _) = watched(given);
        assert_eq!((counts.expected, counts.lost), (4000, 3200));
        assert_eq!((counts.packets, counts.duplicates), (800, 0));
        // Of those some come again, behind the first two that came by themselves.
        let whole = (0..12_000u64).filter(|number| !(4400..7600).contains(number));
        let given = whole.flat_map(|number| {
            let at_ms = number as i64 / 4;
            let again = (7550..7600).map(move |repaired| (repaired, true, at_ms));
            let again = again.filter(move |_| number == 7602);
            std::iter::once((number, false, at_ms)).chain(again)
        });
        let (counts, _) = watched(given);
        assert_eq!((counts.expected, counts.lost), (4000, 3150));
        assert_eq!((counts.repaired, counts.duplicates), (50, 0));
    }

    /// Stamps of two reads are as exact as the clocks they were made with.
    #[test]
    fn what_comes_behind_the_windows_last_is_none_of_its_whatever_its_time_says() {
        let given = [(25, 1000), (26, 1040), (28, 2001), (27, 1999)];
        let (counts, _) = watched(
            given
                .into_iter()
                .map(|(number, came_ms)| (number, false, came_ms)),
        );
        assert_eq!((counts.expected, counts.lost), (2, 0));
    }

    #[test]
    fn a_stream_that_stops_freezes_to_the_end_and_one_that_never_came_waits() {
        let (counts, _) = watched((0..30).map(|number| (number, false, number as i64 * 40)));
        assert_eq!(
            (counts.freezes, counts.frozen_ns),
            (1, (2000 - 29 * 40) * MS)
        );
        let (counts, _) = watched(std::iter::empty());
        assert_eq!((counts.watched_ns, counts.waiting_ns), (0, 1000 * MS));
        assert_eq!((counts.streams, counts.expected), (1, 0));
    }

    /// Nobody read how many those were, and the median was of those that came.
    #[test]
    fn what_never_came_is_told_beside_the_times_of_what_did() {
        let told = |given: Vec<(u64, bool, i64)>| {
            let (counts, _) = watched(given.into_iter());
            let packets = (counts.first_packet.total(), counts.no_first_packet);
            let key_frames = (counts.first_key_frame.total(), counts.no_first_key_frame);
            (packets, key_frames)
        };
        assert_eq!(told(vec![]), ((0, 1), (0, 1)));
        assert_eq!(told(vec![(1, false, 40)]), ((1, 0), (0, 1)));
        assert_eq!(told(vec![(0, false, 40)]), ((1, 0), (1, 0)));
    }

    #[test]
    fn who_sees_no_key_frame_asks_for_one_and_again() {
        let (counts, asked) = watched(
            (1..10)
                .chain(11..20)
                .chain(21..30)
                .map(|number| (number, false, number as i64 * 40)),
        );
        assert_eq!(counts.frames, 0);
        assert_eq!(asked, 2, "after 540 and 1040 ms");
    }
}
