//! Files in and out, in parts; the end of one; what is written, safe on the disk.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use virtoll_wire::base64::Bytes;
use virtoll_wire::protocol::{Answer, Part, Tail, CHUNK_BYTES, MOST_TOLD_BYTES};

use crate::agent::{done, failed, Outcome};
use crate::paths;

/// Write a part of a file at `offset`. The part at 0 makes the file (and its parents) anew.
pub fn put(path: &str, mode: u32, offset: u64, data: &[u8]) -> Outcome {
    match write_part(Path::new(path), mode, offset, data) {
        Ok(()) => done(),
        Err(error) => failed(
            format!("cannot write: {error}"),
            path,
            "check the path and the space left on the disk",
        ),
    }
}

/// Read at most one chunk of a file from `offset`.
pub fn get(path: &str, offset: u64) -> Outcome {
    match read_part(Path::new(path), offset) {
        Ok(data) => {
            let end = data.len() < CHUNK_BYTES;
            Ok(Answer::Part(Part {
                data: Bytes(data),
                end,
            }))
        }
        Err(error) => failed(format!("cannot read: {error}"), path, "check the path"),
    }
}

/// The last `bytes` of a file, or all of it where it is shorter.
pub fn tail(path: &str, bytes: u64) -> Outcome {
    if bytes > MOST_TOLD_BYTES as u64 {
        let what = format!("{bytes} bytes are more than {MOST_TOLD_BYTES}");
        return failed(what, path, "ask for less");
    }
    match read_tail(Path::new(path), bytes) {
        Ok(tail) => Ok(Answer::Tail(tail)),
        Err(error) => failed(format!("cannot read: {error}"), path, "check the path"),
    }
}

/// Have what was written to the file system of `path` on its disk.
pub fn sync(path: &str) -> Outcome {
    let synced = paths::open_any(Path::new(path), libc::O_RDONLY).and_then(|file| {
        // SAFETY: a descriptor that we own; no memory is involved.
        match unsafe { libc::syncfs(file.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    match synced {
        Ok(()) => done(),
        Err(error) => failed(format!("cannot sync: {error}"), path, "check the path"),
    }
}

fn write_part(path: &Path, mode: u32, offset: u64, data: &[u8]) -> io::Result<()> {
    let mut file = if offset == 0 {
        let file = paths::create(path, libc::O_WRONLY | libc::O_TRUNC, mode)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?; // whatever the umask, and of an older file too
        file
    } else {
        paths::open(path, libc::O_WRONLY, 0)?
    };
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(data)
}

fn read_part(path: &Path, offset: u64) -> io::Result<Vec<u8>> {
    let mut file = paths::open(path, libc::O_RDONLY, 0)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut data = Vec::with_capacity(CHUNK_BYTES);
    file.take(CHUNK_BYTES as u64).read_to_end(&mut data)?;
    Ok(data)
}

fn read_tail(path: &Path, bytes: u64) -> io::Result<Tail> {
    let mut file = paths::open(path, libc::O_RDONLY, 0)?;
    let length_bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(length_bytes.saturating_sub(bytes)))?;
    let mut data = Vec::new();
    file.take(bytes).read_to_end(&mut data)?; // no more, though it be written to meanwhile
    Ok(Tail {
        data: Bytes(data),
        length_bytes,
    })
}
