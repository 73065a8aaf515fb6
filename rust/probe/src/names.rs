//! Names of files that several may make in one directory at a time: other threads, copies, and other instances too.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::windows::now_ns;

static MADE: AtomicU64 = AtomicU64::new(0);

/// `stem` and what makes it this caller's alone: the number of the process is not enough, for threads share it, and so
/// may the processes of two instances that write to the same directory.
pub fn unique(stem: &str) -> String {
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    format!("{stem}-{}-{:x}-{number}", process::id(), now_ns())
}

/// An empty directory of one test alone, removed with all that is in it when it is dropped.
#[cfg(test)]
pub(crate) struct Directory(pub std::path::PathBuf);

#[cfg(test)]
impl Directory {
    pub fn new() -> Directory {
        let path = std::env::temp_dir().join(unique("virtoll-test"));
        std::fs::create_dir(&path).expect("a directory for temporary files that can be written to");
        Directory(path)
    }

    /// As the command line gives it.
    pub fn text(&self) -> String {
        self.0.display().to_string()
    }
}

#[cfg(test)]
impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::thread;

    #[test]
    fn no_two_threads_get_the_same_name() {
        let names: Vec<String> = thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..100).map(|_| unique("x")).collect::<Vec<_>>()))
                .collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().unwrap())
                .collect()
        });
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), 400);
    }
}
