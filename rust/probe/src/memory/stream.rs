//! STREAM: sustained bandwidth of copy, scale, add and triad, as J. D. McCalpin defines them
//! (<https://www.cs.virginia.edu/stream/>).

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arguments::Arguments;
use crate::memory::bandwidth::mb_per_s;
use crate::memory::isa::{self, Isa};
use crate::memory::mapping::{report_pages, Mapping, Pages};
use crate::memory::stream_kernels::{Kernel, Pass, STEP_BYTES};
use crate::memory::{room, team};
use crate::report::{Failed, Report};
use crate::windows::{Span, Windows};
use crate::Probe;

pub const PROBE: Probe = Probe {
    name: "stream",
    summary: "STREAM: bandwidth of copy, scale, add, triad",
    usage: "[--array-bytes 100663296] [--kernel triad|add|scale|copy] [--stores plain|non-temporal]
       [--isa auto|sse2|avx2|avx512] [--threads CPUS] [--pages small|huge]; a unit of work: one pass over the arrays",
    run,
};

/// McCalpin's rule: each array at least so many times the last-level cache.
const TIMES_CACHE: u64 = 4;
/// Sources repeat with this period (a prime: a slip by any power of two shows).
const PERIOD: usize = 1021;

/// A thread's slices of the three arrays.
struct Slices {
    to: *mut f64,
    x: *mut f64,
    y: *mut f64,
    bytes: usize,
}

// SAFETY: the slices of different threads do not overlap, and the mappings outlive the threads.
unsafe impl Send for Slices {}

impl Slices {
    /// Destination, x and y.
    fn arrays(&mut self) -> [&mut [f64]; 3] {
        let count = self.bytes / size_of::<f64>();
        // SAFETY: three mappings that do not overlap, each of at least `bytes` from here on and all of it initialised
        // (fresh memory is zero); no one else holds this thread's slices.
        [self.to, self.x, self.y]
            .map(|start| unsafe { std::slice::from_raw_parts_mut(start, count) })
    }
}

/// Three arrays of `bytes` each, by slices of whole steps, one for each thread.
pub(super) struct Arrays {
    slices: Vec<Slices>,
    mappings: [Mapping; 3],
    kernel: Kernel,
}

impl Arrays {
    /// Map them; every thread touches and fills its own slices.
    pub(super) fn new(
        bytes: usize,
        threads: usize,
        pages: Pages,
        kernel: Kernel,
    ) -> Result<Arrays, Failed> {
        let map = || Mapping::new(bytes, pages);
        let mappings = [map()?, map()?, map()?];
        let steps = bytes / STEP_BYTES;
        let edge = |thread: usize| steps * thread / threads * STEP_BYTES;
        let slice =
            |array: usize, thread: usize| mappings[array].start().wrapping_add(edge(thread)).cast();
        let slices = (0..threads)
            .map(|thread| Slices {
                to: slice(0, thread),
                x: slice(1, thread),
                y: slice(2, thread),
                bytes: edge(thread + 1) - edge(thread),
            })
            .collect();
        let mut arrays = Arrays {
            slices,
            mappings,
            kernel,
        };
        team::together(&mut arrays.slices, |slices| {
            let [_, xs, ys] = slices.arrays();
            for (index, (x, y)) in xs.iter_mut().zip(ys).enumerate() {
                (*x, *y) = sources(index);
            }
        })?;
        arrays.spoil()?;
        Ok(arrays)
    }

    /// Make every element of the destination wrong, and count the elements of the sources that are not as they were.
    ///
    /// In this order: the sources take the place of the destination's fresh lines in the cache, which would otherwise
    /// be written to memory within the window that follows.
    pub(super) fn spoil(&mut self) -> Result<usize, Failed> {
        let wrong = AtomicUsize::new(0);
        team::together(&mut self.slices, |slices| {
            let [to, xs, ys] = slices.arrays();
            to.fill(f64::NAN);
            let pairs = xs.iter().zip(ys).enumerate();
            let changed = pairs.filter(|(index, (x, y))| (**x, **y) != sources(*index));
            wrong.fetch_add(changed.count(), Ordering::Relaxed);
        })?;
        Ok(wrong.into_inner())
    }

    /// So many passes; a thread does not wait for the others between its own.
    pub(super) fn compute(&mut self, pass: Pass, passes: u64) -> Result<Span, Failed> {
        team::together(&mut self.slices, |slices| {
            for _ in 0..passes {
                // SAFETY: the three slices are `bytes` long, multiples of STEP_BYTES from a page's start on; the pass
                // is for an instruction set that the processor has.
                unsafe { pass(slices.to, slices.x, slices.y, slices.bytes) };
            }
        })
    }

    /// Elements of the destination that are not exactly what the kernel makes of the sources.
    pub(super) fn wrong(&mut self) -> Result<usize, Failed> {
        let (kernel, wrong) = (self.kernel, AtomicUsize::new(0));
        team::together(&mut self.slices, |slices| {
            let [to, xs, ys] = slices.arrays();
            let elements = xs.iter().zip(ys).zip(to);
            let others = elements.filter(|((x, y), to)| **to != kernel.of(**x, **y));
            wrong.fetch_add(others.count(), Ordering::Relaxed);
        })?;
        Ok(wrong.into_inner())
    }
}

/// The elements of x and y at this index of a slice: small whole numbers, whose products and sums are exact.
fn sources(index: usize) -> (f64, f64) {
    (
        (index % PERIOD + 1) as f64,
        (index % (PERIOD - 2) + 7) as f64,
    )
}

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let bytes = arguments.get("array-bytes", 96_u64 << 20);
    let kernel = Kernel::from(arguments.one_of("kernel", &["triad", "add", "scale", "copy"]));
    let non_temporal = arguments.one_of("stores", &["plain", "non-temporal"]) == "non-temporal";
    let isa = Isa::from(arguments);
    let threads = team::threads(arguments);
    let pages = Pages::from(arguments);
    let mut report = Report::of(&[("bandwidth_mb_per_s", "MB/s")]);
    let step = STEP_BYTES as u64;
    if bytes % step != 0 || bytes < step * threads as u64 {
        arguments.complain(format!(
            "--array-bytes {bytes} is no multiple of {step}, or less than that for each of {threads} threads"
        ));
    }
    if !arguments.are_right() {
        return Ok(report);
    }
    let isa = isa?;
    room::demand("--array-bytes", bytes, 3, step)?;
    let pass = kernel.pass(isa, non_temporal);
    let mut arrays = Arrays::new(bytes as usize, threads, pages, kernel)?;
    let mut wrong = 0;
    report.windows = windows.measure(
        &mut report.notes,
        |passes| {
            wrong += arrays.spoil()?;
            let span = arrays.compute(pass, passes)?;
            wrong += arrays.wrong()?;
            Ok(span)
        },
        |passes, span| {
            let counted = kernel.arrays() * bytes as usize;
            vec![("bandwidth_mb_per_s", mb_per_s(counted, passes, span))]
        },
    )?;
    report.check(
        "every element is exactly right",
        wrong == 0,
        format!("{wrong} wrong elements in all windows"),
    );
    report.fact("instructions", isa.word());
    report_cache(&mut report, bytes);
    report_pages(&mut report, &arrays.mappings.each_ref());
    Ok(report)
}

/// Note the last-level cache that the instance is shown, and whether the arrays are as large as McCalpin asks.
fn report_cache(report: &mut Report, array_bytes: u64) {
    let cache_bytes = isa::last_level_cache_bytes();
    report.fact("last_level_cache_bytes", cache_bytes);
    if let Some(cache_bytes) = cache_bytes.filter(|bytes| array_bytes < TIMES_CACHE * bytes) {
        report.notes.push(format!(
            "an array of {array_bytes} bytes is less than {TIMES_CACHE} times the last-level cache \
             ({cache_bytes} bytes): part of this may be the cache's bandwidth"
        ));
    }
}
