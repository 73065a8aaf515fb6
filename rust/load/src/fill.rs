//! `virtoll-load fill`: set the keys that `virtoll-load redis` asks for, and see that the server holds them all.

use std::io::{Error, ErrorKind, Read, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use virtoll_generator::Failed;

use crate::dialogue::{Progress, Reply};
use crate::redis::{Command, Commands, Round, Server};
use crate::resp::{Expected, Replies};
use crate::stream::{Deadline, Timed};

/// What is sent before its replies are awaited.
const BATCH_BYTES: u64 = 256 * 1024;
const BATCH_COMMANDS: u64 = 256;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillSpec {
    pub target: Server,
    pub value_bytes: u64,
    pub keys: u64,
    /// For all of it.
    pub timeout_ns: u64,
}

/// How many keys the server holds.
#[derive(Debug, Serialize)]
pub struct Filled {
    pub keys: u64,
}

/// Set them all; an error where the server then holds another number of keys.
pub fn run(spec: &FillSpec) -> Result<Filled, Failed> {
    let failed = |what: &str| {
        Failed(format!(
            "the {} keys of Redis at {} could not be set: {what}",
            spec.keys, spec.target.address
        ))
    };
    let commands = Commands {
        command: Command::Set,
        value_bytes: spec.value_bytes,
        keys: spec.keys,
        pipeline: 1,
        seed: 0,
    };
    if let Some(problem) = commands.problem() {
        return Err(failed(problem));
    }
    let timeout = Duration::from_nanos(spec.timeout_ns);
    let told = |error: Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            failed(&format!("not done within {} s", timeout.as_secs_f64()))
        }
        _ => failed(&error.to_string()),
    };
    let deadline = Deadline::after(timeout);
    let mut stream =
        Timed::connect(spec.target.address, deadline, deadline.patience()).map_err(told)?;
    let batch = (BATCH_BYTES / spec.value_bytes).clamp(1, BATCH_COMMANDS);
    let mut round = Round::new(Command::Set, spec.value_bytes, batch as usize);
    for first in (0..spec.keys).step_by(batch as usize) {
        let keys: Vec<u64> = (first..spec.keys.min(first + batch)).collect();
        round.name_keys(&keys);
        stream.write_all(round.of(keys.len())).map_err(told)?;
        all_done(&mut stream, keys).map_err(told)?;
    }
    let keys = held(&mut stream).map_err(told)?;
    if keys != spec.keys {
        return Err(failed(&format!(
            "it holds {keys} now; give it an empty database, and memory for all of them"
        )));
    }
    Ok(Filled { keys })
}

/// Read `+OK` for each of the keys.
fn all_done(stream: &mut Timed, keys: Vec<u64>) -> Result<(), Error> {
    let mut replies = Replies::new(Expected::Done, keys);
    let mut buffer = [0; 4096];
    loop {
        let bytes = stream.read(&mut buffer)?;
        let progress = replies.take(&buffer[..bytes]);
        if let Some(error) = &replies.error {
            let error = String::from_utf8_lossy(error);
            return Err(Error::other(format!("it says {error:?}")));
        }
        match progress {
            Progress::Done => return Ok(()),
            Progress::Broken(why) => return Err(Error::other(format!("no reply of Redis: {why}"))),
            Progress::More if bytes == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            Progress::More => {}
        }
    }
}

/// DBSIZE.
fn held(stream: &mut Timed) -> Result<u64, Error> {
    stream.write_all(b"*1\r\n$6\r\nDBSIZE\r\n")?;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < 64 && !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&line);
    let number = text.strip_prefix(':').map(str::trim_end);
    let number = number.and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| Error::other(format!("it answers {text:?} to DBSIZE")))
}

#[cfg(test)]
#[path = "fill_tests.rs"]
mod tests;
