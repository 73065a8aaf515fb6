"""Rules for the words of a result, judged on made-up studies: `python -m bench.rules [--all] [--studies N]`.

Each rule sees the same means, intervals, Holm-adjusted p values and noise floors, of the product's own functions, from
the studies of `bench.simulate` (six arms against native, costs of 2 to 20 %, or all equal) in both designs, and in five
blocks; and from one machine more: *place*, where each arm but native gains or loses 2 % (a standard deviation) in every
block of a study, by where it stands. Printed of each rule: tables of equal arms with a false alarm or more (per cent of
tables; 5 is what Holm allows); costs found (per cent of arms); equal arms called *no difference*; costs of 5 % and more
called so; and *no difference* within a margin that does not hold the truth. ``--all``: each machine and design.

The rules: *floor* (the former one): significant, and beyond the run's noise floor; the margin of no difference is
the study's (3 %), or the floor if that is wider. *test*: significant; the same margin. *95 % within*: significant; no
difference is the 95 % interval within the study's margin and nothing else. *equivalence*: the same with the 90 %
interval, which is the test of equivalence at 5 %. *shown floor*: significant, and beyond what native differs from
native by for certain (the near end of its interval). *calibrated*: significant, and beyond what 19 of 20 equal arms
differ by for good, as eight native arms beside native show in a calibration of five blocks. *beyond margin*: the
95 % interval lies wholly beyond the margin. The last three take no difference as *equivalence* does.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench._figures import keep
from bench.simulate import COSTS, EQUAL, MIXED
from made_up_studies import BLOCKS, MACHINES, ROTATION, Machine, observations, studies
from virtoll.analysis.estimates import Floats, Summary, holm, p_difference, summarise
from virtoll.analysis.ratios import DECLARED_MARGIN, noise, over_conditions

SHOWN: dict[str, Machine] = {
    name: MACHINES[name]
    for name in ("quiet", "drift", "bursts", "deployments differ", "bimodal deployments", "all of it")
} | {"place": replace(MACHINES["drift"], place=0.02)}
WIDEST_MARGIN = 0.10  # to which a floor widened the margin
IN_FORCE = "equivalence"  # proved in tests/test_analysis_hazards.py
TARGET = 0.06  # tables of equal arms with a false alarm: 5 %, and what chance makes of 2,000 of them
CALIBRATION_BLOCKS, CALIBRATION_ARMS = 5, 8

Word = Literal["different", "same", "unsure"]


@dataclass(frozen=True)
class Seen:
    """What a rule goes by. Floors and margin are relative."""

    summary: Summary
    p: float  # adjusted
    floor: float  # of this run
    shown: float  # what native differs from native by for certain
    calibrated: float
    margin: float = DECLARED_MARGIN

    @property
    def significant(self) -> bool:
        return self.p < 0.05

    def within(self, margin: float, level: float = 0.95) -> bool:
        return abs(self.summary.mean) + self.summary.half_width(level) <= math.log1p(margin)

    def beyond(self, floor: float) -> bool:
        return abs(self.summary.mean) > math.log1p(floor)


@dataclass(frozen=True)
class Rule:
    """When a difference is called, what no difference is within, and at which level of the interval."""

    different: Callable[[Seen], bool]
    margin: Callable[[Seen], float] = lambda seen: seen.margin
    level: float = 0.95

    def word(self, seen: Seen) -> Word:
        """*No difference* first, as the product has it."""
        if seen.within(self.margin(seen), self.level):
            return "same"
        return "different" if self.different(seen) else "unsure"


def _widened(seen: Seen) -> float:
    return max(seen.margin, min(seen.floor, WIDEST_MARGIN))


RULES: dict[str, Rule] = {
    "floor": Rule(lambda seen: seen.significant and seen.beyond(seen.floor), _widened),
    "test": Rule(lambda seen: seen.significant, _widened),
    "95 % within": Rule(lambda seen: seen.significant),
    "equivalence": Rule(lambda seen: seen.significant, level=0.90),
    "shown floor": Rule(lambda seen: seen.significant and seen.beyond(seen.shown), level=0.90),
    "calibrated": Rule(lambda seen: seen.significant and seen.beyond(seen.calibrated), level=0.90),
    "beyond margin": Rule(
        lambda seen: abs(seen.summary.mean) - seen.summary.half_width() > math.log1p(seen.margin), level=0.90
    ),
}
DESIGNS = {"5 blocks": replace(BLOCKS, blocks=5), "blocks": BLOCKS, "rotation": ROTATION}


def for_good(logs: Floats) -> float:
    """What 19 of 20 equal arms differ from native by in every block, relative, from a calibration [block, arm]."""
    arms = [summarise(arm) for arm in logs.T if np.isfinite(arm).sum() > 1]
    if len(arms) < 2:
        return 0.0
    between = np.var([arm.mean for arm in arms], ddof=1) - np.mean([arm.error**2 for arm in arms])
    return math.expm1(1.96 * math.sqrt(max(0.0, float(between))))


def seen_in(logs: Floats, calibrated: float) -> list[Seen]:
    """What a study's ``logs`` [block, arm - 1] show of each arm but native and native again."""
    summaries = [over_conditions(logs[:, a : a + 1]) for a in range(logs.shape[1])]
    again, others = summaries[0], [summary for summary in summaries[1:] if summary is not None]
    floor = noise(logs[:, :1]) or 0.0
    shown = 0.0 if again is None or again.n < 2 else math.expm1(max(0.0, abs(again.mean) - again.half_width()))
    adjusted = holm([p_difference(summary) for summary in others])
    return [Seen(summary, p, floor, shown, calibrated) for summary, p in zip(others, adjusted, strict=True)]


@dataclass(frozen=True)
class Score:
    """Of one rule, machine and design; shares of one."""

    rule: str
    machine: str
    design: str
    tables: float  # of equal arms, with a false alarm
    found: tuple[float, ...]  # by cost
    same: float  # of equal arms, called no difference
    hidden: float  # of the costs of 5 % and more, called no difference
    wrong: float  # of all that differ, called no difference within a margin that does not hold the truth


def scores(machine: str, design: str, count: int, seed: int) -> list[Score]:
    """Every rule on the same studies."""
    rng = np.random.default_rng([seed, list(SHOWN).index(machine), list(DESIGNS).index(design)])
    noise_of = SHOWN[machine]
    seen: dict[bool, list[list[Seen]]] = {}
    for equal, truth in ((False, MIXED), (True, EQUAL)):
        logs = observations(studies(noise_of, DESIGNS[design], truth, count, rng))
        blocks = replace(DESIGNS[design], blocks=CALIBRATION_BLOCKS)
        before = observations(studies(noise_of, blocks, np.ones(1 + CALIBRATION_ARMS), count, rng), natives=1)
        calibrated = [for_good(study) for study in before]
        seen[equal] = [seen_in(study, floor) for study, floor in zip(logs, calibrated, strict=True)]
    return [_score(name, machine, design, seen) for name in RULES]


def _score(name: str, machine: str, design: str, seen: Mapping[bool, Sequence[Sequence[Seen]]]) -> Score:
    rule = RULES[name]
    equal = [[rule.word(arm) for arm in study] for study in seen[True]]
    mixed = [
        [(rule.word(arm), rule.margin(arm)) for arm in study] for study in seen[False] if len(study) == 1 + len(COSTS)
    ]
    costs = np.array([[word for word, _ in study[1:]] for study in mixed])
    untrue = [
        word == "same" and -math.log1p(-cost) > math.log1p(margin)
        for study in mixed
        for cost, (word, margin) in zip(COSTS, study[1:], strict=True)
    ]
    found = tuple(float(share) for share in (costs == "different").mean(axis=0))
    return Score(
        rule=name,
        machine=machine,
        design=design,
        tables=float(np.mean(["different" in study for study in equal])),
        found=found,
        same=float(np.mean([word == "same" for study in equal for word in study])),
        hidden=float((costs[:, 1:] == "same").mean()),
        wrong=float(np.mean(untrue)),
    )


def show(found: Sequence[Score], every: bool) -> None:
    """Of each design and rule the mean over machines but *place*, which is by itself; where asked, each machine."""
    costs = "  ".join(f"{cost * 100:3.0f} %" for cost in COSTS)
    for design in DESIGNS:
        print(f"{design:14}tables with false alarms  costs found, %           no difference, %")
        print(f"{'':14} mean  worst  place      {costs}   equal  5 % +  untrue")
        for name in RULES:
            mine = [score for score in found if (score.rule, score.design) == (name, design)]
            rest = [score for score in mine if score.machine != "place"]
            tables = [score.tables * 100 for score in rest]
            place = sum(score.tables * 100 for score in mine) - sum(tables)
            print(f"{name:14}{np.mean(tables):5.1f}{max(tables):7.1f}{place:7.1f}    {_rest(rest)}")
        print()
    for score in found if every else ():
        print(f"{score.machine:20}{score.design:9} {score.rule:14}{score.tables * 100:6.1f}  {_rest([score])}")


def _rest(scores: Sequence[Score]) -> str:
    """The means of costs found and of what was called no difference, in per cent."""
    shares = (np.mean([score.found for score in scores], axis=0) * 100).tolist()
    same, hidden, wrong = (np.mean([getattr(s, name) for s in scores]) * 100 for name in ("same", "hidden", "wrong"))
    return f"{''.join(f'{share:7.0f}' for share in shares)}{same:8.0f}{hidden:7.2f}{wrong:8.2f}"


def main() -> int:
    """Simulate, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description=__doc__)
    parser.add_argument("--all", action="store_true", help="each machine and design too")
    parser.add_argument("--studies", type=int, default=2000, help="of a machine and design, and as many of equal arms")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    cells = [(machine, design, options.studies, options.seed) for machine in SHOWN for design in DESIGNS]
    with ProcessPoolExecutor(options.workers) as pool:
        found = [score for part in pool.map(scores, *zip(*cells, strict=True)) for score in part]
    show(found, options.all)
    keep(options.json, {"seed": options.seed, "studies": options.studies, "scores": [vars(score) for score in found]})
    worst = max(s.tables for s in found if s.rule == IN_FORCE and s.machine != "place")
    print(f"In force is {IN_FORCE}: false alarms in {worst * 100:.1f} % of tables at most, target {TARGET * 100:.0f} %")
    return int(worst > TARGET)


if __name__ == "__main__":
    sys.exit(main())
