//! Echo requests at a rate (ICMP, RFC 792), as ping sends them: the kernel at the other end answers.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use virtoll_wire::hist::Histogram;

use super::icmp::{
    answered, fill, is_passing, payload, readable_within, socket, ICMP_BYTES, MARK_BYTES,
};
use super::lateness;
use super::schedule::{constant, Segment, MOST_NS, MOST_START_NS};
use super::stamps::{Ahead, Prepared, Stamps};
use crate::arguments::Arguments;
use crate::network::quantile_us;
use crate::report::{Failed, Report, Window};
use crate::windows::{now_ns, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "ping",
    summary: "ICMP echo requests at a rate: the time until each answer",
    usage: "--peer ADDRESS [--packets-per-s 10] [--size-bytes 56] [--warm-up-ns 500000000] [--start-ns 0]
       [--lost-after-ns 1000000000] [--most-lost-percent 0.1] [--most-short-percent 0.5]
       the windows follow each other without a gap",
    run,
};

/// The largest payload over IPv4 (65,535 less 20 and 8 of headers).
const MOST_BYTES: u64 = 65_507;
/// What a raw socket receives begins with an IPv4 header, of 60 bytes at most.
const MOST_IP_BYTES: usize = 60;
/// A start this much late is none.
const MOST_LATE_NS: u64 = 1_000_000;
/// Every one is kept until the end.
const MOST_REQUESTS: u64 = 10_000_000;
/// Room asked for answers that were not read yet.
const BUFFER_BYTES: i32 = 16 << 20;
/// How far the clock of the stamps may be moved, as a share of the mean round trip.
const MOST_MOVED_SHARE: f64 = 0.01;

struct Settings {
    peer: Ipv4Addr,
    size_bytes: usize,
    schedule: Vec<Segment>,
    start_ns: u64,
    lost_after_ns: u64,
    /// Of a window in which more was lost no mean is told.
    most_lost_percent: f64,
    most_short_percent: f64,
}

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let settings = Settings::from(arguments);
    let mut report = Report::of(&[
        ("round_trip_p50_us", "us"),
        ("round_trip_p99_us", "us"),
        ("round_trip_mean_us", "us"),
        ("round_trip_min_us", "us"),
        ("offered_packets_per_s", "/s"),
        ("lost_percent", "%"),
    ]);
    if !arguments.are_right() {
        return Ok(report);
    }
    let (socket, raw) = connected(&settings)?;
    let mut pinger = Pinger::new(&socket, raw, &settings);
    let (start_ns, late_ns) = pinger
        .perform(&settings)
        .map_err(|error| Failed::system(format!("echo requests to {}", settings.peer), &error))?;
    if settings.start_ns > 0 {
        report.check(
            "the requests began when they were to",
            late_ns < MOST_LATE_NS,
            format!("{:.3} ms late", late_ns as f64 / 1e6),
        );
    }
    pinger.tell(&settings, start_ns, &mut report)?;
    Ok(report)
}

impl Settings {
    fn from(arguments: &mut Arguments) -> Settings {
        let windows = Windows::from(arguments);
        let given = arguments.required("peer");
        let peer = given.parse().unwrap_or_else(|_| {
            arguments.complain(format!("--peer {given:?} is not like 198.18.3.10"));
            Ipv4Addr::UNSPECIFIED
        });
        let packets_per_s = arguments.get("packets-per-s", 10.0_f64);
        let size_bytes = arguments.at_least("size-bytes", MARK_BYTES as u64, 56);
        if size_bytes > MOST_BYTES {
            arguments.complain(format!("--size-bytes {size_bytes} is above {MOST_BYTES}"));
        }
        let warm_up_ns = arguments.within("warm-up-ns", 0, MOST_NS, 500_000_000);
        if packets_per_s.is_nan() || packets_per_s <= 0.0 {
            arguments.complain(format!("--packets-per-s {packets_per_s} is no rate"));
        }
        let schedule = constant(Some(1e9 / packets_per_s), warm_up_ns, &windows);
        let schedule = schedule.and_then(few).unwrap_or_else(|why| {
            arguments.complain(why);
            Vec::new()
        });
        Settings {
            peer,
            size_bytes: size_bytes.min(MOST_BYTES) as usize,
            schedule,
            start_ns: arguments.within("start-ns", 0, MOST_START_NS, 0),
            lost_after_ns: arguments.within("lost-after-ns", 1_000_000, MOST_NS, 1_000_000_000),
            most_lost_percent: arguments.get("most-lost-percent", 0.1),
            most_short_percent: arguments.get("most-short-percent", 0.5),
        }
    }
}

/// A schedule that there is memory for.
fn few(schedule: Vec<Segment>) -> Result<Vec<Segment>, String> {
    let intended = schedule.iter().filter_map(Segment::intended);
    match intended.fold(0, u64::saturating_add) {
        count if count > MOST_REQUESTS => {
            Err(format!("{count} requests are above {MOST_REQUESTS}"))
        }
        _ => Ok(schedule),
    }
}

/// One request.
#[derive(Clone, Copy)]
struct Request {
    segment: usize,
    sent_ns: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// The kernel did not take it: no answer can be to it.
    Refused,
    Waiting,
    /// In time or late.
    Answered,
}

/// The answers of one segment.
#[derive(Clone, Default)]
struct Answers {
    offered: u64,
    refused: u64,
    histogram: Histogram,
    sum_ns: u64,
    least_ns: Option<u64>,
    /// When the last request departed.
    last_ns: u64,
}

/// Every request, and what became of it.
struct Requests {
    all: Vec<Request>,
    segments: Vec<Answers>,
    lost_after_ns: u64,
    waiting: usize,
    /// Answers that came when their requests were lost.
    late: u64,
    twice: u64,
    /// Answers that came before their requests went, by the clocks: no time is known of them.
    early: u64,
    /// How late each measured request departed.
    lateness: Histogram,
}

/// The socket, and everything sent and answered so far.
struct Pinger<'a> {
    socket: &'a UdpSocket,
    raw: bool,
    prepared: Prepared<'a>,
    stamps: Stamps,
    message: Vec<u8>,
    token: u64,
    requests: Requests,
    ahead: Ahead,
}

/// A socket to the peer that never waits, and whether it is a raw one.
fn connected(settings: &Settings) -> Result<(UdpSocket, bool), Failed> {
    let (socket, raw) = socket().map_err(|error| {
        Failed::new(
            "system",
            format!("no socket for echo requests: {error}"),
            "ICMP",
            "run as root with CAP_NET_RAW, or let the group use net.ipv4.ping_group_range",
        )
    })?;
    socket
        .connect(SocketAddrV4::new(settings.peer, 0))
        .and_then(|()| socket.set_nonblocking(true))
        .map_err(|error| Failed::system(format!("the way to {}", settings.peer), &error))?;
    Ok((socket, raw))
}

impl<'a> Pinger<'a> {
    fn new(socket: &'a UdpSocket, raw: bool, settings: &Settings) -> Pinger<'a> {
        Pinger {
            socket,
            raw,
            prepared: Prepared::new(socket, BUFFER_BYTES),
            stamps: Stamps::new(ICMP_BYTES + settings.size_bytes + MOST_IP_BYTES),
            message: vec![1; ICMP_BYTES + settings.size_bytes],
            token: now_ns(),
            requests: Requests::new(settings),
            ahead: Ahead::now(),
        }
    }

    /// Send everything on time, and take the answers as they come; (start, how late it was).
    fn perform(&mut self, settings: &Settings) -> io::Result<(u64, u64)> {
        // SAFETY: only sets how far the kernel may put off this thread's timers: as little as can be.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0) };
        let now = now_ns();
        let start_ns = settings.start_ns.max(now);
        for (index, segment) in settings.schedule.iter().enumerate() {
            for number in 0..segment.intended().unwrap_or(0) {
                let deadline_ns = start_ns + segment.deadline_ns(number);
                self.answers_until(deadline_ns)?;
                self.request(index, deadline_ns)?;
            }
        }
        let end_ns = settings.schedule.last().map_or(0, |segment| segment.end_ns);
        let last_ns = (start_ns + end_ns).max(now_ns()) + settings.lost_after_ns;
        while self.requests.waiting > 0 && now_ns() < last_ns {
            self.wait(last_ns)?;
        }
        Ok((start_ns, start_ns - settings.start_ns))
    }

    /// Take the answers that come until this time; where it has passed, those that are there.
    fn answers_until(&mut self, time_ns: u64) -> io::Result<()> {
        if now_ns() >= time_ns {
            return self.receive();
        }
        while now_ns() < time_ns {
            self.wait(time_ns)?;
        }
        Ok(())
    }

    /// Until something comes, or this time.
    fn wait(&mut self, time_ns: u64) -> io::Result<()> {
        let patience = Duration::from_nanos(time_ns.saturating_sub(now_ns()));
        if readable_within(self.socket, patience)? {
            self.receive()?;
        }
        Ok(())
    }

    fn request(&mut self, segment: usize, deadline_ns: u64) -> io::Result<()> {
        let number = self.requests.all.len() as u64;
        fill(&mut self.message, self.token, number);
        let sent_ns = now_ns();
        let taken = match self.socket.send(&self.message) {
            Ok(_) => true,
            Err(error) if is_passing(&error) => false,
            Err(error) => return Err(error),
        };
        self.requests.add(segment, sent_ns, taken);
        if segment > 0 {
            let late_ns = sent_ns.saturating_sub(deadline_ns);
            self.requests.lateness.record(late_ns);
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let count = match self.stamps.receive(self.socket) {
            Ok(count) => count,
            Err(error) if is_passing(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let here_ns = now_ns();
        for slot in 0..count {
            let one = self.stamps.received(slot);
            let kernels_ns = one.monotonic_ns(self.ahead.ns);
            let number = one
                .bytes
                .and_then(|bytes| payload(bytes, self.raw))
                .and_then(|payload| answered(payload, self.token));
            if let Some(number) = number {
                self.requests.answer(number, kernels_ns.unwrap_or(here_ns));
            }
        }
        Ok(())
    }

    fn tell(&self, settings: &Settings, start_ns: u64, report: &mut Report) -> Result<(), Failed> {
        let mut all = Histogram::default();
        let answers = self.requests.segments.iter();
        for (answers, segment) in answers.zip(&settings.schedule).skip(1) {
            all.merge(&answers.histogram);
            report.windows.push(Window {
                start_ns: start_ns + segment.start_ns,
                duration_ns: segment.duration_ns(),
                work: answers.offered,
                values: answers
                    .values(
                        answers.sending_ns(segment, start_ns),
                        settings.most_lost_percent,
                    )
                    .into_iter()
                    .collect(),
            });
        }
        if all.total() == 0 {
            return Err(Failed::new(
                "peer",
                format!(
                    "none of {} echo requests was answered in time, and {} were late",
                    self.requests.all.len(),
                    self.requests.late
                ),
                format!("peer {}", settings.peer),
                "see that the other end is up, answers (net.ipv4.icmp_echo_ignore_all) and has a way back",
            ));
        }
        report.histogram = Some(all.buckets().collect());
        self.note_losses(settings.most_lost_percent, report);
        report.fact("socket", if self.raw { "raw" } else { "datagram" });
        let stamps = if self.prepared.stamped {
            "kernel"
        } else {
            "program"
        };
        report.fact("stamps", stamps);
        report.fact("late", self.requests.late);
        lateness::tell(&self.requests.lateness, report);
        self.prove_answers(all.total(), report);
        self.prove_rate(settings, start_ns, report);
        lateness::prove(&self.requests.lateness, settings.most_short_percent, report);
        Ok(())
    }

    fn note_losses(&self, most_percent: f64, report: &mut Report) {
        let measured = self.requests.segments.iter().skip(1);
        let lossy = measured.filter(|one| one.lost_percent() > Some(most_percent));
        let (count, windows) = (lossy.count(), report.windows.len());
        if count > 0 {
            report.notes.push(format!(
                "in {count} of {windows} windows more than {most_percent} % of the requests were lost: no mean of the others is told"
            ));
        }
    }

    fn prove_answers(&self, answered: u64, report: &mut Report) {
        let requests = &self.requests;
        report.check(
            "no answer came twice",
            requests.twice == 0,
            format!("{} did", requests.twice),
        );
        report.check(
            "no answer came before its request went",
            requests.early == 0,
            format!("{} did", requests.early),
        );
        if let Some(overrun) = self.prepared.overrun() {
            report.check(
                "there was room for every answer",
                overrun == 0,
                format!("there was none for {overrun}"),
            );
        }
        let measured = requests.segments.iter().skip(1);
        let mean_ns = measured.map(|one| one.sum_ns as f64).sum::<f64>() / answered as f64;
        let moved_ns = self.ahead.moved_ns(Ahead::now());
        report.check(
            "the clock of the stamps was not moved",
            moved_ns as f64 <= mean_ns * MOST_MOVED_SHARE,
            format!("by {moved_ns} ns at least; a round trip takes {mean_ns:.0} ns"),
        );
    }

    fn prove_rate(&self, settings: &Settings, start_ns: u64, report: &mut Report) {
        let answers = self.requests.segments.iter();
        let pairs = answers.zip(&settings.schedule).skip(1);
        let worst = pairs
            .map(|(answers, segment)| {
                segment.duration_ns() as f64 / answers.sending_ns(segment, start_ns) as f64
            })
            .fold(1.0, f64::min);
        report.check(
            "the intended rate was held",
            (1.0 - worst) * 100.0 <= settings.most_short_percent,
            format!("{:.2} % of it", worst * 100.0),
        );
    }
}

impl Requests {
    fn new(settings: &Settings) -> Requests {
        let intended = settings.schedule.iter().filter_map(Segment::intended);
        Requests {
            all: Vec::with_capacity(intended.sum::<u64>() as usize),
            segments: vec![Answers::default(); settings.schedule.len()],
            lost_after_ns: settings.lost_after_ns,
            waiting: 0,
            late: 0,
            twice: 0,
            early: 0,
            lateness: Histogram::default(),
        }
    }

    fn add(&mut self, segment: usize, sent_ns: u64, taken: bool) {
        self.all.push(Request {
            segment,
            sent_ns,
            state: if taken {
                State::Waiting
            } else {
                State::Refused
            },
        });
        self.waiting += usize::from(taken);
        let answers = &mut self.segments[segment];
        answers.offered += 1;
        answers.refused += u64::from(!taken);
        answers.last_ns = sent_ns;
    }

    /// Note an answer. One that is later than `lost_after_ns` counts as lost: no time is known of those that never come,
    /// and the times of those that do must not depend on how long somebody listened.
    fn answer(&mut self, number: u64, arrival_ns: u64) {
        let request = usize::try_from(number)
            .ok()
            .and_then(|at| self.all.get_mut(at));
        let Some(request) = request.filter(|request| request.state != State::Refused) else {
            return;
        };
        if request.state == State::Answered {
            self.twice += 1;
            return;
        }
        request.state = State::Answered;
        self.waiting -= 1;
        let Some(took_ns) = arrival_ns.checked_sub(request.sent_ns) else {
            self.early += 1;
            return;
        };
        if took_ns > self.lost_after_ns {
            self.late += 1;
            return;
        }
        let answers = &mut self.segments[request.segment];
        answers.histogram.record(took_ns);
        answers.sum_ns += took_ns;
        answers.least_ns = Some(answers.least_ns.map_or(took_ns, |least| least.min(took_ns)));
    }
}

impl Answers {
    /// How long sending took: the segment's length, or longer where the last one departed after its end.
    fn sending_ns(&self, segment: &Segment, start_ns: u64) -> u64 {
        let begin_ns = start_ns + segment.start_ns;
        self.last_ns
            .saturating_sub(begin_ns)
            .max(segment.duration_ns())
    }

    /// How many got no answer in time; None where nothing was offered.
    fn lost_percent(&self) -> Option<f64> {
        let lost = self.offered - self.histogram.total();
        (self.offered > 0).then(|| 100.0 * lost as f64 / self.offered as f64)
    }

    /// What was lost is worse than any time: percentiles are of all requests, and those that lie among the lost ones
    /// are not told; nor is a mean where more than so much was lost, for it would be of the better ones.
    fn values(&self, sending_ns: u64, most_lost_percent: f64) -> Vec<(&'static str, f64)> {
        let (offered, answered) = (self.offered as f64, self.histogram.total() as f64);
        let mut values = vec![("offered_packets_per_s", offered * 1e9 / sending_ns as f64)];
        values.extend(self.lost_percent().map(|percent| ("lost_percent", percent)));
        let Some(least_ns) = self.least_ns else {
            return values;
        };
        values.push(("round_trip_min_us", least_ns as f64 / 1000.0));
        for (name, share) in [("round_trip_p50_us", 0.5), ("round_trip_p99_us", 0.99)] {
            let rank = share * offered;
            if rank <= answered {
                values.push((name, quantile_us(&self.histogram, rank / answered)));
            }
        }
        if self.lost_percent() <= Some(most_lost_percent) {
            let mean_ns = self.sum_ns as f64 / answered;
            values.push(("round_trip_mean_us", mean_ns / 1000.0));
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn report(words: &str) -> Result<Report, Failed> {
        crate::reported(run, words)
    }

    fn requests(lost_after_ns: u64) -> Requests {
        let words = format!("--peer 127.0.0.1 --lost-after-ns {lost_after_ns} --windows 2");
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        Requests::new(&Settings::from(&mut Arguments::parse(&words).unwrap()))
    }

    #[test]
    fn an_answer_after_its_time_is_lost() {
        let mut requests = requests(1_000_000);
        for sent_ns in [5_000_000, 6_000_000, 7_000_000] {
            requests.add(1, sent_ns, true);
        }
        requests.add(2, 8_000_000, false);
        requests.answer(0, 6_000_000); // just in time
        requests.answer(1, 7_000_001);
        requests.answer(1, 7_000_002);
        requests.answer(3, 8_000_001); // to one that never went
        requests.answer(u64::MAX, 0);
        requests.answer(2, 6_999_999); // before it went
        let answers = &requests.segments[1];
        assert_eq!((answers.offered, answers.histogram.total()), (3, 1));
        assert_eq!(answers.sum_ns, 1_000_000);
        assert_eq!((requests.late, requests.twice, requests.early), (1, 1, 1));
        assert_eq!(requests.waiting, 0);
        let lost = answers.values(1, 0.1)[1];
        assert_eq!(lost.0, "lost_percent");
        assert!((lost.1 - 200.0 / 3.0).abs() < 1e-9);
    }

    /// So many requests, of which so many are answered: the first after 1 us, the second after 2, and so on.
    fn told(offered: u64, answered: u64) -> std::collections::BTreeMap<&'static str, f64> {
        let mut requests = requests(1_000_000_000);
        for number in 0..offered {
            requests.add(1, 0, true);
            if number < answered {
                requests.answer(number, (number + 1) * 1000);
            }
        }
        let values = requests.segments[1].values(1_000_000_000, 0.1);
        values.into_iter().collect()
    }

    #[test]
    fn of_the_few_that_got_through_no_mean_is_told() {
        let (one_of_1000, two_of_1000) = (told(1000, 999), told(1000, 998));
        assert_eq!(one_of_1000["round_trip_mean_us"], 500.0);
        assert!(!two_of_1000.contains_key("round_trip_mean_us"));
        assert_eq!(two_of_1000["lost_percent"], 0.2);
        assert_eq!(told(1000, 0).len(), 2, "what was offered, and lost");
    }

    #[test]
    fn a_percentile_is_of_all_requests_and_none_lies_among_the_lost() {
        let (most, half, few) = (told(1000, 995), told(1000, 500), told(1000, 100));
        for (values, name, told_us) in [
            (&most, "round_trip_p50_us", Some(500.0)),
            (&most, "round_trip_p99_us", Some(990.0)),
            (&half, "round_trip_p50_us", Some(500.0)),
            (&half, "round_trip_p99_us", None),
            (&few, "round_trip_p50_us", None),
            (&few, "round_trip_min_us", Some(1.0)),
        ] {
            let value_us = values.get(name).copied();
            assert_eq!(value_us.is_some(), told_us.is_some(), "{name}");
            let apart_us = value_us.unwrap_or(0.0) - told_us.unwrap_or(0.0);
            assert!(apart_us.abs() < 0.01 * 990.0, "{name}: {value_us:?}");
        }
    }

    proptest! {
        #[test]
        fn answers_to_anything_at_any_time_do_no_harm(answers in prop::collection::vec((0..6_u64, any::<u64>()), 0..20)) {
            let mut requests = requests(1_000_000);
            for number in 0..4 {
                requests.add(1, number, number > 0);
            }
            for (number, arrival_ns) in answers {
                requests.answer(number, arrival_ns);
            }
            let one = &requests.segments[1];
            let (in_time, waiting) = (one.histogram.total(), requests.waiting as u64);
            prop_assert_eq!(in_time + requests.late + requests.early + waiting + one.refused, one.offered);
        }
    }

    /// Without the permission to send echo requests this fails, and says what gives it.
    #[test]
    fn every_request_is_answered_once() {
        let report = report(
            "--peer 127.0.0.1 --packets-per-s 1000 --windows 2 --time-ns 20000000 --warm-up-ns 2000000 \
             --most-short-percent 100 --lost-after-ns 60000000000",
        )
        .unwrap_or_else(|failed| panic!("{}", failed.printed(false)));
        assert!(
            report.checks.iter().all(|check| check.passed),
            "{:?}",
            report.checks
        );
        for window in &report.windows {
            assert_eq!((window.work, window.values["lost_percent"]), (20, 0.0));
            assert!(window.values["round_trip_min_us"] <= window.values["round_trip_mean_us"]);
        }
        assert_eq!(
            report
                .histogram
                .unwrap()
                .iter()
                .map(|bucket| bucket.2)
                .sum::<u64>(),
            40
        );
    }

    /// A pinger that was stopped takes the answers that are there as it catches up, and says that it was late.
    #[test]
    fn one_that_is_behind_takes_what_is_there_and_is_late() {
        let words =
            "--peer 127.0.0.1 --packets-per-s 1000 --windows 1 --time-ns 100000000 --warm-up-ns 0";
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let settings = Settings::from(&mut Arguments::parse(&words).unwrap());
        let (socket, raw) =
            connected(&settings).unwrap_or_else(|failed| panic!("{}", failed.printed(false)));
        let mut pinger = Pinger::new(&socket, raw, &settings);
        let overdue_ns = now_ns() - 300_000_000;
        let begun = std::time::Instant::now();
        for _ in 0..50 {
            pinger.request(1, overdue_ns).unwrap();
            // The loopback answers at once, but for a kernel that is busy; a raw socket hears the request too, and
            // whatever others ask each other meanwhile.
            while pinger.requests.waiting > 0 {
                let waited = begun.elapsed();
                assert!(
                    waited < Duration::from_secs(900),
                    "a failure instead of a hang"
                );
                readable_within(&socket, Duration::from_secs(60)).unwrap();
                pinger.answers_until(overdue_ns).unwrap();
            }
        }
        let mut report = Report::of(&[]);
        let start_ns = pinger.requests.all[0].sent_ns;
        pinger.tell(&settings, start_ns, &mut report).unwrap();
        let failed = report.checks.iter().filter(|check| !check.passed);
        let failed: Vec<_> = failed.map(|check| check.name).collect();
        assert!(failed.contains(&"departures were on time"), "{failed:?}");
        assert!(!failed.contains(&"there was room for every answer"));
    }

    #[test]
    fn no_rate_and_no_address_are_complained_of() {
        for wrong in [
            "--peer here",
            "--peer 127.0.0.1 --packets-per-s 0",
            "--peer 127.0.0.1 --packets-per-s inf",
            "--peer 127.0.0.1 --packets-per-s 1e300",
            "--peer 127.0.0.1 --packets-per-s 1e9",
            "--peer 127.0.0.1 --start-ns 18446744073709551615",
            "--peer 127.0.0.1 --lost-after-ns 18446744073709551615",
            "--peer 127.0.0.1 --size-bytes 15",
            "--peer 127.0.0.1 --size-bytes 65508",
        ] {
            let words: Vec<String> = wrong.split(' ').map(str::to_owned).collect();
            let mut arguments = Arguments::parse(&words).unwrap();
            Settings::from(&mut arguments);
            assert!(arguments.complaint().is_some(), "{wrong}");
        }
    }
}
