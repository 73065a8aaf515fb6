//! `virtoll-load publish`: publishes a film round and round, at its own pace, for viewers of live streams; by RTMP or
//! RTSP.
//!
//! The specification is one line of standard input. As soon as all streams are taken, one line is said; then one for each
//! further line that comes, about the time since the last; and a last one at the end of standard input, which ends it: so
//! it ends with whoever started it.

mod announced;
mod film;
mod line;
mod packets;
mod publisher;
mod rtmp;
mod rtsp;

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use virtoll_generator::time::TIME_MAX_NS;
use virtoll_generator::{sys, Failed};

use crate::rtmp::media::{mark_of, Mark};
use crate::rtmp::session::{checked_name, Application};
use crate::rtsp::checked_url;
use crate::tally::Failure;
use announced::Announced;
use film::Film;
use line::Speaker;
use publisher::Publisher;
use rtmp::Rtmp;
use rtsp::Rtsp;

const STREAMS_MAX: usize = 10_000;
/// A message that is sent later than this was late (record/model.py).
const LATE_NS: i64 = 10_000_000;
/// Of so many late messages it is told when they were due: a report fits into a pipe, and keeps nobody waiting.
const LATE_TOLD_MAX: usize = 3000;

/// What is asked for. Times are nanoseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishSpec {
    address: SocketAddrV4,
    streams: StreamsSpec,
    /// An FLV file.
    film: PathBuf,
    /// By which viewers know when a key frame was sent: sixteen letters; null: none is marked.
    mark: Option<String>,
    /// So long a server may take to take a stream, or nothing of it.
    patience_ns: i64,
    /// After a failure it is tried again so much later.
    rest_ns: i64,
}

/// Where the film is published, each time over a connection of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum StreamsSpec {
    /// `url`: `rtmp://host:port/application`.
    Rtmp {
        url: String,
        application: String,
        names: Vec<String>,
    },
    /// `rtsp://host:port/path`.
    Rtsp { urls: Vec<String> },
}

/// The specification, checked.
#[derive(Debug)]
pub struct Publication {
    address: SocketAddrV4,
    streams: Streams,
    film: Film,
    mark: Option<Mark>,
    patience_ns: i64,
    rest_ns: i64,
}

#[derive(Debug)]
enum Streams {
    Rtmp {
        application: Application,
        names: Vec<String>,
    },
    Rtsp {
        announced: Announced,
        urls: Vec<String>,
    },
}

impl Publication {
    /// How many streams.
    fn count(&self) -> usize {
        match &self.streams {
            Streams::Rtmp { names, .. } => names.len(),
            Streams::Rtsp { urls, .. } => urls.len(),
        }
    }

    /// Who publishes one of them.
    fn speaker(&self, index: usize) -> Box<dyn Speaker + '_> {
        match &self.streams {
            Streams::Rtmp { application, names } => Box::new(Rtmp::new(application, &names[index])),
            Streams::Rtsp { announced, urls } => {
                let seed = sys::now_ns() as u64 ^ (index as u64) << 48;
                Box::new(Rtsp::new(announced, &urls[index], seed))
            }
        }
    }

    /// Whom a message is about.
    fn url(&self) -> &str {
        match &self.streams {
            Streams::Rtmp { application, .. } => &application.url,
            Streams::Rtsp { urls, .. } => &urls[0],
        }
    }
}

/// What was published since the last report. Times are CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    start_ns: i64,
    end_ns: i64,
    /// Streams that are published now.
    published: usize,
    messages: u64,
    /// Of those, messages that it sent more than 10 ms late by its own fault; the latest; and when they were due, as
    /// far as there is room.
    late: u64,
    latest_ns: i64,
    late_at_ns: Vec<i64>,
    /// Of media.
    body_bytes: u64,
    failures: BTreeMap<&'static str, u64>,
    cpu_user_ns: i64,
    cpu_system_ns: i64,
}

impl Report {
    /// A message of media was due, and is sent now.
    fn sent(&mut self, bytes: usize, due_ns: i64, now_ns: i64) {
        self.messages += 1;
        self.body_bytes += bytes as u64;
        self.latest_ns = self.latest_ns.max(now_ns - due_ns);
        if now_ns - due_ns > LATE_NS {
            self.late += 1;
            if self.late_at_ns.len() < LATE_TOLD_MAX {
                self.late_at_ns.push(due_ns);
            }
        }
    }

    fn failed(&mut self, failure: Failure) {
        let (_, name) = Failure::ALL[failure as usize];
        *self.failures.entry(name).or_default() += 1;
    }
}

/// Run until standard input ends; what is then to be said.
pub fn run() -> Result<Report, Failed> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Failed(format!("the specification: {error}")))?;
    let spec: PublishSpec = serde_json::from_str(&line)
        .map_err(|error| Failed(format!("the specification, the first line: {error}")))?;
    Publisher::new(&spec.checked()?)?.run()
}

/// Say a line at once.
fn say(report: &Report) -> Result<(), Failed> {
    let mut out = io::stdout().lock();
    let said = writeln!(out, "{}", virtoll_generator::json(report)?).and_then(|()| out.flush());
    said.map_err(|error| Failed(format!("the report: {error}")))
}

impl PublishSpec {
    fn checked(self) -> Result<Publication, Failed> {
        let times = [self.patience_ns, self.rest_ns];
        let count = match &self.streams {
            StreamsSpec::Rtmp { names, .. } => names.len(),
            StreamsSpec::Rtsp { urls } => urls.len(),
        };
        let problem = match count {
            0 | STREAMS_MAX.. => "there must be a stream, and fewer than ten thousand",
            _ if times.iter().any(|ns| !(1..=TIME_MAX_NS).contains(ns)) => {
                "times must be above 0, and at most 30 days"
            }
            _ => "",
        };
        if !problem.is_empty() {
            return Err(Failed(format!(
                "the specification cannot be run: {problem}"
            )));
        }
        let film = Film::read(&self.film)?;
        Ok(Publication {
            address: self.address,
            streams: self.streams.checked(&film, &self.film)?,
            film,
            mark: self.mark.as_deref().map(mark_of).transpose()?,
            patience_ns: self.patience_ns,
            rest_ns: self.rest_ns,
        })
    }
}

impl StreamsSpec {
    fn checked(&self, film: &Film, path: &Path) -> Result<Streams, Failed> {
        Ok(match self {
            StreamsSpec::Rtmp {
                url,
                application,
                names,
            } => {
                let names = names.iter().map(|name| checked_name(name));
                Streams::Rtmp {
                    application: Application::checked(application, url)?,
                    names: names.collect::<Result<_, _>>()?,
                }
            }
            StreamsSpec::Rtsp { urls } => {
                let told = |why| Failed(format!("the film {}: {why}", path.display()));
                let urls = urls.iter().map(|url| checked_url(url));
                Streams::Rtsp {
                    announced: Announced::of(film).map_err(told)?,
                    urls: urls.collect::<Result<_, _>>()?,
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_late_messages_it_is_told_when_they_were_due() {
        let mut report = Report::default();
        for (due_ns, late_ns) in [(1, 0), (2, LATE_NS), (3, LATE_NS + 1), (4, 5 * LATE_NS)] {
            report.sent(100, due_ns, due_ns + late_ns);
        }
        assert_eq!((report.messages, report.body_bytes), (4, 400));
        assert_eq!((report.late, report.latest_ns), (2, 5 * LATE_NS));
        assert_eq!(report.late_at_ns, [3, 4]);
        for due_ns in 0..=LATE_TOLD_MAX as i64 {
            report.sent(100, due_ns, due_ns + 2 * LATE_NS);
        }
        assert_eq!(report.late_at_ns.len(), LATE_TOLD_MAX);
        assert_eq!(report.late, LATE_TOLD_MAX as u64 + 3);
    }
}
