//! What the agent does while an operation waits: it ends when told to, and keeps no more than it may.

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use virtoll_wire::protocol::LONGEST_REQUEST_BYTES;

const WAITS: &str = r#"{"id":2,"op":{"run":{"argv":["sleep","86399"],"stdin":"","timeout_ms":86400000,"env":null,"cwd":"","user":""}}}"#;
const PATIENCE: Duration = Duration::from_secs(300);

struct Session {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Session {
    fn start() -> Session {
        let (process, input, output) = common::serve();
        let mut session = Session {
            process,
            input: Some(input),
            output,
        };
        session.send(r#"{"id":1,"op":{"hello":{"protocol":4}}}"#);
        while !session.line().starts_with(r#"{"id":1,"ok""#) {}
        session
    }

    fn send(&mut self, request: &str) {
        writeln!(self.input(), "{request}").unwrap();
    }

    fn input(&mut self) -> &mut ChildStdin {
        self.input.as_mut().unwrap()
    }

    /// Send what goes at once; how much that was.
    fn offer(&mut self, bytes: &[u8]) -> usize {
        // SAFETY: sets a flag of a descriptor that we own.
        unsafe { libc::fcntl(self.input().as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let sent = self.input().write(bytes);
        // SAFETY: as above.
        unsafe { libc::fcntl(self.input().as_raw_fd(), libc::F_SETFL, 0) };
        sent.unwrap_or_else(|error| {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            0
        })
    }

    /// Let it wait for a command that does not end; its number.
    fn wait_for_a_command(&mut self) -> i32 {
        self.send(WAITS);
        until("it runs", || self.count("children").len() == 1);
        self.count("children")[0].parse().unwrap()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0);
        line
    }

    /// The children of the agent, and its threads.
    fn count(&self, what: &str) -> Vec<String> {
        let pid = self.process.id();
        let names = |path: String| {
            let entries = std::fs::read_dir(path).unwrap().flatten();
            entries.map(|entry| entry.file_name().into_string().unwrap())
        };
        if what == "threads" {
            return names(format!("/proc/{pid}/task")).collect();
        }
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).unwrap();
        children.split_whitespace().map(str::to_owned).collect()
    }

    fn ends(&mut self) {
        let mut code = None;
        until("it ends", || {
            code = self.process.try_wait().unwrap();
            code.is_some()
        });
        assert_eq!(code.unwrap().code(), Some(0));
    }

    fn state(&self) -> String {
        let path = format!("/proc/{}/stat", self.process.id());
        let stat = std::fs::read_to_string(path).unwrap();
        let rest = stat.rsplit_once(") ").unwrap().1;
        rest.split(' ').next().unwrap().to_owned()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < give_up, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An agent that is busy with `request`, of which it has a child or threads, is told to end: it does, and they too.
fn ends_when_told(signal: i32, request: &str, busy_with: &str, least: usize) {
    let mut session = Session::start();
    session.send(request);
    until("it begins", || session.count(busy_with).len() >= least);
    let started = session.count("children");
    // SAFETY: sends a signal to our own child.
    unsafe { libc::kill(session.process.id() as i32, signal) };
    session.ends();
    for pid in started {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        assert!(!stat.is_ok_and(|line| line.contains("86399")), "{pid}");
    }
}

#[test]
fn told_to_end_while_a_command_runs_it_ends_with_the_command() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        ends_when_told(signal, WAITS, "children", 1);
    }
}

#[test]
fn told_to_end_while_it_burns_it_ends() {
    let request = r#"{"id":2,"op":{"burn":{"threads":1,"duration_ms":3600000}}}"#;
    ends_when_told(libc::SIGTERM, request, "threads", 2);
}

#[test]
fn what_comes_while_an_operation_waits_has_its_bound() {
    let mut session = Session::start();
    let command = session.wait_for_a_command();
    let text = "x".repeat(1 << 20);
    let line = format!("{{\"id\":3,\"op\":{{\"part\":{{\"text\":\"{text}\"}}}}}}\n");
    let (lines, mut sent) = (line.repeat(16), 0);
    until("the agent takes no more", || {
        assert!(sent < lines.len(), "it took {sent} bytes");
        let sleeps = session.state() == "S";
        let count = session.offer(&lines.as_bytes()[sent..]);
        sent += count;
        sleeps && count == 0 // the pipe was full already, and yet the agent was asleep
    });
    assert!(sent > LONGEST_REQUEST_BYTES && sent < LONGEST_REQUEST_BYTES + (2 << 20));
    // It still takes them all once the command has ended.
    // SAFETY: sends a signal to the command, which the agent has not reaped: it was just seen to be its child.
    unsafe { libc::kill(command, libc::SIGKILL) };
    assert!(session.line().starts_with(r#"{"id":2,"ok""#));
    let rest = &lines.as_bytes()[sent..];
    session.input().write_all(rest).unwrap();
    for _ in 0..16 {
        assert!(session.line().starts_with(r#"{"id":3,"#));
    }
}

#[test]
fn the_end_of_the_stream_is_seen_where_no_more_is_taken() {
    let mut session = Session::start();
    session.wait_for_a_command();
    let (noise, mut sent) = (vec![b'x'; 1 << 16], 0);
    until("enough is sent", || {
        sent += session.offer(&noise);
        sent > LONGEST_REQUEST_BYTES + (1 << 20)
            || session.state() == "S" && session.offer(&noise) == 0
    });
    drop(session.input.take());
    session.ends();
}
