//! The load generator. One JSON object on standard input, one on standard output; see `spec.rs` and `measure.rs`.
//!
//!     virtoll-load http    drive HTTP load and report what happened, for each line of standard input
//!     virtoll-load redis   the same of Redis; see `redis.rs`
//!     virtoll-load view    let viewers watch a stream; see `view/mod.rs`
//!     virtoll-load publish publish a film as live streams; see `publish/mod.rs`
//!     virtoll-load fill    set the keys that `redis` asks for
//!     virtoll-load get     fetch one object once, and say what came
//!     virtoll-load wait    wait until a port accepts connections, or a server answers
//!
//! Exit 1 and a message on standard error when the generator itself failed. Failed requests are data.

mod dialogue;
mod fetch;
mod fill;
mod log;
mod measure;
#[cfg(test)]
mod noise;
mod pace;
mod publish;
mod redis;
mod resp;
mod response;
mod rtmp;
mod rtsp;
mod schedule;
mod slot;
mod spec;
mod stops;
mod stream;
mod tally;
mod tls;
mod view;
mod wait;
mod worker;

use std::fmt::Display;
use std::io::{self, BufRead};
use std::process::ExitCode;

use serde::de::DeserializeOwned;
use serde::Serialize;
use virtoll_generator::{crew, json, Failed};

const USAGE: &str =
    "usage: virtoll-load http|redis|view|publish|fill|get|wait  (a JSON specification on standard input)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["http"] => each(|spec: spec::HttpSpec| measure::run(&spec.checked()?)),
        ["redis"] => each(|spec: spec::RedisSpec| measure::run(&spec.checked()?)),
        ["view"] => view::run().map(|()| String::new()),
        ["publish"] => publish::run().and_then(|report| json(&report)),
        ["fill"] => specified::<fill::FillSpec>().and_then(|spec| json(&fill::run(&spec)?)),
        ["get"] => specified::<fetch::GetSpec>().and_then(|spec| json(&fetch::run(&spec)?)),
        ["wait"] => specified::<wait::WaitSpec>().and_then(|spec| json(&wait::run(&spec)?)),
        ["--version"] => Ok(concat!("virtoll-load ", env!("CARGO_PKG_VERSION")).to_owned()),
        _ => Err(Failed(USAGE.into())),
    };
    match outcome {
        Ok(text) if text.is_empty() => ExitCode::SUCCESS, // all has been said
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(Failed(why)) => {
            eprintln!("virtoll-load: {why}");
            ExitCode::FAILURE
        }
    }
}

fn specified<Spec: DeserializeOwned>() -> Result<Spec, Failed> {
    serde_json::from_reader(io::stdin().lock()).map_err(|error| not_specified(&error))
}

/// A window for each line, one after another: a process that is there needs no start.
fn each<Spec: DeserializeOwned, Report: Serialize>(
    run: impl Fn(Spec) -> Result<Report, Failed>,
) -> Result<String, Failed> {
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| not_specified(&error))?;
        let spec = serde_json::from_str(&line).map_err(|error| not_specified(&error))?;
        crew::say(&run(spec)?)?;
    }
    Ok(String::new())
}

fn not_specified(error: &impl Display) -> Failed {
    Failed(format!("the specification: {error}; {USAGE}"))
}
