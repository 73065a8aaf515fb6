//! Reading and writing a file: IOzone's figures. [`fsync`] is what making single records durable costs.
//!
//! A *pass* visits each record of the file once, in order or shuffled. `write` begins each pass on an empty file and
//! `read` on one that the page cache has forgotten; the other operations find the file as it was. The unit of work is
//! one whole pass, as IOzone's: its flush, and what the disk does with its end, then weigh alike in every window and on
//! every platform. At random, reading has neither: there the unit is one record, and a window goes on where the one
//! before ended.

mod buffer;
mod device;
mod file;
pub mod fsync;
mod latencies;
mod order;
pub(crate) mod pattern;
mod settings;
mod transfer;
mod uring;

use std::cell::RefCell;
use std::thread;
use std::time::Duration;

use crate::arguments::Arguments;
use crate::report::{Failed, Report};
use crate::windows::{now_ns, resolution_ns, Span, Windows};
use crate::Probe;
use buffer::Buffer;
use file::TestFile;
use latencies::Latencies;
use order::Order;
use pattern::Pattern;
use settings::Settings;
use transfer::{one_by_one, Queue, Records};

pub const PROBE: Probe = Probe {
    name: "disk",
    summary: "reading and writing a file, in order and at random, cached and direct",
    usage: "[--operation write|rewrite|read|reread|random-read|random-write] [--record-bytes 65536] \
            [--file-bytes 67108864] [--engine sync|uring] [--depth 1] [--direct no|yes] [--sync end|none] \
            [--directory /var/tmp]",
    run,
};

/// Reading the clock may take this share of the time, where records are moved one after the other.
const CLOCK_SHARE: f64 = 0.01;
/// What finds the pace takes at least so long, and so many records: a single one that is cold, or held up, is no pace.
const PACE_NS: u64 = 2_000_000;
const PACE_RECORDS: u64 = 8;

/// So much of a file may stay in the page cache, and how often it is dropped until no more does.
const KEPT: f64 = 0.01;
const DROPS: u32 = 6;

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let settings = Settings::from(arguments);
    let mut report = Report::of(&[
        ("throughput_mb_per_s", "MB/s"),
        ("operations_per_s", "/s"),
        ("latency_us", "us"),
        ("latency_p50_us", "us"),
        ("latency_p99_us", "us"),
    ]);
    if !arguments.are_right() {
        return Ok(report);
    }
    let mut passes = Passes::new(&settings)?;
    passes.prepare()?;
    passes.find_pace()?;
    let passes = RefCell::new(passes);
    report.windows = windows.measure(
        &mut report.notes,
        |units| passes.borrow_mut().window(units),
        |units, span| passes.borrow_mut().values(units, span),
    )?;
    passes.into_inner().conclude(&mut report)?;
    Ok(report)
}

/// Passes over the file, and what was seen of them.
struct Passes<'a> {
    settings: &'a Settings,
    records: Records,
    queue: Option<Queue>,
    /// Visits so far; where the work is whole passes, since the window began.
    visits: u64,
    asked_bytes: u64,
    /// Share of the file in the page cache when a window began: least and most.
    cached: (f64, f64),
}

impl<'a> Passes<'a> {
    fn new(settings: &'a Settings) -> Result<Passes<'a>, Failed> {
        let count = settings.records();
        let order = if settings.operation.starts_with("random") {
            Order::shuffled(count as u32)
        } else {
            Order::Sequential(count)
        };
        let mut queue = None;
        if settings.uring {
            queue = Some(Queue::new(settings.depth as u32)?);
        }
        Ok(Passes {
            settings,
            records: Records {
                file: TestFile::create(&settings.directory, settings.direct)?,
                order,
                pattern: Pattern::new(settings.record_bytes as usize)?,
                buffers: Buffer::zeroed(((settings.depth + 1) * settings.record_bytes) as usize)?,
                record_bytes: settings.record_bytes as usize,
                writes: settings.writes(),
                generation: 0,
                written: vec![0; count as usize],
                timed_one_in: 1,
                untimed: 0,
                latencies: Latencies::default(),
                moved_bytes: 0,
                wrong: 0,
            },
            queue,
            visits: 0,
            asked_bytes: 0,
            cached: (1.0, 0.0),
        })
    }

    /// The whole file on the disk, for every operation that finds one; in the page cache too, unless past it.
    fn prepare(&mut self) -> Result<(), Failed> {
        if self.settings.operation == "write" {
            return Ok(());
        }
        fill(
            &self.records.file,
            &self.records.pattern,
            self.settings.file_bytes,
        )?;
        if self.settings.direct {
            self.records.file.drop_cache()
        } else {
            self.records.file.flush(false)
        }
    }

    /// Find how many records to leave untimed for each that is timed, so that reading the clock costs next to nothing.
    ///
    /// It is an odd number: the records that are timed then fall on each place of the kernel's read-ahead in turn.
    /// What a flush takes is no part of a record's time, and would end the search with the first one.
    fn find_pace(&mut self) -> Result<(), Failed> {
        let mut count = PACE_RECORDS;
        while self.visit(count, false)?.duration_ns() < PACE_NS {
            count *= 2;
        }
        let median_ns = self.records.latencies.median_ns();
        self.records
            .time_one_in(timed_one_in(resolution_ns() as f64, median_ns));
        Ok(())
    }

    /// So many units of work.
    fn window(&mut self, units: u64) -> Result<Span, Failed> {
        self.visit(units * self.settings.unit_records(), self.settings.syncs())
    }

    /// Move so many records. Only that, and where it `syncs` the flush that ends a pass of writing, counts as time.
    fn visit(&mut self, count: u64, syncs: bool) -> Result<Span, Failed> {
        if self.settings.in_passes() {
            self.visits = 0;
        } else {
            self.see_cache()?; // no pass begins with it
        }
        self.records.time_some_of(count);
        if self.settings.writes() && !self.settings.begins_anew() {
            self.records.file.flush(true)?; // what an earlier window left is none of this one's work
        }
        self.records.latencies.begin();
        let mut first_ns = None;
        let mut busy_ns = 0;
        let mut left = count;
        while left > 0 {
            let into_pass = self.visits % self.settings.records();
            if into_pass == 0 {
                self.begin_pass()?;
            }
            let part = if self.settings.ends_passes() {
                left.min(self.settings.records() - into_pass)
            } else {
                left // nothing happens where a pass ends: what is under way need not come to rest
            };
            let start_ns = now_ns();
            self.transfer(part, syncs)?;
            busy_ns += now_ns() - start_ns;
            first_ns.get_or_insert(start_ns);
            left -= part;
        }
        let start_ns = first_ns.unwrap_or_default();
        Ok(Span {
            start_ns,
            end_ns: start_ns + busy_ns,
        })
    }

    /// What belongs to a pass and not to its time.
    fn begin_pass(&mut self) -> Result<(), Failed> {
        match self.settings.operation {
            "write" => self.records.file.empty()?,
            "read" => return self.forget(),
            _ => {}
        }
        if self.settings.writes() {
            self.records.generation ^= 1;
        }
        self.see_cache()
    }

    /// Have the cache forget the file. What is being read ahead just then stays, and is forgotten the next time.
    fn forget(&mut self) -> Result<(), Failed> {
        for tries in 0..DROPS - 1 {
            self.records.file.drop_cache()?;
            let share = self.records.file.cached_share(self.file_length())?;
            if share <= KEPT {
                self.seen(share);
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1 << tries));
        }
        self.records.file.drop_cache()?;
        self.see_cache()
    }

    fn see_cache(&mut self) -> Result<(), Failed> {
        let share = self.records.file.cached_share(self.file_length())?;
        self.seen(share);
        Ok(())
    }

    fn seen(&mut self, share: f64) {
        self.cached = (self.cached.0.min(share), self.cached.1.max(share));
    }

    fn transfer(&mut self, count: u64, syncs: bool) -> Result<(), Failed> {
        match &mut self.queue {
            None => one_by_one(&mut self.records, self.visits, count)?,
            Some(queue) => queue.transfer(&mut self.records, self.visits, count)?,
        }
        self.visits += count;
        self.asked_bytes += count * self.settings.record_bytes;
        if syncs {
            self.records.file.flush(false)?;
        }
        Ok(())
    }

    /// How long the file is now.
    fn file_length(&self) -> u64 {
        if self.settings.operation != "write" {
            return self.settings.file_bytes;
        }
        let into_pass = self.visits % self.settings.records();
        let records = if into_pass == 0 && self.visits > 0 {
            self.settings.records()
        } else {
            into_pass
        };
        records * self.settings.record_bytes
    }

    fn values(&mut self, units: u64, span: Span) -> Vec<(&'static str, f64)> {
        let records = units * self.settings.unit_records();
        let duration_ns = span.duration_ns() as f64;
        let bytes = (records * self.settings.record_bytes) as f64;
        let mut values = vec![
            ("throughput_mb_per_s", bytes / duration_ns * 1e3),
            ("operations_per_s", records as f64 / duration_ns * 1e9),
        ];
        if let Some([mean, median, p99]) = self.records.latencies.keep() {
            values.extend([
                ("latency_us", mean),
                ("latency_p50_us", median),
                ("latency_p99_us", p99),
            ]);
        }
        values
    }

    /// Facts, and the proofs: what was moved, what was read, and what is on the disk now.
    fn conclude(mut self, report: &mut Report) -> Result<(), Failed> {
        let Records {
            moved_bytes, wrong, ..
        } = self.records;
        let asked_bytes = self.asked_bytes;
        report.check(
            "bytes moved",
            moved_bytes == asked_bytes,
            format!("{moved_bytes} of {asked_bytes} B, warm-up included"),
        );
        if !self.settings.writes() {
            report.check(
                "records read",
                wrong == 0,
                format!("{wrong} with a wrong first or last eight bytes"),
            );
        }
        let (different, all) = self.read_back()?;
        report.check(
            "contents of the file",
            different == 0 && all > 0,
            format!("{different} of {all} records differ, read back from the disk"),
        );
        let buckets = self.records.latencies.buckets();
        report.histogram = Some(buckets);
        report.fact("file_system", self.records.file.file_system());
        match &self.queue {
            None => report.fact("timed_one_in", self.records.timed_one_in),
            Some(queue) => report.fact("completions_deferred", queue.is_deferred()),
        }
        self.tell_of_the_cache(report);
        Ok(())
    }

    fn tell_of_the_cache(&self, report: &mut Report) {
        let (least, most) = self.cached;
        report.fact("cached_share_least", least);
        report.fact("cached_share_most", most);
        let cached = !self.settings.direct;
        if cached && self.settings.operation == "read" {
            // What a kernel says of its cache (mincore) is all that there is: gVisor's says this of every page.
            let detail = format!(
                "{:.0} % of the file stayed in the page cache though it was to be forgotten",
                most * 100.0
            );
            report.check(
                "the page cache had forgotten the file",
                most <= KEPT,
                detail,
            );
        }
        if cached && matches!(self.settings.operation, "reread" | "random-read") && least < 0.99 {
            let percent = least * 100.0;
            report.notes.push(format!(
                "only {percent:.0} % of the file was in the page cache: it may not fit the memory"
            ));
        }
    }

    /// Records that are not what was written last, and all; read from the disk, not from the page cache.
    fn read_back(&mut self) -> Result<(u64, u64), Failed> {
        self.records.file.drop_cache()?;
        read_back(
            &self.records.file,
            &self.records.pattern,
            &self.records.written[..(self.file_length() / self.settings.record_bytes) as usize],
            self.settings.record_bytes,
        )
    }
}

/// One record in so many, an odd number, is timed where a look at the clock takes `look_ns` and a record `record_ns`.
fn timed_one_in(look_ns: f64, record_ns: f64) -> u64 {
    (2.0 * look_ns / (CLOCK_SHARE * record_ns.max(1.0))).ceil() as u64 | 1
}

/// Write so many bytes of the first text, in as long stretches as there are: a page cache made of large pages answers
/// nearly twice as fast as one of single ones, whatever the size of the records that are read later.
fn fill(file: &TestFile, pattern: &Pattern, file_bytes: u64) -> Result<(), Failed> {
    let mut offset = 0;
    while offset < file_bytes {
        let stretch = pattern.stretch(0, offset, file_bytes - offset);
        file.prepare(stretch, offset)?;
        offset += stretch.len() as u64;
    }
    Ok(())
}

/// Compare each record with the text that `written` says it holds: how many differ, and how many there are.
fn read_back(
    file: &TestFile,
    pattern: &Pattern,
    written: &[u8],
    record_bytes: u64,
) -> Result<(u64, u64), Failed> {
    let mut bytes = vec![0; record_bytes as usize];
    let mut different = 0;
    for (record, generation) in written.iter().enumerate() {
        let offset = record as u64 * record_bytes;
        let whole = file.read_back(&mut bytes, offset)?;
        different += u64::from(!whole || bytes != pattern.record(*generation, offset));
    }
    Ok((different, written.len() as u64))
}

#[cfg(test)]
mod tests;
