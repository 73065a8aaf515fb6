//! A flow to the peer: so much a second, on time, for so long; and what becomes of it where it arrives, second by second
//! and packet by packet. The work of iperf -u (https://iperf.fr); jitter as RFC 3550, section 6.4.1, defines it.

mod counts;
pub(crate) mod datagrams;
mod depart;
mod icmp;
mod lateness;
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
use crate::Probe;
use depart::{depart, Departures};
use pace::{Clock, Pacer};
use settings::Settings;
use verdict::Flow;
use wire::{hear, tell, Answer, Ended, Order, Ready, MOST_ANSWER_BYTES, MOST_WORD_BYTES};

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
    let pacer = Pacer::calibrated(settings.wait);
    flowed(&settings, &pacer)?.tell(&settings, &mut report);
    report.fact("spin_us", pacer.spin_ns as f64 / 1000.0);
    report.fact("sleeper_late_us", pacer.late_ns as f64 / 1000.0);
    Ok(report)
}

/// A flow of which something arrived, sent by this clock.
fn flowed(settings: &Settings, clock: &impl Clock) -> Result<Flow, Failed> {
    let flow = if settings.udp {
        over_udp(settings, clock)?
    } else {
        over_tcp(settings, clock)?
    };
    if flow.answer.received == 0 {
        let what = format!("none of {} arrived", flow.departures.taken);
        let error = io::ErrorKind::TimedOut.into();
        return Err(settings.line.lost(&what, &error));
    }
    Ok(flow)
}

fn over_udp(settings: &Settings, clock: &impl Clock) -> Result<Flow, Failed> {
    let greeting = Greeting::new(Role::Flow, settings.size_bytes as u64);
    let (control, socket) = meet(&settings.line, greeting)?;
    let order = settings.order();
    let paced = settings
        .schedule
        .iter()
        .all(|segment| segment.intended().is_some());
    let mut way = datagrams::Datagrams::new(&socket, &order, settings.segmentation, !paced)
        .map_err(|error| Failed::system("the socket of the flow", &error))?;
    performed(settings, clock, &control, &order, |start_ns| {
        depart(
            &settings.schedule,
            start_ns,
            clock,
            settings.series_ns,
            &mut way,
        )
    })
}

fn over_tcp(settings: &Settings, clock: &impl Clock) -> Result<Flow, Failed> {
    let greeting = Greeting::new(Role::FlowStream, settings.size_bytes as u64);
    let stream = settings.line.connect(greeting)?;
    let order = settings.order();
    let mut way = stream::Messages::new(&stream, &order);
    performed(settings, clock, &stream, &order, |start_ns| {
        let done = depart(
            &settings.schedule,
            start_ns,
            clock,
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
    clock: &impl Clock,
    control: &TcpStream,
    order: &Order,
    send: impl FnOnce(u64) -> io::Result<Departures>,
) -> Result<Flow, Failed> {
    let lost = |error| settings.line.lost("the flow stopped", &error);
    let asked_ns = clock.now_ns();
    tell(control, order).map_err(lost)?;
    let ready: Ready = hear(control, MOST_WORD_BYTES).map_err(lost)?;
    let heard_ns = clock.now_ns();
    // One that is too late begins at once, all the same as long, and fails a check.
    let start_ns = settings.start_ns.max(heard_ns);
    let late_ns = start_ns - settings.start_ns;
    let departures = send(start_ns).map_err(lost)?;
    // The receiver hears of the end no sooner than that.
    let end_ns = start_ns + settings.schedule.last().map_or(0, |segment| segment.end_ns);
    if settings.udp {
        let taken = departures.taken;
        tell(control, &Ended { taken }).map_err(lost)?;
    }
    let answer: Answer = hear(control, MOST_ANSWER_BYTES).map_err(lost)?;
    if !answer.fits(order) {
        return Err(lost(io::Error::other("its answer is to no such flow")));
    }
    Ok(Flow {
        there_ns: answer.now_ns.saturating_sub(ready.now_ns),
        least_ns: end_ns.saturating_sub(heard_ns),
        most_ns: clock.now_ns().saturating_sub(asked_ns),
        start_ns,
        late_ns,
        departures,
        answer,
    })
}

#[cfg(test)]
mod tests;
