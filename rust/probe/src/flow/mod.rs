//! A flow to the peer: so much a second, on time, for so long; and what becomes of it where it arrives, second by second
//! and packet by packet. The work of iperf -u (https://iperf.fr); jitter as RFC 3550, section 6.4.1, defines it.

mod counts;
pub(crate) mod datagrams;
mod depart;
mod icmp;
pub(crate) mod pace;
mod ping;
mod schedule;
mod settings;
mod spread;
mod stamps;
pub(crate) mod stream;
mod verdict;
mod wire;

pub use ping::PROBE as PING;

use std::io;
use std::net::TcpStream;

use crate::arguments::Arguments;
use crate::network::meeting::meet;
use crate::network::wire::{Greeting, Role};
use crate::report::{Failed, Report};
use crate::windows::now_ns;
use crate::Probe;
use depart::{depart, Departures};
use pace::Pacer;
use settings::Settings;
use verdict::Flow;
use wire::{hear, tell, Answer, Ended, Order, Ready};

pub const PROBE: Probe = Probe {
    name: "flow",
    summary: "datagrams or bytes to the peer at a rate of their own: throughput, loss, jitter, times between arrivals",
    usage: "--peer ADDRESS:PORT [--protocol udp|tcp] [--rate-bit-per-s 0 | --packets-per-s 0 | --steps RATE:NS,...]
       [--size-bytes 1024|16384] [--warm-up-ns 500000000] [--series-ns 100000000] [--trace 0] [--start-ns 0]
       [--wait auto|sleep|spin] [--segmentation no|yes] [--receive-buffer-bytes 16777216]
       [--most-short-percent 0.5] [--patience-ns 10000000000]
       without a rate as fast as it goes; the windows follow each other without a gap",
    run,
};

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let settings = Settings::from(arguments);
    let mut report = Report::of(verdict::units(settings.udp));
    if !arguments.are_right() {
        return Ok(report);
    }
    let flow = if settings.udp {
        over_udp(&settings)?
    } else {
        over_tcp(&settings)?
    };
    if flow.answer.received == 0 {
        let what = format!("none of {} arrived", flow.departures.taken);
        let error = io::ErrorKind::TimedOut.into();
        return Err(settings.line.lost(&what, &error));
    }
    flow.tell(&settings, &mut report);
    Ok(report)
}

fn over_udp(settings: &Settings) -> Result<Flow, Failed> {
    let greeting = Greeting::new(Role::Flow, settings.size_bytes as u64);
    let (control, socket) = meet(&settings.line, greeting)?;
    let order = settings.order();
    let paced = settings
        .schedule
        .iter()
        .all(|segment| segment.intended().is_some());
    let mut way = datagrams::Datagrams::new(&socket, &order, settings.segmentation, !paced)
        .map_err(|error| Failed::system("the socket of the flow", &error))?;
    performed(settings, &control, &order, |pacer, start_ns| {
        depart(
            &settings.schedule,
            start_ns,
            pacer,
            settings.series_ns,
            &mut way,
        )
    })
}

fn over_tcp(settings: &Settings) -> Result<Flow, Failed> {
    let greeting = Greeting::new(Role::FlowStream, settings.size_bytes as u64);
    let stream = settings.line.connect(greeting)?;
    let order = settings.order();
    let mut way = stream::Messages::new(&stream, &order);
    performed(settings, &stream, &order, |pacer, start_ns| {
        let done = depart(
            &settings.schedule,
            start_ns,
            pacer,
            settings.series_ns,
            &mut way,
        )?;
        way.end()?;
        Ok(done)
    })
}

/// Order, wait for the time to start, send, and hear what came.
fn performed(
    settings: &Settings,
    control: &TcpStream,
    order: &Order,
    send: impl FnOnce(&Pacer, u64) -> io::Result<Departures>,
) -> Result<Flow, Failed> {
    let lost = |error| settings.line.lost("the flow stopped", &error);
    let pacer = Pacer::calibrated(settings.wait);
    let asked_ns = now_ns();
    tell(control, order).map_err(lost)?;
    let ready: Ready = hear(control).map_err(lost)?;
    let heard_ns = now_ns();
    // One that is too late begins at once, all the same as long, and fails a check.
    let start_ns = settings.start_ns.max(heard_ns);
    let late_ns = start_ns - settings.start_ns;
    let departures = send(&pacer, start_ns).map_err(lost)?;
    // The receiver hears of the end no sooner than that.
    let end_ns = start_ns + settings.schedule.last().map_or(0, |segment| segment.end_ns);
    if settings.udp {
        let taken = departures.taken;
        tell(control, &Ended { taken }).map_err(lost)?;
    }
    let answer: Answer = hear(control).map_err(lost)?;
    Ok(Flow {
        there_ns: answer.now_ns.saturating_sub(ready.now_ns),
        least_ns: end_ns.saturating_sub(heard_ns),
        most_ns: now_ns().saturating_sub(asked_ns),
        start_ns,
        late_ns,
        pacer,
        departures,
        answer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::peer::on_loopback;

    fn report(words: &str) -> Result<Report, Failed> {
        crate::reported(run, words)
    }

    /// Short flows on a busy machine: what may fall short of its rate there is no fault.
    const BRIEF: &str = "--warm-up-ns 2000000 --series-ns 1000000 --most-short-percent 100";

    #[test]
    fn a_paced_flow_arrives_whole_and_is_told_packet_by_packet() {
        let peer = on_loopback();
        let report = report(&format!(
            "--peer {peer} --packets-per-s 5000 --windows 2 --time-ns 20000000 --trace 150 {BRIEF}"
        ))
        .unwrap();
        assert!(
            report.checks.iter().all(|check| check.passed),
            "{:?}",
            report.checks
        );
        assert_eq!(report.windows.len(), 2);
        for window in &report.windows {
            assert_eq!(window.work, 100);
            assert_eq!(window.values["lost_percent"], 0.0);
            assert!((window.values["offered_mbit_per_s"] - 40.96).abs() < 1e-6);
            assert!(window.values["interarrival_sd_us"] >= 0.0);
        }
        let counters: Vec<_> = report.series.iter().map(|series| series.counter).collect();
        assert_eq!(counters, ["sent_bytes", "received_bytes", "arrival"]);
        assert_eq!(report.series[1].rows.last().unwrap().1, 210 * 1024);
        assert_eq!(report.series[2].rows.len(), 150);
        assert_eq!(report.facts["stamps"], "kernel");
        let gaps: u64 = report
            .histogram
            .unwrap()
            .iter()
            .map(|bucket| bucket.2)
            .sum();
        assert_eq!(gaps, 2 * 99);
    }

    #[test]
    fn fixed_work_steps_streams_and_floods() {
        let peer = on_loopback();
        for (kind, windows) in [
            ("--rate-bit-per-s 40000000 --work 50 --windows 1", 1),
            ("--steps 8000000:5000000,0:2000000,80000000:5000000", 3),
            ("--protocol tcp --windows 2 --time-ns 5000000", 2),
            (
                "--protocol tcp --rate-bit-per-s 80000000 --windows 1 --time-ns 10000000",
                1,
            ),
            ("--size-bytes 1470 --windows 1 --time-ns 3000000", 1),
            (
                "--size-bytes 64 --segmentation yes --windows 1 --time-ns 3000000",
                1,
            ),
        ] {
            let report = report(&format!("--peer {peer} {kind} {BRIEF}")).unwrap();
            assert!(
                report.checks.iter().all(|check| check.passed),
                "{kind}: {:?}",
                report.checks
            );
            assert_eq!(report.windows.len(), windows, "{kind}");
            let first = &report.windows[0].values;
            assert!(first["throughput_mbit_per_s"] > 0.0, "{kind}");
        }
    }

    #[test]
    fn two_windows_after_each_other_have_no_gap() {
        let peer = on_loopback();
        let words =
            format!("--peer {peer} --packets-per-s 1000 --windows 3 --time-ns 5000000 {BRIEF}");
        let windows = report(&words).unwrap().windows;
        for pair in windows.windows(2) {
            assert_eq!(pair[0].start_ns + pair[0].duration_ns, pair[1].start_ns);
        }
    }

    #[test]
    fn a_start_in_the_past_fails_its_check() {
        let peer = on_loopback();
        let words =
            format!("--peer {peer} --packets-per-s 1000 --start-ns 1 --time-ns 5000000 {BRIEF}");
        let report = report(&words).unwrap();
        let failed: Vec<_> = report.checks.iter().filter(|check| !check.passed).collect();
        assert!(failed
            .iter()
            .any(|check| check.name == "the flow began when it was to"));
    }
}
