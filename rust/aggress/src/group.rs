//! The aggressor's processes: one group, which dies at one stroke, whoever of them or above them is killed.
//!
//! Each start makes a pipe. The supervisor holds its writing end, all of the group its reading end, and the kernel is
//! asked to send SIGKILL to the whole group when that pipe changes (fcntl(2): O_ASYNC, F_SETOWN, F_SETSIG). Nobody
//! ever writes; it changes when the supervisor is no more. So a fork bomb cannot outlive it, and need not be asked.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};

use crate::shared::Shared;
use crate::Work;

/// fcntl's command for the signal that O_ASYNC sends (asm-generic/fcntl.h).
const F_SETSIG: c_int = 10;
/// The first process ends so when it cannot do what it is for; the reason is in the shared page.
const REFUSED: c_int = 3;

/// How long what holds memory may take to give it back, and how often that is looked at.
const GIVE_BACK: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(1);

/// What a process gets for what it does itself.
const FAULTS: [c_int; 5] = [
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
];

/// An aggressor's group while it lives.
pub struct Group {
    leader: pid_t,
    shared: Shared,
    /// Closed with this; see above.
    _life: OwnedFd,
}

/// How a group's first process ended.
pub enum Ended {
    /// It cannot do what it is for.
    Refused,
    /// By this signal from elsewhere, the OOM killer's as a rule.
    Killed(c_int),
    /// By this signal, a fault of its own: a panic, no memory for what it needs, an address that is none.
    Failed(c_int),
    /// With this code: a fault of ours.
    Left(c_int),
}

/// Make this process fit to supervise: orphans of the group become its children, and where it is allowed to, it goes
/// before a thousand others in the queue for the CPU and stays in memory.
pub fn supervise() {
    // SAFETY: flags of this process; no memory is involved.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        libc::setpriority(libc::PRIO_PROCESS as _, 0, -20);
        libc::mlockall(libc::MCL_CURRENT);
    }
}

impl Group {
    /// Fork the group's first process, which does the work.
    pub fn start(work: &Work, shared: Shared) -> io::Result<Group> {
        let (reading, writing) = pipe()?;
        let supervisor = std::process::id() as pid_t;
        shared.empty();
        shared.take_place(u64::MAX);
        // SAFETY: the supervisor has one thread, so the child is an ordinary process.
        match unsafe { libc::fork() } {
            -1 => {
                let error = io::Error::last_os_error();
                shared.empty();
                Err(error)
            }
            0 => {
                drop(writing);
                enter(reading.as_raw_fd(), supervisor);
                abort_on_panic(shared);
                shared.set_reason(&work(&shared));
                // SAFETY: ends this process only, without running what the supervisor has registered.
                unsafe { libc::_exit(REFUSED) }
            }
            leader => {
                shared.count_made();
                // SAFETY: no memory is involved; both do it, so that it is done before either goes on.
                unsafe { libc::setpgid(leader, leader) };
                Ok(Group {
                    leader,
                    shared,
                    _life: writing,
                })
            }
        }
    }

    /// Take note of processes that have ended; how the first one did, if it has. That one is not reaped yet, so that
    /// its number remains the group's.
    pub fn look(&self) -> Option<Ended> {
        loop {
            let ended = next_ended()?;
            if ended == self.leader {
                return Some(self.verdict());
            }
            // SAFETY: reaps a child that has ended; no status is wanted.
            unsafe { libc::waitpid(ended, std::ptr::null_mut(), 0) };
            self.shared.count_gone();
        }
    }

    fn let_give_back(&self, most: Duration) {
        let begun = Instant::now();
        while self.shared.gives_back() && !self.has_ended() && begun.elapsed() < most {
            self.shared.end_now(); // only where it lives: the next group has the rest of the time
            std::thread::sleep(LOOK);
        }
    }

    /// Whether the first process has; it is not reaped.
    fn has_ended(&self) -> bool {
        // SAFETY: an all-zero siginfo_t is valid, and the kernel fills it when the child has ended.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.leader as libc::id_t, &mut info, options);
            info.si_pid() == self.leader
        }
    }

    fn verdict(&self) -> Ended {
        let mut status = 0;
        // SAFETY: an all-zero siginfo_t is valid, and the kernel fills it; the child remains to be reaped.
        let info = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let options = libc::WEXITED | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.leader as libc::id_t, &mut info, options);
            status += info.si_status();
            info
        };
        match (info.si_code, status) {
            (libc::CLD_EXITED, REFUSED) => Ended::Refused,
            (libc::CLD_EXITED, code) => Ended::Left(code),
            (_, signal) if FAULTS.contains(&signal) => Ended::Failed(signal),
            (_, signal) => Ended::Killed(signal),
        }
    }

    /// Kill the whole group at one stroke and wait until none of it is left. A fork that is under way when the signal
    /// comes does not succeed (the kernel's copy_process).
    ///
    /// What holds memory gives it back first. One that was killed holds it while it ends, and is no process any more
    /// that the OOM killer could choose: another's next page would cost that one its life, the agent's too.
    pub fn end(self) {
        self.end_within(GIVE_BACK);
    }

    fn end_within(self, gives_back_within: Duration) {
        self.let_give_back(gives_back_within);
        // SAFETY: no memory is involved. The group is the aggressor's own: its first process was not reaped yet.
        unsafe { libc::kill(-self.leader, libc::SIGKILL) };
        loop {
            // SAFETY: no status is wanted. All children of the supervisor are the group's, orphans too.
            let reaped = unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) };
            if reaped < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD) {
                break;
            }
        }
        self.shared.empty();
    }
}

/// Kill the group that the caller is in: for a process that sees that its time is over.
pub fn end_own() -> ! {
    // SAFETY: no memory is involved; the caller is in a group of its own (`enter`).
    unsafe {
        libc::kill(0, libc::SIGKILL);
        libc::_exit(0)
    }
}

/// In the first process: a group of its own that dies with the supervisor, and is the OOM killer's first choice.
fn enter(life: RawFd, supervisor: pid_t) {
    // SAFETY: settings of this process and of a descriptor that it holds; `poll` is one valid pollfd.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL); // until the pipe keeps watch
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::setpriority(libc::PRIO_PROCESS as _, 0, 0);
        libc::fcntl(life, libc::F_SETOWN, -libc::getpid());
        libc::fcntl(life, F_SETSIG, libc::SIGKILL);
        let watched = libc::fcntl(life, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK) == 0;
        let mut poll = libc::pollfd {
            fd: life,
            events: 0,
            revents: 0,
        };
        let is_orphan = libc::poll(&mut poll, 1, 0) != 0 || libc::getppid() != supervisor;
        if is_orphan || !watched {
            libc::_exit(1);
        }
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000"); // where there is a /proc
}

/// A panic of any thread ends the whole process, its words in the shared page, however panics are compiled (a release
/// does not unwind, a test does).
fn abort_on_panic(shared: Shared) {
    std::panic::set_hook(Box::new(move |told| {
        shared.set_reason(&told.to_string());
        std::process::abort();
    }));
}

/// A child that has ended and is not reaped yet.
fn next_ended() -> Option<pid_t> {
    // SAFETY: an all-zero siginfo_t is valid, and the kernel fills it when a child has ended.
    let pid = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_ALL, 0, &mut info, options);
        info.si_pid()
    };
    (pid > 0).then_some(pid)
}

/// Reading and writing end. Neither is passed on to another program.
fn pipe() -> io::Result<(File, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which nobody else owns.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test: what ends a group reaps all children of its process.
    #[test]
    fn what_holds_memory_gives_it_back_before_it_is_killed_and_its_heir_has_the_rest_of_the_time() {
        let gives_back: Work = Box::new(|shared: &Shared| {
            shared.add(0, 1); // before it is seen to have begun
            shared.set_gives_back(true);
            while !shared.is_over() {
                std::thread::sleep(LOOK);
            }
            shared.add(1, 1);
            shared.set_gives_back(false);
            end_own()
        });
        let keeps: Work = Box::new(|shared: &Shared| loop {
            shared.set_gives_back(true);
            std::thread::sleep(LOOK);
        });
        let begun = |shared: &Shared| {
            while !shared.gives_back() {
                std::thread::sleep(LOOK);
            }
        };
        let shared = Shared::new(u64::MAX).unwrap();
        let killed = Group::start(&gives_back, shared).unwrap();
        begun(&shared);
        // SAFETY: no memory is involved; the process is a child that was not reaped.
        unsafe { libc::kill(killed.leader, libc::SIGKILL) };
        while killed.look().is_none() {
            std::thread::sleep(LOOK);
        }
        killed.end();
        assert!(!shared.is_over());
        let heir = Group::start(&gives_back, shared).unwrap();
        begun(&shared);
        heir.end_within(Duration::MAX); // it may have to wait for a CPU
        assert_eq!((shared.get(0), shared.get(1)), (2, 1));

        let shared = Shared::new(u64::MAX).unwrap();
        let stubborn = Group::start(&keeps, shared).unwrap();
        begun(&shared);
        stubborn.end(); // waited for no longer than GIVE_BACK
        assert!(!shared.gives_back());
    }
}
