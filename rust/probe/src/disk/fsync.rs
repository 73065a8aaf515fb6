//! What making a record durable costs: write one, then fsync or fdatasync, and again.

use std::cell::RefCell;
use std::os::unix::fs::FileExt;

use super::device::Device;
use super::file::TestFile;
use super::latencies::Latencies;
use super::pattern::Pattern;
use super::settings::sizes;
use super::{fill, read_back};
use crate::arguments::Arguments;
use crate::report::{Failed, Report};
use crate::windows::{now_ns, Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "disk-sync",
    summary: "making a record durable: fsync or fdatasync after each write",
    usage: "[--call fdatasync|fsync] [--operation append|overwrite] [--record-bytes 4096] [--file-bytes 4194304] \
            [--directory /var/tmp]",
    run,
};

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let data_only = arguments.one_of("call", &["fdatasync", "fsync"]) == "fdatasync";
    let appends = arguments.one_of("operation", &["append", "overwrite"]) == "append";
    let (record_bytes, file_bytes) = sizes(arguments, 4096, 4 << 20);
    let directory = arguments.get("directory", "/var/tmp".to_owned());
    let mut report = Report::of(&[
        ("sync_us", "us"),
        ("sync_p50_us", "us"),
        ("sync_p99_us", "us"),
        ("syncs_per_s", "/s"),
    ]);
    if !arguments.are_right() {
        return Ok(report);
    }
    let mut journal = Journal::new(&directory, record_bytes, file_bytes / record_bytes, appends)?;
    journal.data_only = data_only;
    journal.prepare()?;
    let device = journal.file.device();
    let flushes_before = device.as_ref().and_then(Device::flushes);
    let journal = RefCell::new(journal);
    report.windows = windows.measure(
        &mut report.notes,
        |syncs| journal.borrow_mut().window(syncs),
        |syncs, span| journal.borrow_mut().values(syncs, span),
    )?;
    let journal = journal.into_inner();
    if let (Some(before), Some(after)) = (flushes_before, device.as_ref().and_then(Device::flushes))
    {
        check_flushes(&mut report, before, after, journal.syncs)?;
    }
    journal.conclude(&mut report)?;
    Ok(report)
}

/// A sync that is not passed on to the disk makes nothing durable, however fast it is.
fn check_flushes(report: &mut Report, before: u64, after: u64, syncs: u64) -> Result<(), Failed> {
    let flushes = after.checked_sub(before).ok_or_else(|| {
        Failed::new(
            "system",
            format!("the disk's count of flushes fell from {before} to {after}"),
            "/sys/dev/block/*/stat",
            "see that the disk stays attached, and run the probe again",
        )
    })?;
    let mut detail = format!("the disk was told to flush {flushes} times for {syncs} syncs");
    if flushes < syncs {
        detail += "; ext4 without a journal leaves it out before Linux 6.5 where no metadata changed: append instead";
    }
    report.check("syncs reached the disk", flushes >= syncs, detail);
    Ok(())
}

/// A file to which records are written one after the other, round and round, each made durable before the next.
struct Journal {
    file: TestFile,
    pattern: Pattern,
    /// By record: which of the pattern's texts it holds. As long as the file is.
    written: Vec<u8>,
    records: u64,
    record_bytes: u64,
    data_only: bool,
    appends: bool,
    next: u64,
    generation: u8,
    latencies: Latencies,
    syncs: u64,
}

impl Journal {
    /// An empty one. What overwrites the file first is not what lies there: a write that is lost then shows.
    fn new(
        directory: &str,
        record_bytes: u64,
        records: u64,
        appends: bool,
    ) -> Result<Journal, Failed> {
        Ok(Journal {
            file: TestFile::create(directory, false)?,
            pattern: Pattern::new(record_bytes as usize)?,
            written: Vec::with_capacity(records as usize),
            records,
            record_bytes,
            data_only: true,
            appends,
            next: 0,
            generation: u8::from(!appends),
            latencies: Latencies::default(),
            syncs: 0,
        })
    }

    /// The whole file, where records are to be overwritten.
    fn prepare(&mut self) -> Result<(), Failed> {
        if !self.appends {
            fill(&self.file, &self.pattern, self.records * self.record_bytes)?;
            self.written.resize(self.records as usize, 0);
        }
        self.file.flush(false)
    }

    /// Write and sync so many records. Emptying a full file, where records are appended, is not part of the time.
    fn window(&mut self, count: u64) -> Result<Span, Failed> {
        self.latencies.begin();
        let first_ns = now_ns();
        let mut emptying_ns = 0;
        for _ in 0..count {
            if self.next == self.records {
                let start_ns = now_ns();
                self.begin_again()?;
                emptying_ns += now_ns() - start_ns;
            }
            self.append()?;
        }
        Ok(Span {
            start_ns: first_ns,
            end_ns: now_ns() - emptying_ns,
        })
    }

    fn begin_again(&mut self) -> Result<(), Failed> {
        self.next = 0;
        self.generation ^= 1;
        if self.appends {
            self.written.clear();
            self.file.empty()?;
            self.file.flush(false)?;
        }
        Ok(())
    }

    fn append(&mut self) -> Result<(), Failed> {
        let offset = self.next * self.record_bytes;
        let record = self.pattern.record(self.generation, offset);
        self.file
            .target()
            .write_all_at(record, offset)
            .map_err(|error| self.file.failed("write", &error))?;
        let start_ns = now_ns();
        self.file.flush(self.data_only)?;
        self.latencies.record(now_ns() - start_ns);
        self.syncs += 1;
        if self.appends {
            self.written.push(self.generation);
        } else {
            self.written[self.next as usize] = self.generation;
        }
        self.next += 1;
        Ok(())
    }

    fn values(&mut self, syncs: u64, span: Span) -> Vec<(&'static str, f64)> {
        let per_s = syncs as f64 / span.duration_ns() as f64 * 1e9;
        let mut values = vec![("syncs_per_s", per_s)];
        if let Some([mean, median, p99]) = self.latencies.keep() {
            values.extend([
                ("sync_us", mean),
                ("sync_p50_us", median),
                ("sync_p99_us", p99),
            ]);
        }
        values
    }

    fn conclude(self, report: &mut Report) -> Result<(), Failed> {
        self.file.drop_cache()?;
        let (different, all) =
            read_back(&self.file, &self.pattern, &self.written, self.record_bytes)?;
        report.check(
            "contents of the file",
            different == 0 && all > 0,
            format!("{different} of {all} records differ, read back from the disk"),
        );
        report.fact("file_system", self.file.file_system());
        report.histogram = Some(self.latencies.buckets());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many records of the file are not what they should be.
    fn different(journal: &Journal) -> u64 {
        let (pattern, written) = (&journal.pattern, &journal.written);
        let read = read_back(&journal.file, pattern, written, journal.record_bytes);
        read.unwrap().0
    }

    #[test]
    fn an_overwrite_that_is_lost_is_seen_in_the_first_round_too() {
        let directory = crate::names::Directory::new();
        let mut journal = Journal::new(&directory.text(), 4096, 4, false).unwrap();
        journal.prepare().unwrap();
        assert_eq!(different(&journal), 0);
        let found = journal.pattern.record(0, 4096).to_vec();
        journal.append().unwrap();
        journal.append().unwrap();
        assert_eq!(different(&journal), 0);
        journal.file.prepare(&found, 4096).unwrap(); // as if the second had never been written
        assert_eq!(different(&journal), 1);
    }

    #[test]
    fn a_count_of_flushes_that_fell_is_no_count() {
        let mut report = Report::of(&[]);
        assert!(check_flushes(&mut report, 5, 7, 2).is_ok());
        assert!(check_flushes(&mut report, 5, 7, 3).is_ok());
        let passed: Vec<_> = report.checks.iter().map(|check| check.passed).collect();
        assert_eq!(passed, [true, false]);
        let failed = check_flushes(&mut report, 7, 5, 1).err().unwrap();
        assert!(failed.what.contains("fell from 7 to 5"));
    }
}
