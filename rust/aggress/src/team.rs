//! Threads that all do the same, and memory for them to do it in.

use std::io;
use std::ptr::NonNull;
use std::thread;

use virtoll_probe::arguments::Arguments;

/// More threads than any aggressor needs.
const MOST_THREADS: u64 = 4096;
const STACK_BYTES: usize = 64 * 1024;

/// Read `--threads`; 0 means one for each CPU that this process may use.
pub fn threads(arguments: &mut Arguments, default: u64) -> u64 {
    let threads = arguments.get("threads", default);
    if threads > MOST_THREADS {
        arguments.complain(format!("--threads {threads} is above {MOST_THREADS}"));
    }
    if threads == 0 {
        cpus()
    } else {
        threads
    }
}

/// Do `body(number)` on so many threads, of which this is number 0: what comes back is why that one cannot go on.
///
/// Where another thread cannot be made (a limit of processes) or cannot go on, `refused` is told, and the rest goes on.
pub fn work(
    threads: u64,
    refused: impl Fn() + Copy + Send + 'static,
    body: impl Fn(u64) -> String + Copy + Send + 'static,
) -> String {
    for number in 1..threads {
        let made = thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || {
                body(number);
                refused();
            });
        if made.is_err() {
            refused();
        }
    }
    body(0)
}

/// How many CPUs are in the affinity mask, whatever quota there is: an aggressor is on all of them.
fn cpus() -> u64 {
    // SAFETY: an all-zero set is valid, and the kernel fills it.
    let count = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) {
            0 => libc::CPU_COUNT(&set) as u64,
            _ => thread::available_parallelism().map_or(1, |count| count.get() as u64),
        }
    };
    count.max(1)
}

/// Fresh memory of its own, in pages that come when they are touched.
pub fn mapped(bytes: usize) -> io::Result<NonNull<u64>> {
    // SAFETY: a fresh anonymous mapping, which nothing else refers to.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(address.cast()).expect("a mapping is never at 0"))
}
