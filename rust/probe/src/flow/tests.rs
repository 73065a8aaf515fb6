//! Flows that are sent by a simulated clock: what departs, and in which window, is the same on every machine, however
//! busy. Over the loopback a datagram may still be lost there (the kernel's own queue has an end).

use super::counts::Counts;
use super::depart::Way;
use super::pace::Simulated;
use super::wire::Header;
use super::*;
use crate::network::peer::on_loopback;
use crate::windows::now_ns;
use proptest::prelude::*;

/// How long a look at the clock takes: what goes as fast as it can goes so often.
const LOOK_NS: u64 = 500_000;
const BRIEF: &str = "--warm-up-ns 2000000 --series-ns 1000000 --patience-ns 3600000000000";

fn settings(words: &str) -> Settings {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let mut arguments = Arguments::parse(&words).unwrap();
    let settings = Settings::from(&mut arguments);
    assert_eq!(arguments.complaint(), None);
    settings
}

/// A way on which everything takes as long, but for those that are lost or come twice; what comes is counted at once.
struct Sure<'a> {
    counts: Counts,
    order: Order,
    way_ns: u64,
    lost: fn(u64) -> bool,
    doubled: fn(u64) -> bool,
    clock: &'a Simulated,
    /// After this number so much time passes: (number, ns).
    stall: (u64, u64),
}

impl Way for Sure<'_> {
    fn most(&self) -> u64 {
        64
    }

    fn depart(&mut self, segment: u32, first: u64, at_ns: u64, count: u64) -> io::Result<u64> {
        let mut bytes = vec![0; self.order.size_bytes];
        for number in (first..first + count).filter(|number| !(self.lost)(*number)) {
            let run = self.order.run;
            let header = Header {
                run,
                segment,
                number,
                at_ns,
            };
            header.write(&mut bytes);
            for _ in 0..=u64::from((self.doubled)(number)) {
                self.counts
                    .datagram(Some(&bytes), 7_000_000_000 + at_ns + self.way_ns);
            }
        }
        if (first..first + count).contains(&self.stall.0) {
            self.clock.pass(self.stall.1);
        }
        Ok(count)
    }

    fn size_bytes(&self) -> u64 {
        self.order.size_bytes as u64
    }
}

/// What is reported of a flow by that way.
fn reported(words: &str, lost: fn(u64) -> bool, doubled: fn(u64) -> bool) -> Report {
    told_of(words, lost, doubled, (u64::MAX, 0), Some(0))
}

/// The same, of a sender that is stopped once and a receiver that had no room for so many, as far as it knows.
fn told_of(
    words: &str,
    lost: fn(u64) -> bool,
    doubled: fn(u64) -> bool,
    stall: (u64, u64),
    overrun: Option<u64>,
) -> Report {
    let settings = settings(&format!("--peer 127.0.0.1:9 {words} {BRIEF}"));
    let order = settings.order();
    let (counts, way_ns) = (Counts::new(order.clone()), 50_000);
    let start_ns = 1_000_000_000;
    let clock = Simulated::new(start_ns, 10);
    let mut way = Sure {
        counts,
        order,
        way_ns,
        lost,
        doubled,
        clock: &clock,
        stall,
    };
    let schedule = &settings.schedule;
    let departures = depart(schedule, start_ns, &clock, settings.series_ns, &mut way).unwrap();
    let answer = Answer {
        stamps: "kernel".to_owned(),
        overrun,
        ..way.counts.answer()
    };
    assert!(answer.fits(&way.order));
    let flow = Flow {
        there_ns: 10,
        least_ns: 10,
        most_ns: 10,
        start_ns,
        late_ns: 0,
        departures,
        answer,
    };
    let mut report = Report::of(verdict::units(settings.udp));
    flow.tell(&settings, &mut report);
    report
}

fn failed(report: &Report) -> Vec<&str> {
    let checks = report.checks.iter().filter(|check| !check.passed);
    checks.map(|check| check.name).collect()
}

#[test]
fn a_paced_flow_arrives_whole_and_is_told_packet_by_packet() {
    let words = "--packets-per-s 5000 --windows 2 --time-ns 20000000 --trace 150";
    let report = reported(words, |_| false, |_| false);
    assert_eq!(failed(&report), [""; 0], "{:?}", report.checks);
    assert_eq!(report.windows.len(), 2);
    for window in &report.windows {
        assert_eq!(window.work, 100);
        assert_eq!(window.values["lost_percent"], 0.0);
        assert!((window.values["offered_mbit_per_s"] - 40.96).abs() < 1e-6);
        assert!((window.values["interarrival_us"] - 200.0).abs() < 0.1);
        assert!(window.values["interarrival_sd_us"] >= 0.0);
    }
    let counters: Vec<_> = report.series.iter().map(|series| series.counter).collect();
    assert_eq!(counters, ["sent_bytes", "received_bytes", "arrival"]);
    assert_eq!(report.series[1].rows.last().unwrap().1, 210 * 1024);
    assert_eq!(report.series[2].rows.len(), 150);
    assert_eq!(report.facts["stamps"], "kernel");
    let gaps = report.histogram.unwrap();
    assert_eq!(gaps.iter().map(|bucket| bucket.2).sum::<u64>(), 2 * 99);
}

/// Two datagrams in each half second, and the flow is a third faster than its rate.
#[test]
fn a_rate_of_which_windows_hold_no_whole_number_is_not_exceeded() {
    let words = "--packets-per-s 3 --windows 4 --time-ns 500000000";
    let report = reported(words, |_| false, |_| false);
    assert_eq!(failed(&report), [""; 0], "{:?}", report.checks);
    let work: Vec<u64> = report.windows.iter().map(|window| window.work).collect();
    assert_eq!(work, [1, 2, 1, 2]);
    for window in &report.windows {
        let intended = window.values["intended_mbit_per_s"];
        assert_eq!(intended, window.values["offered_mbit_per_s"]);
        assert_eq!(intended, window.work as f64 * 1024.0 * 8.0 / 5e5);
    }
}

#[test]
fn what_comes_twice_hides_nothing_that_was_lost() {
    let words = "--packets-per-s 5000 --windows 1 --time-ns 20000000";
    // Of the window's 10 to 109 ten are lost, and ten come twice.
    let lost = |number| (20..30).contains(&number);
    let report = reported(words, lost, |number| number >= 100);
    assert_eq!(report.windows[0].values["lost_percent"], 10.0);
    assert!((report.windows[0].values["packets_per_s"] - 4500.0).abs() < 51.0);
    assert_eq!(failed(&report), ["no datagram came twice"]);
}

#[test]
fn a_sender_that_was_stopped_is_late_however_well_it_catches_up() {
    let words = "--packets-per-s 20000 --windows 1 --time-ns 4000000000";
    let none = |_| false;
    let report = told_of(words, none, none, (5000, 300_000_000), Some(0));
    assert_eq!(report.windows[0].values["lost_percent"], 0.0);
    assert_eq!(failed(&report), ["departures were on time"]);
    // Where it is the sender that is measured, it is told and not judged.
    let words = format!("{words} --most-short-percent 100");
    let report = told_of(&words, none, none, (5000, 300_000_000), Some(0));
    assert_eq!(failed(&report), [""; 0]);
    assert!(report.facts.contains_key("departure_late_p99_us"));
    // A scheduler's slice now and then spoils nothing.
    let report = told_of(&words, none, none, (5000, 8_000_000), Some(0));
    assert_eq!(failed(&report), [""; 0]);
}

#[test]
fn what_the_receiver_had_no_room_for_is_no_loss_of_the_way() {
    let words = "--packets-per-s 5000 --windows 1 --time-ns 20000000";
    let report = told_of(
        words,
        |number| number == 50,
        |_| false,
        (u64::MAX, 0),
        Some(1),
    );
    assert!(!report.windows[0].values.contains_key("lost_percent"));
    assert_eq!(failed(&report), ["the receiver had room for what came"]);
}

/// Without SO_MEMINFO, as on other kernels than Linux that run its programs.
#[test]
fn where_the_receiver_does_not_know_what_it_had_no_room_for_no_loss_is_known() {
    let words = "--packets-per-s 5000 --windows 1 --time-ns 20000000";
    let report = told_of(words, |number| number == 50, |_| false, (u64::MAX, 0), None);
    assert!(!report.windows[0].values.contains_key("lost_percent"));
    assert!(report.windows[0].values.contains_key("refused_percent"));
    let names: Vec<_> = report.checks.iter().map(|check| check.name).collect();
    assert!(
        !names.contains(&"the receiver had room for what came"),
        "{names:?}"
    );
    assert!(names.contains(&"the intended rate was held"), "{names:?}");
    assert_eq!(failed(&report), [""; 0]);
    assert!(report.notes[0].contains("SO_MEMINFO"), "{:?}", report.notes);
    assert_eq!(reported(words, |_| false, |_| false).notes, [""; 0]);
}

/// A flow to a peer on the loopback.
fn over_the_loopback(words: &str) -> (Settings, Flow) {
    let settings = settings(&format!("--peer {} {words} {BRIEF}", on_loopback()));
    let flow = flowed(&settings, &Simulated::new(now_ns(), LOOK_NS)).unwrap();
    (settings, flow)
}

#[test]
fn every_kind_of_flow_is_counted_at_the_other_end() {
    for (words, work) in [
        (
            "--packets-per-s 5000 --size-bytes 64 --windows 2 --time-ns 20000000 --trace 50",
            &[100, 100][..],
        ),
        ("--rate-bit-per-s 40000000 --work 50 --windows 1", &[50]),
        (
            "--steps 8000000:5000000,0:2000000,80000000:5000000",
            &[5, 0, 49],
        ),
        ("--size-bytes 1470 --windows 1 --time-ns 3000000", &[]),
        (
            "--size-bytes 64 --segmentation yes --windows 1 --time-ns 3000000",
            &[],
        ),
        ("--protocol tcp --windows 2 --time-ns 5000000", &[]),
        (
            "--protocol tcp --rate-bit-per-s 80000000 --windows 1 --time-ns 10000000",
            &[],
        ),
    ] {
        let (settings, flow) = over_the_loopback(words);
        let offered: Vec<u64> = flow.departures.segments[1..]
            .iter()
            .map(|sent| sent.offered)
            .collect();
        if !work.is_empty() {
            assert_eq!(offered, work, "{words}");
        }
        assert!(offered[0] > 0, "{words}");
        let (taken, answer) = (flow.departures.taken, &flow.answer);
        assert!(answer.received > 0 && answer.received <= taken, "{words}");
        assert!(
            settings.udp || answer.received == taken,
            "{words}: a stream loses nothing"
        );
        let counted: u64 = answer.segments.iter().map(|one| one.received).sum();
        assert_eq!(counted, answer.received, "{words}");
        let bytes: u64 = answer.bins.bytes.iter().sum();
        assert_eq!(
            bytes,
            answer.received * settings.size_bytes as u64,
            "{words}"
        );
        let windows = settings.schedule.len() - 1;
        let mut report = Report::of(verdict::units(settings.udp));
        flow.tell(&settings, &mut report);
        let failed: Vec<_> = failed(&report);
        // The sender's clock is not the receiver's here, and what goes by it is as late as a look takes.
        let simulated = [
            "the clocks of both ends agree",
            "the intended rate was held",
        ];
        assert!(
            failed.iter().all(|name| simulated.contains(name)),
            "{words}: {:?}",
            report.checks
        );
        assert_eq!(report.windows.len(), windows, "{words}");
    }
}

#[test]
fn two_windows_after_each_other_have_no_gap() {
    let words = "--packets-per-s 1000 --windows 3 --time-ns 5000000";
    let windows = reported(words, |_| false, |_| false).windows;
    for pair in windows.windows(2) {
        assert_eq!(pair[0].start_ns + pair[0].duration_ns, pair[1].start_ns);
    }
}

#[test]
fn a_start_in_the_past_fails_its_check() {
    let words = "--packets-per-s 1000 --start-ns 1 --time-ns 5000000";
    let (settings, flow) = over_the_loopback(words);
    let mut report = Report::of(verdict::units(settings.udp));
    flow.tell(&settings, &mut report);
    assert!(failed(&report).contains(&"the flow began when it was to"));
}

#[test]
fn a_receiver_that_says_anything_is_told_and_not_believed() {
    for answer in [
        r#"{"start_ns":1}"#.to_owned(),
        serde_json::to_string(&Answer {
            received: 5,
            ..Answer::default()
        })
        .unwrap(),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let liar = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut greeting = [0; crate::network::wire::GREETING_BYTES];
            io::Read::read_exact(&mut stream, &mut greeting).unwrap();
            let _order: Order = hear(&stream, wire::MOST_ORDER_BYTES).unwrap();
            tell(&stream, &wire::Ready { now_ns: u64::MAX }).unwrap();
            let length = (answer.len() as u32).to_le_bytes();
            io::Write::write_all(&mut stream, &length).unwrap();
            io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let words = "--protocol tcp --rate-bit-per-s 80000000 --windows 1 --time-ns 10000000";
        let settings = settings(&format!("--peer {peer} {words} {BRIEF}"));
        let failed = flowed(&settings, &Simulated::new(now_ns(), LOOK_NS))
            .err()
            .unwrap();
        assert_eq!(failed.kind, "peer");
        liar.join().unwrap();
    }
}

#[test]
fn by_the_machines_own_clock_it_is_told_what_the_pacer_is() {
    let report = crate::reported(
        run,
        &format!(
            "--peer {} --work 20 --rate-bit-per-s 100000000 {BRIEF}",
            on_loopback()
        ),
    );
    // A machine that stalls for all of its time sends nothing; then that is what is told.
    match report {
        Ok(report) => assert!(report.facts.contains_key("spin_us") && !report.windows.is_empty()),
        Err(failed) => assert!(failed.what.contains("none of"), "{}", failed.what),
    }
}

/// A segment as a receiver might tell of it.
fn told() -> impl Strategy<Value = counts::Counted> {
    let number = || prop_oneof![0..100_u64, any::<u64>()];
    let float = || prop_oneof![Just(0.0), -1e300..1e300_f64];
    (number(), number(), number(), number(), float(), float()).prop_map(|(a, b, c, d, e, f)| {
        let gaps = serde_json::json!({"count": a, "sum": b, "squares": e});
        let counted = serde_json::json!({
            "received": c, "arrived": d, "arrived_bytes": a, "gaps": gaps,
            "jitter_sum_ns": e, "jitter_ns": f,
        });
        serde_json::from_value(counted).unwrap()
    })
}

proptest! {
    /// Whatever answer fits its order is told without a panic.
    #[test]
    fn any_answer_that_fits_can_be_told(
        segments in prop::collection::vec(told(), 0..4),
        bytes in prop::collection::vec(prop_oneof![0..100_u64, any::<u64>()], 0..4),
        numbers in prop::array::uniform10(prop_oneof![0..9_u64, any::<u64>()]),
        trace in prop::collection::vec(any::<(u64, u64)>(), 0..3),
        udp: bool,
    ) {
        let protocol = if udp { "udp --trace 2" } else { "tcp" };
        let settings = settings(&format!("--peer 127.0.0.1:9 --protocol {protocol} --windows 1 --time-ns 1000000 {BRIEF}"));
        let [start_ns, received, wrong, reordered, doubled, unstamped, overrun, moved, now_ns, there_ns] = numbers;
        let answer = Answer {
            start_ns,
            segments,
            bins: spread::Bins { step_ns: settings.series_ns, bytes },
            trace,
            received,
            wrong,
            reordered,
            doubled,
            stamps: "kernel".to_owned(),
            unstamped,
            overrun: Some(overrun),
            clock_moved_ns: moved,
            now_ns,
            ..Answer::default()
        };
        if answer.fits(&settings.order()) {
            let sent = depart::Sent { offered: 5, taken: 5, end_ns: 1, ..depart::Sent::default() };
            let departures = Departures {
                segments: vec![sent; 2],
                taken: 10,
                lateness: virtoll_wire::hist::Histogram::default(),
                bins: spread::Bins::new(settings.series_ns, 1),
            };
            let flow = Flow { there_ns, least_ns: 1, most_ns: 2, start_ns: 1, late_ns: 0, departures, answer };
            let mut report = Report::of(verdict::units(udp));
            flow.tell(&settings, &mut report);
            prop_assert_eq!(report.windows.len(), 1);
            report.printed(true);
        }
    }
}
