//! LINPACK: a dense system of linear equations, factored with partial pivoting and solved.

mod arena;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod factor;
mod kernel;
mod matrix;
mod portable;
mod team;
mod update;

use crate::arguments::Arguments;
use crate::memory::room::room_bytes;
use crate::report::{Failed, Report};
use crate::windows::{Span, Windows};
use crate::Probe;
use arena::Arena;
use factor::{Shape, Solver};
use matrix::{fill, residual};
use team::{with_team, Barrier};

pub const PROBE: Probe = Probe {
    name: "linpack",
    summary: "floating point: a dense system of linear equations, factored and solved",
    usage:
        "[--order 1000] [--threads 0: all CPUs it may use] [--isa best|avx512|avx2|sse2] [--seed 1]",
    run,
};

/// The papers' largest problem (16 GB), and far more threads than it can feed: beyond, a size may not fit a number.
const MOST_ORDER: u64 = 45_000;
const MOST_THREADS: u64 = 1024;
/// HPL's limit of the scaled residual.
const RESIDUAL_LIMIT: f64 = 16.0;

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let windows = Windows::from(arguments);
    let order = arguments.within("order", 1, MOST_ORDER, 1000) as usize;
    let threads = arguments.within("threads", 0, MOST_THREADS, 0) as usize;
    let seed = arguments.get("seed", 1_u64);
    let isa = arguments.one_of("isa", kernel::WORDS);
    let mut report = Report::of(&[("gflops", "GFLOP/s"), ("solve_s", "s")]);
    if !arguments.are_right() {
        return Ok(report);
    }
    let kernel = kernel::choose(isa)?;
    let threads = if threads == 0 { team::cpus() } else { threads };
    let shape = Shape::of(order, threads, kernel);
    let solver = solver(shape)?;
    let mut residuals = Vec::new();
    report.windows = with_team(
        threads,
        |worker, barrier| unit(&solver, seed, worker, barrier),
        |go| {
            windows.measure(
                &mut report.notes,
                |units| Ok(several(units, go)),
                |units, span| {
                    // SAFETY: the workers wait; the last column is the solution.
                    residuals.push(residual(seed, unsafe { solver.matrix.column(order) }));
                    let unit_ns = span.duration_ns() as f64 / units as f64;
                    vec![
                        ("gflops", operations(order) / unit_ns),
                        ("solve_s", unit_ns / 1e9),
                    ]
                },
            )
        },
    )??;
    report.check(
        "residual",
        residuals.iter().all(|residual| *residual < RESIDUAL_LIMIT),
        format!("{residuals:.4?} in the windows' last solutions, scaled as HPL does; below {RESIDUAL_LIMIT} is right"),
    );
    report.fact("isa", kernel.name);
    report.fact("threads", threads);
    report.fact("panel_width", shape.width);
    report.fact("mapped_bytes", shape.bytes());
    report.fact("huge_page_bytes", solver.arena().in_huge_pages());
    Ok(report)
}

/// Floating-point operations of one factorisation and solution, as HPL counts them: 2/3 n^3 + 3/2 n^2.
fn operations(order: usize) -> f64 {
    let order = order as f64;
    order * order * (2.0 / 3.0 * order + 1.5)
}

/// A worker's part of one unit of work: make the system anew, untimed, then factor it; worker 0 solves.
fn unit(solver: &Solver, seed: u64, worker: usize, barrier: &Barrier) -> Span {
    let workers = solver.shape().workers;
    for column in (worker..=solver.matrix.order).step_by(workers) {
        // SAFETY: each column has one writer, and the barrier parts this from the factorisation.
        fill(seed, column, unsafe { solver.matrix.column_mut(column) });
    }
    barrier.wait();
    Span::of(|| {
        // SAFETY: all workers are here, and worker 0 solves when they have factored.
        unsafe {
            solver.factor(worker, barrier);
            if worker == 0 {
                solver.solve();
            }
        }
    })
}

/// Several units: from the first's start, as long as they took together without what was done between them.
fn several(units: u64, go: &mut dyn FnMut() -> Vec<Span>) -> Span {
    let spans: Vec<Span> = (0..units).map(|_| Span::over(&go())).collect();
    let start_ns = spans[0].start_ns;
    Span {
        start_ns,
        end_ns: start_ns + spans.iter().map(|span| span.duration_ns()).sum::<u64>(),
    }
}

/// The memory for this shape, or why not, with the largest order that fits.
fn solver(shape: Shape) -> Result<Solver, Failed> {
    let needed = |order| Shape::of(order, shape.workers, shape.kernel).bytes();
    let room = room_bytes().unwrap_or(u64::MAX);
    let fits = |order| needed(order) as u64 <= room && Arena::is_possible(needed(order));
    if fits(shape.order) {
        return Solver::of(shape);
    }
    let (mut largest, mut too_large) = (0, shape.order);
    while largest + 1 < too_large {
        let middle = largest.midpoint(too_large);
        if fits(middle) {
            largest = middle;
        } else {
            too_large = middle;
        }
    }
    Err(Failed::new(
        "memory",
        format!(
            "order {} needs {} bytes, more than are to be had; the largest order that fits is {largest}",
            shape.order,
            shape.bytes()
        ),
        "--order",
        "give the instance more memory, or ask for a smaller order",
    ))
}

#[cfg(test)]
mod tests;
