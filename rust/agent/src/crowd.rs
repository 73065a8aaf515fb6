//! Proof of the limit of processes by effect: how many there can be at one time.

use std::io;

use virtoll_wire::protocol::{Answer, Processes};

use crate::agent::{failed, Agent, Halt, Outcome};
use crate::hogs::prefer_me_for_oom;

const MOST: u64 = 1 << 20;

/// Have so many children that do nothing, if that many can be had; all of them have ended before it answers.
pub fn processes(agent: &mut Agent, count: u64) -> Outcome {
    if count > MOST {
        return failed(
            format!("{count} processes are more than {MOST}"),
            "",
            "ask for fewer",
        );
    }
    let mut pids = Vec::new();
    let refused = loop {
        if pids.len() as u64 == count {
            break None;
        }
        match idle_child() {
            Ok(pid) => pids.push(pid),
            Err(error) => break error.raw_os_error(),
        }
        agent.children.add(pids[pids.len() - 1]);
    };
    agent.children.reap();
    let lost = pids
        .iter()
        .filter(|&&pid| agent.children.code(pid) != Some(None));
    let lost = lost.count(); // to the OOM killer: what is gone already was not there at one time with the rest
    end(agent, &pids)?;
    let errno = match refused {
        None if lost > 0 => Some(libc::ENOMEM),
        refused => refused,
    };
    Ok(Answer::Processes(Processes {
        processes: (pids.len() - lost) as u64,
        errno,
    }))
}

fn end(agent: &mut Agent, pids: &[i32]) -> Result<(), Halt> {
    for &pid in pids {
        if agent.children.code(pid) == Some(None) {
            // SAFETY: our own child, not reaped yet, so the number is its. No memory is involved.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
    for &pid in pids {
        while agent.children.code(pid) == Some(None) {
            agent.wait(&mut [], None)?;
        }
        agent.children.forget(pid);
    }
    Ok(())
}

/// A child that waits for its end, and ends with the agent at the latest.
fn idle_child() -> io::Result<i32> {
    // SAFETY: the child calls nothing but system calls, allocates nothing, and never returns.
    unsafe {
        let parent = libc::getpid();
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                prefer_me_for_oom();
                if libc::getppid() != parent {
                    libc::_exit(0); // the agent had ended before it could be noticed
                }
                loop {
                    libc::pause();
                }
            }
            pid => Ok(pid),
        }
    }
}
