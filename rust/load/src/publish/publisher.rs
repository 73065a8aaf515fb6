//! The streams that are published, and the loop that serves them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libc::{EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP};
use virtoll_generator::sys::{self, CpuTime, Epoll};
use virtoll_generator::{is_own_limit, Failed};

use super::line::Line;
use super::{say, Publication, Report};
use crate::tally::Failure;

const MS: i64 = 1_000_000;
const EVENTS_MAX: usize = 64;
/// What still is to be sent at the end may take so long.
const FAREWELL_NS: i64 = 200_000_000;
const INTEREST: u32 = (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) as u32;

pub struct Publisher<'a> {
    publication: &'a Publication,
    epoll: Epoll,
    input: OwnedFd,
    streams: Vec<Stream<'a>>,
    timers: BinaryHeap<Reverse<(i64, usize)>>,
    report: Report,
    cpu: CpuTime,
    /// All streams have been taken once.
    is_ready: bool,
}

struct Stream<'a> {
    publication: &'a Publication,
    state: State<'a>,
    /// Its timer; `i64::MAX`: none.
    armed_ns: i64,
}

enum State<'a> {
    /// Nothing is published before this time.
    Rests(i64),
    Speaks(Box<Line<'a>>),
}

impl<'a> Publisher<'a> {
    pub fn new(publication: &'a Publication) -> Result<Self, Failed> {
        sys::raise_open_files(publication.count() as u64 + 64)
            .map_err(|error| Failed::own_limit(&error))?;
        let epoll = Epoll::new().map_err(|error| Failed::system("epoll_create1", &error))?;
        let input = io::stdin().as_fd().try_clone_to_owned();
        let input = input.map_err(|error| Failed::system("dup", &error))?;
        let stream = |_| Stream {
            publication,
            state: State::Rests(0),
            armed_ns: 0,
        };
        Ok(Publisher {
            publication,
            epoll,
            input,
            streams: (0..publication.count()).map(stream).collect(),
            timers: (0..publication.count())
                .map(|index| Reverse((0, index)))
                .collect(),
            report: Report {
                start_ns: sys::now_ns(),
                ..Report::default()
            },
            cpu: CpuTime::of_thread(),
            is_ready: false,
        })
    }

    /// Publish until standard input ends.
    pub fn run(mut self) -> Result<Report, Failed> {
        sys::no_timer_slack();
        let own = self.streams.len();
        let watched = self
            .epoll
            .add(&self.input, EPOLLIN as u32, sys::tag(own, &self.input));
        watched
            .map_err(|error| Failed::system("epoll_ctl: standard input must be a pipe", &error))?;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        loop {
            let wake_ns = self.on_timers()?;
            self.get_ready()?;
            let timeout_ns = wake_ns.saturating_sub(sys::now_ns());
            let count = self.epoll.wait(&mut events, timeout_ns);
            let count = count.map_err(|error| Failed::system("epoll_pwait2", &error))?;
            for event in &events[..count] {
                let (index, raw_fd) = sys::untag(event.u64);
                if index == own {
                    if self.asked()? {
                        return Ok(self.farewell());
                    }
                } else {
                    self.hear(index, raw_fd);
                    self.turn(index)?;
                }
            }
        }
    }

    /// Let the streams have their turns that are due; when the next is.
    fn on_timers(&mut self) -> Result<i64, Failed> {
        let now_ns = sys::now_ns();
        while let Some(Reverse((due_ns, index))) = self.timers.peek().copied() {
            if due_ns > now_ns {
                return Ok(due_ns);
            }
            self.timers.pop();
            if self.streams[index].armed_ns == due_ns {
                self.streams[index].armed_ns = i64::MAX;
                self.turn(index)?;
            }
        }
        Ok(i64::MAX)
    }

    /// Let a stream do what it can, and set its timer.
    fn turn(&mut self, index: usize) -> Result<(), Failed> {
        let due_ns = self.step(index)?;
        if self.streams[index].armed_ns != due_ns {
            self.streams[index].armed_ns = due_ns;
            self.timers.push(Reverse((due_ns, index)));
        }
        Ok(())
    }

    /// Let a stream send what is due; when it has something to do again.
    fn step(&mut self, index: usize) -> Result<i64, Failed> {
        let now_ns = sys::now_ns();
        let stream = &mut self.streams[index];
        if let State::Rests(until_ns) = stream.state {
            if until_ns > now_ns {
                return Ok(until_ns);
            }
            match stream.connect(&self.epoll, index) {
                Ok(()) => {}
                Err(error) if is_own_limit(&error) => return Err(Failed::own_limit(&error)),
                Err(_) => return Ok(self.fail(index, Failure::Connect)),
            }
        }
        let publication = self.publication;
        let State::Speaks(line) = &mut self.streams[index].state else {
            return Ok(now_ns);
        };
        let due_ns = line.send_due(publication, &mut self.report);
        match line.flush(publication.patience_ns) {
            Ok(patient_ns) => Ok(due_ns.min(patient_ns)),
            Err(failure) => Ok(self.fail(index, failure)),
        }
    }

    /// Something came for a stream.
    fn hear(&mut self, index: usize, raw_fd: i32) {
        let stream = &mut self.streams[index];
        let State::Speaks(line) = &mut stream.state else {
            return;
        };
        if line.fd.as_raw_fd() == raw_fd {
            if let Err(failure) = line.hear(self.publication) {
                self.fail(index, failure);
            }
        }
    }

    fn fail(&mut self, index: usize, failure: Failure) -> i64 {
        self.report.failed(failure);
        let until_ns = sys::now_ns() + self.publication.rest_ns;
        self.streams[index].state = State::Rests(until_ns);
        until_ns
    }

    fn published(&self) -> usize {
        let is_published = |stream: &&Stream| match &stream.state {
            State::Speaks(line) => line.is_published(),
            State::Rests(_) => false,
        };
        self.streams.iter().filter(is_published).count()
    }

    /// Say so once all streams are taken; what cannot be published at all is no publication.
    fn get_ready(&mut self) -> Result<(), Failed> {
        if self.is_ready {
            return Ok(());
        }
        if self.published() == self.streams.len() {
            self.is_ready = true;
            let report = self.told();
            return say(&report);
        }
        let waited_ns = sys::now_ns() - self.report.start_ns;
        if waited_ns <= self.publication.patience_ns {
            return Ok(());
        }
        let failures: Vec<String> = self
            .report
            .failures
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        Err(Failed(format!(
            "{} takes {} of {} streams within {} s ({}); look into the server's log",
            self.publication.url(),
            self.published(),
            self.streams.len(),
            self.publication.patience_ns as f64 / 1e9,
            if failures.is_empty() {
                "none failed".into()
            } else {
                failures.join(", ")
            },
        )))
    }

    /// The report since the last one, which begins another.
    fn told(&mut self) -> Report {
        let (now_ns, cpu) = (sys::now_ns(), CpuTime::of_thread());
        let used = cpu.since(std::mem::replace(&mut self.cpu, cpu));
        let next = Report {
            start_ns: now_ns,
            ..Report::default()
        };
        let report = std::mem::replace(&mut self.report, next);
        Report {
            end_ns: now_ns,
            published: self.published(),
            cpu_user_ns: used.user_ns,
            cpu_system_ns: used.system_ns,
            ..report
        }
    }

    /// Standard input says something: each line is answered; whether it has ended.
    fn asked(&mut self) -> Result<bool, Failed> {
        let mut buffer = [0; 256];
        let read = io::stdin().lock().read(&mut buffer);
        let count = read.map_err(|error| Failed(format!("standard input: {error}")))?;
        for _ in buffer[..count].iter().filter(|byte| **byte == b'\n') {
            let report = self.told();
            say(&report)?;
        }
        Ok(count == 0)
    }

    /// Say the end of all streams.
    fn farewell(mut self) -> Report {
        let report = self.told();
        let until_ns = sys::now_ns() + FAREWELL_NS;
        for stream in &mut self.streams {
            if let State::Speaks(line) = &mut stream.state {
                line.leave();
                while line.flush(FAREWELL_NS).is_ok()
                    && line.is_blocked()
                    && sys::now_ns() < until_ns
                {
                    sys::doze(MS);
                }
            }
        }
        report
    }
}

impl<'a> Stream<'a> {
    fn connect(&mut self, epoll: &Epoll, index: usize) -> io::Result<()> {
        let line = Line::connect(self.publication, index)?;
        epoll.add(&line.fd, INTEREST, sys::tag(index, &line.fd))?;
        self.state = State::Speaks(Box::new(line));
        Ok(())
    }
}
