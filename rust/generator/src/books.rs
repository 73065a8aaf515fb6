//! CPU time of control groups, as the kernel has booked it at a window's ends.
//!
//! Whoever asks knows best when its window begins and ends: a look from elsewhere comes earlier or later, and one that is
//! asked for wakes somebody up amid the load.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::Serialize;

use crate::sys;

/// `cpu.stat` of version 2 is some 300 bytes long, and what is read of it stands first.
const MOST_BYTES: usize = 512;

/// Counters to be looked at twice.
#[derive(Debug, Default)]
pub struct Books {
    counters: Vec<(String, File)>,
    looks: Vec<Look>,
}

#[derive(Debug)]
struct Look {
    at_ns: i64,
    /// None of a counter that could not be read.
    used_ns: Vec<Option<u64>>,
}

/// What was used between two looks, by the counter's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Used {
    from_ns: i64,
    to_ns: i64,
    cpu_ns: BTreeMap<String, u64>,
}

impl Books {
    /// The files `cpuacct.usage` (version 1) or `cpu.stat` (version 2) of groups, by name. Nothing is told of any where
    /// one of them cannot be opened: its group may just have ended.
    pub fn open(paths: &BTreeMap<String, PathBuf>) -> Books {
        let open = |(name, path): (&String, _)| Some((name.clone(), File::open(path).ok()?));
        let counters: Option<Vec<_>> = paths.iter().map(open).collect();
        Books {
            counters: counters.unwrap_or_default(),
            looks: Vec::new(),
        }
    }

    pub fn are_kept(&self) -> bool {
        !self.counters.is_empty()
    }

    pub fn look(&mut self) {
        if self.are_kept() {
            let at_ns = sys::now_ns();
            let used_ns = self.counters.iter().map(|(_, file)| used_ns(file));
            self.looks.push(Look {
                at_ns,
                used_ns: used_ns.collect(),
            });
        }
    }

    /// Between the first look and the last. None where there were not two, or a counter could not be read.
    pub fn used(&self) -> Option<Used> {
        let (from, to) = match &self.looks[..] {
            [from, .., to] => (from, to),
            _ => return None,
        };
        let names = self.counters.iter().map(|(name, _)| name.clone());
        let grown = from.used_ns.iter().zip(&to.used_ns);
        let grown = grown.map(|(before, after)| after.as_ref()?.checked_sub((*before)?));
        Some(Used {
            from_ns: from.at_ns,
            to_ns: to.at_ns,
            cpu_ns: names
                .zip(grown)
                .map(|(name, grown)| Some((name, grown?)))
                .collect::<Option<_>>()?,
        })
    }
}

fn used_ns(file: &File) -> Option<u64> {
    let mut bytes = [0; MOST_BYTES];
    let length = file.read_at(&mut bytes, 0).ok()?;
    parsed_ns(std::str::from_utf8(&bytes[..length]).ok()?)
}

/// A number of nanoseconds alone, or `usage_usec` among lines of names and numbers.
fn parsed_ns(text: &str) -> Option<u64> {
    if let Ok(used_ns) = text.trim_end().parse() {
        return Some(used_ns);
    }
    let microseconds = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))?;
    microseconds.parse::<u64>().ok()?.checked_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("virtoll-books-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn both_versions_of_control_groups_are_read() {
        assert_eq!(parsed_ns("1234567\n"), Some(1_234_567));
        let stat = "usage_usec 12\nuser_usec 7\nsystem_usec 5\nnr_periods 0\n";
        assert_eq!(parsed_ns(stat), Some(12_000));
        for text in ["", "x\n", "user_usec 7\n", "usage_usec x\n", "-1\n"] {
            assert_eq!(parsed_ns(text), None, "{text:?}");
        }
        assert_eq!(parsed_ns(&format!("usage_usec {}\n", u64::MAX)), None);
    }

    #[test]
    fn what_was_used_is_told_by_name_and_when_it_was_looked() {
        let (one, two) = (file("one", "1000\n"), file("two", "usage_usec 5\n"));
        let mut books = Books::open(&[("a".into(), one.clone()), ("b".into(), two.clone())].into());
        let from_ns = sys::now_ns();
        books.look();
        assert_eq!(books.used(), None);
        std::fs::write(&one, "1500\n").unwrap();
        std::fs::write(&two, "usage_usec 5\n").unwrap();
        books.look();
        let used = books.used().unwrap();
        assert_eq!(used.cpu_ns, [("a".into(), 500), ("b".into(), 0)].into());
        assert!(
            from_ns <= used.from_ns && used.from_ns <= used.to_ns && used.to_ns <= sys::now_ns()
        );
        std::fs::write(&one, "1499\n").unwrap();
        books.look();
        assert!(
            books.used().is_some(),
            "it went back, and is above the first"
        );
        std::fs::write(&one, "999\n").unwrap();
        books.look();
        assert_eq!(books.used(), None, "below it");
        std::fs::write(&one, "gone\n").unwrap();
        books.look();
        assert_eq!(books.used(), None);
        for path in [one, two] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn nothing_is_told_where_one_is_not_there() {
        let there = file("there", "1000\n");
        let gone = PathBuf::from("/nonexistent/cpuacct.usage");
        let mut books = Books::open(&[("a".into(), there.clone()), ("b".into(), gone)].into());
        books.look();
        books.look();
        assert_eq!(books.used(), None);
        std::fs::remove_file(there).unwrap();
        let mut none = Books::open(&BTreeMap::new());
        none.look();
        none.look();
        assert_eq!(none.used(), None);
    }
}
