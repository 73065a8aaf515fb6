"""Bench of `virtoll compare`: how often it calls equal runs different, what it finds, and how long it takes.

Simulated: two studies of one machine and design (tests/made_up_studies.py: native, native again, five arms), each
judged by the product's own functions as one table. *Alarms*: tables of equal runs in which any arm was called worse or
better (target: 5 % at most); *beyond*, *open*: equal runs of which `--fail-over 5%` ends with 5, or with 6; *found*:
of one arm that is 2, 5 or 10 % slower in the second run, how often it was called worse (target: 5 % in 90 of 100 on a
quiet machine at the default length). `--again` asks the same of one run that measures both in the same blocks: with
a native under each, and of arms that share one (*native*). `--from RUNDIR` draws the blocks of a real run in place of
made-up ones. Timed: two runs of 2,000 trials with all that real ones leave, in at most 3 s of the clock, in a fresh
process. Run it as
.venv/bin/python -m bench.compare [--pairs N] [--trials N] [--again] [--from RUNDIR] [--against SRC]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench._figures import keep
from bench._thorough import make_thorough
from bench._verbs import add_arguments, by_turns, cost, reached
from bench.report import _recipe
from made_up_studies import BLOCKS, MACHINES, METRIC, ROTATION, Design, Floats, arms, observations, studies
from synthetic import write_run
from virtoll.analysis.changes import Change, Matched, judge_changes
from virtoll.analysis.metrics import Wanted
from virtoll.analysis.ratios import DECLARED_MARGIN, Row, log_ratios, over_conditions
from virtoll.analysis.rules import FIXED
from virtoll.record.model import Arm
from virtoll.report.findings import skim

TARGET_S, TARGET_ALARMS, TARGET_POWER = 3.0, 0.05, 0.90
THRESHOLD = 0.05
SLOWER = (0.02, 0.05, 0.10)
EQUAL = np.ones(7)
# As ready-made studies have it: ten blocks of deployments; in their quick variants six, in rotation.
DESIGNS = {
    "blocks, 10": replace(BLOCKS, blocks=10, window_s=10.0, between_s=10.0),
    "rotation, 10": replace(ROTATION, blocks=10),
    "rotation, 6": replace(ROTATION, blocks=6),
}
CUT_SHORT = 2  # blocks, of the shorter run of a pair whose lengths differ
DEFAULT = "quiet", ("blocks, 10", "rotation, 10")


@dataclass(frozen=True)
class Outcome:
    """What came of one machine and design; shares of one."""

    machine: str
    design: str
    deviation: float  # of a block's log ratio
    alarms: float
    beyond: float
    open: float
    found: tuple[float, ...]


def judged(
    before: Floats, after: Floats, threshold: float | None = None, *, is_one_run: bool = False
) -> tuple[Change, ...]:
    """What the product says of two studies, each [block, arm] of log ratios to native; or of both in one run."""
    named = arms(np.ones(before.shape[1] + 1))[1:]
    rows = [
        Matched(
            arm,
            METRIC,
            "",
            _row(arm, before[:, a]),
            _row(arm, after[:, a]),
            (FIXED, FIXED),
            is_one_run=is_one_run,
            within=over_conditions((after - before)[:, a : a + 1]) if is_one_run else None,
        )
        for a, arm in enumerate(named)
        if arm.role == "treatment"
    ]
    return judge_changes(rows, DECLARED_MARGIN if threshold is None else threshold, threshold)


def _row(arm: Arm, logs: Floats) -> Row:
    return Row(arm, None, over_conditions(logs[:, None]), None, 1)


def outcome(machine: str, design: str, before: Floats, after: Floats, *, is_one_run: bool = False) -> Outcome:
    """Of pairs of equal studies, each [study, block, arm] of log ratios to native."""
    pairs = list(zip(before, after, strict=True))
    plain = [judged(*pair, is_one_run=is_one_run) for pair in pairs]
    gates = [[change.gate for change in judged(*pair, THRESHOLD, is_one_run=is_one_run)] for pair in pairs]
    slow = np.zeros(before.shape[2])
    found = []
    for share in SLOWER:
        slow[1] = np.log1p(-share)  # the first of the treatments; before them stands native again
        tables = (judged(one, other + slow, is_one_run=is_one_run) for one, other in pairs)
        found.append(float(np.mean([table[0].kind == "worse" for table in tables])))
    return Outcome(
        machine=machine,
        design=design,
        deviation=float(np.nanmean([np.nanstd(study, axis=0, ddof=1) for study in before])),
        alarms=float(np.mean([any(change.kind in ("worse", "better") for change in table) for table in plain])),
        beyond=float(np.mean(["beyond" in each for each in gates])),
        open=float(np.mean(["open" in each and "beyond" not in each for each in gates])),
        found=tuple(found),
    )


def made_up(machine: str, name: str, count: int, seed: int, first: int | None = None) -> Outcome:
    """Pairs of made-up studies of equal arms; of the former the ``first`` blocks alone, where that was cut short."""
    rng = np.random.default_rng([seed, list(MACHINES).index(machine), list(DESIGNS).index(name)])
    design: Design = DESIGNS[name]
    before, after = (observations(studies(MACHINES[machine], design, EQUAL, count, rng)) for _ in range(2))
    return outcome(machine, f"{name}{f' after {first}' * bool(first)}", before[:, :first], after)


def in_one_run(machine: str, name: str, count: int, seed: int, *, shared: bool) -> Outcome:
    """Made-up runs of both configurations in the same blocks; ``shared``: of arms beside one native."""
    rng = np.random.default_rng([seed, list(MACHINES).index(machine), list(DESIGNS).index(name), 2 + shared])
    arms_each, treatments = len(EQUAL), len(EQUAL) - 2
    whole = arms_each + (treatments if shared else arms_each)
    values = studies(MACHINES[machine], DESIGNS[name], np.ones(whole), count, rng)
    if shared:
        logs = observations(values)  # native again, then A's and B's
        before, after = logs[..., : treatments + 1], np.delete(logs, range(1, treatments + 1), axis=-1)
    else:
        before, after = (observations(each) for each in np.split(values, 2, axis=-1))
    return outcome(machine, f"{name}{', native' * shared}", before, after, is_one_run=True)


def drawn(run: Path, blocks: int, count: int, seed: int) -> Outcome:
    """Pairs of studies whose blocks are drawn from those of a real run, about each arm's own mean; widened as much as a
    mean of so few blocks takes away.
    """
    found = skim(run, lambda _: Wanted())
    logs = np.nanmean(log_ratios(found.matrix, found.headline.name), axis=2)
    order = [found.matrix.arms.index(arm) for arm in found.matrix.arms if arm.role != "baseline"]
    whole = logs[:, order][np.isfinite(logs[:, order]).all(axis=1)]
    centred = (whole - whole.mean(axis=0)) * np.sqrt(len(whole) / (len(whole) - 1))
    if all(arm.role != "floor" for arm in found.matrix.arms):
        centred = np.column_stack([np.zeros(len(centred)), centred])
    rng = np.random.default_rng(seed)
    before, after = (centred[rng.integers(0, len(centred), (count, blocks))] for _ in range(2))
    return outcome(f"{run.name} ({len(whole)})", f"{blocks} blocks", before, after)


def show(outcomes: list[Outcome]) -> None:
    heads = "".join(f"{f'{share * 100:.0f} %':>7}" for share in SLOWER)
    print(f"{'machine':24}{'design':22}{'sd, %':>7}{'alarms':>8}{'beyond':>8}{'open':>7}   found:{heads}")
    for o in outcomes:
        found = "".join(f"{share * 100:7.0f}" for share in o.found)
        shares = f"{o.alarms * 100:8.1f}{o.beyond * 100:8.1f}{o.open * 100:7.0f}"
        print(f"{o.machine:24}{o.design:22}{o.deviation * 100:7.2f}{shares}         {found}")


def timed(trials: int, repeat: int, against: Path | None, rounds: int) -> bool:
    """Compare two runs of so many trials, and print what it takes; whether that is the target."""
    with tempfile.TemporaryDirectory(prefix="virtoll-bench-") as scratch:
        runs = [Path(scratch, name) for name in "ab"]
        for seed, run in enumerate(runs, 1):
            write_run(run, replace(_recipe(trials), seed=seed))
            make_thorough(run)
        words, name = ["compare", *map(str, runs), "--json"], f"two runs of {trials:,} trials"
        if against is not None:
            by_turns(name, words, against, rounds)
        return reached(name, [cost(words) for _ in range(repeat)], TARGET_S)


def main() -> int:
    """Simulate, time, print; exit 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000, help="of a machine and design; 0: none")
    parser.add_argument("--trials", type=int, default=2000, help="of each of the two runs that are timed; 0: none")
    parser.add_argument("--from", dest="run", type=Path, help="draw a real run's blocks, and nothing else")
    parser.add_argument("--again", action="store_true", help="of one run that measures both, and nothing else")
    parser.add_argument("--seed", type=int, default=1)
    add_arguments(parser)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if options.run:
        show([drawn(options.run, blocks, options.pairs, options.seed) for blocks in (6, 10)])
        return 0
    if options.again:
        kinds = [(m, d, shared) for m in MACHINES for d in DEFAULT[1] for shared in (False, True)]
        show([in_one_run(m, d, options.pairs, options.seed, shared=shared) for m, d, shared in kinds])
        return 0
    is_right = not options.pairs or simulated(options.pairs, options.seed, options.json)
    is_fast = not options.trials or timed(options.trials, options.repeat, options.against, options.rounds)
    return int(not (is_right and is_fast))


def simulated(pairs: int, seed: int, figures: Path | None) -> bool:
    """Judge pairs of made-up studies and print what came of it; whether that is the target."""
    outcomes = [made_up(m, d, pairs, seed) for m in MACHINES for d in DESIGNS]
    outcomes += [made_up(m, DEFAULT[1][1], pairs, seed, CUT_SHORT) for m in MACHINES]
    show(outcomes)
    noise = 1.96 * (TARGET_ALARMS * (1 - TARGET_ALARMS) / pairs) ** 0.5
    false = [o for o in outcomes if o.alarms > TARGET_ALARMS + noise]
    weak = [
        o for o in outcomes if (o.machine, o.design in DEFAULT[1]) == (DEFAULT[0], True) and o.found[1] < TARGET_POWER
    ]
    worst = max(outcomes, key=lambda o: o.alarms)
    print(f"false alarms in {worst.alarms * 100:.1f} % of tables at most ({worst.machine}, {worst.design}), target 5 %")
    keep(figures, {"seed": seed, "pairs": pairs, "outcomes": [vars(o) for o in outcomes]})
    return not (false or weak)


if __name__ == "__main__":
    sys.exit(main())
