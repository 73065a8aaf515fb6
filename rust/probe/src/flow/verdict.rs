//! A flow that is over: its values by window, its series, and what it proves of itself.

use super::depart::{Departures, Sent};
use super::lateness;
use super::schedule::Segment;
use super::settings::Settings;
use super::wire::Answer;
use crate::report::{Report, Series, Window};

/// How far the two clocks may run apart, beyond what waiting for the answers hides.
const CLOCK_SHARE: f64 = 0.01;
/// A start this much late is none.
const MOST_LATE_NS: u64 = 1_000_000;
/// How far the clock that the kernel stamps by may be moved against the one that times windows. One
/// step of it is in one time between arrivals, and must not be seen in the variation of a thousand.
const MOST_MOVED_NS: u64 = 10_000;

type Units = &'static [(&'static str, &'static str)];
const TCP: Units = &[
    ("throughput_mbit_per_s", "Mbit/s"),
    ("throughput_sd_mbit_per_s", "Mbit/s"),
    ("offered_mbit_per_s", "Mbit/s"),
    ("intended_mbit_per_s", "Mbit/s"),
];
const UDP: Units = &[
    ("throughput_mbit_per_s", "Mbit/s"),
    ("throughput_sd_mbit_per_s", "Mbit/s"),
    ("offered_mbit_per_s", "Mbit/s"),
    ("intended_mbit_per_s", "Mbit/s"),
    ("offered_packets_per_s", "/s"),
    ("packets_per_s", "/s"),
    ("lost_percent", "%"),
    ("refused_percent", "%"),
    ("jitter_us", "us"),
    ("jitter_last_us", "us"),
    ("interarrival_us", "us"),
    ("interarrival_sd_us", "us"),
    ("interdeparture_us", "us"),
    ("interdeparture_sd_us", "us"),
];

pub fn units(udp: bool) -> Units {
    if udp {
        UDP
    } else {
        TCP
    }
}

/// Both ends' accounts.
pub struct Flow {
    /// Between its words "ready" and its answer, by the receiver's clock; the least and most that it was by ours.
    pub there_ns: u64,
    pub least_ns: u64,
    pub most_ns: u64,
    pub start_ns: u64,
    pub late_ns: u64,
    pub departures: Departures,
    pub answer: Answer,
}

impl Flow {
    /// Put everything into the report.
    pub fn tell(self, settings: &Settings, report: &mut Report) {
        for index in 1..settings.schedule.len() {
            report.windows.push(self.window(settings, index));
        }
        self.prove(settings, report);
        report.fact("stamps", self.answer.stamps.as_str());
        if settings.udp {
            report.fact("reordered", self.answer.reordered);
            if let Some(overrun) = self.answer.overrun {
                report.fact("overrun", overrun);
            }
            report.fact("receive_buffer_bytes", self.answer.buffer_bytes);
        }
        lateness::tell(&self.departures.lateness, report);
        if settings.udp {
            report.histogram = Some(self.answer.histogram.clone());
        }
        report.series = self.series(settings);
    }

    fn window(&self, settings: &Settings, index: usize) -> Window {
        let segment = &settings.schedule[index];
        let sent = &self.departures.segments[index];
        let mut values = self.rates(settings, index);
        if settings.udp {
            values.extend(self.of_datagrams(sent, segment, index));
        }
        Window {
            start_ns: self.start_ns + segment.start_ns,
            duration_ns: segment.duration_ns(),
            work: sent.offered,
            values: values.into_iter().collect(),
        }
    }

    fn rates(&self, settings: &Settings, index: usize) -> Vec<(&'static str, f64)> {
        let segment = &settings.schedule[index];
        let sent = &self.departures.segments[index];
        let counted = &self.answer.segments[index];
        let mbit_per_s = |bytes: u64, ns: u64| bytes as f64 * 8e3 / ns as f64;
        let offered = mbit_per_s(
            sent.offered * settings.size_bytes as u64,
            sent.duration_ns(segment),
        );
        let arrived = mbit_per_s(counted.arrived_bytes, segment.duration_ns());
        let sd = self
            .answer
            .bins
            .sd_mbit_per_s(segment.start_ns, segment.end_ns);
        let mut values = vec![
            ("throughput_mbit_per_s", arrived),
            ("offered_mbit_per_s", offered),
        ];
        values.extend(sd.map(|sd| ("throughput_sd_mbit_per_s", sd)));
        values.extend(segment.intended().map(|count| {
            let bytes = count * settings.size_bytes as u64;
            (
                "intended_mbit_per_s",
                mbit_per_s(bytes, segment.duration_ns()),
            )
        }));
        values
    }

    fn of_datagrams(
        &self,
        sent: &Sent,
        segment: &Segment,
        index: usize,
    ) -> Vec<(&'static str, f64)> {
        let counted = &self.answer.segments[index];
        let per_s = |count: u64, ns: u64| count as f64 * 1e9 / ns as f64;
        let mut values = vec![
            (
                "packets_per_s",
                per_s(counted.arrived, segment.duration_ns()),
            ),
            (
                "offered_packets_per_s",
                per_s(sent.offered, sent.duration_ns(segment)),
            ),
        ];
        if sent.offered > 0 {
            let percent = |count: u64| 100.0 * count as f64 / sent.offered as f64;
            values.push(("refused_percent", percent(sent.offered - sent.taken)));
            // What the receiver had no room for was not lost on the way, and nobody knows whose it was.
            if self.answer.overrun == Some(0) {
                let lost = sent.offered.saturating_sub(counted.received);
                values.push(("lost_percent", percent(lost)));
            }
        }
        let measured = [
            ("jitter_us", counted.jitter_us()),
            ("jitter_last_us", counted.jitter_last_us()),
            ("interarrival_us", counted.gaps.mean_us()),
            ("interarrival_sd_us", counted.gaps.sd_us()),
            ("interdeparture_us", sent.gaps.mean_us()),
            ("interdeparture_sd_us", sent.gaps.sd_us()),
        ];
        let known = |(key, value): (&'static str, Option<f64>)| value.map(|value| (key, value));
        values.extend(measured.into_iter().filter_map(known));
        values
    }

    fn prove(&self, settings: &Settings, report: &mut Report) {
        let answer = &self.answer;
        report.check(
            "the contents were right",
            answer.wrong == 0,
            format!("{} wrong beside {}", answer.wrong, answer.received),
        );
        if settings.start_ns > 0 {
            report.check(
                "the flow began when it was to",
                self.late_ns < MOST_LATE_NS,
                format!("{:.3} ms late", self.late_ns as f64 / 1e6),
            );
        }
        let there_ns = self.there_ns as f64;
        report.check(
            "the clocks of both ends agree",
            there_ns >= self.least_ns as f64 * (1.0 - CLOCK_SHARE)
                && there_ns <= self.most_ns as f64 * (1.0 + CLOCK_SHARE),
            format!(
                "{:.2} ms there, {:.2} to {:.2} ms here",
                there_ns / 1e6,
                self.least_ns as f64 / 1e6,
                self.most_ns as f64 / 1e6
            ),
        );
        if settings.udp {
            self.prove_datagrams(settings, report);
            // Of a stream it is the receiver that holds the sender up.
            lateness::prove(
                &self.departures.lateness,
                settings.most_short_percent,
                report,
            );
        } else {
            report.check(
                "every message arrived",
                answer.received == self.departures.taken && answer.doubled == 0,
                format!("{} of {}", answer.received, self.departures.taken),
            );
        }
    }

    fn prove_datagrams(&self, settings: &Settings, report: &mut Report) {
        let answer = &self.answer;
        let taken = self.departures.taken;
        report.check(
            "no datagram came twice",
            answer.doubled == 0,
            format!(
                "{} came of {taken}, {} of them out of order; {} came once more",
                answer.received, answer.reordered, answer.doubled
            ),
        );
        let measured: u64 = answer.segments[1..].iter().map(|one| one.received).sum();
        let expected = settings.trace.min(measured);
        report.check(
            "every arrival has its time",
            answer.unstamped == 0 && answer.trace.len() as u64 == expected,
            format!(
                "{} without; {} of {expected} in the trace",
                answer.unstamped,
                answer.trace.len()
            ),
        );
        report.check(
            "the clock of the stamps was not moved",
            answer.clock_moved_ns <= MOST_MOVED_NS,
            format!("{:.3} ms", answer.clock_moved_ns as f64 / 1e6),
        );
        if answer.overrun.is_none() {
            report.notes.push(
                "the receiver's kernel does not tell what it had no room for (SO_MEMINFO): what the way lost is not \
                 known"
                    .to_owned(),
            );
        }
        if let Some((share, window)) = self.worst_rate(settings) {
            if let Some(overrun) = answer.overrun {
                report.check(
                    "the receiver had room for what came",
                    overrun == 0 || settings.most_short_percent >= 100.0,
                    format!("it had none for {overrun} datagrams"),
                );
            }
            report.check(
                "the intended rate was held",
                (share - 1.0).abs() * 100.0 <= settings.most_short_percent,
                format!("{:.2} % of it in window {window}", share * 100.0),
            );
        }
    }

    /// What was offered as a share of what was intended, in the window where it is furthest from 1.
    fn worst_rate(&self, settings: &Settings) -> Option<(f64, usize)> {
        let share = |index: usize| {
            let segment = &settings.schedule[index];
            let intended = segment.intended().filter(|intended| *intended > 0)?;
            let sent = &self.departures.segments[index];
            let stretched = segment.duration_ns() as f64 / sent.duration_ns(segment) as f64;
            Some((sent.offered as f64 * stretched / intended as f64, index))
        };
        (1..settings.schedule.len())
            .filter_map(share)
            .max_by(|a, b| (a.0 - 1.0).abs().total_cmp(&(b.0 - 1.0).abs()))
    }

    fn series(&self, settings: &Settings) -> Vec<Series> {
        let mut series = vec![
            Series {
                counter: "sent_bytes",
                clock: "here",
                rows: self.departures.bins.cumulative(self.start_ns),
            },
            Series {
                counter: "received_bytes",
                clock: "peer",
                rows: self.answer.bins.cumulative(self.answer.start_ns),
            },
        ];
        if settings.trace > 0 {
            let arrival = |(number, t_ns): &(u64, u64)| (*t_ns, *number);
            series.push(Series {
                counter: "arrival",
                clock: "peer",
                rows: self.answer.trace.iter().map(arrival).collect(),
            });
        }
        series
    }
}
