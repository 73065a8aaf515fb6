//! How often the threads of a control group were put on a CPU, and how long they waited for one.
//!
//! The kernel keeps this for each thread only (/proc/TID/schedstat), so the sum is kept here: a thread adds what it
//! did since it was last seen. What it does between that and its end is lost.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The counters, in the order of `Threads::sample`.
pub const COUNTERS: [&str; 2] = ["context_switches", "cpu.wait_ns"];

/// A thread's or a group's counters, in the order of COUNTERS.
type Counts = [i64; 2];

/// The threads of a group and of all groups below it, each with its open file and what that said last.
pub struct Threads {
    group: PathBuf,
    known: HashMap<i32, (File, Counts)>,
    totals: Counts,
    /// Whether this kernel counts at all.
    is_told: bool,
}

impl Threads {
    /// The group in any directory of a cgroup file system.
    pub fn new(group: &Path) -> Threads {
        Threads {
            group: group.to_path_buf(),
            known: HashMap::new(),
            totals: [0; 2],
            is_told: fs::read_to_string("/proc/self/schedstat").is_ok_and(|own| is_counted(&own)),
        }
    }

    /// Look at every thread; `values` gets the sums so far. They stay MISSING when not every thread could be seen.
    pub fn sample(&mut self, values: &mut [i64]) {
        let mut ids = Vec::new();
        if self.is_told && list(&self.group, &mut ids) && self.add_all(ids).is_ok() {
            values.copy_from_slice(&self.totals);
        }
    }

    /// Add what these threads did since they were last seen, and forget all others.
    fn add_all(&mut self, ids: Vec<i32>) -> io::Result<()> {
        for &id in &ids {
            self.add(id)?;
        }
        let alive: HashSet<i32> = ids.into_iter().collect();
        self.known.retain(|id, _| alive.contains(id));
        Ok(())
    }

    fn add(&mut self, id: i32) -> io::Result<()> {
        if let Some((file, before)) = self.known.get_mut(&id) {
            if let Some(now) = read(file) {
                grow(&mut self.totals, now, *before);
                *before = now;
                return Ok(());
            }
        }
        self.known.remove(&id); // it has ended; the number may be another's by now
        if let Some((file, now)) = open(id)? {
            grow(&mut self.totals, now, [0; 2]);
            self.known.insert(id, (file, now));
        }
        Ok(())
    }
}

fn grow(totals: &mut Counts, now: Counts, before: Counts) {
    for (total, (now, before)) in totals.iter_mut().zip(now.iter().zip(before)) {
        *total += now - before;
    }
}

/// The thread ids of a group and its children. False when there is no such group.
fn list(group: &Path, ids: &mut Vec<i32>) -> bool {
    let text = fs::read_to_string(group.join("tasks")) // version 1
        .or_else(|_| fs::read_to_string(group.join("cgroup.threads"))); // version 2
    let Ok(text) = text else { return false };
    ids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&entry.path(), ids);
        }
    }
    true
}

/// A thread's file and what it says; None when the thread has just ended, an error when out of descriptors.
fn open(id: i32) -> io::Result<Option<(File, Counts)>> {
    match File::open(format!("/proc/{id}/schedstat")) {
        Ok(file) => Ok(read(&file).map(|now| (file, now))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// `time on a CPU, time waiting for one (both in ns), times put on a CPU` (the kernel's sched-stats document).
fn read(file: &File) -> Option<Counts> {
    let mut text = [0; 80];
    let length = file.read_at(&mut text, 0).ok()?;
    parse(std::str::from_utf8(&text[..length]).ok()?)
}

fn parse(text: &str) -> Option<Counts> {
    let mut fields = text.split_ascii_whitespace().skip(1);
    let waited_ns = fields.next()?.parse().ok()?;
    let times = fields.next()?.parse().ok()?;
    Some([times, waited_ns])
}

/// Whether it was told of somebody who runs. A kernel without scheduler statistics (CONFIG_SCHEDSTATS) tells zeros.
fn is_counted(text: &str) -> bool {
    parse(text).is_some_and(|[times, _]| times > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::MISSING;
    use virtoll_probe::names::unique;

    #[test]
    fn schedstat() {
        assert_eq!(parse("123456 789 42\n"), Some([42, 789]));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn zeros_of_who_runs_are_no_counts() {
        assert!(is_counted("145207 0 2\n"));
        assert!(!is_counted("0 0 0\n"));
        let group = std::env::temp_dir().join(unique("virtoll-threads"));
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("tasks"), format!("{}\n", std::process::id())).unwrap();
        let mut threads = Threads::new(&group);
        threads.is_told = false;
        let mut values = [MISSING; 2];
        threads.sample(&mut values);
        fs::remove_dir_all(&group).unwrap();
        assert_eq!(values, [MISSING; 2]);
    }

    #[test]
    fn a_group_that_is_not_there() {
        let mut values = [MISSING; 2];
        Threads::new(Path::new("/no/such/group")).sample(&mut values);
        assert_eq!(values, [MISSING; 2]);
    }

    #[test]
    fn threads_of_a_tree() {
        let top = std::env::temp_dir().join(unique("virtoll-threads"));
        fs::create_dir_all(top.join("child")).unwrap();
        fs::write(top.join("tasks"), "").unwrap();
        fs::write(top.join("child/tasks"), format!("{}\n", std::process::id())).unwrap();
        let mut threads = Threads::new(&top);
        let (mut first, mut second) = ([0; 2], [0; 2]);
        threads.sample(&mut first);
        threads.sample(&mut second);
        fs::remove_dir_all(&top).unwrap();
        assert!(first[0] > 0 && second[0] >= first[0] && second[1] >= first[1]);
    }
}
