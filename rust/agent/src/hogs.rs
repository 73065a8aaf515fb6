//! Proofs of limits by effect: CPU time got, memory allowed.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use virtoll_wire::protocol::{Allocated, Answer, Burnt, Ended};

use crate::agent::{failed, Agent, Outcome};

const STEP_BYTES: u64 = 1 << 20;
const PAGE_BYTES: usize = 4096;
const REFUSED: i32 = 3;
const LONGEST_BURN_MS: u64 = 3600 * 1000;

/// Busy loops on `threads` threads; the sum of the CPU time they got and how long it took.
pub fn burn(agent: &mut Agent, threads: u32, duration_ms: u64) -> Outcome {
    if duration_ms > LONGEST_BURN_MS {
        let what = format!("{duration_ms} ms are more than {LONGEST_BURN_MS}");
        return failed(what, "", "burn for a shorter time");
    }
    let start = Instant::now();
    let end = start + Duration::from_millis(duration_ms);
    let workers = match spinners(threads, end) {
        Ok(workers) => workers,
        Err(error) => {
            return failed(
                format!("cannot start {threads} threads: {error}"),
                "",
                "raise the limit of processes",
            )
        }
    };
    while Instant::now() < end {
        agent.wait(&mut [], Some(end))?;
    }
    let cpu_ns = workers
        .into_iter()
        .map(|worker| worker.join().expect("busy loops do not panic"))
        .sum();
    Ok(Answer::Burnt(Burnt {
        wall_ns: start.elapsed().as_nanos() as u64,
        cpu_ns,
    }))
}

/// Touch memory in a child, step by step, until all is touched or something ends it.
pub fn allocate(agent: &mut Agent, bytes: u64) -> Outcome {
    // SAFETY: a fresh shared page, zeroed by the kernel: a valid AtomicU64. Unmapped below, after the child's end.
    let page = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(
            ptr::null_mut(),
            PAGE_BYTES,
            protection,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return failed(
            "no memory for the counter",
            "",
            "give the instance more memory",
        );
    }
    // SAFETY: as above; parent and child share it only through atomic operations.
    let touched = unsafe { &*page.cast::<AtomicU64>() };
    // SAFETY: the child calls nothing but system calls, allocates nothing, and never returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        touch(bytes, touched);
    }
    if pid < 0 {
        // SAFETY: nobody else knows the page.
        unsafe { libc::munmap(page, PAGE_BYTES) };
        return failed("cannot fork", "", "raise the limit of processes");
    }
    agent.children.add(pid);
    while agent.children.code(pid) == Some(None) {
        agent.wait(&mut [], None)?;
    }
    let touched_bytes = touched.load(Ordering::Relaxed);
    // SAFETY: the child is gone and `touched` is not used any more.
    unsafe { libc::munmap(page, PAGE_BYTES) };
    let ended = match agent.children.code(pid).flatten() {
        Some(0) => Ended::Complete,
        Some(REFUSED) => Ended::Refused,
        Some(code) if code == -libc::SIGKILL => Ended::Killed,
        code => {
            return failed(
                format!("the child ended with {code:?}"),
                "",
                "look at the kernel's log",
            )
        }
    };
    Ok(Answer::Allocated(Allocated {
        touched_bytes,
        ended,
    }))
}

/// So many threads that loop until `end`; none of them when not all can be had.
fn spinners(threads: u32, end: Instant) -> io::Result<Vec<JoinHandle<u64>>> {
    let give_up = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for _ in 0..threads {
        let told = Arc::clone(&give_up);
        match thread::Builder::new().spawn(move || spin_until(end, &told)) {
            Ok(worker) => workers.push(worker),
            Err(error) => {
                give_up.store(true, Ordering::Relaxed);
                for worker in workers {
                    worker.join().expect("busy loops do not panic");
                }
                return Err(error);
            }
        }
    }
    Ok(workers)
}

fn spin_until(end: Instant, give_up: &AtomicBool) -> u64 {
    let mut value = 1u64;
    while Instant::now() < end && !give_up.load(Ordering::Relaxed) {
        for _ in 0..1000 {
            value = std::hint::black_box(value.wrapping_mul(6364136223846793005).wrapping_add(1));
        }
    }
    thread_cpu_ns()
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The child of `allocate`: never returns.
fn touch(bytes: u64, touched: &AtomicU64) -> ! {
    prefer_me_for_oom();
    // SAFETY: every page written belongs to the block just mapped; the process ends here.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        let mut done = 0;
        while done < bytes {
            let step = STEP_BYTES.min(bytes - done) as usize;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let block = libc::mmap(
                ptr::null_mut(),
                step,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if block == libc::MAP_FAILED {
                libc::_exit(REFUSED);
            }
            // All at once in the kernel, which in a guest saves most of the time; of a kernel without it (Linux 5.14,
            // madvise(2)), and of what it refuses, page by page, where whatever ends us can.
            if libc::madvise(block, step, libc::MADV_POPULATE_WRITE) != 0 {
                write_each_page(block.cast::<u8>(), step, done + 1);
            }
            done += step as u64;
            touched.store(done, Ordering::Relaxed);
        }
        libc::_exit(0)
    }
}

/// A value in each page that is in no other, so that nothing can merge or compress them away.
///
/// # Safety
/// `bytes` from `block` on are mapped, may be written, and belong to nobody else.
unsafe fn write_each_page(block: *mut u8, bytes: usize, first: u64) {
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        // SAFETY: the caller's promise; a page begins at a multiple of 8.
        unsafe {
            let page = block.add(offset).cast::<u64>();
            page.write_volatile(first + offset as u64);
        }
    }
}

/// The kernel shall kill this child, and neither the service nor the agent.
pub fn prefer_me_for_oom() {
    // SAFETY: constant strings; the descriptor is closed at the process's end.
    unsafe {
        let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
        libc::write(file, c"1000".as_ptr().cast(), 4);
    }
}
