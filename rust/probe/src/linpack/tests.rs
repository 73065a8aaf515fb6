use super::*;

/// One system, solved, and the residual.
fn solved(shape: Shape) -> (Solver, f64) {
    let solver = Solver::of(shape).unwrap();
    let work = |worker: usize, barrier: &Barrier| unit(&solver, 5, worker, barrier);
    let residual = with_team(shape.workers, work, |go| {
        go();
        // SAFETY: the workers wait.
        residual(5, unsafe { solver.matrix.column(shape.order) })
    });
    let residual = residual.unwrap();
    (solver, residual)
}

#[test]
fn every_kernel_solves_every_order() {
    for kernel in kernel::available() {
        for order in [1, 2, 3, 7, 8, 9, 23, 24, 25, 31, 33, 64, 65, 100, 149] {
            let (_, residual) = solved(Shape::of(order, 1, kernel));
            assert!(
                residual < RESIDUAL_LIMIT,
                "{} {order}: {residual}",
                kernel.name
            );
        }
    }
}

#[test]
fn any_width_of_the_panels_will_do() {
    for kernel in kernel::available() {
        for (width, order) in [(8, 75), (24, 75), (40, 99), (128, 150)] {
            let shape = Shape {
                width,
                ..Shape::of(order, 1, kernel)
            };
            let (_, residual) = solved(shape);
            assert!(
                residual < RESIDUAL_LIMIT,
                "{} {width}: {residual}",
                kernel.name
            );
        }
    }
}

#[test]
fn any_number_of_workers_gives_the_same_solution() {
    for kernel in kernel::available() {
        for order in [5, 131] {
            let (alone, _) = solved(Shape::of(order, 1, kernel));
            for workers in [2, 3, 7] {
                let (together, _) = solved(Shape::of(order, workers, kernel));
                // SAFETY: no one works on either.
                let (one, other) =
                    unsafe { (alone.matrix.column(order), together.matrix.column(order)) };
                assert_eq!(one, other, "{} {order} {workers}", kernel.name);
            }
        }
    }
}

#[test]
fn a_wrong_solution_is_caught() {
    let (solver, residual_of_right) = solved(Shape::of(200, 1, kernel::choose("best").unwrap()));
    assert!(residual_of_right < RESIDUAL_LIMIT);
    // SAFETY: no one else uses the solver.
    let solution = unsafe { solver.matrix.column_mut(200) };
    solution[77] += 1e-6;
    assert!(residual(5, solution) > RESIDUAL_LIMIT);
}

#[test]
fn an_unknown_instruction_set_is_refused() {
    assert_eq!(kernel::choose("avx1024").err().unwrap().kind, "refused");
}

#[test]
fn an_order_beyond_memory_names_the_largest_that_fits() {
    let failed = solver(Shape::of(3_000_000, 1, kernel::choose("best").unwrap()))
        .err()
        .unwrap();
    assert_eq!(failed.kind, "memory");
    let largest: usize = failed.what.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((1..3_000_000).contains(&largest));
}
