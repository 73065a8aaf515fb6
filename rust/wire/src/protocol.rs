//! The agent's protocol: one JSON object a line, a request and its response (docs/PROTOCOL.md).
//!
//! The transcripts in `tests/transcripts` show every operation; Rust and Python replay the same files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base64::Bytes;

/// Both ends must have the same number; any change of a message raises it.
pub const PROTOCOL: u32 = 4;

/// The line before each answer to `hello`: what came earlier on the stream (a kernel's messages) is not ours.
pub const MARKER: &str = "== virtoll-agent ==";

/// Most bytes of a request, in one line or in parts.
pub const LONGEST_REQUEST_BYTES: usize = 4 << 20;

/// Most bytes of a file in one `put` or `get`.
pub const CHUNK_BYTES: usize = 32 * 1024;

/// Most bytes of a command's output (each of stdout and stderr), of a file's tail, of a process's environment.
pub const MOST_TOLD_BYTES: usize = 1 << 20;

/// A request. Ids rise; a response carries the id of its request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub id: u64,
    pub op: Op,
}

/// What the controller can ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    Hello {
        protocol: u32,
    },
    /// A part of a request's text, to be kept until `whole`: for a line that loses what its buffer does not hold.
    Part {
        text: String,
    },
    /// All parts have come: the request that they make is answered.
    Whole {},
    Facts {},
    Run {
        argv: Vec<String>,
        stdin: Bytes,
        timeout_ms: u64,
        env: Option<BTreeMap<String, String>>,
        cwd: String,
        user: String,
    },
    Spawn {
        argv: Vec<String>,
        log: String,
        env: Option<BTreeMap<String, String>>,
        cwd: String,
        user: String,
    },
    Alive {
        pid: i32,
    },
    Kill {
        pid: i32,
        grace_ms: u64,
    },
    Describe {
        pid: i32,
    },
    Listening {
        port: u16,
        protocol: Transport,
    },
    Put {
        path: String,
        mode: u32,
        offset: u64,
        data: Bytes,
    },
    Get {
        path: String,
        offset: u64,
    },
    Tail {
        path: String,
        bytes: u64,
    },
    Fill {
        path: String,
        length_bytes: u64,
        begin_bytes: u64,
    },
    Sync {
        path: String,
    },
    Burn {
        threads: u32,
        duration_ms: u64,
    },
    Allocate {
        bytes: u64,
    },
    Reserve {
        directory: String,
        bytes: u64,
    },
    Processes {
        count: u64,
    },
    Clock {},
    SampleStart {
        sources: Vec<Source>,
        interval_ns: u64,
        keep_ticks: u64,
    },
    SampleNow {},
    SampleCollect {
        from: u64,
    },
    Configure(Guest),
    Poweroff {},
}

/// What carries a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    Tcp,
    Udp,
}

/// A virtual machine's name, its limits of processes and open files (of each process: soft and hard), and its one network
/// device's IPv4 address and default route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    pub hostname: String,
    pub pids: u64,
    pub open_files: (u64, u64),
    pub device: String,
    pub address: String,
    pub prefix_length: u8,
    pub gateway: Option<String>,
    pub on_link_gateway: bool,
}

/// A file the sampler reads on each tick, and how its counters are found in it. `only` names the network interfaces
/// that count; without it all do but the loopback.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub name: String,
    pub kind: Kind,
    pub path: String,
    pub only: Vec<String>,
}

/// The forms of files the sampler understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Integer,
    Keyed,
    Psi,
    Stat,
    Meminfo,
    Netdev,
    Pidstat,
    Diskstats,
    Blkio,
    IoStat,
    Threads,
}

/// A response: either `ok` or `error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    pub id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Answer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// What went wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    pub what: String,
    #[serde(rename = "where")]
    pub place: String,
    pub remedy: String,
}

/// The `ok` of a response; each operation has its own form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    Hello(Hello),
    Facts(Facts),
    Ran(Ran),
    Spawned(Spawned),
    Alive(Alive),
    Described(Described),
    Listening(Listening),
    Part(Part),
    Tail(Tail),
    Burnt(Burnt),
    Allocated(Allocated),
    Reserved(Reserved),
    Processes(Processes),
    Clock(Clock),
    Samples(Samples),
    Done(Done),
}

/// To `part`, `kill`, `put`, `fill`, `sync`, `sample_start`, `sample_now`, `configure`, `poweroff`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {}

/// To `hello`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    pub protocol: u32,
    pub version: String,
    pub pid: u32,
}

/// What the instance believes about itself. `cpus` follows the affinity mask (what `nproc` prints).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    pub cpus: Option<u32>,
    pub memory_bytes: Option<u64>,
    pub kernel: String,
    pub cpus_online: Option<u32>,
    pub cpu_model: Option<String>,
    pub clocksource: Option<String>,
    pub hostname: String,
    pub pid1: Option<String>,
    pub machine: String,
    pub kernel_version: String,
}

/// A command's end; a negative `returncode` is the signal that ended it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ran {
    pub returncode: i32,
    pub stdout: Bytes,
    pub stderr: Bytes,
}

/// A background command's process id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spawned {
    pub pid: i32,
}

/// Whether a spawned command still runs, and how it ended if not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alive {
    pub alive: bool,
    pub returncode: Option<i32>,
}

/// What really runs as a process; null where not even the process's own user may look. `command_line` and
/// `environment` as the kernel keeps them: texts that each end in a zero byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Described {
    pub command_line: Bytes,
    pub exe: Option<String>,
    pub cwd: Option<String>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub environment: Option<Bytes>,
}

/// Whether a socket listens on the port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listening {
    pub listening: bool,
}

/// The end of a file, and how long the whole file is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tail {
    pub data: Bytes,
    pub length_bytes: u64,
}

/// How much space a file could have, and what refused more (errno(3)); null where all was had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserved {
    pub reserved_bytes: u64,
    pub errno: Option<i32>,
}

/// How many processes there could be at one time, and what refused more (errno(3)); null where all were had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processes {
    pub processes: u64,
    pub errno: Option<i32>,
}

/// A part of a file, and whether the file ends with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub data: Bytes,
    pub end: bool,
}

/// How long the busy loops lasted and how much CPU time their threads got, summed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burnt {
    pub wall_ns: u64,
    pub cpu_ns: u64,
}

/// How much memory could be touched, and what ended it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocated {
    pub touched_bytes: u64,
    pub ended: Ended,
}

/// How an allocation ended: all was touched, SIGKILL (the OOM killer), or mmap refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Complete,
    Killed,
    Refused,
}

/// The agent's CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    pub t_ns: u64,
}

/// Rows `from..` of what was sampled, as many as fit a message; `values` holds one list a counter. `unreadable` and
/// `counters` are said with the first row alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    pub rows: u64,
    pub late_ticks: u64,
    pub dropped: u64,
    pub unreadable: Vec<Unreadable>,
    pub counters: Vec<String>,
    pub times_ns: Vec<u64>,
    pub values: Vec<Vec<Option<i64>>>,
}

/// A source that could not be opened or understood, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unreadable {
    pub name: String,
    pub path: String,
    pub reason: String,
}

impl Response {
    /// The line of a response, newline included.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("a response has only string keys");
        line.push(b'\n');
        line
    }
}
