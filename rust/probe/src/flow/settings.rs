//! A flow's settings, as the command line gives them.

use super::schedule::{constant, steps, Segment, MOST_NS, MOST_START_NS};
use super::spread::Bins;
use super::wire::{Order, HEADER_BYTES};
use crate::arguments::Arguments;
use crate::network::{Line, MOST_BYTES, MOST_DATAGRAM_BYTES};
use crate::windows::{now_ns, Windows};

/// Of papers that vary the load; and of a stream, small enough to come in several a second over a slow channel.
const DATAGRAM_BYTES: u64 = 1024;
const MESSAGE_BYTES: u64 = 16_384;
pub const MOST_TRACE: u64 = 1_000_000;
pub const LEAST_SERIES_NS: u64 = 1_000_000;
/// What the receiver asks to have for what it has not read yet: tenths of a second at the highest rates.
const BUFFER_BYTES: u64 = 16 << 20;
pub const MOST_BUFFER_BYTES: u64 = 1 << 30;

pub struct Settings {
    pub line: Line,
    pub udp: bool,
    pub size_bytes: usize,
    /// The warm-up first.
    pub schedule: Vec<Segment>,
    pub series_ns: u64,
    pub trace: u64,
    pub buffer_bytes: u64,
    pub wait: &'static str,
    pub segmentation: bool,
    /// Of CLOCK_MONOTONIC; 0: as soon as the receiver is ready.
    pub start_ns: u64,
    pub most_short_percent: f64,
}

impl Settings {
    pub fn from(arguments: &mut Arguments) -> Settings {
        let windows = Windows::from(arguments);
        let line = Line::from(arguments);
        let udp = arguments.one_of("protocol", &["udp", "tcp"]) == "udp";
        let size_bytes = size(arguments, udp);
        let warm_up_ns = arguments.within("warm-up-ns", 0, MOST_NS, 500_000_000);
        let mut settings = Settings {
            line,
            udp,
            size_bytes: size_bytes as usize,
            schedule: Vec::new(),
            series_ns: arguments.at_least("series-ns", LEAST_SERIES_NS, 100_000_000),
            trace: arguments.get("trace", 0),
            buffer_bytes: arguments.at_least("receive-buffer-bytes", 1, BUFFER_BYTES),
            wait: arguments.one_of("wait", &["auto", "sleep", "spin"]),
            segmentation: arguments.one_of("segmentation", &["no", "yes"]) == "yes",
            start_ns: arguments.within("start-ns", 0, MOST_START_NS, 0),
            most_short_percent: arguments.get("most-short-percent", 0.5),
        };
        match schedule(arguments, size_bytes * 8, warm_up_ns, &windows) {
            Ok(schedule) => settings.schedule = schedule,
            Err(why) => arguments.complain(why),
        }
        for why in settings.wrong() {
            arguments.complain(why);
        }
        settings
    }

    fn wrong(&self) -> Vec<String> {
        let unpaced = |segment: &Segment| segment.intended().is_none();
        let duration_ns = self.schedule.last().map_or(0, |segment| segment.end_ns);
        let mut wrong = Vec::new();
        if !self.udp && (self.segmentation || self.trace > 0) {
            wrong.push("--segmentation and --trace: a stream has no datagrams".to_owned());
        }
        if self.segmentation && !self.schedule.iter().all(unpaced) {
            wrong.push("--segmentation yes: what is cut by the kernel has no pace".to_owned());
        }
        if self.buffer_bytes > MOST_BUFFER_BYTES {
            wrong.push(format!(
                "--receive-buffer-bytes {} is above {MOST_BUFFER_BYTES}",
                self.buffer_bytes
            ));
        }
        if self.trace > MOST_TRACE {
            wrong.push(format!("--trace {} is above {MOST_TRACE}", self.trace));
        }
        if Bins::too_many(self.series_ns, duration_ns) {
            wrong.push(format!(
                "--series-ns {} is too short for the time",
                self.series_ns
            ));
        }
        wrong
    }

    /// What the receiver is told.
    pub fn order(&self) -> Order {
        Order {
            run: now_ns() as u32,
            size_bytes: self.size_bytes,
            series_ns: self.series_ns,
            buffer_bytes: self.buffer_bytes as i32,
            trace: self.trace as usize,
            segments: self
                .schedule
                .iter()
                .map(|segment| (segment.start_ns, segment.end_ns))
                .collect(),
        }
    }
}

fn size(arguments: &mut Arguments, udp: bool) -> u64 {
    let (usual, most) = if udp {
        (DATAGRAM_BYTES, MOST_DATAGRAM_BYTES)
    } else {
        (MESSAGE_BYTES, MOST_BYTES)
    };
    let size_bytes = arguments.at_least("size-bytes", HEADER_BYTES as u64, usual);
    if size_bytes > most {
        arguments.complain(format!("--size-bytes {size_bytes} is above {most}"));
    }
    size_bytes.min(most)
}

fn schedule(
    arguments: &mut Arguments,
    bits: u64,
    warm_up_ns: u64,
    windows: &Windows,
) -> Result<Vec<Segment>, String> {
    let rate_bit_per_s = arguments.get("rate-bit-per-s", 0_u64);
    let packets_per_s = arguments.get("packets-per-s", 0.0_f64);
    if packets_per_s.is_nan() || packets_per_s < 0.0 {
        return Err(format!("--packets-per-s {packets_per_s} is no rate"));
    }
    let text = arguments.get("steps", String::new());
    let given = [rate_bit_per_s > 0, packets_per_s > 0.0, !text.is_empty()];
    if given.iter().filter(|is_given| **is_given).count() > 1 {
        return Err("--rate-bit-per-s, --packets-per-s and --steps exclude each other".to_owned());
    }
    match given {
        [_, _, true] => steps(&text, bits, warm_up_ns),
        [true, ..] => constant(
            Some(bits as f64 * 1e9 / rate_bit_per_s as f64),
            warm_up_ns,
            windows,
        ),
        [_, true, _] => constant(Some(1e9 / packets_per_s), warm_up_ns, windows),
        _ => constant(None, warm_up_ns, windows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(words: &str) -> Option<String> {
        let words: Vec<String> = format!("--peer 127.0.0.1:9 {words}")
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let mut arguments = Arguments::parse(&words).unwrap();
        Settings::from(&mut arguments);
        arguments.complaint()
    }

    #[test]
    fn what_contradicts_itself_is_complained_of() {
        assert_eq!(complaint(""), None);
        assert_eq!(
            complaint("--rate-bit-per-s 36000000 --size-bytes 128 --trace 10000"),
            None
        );
        for wrong in [
            "--rate-bit-per-s 1000 --packets-per-s 5",
            "--rate-bit-per-s 1000 --steps 5:1000000",
            "--steps 5",
            "--work 100",
            "--size-bytes 31",
            "--size-bytes 65508",
            "--protocol tcp --trace 5",
            "--packets-per-s 5 --segmentation yes",
            "--time-ns 7200000000000 --series-ns 1000000",
            "--trace 1000001",
            "--receive-buffer-bytes 1073741825",
            "--packets-per-s -5",
            "--packets-per-s NaN",
        ] {
            assert!(complaint(wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn a_rate_in_bits_is_one_in_packets() {
        let schedule = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let settings = Settings::from(&mut Arguments::parse(&words).unwrap());
            settings.schedule
        };
        assert_eq!(
            schedule("--rate-bit-per-s 8192000"),
            schedule("--packets-per-s 1000")
        );
    }
}
