//! Paths that a request names, opened with care: whoever holds the instance's file system may have put anything there.
//!
//! No magic link of proc (`/proc/PID/root`, `/proc/PID/fd/N`) is followed: where the agent is root in a chroot beside the
//! host's processes, such a link would lead out of it (openat2(2), RESOLVE_NO_MAGICLINKS; Linux 5.6, and `walk` where
//! the kernel has no such call). Ordinary links are, for images have them. Nothing is waited for: what is no regular file is an error.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::walk;

const PERMISSIONS: u32 = 0o7777;

/// What openat2(2) takes.
#[repr(C)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// A regular file, opened with `flags` (open(2)) and, where they make it, `mode`.
pub fn open(path: &Path, flags: libc::c_int, mode: u32) -> io::Result<File> {
    let file = File::from(open_at(
        libc::AT_FDCWD,
        path,
        flags | libc::O_NONBLOCK,
        mode,
    )?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(other("not a regular file"))
}

/// The same, made anew where it is not there, and its parents.
pub fn create(path: &Path, flags: libc::c_int, mode: u32) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    open(path, flags | libc::O_CREAT, mode)
}

/// All of a file of at most `most_bytes`.
pub fn read(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    let file = open(path, libc::O_RDONLY, 0)?;
    file.take(most_bytes + 1).read_to_end(&mut data)?;
    if data.len() as u64 > most_bytes {
        return Err(other(format!("longer than {most_bytes} bytes")));
    }
    Ok(data)
}

/// What there is at `path`, be it what it may; nothing is waited for.
pub fn open_any(path: &Path, flags: libc::c_int) -> io::Result<File> {
    open_at(libc::AT_FDCWD, path, flags | libc::O_NONBLOCK, 0).map(File::from)
}

/// A directory, for what is in it or to work in.
pub fn directory(path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    open_at(libc::AT_FDCWD, path, libc::O_PATH | libc::O_DIRECTORY, 0)
}

/// A directory that is made, with those above, where it is not there.
pub fn make_directory(path: &Path) -> io::Result<OwnedFd> {
    match directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(error);
            };
            let (parent, name) = (make_directory(parent)?, terminated(Path::new(name))?);
            // SAFETY: reads a text that ends in a zero byte.
            let made = unsafe { libc::mkdirat(parent.as_raw_fd(), name.as_ptr(), 0o777) };
            match checked(made) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => directory(path),
            }
        }
        found => found,
    }
}

/// A new file in a directory, and gone from it at once: whatever ends us, its space is free again.
pub fn nameless(directory: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    let file = open_at(directory.as_raw_fd(), Path::new(name), flags, 0o600)?;
    unlink(directory, Path::new(name))?;
    Ok(File::from(file))
}

/// Remove a file.
pub fn remove(path: &Path) -> io::Result<()> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => unlink(&directory(parent)?, Path::new(name)),
        _ => Err(other("no file")),
    }
}

fn unlink(directory: &OwnedFd, name: &Path) -> io::Result<()> {
    let name = terminated(name)?;
    // SAFETY: reads a text that ends in a zero byte.
    checked(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) }).map(|_| ())
}

fn open_at(at: libc::c_int, path: &Path, flags: libc::c_int, mode: u32) -> io::Result<OwnedFd> {
    let makes = flags & libc::O_CREAT != 0;
    let mode = if makes { mode & PERMISSIONS } else { 0 }; // more is refused
    let opened = match openat2(at, path, flags, mode) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            walk::open(at, path, flags, mode)
        }
        opened => opened,
    };
    opened.map_err(explained)
}

/// By the kernel, where it has this call.
pub fn openat2(at: libc::c_int, path: &Path, flags: libc::c_int, mode: u32) -> io::Result<OwnedFd> {
    let path = terminated(path)?;
    let how = How {
        flags: (flags | libc::O_CLOEXEC) as u64,
        mode: u64::from(mode),
        resolve: libc::RESOLVE_NO_MAGICLINKS,
    };
    // SAFETY: reads a text that ends in a zero byte and a structure of the size that is told.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            at,
            path.as_ptr(),
            &raw const how,
            size_of::<How>(),
        )
    };
    match opened {
        // SAFETY: the kernel has just made this descriptor, and nobody else has it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(opened as libc::c_int) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => other(
            "it leads through a link of proc, which is not followed, or links lead in a circle",
        ),
        _ => error,
    }
}

fn terminated(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| other("a zero byte in the path"))
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(result),
    }
}

fn other(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}
