"""A trial's overhead against the arms of its study, 2 to 40: everything outside its window, on the real machine.

A study of nginx with arms of three cheap kinds in turn, each again under other names; one block, a short window. A
trial's overhead is its wall time from its begin to its seal, without the window: session, deployment, start, proofs,
teardown, fsync. The proofs are most of it (each arm's first trial proves its limits, which takes its time whatever the
number of arms), hence it is told without them, too. One reading is the median over a run's trials of one kind, so that
the one trial that opens what its platform keeps for the whole run (dockerd) counts in the smallest studies only.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.growing.curves import Growth, Panel, Reading
from bench.growing.effort import Effort, say
from virtoll.catalogue import catalogue
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Images
from virtoll.platforms.base import platforms
from virtoll.record.model import Environment, PlannedTrial, TrialRecord
from virtoll.record.store import RunDirectory
from virtoll.run.alone import alone
from virtoll.run.execute import execute
from virtoll.run.stage import Stage
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import StudyArm
from virtoll.study.plan import make_plan

_ARMS, _QUICK = (2, 5, 10, 20, 40), (2, 4)
_MOST_ROUNDS = 2  # a round is over a minute
_STUDY = """
name = "growth"
question = "What does a trial cost in a study of many arms?"
noise_floor = false
[service]
name = "nginx"
[load]
name = "http"
connections = 10
time_limit = "300 ms"
warm_up = "0 s"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
optional = true
[[arms]]
platform = "lxc"
optional = true
"""


@dataclass
class _Stopwatch:
    """A reporter that times trials from begin to seal, without their windows, in milliseconds."""

    began_ns: int = 0
    overhead_ms: dict[str, list[float]] = field(default_factory=dict)  # by kind
    unproved_ms: dict[str, list[float]] = field(default_factory=dict)  # the same without the proofs
    spoilt: list[str] = field(default_factory=list)

    def trial_started(self, trial: PlannedTrial) -> None:  # noqa: ARG002
        """From here on."""
        self.began_ns = time.monotonic_ns()

    def phase(self, trial: PlannedTrial, name: str) -> None:
        """Nothing."""

    def trial_sealed(self, record: TrialRecord) -> None:
        """To here. One that did not come to its end is none to be timed."""
        took_ns = time.monotonic_ns() - self.began_ns
        if record.status == "failed":
            self.spoilt.append(f"{record.trial.arm.label}: {record.reason.splitlines()[0]}")
            return
        kind = f"{record.trial.arm.platform}+{record.trial.arm.network}"
        for place, left_out in ((self.overhead_ms, ("window",)), (self.unproved_ms, ("window", "prove"))):
            rest_ns = took_ns - sum(phase.duration_ns for phase in record.phases if phase.name in left_out)
            place.setdefault(kind, []).append(rest_ns / 1e6)


def measure(effort: Effort) -> list[Growth]:
    """A line for each kind of arm."""
    host = LocalHost()
    series: dict[str, list[Reading]] = {}
    unproved: dict[str, list[Reading]] = {}
    told: Counter[str] = Counter()
    study = read_study(_STUDY, "bench/growing/arms.py", catalogue())
    sizes = effort.sizes(_ARMS, _QUICK)
    with alone(host), tempfile.TemporaryDirectory(prefix="virtoll-bench-") as scratch:
        stage = Stage(study, host)
        offered, skipped = stage.offered("bench/growing/arms.py")
        images = stage.prepare(offered, say)
        told.update(f"{entry.arm.label} is not offered here: {entry.reason.splitlines()[0]}" for entry in skipped)
        kinds = [entry for entry in study.arms if entry.arm in offered]
        _timed(stage, images, kinds, Path(scratch, "warm"))
        for number, size in replace(effort, rounds=min(_MOST_ROUNDS, effort.rounds)).shuffled(sizes):
            took = _timed(stage, images, many(kinds, size), Path(scratch, f"{number}-{size}"))
            for lines, of_kind in ((series, took.overhead_ms), (unproved, took.unproved_ms)):
                for kind, took_ms in of_kind.items():
                    lines.setdefault(kind, []).append(Reading(size, statistics.median(took_ms)))
            told.update(took.spoilt)
            say(f"arms: round {number}, {size} arms")
    notes = [f"{count} times: {line}" if count > 1 else line for line, count in told.items()]
    panels = [
        Panel("overhead of a trial, ms", series, most=0, told=notes),
        Panel("the same without the proofs, ms", unproved, most=0),
    ]
    return [Growth("arms", "A trial's overhead against the arms of its study", "arms", panels)]


def many(kinds: Sequence[StudyArm], count: int) -> tuple[StudyArm, ...]:
    """So many arms of these kinds in turn; the first is the baseline."""
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    return tuple(
        replace(
            entry,
            arm=entry.arm.model_copy(
                update={
                    "label": f"{entry.arm.label} {number // len(kinds) + 1}",
                    "role": "treatment" if number else "baseline",
                }
            ),
        )
        for number, entry in enumerate(chosen)
    )


def _timed(stage: Stage, images: Images, arms: Sequence[StudyArm], path: Path) -> _Stopwatch:
    """Plan and run one block of these arms, as `virtoll run` does, into a run directory."""
    study = replace(stage.study, arms=tuple(arms), blocks=1)
    plan = make_plan(
        study, [entry.arm for entry in arms], {name: cls.expected_overhead_s for name, cls in platforms().items()}
    )
    environment = Environment(created_at="", virtoll="bench", comparable={}, notes={})
    directory = RunDirectory.create(path, document.as_json(study), plan, environment)
    stopwatch = _Stopwatch()
    pending = directory.pending()
    with directory.writing(), Stage(study, stage.host).lab(images, pending) as experiment:
        execute(directory, experiment, stopwatch)
    return stopwatch
