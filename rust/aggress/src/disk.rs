//! Storms on the disk: small writes each of which must reach it, and large ones without end.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use virtoll_probe::arguments::Arguments;

use crate::shared::Shared;
use crate::{team, Aggressor, Work};

pub const AGGRESSOR: Aggressor = Aggressor {
    name: "disk",
    summary: "small writes that must each reach the disk, and large ones without end",
    usage: "[--kind both|fsync|sequential] [--most-bytes 67108864] [--directory /var/tmp]",
    counts: &["written_bytes", "syncs", "refused"],
    prepare,
};

const WRITTEN: usize = 0;
const SYNCS: usize = 1;
const REFUSED: usize = 2;

const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 1024 * 1024;

#[derive(Clone, Copy)]
enum Storm {
    Fsync,
    Sequential,
}

fn prepare(arguments: &mut Arguments) -> Work {
    let storms: &'static [Storm] = match arguments.one_of("kind", &["both", "fsync", "sequential"])
    {
        "fsync" => &[Storm::Fsync],
        "sequential" => &[Storm::Sequential],
        _ => &[Storm::Sequential, Storm::Fsync],
    };
    let least_bytes = (storms.len() * LARGE_BYTES) as u64;
    let most_bytes = arguments.at_least("most-bytes", least_bytes, 64 * 1024 * 1024);
    let directory = PathBuf::from(arguments.get("directory", "/var/tmp".to_owned()));
    let file_bytes = most_bytes / storms.len() as u64;
    Box::new(move |shared: &Shared| storm(*shared, storms, file_bytes, &directory))
}

fn storm(shared: Shared, storms: &'static [Storm], file_bytes: u64, directory: &Path) -> String {
    let mut files = Vec::new();
    for _ in storms {
        match nameless(directory) {
            Ok(file) => files.push(file),
            Err(error) => {
                return format!("no file can be made in {}: {error}", directory.display())
            }
        }
    }
    let files: &'static [File] = files.leak(); // open until the process ends
    team::work(
        storms.len() as u64,
        move || shared.add(REFUSED, 1),
        move |number| {
            let file = &files[number as usize];
            match storms[number as usize] {
                Storm::Fsync => sync_small(shared, file, file_bytes),
                Storm::Sequential => write_large(shared, file, file_bytes),
            }
        },
    )
}

/// Write a block to a place that jumps about in the file, have it reach the disk, and so on.
fn sync_small(shared: Shared, file: &File, file_bytes: u64) -> ! {
    let mut block = vec![0_u8; SMALL_BYTES];
    let blocks = (file_bytes / SMALL_BYTES as u64).max(1);
    let mut stamp = 0_u64;
    loop {
        stamp += 1;
        fill(&mut block, stamp);
        let place = stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks;
        if write(shared, file, &block, place * SMALL_BYTES as u64) {
            match file.sync_all() {
                Ok(()) => shared.add(SYNCS, 1),
                Err(_) => shared.add(REFUSED, 1),
            }
        }
    }
}

/// Write the file from its beginning to its end, have the rest of it reach the disk, and so on.
fn write_large(shared: Shared, file: &File, file_bytes: u64) -> ! {
    let mut block = vec![0_u8; LARGE_BYTES];
    let mut stamp = 0;
    loop {
        for offset in (0..file_bytes / LARGE_BYTES as u64).map(|number| number * LARGE_BYTES as u64)
        {
            stamp += (LARGE_BYTES / 8) as u64;
            fill(&mut block, stamp);
            if !write(shared, file, &block, offset) {
                break;
            }
        }
        match file.sync_data() {
            Ok(()) => shared.add(SYNCS, 1),
            Err(_) => shared.add(REFUSED, 1),
        }
    }
}

/// Whether all of the block was taken; what was not (a full disk) is counted, and its place in the file tried again.
fn write(shared: Shared, file: &File, block: &[u8], offset: u64) -> bool {
    let written = file.write_all_at(block, offset);
    match written {
        Ok(()) => shared.add(WRITTEN, block.len() as u64),
        Err(_) => shared.add(REFUSED, 1),
    }
    written.is_ok()
}

/// Contents that are nowhere else, so that nothing can merge or compress them away.
fn fill(block: &mut [u8], stamp: u64) {
    for (number, word) in block.chunks_exact_mut(8).enumerate() {
        let mixed = (stamp + number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word.copy_from_slice(&(mixed ^ (mixed >> 29)).to_le_bytes());
    }
}

/// A file without a name, of which nothing is left when the process ends, however it does.
fn nameless(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.custom_flags(libc::O_TMPFILE).open(directory) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            unlinked(directory)
        }
        outcome => outcome,
    }
}

/// The same where the file system knows no file without a name.
fn unlinked(directory: &Path) -> io::Result<File> {
    let template = directory
        .join("virtoll-XXXXXX")
        .into_os_string()
        .into_encoded_bytes();
    let mut path = CString::new(template)?.into_bytes_with_nul();
    // SAFETY: a writable string that ends with a zero; the descriptor has no other owner.
    let file = unsafe {
        let fd = libc::mkostemp(path.as_mut_ptr().cast(), libc::O_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        <File as std::os::fd::FromRawFd>::from_raw_fd(fd)
    };
    path.pop();
    fs::remove_file(PathBuf::from(
        <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(path),
    ))?;
    Ok(file)
}
