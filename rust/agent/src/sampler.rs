//! Samples counters at a fixed rate into memory; nothing is sent before they are collected.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use virtoll_wire::protocol::{Answer, Clock, Kind, Samples, Source, Unreadable};

use crate::agent::{done, failed, Outcome};
use crate::devices::{self, Devices};
use crate::parse::{counters, parse, summed, MISSING, MOST_COUNTERS};
use crate::paths;
use crate::threads::Threads;

const SHORTEST_INTERVAL_NS: u64 = 1_000_000;
const LONGEST_INTERVAL_NS: u64 = 3_600_000_000_000;
const LONGEST_TEXT_BYTES: usize = 16 << 20; // no counter file of the kernel is that long
const MOST_RING_VALUES: u64 = 8 << 20; // 64 MiB, of which only what is written takes memory
const VALUES_PER_MESSAGE: usize = 16 * 1024;

/// A sampler: idle, or running in a thread of its own.
#[derive(Default)]
pub struct Sampler {
    /// Whom to ask for a row at once, and who records; it ends when nobody can ask any more.
    running: Option<(Sender<Sender<()>>, JoinHandle<Recording>)>,
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
        if interval_ns > LONGEST_INTERVAL_NS {
            return failed("less than one sample an hour", "", "sample at 1 to 20 Hz");
        }
        let (readers, unreadable) = open_all(sources);
        let width = 1 + readers
            .iter()
            .map(|reader| reader.kept.len())
            .sum::<usize>() as u64;
        if keep_ticks == 0 || width.saturating_mul(keep_ticks) > MOST_RING_VALUES {
            let what = format!(
                "{keep_ticks} ticks of {width} values do not fit {MOST_RING_VALUES} values"
            );
            return failed(
                what,
                "",
                "sample more seldom ([monitor] rate), or for a shorter time",
            );
        }
        let recording = Recording::new(&readers, unreadable, keep_ticks as usize);
        let (asked, asks) = channel();
        self.recording = None;
        let sampling = move || record(readers, recording, interval_ns, &asks);
        match thread::Builder::new().spawn(sampling) {
            Ok(thread) => self.running = Some((asked, thread)),
            Err(error) => {
                return failed(
                    format!("cannot start a thread: {error}"),
                    "",
                    "raise the limit of processes",
                )
            }
        }
        done()
    }

    /// Sample once more, beside the regular ticks; the row is there when this returns.
    pub fn now(&self) -> Outcome {
        let (taken, wait) = channel();
        let asked = match &self.running {
            Some((ask, _)) => ask.send(taken).is_ok() && wait.recv().is_ok(),
            None => false,
        };
        match asked {
            true => done(),
            false => failed("nothing is sampled", "", "start the sampler first"),
        }
    }

    /// End sampling, and give the rows from `from` on, as many as fit a message.
    pub fn collect(&mut self, from: u64) -> Outcome {
        if let Some((asked, thread)) = self.running.take() {
            drop(asked);
            self.recording = thread.join().ok();
        }
        match &self.recording {
            Some(recording) => Ok(Answer::Samples(recording.page(from as usize))),
            None => failed("nothing was sampled", "", "start the sampler first"),
        }
    }
}

/// What a source is read from, and which counters of its kind it has.
struct Reader {
    source: Source,
    origin: Origin,
    kept: Vec<usize>,
    /// What was summed over at the start. Without one of them a sum is no continuation: then it is missing.
    parts: Vec<String>,
    devices: Devices,
}

enum Origin {
    File(File),
    Threads(Threads),
}

impl Reader {
    fn open(source: &Source, text: &mut Vec<u8>) -> Result<Reader, String> {
        let origin = match source.kind {
            Kind::Threads => Origin::Threads(Threads::new(Path::new(&source.path))),
            _ => Origin::File(
                paths::open(Path::new(&source.path), libc::O_RDONLY, 0)
                    .map_err(|error| error.to_string())?,
            ),
        };
        if source.kind == Kind::Blkio {
            devices::expect_counted(Path::new(&source.path))?;
        }
        let source = source.clone();
        let mut reader = Reader {
            source,
            origin,
            kept: Vec::new(),
            parts: Vec::new(),
            devices: Devices::default(),
        };
        let values = reader.read(text).map_err(|error| error.to_string())?;
        let parts = summed(reader.source.kind, &reader.source.only, text);
        reader.parts = parts.into_iter().map(str::to_owned).collect();
        reader.kept = (0..values.len())
            .filter(|&slot| values[slot] != MISSING)
            .collect();
        if reader.kept.is_empty() {
            return Err("holds none of its kind's counters".into());
        }
        Ok(reader)
    }

    fn counter_names(&self) -> impl Iterator<Item = String> + '_ {
        let name = &self.source.name;
        self.kept
            .iter()
            .map(move |&slot| match counters(self.source.kind)[slot] {
                "" => name.clone(),
                counter => format!("{name}.{counter}"),
            })
    }

    /// The values of all counters of the kind; those behind the last are MISSING.
    fn read(&mut self, text: &mut Vec<u8>) -> io::Result<[i64; MOST_COUNTERS]> {
        let mut values = [MISSING; MOST_COUNTERS];
        let known = &mut values[..counters(self.source.kind).len()];
        match &mut self.origin {
            Origin::Threads(threads) => threads.sample(known),
            Origin::File(file) => {
                read_whole(file, text)?;
                let Source { kind, only, .. } = &self.source;
                if matches!(kind, Kind::Blkio | Kind::IoStat) {
                    self.devices.booked_once(text);
                }
                let now = summed(*kind, only, text);
                if self.parts.iter().all(|part| now.contains(&part.as_str())) {
                    parse(*kind, only, text, known);
                }
            }
        }
        Ok(values)
    }

    fn sample(&mut self, text: &mut Vec<u8>, row: &mut [i64]) {
        let values = self.read(text).unwrap_or([MISSING; MOST_COUNTERS]);
        for (target, &slot) in row.iter_mut().zip(&self.kept) {
            *target = values[slot];
        }
    }
}

fn open_all(sources: &[Source]) -> (Vec<Reader>, Vec<Unreadable>) {
    let mut text = Vec::new();
    let mut readers = Vec::new();
    let mut unreadable = Vec::new();
    for source in sources {
        match Reader::open(source, &mut text) {
            Ok(reader) => readers.push(reader),
            Err(reason) => {
                unreadable.push(Unreadable {
                    name: source.name.clone(),
                    path: source.path.clone(),
                    reason,
                });
            }
        }
    }
    (readers, unreadable)
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
        if length > LONGEST_TEXT_BYTES {
            text.truncate(0);
            let what = format!("goes on after {LONGEST_TEXT_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
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
    fn new(readers: &[Reader], unreadable: Vec<Unreadable>, capacity: usize) -> Recording {
        let names: Vec<String> = readers.iter().flat_map(Reader::counter_names).collect();
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

    fn tick(&mut self, readers: &mut [Reader], text: &mut Vec<u8>) {
        let range = self.row(self.written);
        let (time, mut rest) = self.ring[range]
            .split_first_mut()
            .expect("a row begins with its time");
        *time = now_ns() as i64;
        for reader in readers {
            let (row, after) = rest.split_at_mut(reader.kept.len());
            reader.sample(text, row);
            rest = after;
        }
        self.written += 1;
    }

    /// The rows from `from` on, as many as fit a message. What goes for all rows is said once, with the first:
    /// with each page it would outgrow the values, whose rows a page are the fewer the more counters there are.
    fn page(&self, from: usize) -> Samples {
        let is_first = from == 0;
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
            unreadable: if is_first {
                self.unreadable.clone()
            } else {
                Vec::new()
            },
            counters: if is_first {
                self.names.clone()
            } else {
                Vec::new()
            },
            times_ns: page
                .clone()
                .map(|row| self.ring[row.start] as u64)
                .collect(),
            values: (1..=self.names.len()).map(column).collect(),
        }
    }
}

/// Tick on absolute deadlines, and when asked to, until nobody can ask. A tick later than a whole interval takes the
/// place of those missed.
fn record(
    mut readers: Vec<Reader>,
    mut recording: Recording,
    interval_ns: u64,
    asks: &Receiver<Sender<()>>,
) -> Recording {
    let mut text = Vec::with_capacity(16 * 1024);
    let mut deadline_ns = now_ns();
    recording.tick(&mut readers, &mut text);
    deadline_ns += interval_ns;
    loop {
        let pause = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
        match asks.recv_timeout(pause) {
            Ok(taken) => {
                recording.tick(&mut readers, &mut text);
                let _ = taken.send(()); // who asked may have gone
            }
            Err(RecvTimeoutError::Timeout) => {
                let missed = now_ns().saturating_sub(deadline_ns) / interval_ns;
                recording.late_ticks += missed;
                recording.tick(&mut readers, &mut text);
                deadline_ns += (missed + 1) * interval_ns;
            }
            Err(RecvTimeoutError::Disconnected) => return recording,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use virtoll_probe::names::unique;

    #[test]
    fn an_interface_that_has_gone_takes_the_sum_with_it() {
        let path = std::env::temp_dir().join(unique("virtoll-netdev"));
        let write = |names: &[&str]| {
            let lines = names
                .iter()
                .map(|name| format!("{name}: 1 2 0 0 0 0 0 0 3 4\n"));
            std::fs::write(&path, lines.collect::<String>()).unwrap();
        };
        let source = Source {
            name: "instance".into(),
            kind: Kind::Netdev,
            path: path.to_str().unwrap().into(),
            only: vec!["gen0".into(), "org0".into(), "absent".into()],
        };
        let (mut text, mut row) = (Vec::new(), [7; 4]);
        write(&["lo", "gen0", "org0"]);
        let mut reader = Reader::open(&source, &mut text).unwrap();
        reader.sample(&mut text, &mut row);
        assert_eq!(row, [2, 4, 6, 8]);
        write(&["lo", "gen0"]);
        reader.sample(&mut text, &mut row);
        assert_eq!(row, [MISSING; 4]);
        write(&["lo", "gen0", "org0"]);
        reader.sample(&mut text, &mut row);
        assert_eq!(row, [2, 4, 6, 8]);
        write(&["lo"]);
        let told = Reader::open(&source, &mut text).err().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(told.contains("none of its kind's counters"), "{told}");
    }

    #[test]
    fn bytes_that_this_kernel_does_not_count_are_no_zero() {
        let root = std::env::temp_dir().join(unique("virtoll-blkio"));
        let group = root.join("virtoll/1");
        std::fs::create_dir_all(&group).unwrap();
        let name = "blkio.throttle.io_service_bytes_recursive";
        let source = Source {
            name: "instance".into(),
            kind: Kind::Blkio,
            path: group.join(name).to_str().unwrap().into(),
            only: vec![],
        };
        let (mut text, mut row) = (Vec::new(), [7; 2]);
        let write = |told: [&str; 3]| {
            let groups = [&root, &root.join("virtoll"), &group];
            for (group, told) in groups.iter().zip(told) {
                std::fs::write(group.join(name), told).unwrap();
            }
        };
        // Each disk is in the root's own, whether it was used or not.
        write([
            "8:0 Read 0\n8:0 Write 0\nTotal 0\n",
            "Total 0\n",
            "Total 0\n",
        ]);
        let mut reader = Reader::open(&source, &mut text).unwrap();
        reader.sample(&mut text, &mut row);
        assert_eq!(row, [0, 0], "nothing was read yet");
        // As Linux 6.10 has it, where no throttle was set.
        write(["Total 0\n"; 3]);
        let told = Reader::open(&source, &mut text).err().unwrap();
        assert!(told.contains("only where a throttle is set"), "{told}");
        assert!(told.contains(root.to_str().unwrap()), "{told}");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_row_that_is_asked_for_is_there_at_once() {
        let path = std::env::temp_dir().join(unique("virtoll-asked"));
        let source = Source {
            name: "counter".into(),
            kind: Kind::Integer,
            path: path.to_str().unwrap().into(),
            only: vec![],
        };
        let mut sampler = Sampler::default();
        assert!(sampler.now().is_err(), "nothing is sampled yet");
        std::fs::write(&path, "1").unwrap();
        let hour_ns = LONGEST_INTERVAL_NS;
        assert!(sampler.start(&[source], hour_ns, 10).is_ok());
        for value in ["2", "3"] {
            std::fs::write(&path, value).unwrap();
            assert!(sampler.now().is_ok());
        }
        let Ok(Answer::Samples(samples)) = sampler.collect(0) else {
            panic!("no samples");
        };
        std::fs::remove_file(&path).unwrap();
        assert_eq!(samples.values[0][1..], [Some(2), Some(3)]);
        assert!(sampler.now().is_err(), "nothing is sampled any more");
    }

    #[test]
    fn what_goes_for_all_rows_is_said_once() {
        let width = 3 * VALUES_PER_MESSAGE / 4; // one row a page
        let recording = Recording {
            names: (1..width)
                .map(|number| format!("counter{number}"))
                .collect(),
            unreadable: vec![Unreadable {
                name: "gone".into(),
                path: "/gone".into(),
                reason: "no such file".into(),
            }],
            ring: (0..3 * width as i64).collect(),
            capacity: 3,
            written: 3,
            late_ticks: 0,
        };
        let first = recording.page(0);
        assert_eq!(
            (first.counters.len(), first.unreadable.len()),
            (width - 1, 1)
        );
        for from in [1, 2] {
            let page = recording.page(from);
            assert_eq!((page.counters.len(), page.unreadable.len()), (0, 0));
            assert_eq!((page.rows, page.values.len()), (3, width - 1));
            assert_eq!(page.times_ns, [(from * width) as u64]);
        }
    }
}
