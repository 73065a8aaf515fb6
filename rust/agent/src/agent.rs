//! The agent itself: takes requests one after the other, and notices the end of the stream wherever it waits.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use virtoll_wire::protocol::{
    Answer, Done, Failure, Hello, Op, Request, Response, LONGEST_REQUEST_BYTES, MARKER, PROTOCOL,
};

use crate::channel::Channel;
use crate::children::Children;
use crate::exec::{self, Setting};
use crate::sampler::Sampler;
use crate::{boot, crowd, describe, disk, facts, files, guest, hogs, sampler, sockets};

/// Why an operation gives no answer.
pub enum Halt {
    /// It failed; the controller is told.
    Failed(Failure),
    /// The stream has ended, or this process was asked to end.
    End,
}

/// What an operation comes to.
pub type Outcome = Result<Answer, Halt>;

/// Fail with what happened, where, and what to do.
pub fn failed<T>(
    what: impl Into<String>,
    place: impl Into<String>,
    remedy: &str,
) -> Result<T, Halt> {
    Err(Halt::Failed(Failure {
        what: what.into(),
        place: place.into(),
        remedy: remedy.into(),
    }))
}

/// The state between requests.
pub struct Agent {
    channel: Channel,
    signals: OwnedFd,
    told: bool, // to end, by a signal
    greeted: bool,
    parts: String, // of a request that comes in parts
    pub children: Children,
    pub sampler: Sampler,
}

impl Agent {
    /// An agent on an open channel.
    pub fn new(channel: Channel) -> io::Result<Agent> {
        Children::adopt_orphans();
        Ok(Agent {
            channel,
            signals: watched_signals()?,
            told: false,
            greeted: false,
            parts: String::new(),
            children: Children::default(),
            sampler: Sampler::default(),
        })
    }

    /// Answer requests until the stream ends or a signal tells to, then end everything that was started.
    pub fn serve(mut self) {
        while let Ok(line) = self.next_line() {
            let Some(response) = self.respond(&line) else {
                continue;
            };
            let mut bytes = Vec::new();
            if self.needs_marker(&response) {
                bytes.extend_from_slice(format!("\n{MARKER}\n").as_bytes());
            }
            bytes.extend(response.line());
            if self.channel.send(&bytes).is_err() {
                break;
            }
        }
        self.children.end_all();
    }

    /// Wait for one of `fds`, a child's end or `deadline`, whichever is first. Err(End) when the stream ends.
    ///
    /// This is the only place where the agent waits.
    pub fn wait(
        &mut self,
        fds: &mut [libc::pollfd],
        deadline: Option<Instant>,
    ) -> Result<(), Halt> {
        let watch = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let mut all = vec![
            watch(self.channel.fd(), self.channel.interest()),
            watch(self.signals.as_raw_fd(), libc::POLLIN),
        ];
        all.extend_from_slice(fds);
        poll(&mut all, deadline);
        for (fd, polled) in fds.iter_mut().zip(&all[2..]) {
            fd.revents = polled.revents;
        }
        if all[1].revents != 0 {
            self.take_signals();
        }
        if self.told {
            return Err(Halt::End);
        }
        if all[0].revents & libc::POLLIN != 0 {
            return if self.channel.fill() {
                Ok(())
            } else {
                Err(Halt::End)
            };
        }
        if all[0].revents != 0 {
            Err(Halt::End)
        } else {
            Ok(())
        }
    }

    fn next_line(&mut self) -> Result<Vec<u8>, Halt> {
        while !self.told {
            if let Some(line) = self.channel.next_line() {
                return Ok(line);
            }
            self.wait(&mut [], None)?;
        }
        Err(Halt::End)
    }

    /// Take what signals came: children are reaped; a wish to end this process is kept until it has.
    fn take_signals(&mut self) {
        let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = std::mem::size_of::<libc::signalfd_siginfo>();
        // SAFETY: a signalfd fills whole structures, and only a filled one is looked at.
        while unsafe { libc::read(self.signals.as_raw_fd(), info.as_mut_ptr().cast(), size) }
            == size as isize
        {
            // SAFETY: as above.
            self.told |= unsafe { info.assume_init() }.ssi_signo != libc::SIGCHLD as u32;
        }
        self.children.reap();
    }

    /// The response to a line; none to noise, and none once the stream has ended.
    fn respond(&mut self, line: &[u8]) -> Option<Response> {
        let request =
            serde_json::from_slice::<Request>(line).and_then(|request| match request.op {
                Op::Whole {} => serde_json::from_str(&std::mem::take(&mut self.parts)),
                _ => Ok(request),
            });
        let (id, outcome) = match request {
            Ok(request) => (request.id, self.perform(request.op)),
            Err(_) if !self.greeted => return None,
            Err(error) => (
                0,
                failed(
                    format!("not a request: {error}"),
                    "",
                    "use the controller of the same version",
                ),
            ),
        };
        match outcome {
            Ok(answer) => Some(Response {
                id,
                ok: Some(answer),
                error: None,
            }),
            Err(Halt::Failed(failure)) => Some(Response {
                id,
                ok: None,
                error: Some(failure),
            }),
            Err(Halt::End) => None, // `next_line` notices it too
        }
    }

    fn needs_marker(&self, response: &Response) -> bool {
        !self.greeted || matches!(response.ok, Some(Answer::Hello(_)))
    }

    fn perform(&mut self, op: Op) -> Outcome {
        if let Op::Hello { protocol } = op {
            return self.hello(protocol);
        }
        if !self.greeted {
            return failed(
                "no hello yet",
                "",
                "begin with hello, which agrees on the protocol",
            );
        }
        match op {
            Op::Hello { protocol } => self.hello(protocol),
            Op::Part { text } => self.keep(&text),
            Op::Whole {} => failed("parts of a request made another whole", "", "send it once"),
            Op::Facts {} => Ok(Answer::Facts(facts::facts())),
            Op::Run {
                argv,
                stdin,
                timeout_ms,
                env,
                cwd,
                user,
            } => exec::run(
                self,
                &argv,
                &stdin.0,
                timeout_ms,
                &Setting { env, cwd, user },
            ),
            Op::Spawn {
                argv,
                log,
                env,
                cwd,
                user,
            } => exec::spawn(self, &argv, &log, &Setting { env, cwd, user }),
            Op::Alive { pid } => exec::alive(self, pid),
            Op::Kill { pid, grace_ms } => exec::kill(self, pid, grace_ms),
            Op::Describe { pid } => describe::describe(pid),
            Op::Listening { port, protocol } => sockets::listening(port, protocol),
            Op::Put {
                path,
                mode,
                offset,
                data,
            } => files::put(&path, mode, offset, &data.0),
            Op::Get { path, offset } => files::get(&path, offset),
            Op::Tail { path, bytes } => files::tail(&path, bytes),
            Op::Fill {
                path,
                length_bytes,
                begin_bytes,
            } => disk::fill(self, &path, begin_bytes, length_bytes),
            Op::Sync { path } => files::sync(&path),
            Op::Burn {
                threads,
                duration_ms,
            } => hogs::burn(self, threads, duration_ms),
            Op::Allocate { bytes } => hogs::allocate(self, bytes),
            Op::Reserve { directory, bytes } => disk::reserve(self, &directory, bytes),
            Op::Processes { count } => crowd::processes(self, count),
            Op::Clock {} => Ok(Answer::Clock(sampler::clock())),
            Op::SampleStart {
                sources,
                interval_ns,
                keep_ticks,
            } => self.sampler.start(&sources, interval_ns, keep_ticks),
            Op::SampleNow {} => self.sampler.now(),
            Op::SampleCollect { from } => self.sampler.collect(from),
            Op::Configure(settings) => guest::configure(&settings),
            Op::Poweroff {} => {
                self.children.end_all();
                boot::power_off()
            }
        }
    }

    fn keep(&mut self, text: &str) -> Outcome {
        if self.parts.len() + text.len() > LONGEST_REQUEST_BYTES {
            self.parts.clear();
            let what = format!("the parts are more than {LONGEST_REQUEST_BYTES} bytes");
            return failed(what, "", "ask for less at a time");
        }
        self.parts.push_str(text);
        done()
    }

    fn hello(&mut self, protocol: u32) -> Outcome {
        if protocol != PROTOCOL {
            return failed(
                format!("the agent speaks protocol {PROTOCOL}, the controller protocol {protocol}"),
                "",
                "rebuild the agent and the image: `make`",
            );
        }
        self.greeted = true;
        self.parts.clear();
        let version = env!("CARGO_PKG_VERSION").to_string();
        Ok(Answer::Hello(Hello {
            protocol: PROTOCOL,
            version,
            pid: std::process::id(),
        }))
    }
}

/// An operation that has nothing to tell.
pub fn done() -> Outcome {
    Ok(Answer::Done(Done {}))
}

fn poll(fds: &mut [libc::pollfd], deadline: Option<Instant>) {
    let timeout_ms = deadline.map_or(-1, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        left.as_micros().div_ceil(1000).min(i32::MAX as u128) as libc::c_int
    });
    // SAFETY: the slice is valid for its length. An error (EINTR) leaves revents as they were: nothing happened.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
}

/// A descriptor that becomes readable on a child's end and on a wish to end (SIGTERM, SIGINT, SIGHUP).
fn watched_signals() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: the set is initialised by sigemptyset before any other use; the new descriptor has no other owner.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}
