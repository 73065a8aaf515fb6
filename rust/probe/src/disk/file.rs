//! The file that is measured: it has no name once it is open, so nothing is left of it however the probe ends.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr;

use super::buffer::Buffer;
use super::device::Device;
use crate::names::unique;
use crate::report::Failed;

/// What a page cache is made of. A greater page only makes the map of it coarser.
const PAGE_BYTES: u64 = 4096;

/// An open file without a name, in a directory that says where it lies.
pub struct TestFile {
    /// Through the page cache, whatever the records are moved through.
    plain: File,
    /// Past the page cache, where that is asked for.
    direct: Option<File>,
    place: String,
}

impl TestFile {
    /// A new and empty file in `directory`; with `direct`, Failed of kind direct-io unless O_DIRECT is really obeyed.
    pub fn create(directory: &str, direct: bool) -> Result<TestFile, Failed> {
        let path = Path::new(directory).join(unique(".virtoll-disk"));
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let place = format!("a file in {directory}");
        let plain = options
            .clone()
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| failed("open", &place, &error, false))?;
        let past_the_cache = direct.then(|| options.custom_flags(libc::O_DIRECT).open(&path));
        fs::remove_file(&path).map_err(|error| failed("unlink", &place, &error, false))?;
        let file = TestFile {
            plain,
            direct: past_the_cache
                .transpose()
                .map_err(|error| failed("open with O_DIRECT", &place, &error, true))?,
            place,
        };
        if direct {
            file.prove_direct()?;
        }
        Ok(file)
    }

    /// Some file systems accept O_DIRECT and keep the data in the page cache all the same.
    fn prove_direct(&self) -> Result<(), Failed> {
        let page = Buffer::zeroed(PAGE_BYTES as usize)?;
        self.target()
            .write_all_at(&page, 0)
            .map_err(|error| self.failed("a write with O_DIRECT", &error))?;
        if self.cached_share(PAGE_BYTES)? > 0.0 {
            return Err(direct_io(
                "what was written with O_DIRECT is in the page cache".into(),
                &self.place,
            ));
        }
        self.empty()
    }

    /// What records are moved through.
    pub fn target(&self) -> &File {
        self.direct.as_ref().unwrap_or(&self.plain)
    }

    /// The descriptor of [`TestFile::target`].
    pub fn descriptor(&self) -> RawFd {
        self.target().as_raw_fd()
    }

    /// Write `bytes` at `offset` through the page cache, whatever the records go through.
    pub fn prepare(&self, bytes: &[u8], offset: u64) -> Result<(), Failed> {
        self.plain
            .write_all_at(bytes, offset)
            .map_err(|error| self.failed("write", &error))
    }

    /// Read `bytes` back from `offset`, through the page cache; false where the file is shorter.
    pub fn read_back(&self, bytes: &mut [u8], offset: u64) -> Result<bool, Failed> {
        match self.plain.read_exact_at(bytes, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(self.failed("read back", &error)),
        }
    }

    /// Make it empty again.
    pub fn empty(&self) -> Result<(), Failed> {
        self.plain
            .set_len(0)
            .map_err(|error| self.failed("ftruncate", &error))
    }

    /// Have everything on the disk: fsync, or fdatasync.
    pub fn flush(&self, data_only: bool) -> Result<(), Failed> {
        let (call, done) = if data_only {
            ("fdatasync", self.target().sync_data())
        } else {
            ("fsync", self.target().sync_all())
        };
        done.map_err(|error| self.failed(call, &error))
    }

    /// Have everything on the disk and ask the kernel to forget its copy; [`TestFile::cached_share`] tells if it did.
    pub fn drop_cache(&self) -> Result<(), Failed> {
        self.flush(false)?;
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        let code =
            unsafe { libc::posix_fadvise(self.plain.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        match code {
            0 => Ok(()),
            code => Err(self.failed("posix_fadvise", &Error::from_raw_os_error(code))),
        }
    }

    /// Which share of its first `length` bytes the page cache holds, 0 to 1 (mincore).
    pub fn cached_share(&self, length: u64) -> Result<f64, Failed> {
        let pages = length.div_ceil(PAGE_BYTES) as usize;
        if pages == 0 {
            return Ok(0.0);
        }
        let mut resident = vec![0_u8; pages];
        let bytes = pages * PAGE_BYTES as usize;
        // SAFETY: a new mapping of our own file; it is not read, only asked about, and `resident` has a byte a page.
        let code = unsafe {
            let start = libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ,
                libc::MAP_SHARED,
                self.plain.as_raw_fd(),
                0,
            );
            if start == libc::MAP_FAILED {
                -1
            } else {
                let code = libc::mincore(start, bytes, resident.as_mut_ptr());
                libc::munmap(start, bytes);
                code
            }
        };
        if code != 0 {
            return Err(self.failed("mincore", &Error::last_os_error()));
        }
        let held = resident.iter().filter(|page| **page & 1 == 1).count();
        Ok(held as f64 / pages as f64)
    }

    /// The kind of file system it lies on, as statfs(2) names it; a number where that has no name here.
    pub fn file_system(&self) -> String {
        // SAFETY: all zeros are a valid `statfs`.
        let mut status: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open and `status` is valid for writing.
        unsafe { libc::fstatfs(self.plain.as_raw_fd(), &mut status) };
        let magic = status.f_type as u32;
        let name = FILE_SYSTEMS.iter().find(|(number, _)| *number == magic);
        name.map_or_else(|| format!("{magic:#x}"), |(_, name)| (*name).to_owned())
    }

    /// The disk beneath it, where that can be told.
    pub fn device(&self) -> Option<Device> {
        Device::of(self.plain.metadata().ok()?.dev())
    }

    /// The failure of a call on this file.
    pub fn failed(&self, call: &str, error: &Error) -> Failed {
        failed(call, &self.place, error, self.direct.is_some())
    }
}

/// f_type of the file systems that an instance may well have (statfs(2)).
const FILE_SYSTEMS: [(u32, &str); 8] = [
    (0xef53, "ext4"),
    (0x794c_7630, "overlay"),
    (0x0102_1994, "tmpfs"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "fuse"),
];

fn failed(call: &str, place: &str, error: &Error, direct: bool) -> Failed {
    let place = format!("{call}, {place}");
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Failed::new(
            "space",
            "the disk is full",
            place,
            "choose a smaller file, or a larger disk ([limits] disk)",
        ),
        Some(libc::EINVAL) if direct => {
            direct_io("the file system refuses O_DIRECT".into(), &place)
        }
        _ => Failed::system(place, error),
    }
}

fn direct_io(what: String, place: &str) -> Failed {
    Failed::new(
        "direct-io",
        what,
        place,
        "measure through the page cache (direct = \"no\"), or in a directory of another file system",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Directory;
    use std::thread;

    #[test]
    fn the_file_has_no_name() {
        let directory = Directory::new();
        let file = TestFile::create(&directory.text(), false).unwrap();
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
        file.prepare(b"still there", 0).unwrap();
        let mut bytes = [0; 11];
        assert!(file.read_back(&mut bytes, 0).unwrap());
        assert!(!file.read_back(&mut bytes, 1).unwrap());
        assert_eq!(&bytes[..10], b"till there");
    }

    #[test]
    fn a_directory_that_is_none_is_told() {
        let failed = TestFile::create("/nowhere", false).err().unwrap();
        assert_eq!(failed.kind, "system");
        assert!(failed.place.contains("/nowhere"));
    }

    #[test]
    fn failures_have_their_kinds() {
        let kind =
            |number, direct| failed("write", "x", &Error::from_raw_os_error(number), direct).kind;
        assert_eq!(kind(libc::ENOSPC, false), "space");
        assert_eq!(kind(libc::EDQUOT, true), "space");
        assert_eq!(kind(libc::EINVAL, true), "direct-io");
        assert_eq!(kind(libc::EINVAL, false), "system");
        assert_eq!(kind(libc::EIO, true), "system");
    }

    #[test]
    fn files_that_are_made_at_once_are_each_their_own() {
        let directory = Directory::new();
        let text = directory.text();
        thread::scope(|scope| {
            for number in 0..4_u8 {
                let text = &text;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let file = TestFile::create(text, false).unwrap();
                        file.prepare(&[number; 8], 0).unwrap();
                        let mut bytes = [9; 8];
                        assert!(file.read_back(&mut bytes, 0).unwrap());
                        assert_eq!(bytes, [number; 8]);
                    }
                });
            }
        });
    }

    #[test]
    fn what_was_just_written_is_cached() {
        let directory = Directory::new();
        let file = TestFile::create(&directory.text(), false).unwrap();
        file.prepare(&[1; 8192], 0).unwrap();
        assert_eq!(file.cached_share(8192).unwrap(), 1.0);
        assert_eq!(file.cached_share(0).unwrap(), 0.0);
    }
}
