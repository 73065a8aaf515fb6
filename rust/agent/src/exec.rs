//! Commands: run one to its end, or start one in the background; as whom, where, and in which environment.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use virtoll_wire::base64::Bytes;
use virtoll_wire::protocol::{Alive, Answer, Ran, Spawned, MOST_TOLD_BYTES};

use crate::agent::{done, failed, Agent, Halt, Outcome};
use crate::children::Children;
use crate::paths;
use crate::user::User;

const LONGEST_TIMEOUT_MS: u64 = 365 * 24 * 3600 * 1000; // more may not fit a clock

/// What a command starts with, besides its arguments.
pub struct Setting {
    pub env: Option<BTreeMap<String, String>>, // instead of the agent's own
    pub cwd: String,                           // "": the agent's own
    pub user: String,                          // "": the agent's own
}

/// Run a command to its end. What it leaves in the background stays, and ends with the agent.
pub fn run(
    agent: &mut Agent,
    argv: &[String],
    stdin: &[u8],
    timeout_ms: u64,
    setting: &Setting,
) -> Outcome {
    let mut command = command(argv, setting)?;
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return cannot_start(argv, setting, &error),
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
pub fn spawn(agent: &mut Agent, argv: &[String], log: &str, setting: &Setting) -> Outcome {
    let mut command = command(argv, setting)?;
    let user = find_user(&setting.user)?;
    let output = match open_log(log).and_then(|file| give(file, user.as_ref())) {
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
        Err(error) => cannot_start(argv, setting, &error),
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

/// Kill a spawned command with its whole session, and reap it. Where there is a grace it is told first (SIGTERM), and
/// has so long to end by itself.
pub fn kill(agent: &mut Agent, pid: i32, grace_ms: u64) -> Outcome {
    known(agent, pid)?;
    if grace_ms > 0 {
        agent.children.tell(pid);
        let most = Duration::from_millis(grace_ms.min(LONGEST_TIMEOUT_MS));
        await_end(agent, pid, Some(Instant::now() + most))?;
    }
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
    await_end(agent, pid, None)
}

/// Come back when a command has ended and is reaped, or at the deadline.
fn await_end(agent: &mut Agent, pid: i32, deadline: Option<Instant>) -> Result<(), Halt> {
    while agent.children.code(pid) == Some(None) && deadline.is_none_or(|at| Instant::now() < at) {
        agent.wait(&mut [], deadline)?;
    }
    Ok(())
}

/// The command as it is asked for; an error says which of program, user or directory there is not.
fn command(argv: &[String], setting: &Setting) -> Result<Command, Halt> {
    let Some((program, arguments)) = argv.split_first() else {
        return failed(
            "the command is empty",
            "argv",
            "give the program and its arguments",
        );
    };
    let user = find_user(&setting.user)?;
    let mut command = Command::new(program);
    command.args(arguments);
    set_environment(&mut command, setting, user.as_ref());
    if !setting.cwd.is_empty() {
        enter(&mut command, &setting.cwd)?;
    }
    Children::prepare(&mut command, user.as_ref());
    Ok(command)
}

/// All that is asked for and, where that leaves it out, the user's HOME, as container runtimes have it. Where nothing
/// is asked for, the agent's own environment, with the names of another user.
fn set_environment(command: &mut Command, setting: &Setting, user: Option<&User>) {
    match (&setting.env, user) {
        (Some(env), _) => {
            let home = || match user {
                Some(user) => user.home.clone(),
                None => User::find("0").map_or("/".to_string(), |root| root.home),
            };
            command.env_clear().envs(env);
            if !env.contains_key("HOME") {
                command.env("HOME", home());
            }
        }
        (None, Some(user)) => {
            command.env("HOME", &user.home);
            for name in ["USER", "LOGNAME"] {
                if user.name.is_empty() {
                    command.env_remove(name);
                } else {
                    command.env(name, &user.name);
                }
            }
        }
        (None, None) => {}
    }
}

/// Have the command begin in the directory, and in that one, though another come to be called the same.
fn enter(command: &mut Command, cwd: &str) -> Result<(), Halt> {
    let directory = match paths::directory(Path::new(cwd)) {
        Ok(directory) => directory,
        Err(error) => {
            let what = match error.kind() {
                io::ErrorKind::NotADirectory => "the working directory is none".to_string(),
                _ => format!("cannot enter the working directory: {error}"),
            };
            return failed(what, cwd, "name a directory that the image has");
        }
    };
    let enter = move || {
        // SAFETY: a descriptor that the closure owns; no memory is involved.
        match unsafe { libc::fchdir(directory.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec, it makes one system call and allocates nothing.
    unsafe { command.pre_exec(enter) };
    Ok(())
}

fn find_user(wanted: &str) -> Result<Option<User>, Halt> {
    if wanted.is_empty() {
        return Ok(None);
    }
    match User::find(wanted) {
        Ok(user) => Ok(Some(user)),
        Err(unknown) => {
            let thing = if unknown.place == "/etc/group" {
                "group"
            } else {
                "user"
            };
            let remedy = format!("name a {thing} that the image has, or its number");
            failed(unknown.what, unknown.place, &remedy)
        }
    }
}

fn open_log(log: &str) -> io::Result<fs::File> {
    if log.is_empty() {
        return paths::open_any(Path::new("/dev/null"), libc::O_WRONLY);
    }
    paths::create(Path::new(log), libc::O_WRONLY | libc::O_APPEND, 0o666)
}

/// The log is its writer's, who may open it anew as /dev/stdout (container runtimes give their pipes away, too). Not a
/// file that has another name besides: somebody may have linked one of root's there.
fn give(log: fs::File, user: Option<&User>) -> io::Result<fs::File> {
    let known = log.metadata()?;
    if let (Some(user), true, 1) = (user, known.is_file(), known.nlink()) {
        // SAFETY: a descriptor that the file owns; no memory is involved.
        if unsafe { libc::fchown(log.as_raw_fd(), user.uid, user.gid) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(log)
}

fn cannot_start(argv: &[String], setting: &Setting, error: &io::Error) -> Outcome {
    let program = &argv[0];
    let what = match error.kind() {
        io::ErrorKind::NotFound if !program.contains('/') => {
            let own = std::env::var("PATH").unwrap_or_default();
            let path = match &setting.env {
                Some(env) => env.get("PATH").map_or("(not set)", String::as_str),
                None => &own,
            };
            format!("no program {program:?} in PATH {path}")
        }
        io::ErrorKind::NotFound if Path::new(&setting.cwd).join(program).exists() => {
            format!(
                "{program} is there, but not what starts it: the loader or interpreter it names"
            )
        }
        io::ErrorKind::NotFound => format!("no program {program}"),
        _ => error.to_string(),
    };
    failed(
        format!("cannot start: {what}"),
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
    let what = format!("more than {MOST_TOLD_BYTES} bytes of output; killed");
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
            .any(|output| output.bytes.len() > MOST_TOLD_BYTES)
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
            if self.bytes.len() > MOST_TOLD_BYTES {
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
