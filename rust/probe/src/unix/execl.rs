//! UnixBench's execl: a process that replaces itself by itself, over and over.
//!
//! A go is one process: it stamps its start, then each link of the chain hands what is left and what is done to the
//! next as arguments, and the last stamps its end and writes what was done.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

use super::copies::Lap;
use super::process::{pipe_files, Child};
use super::{measure, Quantity, COPIES};
use crate::arguments::Arguments;
use crate::report::{Failed, Report};
use crate::windows::{now_ns, Span};
use crate::Probe;

pub const EXECL: Probe = Probe {
    name: "unix-execl",
    summary: "a program that replaces itself by itself (execl)",
    usage: COPIES,
    run,
};

const QUANTITY: Quantity = Quantity {
    key: "execs_per_s",
    unit: "/s",
    per_unit: 1.0,
    proof: "the chain had all its links",
};

/// This program, as long as /proc is there.
const MYSELF: &str = "/proc/self/exe";
/// How a link of the chain is called: `probe unix-execl --link LEFT,DONE,START_NS`.
const LINK: &str = "--link";

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    if let Some(link) = Link::of(std::env::args()) {
        link.go(); // this process is a link of a chain, and ends as one
    }
    measure(arguments, &QUANTITY, |_| Ok(Box::new(chain)))
}

/// Run a chain of `units` links.
fn chain(units: u64) -> Result<Lap, Failed> {
    let (mut said, saying) = pipe_files()?;
    let begin = || {
        // SAFETY: makes the pipe the child's standard output, which exec keeps open.
        unsafe { libc::dup2(saying.as_raw_fd(), libc::STDOUT_FILENO) };
        let link = Link {
            left: units,
            done: 0,
            start_ns: now_ns(),
        };
        link.go()
    };
    // SAFETY: a copy's process has one thread.
    let child = unsafe { Child::fork(begin) }?;
    drop(saying);
    let mut text = String::new();
    said.read_to_string(&mut text)
        .map_err(|error| Failed::system("the chain's pipe", &error))?;
    ended(&text, child.wait()?, units)
}

/// What the last link said: its start and end, and how many links there were; or the error of the one that failed.
/// A chain that did not end well has said nothing, whatever it wrote before.
fn ended(text: &str, status: i32, units: u64) -> Result<Lap, Failed> {
    let numbers: Option<Vec<u64>> = text
        .split_whitespace()
        .map(|word| word.parse().ok())
        .collect();
    let (0, Some(&[start_ns, end_ns, done])) = (status, numbers.as_deref()) else {
        let what = match (text, status) {
            ("", _) => format!("the chain broke without a word, with wait status {status:#x}"),
            (text, 0) => text.to_owned(),
            (text, _) => format!("the chain broke with wait status {status:#x} after {text:?}"),
        };
        return Err(Failed::new(
            "system",
            what,
            format!("execl {MYSELF}"),
            "mount /proc where the probe runs, and see that it may be executed from there",
        ));
    };
    let lap = Lap {
        span: Span { start_ns, end_ns },
        wrong: None,
    };
    Ok(lap.verified((done != units).then(|| format!("{done} links were run, not {units}"))))
}

/// One link: how many are still to come, how many have been.
#[derive(Debug, PartialEq)]
struct Link {
    left: u64,
    done: u64,
    start_ns: u64,
}

impl Link {
    /// From a command line; None when it is no link's.
    fn of(words: impl Iterator<Item = String>) -> Option<Link> {
        let text = words.skip_while(|word| word != LINK).nth(1)?;
        let numbers: Vec<u64> = text
            .split(',')
            .map_while(|word| word.parse().ok())
            .collect();
        let [left, done, start_ns] = numbers[..] else {
            return None;
        };
        Some(Link {
            left,
            done,
            start_ns,
        })
    }

    fn words(&self) -> [String; 5] {
        let numbers = format!("{},{},{}", self.left, self.done, self.start_ns);
        [MYSELF, "probe", EXECL.name, LINK, &numbers].map(str::to_owned)
    }

    /// Become the next link, or end the chain.
    fn go(&self) -> ! {
        let said = if self.left == 0 {
            format!("{} {} {}", self.start_ns, now_ns(), self.done)
        } else {
            let next = Link {
                left: self.left - 1,
                done: self.done + 1,
                start_ns: self.start_ns,
            };
            exec(&next.words()).to_string()
        };
        let _ = io::stdout().write_all(said.as_bytes());
        let _ = io::stdout().flush();
        // SAFETY: ends this process, whose only work was this.
        unsafe { libc::_exit(0) }
    }
}

/// Replace this process; only comes back with an error.
fn exec(words: &[String]) -> io::Error {
    let words: Vec<CString> = words
        .iter()
        .map(|word| CString::new(word.as_str()).expect("no NUL in a number or a name"))
        .collect();
    let mut pointers: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: NUL-terminated strings in a NULL-terminated array, all alive until the call is over.
    unsafe { libc::execv(pointers[0], pointers.as_ptr()) };
    io::Error::last_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_reads_what_the_one_before_wrote() {
        let link = Link {
            left: 3,
            done: 4,
            start_ns: 5,
        };
        assert_eq!(Link::of(link.words().into_iter()), Some(link));
        assert_eq!(
            Link::of(
                ["virtoll-agent", "probe", "unix-execl"]
                    .map(str::to_owned)
                    .into_iter()
            ),
            None
        );
    }

    #[test]
    fn a_chain_with_a_link_missing_is_caught() {
        assert_eq!(ended("10 20 7", 0, 7).unwrap().wrong, None);
        assert!(ended("10 20 6", 0, 7).unwrap().wrong.is_some());
        let failed = ended("No such file", 0, 7).unwrap_err();
        assert_eq!(failed.what, "No such file");
        assert!(ended("", 0, 7).is_err());
    }

    #[test]
    fn a_chain_that_was_killed_or_says_more_or_less_than_it_should_is_no_success() {
        assert!(ended("10 20 7", libc::SIGKILL, 7).is_err());
        for text in ["10 20", "10 20 7 8", "10 20 7 and more", "-1 20 7"] {
            assert!(ended(text, 0, 7).is_err(), "{text}");
        }
    }
}
