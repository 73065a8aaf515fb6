//! What generators of load have in common: threads that carry out orders together, system calls, datagrams, and what
//! came of a source of RTP packets.

pub mod books;
pub mod crew;
pub mod datagrams;
pub mod random;
pub mod reception;
pub mod sys;
pub mod time;

use std::io;

/// Why a generator could not do its work, and what to do about it.
#[derive(Debug)]
pub struct Failed(pub String);

impl Failed {
    pub fn system(call: &str, error: &io::Error) -> Self {
        Failed(format!(
            "{call}: {error}; the kernel must be Linux 5.11 or later and allow it"
        ))
    }

    pub fn no_thread(index: usize, error: &io::Error) -> Self {
        Failed(format!(
            "thread {} could not be started: {error}; use fewer threads, or raise the limit of processes \
             (ulimit -u, pids.max) where the generator runs",
            index + 1
        ))
    }

    pub fn own_limit(error: &io::Error) -> Self {
        Failed(format!(
            "the generator's machine allows no more connections: {error}; widen net.ipv4.ip_local_port_range in the \
             generator's namespace, raise the limit of open files, or use fewer connections or keep-alive"
        ))
    }
}

/// Whether the generator's own machine, not the server, refused.
pub fn is_own_limit(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EADDRNOTAVAIL | libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// A report, as it is said.
pub fn json(report: &impl serde::Serialize) -> Result<String, Failed> {
    serde_json::to_string(report).map_err(|error| Failed(format!("the report: {error}")))
}
