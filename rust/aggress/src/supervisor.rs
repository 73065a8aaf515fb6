//! Starts an aggressor, watches it, and ends it for certain.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{json, Map, Value};
use virtoll_probe::windows::now_ns;

use crate::group::{self, Ended, Group};
use crate::shared::Shared;
use crate::{Aggressor, Work};

/// Between two starts of an aggressor that was killed.
const AGAIN: Duration = Duration::from_millis(10);
/// How often the supervisor looks, between two lines of the series.
const LOOK_NS: u64 = 5_000_000;
/// So many of the signals that killed the first process are told.
const MOST_SIGNALS: usize = 100;

static TOLD_TO_END: AtomicBool = AtomicBool::new(false);

/// One aggressor, its work and its time.
pub struct Supervisor<'a> {
    pub aggressor: &'a Aggressor,
    pub work: Work,
    pub settings: BTreeMap<String, Value>,
    pub duration_ns: u64,
    pub interval_ns: u64,
}

/// What became of the aggressor.
#[derive(Default)]
struct Course {
    restarts: u64,
    killed_by: Vec<i32>,
    refused: Option<String>,
}

impl Supervisor<'_> {
    /// Let the aggressor work for its time, writing its series and its report to standard output.
    pub fn run(&self) {
        end_when_told();
        group::supervise();
        let start_ns = now_ns();
        let deadline_ns = start_ns.saturating_add(self.duration_ns);
        let mut course = Course::default();
        let shared = Shared::new(deadline_ns);
        match &shared {
            Ok(shared) => self.watch(*shared, &mut course, deadline_ns),
            Err(error) => course.refused = Some(format!("mmap: {error}")),
        }
        let ended = match &course.refused {
            Some(_) => "refused",
            None if TOLD_TO_END.load(Ordering::Relaxed) => "told",
            None => "time",
        };
        say(&json!({
            "aggressor": self.aggressor.name, "version": env!("CARGO_PKG_VERSION"), "settings": self.settings,
            "start_ns": start_ns, "end_ns": now_ns(), "ended": ended, "refused": course.refused,
            "restarts": course.restarts, "killed_by": course.killed_by,
            "processes_peak": shared.as_ref().map_or(0, |shared| shared.processes().1),
            "counts": shared.as_ref().map_or_else(|_| json!({}), |shared| self.counts(*shared)),
        }));
    }

    fn watch(&self, shared: Shared, course: &mut Course, deadline_ns: u64) {
        let may_go_on = || !TOLD_TO_END.load(Ordering::Relaxed) && now_ns() < deadline_ns;
        let mut group = match Group::start(&self.work, shared) {
            Ok(group) => Some(group),
            Err(error) => {
                course.refused = Some(format!("the first process cannot be made: {error}"));
                return;
            }
        };
        let mut next_ns = now_ns();
        while may_go_on() {
            if let Some(ended) = group.as_ref().and_then(Group::look) {
                if !may_go_on() {
                    break; // it has seen for itself that its time is over
                }
                group.take().expect("it was looked at").end();
                if !course.goes_on_after(ended, shared) {
                    return;
                }
                std::thread::sleep(AGAIN);
            }
            if group.is_none() {
                group = Group::start(&self.work, shared).ok(); // refused now, for want of room: at the next look
            }
            if now_ns() >= next_ns {
                self.say_line(course, shared);
                next_ns = now_ns().max(next_ns + self.interval_ns);
            }
            std::thread::sleep(Duration::from_nanos(LOOK_NS.min(self.interval_ns)));
        }
        self.say_line(course, shared);
        if let Some(group) = group {
            group.end();
        }
    }

    /// A line of the series: how it stands now.
    ///
    /// Left out where whoever reads does not keep up: nobody shall keep the supervisor from its work.
    fn say_line(&self, course: &Course, shared: Shared) {
        if !can_say() {
            return;
        }
        say(&json!({
            "t_ns": now_ns(), "restarts": course.restarts, "processes": shared.processes().0,
            "counts": self.counts(shared),
        }));
    }

    fn counts(&self, shared: Shared) -> Value {
        let pairs = self.aggressor.counts.iter().enumerate();
        let pairs = pairs.map(|(place, name)| ((*name).to_owned(), shared.get(place).into()));
        Value::Object(pairs.collect::<Map<_, _>>())
    }
}

impl Course {
    /// Note how the first process ended; whether it is to be started again.
    fn goes_on_after(&mut self, ended: Ended, shared: Shared) -> bool {
        match ended {
            Ended::Refused => self.refused = Some(shared.reason()),
            Ended::Left(code) => {
                self.refused = Some(format!("it ended by itself, with code {code}"))
            }
            Ended::Failed(signal) => {
                let told = match shared.reason() {
                    why if why.is_empty() => "it had no memory for what it needs, as a rule".into(),
                    why => why,
                };
                self.refused = Some(format!("it failed, with signal {signal}: {told}"));
            }
            Ended::Killed(signal) => {
                self.restarts += 1;
                if self.killed_by.len() < MOST_SIGNALS {
                    self.killed_by.push(signal);
                }
            }
        }
        self.refused.is_none()
    }
}

/// Whether a line can be written without waiting (a pipe has room for PIPE_BUF bytes then).
fn can_say() -> bool {
    let mut poll = libc::pollfd {
        fd: libc::STDOUT_FILENO,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// One line of JSON. Nobody may be left who reads it: then the work goes on, and ends in its time.
fn say(line: &Value) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn end_when_told() {
    extern "C" fn told(_signal: libc::c_int) {
        TOLD_TO_END.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let handler: extern "C" fn(libc::c_int) = told;
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}
