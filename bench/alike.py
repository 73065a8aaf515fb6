"""Equal arms on this machine: how often a difference is told that is none: `python -m bench.alike`.

The quick proxy study with copies of native under other names in place of its platforms, several runs of it; each copy's
ratio to native in each quantity is a comparison. Printed: in how many a cost or a gain was told (an *alarm*), in how
many the 95 % interval holds 1, and the half-widths; the same of ratios at one speed of the CPUs, which no verdict looks
at. Comparisons of a run share its native: with the counts stand their intervals as if they did not (Clopper and Pearson
1934). With ``--into`` runs are kept, and those that are there already count.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench._figures import keep
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.metrics import OF_A_WINDOW
from virtoll.analysis.power import proportion
from virtoll.record.model import Arm
from virtoll.record.store import is_run_directory
from virtoll.report.findings import Findings, find
from virtoll.report.sections import speed
from virtoll.run.conduct import run_made
from virtoll.run.request import Request, read
from virtoll.study.model import Study

METRICS = ("rate_per_s", "cpu_s_per_1000", OF_A_WINDOW)
MOST_ALARMS = 15 / 200
_ALARMS = ("costs", "gains")


@dataclass
class Count:
    """Of one quantity."""

    alarms: int = 0
    held: int = 0  # intervals that hold 1
    half_widths: list[float] = field(default_factory=list)

    def hear(self, found: Estimate | None, *, alarm: bool) -> None:
        """One comparison; one without an interval is none."""
        if found is None or found.low is None or found.high is None:
            return
        self.alarms += alarm
        self.held += found.low <= 1 <= found.high
        self.half_widths.append(math.log(found.high / found.low) / 2)

    @property
    def number(self) -> int:
        return len(self.half_widths)

    def text(self, name: str) -> str:
        """Its row; it holds a comparison."""
        rate, middle = proportion(self.alarms, self.number), float(np.median(self.half_widths))
        assert rate.low is not None
        assert rate.high is not None
        alarms = f"{self.alarms} of {self.number} [{100 * rate.low:.1f}, {100 * rate.high:.1f}] %"
        return f"{name:<40}{alarms:<28}{self.held} of {self.number:<10}{100 * middle:.1f} %"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where differences are told of more than 15 of 200."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--into", type=Path, metavar="DIRECTORY")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    study, file = read(Request("proxy", quick=True, blocks=arguments.blocks))
    with tempfile.TemporaryDirectory() as directory:
        into = arguments.into or Path(directory)
        before = {path for path in into.iterdir() if is_run_directory(path)} if into.is_dir() else set()
        into.mkdir(parents=True, exist_ok=True)
        made = {into / f"run-{number:02d}" for number in range(1, len(before) + arguments.runs + 1)} - before
        for path in sorted(made)[: arguments.runs]:
            request = Request("proxy", quick=True, blocks=arguments.blocks, out=path)
            if code := run_made(request, alike(study, arguments.copies), file):
                return code
        found = [find(path) for path in sorted(into.iterdir()) if is_run_directory(path)]
        counts = counted([run for run in found if is_whole(run, arguments.blocks, arguments.copies)])
    print(f"{'equal arms':<40}{'told as different':<28}{'intervals hold 1':<20}half-width, median")
    for name, count in counts.items():
        print(count.text(name) if count.number else f"{name}: nothing is compared")
    judged = [count for name, count in counts.items() if not name.endswith("at one speed")]
    alarms, number = sum(count.alarms for count in judged), sum(count.number for count in judged)
    keep(arguments.json, {"alarms": alarms, "comparisons": number})
    reached = number > 0 and alarms <= MOST_ALARMS * number
    print(f"told as different: {alarms} of {number}; {'target reached' if reached else 'TARGET MISSED'} (15 of 200)")
    return 0 if reached else 1


def alike(study: Study, copies: int) -> Study:
    """Native and native again, and copies of it under other names."""
    native, again = study.arms[:2]
    arms = [native, again]
    for number in range(1, copies + 1):
        label = f"{native.arm.label} (copy {number})"
        arm = Arm(label=label, platform=native.arm.platform, network=native.arm.network)
        arms.append(dataclasses.replace(native, arm=arm))
    return dataclasses.replace(study, arms=tuple(arms), name="alike")


def is_whole(findings: Findings, blocks: int, copies: int) -> bool:
    """Whether it is one of these, and came to its end."""
    plan = findings.run.plan
    is_made = {trial.id for trial in plan.trials} <= findings.run.made
    return is_made and plan.blocks == blocks and len({trial.arm.label for trial in plan.trials}) == copies + 2


def counted(runs: Sequence[Findings]) -> dict[str, Count]:
    """By quantity, as it was measured and at one speed of the CPUs."""
    counts: dict[str, Count] = {}
    for findings in runs:
        for name in METRICS:
            metric = findings.matrix.metrics[name]
            for toll in findings.tolls(name).overall:
                if toll.arm.role == "treatment":
                    count = counts.setdefault(metric.title, Count())
                    count.hear(toll.ratio, alarm=toll.verdict.kind in _ALARMS)
        for row in speed.told(findings):
            if row.arm.role == "treatment":
                counts.setdefault(f"{row.metric.title}, at one speed", Count()).hear(row.held, alarm=False)
    return counts


if __name__ == "__main__":
    sys.exit(main())
