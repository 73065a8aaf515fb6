//! What really runs as a process, from /proc: for an audit that compares one arm with another.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use virtoll_wire::base64::Bytes;
use virtoll_wire::protocol::{Answer, Described, MOST_TOLD_BYTES};

use crate::agent::{failed, Outcome};

/// How long a process may take to become another program (execve(2)), and between two looks at it.
const BECOMING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(1);

/// Describe any process of this instance, whoever started it.
pub fn describe(pid: i32) -> Outcome {
    match look_at(pid) {
        Ok(found) => Ok(Answer::Described(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => failed(
            "no such process, or it has ended",
            format!("process {pid}"),
            "ask `alive` how it ended, or see its log",
        ),
        Err(error) => failed(
            format!("cannot be described: {error}"),
            format!("process {pid}"),
            "describe a process of the instance's own",
        ),
    }
}

fn look_at(pid: i32) -> io::Result<Described> {
    look_within(pid, BECOMING)
}

fn look_within(pid: i32, becoming: Duration) -> io::Result<Described> {
    let began = Instant::now();
    loop {
        let status = fs::read(format!("/proc/{pid}/status"))?;
        let status = String::from_utf8_lossy(&status);
        if !status.contains("\nVmSize:") {
            return Err(io::ErrorKind::NotFound.into()); // it has ended and is not reaped (or is the kernel's own)
        }
        let command_line = read(pid, "cmdline")?;
        if !command_line.is_empty() {
            return told(pid, &status, command_line);
        }
        // Between two programs it has a memory of its own and no arguments in it yet, under Linux for a moment.
        if began.elapsed() > becoming {
            let what = "its command line is empty";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        thread::sleep(LOOK);
    }
}

fn told(pid: i32, status: &str, command_line: Vec<u8>) -> io::Result<Described> {
    let missing = || io::Error::from(io::ErrorKind::InvalidData);
    let numbers = |key: &str| -> Option<Vec<u32>> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace()
            .map(|word| word.parse().ok())
            .collect()
    };
    let effective = |key: &str| numbers(key)?.get(1).copied(); // real, effective, saved, file system
    let (uid, gid) = (
        effective("Uid:").ok_or_else(missing)?,
        effective("Gid:").ok_or_else(missing)?,
    );
    Ok(Described {
        command_line: Bytes(command_line),
        exe: permitted(uid, gid, || link(pid, "exe"))?,
        cwd: permitted(uid, gid, || link(pid, "cwd"))?,
        uid,
        gid,
        groups: numbers("Groups:").ok_or_else(missing)?,
        environment: permitted(uid, gid, || read(pid, "environ"))?.map(Bytes),
    })
}

fn link(pid: i32, name: &str) -> io::Result<String> {
    let path: PathBuf = fs::read_link(format!("/proc/{pid}/{name}"))?;
    Ok(path.to_string_lossy().into_owned())
}

fn read(pid: i32, name: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(format!("/proc/{pid}/{name}"))?;
    file.take(MOST_TOLD_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() > MOST_TOLD_BYTES {
        let what = format!("its {name} is more than {MOST_TOLD_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(bytes)
}

/// What `look` finds; None where neither root nor the process's own user may.
///
/// Root in a container may not look into another user's process (no CAP_SYS_PTRACE); who has the same ids on the file
/// system may (ptrace(2), "access mode checking").
fn permitted<T>(uid: u32, gid: u32, look: impl Fn() -> io::Result<T>) -> io::Result<Option<T>> {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let found = match look() {
        Err(error) if refused(&error) => {
            take_file_ids(uid, gid);
            let found = look();
            take_file_ids(effective_uid(), effective_gid());
            found
        }
        found => found,
    };
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if refused(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn effective_uid() -> u32 {
    // SAFETY: always succeeds, and involves no memory.
    unsafe { libc::geteuid() }
}

fn effective_gid() -> u32 {
    // SAFETY: as above.
    unsafe { libc::getegid() }
}

/// The ids by which this thread alone is let to files. The group first: only root may take it.
fn take_file_ids(uid: u32, gid: u32) {
    // SAFETY: plain system calls on this thread; no memory is involved. The last undoes what the change of ids does.
    unsafe {
        if uid == libc::geteuid() {
            libc::setfsuid(uid);
            libc::setfsgid(gid);
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        } else {
            libc::setfsgid(gid);
            libc::setfsuid(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process() {
        let found = look_at(std::process::id() as i32).unwrap();
        let arguments: Vec<u8> = std::env::args()
            .flat_map(|word| [word.into_bytes(), vec![0]].concat())
            .collect();
        assert_eq!(found.command_line.0, arguments);
        assert_eq!(
            found.exe,
            std::env::current_exe()
                .ok()
                .map(|path| path.to_string_lossy().into_owned())
        );
        assert_eq!((found.uid, found.gid), (effective_uid(), effective_gid()));
        assert!(found
            .environment
            .is_some_and(|bytes| bytes.0.windows(5).any(|word| word == b"PATH=")));
    }

    #[test]
    fn a_process_that_becomes_another_program_all_the_time_lives() {
        let script = r#"exec sh -c "$0" "$0""#;
        let mut child = std::process::Command::new("sh")
            .args(["-c", script, script])
            .spawn()
            .unwrap();
        // It may stand still amid an execve(2), on a busy machine.
        let look = |_| look_within(child.id() as i32, Duration::MAX);
        let looks: Vec<_> = (0..3000).map(look).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        let failed: Vec<_> = looks.into_iter().filter_map(Result::err).collect();
        assert!(
            failed.is_empty(),
            "{} of 3000: {:?}",
            failed.len(),
            failed[0]
        );
        assert!(look_at(child.id() as i32).is_err());
    }

    #[test]
    fn what_nobody_may_see_is_missing() {
        let refused = || Err::<(), _>(io::ErrorKind::PermissionDenied.into());
        assert!(permitted(effective_uid(), effective_gid(), refused)
            .unwrap()
            .is_none());
        let gone = || Err::<(), _>(io::ErrorKind::NotFound.into());
        assert!(permitted(0, 0, gone).is_err());
    }
}
