//! Processes the agent starts: each in a session of its own, all of them ended with the agent.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::user::User;

const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Exit codes of the processes started, None while they run. Negative: the signal that ended it.
#[derive(Default)]
pub struct Children {
    codes: HashMap<i32, Option<i32>>,
}

impl Children {
    /// Become the one who inherits orphans, so that daemons stay within reach.
    pub fn adopt_orphans() {
        // SAFETY: sets a flag of this process.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
        if std::env::var_os("PATH").is_none() {
            std::env::set_var("PATH", SEARCH_PATH); // PID 1 starts without one
        }
    }

    /// Have a command lead a session of its own, as `user` (None: as the agent), and end with the agent.
    pub fn prepare(command: &mut Command, user: Option<&User>) {
        let identity = user.map(|user| (user.uid, user.gid, user.groups.clone()));
        // SAFETY: between fork and exec, `enter_session` only makes system calls and allocates nothing.
        unsafe { command.pre_exec(move || enter_session(identity.as_ref())) };
    }

    /// Note a process that was started.
    pub fn add(&mut self, pid: i32) {
        self.codes.insert(pid, None);
    }

    /// None: never started here. Some(None): runs. Some(Some(code)): ended.
    pub fn code(&self, pid: i32) -> Option<Option<i32>> {
        self.codes.get(&pid).copied()
    }

    /// Forget a process that has ended: nobody will ask for it.
    pub fn forget(&mut self, pid: i32) {
        self.codes.remove(&pid);
    }

    /// Collect every process that has ended, orphans too.
    pub fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: waitpid writes one int.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
            if pid <= 0 {
                return;
            }
            if let Some(code) = self.codes.get_mut(&pid) {
                *code = Some(if libc::WIFSIGNALED(status) {
                    -libc::WTERMSIG(status)
                } else {
                    libc::WEXITSTATUS(status)
                });
            }
        }
    }

    /// Tell a process started here to end; it may do so in its own way, or not at all.
    pub fn tell(&self, pid: i32) {
        if self.code(pid) == Some(None) {
            signal(pid, libc::SIGTERM);
        }
    }

    /// Kill every process of the session that `leader` (started here) began, orphans too.
    ///
    /// As long as the leader is not reaped, nobody else can have its number. Afterwards the number may be anybody's:
    /// then only our own descendants are looked at.
    pub fn kill_session(&self, leader: i32) {
        if self.code(leader) == Some(None) {
            kill(-leader);
        }
        for process in descendants() {
            if process.session == leader {
                process.kill();
            }
        }
    }

    /// Kill and reap all descendants of this process, however they have detached themselves.
    pub fn end_all(&mut self) {
        let give_up = Instant::now() + END_PATIENCE;
        for (&pid, _) in self.codes.iter().filter(|(_, code)| code.is_none()) {
            kill(-pid);
        }
        loop {
            self.reap();
            let left = descendants();
            if left.is_empty() || Instant::now() > give_up {
                return;
            }
            left.iter().for_each(Process::kill);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// In the child, before exec: own session, no blocked signals, the user's identity, and death with the agent.
fn enter_session(identity: Option<&(u32, u32, Vec<u32>)>) -> io::Result<()> {
    let check = |result: libc::c_int| {
        if result == -1 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    // SAFETY: system calls on this process alone; the signal set is filled before it is used.
    unsafe {
        check(libc::setsid())?;
        let mut none = std::mem::MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        if let Some((uid, gid, groups)) = identity {
            check(libc::setgroups(groups.len(), groups.as_ptr()))?;
            check(libc::setgid(*gid))?;
            check(libc::setuid(*uid))?;
        }
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0)) // after setuid, which clears it
    }
}

/// SIGKILL a process, or a process group when negative, that is not reaped yet. One that is gone is no error.
fn kill(pid: i32) {
    signal(pid, libc::SIGKILL);
}

fn signal(pid: i32, number: libc::c_int) {
    // SAFETY: sends a signal; no memory is involved.
    unsafe { libc::kill(pid, number) };
}

#[derive(Clone, Copy, PartialEq)]
struct Process {
    pid: i32,
    parent: i32,
    session: i32,
    start_ticks: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Process> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let (parent, session, start_ticks) = parent_session_start(&stat)?;
        Some(Process {
            pid,
            parent,
            session,
            start_ticks,
        })
    }

    /// SIGKILL this process, and never another that has got its number since.
    ///
    /// What a descriptor was opened of stays what it is: when it still has the number afterwards, it is this one.
    fn kill(&self) {
        // SAFETY: plain system call; the descriptor it returns is new and owned by nobody else.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) } as RawFd;
        let now = Process::read(self.pid).map(|process| process.start_ticks);
        if now == Some(self.start_ticks) && fd < 0 {
            kill(self.pid); // a kernel before 5.3, or a filter that knows no pidfd: seen alive just now
        } else if now == Some(self.start_ticks) {
            let none = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: sends a signal to the process of the descriptor; no memory is involved.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, none, 0) };
        }
        close(fd);
    }
}

fn close(fd: RawFd) {
    if fd >= 0 {
        // SAFETY: the descriptor was opened by the caller and is not used any more.
        unsafe { libc::close(fd) };
    }
}

fn processes() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?))
}

/// Fields 4, 6 and 22 of /proc/PID/stat (proc(5)); the name in field 2 may hold anything, even parentheses.
fn parent_session_start(stat: &[u8]) -> Option<(i32, i32, u64)> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[name_end + 1..])
        .ok()?
        .split_ascii_whitespace()
        .skip(1);
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    let start_ticks = fields.nth(15)?.parse().ok()?;
    Some((parent, session, start_ticks))
}

/// All of this process's, at one look: orphans come to it.
fn descendants() -> Vec<Process> {
    let all: Vec<Process> = processes().collect();
    let children_of = |parent| {
        all.iter()
            .filter(move |process| process.parent == parent)
            .copied()
    };
    let mut found: Vec<Process> = children_of(std::process::id() as i32).collect();
    let mut looked_at = 0;
    while looked_at < found.len() && found.len() <= all.len() {
        let parent = found[looked_at].pid;
        found.extend(children_of(parent));
        looked_at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_of_a_process_with_an_odd_name() {
        let stat = b"42 (a) b (c) S 7 42 41 0 -1 4194304 5 6 0 0 1 2 3 4 20 0 1 0 987654 8 9";
        assert_eq!(parent_session_start(stat), Some((7, 41, 987_654)));
        assert_eq!(parent_session_start(b"42 (a) S 7 42 41"), None);
    }
}
