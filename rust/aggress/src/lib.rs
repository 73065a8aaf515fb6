//! Neighbours that misbehave, each within caps: `virtoll-agent aggress NAME --duration-ns N [--KEY VALUE]...`.
//!
//! A small supervisor forks the aggressor proper into a process group of its own, writes a line a tenth of a second
//! (its series), and at the end of the time, or when told to end, kills the whole group at one stroke and reports. An
//! aggressor that dies before (the OOM killer) is started again: a bomb is only one while it goes off.

mod cache;
mod cpu;
mod disk;
mod fork;
mod group;
mod memory;
mod network;
mod shared;
mod supervisor;
mod team;
mod timer;

use std::process::ExitCode;

use shared::Shared;
use supervisor::Supervisor;
use virtoll_probe::arguments::Arguments;

/// One aggressor.
pub struct Aggressor {
    pub name: &'static str,
    /// One line, for whoever runs it by hand.
    pub summary: &'static str,
    /// Its own caps with their defaults, as they are given: `--most-bytes 67108864`.
    pub usage: &'static str,
    /// What it counts, at most [`shared::MOST_COUNTS`]; the first says whether it did anything.
    pub counts: &'static [&'static str],
    /// Read the caps; what comes back is the work, which runs in the group's first process until it is killed.
    prepare: fn(&mut Arguments) -> Work,
}

/// What an aggressor does, once its caps are known. It returns only when it cannot do it, with the reason.
pub type Work = Box<dyn Fn(&Shared) -> String>;

/// All aggressors, in the order they are listed.
pub const AGGRESSORS: &[&Aggressor] = &[
    &cache::AGGRESSOR,
    &cpu::AGGRESSOR,
    &disk::AGGRESSOR,
    &fork::AGGRESSOR,
    &memory::AGGRESSOR,
    &network::RECEIVE,
    &network::SEND,
    &cpu::POLITE,
    &timer::AGGRESSOR,
];

/// Run the aggressor that `arguments` name; its series and its report are lines of JSON on standard output.
///
/// Exit 0 with a report, 2 for wrong arguments.
pub fn main(arguments: &[String]) -> ExitCode {
    let Some((name, rest)) = arguments.split_first() else {
        eprintln!("{}", usage());
        return ExitCode::from(2);
    };
    let Some(aggressor) = AGGRESSORS.iter().find(|known| known.name == name) else {
        eprintln!(
            "virtoll-agent: no aggressor is called {name:?}\n{}",
            usage()
        );
        return ExitCode::from(2);
    };
    let mut arguments = match Arguments::parse(rest) {
        Ok(arguments) => arguments,
        Err(why) => return misused(aggressor, &why),
    };
    let duration_ns = arguments.at_least("duration-ns", 1_000_000, 1_000_000_000);
    let interval_ns = arguments.at_least("series-ns", 10_000_000, 100_000_000);
    let work = (aggressor.prepare)(&mut arguments);
    if let Some(why) = arguments.complaint() {
        return misused(aggressor, &why);
    }
    let supervisor = Supervisor {
        aggressor,
        work,
        settings: arguments.effective(),
        duration_ns,
        interval_ns,
    };
    supervisor.run();
    ExitCode::SUCCESS
}

fn misused(aggressor: &Aggressor, why: &str) -> ExitCode {
    eprintln!(
        "virtoll-agent: aggress {name}: {why}\nusage: virtoll-agent aggress {name} [--duration-ns 1000000000] \
         [--series-ns 100000000] {}",
        aggressor.usage,
        name = aggressor.name,
    );
    ExitCode::from(2)
}

fn usage() -> String {
    let mut text = String::from(
        "usage: virtoll-agent aggress NAME [--duration-ns 1000000000] [--KEY VALUE]...\n",
    );
    for aggressor in AGGRESSORS {
        text += &format!("  {:<10} {}\n", aggressor.name, aggressor.summary);
    }
    text
}
