"""Made-up studies through the analysis as it is: do intervals cover the truth, how often are equal arms called
different, what costs are found? `python -m bench.simulate [--locations | --components] [--studies N] [--json FILE]`.

A study has native, native again, an arm that is equal and four that cost 2, 5, 10 and 20 %; each is made up once more
with all arms equal. Either design takes about 6.5 minutes of a machine's time. Machines and designs are those of
tests/made_up_studies.py; ratios, intervals and words come from the product's own functions. Printed for each machine
and design: the standard deviation of a block's log ratio and the median half-width, in per cent, against both natives,
and how many times as wide intervals against the first native alone are; how many of the 95 % intervals cover (the
target: 94 to 96 %); of equal arms, how many comparisons and how many tables held a false alarm; how many of each cost
were found; and how many of 5 % and more were called no difference. ``--locations`` compares locations over the rounds
of a block instead: the standard deviation of a block's log ratio, in per cent. ``--components`` asks whether the
variance components of a study in rotation foretell what more rounds, or more blocks, would give: see `foretold`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench._figures import keep
from bench._rounds import LOCATIONS
from made_up_studies import BLOCKS, MACHINES, ROTATION, Design, components_seen, judged, observations, studies
from virtoll.analysis.components import Components
from virtoll.analysis.narrowing import Pace, narrowing, worth
from virtoll.analysis.ratios import Toll, over_conditions

COSTS = (0.02, 0.05, 0.10, 0.20)
MIXED = np.array([1.0, 1.0, 1.0, *(1 - cost for cost in COSTS)])
EQUAL = np.ones(len(MIXED))
DESIGNS = {design.name: design for design in (BLOCKS, ROTATION)}
COVERAGE = 0.94, 0.96
# Windows, rounds and lead-in as in the experiments of issue 10; each takes an arm about as long.
WINDOWS = ((0.1, 48, 0.1), (0.25, 27, 0.1), (1.0, 9, 0.1))


@dataclass(frozen=True)
class Outcome:
    """What came of one machine and design; shares are of one."""

    machine: str
    design: str
    deviation: float  # of a block's log ratio
    half_width: float  # of an interval, median
    of_one: float  # times as wide it is against the first native alone, by medians
    coverage: float
    alarms: float  # of comparisons of equal arms
    tables: float  # of tables of equal arms, with an alarm or more
    found: tuple[float, ...]  # by cost
    missed: float  # of the costs of 5 % and more, called no difference

    @property
    def covers(self) -> bool:
        """Whether the target is reached."""
        return COVERAGE[0] <= round(self.coverage, 3) <= COVERAGE[1]


def outcome(machine: str, design: str, count: int, seed: int) -> Outcome:
    """Make up so many studies, and as many of equal arms, and judge them."""
    rng = np.random.default_rng([seed, list(MACHINES).index(machine), list(DESIGNS).index(design)])
    tolls: list[list[tuple[Toll, ...]]] = []
    deviation = math.nan
    for truth in (MIXED, EQUAL):
        values = studies(MACHINES[machine], DESIGNS[design], truth, count, rng)
        logs = observations(values)
        deviation = float(np.nanstd(logs[:, :, 1:3], axis=(0, 1), ddof=1).mean())
        tolls.append([judged(study, truth) for study in logs])
    mixed, equal = tolls
    of_one = [half for study in observations(values, natives=1)[..., 1] if (half := _half(study)) is not None]
    of_both = [half for study in logs[..., 1] if (half := _half(study)) is not None]
    return Outcome(
        machine=machine,
        design=design,
        deviation=deviation,
        half_width=float(np.median([widths(toll) for study in equal for toll in study[1:] if toll.ratio])),
        of_one=float(np.median(of_one) / np.median(of_both)),
        coverage=float(np.mean([*covered(mixed, MIXED), *covered(equal, EQUAL)])),
        alarms=float(np.mean([is_different(toll) for study in equal for toll in study[1:]])),
        tables=float(np.mean([any(map(is_different, study[1:])) for study in equal])),
        found=tuple(
            float(np.mean([study[2 + at].verdict.kind == "costs" for study in mixed])) for at in range(len(COSTS))
        ),
        missed=float(np.mean([toll.verdict.kind == "same" for study in mixed for toll in study[3:]])),
    )


def is_different(toll: Toll) -> bool:
    """Whether a difference is claimed."""
    return toll.verdict.kind in ("costs", "gains")


def widths(toll: Toll) -> float:
    """Half-width of the interval on the log scale; inf without one."""
    ratio = toll.ratio
    return math.inf if ratio is None or not ratio.low or not ratio.high else math.log(ratio.high / ratio.low) / 2


def covered(tables: Sequence[tuple[Toll, ...]], truth: Sequence[float] | np.ndarray[Any, Any]) -> list[bool]:
    """For each interval of each study, native again's too, whether it holds the truth."""
    return [
        toll.ratio.low <= share <= toll.ratio.high
        for study in tables
        for toll, share in zip(study, truth[1:], strict=True)
        if toll.ratio is not None and toll.ratio.low is not None and toll.ratio.high is not None
    ]


def show(outcomes: Sequence[Outcome]) -> None:
    """The table of all."""
    costs = "  ".join(f"{cost * 100:3.0f} %" for cost in COSTS)
    print(f"{'':34}  block  half    by one  covers   false alarms        costs found, %           no difference,")
    print(f"{'machine':24}{'design':10}  sd, %  width  native  %        comparison table   {costs}   wrongly")
    for o in outcomes:
        mark, found = " " if o.covers else "!", "".join(f"{share * 100:5.0f}  " for share in o.found)
        head = f"{o.machine:24}{o.design:10}{o.deviation * 100:7.1f}{o.half_width * 100:7.1f}{o.of_one:8.2f}"
        head += f"{o.coverage * 100:7.1f} {mark}"
        print(f"{head}{o.alarms * 100:10.1f}{o.tables * 100:8.1f}   {found}{o.missed * 100:8.2f}")


def locations(count: int, seed: int) -> list[dict[str, Any]]:
    """The standard deviation of a block's log ratio of equal arms, by location, machine and windows."""
    rows: list[dict[str, Any]] = []
    for number, (machine, noise) in enumerate(MACHINES.items()):
        for window_s, rounds, lead_s in WINDOWS:
            design = Design("rotation", 8, rounds, window_s, lead_s)
            machine_alone = replace(noise, deployment=0.0, mode=0.0)
            values = studies(machine_alone, design, EQUAL[:4], count, np.random.default_rng([seed, number]))
            rows.append({"machine": machine, "window_s": window_s, "rounds": rounds})
            rows[-1] |= {name: float(np.nanstd(observations(values, name)[..., 0])) for name in LOCATIONS}
    return rows


def show_locations(rows: Sequence[dict[str, Any]]) -> None:
    """The table of `locations`, and how much wider each is than the best of its row, on average and at most."""
    print(f"{'machine':24}{'windows':16}{''.join(f'{name:>17}' for name in LOCATIONS)}")
    for row in rows:
        windows = f"{row['window_s'] * 1000:.0f} ms x {row['rounds']}"
        print(f"{row['machine']:24}{windows:16}{''.join(f'{row[name] * 100:17.2f}' for name in LOCATIONS)}")
    over = {name: [row[name] / min(row[other] for other in LOCATIONS) - 1 for row in rows] for name in LOCATIONS}
    for words, share in (("wider than the best, mean %", np.mean), ("at most %", np.max)):
        print(f"{words:40}{''.join(f'{share(over[name]) * 100:17.0f}' for name in LOCATIONS)}")


def foretold(machine: str, count: int, seed: int, deployment_s: float) -> dict[str, Any]:
    """By studies in rotation whose blocks take ``deployment_s`` beside their windows: half-widths (medians, log scale),
    what the components say of twice the rounds and of as much time in more blocks, what came of them in studies made up
    so; how many of the studies name, as the report does, the one by which a second narrowed it more; and how much wider
    than by that one their intervals then were, on average over all. Equal arms, of which native again is looked at:
    against native, one with one.
    """
    rng = np.random.default_rng([seed, list(MACHINES).index(machine), 77])
    design = replace(ROTATION, deployment_s=deployment_s)
    windows_s = design.rounds * len(MIXED) * (design.window_s + design.between_s)
    pace = Pace(block_s=deployment_s + windows_s, windows_s=windows_s)
    said, shares = [], []
    for study in studies(MACHINES[machine], design, EQUAL, count, rng):
        found, summary = components_seen(study, 1), over_conditions(observations(study[None])[0, :, :1])
        if isinstance(found, Components) and summary is not None and (n := narrowing(found, summary, pace)):
            said.append(n)
            shares.append(found.share)
    more = said[0].more
    twice, longer = replace(design, rounds=2 * design.rounds), replace(design, blocks=design.blocks + more)
    came = {}
    for name, each in (("rounds", twice), ("blocks", longer)):
        logs = observations(studies(MACHINES[machine], each, EQUAL, count, rng))[..., 0]
        came[name] = float(np.median([half for study in logs if (half := _half(study)) is not None]))
    now = float(np.median([n.now for n in said]))
    took = {"rounds": said[0].windows_s, "blocks": said[0].blocks_s}
    better = max(came, key=lambda name: worth(now, came[name], took[name]))
    named = ["rounds" if n.by_windows else "blocks" for n in said]
    return {
        "machine": machine,
        "deployment_s": deployment_s,
        "more_blocks": more,
        "share": float(np.median(shares)),
        "now": now,
        "rounds_said": float(np.median([n.windows for n in said])),
        "rounds_came": came["rounds"],
        "blocks_said": float(np.median([n.blocks for n in said])),
        "blocks_came": came["blocks"],
        "right": named.count(better) / len(named),
        "lost": float(np.mean([came[name] for name in named])) / came[better] - 1,
    }


def _half(logs: np.ndarray[Any, Any]) -> float | None:
    summary = over_conditions(logs[:, None])
    return None if summary is None or summary.n < 2 else summary.half_width()


def show_foretold(rows: Sequence[dict[str, Any]]) -> None:
    """The table of `foretold`, in per cent."""
    heads = ("deploy, s", "more blocks", "windows' share", "now", "2 x rounds said", "came", "blocks said", "came")
    print(f"{'machine':24}{''.join(f'{head:>17}' for head in (*heads, 'narrower named', 'lost by it'))}")
    keys = ("share", "now", "rounds_said", "rounds_came", "blocks_said", "blocks_came", "right", "lost")
    for row in rows:
        cells = "".join(f"{row[key] * 100:17.2f}" for key in keys)
        print(f"{row['machine']:24}{row['deployment_s']:17.0f}{row['more_blocks']:17d}{cells}")


DEPLOYMENTS_S = 10.0, 60.0  # of containers, and of emulated machines


def main() -> int:
    """Simulate, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description=__doc__)
    parser.add_argument("--locations", action="store_true", help="compare locations over rounds, and nothing else")
    parser.add_argument("--components", action="store_true", help="see what components foretell, and nothing else")
    parser.add_argument(
        "--studies", type=int, default=2000, help="of a machine and design; of fewer, chance alone misses the target"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if options.locations:
        rows = locations(max(2, options.studies // 10), options.seed)
        show_locations(rows)
        keep(options.json, {"seed": options.seed, "locations": rows})
        return 0
    if options.components:
        rows = [foretold(m, options.studies, options.seed, s) for m in MACHINES for s in DEPLOYMENTS_S]
        show_foretold(rows)
        keep(options.json, {"seed": options.seed, "studies": options.studies, "foretold": rows})
        return 0
    begun_s = time.monotonic()
    cells = [(machine, design, options.studies, options.seed) for machine in MACHINES for design in DESIGNS]
    with ProcessPoolExecutor(options.workers) as pool:
        outcomes = list(pool.map(outcome, *zip(*cells, strict=True)))
    show(outcomes)
    missed = [o for o in outcomes if not o.covers]
    studied = 2 * options.studies * len(cells)
    print(f"\n{studied:,} studies in {time.monotonic() - begun_s:.0f} s with {options.workers} processes")
    print(
        "every design covers 94 to 96 %"
        if not missed
        else f"MISSED: {', '.join(f'{o.machine}, {o.design}' for o in missed)}"
    )
    keep(options.json, {"seed": options.seed, "studies": options.studies, "outcomes": [vars(o) for o in outcomes]})
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
