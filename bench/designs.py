"""Rotation beside blocks: whether they agree, and how wide each is in the same time: `python -m bench.designs`.

The same arms under the same load or probe, by turns a block of the one design and one of the other, in random order. A
block's observation is the log ratio to native, mean over conditions. (In rotation the arms of a load have their windows
in turn, round by round; of a probe one arm has all of its windows after the other.) Printed for each arm: both designs'
ratios with 95 % t intervals over their blocks, the difference of the two (which must hold 0, by Holm's test over all
rows, for one row of twenty misses it by chance), and how much narrower rotation is at equal time (a half-width shrinks
with the root of the seconds that a design was given; they are those of its trials, without the proofs of the limits,
which an arm gives once a run).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench._figures import keep
from bench._intervals import drawn, narrowing
from virtoll.analysis.estimates import Summary, holm, p_difference, summarise
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.ratios import log_ratios
from virtoll.catalogue import catalogue
from virtoll.hosts.local import LocalHost
from virtoll.platforms.base import platforms
from virtoll.record.model import TrialRecord
from virtoll.record.store import RunDirectory
from virtoll.report.findings import find
from virtoll.run import environment
from virtoll.run.alone import alone
from virtoll.run.execute import execute
from virtoll.run.progress import PlainProgress
from virtoll.run.stage import Stage
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import make_plan

_COMMON = """
name = "designs"
question = "Do both designs say the same?"
blocks = 2
[limits]
vcpus = 1
memory = "512 MiB"
[[arms]]
platform = "native"
[[arms]]
platform = "lxc"
[[arms]]
platform = "docker"
network = ["routed", "published"]
[[arms]]
platform = "uml"
"""
STUDIES = {
    "squid": """
[service]
name = "squid"
[origin]
name = "nginx"
[load]
name = "http"
connections = 20
keep_alive = true
object = "10 kB"
time_limit = "2 s"
warm_up = "300 ms"
log_requests = false
""",
    "redis": """
[service]
name = "redis"
persistence = "none"
[load]
name = "redis"
connections = 20
time_limit = "2 s"
warm_up = "300 ms"
log_requests = false
""",
    "linpack": """
[[probes]]
name = "linpack"
order = 1000
windows = 4
time = "500 ms"
""",
}
DESIGNS = ("blocks", "rotation")
_OF_A_LOAD = {"rate_per_s": "rate", "cpu_s_per_1000": "CPU time for as much work"}
METRICS = {"squid": _OF_A_LOAD, "redis": _OF_A_LOAD, "linpack": {"linpack.gflops": "GFLOP/s"}}  # by study, with titles


@dataclass
class Told:
    """What the blocks of one design said so far."""

    lasted_s: list[float] = field(default_factory=list)  # a block each
    spoilt: int = 0
    logs: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by metric and arm, a block each

    @property
    def seconds(self) -> float:
        return sum(self.lasted_s)

    def hear(self, matrix: Matrix, metrics: Collection[str]) -> None:
        """What one more block says of these metrics; nan where it says nothing."""
        for metric in metrics:
            logs = np.nanmean(log_ratios(matrix, metric)[0], axis=1)
            for arm, log in zip(matrix.arms, logs, strict=True):
                self.logs.setdefault((metric, arm.label), []).append(float(log))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where the designs disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", choices=[*STUDIES], default="squid")
    parser.add_argument("--blocks", type=int, default=8, help="of each design")
    parser.add_argument("--rotation", default='rounds = 6; window = "400 ms"; lead_in = "100 ms"', help="its keys")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY", help="where to put designs-STUDY.svg")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    told = {design: Told() for design in DESIGNS}
    host = LocalHost()
    with alone(host):
        for block in range(arguments.blocks):
            for design in random.sample(DESIGNS, 2):
                print(f"block {block + 1} of {arguments.blocks}: {design}", file=sys.stderr, flush=True)
                study = study_of(arguments.study, design, arguments.rotation)
                _measure(study, METRICS[arguments.study], host, told[design])
    rows = [_row(metric, arm, told) for metric, arm in told["rotation"].logs if arm != "native+host"]
    print(f"{arguments.study}: {arguments.blocks} blocks of each design; seconds: {_seconds(told)}")
    print(f"{'metric':<16}{'arm':<22}{'blocks':<24}{'rotation':<24}{'rotation / blocks':<24}narrower at equal time")
    for row in rows:
        print(row["text"])
    if arguments.plots is not None:
        figure = drawn(_lines(arguments.study, told))
        (arguments.plots / f"designs-{arguments.study}.svg").write_text(figure, encoding="utf-8")
    keep(arguments.json, {"study": arguments.study, "rows": rows})
    agree = all(p > 0.05 for p in holm([row["p"] for row in rows]))
    print("the designs agree" if agree else "THE DESIGNS DISAGREE")
    return 0 if agree else 1


def study_of(name: str, design: str, rotation: str) -> Study:
    """One block of a study in a design. ``rotation``: its keys, parted by semicolons; a probe heeds none."""
    text = f'design = "{design}"\n' + _COMMON + STUDIES[name]
    if design == "rotation":
        text += "[rotation]\n" + rotation.replace(";", "\n")
    return dataclasses.replace(read_study(text, "designs.toml", catalogue()), blocks=1)


def _lines(study: str, told: dict[str, Told]) -> dict[str, dict[tuple[str, str], list[tuple[float, float]]]]:
    """How the intervals of each design and arm narrow, by the metric's title."""
    return {
        title: {
            (design, arm): narrowing(logs, each.lasted_s)
            for design, each in told.items()
            for (metric, arm), logs in each.logs.items()
            if metric == name and arm != "native+host"
        }
        for name, title in METRICS[study].items()
    }


def _seconds(told: dict[str, Told]) -> str:
    return ", ".join(f"{design} {each.seconds:.0f} ({each.spoilt} trials spoilt)" for design, each in told.items())


def _measure(study: Study, metrics: Collection[str], host: LocalHost, told: Told) -> None:
    """One block of a study in a design; what it says of these metrics is added."""
    stage = Stage(study, host)
    arms, _ = stage.offered("designs.toml")
    images = stage.prepare(arms, lambda _line: None)
    overhead_s = {name: cls.expected_overhead_s for name, cls in platforms().items()}
    plan = make_plan(study, arms, overhead_s, groups=stage.groups(arms))
    with tempfile.TemporaryDirectory() as directory:
        generators, tools, media = stage.generators, stage.tools, stage.media
        here = environment.describe(images, {}, [], {}, {}, generators=generators, tools=tools, media=media)
        run = RunDirectory.create(Path(directory, "run"), document.as_json(study), plan, here)
        with run.writing(), stage.lab(images, plan.trials) as experiment:
            execute(run, experiment, _Silent())
        records = run.records()
        told.lasted_s.append(sum(_spent_s(record) for record in records))
        told.spoilt += sum(record.status != "valid" for record in records)
        told.hear(find(run.path).matrix, metrics)


class _Silent(PlainProgress):
    def say(self, text: str) -> None:
        del text


def _spent_s(record: TrialRecord) -> float:
    return sum(phase.duration_ns for phase in record.phases if phase.name != "prove") / 1e9


def _row(metric: str, arm: str, told: dict[str, Told]) -> dict[str, Any]:
    """One arm's ratios by both designs, and what lies between them."""
    by_design = {design: np.array(told[design].logs[metric, arm]) for design in DESIGNS}
    sums = {design: summarise(logs[np.isfinite(logs)]) for design, logs in by_design.items()}
    pairs = by_design["rotation"] - by_design["blocks"]
    between = summarise(pairs[np.isfinite(pairs)])
    time = math.sqrt(told["rotation"].seconds / told["blocks"].seconds)
    narrower = sums["blocks"].half_width() / (sums["rotation"].half_width() * time)
    texts = [_text(sums["blocks"]), _text(sums["rotation"]), _text(between)]
    text = f"{metric:<16}{arm:<22}{texts[0]:<24}{texts[1]:<24}{texts[2]:<24}{narrower:.1f} x"
    return {"metric": metric, "arm": arm, "text": text, "narrower": narrower, "p": p_difference(between)}


def _text(summary: Summary) -> str:
    half = summary.half_width()
    low, mid, high = (math.exp(summary.mean + side * half) for side in (-1, 0, 1))
    return f"{mid:.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
