//! What is asked of the disk, and whether that can be.

use crate::arguments::Arguments;

pub const OPERATIONS: [&str; 6] = [
    "write",
    "rewrite",
    "read",
    "reread",
    "random-read",
    "random-write",
];
/// Sizes of records: powers of two from a sector to IOzone's largest.
const LEAST_RECORD_BYTES: u64 = 512;
const MOST_RECORD_BYTES: u64 = 16 << 20;
/// What O_DIRECT asks of every disk: one with sectors of 4096 bytes takes nothing smaller.
const DIRECT_RECORD_BYTES: u64 = 4096;
const MOST_DEPTH: u64 = 4096;

/// What is asked for.
pub struct Settings {
    pub operation: &'static str,
    pub record_bytes: u64,
    pub file_bytes: u64,
    pub uring: bool,
    pub depth: u64,
    pub direct: bool,
    pub sync_at_end: bool,
    pub directory: String,
}

impl Settings {
    /// From the command line; what is wrong is complained of.
    pub fn from(arguments: &mut Arguments) -> Settings {
        let operation = arguments.one_of("operation", &OPERATIONS);
        let (record_bytes, file_bytes) = sizes(arguments, 64 << 10, 64 << 20);
        let settings = Settings {
            operation,
            record_bytes,
            file_bytes,
            uring: arguments.one_of("engine", &["sync", "uring"]) == "uring",
            depth: arguments.at_least("depth", 1, 1),
            direct: arguments.one_of("direct", &["no", "yes"]) == "yes",
            sync_at_end: arguments.one_of("sync", &["end", "none"]) == "end",
            directory: arguments.get("directory", "/var/tmp".to_owned()),
        };
        if settings.depth > 1 && !settings.uring {
            arguments.complain("--engine sync has one record under way: --depth must be 1".into());
        }
        if settings.depth > MOST_DEPTH.min(settings.records()) {
            arguments.complain(format!(
                "--depth {} is more than {MOST_DEPTH}, or than the file has records",
                settings.depth
            ));
        }
        if settings.direct && settings.record_bytes < DIRECT_RECORD_BYTES {
            arguments.complain(format!(
                "--direct yes needs --record-bytes of at least {DIRECT_RECORD_BYTES}"
            ));
        }
        settings
    }

    /// How many there are in the file.
    pub fn records(&self) -> u64 {
        self.file_bytes / self.record_bytes
    }

    /// Whether the work is whole passes over the file: all but reading at random, of which each record is like another.
    pub fn in_passes(&self) -> bool {
        self.operation != "random-read"
    }

    /// How many records a unit of work has.
    pub fn unit_records(&self) -> u64 {
        if self.in_passes() {
            self.records()
        } else {
            1
        }
    }

    /// Whether records are written, not read.
    pub fn writes(&self) -> bool {
        self.operation.ends_with("write")
    }

    /// Whether each pass begins with the file in a state of its own.
    pub fn begins_anew(&self) -> bool {
        matches!(self.operation, "write" | "read")
    }

    /// Whether something happens between one pass and the next.
    pub fn ends_passes(&self) -> bool {
        self.writes() || self.begins_anew()
    }

    /// Whether a pass of writing ends with fsync, inside the time.
    pub fn syncs(&self) -> bool {
        self.writes() && self.sync_at_end
    }
}

/// `--record-bytes` and `--file-bytes`, in reach of this probe.
pub fn sizes(arguments: &mut Arguments, record: u64, file: u64) -> (u64, u64) {
    let record_bytes = arguments.at_least("record-bytes", LEAST_RECORD_BYTES, record);
    if !record_bytes.is_power_of_two() || record_bytes > MOST_RECORD_BYTES {
        arguments.complain(format!(
            "--record-bytes {record_bytes} is no power of two up to {MOST_RECORD_BYTES}"
        ));
    }
    let file_bytes = arguments.at_least("file-bytes", record_bytes, file);
    if file_bytes % record_bytes != 0 || file_bytes / record_bytes > u64::from(u32::MAX) {
        arguments.complain(format!(
            "--file-bytes {file_bytes} is not a multiple of --record-bytes, or too many records"
        ));
    }
    (record_bytes, file_bytes)
}
