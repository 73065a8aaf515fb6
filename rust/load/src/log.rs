//! The request log: one record per request, in the order of intended starts.
//!
//! A file of packed little-endian records of 18 bytes, without header:
//!
//! | bytes | field         | meaning                                                                            |
//! |-------|---------------|------------------------------------------------------------------------------------|
//! | 0-7   | `intended_ns` | i64, intended start, since the window's start                                      |
//! | 8-15  | `latency_ns`  | i64, from there to the last byte of the answer, or to the moment of the failure     |
//! | 16-17 | `status`      | i16, HTTP status; negative where there is none that tells: -1 connect, -2 timeout, -3 reset, -5 length, -6 parse, -7 unfinished |

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// One request; `intended_ns` by the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub intended_ns: i64,
    pub latency_ns: i64,
    pub status: i16,
}

impl Record {
    fn bytes(&self, start_ns: i64) -> [u8; 18] {
        let mut bytes = [0; 18];
        bytes[..8].copy_from_slice(&(self.intended_ns - start_ns).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.latency_ns.to_le_bytes());
        bytes[16..].copy_from_slice(&self.status.to_le_bytes());
        bytes
    }
}

/// Write the first `limit` records by intended start; how many that were.
pub fn write(
    path: &Path,
    records: &mut [Record],
    start_ns: i64,
    limit: usize,
) -> io::Result<usize> {
    records.sort_unstable_by_key(|record| (record.intended_ns, record.latency_ns));
    let kept = &records[..limit.min(records.len())];
    let mut file = BufWriter::new(File::create(path)?);
    for record in kept {
        file.write_all(&record.bytes(start_ns))?;
    }
    file.flush()?;
    Ok(kept.len())
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
        }
        .bytes(1);
        assert_eq!(bytes[..8], [1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..], [3, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff]);
    }
}
