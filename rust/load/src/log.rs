//! The request log: one record per request, in the order of intended starts, whole up to where its room ended.
//!
//! A file of packed little-endian records of 26 bytes, without header:
//!
//! | bytes | field         | meaning                                                                            |
//! |-------|---------------|------------------------------------------------------------------------------------|
//! | 0-7   | `intended_ns` | i64, intended start, since the window's start                                      |
//! | 8-15  | `latency_ns`  | i64, from there to the last byte of the answer, or to the moment of the failure     |
//! | 16-17 | `status`      | i16, HTTP status; negative where there is none that tells: -1 connect, -2 timeout, -3 reset, -5 length, -6 parse, -7 unfinished, -8 tls |
//! | 18-25 | `late_ns`     | i64, open loop: how long it waited for the generator itself; -1: it was never sent; closed loop: 0 |
//!
//! A place is given out when a request starts, not when it ends: so what is left out began later than all that is in.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::Serialize;

/// One request; `intended_ns` by the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub intended_ns: i64,
    pub latency_ns: i64,
    pub status: i16,
    pub late_ns: i64,
}

/// The lateness of what was never sent.
pub const NEVER_SENT: i64 = -1;

impl Record {
    fn bytes(&self, start_ns: i64) -> [u8; 26] {
        let mut bytes = [0; 26];
        bytes[..8].copy_from_slice(&(self.intended_ns - start_ns).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.latency_ns.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.status.to_le_bytes());
        bytes[18..].copy_from_slice(&self.late_ns.to_le_bytes());
        bytes
    }
}

/// How much of all requests the log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Extent {
    pub logged: u64,
    /// Every request that was to start before this, since the window's start, is logged and no other; null: all are.
    pub whole_until_ns: Option<i64>,
}

/// One thread's records, up to its room.
#[derive(Debug)]
pub struct Log {
    records: Vec<Record>,
    room: usize,
    first_unlogged_ns: Option<i64>,
}

impl Log {
    pub fn new(room: usize) -> Self {
        Log {
            records: Vec::with_capacity(room),
            room,
            first_unlogged_ns: None,
        }
    }

    /// Whether the request that starts now gets a place. To be asked in the order of intended starts.
    pub fn admit(&mut self, intended_ns: i64) -> bool {
        if self.room == 0 {
            self.first_unlogged_ns.get_or_insert(intended_ns);
            return false;
        }
        self.room -= 1;
        true
    }

    /// Note the end of a request that got a place.
    pub fn add(&mut self, record: Record) {
        self.records.push(record);
    }

    pub fn merge(&mut self, other: Log) {
        self.records.extend(other.records);
        self.first_unlogged_ns = [self.first_unlogged_ns, other.first_unlogged_ns]
            .into_iter()
            .flatten()
            .min();
    }

    /// Write what is whole, by intended start.
    pub fn write(&mut self, path: &Path, start_ns: i64) -> io::Result<Extent> {
        let until_ns = self.first_unlogged_ns.unwrap_or(i64::MAX);
        self.records.retain(|record| record.intended_ns < until_ns);
        self.records
            .sort_unstable_by_key(|record| (record.intended_ns, record.latency_ns));
        let mut file = BufWriter::new(File::create(path)?);
        for record in &self.records {
            file.write_all(&record.bytes(start_ns))?;
        }
        file.flush()?;
        Ok(Extent {
            logged: self.records.len() as u64,
            whole_until_ns: self.first_unlogged_ns.map(|at_ns| at_ns - start_ns),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_packed_little_endian() {
        let bytes = Record {
            intended_ns: 0x0102,
            latency_ns: 3,
            status: -2,
            late_ns: 4,
        }
        .bytes(1);
        assert_eq!(bytes[..8], [1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..18], [3, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff]);
        assert_eq!(bytes[18..], [4, 0, 0, 0, 0, 0, 0, 0]);
    }

    fn filled(room: usize, starts_ns: &[i64]) -> Log {
        let mut log = Log::new(room);
        let admitted: Vec<i64> = starts_ns
            .iter()
            .copied()
            .filter(|start_ns| log.admit(*start_ns))
            .collect();
        // They end the other way round.
        for start_ns in admitted.into_iter().rev() {
            log.add(Record {
                intended_ns: start_ns,
                latency_ns: 7,
                status: 200,
                late_ns: 0,
            });
        }
        log
    }

    #[test]
    fn a_log_without_room_is_whole_up_to_where_the_first_thread_had_none_left() {
        let mut log = filled(3, &[100, 110, 150, 190]);
        log.merge(filled(3, &[105, 115, 120, 130]));
        let extent = log.write(Path::new("/dev/null"), 100).unwrap();
        assert_eq!(
            (extent.logged, extent.whole_until_ns),
            (5, Some(30)),
            "150 was logged by one thread, and 130 not by the other"
        );
    }

    #[test]
    fn a_log_with_room_says_that_it_is_whole() {
        let extent = filled(2, &[1, 2]).write(Path::new("/dev/null"), 0);
        assert_eq!(
            extent.unwrap(),
            Extent {
                logged: 2,
                whole_until_ns: None
            }
        );
    }
}
