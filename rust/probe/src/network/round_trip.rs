//! How long an answer takes: one message out, the same back, one under way at a time (Netperf's TCP_RR and UDP_RR).

use std::cell::RefCell;
use std::io::{self, ErrorKind, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use virtoll_wire::hist::Histogram;

use super::effort::{Effort, Since};
use super::meeting::meet;
use super::sockets::{receive, Wait};
use super::wire::{Greeting, Role};
use super::{quantile_us, Line};
use crate::arguments::Arguments;
use crate::report::{Failed, Report};
use crate::windows::{now_ns, Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "round-trip",
    summary: "a message to the peer and back, one at a time: the time it takes",
    usage: "--peer ADDRESS:PORT [--protocol tcp|udp] [--size-bytes 1] [--wait block|spin] [--patience-ns 10000000000]
       [--lost-after-ns 1000000000] [--most-lost-percent 0.1]",
    run,
};

/// So many datagrams in a row that do not come back are a peer that is gone.
const MOST_LOST_IN_A_ROW: u64 = 10;

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let line = Line::from(arguments);
    let udp = arguments.one_of("protocol", &["tcp", "udp"]) == "udp";
    let size_bytes = super::size(arguments, 1, 1, udp);
    let spins = arguments.one_of("wait", &["block", "spin"]) == "spin";
    let lost_after =
        Duration::from_nanos(arguments.at_least("lost-after-ns", 1_000_000, 1_000_000_000));
    let most_lost_percent = arguments.get("most-lost-percent", 0.1);
    let mut units = vec![
        ("transactions_per_s", "/s"),
        ("round_trip_p50_us", "us"),
        ("round_trip_p99_us", "us"),
        ("round_trip_mean_us", "us"),
    ];
    if udp {
        units.push(("lost_percent", "%"));
    }
    let mut report = Report::of(&units);
    if !arguments.are_right() {
        return Ok(report);
    }
    let link = if udp {
        Link::datagrams(&line, size_bytes, lost_after)?
    } else {
        Link::Stream(line.connect(Greeting::new(Role::Echo, size_bytes))?)
    };
    let wait = if spins {
        Wait::Spin(if udp { lost_after } else { line.patience })
    } else {
        Wait::Block
    };
    let exchange = RefCell::new(Exchange::new(link, wait, size_bytes as usize));
    let all = RefCell::new(Tried::default());
    report.windows = windows.measure(
        &mut report.notes,
        |transactions| exchange.borrow_mut().run(&line, transactions),
        |transactions, span| {
            let exchange = exchange.borrow();
            all.borrow_mut().add(&exchange.tried);
            exchange.tried.values(transactions, span, udp)
        },
    )?;
    let all = all.into_inner();
    all.effort.tell(&mut report);
    all.prove(&mut report, udp.then_some(most_lost_percent));
    report.histogram = Some(all.histogram.buckets().collect());
    Ok(report)
}

/// The way to the peer and back.
enum Link {
    Stream(TcpStream),
    Datagrams {
        socket: UdpSocket,
        lost_after: Duration,
        _held: TcpStream,
    },
}

impl Link {
    fn datagrams(line: &Line, size_bytes: u64, lost_after: Duration) -> Result<Link, Failed> {
        let (control, socket) = meet(line, Greeting::new(Role::EchoDatagrams, size_bytes))?;
        socket
            .set_read_timeout(Some(lost_after))
            .map_err(|error| Failed::system("SO_RCVTIMEO", &error))?;
        Ok(Link::Datagrams {
            socket,
            lost_after,
            _held: control,
        })
    }
}

/// What one window tried, and what came of it.
#[derive(Default)]
struct Tried {
    sent: u64,
    lost: u64,
    /// Datagrams that were not the one waited for: answers after their time.
    late: u64,
    wrong: u64,
    total_ns: u64,
    effort: Effort,
    histogram: Histogram,
}

impl Tried {
    fn add(&mut self, window: &Tried) {
        self.sent += window.sent;
        self.lost += window.lost;
        self.late += window.late;
        self.wrong += window.wrong;
        self.total_ns += window.total_ns;
        self.effort.add(window.effort);
        self.histogram.merge(&window.histogram);
    }

    fn values(&self, transactions: u64, span: Span, udp: bool) -> Vec<(&'static str, f64)> {
        let answered = self.histogram.total();
        let mut values = vec![(
            "transactions_per_s",
            answered as f64 * 1e9 / span.duration_ns() as f64,
        )];
        if answered > 0 {
            values.extend([
                ("round_trip_p50_us", quantile_us(&self.histogram, 0.5)),
                ("round_trip_p99_us", quantile_us(&self.histogram, 0.99)),
                (
                    "round_trip_mean_us",
                    self.total_ns as f64 / answered as f64 / 1000.0,
                ),
            ]);
        }
        if udp {
            values.push((
                "lost_percent",
                100.0 * self.lost as f64 / transactions as f64,
            ));
        }
        values
    }

    /// Over TCP every answer comes, and must be right; over UDP only a right one is an answer, and some may be lost.
    fn prove(&self, report: &mut Report, most_lost_percent: Option<f64>) {
        let Some(most_percent) = most_lost_percent else {
            return report.check(
                "every answer was its request",
                self.wrong == 0,
                format!("{} of {} were other bytes", self.wrong, self.sent),
            );
        };
        let percent = 100.0 * self.lost as f64 / self.sent.max(1) as f64;
        report.check(
            "hardly a datagram was lost",
            percent <= most_percent,
            format!(
                "{} of {}, {percent:.3} % (at most {most_percent} %)",
                self.lost, self.sent
            ),
        );
        report.fact("lost", self.lost);
        report.fact("late", self.late);
    }
}

/// One client, whose messages are numbered so that no answer is taken for another.
struct Exchange {
    link: Link,
    wait: Wait,
    message: Vec<u8>,
    answer: Vec<u8>,
    number: u64,
    lost_in_a_row: u64,
    tried: Tried,
}

impl Exchange {
    fn new(link: Link, wait: Wait, size_bytes: usize) -> Exchange {
        Exchange {
            link,
            wait,
            message: super::stream::message(size_bytes),
            answer: vec![1; size_bytes + 1], // so that a longer datagram shows
            number: 0,
            lost_in_a_row: 0,
            tried: Tried::default(),
        }
    }

    /// So many transactions, one after the other: each begins when the one before has ended.
    fn run(&mut self, line: &Line, transactions: u64) -> Result<Span, Failed> {
        self.tried = Tried::default();
        let since = Since::now();
        let start_ns = now_ns();
        let mut last_ns = start_ns;
        for _ in 0..transactions {
            let answered = self
                .once()
                .map_err(|error| line.lost("no answer", &error))?;
            let end_ns = now_ns();
            self.tried.sent += 1;
            if answered {
                self.tried.histogram.record(end_ns - last_ns);
                self.tried.total_ns += end_ns - last_ns;
                self.lost_in_a_row = 0;
            } else {
                self.tried.lost += 1;
                self.lost_in_a_row += 1;
            }
            if self.lost_in_a_row == MOST_LOST_IN_A_ROW {
                let what = format!("no answer to {MOST_LOST_IN_A_ROW} datagrams in a row");
                return Err(line.lost(&what, &ErrorKind::TimedOut.into()));
            }
            last_ns = end_ns;
        }
        self.tried.effort = since.until(last_ns);
        Ok(Span {
            start_ns,
            end_ns: last_ns,
        })
    }

    /// One message; whether its answer came in time.
    fn once(&mut self) -> io::Result<bool> {
        self.number += 1;
        let stamped = self.message.len().min(8);
        self.message[..stamped].copy_from_slice(&self.number.to_le_bytes()[..stamped]);
        match &self.link {
            Link::Stream(stream) => {
                (&mut &*stream).write_all(&self.message)?;
                let answer = &mut self.answer[..self.message.len()];
                let mut got = 0;
                while got < answer.len() {
                    match receive(stream, &mut answer[got..], &self.wait)? {
                        0 => return Err(ErrorKind::UnexpectedEof.into()),
                        more => got += more,
                    }
                }
                self.tried.wrong += u64::from(*answer != *self.message);
                Ok(true)
            }
            Link::Datagrams {
                socket, lost_after, ..
            } => {
                socket.send(&self.message)?;
                let sent_ns = now_ns();
                let is_late = || u128::from(now_ns() - sent_ns) > lost_after.as_nanos();
                loop {
                    match receive(socket, &mut self.answer, &self.wait) {
                        Ok(length) if self.answer[..length] == *self.message => {
                            return Ok(!is_late());
                        }
                        // However many others come: each begins the socket's time-out anew.
                        Ok(_) if is_late() => return Ok(false),
                        Ok(_) => self.tried.late += 1,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::effort::with_effort;
    use crate::network::peer::{on_loopback, PATIENCE};
    use crate::report::Window;
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;

    fn report(words: &str) -> Result<Report, Failed> {
        crate::reported(run, words)
    }

    #[test]
    fn both_protocols_and_both_ways_to_wait() {
        for protocol in ["tcp", "udp"] {
            for (wait, size_bytes) in [("block", 1), ("block", 5000), ("spin", 64)] {
                let report = with_effort(|| {
                    report(&format!(
                        "--peer {} --protocol {protocol} --size-bytes {size_bytes} --wait {wait} --windows 2 \
                         --work 50 --most-lost-percent 100 {PATIENCE}",
                        on_loopback()
                    ))
.unwrap()
                });
                let answered: u64 = report
                    .histogram
                    .unwrap()
                    .iter()
                    .map(|bucket| bucket.2)
                    .sum();
                // The loopback's own queue may have no room on a busy machine: what is lost is told as that.
                let work: u64 = report.windows.iter().map(|window| window.work).sum();
                let percents = |window: &Window| window.values.get("lost_percent").copied();
                let lost = |window| percents(window).unwrap_or(0.0) * window.work as f64 / 100.0;
                let lost: f64 = report.windows.iter().map(lost).sum();
                assert!((answered as f64 + lost - work as f64).abs() < 1e-6);
                let median = report.windows[0].values.get("round_trip_p50_us");
                assert!(median.is_none_or(|median| *median > 0.0));
            }
        }
    }

    #[test]
    fn too_many_losses_fail_their_check_and_other_answers_are_none() {
        let passed = |lost, sent| {
            let tried = Tried {
                lost,
                sent,
                ..Tried::default()
            };
            let mut report = Report::default();
            tried.prove(&mut report, Some(0.1));
            report.checks[0].passed
        };
        assert!(passed(0, 0) && passed(1, 1000) && !passed(2, 1000));
    }

    #[test]
    fn datagrams_of_others_without_end_are_no_answer() {
        let (near, far) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let lost_after = Duration::from_millis(20);
        near.set_read_timeout(Some(lost_after)).unwrap();
        let link = Link::Datagrams {
            socket: near,
            lost_after,
            _held: TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
        };
        let over = AtomicBool::new(false);
        let mut exchange = Exchange::new(link, Wait::Block, 16); // its socket outlives who sends to it
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    far.send(&[1; 100]).unwrap();
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let answered = exchange.once();
            over.store(true, Relaxed);
            assert!(!answered.unwrap());
        });
    }

    #[test]
    fn wrong_answers_are_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut bytes = [0; 16];
            stream.read_exact(&mut bytes).unwrap();
            while stream.read_exact(&mut bytes).is_ok() {
                bytes[15] ^= 1;
                stream.write_all(&bytes).unwrap();
            }
        });
        let report = report(&format!(
            "--peer {address} --size-bytes 16 --windows 1 --work 10 {PATIENCE}"
        ))
        .unwrap();
        assert!(!report.checks[0].passed);
    }

    #[test]
    fn a_peer_that_goes_away_or_falls_silent_is_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = format!(
            "--peer {} --windows 1 --work 10",
            listener.local_addr().unwrap()
        );
        let silent = report(&format!("{peer} --patience-ns 20000000")).unwrap_err();
        thread::spawn(move || {
            let _silent = listener.accept();
            listener.accept().map(drop)
        });
        let gone = report(&peer).unwrap_err();
        assert_eq!((silent.kind, gone.kind), ("peer", "peer"));
        assert!(silent.what.contains("nothing for"), "{}", silent.what);
    }
}
