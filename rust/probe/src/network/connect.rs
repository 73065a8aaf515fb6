//! How fast connections are made: connect, one message and its answer, close (Netperf's TCP_CRR).
//!
//! The client closes with a reset (SO_LINGER of 0 s): its port is free at once, and neither end keeps the connection in
//! TIME_WAIT, so a window has as many connections as it has time for and leaves nothing to the next. Netperf takes
//! turns through a range of ports instead, and closes in order.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::SocketAddrV4;

use virtoll_wire::hist::Histogram;

use super::effort::{Effort, Since};
use super::sockets::connect_briefly;
use super::wire::{Greeting, Role, GREETING_BYTES};
use super::{quantile_us, Line};
use crate::arguments::Arguments;
use crate::report::{Failed, Report};
use crate::windows::{now_ns, Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "connect",
    summary: "connect to the peer, one message and its answer, close: how often a second",
    usage: "--peer ADDRESS:PORT [--size-bytes 1] [--patience-ns 10000000000]",
    run,
};

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let line = Line::from(arguments);
    let size_bytes = super::size(arguments, 1, 1, false);
    let mut report = Report::of(&[
        ("connections_per_s", "/s"),
        ("connection_p50_us", "us"),
        ("connection_p99_us", "us"),
    ]);
    if !arguments.are_right() {
        return Ok(report);
    }
    let client = RefCell::new(Client::new(line.address, size_bytes));
    let all = RefCell::new((Histogram::default(), 0_u64, Effort::default()));
    report.windows = windows.measure(
        &mut report.notes,
        |connections| {
            let outcome = client.borrow_mut().run(&line, connections);
            outcome.map_err(|error| line.lost("no connection with an answer", &error))
        },
        |connections, span| {
            let client = client.borrow();
            let (histogram, wrong, effort) = &mut *all.borrow_mut();
            histogram.merge(&client.histogram);
            *wrong += client.wrong;
            effort.add(client.effort);
            vec![
                (
                    "connections_per_s",
                    connections as f64 * 1e9 / span.duration_ns() as f64,
                ),
                ("connection_p50_us", quantile_us(&client.histogram, 0.5)),
                ("connection_p99_us", quantile_us(&client.histogram, 0.99)),
            ]
        },
    )?;
    let (histogram, wrong, effort) = all.into_inner();
    effort.tell(&mut report);
    report.check(
        "every answer was its request",
        wrong == 0,
        format!("{wrong} of {} were other bytes", histogram.total()),
    );
    report.fact("closed_by", "reset");
    report.histogram = Some(histogram.buckets().collect());
    Ok(report)
}

struct Client {
    address: SocketAddrV4,
    request: Vec<u8>, // greeting and message
    answer: Vec<u8>,
    histogram: Histogram,
    wrong: u64,
    effort: Effort,
}

impl Client {
    fn new(address: SocketAddrV4, size_bytes: u64) -> Client {
        let mut request = Greeting::new(Role::Once, size_bytes).bytes().to_vec();
        request.extend(super::stream::message(size_bytes as usize));
        Client {
            address,
            request,
            answer: vec![1; size_bytes as usize],
            histogram: Histogram::default(),
            wrong: 0,
            effort: Effort::default(),
        }
    }

    /// So many connections, one after the other; each one's time runs from the end of the one before.
    fn run(&mut self, line: &Line, connections: u64) -> io::Result<Span> {
        self.histogram = Histogram::default();
        self.wrong = 0;
        let since = Since::now();
        let start_ns = now_ns();
        let mut last_ns = start_ns;
        for number in 0..connections {
            self.request[GREETING_BYTES] = number as u8;
            let mut stream = connect_briefly(self.address, line.patience)?;
            stream.write_all(&self.request)?;
            stream.read_exact(&mut self.answer)?;
            self.wrong += u64::from(self.answer != self.request[GREETING_BYTES..]);
            drop(stream);
            let end_ns = now_ns();
            self.histogram.record(end_ns - last_ns);
            last_ns = end_ns;
        }
        self.effort = since.until(last_ns);
        Ok(Span {
            start_ns,
            end_ns: last_ns,
        })
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
    fn every_connection_is_counted_and_answered() {
        let report = with_effort(|| {
            report(&format!(
                "--peer {} --size-bytes 100 --windows 2 --work 20 {PATIENCE}",
                on_loopback()
            ))
            .unwrap()
        });
        let counted: u64 = report
            .histogram
            .unwrap()
            .iter()
            .map(|bucket| bucket.2)
            .sum();
        assert_eq!(
            counted,
            report.windows.iter().map(|window| window.work).sum::<u64>()
        );
    }

    #[test]
    fn a_wrong_answer_is_noticed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut bytes = [0; GREETING_BYTES + 2];
                stream.read_exact(&mut bytes).unwrap();
                stream
                    .write_all(&[bytes[GREETING_BYTES], !bytes[GREETING_BYTES + 1]])
                    .unwrap();
            }
        });
        let report = report(&format!(
            "--peer {address} --size-bytes 2 --windows 1 --work 1 {PATIENCE}"
        ))
        .unwrap();
        assert!(!report.checks[0].passed);
    }

    #[test]
    fn a_peer_that_is_not_there_is_a_failure() {
        let (_held, address) = crate::network::sockets::refusing().unwrap();
        assert_eq!(
            report(&format!("--peer {address}")).unwrap_err().kind,
            "peer"
        );
    }
}
