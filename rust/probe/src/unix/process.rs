//! Processes and pipes, by system calls.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

use crate::report::Failed;

const MORE_PROCESSES: &str = "raise the limit of processes ([limits] pids), or run fewer copies";

/// A child of this process. Dropped, it is killed if it still runs, and reaped.
pub struct Child {
    pid: libc::pid_t,
    reaped: bool,
}

impl Child {
    /// Fork. In the child `body` runs, and its exit code ends the child; it never returns. The child ends with its parent.
    ///
    /// # Safety
    ///
    /// The calling process has one thread, or `body` calls nothing but what is async-signal-safe (signal-safety(7)): of
    /// several threads the child has the caller's alone, and a lock that another held (the allocator's too) is never
    /// given back in it. `body` must not unwind.
    pub unsafe fn fork(body: impl FnOnce() -> i32) -> Result<Child, Failed> {
        // SAFETY: getpid and fork have no memory that could be wrong; the caller answers for what the child does.
        let (parent, pid) = unsafe { (libc::getpid(), libc::fork()) };
        if pid < 0 {
            return Err(no_process(&io::Error::last_os_error()));
        }
        if pid == 0 {
            // SAFETY: plain calls; _exit ends the child without the parent's own cleaning up.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                let orphaned = libc::getppid() != parent;
                libc::_exit(if orphaned { 1 } else { body() });
            }
        }
        Ok(Child { pid, reaped: false })
    }

    /// Wait for its end; its wait status (0: it ended well).
    pub fn wait(mut self) -> Result<i32, Failed> {
        self.reaped = true;
        wait_for(self.pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // SAFETY: the child is ours and not yet reaped, so its pid is no one else's.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            let _ = wait_for(self.pid);
        }
    }
}

/// Why there is no further process.
pub fn no_process(error: &io::Error) -> Failed {
    Failed::new("refused", error.to_string(), "fork", MORE_PROCESSES)
}

/// Why a file cannot be made or written. Only a full file system is a want of space.
pub fn no_file(path: &Path, error: &io::Error) -> Failed {
    let (kind, remedy) = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => (
            "space",
            "free some space ([limits] disk), or name another --directory",
        ),
        _ => (
            "system",
            "name a --directory that exists and can be written",
        ),
    };
    Failed::new(kind, error.to_string(), path.display().to_string(), remedy)
}

/// Reap a child; its wait status.
pub fn wait_for(pid: libc::pid_t) -> Result<i32, Failed> {
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
        Ok(status)
    } else {
        Err(Failed::system("waitpid", &io::Error::last_os_error()))
    }
}

/// A pipe: where to read, where to write. Both close on exec.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Failed> {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Failed::system("pipe2", &io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just made both, and no one else knows them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// As `pipe`, as files.
pub fn pipe_files() -> Result<(File, File), Failed> {
    pipe().map(|(reading, writing)| (File::from(reading), File::from(writing)))
}

/// read(2); how many bytes, or a negative errno.
pub fn read_into(descriptor: libc::c_int, buffer: &mut [u8]) -> isize {
    let address = buffer.as_mut_ptr() as usize;
    // SAFETY: the kernel writes at most the buffer's length.
    unsafe { call(libc::SYS_read, [descriptor as usize, address, buffer.len()]) }
}

/// write(2); how many bytes, or a negative errno.
pub fn write_from(descriptor: libc::c_int, buffer: &[u8]) -> isize {
    let address = buffer.as_ptr() as usize;
    // SAFETY: the kernel reads at most the buffer's length.
    unsafe {
        call(
            libc::SYS_write,
            [descriptor as usize, address, buffer.len()],
        )
    }
}

/// A system call and nothing else: a C library's own hooks are not what is measured. Its result, or a negative errno.
///
/// # Safety
/// As the call's own.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn call(number: libc::c_long, arguments: [usize; 3]) -> isize {
    let result;
    // SAFETY: the kernel's calling convention; it preserves all other registers. The caller answers for the call.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// A system call. Its result, or a negative errno.
///
/// # Safety
/// As the call's own.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub unsafe fn call(number: libc::c_long, arguments: [usize; 3]) -> isize {
    // SAFETY: the caller answers for the call.
    match unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) } {
        -1 => {
            -(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO) as isize)
        }
        result => result as isize,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::ptr;

    use super::*;

    #[test]
    fn a_childs_exit_code_is_its_status() {
        // SAFETY: the child only ends.
        let child = unsafe { Child::fork(|| 3) };
        let status = child.unwrap().wait().unwrap();
        assert_eq!(libc::WEXITSTATUS(status), 3);
    }

    #[test]
    fn a_dropped_child_is_killed_and_reaped() {
        // SAFETY: the child only spins.
        let child = unsafe {
            Child::fork(|| loop {
                std::hint::spin_loop();
            })
        }
        .unwrap();
        let pid = child.pid;
        drop(child);
        // Asked of this process alone: by now the number may be another's.
        // SAFETY: no status is wanted.
        let waited = unsafe { libc::waitpid(pid, ptr::null_mut(), libc::WNOHANG) };
        let error = io::Error::last_os_error().raw_os_error();
        assert_eq!((waited, error), (-1, Some(libc::ECHILD)));
    }

    #[test]
    fn only_a_full_file_system_is_a_want_of_space() {
        let failed = |errno| no_file(Path::new("/x"), &io::Error::from_raw_os_error(errno)).kind;
        assert_eq!(failed(libc::ENOSPC), "space");
        assert_eq!(failed(libc::ENOENT), "system");
    }

    #[test]
    fn a_call_gives_its_result_or_its_error() {
        let (reading, writing) = pipe().unwrap();
        let mut buffer = [0; 4];
        assert_eq!(write_from(writing.as_raw_fd(), b"abc"), 3);
        assert_eq!(read_into(reading.as_raw_fd(), &mut buffer), 3);
        assert_eq!(&buffer, b"abc\0");
        assert_eq!(write_from(-1, b"abc"), -(libc::EBADF as isize));
    }
}
