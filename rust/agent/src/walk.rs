//! What openat2(2) does with RESOLVE_NO_MAGICLINKS, for kernels that lack it: Linux's before 5.6, and gVisor's until 2026.
//!
//! Each part of the path is looked at by itself, and links are followed by their text. What a magic link of proc leads to
//! is not in its text, so that none is followed even where somebody changes the path meanwhile.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const MOST_LINKS: u32 = 40; // as Linux has it (path_resolution(7))
const LONGEST_LINK: usize = 4096;

/// A file opened with `flags` and `mode` (open(2)), from the directory `at` where its path is not absolute.
pub fn open(at: libc::c_int, path: &Path, flags: libc::c_int, mode: u32) -> io::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    }
    let follows = flags & libc::O_NOFOLLOW == 0
        && flags & (libc::O_CREAT | libc::O_EXCL) != libc::O_CREAT | libc::O_EXCL;
    let mut here = start(at, path)?;
    let mut parts = parts(path);
    let mut links = 0;
    loop {
        let Some(name) = parts.pop_front() else {
            return openat(here.as_raw_fd(), c".", flags, mode);
        };
        let is_last = parts.is_empty();
        if is_link(&here, &name)? && (follows || !is_last) {
            links += 1;
            if links > MOST_LINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            let text = ordinary_link(&here, &name)?;
            if text.has_root() {
                here = start(libc::AT_FDCWD, Path::new("/"))?;
            }
            for part in self::parts(&text).into_iter().rev() {
                parts.push_front(part);
            }
        } else if is_last {
            return openat(here.as_raw_fd(), &name, flags | libc::O_NOFOLLOW, mode);
        } else {
            here = openat(here.as_raw_fd(), &name, libc::O_NOFOLLOW | DIRECTORY, 0)?;
        }
    }
}

const DIRECTORY: libc::c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;

fn start(at: libc::c_int, path: &Path) -> io::Result<OwnedFd> {
    openat(at, if path.has_root() { c"/" } else { c"." }, DIRECTORY, 0)
}

/// The names on the way, and "." at its end where it says that this is a directory.
fn parts(path: &Path) -> VecDeque<CString> {
    let bytes = path.as_os_str().as_bytes();
    let mut names: VecDeque<CString> = bytes
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty() && name != b".")
        .filter_map(|name| CString::new(name).ok()) // the caller has seen that no byte is zero
        .collect();
    if bytes.ends_with(b"/") || bytes.ends_with(b"/.") {
        names.push_back(c".".into());
    }
    names
}

fn is_link(directory: &OwnedFd, name: &CStr) -> io::Result<bool> {
    let mut told = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: reads a text that ends in a zero byte, and fills the structure where it succeeds.
    let found = unsafe {
        libc::fstatat(
            directory.as_raw_fd(),
            name.as_ptr(),
            told.as_mut_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
        )
    };
    if found == 0 {
        // SAFETY: it was filled.
        return Ok(unsafe { told.assume_init() }.st_mode & libc::S_IFMT == libc::S_IFLNK);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::NotFound => Ok(false), // opening it tells, or makes it
        error => Err(error),
    }
}

/// A link's text; ELOOP for a magic one. Those of proc that are none lead to other places in it: `self`, `mounts`.
fn ordinary_link(directory: &OwnedFd, name: &CStr) -> io::Result<PathBuf> {
    let mut text = vec![0_u8; LONGEST_LINK];
    // SAFETY: reads a text that ends in a zero byte, and writes no more than the size that is told.
    let length = unsafe {
        libc::readlinkat(
            directory.as_raw_fd(),
            name.as_ptr(),
            text.as_mut_ptr().cast(),
            text.len(),
        )
    };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    text.truncate(length);
    let stays = text.starts_with(b"self/") || text.first().is_some_and(u8::is_ascii_digit);
    if is_of_proc(directory)? && !stays {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    Ok(OsString::from_vec(text).into())
}

fn is_of_proc(directory: &OwnedFd) -> io::Result<bool> {
    let mut told = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fills the structure where it succeeds, and it is read only then.
    unsafe {
        match libc::fstatfs(directory.as_raw_fd(), told.as_mut_ptr()) {
            // Of another type with each C library, i64 or u64.
            0 => Ok(i128::from(told.assume_init().f_type) == i128::from(libc::PROC_SUPER_MAGIC)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn openat(at: libc::c_int, name: &CStr, flags: libc::c_int, mode: u32) -> io::Result<OwnedFd> {
    // SAFETY: reads a text that ends in a zero byte.
    let opened = unsafe { libc::openat(at, name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
    match opened {
        // SAFETY: the kernel has just made this descriptor, and nobody else has it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(opened) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::{symlink, MetadataExt};
    use virtoll_probe::names::unique;

    /// A directory of its own, gone at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let top = std::env::temp_dir().join(unique(&format!("walk-{name}")));
            fs::create_dir_all(top.join("a/b")).unwrap();
            fs::write(top.join("a/b/file"), "file").unwrap();
            fs::write(top.join("plain"), "plain").unwrap();
            for (text, link) in [
                ("a", "to-directory"),
                ("b/file", "a/to-file"),
                ("../plain", "a/up"),
                ("/proc/self/status", "absolute"),
                ("nowhere", "dangling"),
                ("round", "round"),
                ("/proc/self/root/etc", "magic"),
                ("to-directory/./b/../up", "twice"),
            ] {
                symlink(text, top.join(link)).unwrap();
            }
            Tree(top)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn seen(opened: io::Result<OwnedFd>) -> Result<(u64, u64), Option<i32>> {
        match opened.map(fs::File::from).and_then(|file| file.metadata()) {
            Ok(found) => Ok((found.dev(), found.ino())),
            Err(error) => Err(error.raw_os_error()),
        }
    }

    /// What both ways make of a path, where the kernel has openat2(2).
    fn assert_same(path: &Path, flags: libc::c_int) {
        let by_kernel = paths::openat2(libc::AT_FDCWD, path, flags, 0);
        assert_eq!(
            seen(open(libc::AT_FDCWD, path, flags, 0)),
            seen(by_kernel),
            "{}",
            path.display()
        );
    }

    #[test]
    fn it_opens_what_openat2_opens_and_refuses_what_it_refuses() {
        let tree = Tree::new("same");
        for path in [
            "",
            ".",
            "a",
            "a/",
            "a/b/file",
            "a//b/./file",
            "a/../plain",
            "to-directory/b/file",
            "a/to-file",
            "to-directory/up",
            "absolute",
            "dangling",
            "round",
            "round/x",
            "magic",
            "magic/passwd",
            "twice",
            "plain/x",
            "missing",
            "missing/x",
            "..",
            "../..",
        ] {
            assert_same(&tree.0.join(path), libc::O_RDONLY);
            assert_same(&tree.0.join(path), libc::O_PATH | libc::O_DIRECTORY);
            assert_same(&tree.0.join(path), libc::O_RDONLY | libc::O_NOFOLLOW);
        }
        for path in [
            "/",
            "/..",
            "/proc/self/status",
            "/proc/self/root",
            "/proc/self/root/etc/passwd",
            "/proc/self/cwd",
            "/proc/self/exe",
            "/proc/self/fd/0",
            "/proc/self/ns/net",
            "/proc/thread-self/status",
            "/proc/net/dev",
            "/proc/mounts",
            "/proc/1/root",
            "/proc/self/fd/0/x",
        ] {
            assert_same(Path::new(path), libc::O_RDONLY);
        }
    }

    #[test]
    fn it_makes_a_file_where_a_link_says() {
        let tree = Tree::new("makes");
        let flags = libc::O_WRONLY | libc::O_CREAT;
        let path = tree.0.join("dangling");
        open(libc::AT_FDCWD, &path, flags, 0o600).unwrap();
        assert_eq!(
            fs::metadata(tree.0.join("nowhere")).unwrap().mode() & 0o777,
            0o600
        );
        let anew = open(libc::AT_FDCWD, &path, flags | libc::O_EXCL, 0o600);
        assert_eq!(seen(anew), Err(Some(libc::EEXIST)));
    }

    proptest! {
        #[test]
        fn any_way_through_the_tree_is_openat2s(words in prop::collection::vec(
            prop::sample::select(vec![
                "a", "b", "file", "plain", "up", "to-directory", "to-file", "twice", "round", "dangling", "magic",
                ".", "..", "",
            ]), 0..8)) {
            let tree = Tree::new("any");
            assert_same(&tree.0.join(words.join("/")), libc::O_RDONLY);
        }
    }
}
