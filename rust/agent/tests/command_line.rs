//! The agent's command line: what it prints where it is asked how to use it, and what it refuses.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};

fn agent(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtoll-agent"));
    command.args(words.split_whitespace());
    command
}

fn said(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn whoever_asks_for_help_is_told_and_that_is_no_error() {
    for (words, told) in [
        ("--help", "virtoll-agent peer --port"),
        ("probe --help", "unix-whetstone"),
        ("probe linpack --help", "--order"),
        ("probe disk --json -h", "--record-bytes"),
        ("peer --help", "--idle-ns"),
    ] {
        let Output { status, stdout, .. } = agent(words).output().unwrap();
        assert!(status.success(), "{words}");
        assert!(said(&stdout).contains(told), "{words}: {}", said(&stdout));
    }
}

#[test]
fn a_reader_that_has_gone_is_no_abort() {
    for words in [
        "--version",
        "--help",
        "probe --help",
        "probe clock --windows 1 --time-ns 1000000 --json",
    ] {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader); // writing gives EPIPE, as into a pipe
        let writer = Stdio::from(OwnedFd::from(writer));
        let status = agent(words).stdout(writer).status().unwrap();
        assert!(status.success(), "{words}: {status}");
    }
}

#[test]
fn what_is_printed_nowhere_is_a_failure() {
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let status = agent("--version")
        .stdout(full)
        .stderr(Stdio::null())
        .status();
    assert_eq!(status.unwrap().code(), Some(1));
}

#[test]
fn sizes_beyond_all_bounds_and_two_lengths_are_refused() {
    for (words, told) in [
        ("linpack --order 45001", "above 45000"),
        ("linpack --order 18446744073709551615", "above 45000"),
        ("linpack --threads 18446744073709551615", "above 1024"),
        (
            "unix-file --buffer-bytes 18446744073709551615",
            "above 1048576",
        ),
        ("clock --work 5 --time-ns 1000000", "both given"),
    ] {
        let output = agent(&format!("probe {words}")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}");
        let told_all = said(&output.stderr);
        assert!(told_all.contains(told), "{words}: {told_all}");
    }
}
