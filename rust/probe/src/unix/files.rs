//! UnixBench's file tests (fstime): write, read and copy a small file in buffers of 256, 1024 or 4096 bytes, through
//! the page cache. At the file's end they begin again at its start.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::copies::{Lap, Work};
use super::process::{no_file, read_into, write_from};
use super::{measure, Quantity};
use crate::arguments::Arguments;
use crate::names::unique;
use crate::report::{Failed, Report};
use crate::Probe;

pub const FILE: Probe = Probe {
    name: "unix-file",
    summary: "writing, reading, copying a small file in small buffers",
    usage:
        "[--copies 1] [--operation copy|read|write] [--buffer-bytes 1024] [--directory /var/tmp]",
    run,
};

/// UnixBench's files: 500 KiB for 256 bytes, 2000 KiB for 1024, 8000 KiB for 4096.
const BUFFERS: u64 = 2000;
/// Each buffer begins with its number in the file.
const NUMBER_BYTES: usize = 8;
/// Two files of 2 GiB: larger ones are no small files.
const MOST_BUFFER_BYTES: u64 = 1 << 20;
const KIB_BYTES: f64 = 1024.0;

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let operation = match arguments.one_of("operation", &["copy", "read", "write"]) {
        "read" => Operation::Read,
        "write" => Operation::Write,
        _ => Operation::Copy,
    };
    let least_bytes = NUMBER_BYTES as u64;
    let buffer_bytes =
        arguments.within("buffer-bytes", least_bytes, MOST_BUFFER_BYTES, 1024) as usize;
    let directory = arguments.get("directory", "/var/tmp".to_owned());
    let quantity = Quantity {
        key: "kib_per_s",
        unit: "KiB/s",
        per_unit: buffer_bytes as f64 / KIB_BYTES,
        proof: "every buffer was whole and in its place",
    };
    let mut report = measure(arguments, &quantity, |_| {
        let files = Files::make(Path::new(&directory), buffer_bytes)?;
        Ok(files.work(operation))
    })?;
    report.fact("file_bytes", BUFFERS * buffer_bytes as u64);
    report.fact("file_system", file_system(&directory));
    Ok(report)
}

/// The magic number of a directory's file system: 0xef53 is ext's, 0x1021994 tmpfs's, 0x794c7630 overlayfs's.
fn file_system(directory: &str) -> Option<String> {
    let path = std::ffi::CString::new(directory).ok()?;
    // SAFETY: statfs is plain numbers, for which zero is a value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with NUL, and `found` is valid for writing.
    let failed = unsafe { libc::statfs(path.as_ptr(), &mut found) } != 0;
    (!failed).then(|| format!("{:#x}", found.f_type))
}

#[derive(Clone, Copy)]
enum Operation {
    Copy,
    Read,
    Write,
}

/// What one copy works on. The files have no names any more: they go with the process, however that ends.
struct Files {
    from: File,
    to: File,
    buffer: Vec<u8>,
    place: String,
    /// The number of the next buffer.
    next: u64,
}

impl Files {
    /// Two files, both written once and read once, so that nothing is new to the kernel.
    fn make(directory: &Path, buffer_bytes: usize) -> Result<Files, Failed> {
        let mut files = Files {
            from: nameless(directory)?,
            to: nameless(directory)?,
            buffer: (0..buffer_bytes).map(|index| index as u8).collect(),
            place: directory.display().to_string(),
            next: 0,
        };
        for _ in 0..BUFFERS {
            files.write()?;
        }
        files.rewind();
        for _ in 0..=BUFFERS {
            files.copy()?; // the last finds the end and rewinds, and one more is copied
        }
        files.rewind();
        Ok(files)
    }

    fn work(mut self, operation: Operation) -> Work {
        let step = match operation {
            Operation::Copy => Files::copy,
            Operation::Read => Files::read,
            Operation::Write => Files::write,
        };
        Box::new(move |units| {
            self.flush()?;
            let lap = Lap::repeating(units, || step(&mut self))?;
            let wrong = lap.wrong.clone().or_else(|| self.last_is_wrong(operation));
            Ok(lap.verified(wrong))
        })
    }

    /// Let what was written before be no burden of what follows; its time is not measured.
    fn flush(&self) -> Result<(), Failed> {
        let synced = self.from.sync_all().and_then(|()| self.to.sync_all());
        synced.map_err(|error| Failed::system(format!("fsync in {}", self.place), &error))
    }

    /// Back to the start of both files.
    fn rewind(&mut self) {
        for file in [&self.from, &self.to] {
            // SAFETY: a call without memory.
            unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET) };
        }
        self.next = 0;
    }

    fn write(&mut self) -> Result<Option<String>, Failed> {
        if self.next == BUFFERS {
            self.rewind();
        }
        self.buffer[..NUMBER_BYTES].copy_from_slice(&self.next.to_ne_bytes());
        self.put(self.from.as_raw_fd())?;
        self.next += 1;
        Ok(None)
    }

    fn read(&mut self) -> Result<Option<String>, Failed> {
        let mut length = read_into(self.from.as_raw_fd(), &mut self.buffer);
        if length == 0 {
            self.rewind();
            length = read_into(self.from.as_raw_fd(), &mut self.buffer);
        }
        if length != self.buffer.len() as isize {
            return Err(self.short("read", length));
        }
        let wrong = out_of_place(self.next, &self.buffer);
        self.next += 1;
        Ok(wrong)
    }

    fn copy(&mut self) -> Result<Option<String>, Failed> {
        let wrong = self.read()?;
        self.put(self.to.as_raw_fd())?;
        Ok(wrong)
    }

    fn put(&self, descriptor: libc::c_int) -> Result<(), Failed> {
        let length = write_from(descriptor, &self.buffer);
        if length == self.buffer.len() as isize {
            Ok(())
        } else {
            Err(self.short("write", length))
        }
    }

    #[cold]
    fn short(&self, call: &str, length: isize) -> Failed {
        if length < 0 {
            let error = io::Error::from_raw_os_error(-length as i32);
            return no_file(Path::new(&self.place), &error);
        }
        Failed::new(
            "space",
            format!("{length} of {} bytes", self.buffer.len()),
            format!("{call} of a file in {}", self.place),
            "free some space ([limits] disk), or name another --directory",
        )
    }

    /// Whether the file has its length, and the buffer that was done last is in its place: asked of the file itself.
    fn last_is_wrong(&self, operation: Operation) -> Option<String> {
        let file = match operation {
            Operation::Copy => &self.to,
            Operation::Read | Operation::Write => &self.from,
        };
        let length_bytes = file.metadata().map(|of| of.len()).unwrap_or(0);
        let whole_bytes = BUFFERS * self.buffer.len() as u64;
        if length_bytes != whole_bytes {
            return Some(format!(
                "the file has {length_bytes} bytes, not {whole_bytes}"
            ));
        }
        let number = self.next.checked_sub(1)?;
        let mut buffer = vec![0; self.buffer.len()];
        match file.read_exact_at(&mut buffer, number * self.buffer.len() as u64) {
            Ok(()) if buffer == self.buffer => out_of_place(number, &buffer),
            Ok(()) => Some(format!("buffer {number} is not what was written or read")),
            Err(error) => Some(format!("buffer {number} cannot be read: {error}")),
        }
    }
}

#[inline]
fn out_of_place(number: u64, buffer: &[u8]) -> Option<String> {
    if buffer[..NUMBER_BYTES] == number.to_ne_bytes() {
        return None;
    }
    Some(format!("in the place of buffer {number} is another"))
}

/// A new file in `directory` whose name is gone at once.
fn nameless(directory: &Path) -> Result<File, Failed> {
    let path = directory.join(unique("virtoll-file"));
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .and_then(|file| fs::remove_file(&path).map(|()| file))
        .map_err(|error| no_file(&path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        Files::make(&std::env::temp_dir(), 256).unwrap()
    }

    #[test]
    fn all_operations_pass_their_own_check_beyond_the_files_end() {
        for operation in [Operation::Copy, Operation::Read, Operation::Write] {
            let mut work = files().work(operation);
            assert_eq!(work(3).unwrap().wrong, None);
            assert_eq!(work(2 * BUFFERS).unwrap().wrong, None);
        }
    }

    #[test]
    fn a_buffer_in_the_wrong_place_is_caught() {
        let files = files();
        files
            .from
            .write_all_at(&9_u64.to_ne_bytes(), 2 * 256)
            .unwrap();
        let mut work = files.work(Operation::Copy);
        assert!(work(BUFFERS).unwrap().wrong.is_some());
    }

    #[test]
    fn a_file_of_the_wrong_length_is_caught() {
        let files = files();
        files.to.set_len(256).unwrap();
        let mut work = files.work(Operation::Copy);
        assert!(work(1).unwrap().wrong.is_some());
    }

    #[test]
    fn a_missing_directory_is_a_failure() {
        let failed = Files::make(Path::new("/nowhere"), 256).err().unwrap();
        assert_eq!(failed.kind, "system");
    }
}
