//! The micro benchmarks: what the machine itself gives. `virtoll-agent probe NAME [--KEY VALUE]...` runs one, the same
//! binary on every platform, with or without a controller (docs/PROBES.md defines each).
//!
//! A probe is one module with a `PROBE`, listed in [`PROBES`]. It allocates and touches what it needs, warms up, and
//! then measures several windows; every window's values are reported as they are, and the probe verifies its own work.

pub mod arguments;
mod clock;
mod disk;
mod flow;
mod linpack;
mod memory;
pub mod messages;
pub mod names;
mod network;
mod report;
mod timer;
mod unix;
pub mod windows;

pub use disk::pattern::SplitMix64;
pub use flow::pace::sleep_until;

pub use network::peer;

use std::io::{self, Write};
use std::process::ExitCode;

use arguments::Arguments;
use report::{Failed, Report};

/// One micro benchmark.
pub struct Probe {
    pub name: &'static str,
    /// One line, for whoever runs it by hand.
    pub summary: &'static str,
    /// Its own settings with their defaults, as they are given: `--order 1000`.
    pub usage: &'static str,
    run: fn(&mut Arguments) -> Result<Report, Failed>,
}

/// All probes, in the order they are listed.
pub const PROBES: &[&Probe] = &[
    &network::BULK,
    &clock::PROBE,
    &network::CONNECT,
    &disk::PROBE,
    &disk::fsync::PROBE,
    &memory::FIRST_TOUCH,
    &flow::PROBE,
    &linpack::PROBE,
    &memory::BANDWIDTH,
    &memory::LATENCY,
    &memory::STREAM,
    &flow::PING,
    &network::ROUND_TRIP,
    &timer::PROBE,
    &unix::ARITHMETIC,
    &unix::CONTEXT,
    &unix::DHRYSTONE,
    &unix::EXECL,
    &unix::FILE,
    &unix::PIPE,
    &unix::SHELL,
    &unix::SPAWN,
    &unix::SYSCALL,
    &unix::WHETSTONE,
];

/// Run the probe that `arguments` name and print its report: text, or one JSON object with `--json`.
///
/// Exit 0 with a report, or the usage where `--help` asks for it; 1 when the probe failed (the reason is printed in the
/// same form), 2 for wrong arguments.
pub fn main(arguments: &[String]) -> ExitCode {
    let Some((name, rest)) = arguments.split_first() else {
        eprintln!("{}", usage());
        return ExitCode::from(2);
    };
    if asks_for_help(name) {
        return say(&usage(), ExitCode::SUCCESS);
    }
    let Some(probe) = PROBES.iter().find(|probe| probe.name == name) else {
        eprintln!("virtoll-agent: no probe is called {name:?}\n{}", usage());
        return ExitCode::from(2);
    };
    if rest.iter().any(|word| asks_for_help(word)) {
        return say(&usage_of(probe), ExitCode::SUCCESS);
    }
    let mut arguments = match Arguments::parse(rest) {
        Ok(arguments) => arguments,
        Err(why) => return misused(probe, &why),
    };
    let outcome = (probe.run)(&mut arguments);
    if let Some(why) = arguments.complaint() {
        return misused(probe, &why);
    }
    match outcome {
        Ok(mut report) => {
            report.probe = probe.name;
            report.settings = arguments.effective();
            say(&report.printed(arguments.json), ExitCode::SUCCESS)
        }
        Err(failed) => say(&failed.printed(arguments.json), ExitCode::FAILURE),
    }
}

/// Whether a word of the command line asks how to use it.
pub fn asks_for_help(word: &str) -> bool {
    matches!(word, "--help" | "-h")
}

/// Print a line and exit with `code`. Who has closed the pipe (`| head`) wants no more; where it cannot be printed for
/// another reason, nothing was told, and that is a failure.
pub fn say(text: &str, code: ExitCode) -> ExitCode {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "virtoll-agent: standard output: {error}");
            ExitCode::FAILURE
        }
        _ => code,
    }
}

fn misused(probe: &Probe, why: &str) -> ExitCode {
    eprintln!(
        "virtoll-agent: probe {}: {why}\n{}",
        probe.name,
        usage_of(probe)
    );
    ExitCode::from(2)
}

fn usage_of(probe: &Probe) -> String {
    let (name, own) = (probe.name, probe.usage);
    format!(
        "usage: virtoll-agent probe {name} {own}\n{}",
        windows::USAGE
    )
}

fn usage() -> String {
    let mut text = String::from("usage: virtoll-agent probe NAME [--KEY VALUE]... [--json]\n");
    for probe in PROBES {
        text += &format!("  {:<16} {}\n", probe.name, probe.summary);
    }
    text + windows::USAGE
}

/// What a probe reports for a command line that is right; for tests.
#[cfg(test)]
fn reported(
    run: fn(&mut Arguments) -> Result<Report, Failed>,
    words: &str,
) -> Result<Report, Failed> {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let mut arguments = Arguments::parse(&words).expect("pairs");
    let report = run(&mut arguments);
    assert_eq!(arguments.complaint(), None);
    report
}
