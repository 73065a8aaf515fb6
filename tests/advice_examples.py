"""The made-up runs of docs/ADVICE.md: `python tests/advice_examples.py` writes them below runs/, and prints nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from quiet import Quiet
from synthetic import DOCKER, LXC, NATIVE, PUBLISHED, UML, Recipe, write_run
from test_knee import TEXT, knee_of, study
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.record.model import PlannedTrial
from virtoll.record.store import RunDirectory
from virtoll.record.tables import samples_table
from virtoll.run.execute import execute
from virtoll.study import document
from virtoll.study.model import Knee
from virtoll.study.plan import make_plan
from virtoll.trial.notes import Course, Notes

GIB, MIB = 2**30, 2**20
CAPACITY = 9000.0  # requests/s of a fake's one queue; docker's is 1.25 times less
CPU_S, MEMORY = 80e-6, 100 * MIB  # of a request, of an instance


class Sampled(FakeExperiment):
    """A fake whose instances use CPU by the request, and memory."""

    def _searched(self, knee: Knee, trial: PlannedTrial, notes: Notes, noise: random.Random) -> Course:
        yield from super()._searched(knee, trial, notes, noise)
        rows, used = [], 0.0
        assert notes.measured is not None
        for window in notes.measured.windows:
            for t_ns, grown in ((window.start_ns, 0.0), (window.end_ns, (window.at or 0) * CPU_S * window.duration_ns)):
                used += grown
                rows += [
                    (t_ns, "instance", "cpu.usage_ns", round(used)),
                    (t_ns, "instance", "memory.usage_bytes", MEMORY),
                ]
        notes.tables["outside"] = samples_table(rows)


def search_of(path: Path, text: str = TEXT, **fake: Any) -> Path:
    """A search for the knee of native and docker, on a host of 8 CPUs and 16 GiB."""
    read = study(text)
    plan = make_plan(read, [entry.arm for entry in read.arms], {"native": 1.0, "docker": 2.0})
    there = fake_environment(machine={"cpus": 8, "memory_bytes": 16 * GIB})
    directory = RunDirectory.create(path, document.as_json(read), plan, there)
    experiment = Sampled({"native": 1.0, "docker": 1.25}, spread=0.01, capacity_per_s=CAPACITY, **fake)
    experiment.knee = knee_of(read)
    execute(directory, experiment, Quiet())
    return path


def proxy_of(path: Path) -> Path:
    """A proxy on five arms."""
    return write_run(path, Recipe(arms=(NATIVE, LXC, DOCKER, PUBLISHED, UML), blocks=8))


def write_all(runs: Path) -> None:
    """Both, below a directory."""
    proxy_of(runs / "proxy-example")
    search_of(runs / "carries-example")


if __name__ == "__main__":
    write_all(Path("runs"))
