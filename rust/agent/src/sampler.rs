//! Samples counters at a fixed rate into memory; nothing is sent before they are collected.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use virtoll_wire::protocol::{Answer, Clock, Kind, Samples, Source, Unreadable};

use crate::agent::{done, failed, Outcome};
use crate::parse::{counters, parse, MISSING, MOST_COUNTERS};

const SHORTEST_INTERVAL_NS: u64 = 1_000_000;
const MOST_RING_VALUES: u64 = 8 << 20; // 64 MiB, of which only what is written takes memory
const VALUES_PER_MESSAGE: usize = 16 * 1024;

/// A sampler: idle, or running in a thread of its own.
#[derive(Default)]
pub struct Sampler {
    running: Option<(Sender<()>, JoinHandle<Recording>)>,
    recording: Option<Recording>,
}

/// This process's CLOCK_MONOTONIC.
pub fn clock() -> Clock {
    Clock { t_ns: now_ns() }
}

impl Sampler {
    /// Begin to sample. Sources that cannot be read are reported when the samples are collected.
    pub fn start(&mut self, sources: &[Source], interval_ns: u64, keep_ticks: u64) -> Outcome {
        if self.running.is_some() {
            return failed("the sampler runs already", "", "collect its samples first");
        }
        if interval_ns < SHORTEST_INTERVAL_NS {
            return failed("the rate is above 1000 Hz", "", "sample at 1 to 20 Hz");
        }
        let (files, unreadable) = open_all(sources);
        let width = 1 + files.iter().map(|file| file.kept.len()).sum::<usize>() as u64;
        if keep_ticks == 0 || width.saturating_mul(keep_ticks) > MOST_RING_VALUES {
            let what = format!(
                "{keep_ticks} ticks of {width} values do not fit {MOST_RING_VALUES} values"
            );
            return failed(what, "", "keep fewer ticks or sample fewer sources");
        }
        let recording = Recording::new(&files, unreadable, keep_ticks as usize);
        let (stop, stopped) = channel();
        self.recording = None;
        self.running = Some((
            stop,
            thread::spawn(move || record(files, recording, interval_ns, &stopped)),
        ));
        done()
    }

    /// End sampling, and give the rows from `from` on, as many as fit a message.
    pub fn collect(&mut self, from: u64) -> Outcome {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            self.recording = thread.join().ok();
        }
        match &self.recording {
            Some(recording) => Ok(Answer::Samples(recording.page(from as usize))),
            None => failed("nothing was sampled", "", "start the sampler first"),
        }
    }
}

/// An open file and which counters of its kind it has.
struct SourceFile {
    name: String,
    kind: Kind,
    file: File,
    kept: Vec<usize>,
}

impl SourceFile {
    fn open(source: &Source, text: &mut Vec<u8>) -> Result<SourceFile, String> {
        let file = File::open(&source.path).map_err(|error| error.to_string())?;
        read_whole(&file, text).map_err(|error| error.to_string())?;
        let mut values = [MISSING; MOST_COUNTERS];
        let values = &mut values[..counters(source.kind).len()];
        parse(source.kind, text, values);
        let kept: Vec<usize> = (0..values.len())
            .filter(|&slot| values[slot] != MISSING)
            .collect();
        if kept.is_empty() {
            return Err("holds none of its kind's counters".into());
        }
        Ok(SourceFile {
            name: source.name.clone(),
            kind: source.kind,
            file,
            kept,
        })
    }

    fn counter_names(&self) -> impl Iterator<Item = String> + '_ {
        self.kept
            .iter()
            .map(|&slot| match counters(self.kind)[slot] {
                "" => self.name.clone(),
                counter => format!("{}.{counter}", self.name),
            })
    }

    fn sample(&self, text: &mut Vec<u8>, row: &mut [i64]) {
        let mut values = [MISSING; MOST_COUNTERS];
        let values = &mut values[..counters(self.kind).len()];
        if read_whole(&self.file, text).is_ok() {
            parse(self.kind, text, values);
        }
        for (target, &slot) in row.iter_mut().zip(&self.kept) {
            *target = values[slot];
        }
    }
}

fn open_all(sources: &[Source]) -> (Vec<SourceFile>, Vec<Unreadable>) {
    let mut text = Vec::new();
    let mut files = Vec::new();
    let mut unreadable = Vec::new();
    for source in sources {
        match SourceFile::open(source, &mut text) {
            Ok(file) => files.push(file),
            Err(reason) => {
                unreadable.push(Unreadable {
                    name: source.name.clone(),
                    path: source.path.clone(),
                    reason,
                });
            }
        }
    }
    (files, unreadable)
}

/// The kernel makes these files anew at each read from 0, and gives long ones a page at a time.
fn read_whole(file: &File, text: &mut Vec<u8>) -> io::Result<()> {
    const SURELY_LAST_BYTES: usize = 2048; // a page that is not even half full is not followed by another
    let mut length = 0;
    loop {
        text.resize(length + 8192, 0);
        let count = file.read_at(&mut text[length..], length as u64)?;
        length += count;
        if count < SURELY_LAST_BYTES {
            text.truncate(length);
            return Ok(());
        }
    }
}

/// A ring of rows: the time, then one value a counter. The oldest row makes room for the newest.
struct Recording {
    names: Vec<String>,
    unreadable: Vec<Unreadable>,
    ring: Vec<i64>,
    capacity: usize,
    written: usize,
    late_ticks: u64,
}

impl Recording {
    fn new(files: &[SourceFile], unreadable: Vec<Unreadable>, capacity: usize) -> Recording {
        let names: Vec<String> = files.iter().flat_map(SourceFile::counter_names).collect();
        let ring = vec![0; capacity * (names.len() + 1)]; // zeroed lazily: untouched pages take no memory
        Recording {
            names,
            unreadable,
            ring,
            capacity,
            written: 0,
            late_ticks: 0,
        }
    }

    fn row(&self, number: usize) -> std::ops::Range<usize> {
        let width = self.names.len() + 1;
        let start = number % self.capacity * width;
        start..start + width
    }

    fn tick(&mut self, files: &[SourceFile], text: &mut Vec<u8>) {
        let range = self.row(self.written);
        let (time, mut rest) = self.ring[range]
            .split_first_mut()
            .expect("a row begins with its time");
        *time = now_ns() as i64;
        for file in files {
            let (row, after) = rest.split_at_mut(file.kept.len());
            file.sample(text, row);
            rest = after;
        }
        self.written += 1;
    }

    fn page(&self, from: usize) -> Samples {
        let rows = self.written.min(self.capacity);
        let oldest = self.written - rows;
        let count = (VALUES_PER_MESSAGE / (self.names.len() + 1)).max(1);
        let page = (from.min(rows)..from.saturating_add(count).min(rows))
            .map(|number| self.row(oldest + number));
        let column = |index: usize| {
            let values = page.clone().map(move |row| self.ring[row.start + index]);
            values
                .map(|value| (value != MISSING).then_some(value))
                .collect()
        };
        Samples {
            rows: rows as u64,
            late_ticks: self.late_ticks,
            dropped: oldest as u64,
            unreadable: self.unreadable.clone(),
            counters: self.names.clone(),
            times_ns: page
                .clone()
                .map(|row| self.ring[row.start] as u64)
                .collect(),
            values: (1..=self.names.len()).map(column).collect(),
        }
    }
}

/// Tick on absolute deadlines until told to stop. A tick later than a whole interval takes the place of those missed.
fn record(
    files: Vec<SourceFile>,
    mut recording: Recording,
    interval_ns: u64,
    stopped: &Receiver<()>,
) -> Recording {
    let mut text = Vec::with_capacity(16 * 1024);
    let mut deadline_ns = now_ns();
    loop {
        recording.tick(&files, &mut text);
        deadline_ns += interval_ns;
        let pause = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return recording;
        }
        let missed = now_ns().saturating_sub(deadline_ns) / interval_ns;
        recording.late_ticks += missed;
        deadline_ns += missed * interval_ns;
    }
}

fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
