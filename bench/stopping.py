"""Stopping rules on made-up studies in rotation: `python -m bench.stopping [--studies N] [--json FILE]`.

Blocks are added one by one, up to 20, and each rule looks after each from the fourth on: at an arm that is equal to
native and at one that costs 5 %. A run stops when the rule says *different* or *no difference within 3 %*. Printed for
each machine of tests/made_up_studies.py and each rule: how many equal arms were called different (the target: at most
5 %, and what chance makes of it), how many costs were found, the mean number of blocks of either, and in how many of
the studies that stopped, or had 20 blocks, the rule's interval covered the truth. *fixed* looks once, after 20 blocks;
*peeking* is a plain t interval after each block, as nobody may do. Then Stein's two stages: a pilot of 8 blocks, and as
many in all as a half-width of 2 % needs. Then whole runs of `--decide 5%` with five arms, which go on until all are
decided, by the product's own rule: in how many of them any equal arm was called different at any look (the target: at
most 5 %), with all arms equal and beside costs of 5, 10 and 20 %.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench._figures import keep
from made_up_studies import MACHINES, ROTATION, Machine, observations, studies
from virtoll.analysis.estimates import Floats, Summary, p_difference, summarise, t_quantile
from virtoll.analysis.rules import FIXED, AtAnyTime, Rule, Sequential
from virtoll.analysis.stopping import (
    PHI,
    GroupSequential,
    mixture_half_width,
    stein_blocks,
    stein_half_width,
)
from virtoll.analysis.verdicts import EQUIVALENCE
from virtoll.record.rules import FIRST_LOOK, Decide

MOST, PILOT, MARGIN, HALF_WIDTH, COST = 20, 8, math.log(1.03), math.log(1.02), 0.05
TRUTH = np.array([1.0, 1.0, 1.0, 1 - COST])  # native, native again, and the two arms that are looked at
HalfWidth = Callable[[Summary], float]


def _fixed(summary: Summary) -> float:
    return summary.half_width() if summary.n == MOST else math.inf


RULES: dict[str, HalfWidth] = {
    "fixed": _fixed,
    "peeking": Summary.half_width,
    "Pocock-like": GroupSequential.up_to(MOST).half_width,
    "O'Brien-Fleming-like": GroupSequential.up_to(MOST, "obrien-fleming").half_width,
    "t mixture": lambda summary: mixture_half_width(summary, PHI),
}


DECIDE = math.log(1.05)
FAMILY_RULES: dict[str, Rule] = {
    "peeking": FIXED,  # plain t intervals at each look, Bonferroni over the arms
    "--decide": Sequential(Decide(margin=0.05, looks=tuple(range(FIRST_LOOK, MOST + 1)))),
    "extended (t mixture)": AtAnyTime(),
}


def stopped(logs: Floats, half_width: HalfWidth) -> tuple[str, Summary, float]:
    """What a study's blocks of one arm were called when its rule ended it, and the interval it then had."""
    for n in range(FIRST_LOOK, MOST + 1):
        summary = summarise(logs[:n])
        half = half_width(summary)
        if abs(summary.mean) + half <= MARGIN:
            return "same", summary, half
        if abs(summary.mean) > half:
            return "different", summary, half
    return "unsure", summary, half


def row(machine: str, rule: str, logs: Floats) -> dict[str, Any]:
    """One rule on one machine's studies, ``logs`` [study, block, arm]: native again, the equal arm, and the one that
    costs.
    """
    found: dict[str, Any] = {"machine": machine, "rule": rule}
    for name, arm, truth in (("equal", 1, 0.0), ("cost", 2, math.log(1 - COST))):
        ends = [stopped(study[np.isfinite(study)], RULES[rule]) for study in logs[:, :, arm]]
        found |= {
            f"{name}_different": float(np.mean([word == "different" for word, _, _ in ends])),
            f"{name}_blocks": float(np.mean([summary.n for _, summary, _ in ends])),
            f"{name}_covered": float(np.mean([abs(summary.mean - truth) <= half for _, summary, half in ends])),
        }
    return found


def stein(machine: str, logs: Floats) -> dict[str, Any]:
    """Stein's rule on the equal arm, ``logs`` [study, block]; studies that need more blocks than were made are left."""
    covered, plain, blocks = [], [], []
    for study in logs:
        pilot = summarise(study[:PILOT])
        n = stein_blocks(pilot, HALF_WIDTH)
        blocks.append(n)
        if n <= len(study):
            whole = summarise(study[:n])
            covered.append(abs(whole.mean) <= stein_half_width(pilot, n))
            plain.append(abs(whole.mean) <= t_quantile(0.975, n - 1) * whole.error)
    return {
        "machine": machine,
        "blocks": float(np.mean(blocks)),
        "covered": float(np.mean(covered)),
        "plain": float(np.mean(plain)),
        "left": 1 - len(covered) / len(logs),
    }


def run(logs: Floats, rule: Rule, truth: Floats) -> tuple[bool, int, list[bool], list[bool]]:
    """One run of several arms, ``logs`` [block, arm], ended when every arm is decided: whether an equal arm was called
    different at any look, its blocks, and for each arm whether its interval then covered and its cost was found.
    """
    arms, alarm = logs.shape[1], False
    for n in range(FIRST_LOOK, MOST + 1):
        summaries = [summarise(logs[:n, arm]) for arm in range(arms)]
        different = [rule.differs(each, p_difference(each) * arms, arms) for each in summaries]
        same = [abs(each.mean) + rule.half_width(each, EQUIVALENCE) <= DECIDE for each in summaries]
        alarm |= any(found and true == 0 for found, true in zip(different, truth, strict=True))
        if all(a or b for a, b in zip(different, same, strict=True)):
            break
    covered = [abs(each.mean - true) <= rule.half_width(each) for each, true in zip(summaries, truth, strict=True)]
    return alarm, n, covered, [found for found, true in zip(different, truth, strict=True) if true]


def families(machine: str, noise: Machine, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Whole runs of `--decide`, by each rule."""
    rows = []
    for kind, costs in (("all equal", [0.0] * 5), ("costs", [0.0, 0.0, 0.05, 0.10, 0.20])):
        truth = 1 - np.array(costs)
        shares = np.concatenate([[1.0, 1.0], truth])
        logs = observations(studies(noise, replace(ROTATION, blocks=MOST), shares, count, rng))[:, :, 1:]
        for name, rule in FAMILY_RULES.items():
            ends = [run(study, rule, np.log(truth)) for study in logs]
            rows.append(
                {
                    "machine": machine,
                    "arms": kind,
                    "rule": name,
                    "alarms": float(np.mean([alarm for alarm, _, _, _ in ends])),
                    "blocks": float(np.mean([n for _, n, _, _ in ends])),
                    "covered": float(np.mean([covered for _, _, covered, _ in ends])),
                    "found": float(np.mean([found for _, _, _, found in ends])) if any(costs) else None,
                }
            )
    return rows


def main() -> int:
    """Simulate, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.stopping", description=__doc__)
    parser.add_argument("--studies", type=int, default=1000, help="of a machine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    rows, steins, whole_runs = [], [], []
    print(f"{'':44}an equal arm               a cost of {COST * 100:.0f} %")
    print(f"{'machine':24}{'rule':20}called different  blocks  covered  found  blocks  covered, %")
    for number, (machine, noise) in enumerate(MACHINES.items()):
        if machine == "missing trials":  # a rule counts the blocks that an arm has: with none missing this is *bursts*
            continue
        rng = np.random.default_rng([options.seed, number])
        whole = replace(noise, lost=0.0)
        logs = observations(studies(whole, replace(ROTATION, blocks=120), TRUTH, options.studies, rng))
        for rule in RULES:
            rows.append(r := row(machine, rule, logs[:, :MOST]))
            print(
                f"{machine:24}{rule:20}{r['equal_different'] * 100:16.1f}{r['equal_blocks']:8.1f}"
                f"{r['equal_covered'] * 100:9.1f}{r['cost_different'] * 100:7.0f}{r['cost_blocks']:8.1f}"
                f"{r['cost_covered'] * 100:9.1f}"
            )
        steins.append(stein(machine, logs[:, :, 1]))
        whole_runs += families(machine, whole, options.studies, rng)
    print(
        f"\nStein, ± 2 % after a pilot of {PILOT}  blocks  covered  a plain interval covered  more than 120 blocks, %"
    )
    for s in steins:
        shares = f"{s['covered'] * 100:9.1f}{s['plain'] * 100:18.1f}{s['left'] * 100:20.1f}"
        print(f"{s['machine']:32}{s['blocks']:8.1f}{shares}")
    print(f"\n{'five arms until all are decided':80}alarms  blocks  covered  found, %")
    for r in whole_runs:
        found = "" if r["found"] is None else f"{r['found'] * 100:9.0f}"
        print(
            f"{r['machine']:28}{r['arms']:14}{r['rule']:38}{r['alarms'] * 100:6.1f}{r['blocks']:8.1f}"
            f"{r['covered'] * 100:9.1f}{found}"
        )
    keep(options.json, {"seed": options.seed, "rows": rows, "stein": steins, "runs": whole_runs})
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / options.studies)
    missed = [r for r in rows if r["rule"] != "peeking" and r["equal_different"] > limit]
    missed += [r for r in whole_runs if not r["rule"].startswith("peeking") and r["alarms"] > limit]
    print("\nno rule but peeking errs more often than it says" if not missed else f"\nMISSED: {missed}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
