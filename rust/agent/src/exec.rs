//! Commands: run one to its end, or start one in the background.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use virtoll_wire::base64::Bytes;
use virtoll_wire::protocol::{Alive, Answer, Ran, Spawned};

use crate::agent::{done, failed, Agent, Halt, Outcome};
use crate::children::{Children, User};

const MOST_OUTPUT_BYTES: usize = 1 << 20;
const LONGEST_TIMEOUT_MS: u64 = 365 * 24 * 3600 * 1000; // more may not fit a clock

/// Run a command to its end. What it leaves in the background stays, and ends with the agent.
pub fn run(agent: &mut Agent, argv: &[String], stdin: &[u8], timeout_ms: u64) -> Outcome {
    let mut command = start(argv, None)?;
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return cannot_start(argv, &error),
    };
    let pid = child.id() as i32;
    agent.children.add(pid);
    let mut pipes = Pipes::take(&mut child, stdin);
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.min(LONGEST_TIMEOUT_MS));
    let returncode = loop {
        let code = agent.children.code(pid).flatten(); // before the transfer: an ended command writes no more
        pipes.transfer();
        if pipes.is_too_much() {
            end(agent, pid)?;
            return too_much(argv);
        }
        if let Some(code) = code {
            break code;
        }
        if Instant::now() >= deadline {
            end(agent, pid)?;
            return timed_out(argv, timeout_ms);
        }
        agent.wait(&mut pipes.interests(), Some(deadline))?;
    };
    let [stdout, stderr] = pipes.outputs.map(|output| Bytes(output.bytes));
    Ok(Answer::Ran(Ran {
        returncode,
        stdout,
        stderr,
    }))
}

/// Start a command in the background; its output goes to the file `log`, or nowhere.
pub fn spawn(agent: &mut Agent, argv: &[String], user: &str, log: &str) -> Outcome {
    let mut command = start(argv, find_user(user)?.as_ref())?;
    let output = match open_log(log) {
        Ok(file) => file,
        Err(error) => {
            return failed(
                format!("cannot write the log: {error}"),
                log,
                "name a writable file",
            )
        }
    };
    match output.try_clone().and_then(|copy| {
        command
            .stdin(Stdio::null())
            .stdout(copy)
            .stderr(output)
            .spawn()
    }) {
        Ok(child) => {
            let pid = child.id() as i32;
            agent.children.add(pid);
            Ok(Answer::Spawned(Spawned { pid }))
        }
        Err(error) => cannot_start(argv, &error),
    }
}

/// Whether a spawned command still runs.
pub fn alive(agent: &mut Agent, pid: i32) -> Outcome {
    agent.children.reap();
    let returncode = known(agent, pid)?;
    Ok(Answer::Alive(Alive {
        alive: returncode.is_none(),
        returncode,
    }))
}

/// Kill a spawned command with its whole session, and reap it.
pub fn kill(agent: &mut Agent, pid: i32) -> Outcome {
    known(agent, pid)?;
    end(agent, pid)?;
    done()
}

fn known(agent: &Agent, pid: i32) -> Result<Option<i32>, Halt> {
    match agent.children.code(pid) {
        Some(code) => Ok(code),
        None => failed(
            "not started by this agent",
            format!("process {pid}"),
            "use the pid that spawn gave",
        ),
    }
}

fn end(agent: &mut Agent, pid: i32) -> Result<(), Halt> {
    agent.children.kill_session(pid);
    while agent.children.code(pid) == Some(None) {
        agent.wait(&mut [], None)?;
    }
    Ok(())
}

fn start(argv: &[String], user: Option<&User>) -> Result<std::process::Command, Halt> {
    if argv.is_empty() {
        return failed(
            "the command is empty",
            "argv",
            "give the program and its arguments",
        );
    }
    Ok(Children::command(argv, user))
}

fn find_user(name: &str) -> Result<Option<User>, Halt> {
    if name.is_empty() {
        return Ok(None);
    }
    match User::find(name) {
        Ok(Some(user)) => Ok(Some(user)),
        Ok(None) => failed(
            format!("no user {name:?}"),
            "/etc/passwd",
            "name a user that the image has",
        ),
        Err(error) => failed(
            error.to_string(),
            "/etc/passwd",
            "put an /etc/passwd into the image",
        ),
    }
}

fn open_log(log: &str) -> io::Result<fs::File> {
    if log.is_empty() {
        return fs::OpenOptions::new().write(true).open("/dev/null");
    }
    if let Some(parent) = Path::new(log).parent() {
        fs::create_dir_all(parent)?;
    }
    fs::OpenOptions::new().create(true).append(true).open(log)
}

fn cannot_start(argv: &[String], error: &io::Error) -> Outcome {
    failed(
        format!("cannot start: {error}"),
        argv.join(" "),
        "check the path, and that the image has the program",
    )
}

fn timed_out(argv: &[String], timeout_ms: u64) -> Outcome {
    failed(
        format!("no end within {timeout_ms} ms; killed"),
        argv.join(" "),
        "allow more time, or spawn it",
    )
}

fn too_much(argv: &[String]) -> Outcome {
    let what = format!("more than {MOST_OUTPUT_BYTES} bytes of output; killed");
    failed(what, argv.join(" "), "let it write to a file")
}

/// The three pipes of a running command. A pipe that has ended is closed, so that poll leaves it alone.
struct Pipes<'a> {
    input: Option<fs::File>,
    unsent: &'a [u8],
    outputs: [Output; 2],
}

struct Output {
    pipe: Option<fs::File>,
    bytes: Vec<u8>,
}

impl<'a> Pipes<'a> {
    fn take(child: &mut Child, unsent: &'a [u8]) -> Pipes<'a> {
        let stdout = child.stdout.take().map(|pipe| nonblocking(pipe.into()));
        let stderr = child.stderr.take().map(|pipe| nonblocking(pipe.into()));
        Pipes {
            input: child.stdin.take().map(|pipe| nonblocking(pipe.into())),
            unsent,
            outputs: [stdout, stderr].map(|pipe| Output {
                pipe,
                bytes: Vec::new(),
            }),
        }
    }

    fn interests(&self) -> [libc::pollfd; 3] {
        let watch = |pipe: &Option<fs::File>, events| libc::pollfd {
            fd: pipe.as_ref().map_or(-1, AsRawFd::as_raw_fd), // poll ignores negative ones
            events,
            revents: 0,
        };
        let [stdout, stderr] = &self.outputs;
        [
            watch(&self.input, libc::POLLOUT),
            watch(&stdout.pipe, libc::POLLIN),
            watch(&stderr.pipe, libc::POLLIN),
        ]
    }

    /// Move as many bytes as can be moved now.
    fn transfer(&mut self) {
        while let Some(pipe) = self.input.as_mut() {
            match pipe.write(self.unsent) {
                Ok(count) if count > 0 => self.unsent = &self.unsent[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                _ => self.input = None, // all is sent, or the command reads no more
            }
        }
        self.outputs.iter_mut().for_each(Output::receive);
    }

    fn is_too_much(&self) -> bool {
        self.outputs
            .iter()
            .any(|output| output.bytes.len() > MOST_OUTPUT_BYTES)
    }
}

impl Output {
    fn receive(&mut self) {
        let mut chunk = [0; 16384];
        while let Some(pipe) = self.pipe.as_mut() {
            match pipe.read(&mut chunk) {
                Ok(count) if count > 0 => self.bytes.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                _ => self.pipe = None,
            }
            if self.bytes.len() > MOST_OUTPUT_BYTES {
                break;
            }
        }
    }
}

fn nonblocking(pipe: OwnedFd) -> fs::File {
    // SAFETY: sets a flag of a descriptor that we own.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    fs::File::from(pipe)
}
