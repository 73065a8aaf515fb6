//! How much goes through, one way at a time, counted where it arrives (Netperf's TCP_STREAM and UDP_STREAM).

use std::cell::RefCell;
use std::io;

use super::datagrams::HEADER_BYTES;
use super::effort::{Effort, Since};
use super::links::{Datagrams, Link, Stream, Told};
use super::wire::{Direction, Tally};
use super::Line;
use crate::arguments::Arguments;
use crate::report::{Failed, Report};
use crate::windows::{now_ns, Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "bulk",
    summary: "bytes to or from the peer, as fast as they go, counted where they arrive",
    usage:
        "--peer ADDRESS:PORT [--protocol tcp|udp] [--direction in|out] [--size-bytes 131072|1470]
       [--segmentation no|yes] [--patience-ns 10000000000]",
    run,
};

/// What one send takes by default: of a stream, and of datagrams (the largest of papers that leave room for headers).
const STREAM_BYTES: u64 = 131_072;
const DATAGRAM_BYTES: u64 = 1470;
/// How far the two clocks may run apart, beyond what waiting for the answers hides.
const CLOCK_SHARE: f64 = 0.01;

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let line = Line::from(arguments);
    let udp = arguments.one_of("protocol", &["tcp", "udp"]) == "udp";
    let inwards = arguments.one_of("direction", &["in", "out"]) == "in";
    let segmentation = arguments.one_of("segmentation", &["no", "yes"]) == "yes";
    let (least_bytes, usual_bytes) = if udp {
        (HEADER_BYTES as u64, DATAGRAM_BYTES)
    } else {
        (1, STREAM_BYTES)
    };
    let size_bytes = super::size(arguments, least_bytes, usual_bytes, udp);
    if segmentation && !udp {
        arguments.complain("--segmentation yes: a stream has no datagrams to cut".to_owned());
    }
    let mut units = vec![("throughput_mbit_per_s", "Mbit/s")];
    if udp {
        units.extend([("packets_per_s", "/s"), ("lost_percent", "%")]);
    }
    let mut report = Report::of(&units);
    if !arguments.are_right() {
        return Ok(report);
    }
    let direction = if inwards {
        Direction::In
    } else {
        Direction::Out
    };
    let link: Box<dyn Link> = if udp {
        Box::new(Datagrams::new(&line, direction, size_bytes, segmentation)?)
    } else {
        Box::new(Stream::new(&line, direction, size_bytes)?)
    };
    let flow = RefCell::new(Flow::new(link));
    report.windows = windows.measure(
        &mut report.notes,
        |messages| flow.borrow_mut().run(&line, messages),
        |messages, _| flow.borrow_mut().values(messages, size_bytes, udp),
    )?;
    flow.into_inner().prove(&mut report, inwards, udp);
    Ok(report)
}

/// All runs, and the two clocks beside each other at the first and the last of them.
struct Flow {
    link: Box<dyn Link>,
    last: Tally,
    last_effort: Effort,
    effort: Effort,
    clocks: Option<[Moment; 2]>,
    sum: Tally,
    sent: u64,
}

/// The receiver's clock at a moment that lies between two of ours.
#[derive(Clone, Copy)]
struct Moment {
    theirs_ns: u64,
    asked_ns: u64,
    heard_ns: u64,
}

impl Moment {
    /// From here to `later`, in nanoseconds: at least by our clock, by theirs, at most by ours.
    fn until(self, later: Moment) -> (f64, f64, f64) {
        let from = |start_ns: u64, end_ns: u64| end_ns.saturating_sub(start_ns) as f64;
        (
            from(self.heard_ns, later.asked_ns),
            from(self.theirs_ns, later.theirs_ns),
            from(self.asked_ns, later.heard_ns),
        )
    }
}

impl Flow {
    fn new(link: Box<dyn Link>) -> Flow {
        Flow {
            link,
            last: Tally::default(),
            last_effort: Effort::default(),
            effort: Effort::default(),
            clocks: None,
            sum: Tally::default(),
            sent: 0,
        }
    }

    /// One run. Its span begins by our clock and is as long as the receiver says.
    fn run(&mut self, line: &Line, messages: u64) -> Result<Span, Failed> {
        let start_ns = now_ns();
        let since = Since::now();
        let Told {
            tally,
            asked_ns,
            done_ns,
        } = self
            .link
            .pass(line, messages)
            .map_err(|error| line.lost("the flow stopped", &error))?;
        self.last_effort = since.until(done_ns);
        let now = Moment {
            theirs_ns: tally.now_ns,
            asked_ns,
            heard_ns: now_ns(),
        };
        self.clocks = Some(self.clocks.map_or([now, now], |[first, _]| [first, now]));
        if !tally.is_of(self.link.whole(messages)) {
            let told = io::Error::other("what the receiver told is of no such run");
            return Err(line.lost("the flow stopped", &told));
        }
        if tally.count == 0 {
            let what = format!("none of {messages} datagrams arrived");
            return Err(line.lost(&what, &io::ErrorKind::TimedOut.into()));
        }
        self.last = tally;
        Ok(Span {
            start_ns,
            end_ns: start_ns.saturating_add(tally.duration_ns()),
        })
    }

    fn values(&mut self, messages: u64, size_bytes: u64, udp: bool) -> Vec<(&'static str, f64)> {
        let tally = self.last;
        let whole = self.link.whole(messages);
        self.effort.add(self.last_effort);
        self.sum.count += tally.count;
        self.sum.wrong += tally.wrong;
        self.sum.disordered += tally.disordered;
        self.sum.doubled += tally.doubled;
        self.sent += whole;
        let per_s = tally.per_s();
        let unit_bytes = if udp { size_bytes } else { 1 };
        let throughput = per_s.map(|per_s| per_s * unit_bytes as f64 * 8e-6);
        let mut values: Vec<_> = throughput
            .map(|rate| ("throughput_mbit_per_s", rate))
            .into_iter()
            .collect();
        if udp {
            values.extend(per_s.map(|per_s| ("packets_per_s", per_s)));
            let lost = whole.saturating_sub(tally.count);
            values.push(("lost_percent", 100.0 * lost as f64 / whole as f64));
        }
        values
    }

    fn prove(self, report: &mut Report, inwards: bool, udp: bool) {
        let (count, sent) = (self.sum.count, self.sent);
        self.effort.tell_of_flood(report);
        if udp {
            report.check(
                "no datagram came twice",
                self.sum.doubled == 0,
                format!(
                    "{count} came of {sent}, {} of them out of order; {} came once more",
                    self.sum.disordered, self.sum.doubled
                ),
            );
        } else {
            report.check(
                "every byte arrived",
                count == sent,
                format!("{count} of {sent}"),
            );
        }
        report.check(
            "the contents were right",
            self.sum.wrong == 0,
            format!("{} wrong in {count}", self.sum.wrong),
        );
        if let (true, Some([first, last])) = (inwards, self.clocks) {
            let (least_ns, theirs_ns, most_ns) = first.until(last);
            report.check(
                "the clocks of both ends agree",
                theirs_ns >= least_ns * (1.0 - CLOCK_SHARE)
                    && theirs_ns <= most_ns * (1.0 + CLOCK_SHARE),
                format!(
                    "{:.2} ms there, {:.2} to {:.2} ms here",
                    theirs_ns / 1e6,
                    least_ns / 1e6,
                    most_ns / 1e6
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::effort::with_effort;
    use crate::network::peer::{on_loopback, PATIENCE};

    fn report(words: &str) -> Result<Report, Failed> {
        crate::reported(run, words)
    }

    #[test]
    fn both_protocols_both_ways() {
        for protocol in ["tcp", "udp", "udp --segmentation yes"] {
            for direction in ["in", "out"] {
                let report = with_effort(|| {
                    report(&format!(
                        "--peer {} --protocol {protocol} --direction {direction} --windows 2 --work 200 \
                         --size-bytes 1470 {PATIENCE}",
                        on_loopback()
                    ))
.unwrap()
                });
                assert_eq!(report.windows.len(), 2);
                // Where all of a window comes at once, as it may on a machine that stalls, there is no rate to tell.
                for window in &report.windows {
                    assert!(window.work >= 200 && window.duration_ns > 0);
                    assert!(window
                        .values
                        .iter()
                        .all(|(key, value)| *value > 0.0 || *key == "lost_percent"));
                    assert_eq!(
                        window.values.contains_key("lost_percent"),
                        protocol != "tcp"
                    );
                }
            }
        }
    }

    struct Fake(Tally);

    impl Link for Fake {
        fn pass(&mut self, _: &Line, _: u64) -> io::Result<Told> {
            Ok(Told {
                tally: self.0,
                asked_ns: 0,
                done_ns: 0,
            })
        }

        fn whole(&self, messages: u64) -> u64 {
            messages
        }
    }

    fn line() -> Line {
        let words = ["--peer", "127.0.0.1:9"].map(str::to_owned);
        Line::from(&mut Arguments::parse(&words).unwrap())
    }

    fn verdicts(tally: Tally, udp: bool) -> Vec<bool> {
        let line = line();
        let mut flow = Flow::new(Box::new(Fake(tally)));
        for _ in 0..2 {
            flow.run(&line, 1000).unwrap();
            flow.values(1000, 64, udp);
        }
        let mut report = Report::default();
        flow.prove(&mut report, false, udp);
        report.checks.iter().map(|check| check.passed).collect()
    }

    #[test]
    fn missing_bytes_wrong_contents_and_doubles_are_noticed() {
        let whole = Tally {
            count: 1000,
            first: 10,
            end_ns: 1000,
            ..Tally::default()
        };
        assert_eq!(verdicts(whole, false), [true, true]);
        assert_eq!(
            verdicts(
                Tally {
                    count: 999,
                    ..whole
                },
                false
            ),
            [false, true]
        );
        assert_eq!(verdicts(Tally { wrong: 1, ..whole }, false), [true, false]);
        assert_eq!(
            verdicts(
                Tally {
                    count: 999,
                    ..whole
                },
                true
            ),
            [true, true]
        );
        assert_eq!(
            verdicts(
                Tally {
                    count: 900,
                    doubled: 1,
                    ..whole
                },
                true
            ),
            [false, true],
            "a double is one however many were lost"
        );
    }

    #[test]
    fn what_came_all_at_once_has_no_rate_and_not_one_of_zero() {
        let at_once = Tally {
            count: 1000,
            first: 1000,
            end_ns: 5,
            start_ns: 5,
            ..Tally::default()
        };
        for udp in [true, false] {
            let mut flow = Flow::new(Box::new(Fake(at_once)));
            flow.run(&line(), 1000).unwrap();
            let keys: Vec<_> = flow
                .values(1000, 64, udp)
                .into_iter()
                .map(|(key, _)| key)
                .collect();
            assert_eq!(keys, if udp { vec!["lost_percent"] } else { vec![] });
        }
    }

    #[test]
    fn a_receiver_that_tells_of_more_than_was_sent_is_not_believed() {
        for tally in [
            Tally {
                count: 1001,
                ..Tally::default()
            },
            Tally {
                count: 5,
                first: 6,
                ..Tally::default()
            },
            Tally {
                count: 5,
                start_ns: 6,
                ..Tally::default()
            },
            Tally {
                count: 5,
                doubled: u64::MAX,
                ..Tally::default()
            },
        ] {
            let failed = Flow::new(Box::new(Fake(tally)))
                .run(&line(), 1000)
                .unwrap_err();
            assert_eq!(failed.kind, "peer");
        }
    }

    #[test]
    fn clocks_that_run_apart_are_noticed() {
        let passed = |theirs_ns| {
            let mut flow = Flow::new(Box::new(Fake(Tally::default())));
            let moment = |theirs_ns, asked_ns, heard_ns| Moment {
                theirs_ns,
                asked_ns,
                heard_ns,
            };
            let last = moment(theirs_ns, 1_000_000_000, 1_040_000_000);
            flow.clocks = Some([moment(5, 0, 10_000_000), last]);
            let mut report = Report::default();
            flow.prove(&mut report, true, true);
            report.checks[2].passed
        };
        assert!(passed(1_000_000_000) && passed(1_045_000_000) && passed(985_000_000));
        assert!(!passed(1_060_000_000) && !passed(970_000_000));
    }

    #[test]
    fn segmentation_needs_datagrams() {
        let words = ["--peer", "127.0.0.1:9", "--segmentation", "yes"].map(str::to_owned);
        let mut arguments = Arguments::parse(&words).unwrap();
        assert!(run(&mut arguments).is_ok());
        assert!(!arguments.are_right());
    }
}
