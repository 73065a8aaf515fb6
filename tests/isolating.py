"""Isolation studies on fakes: whole runs of the ready-made studies with known harm, in a second."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from quiet import Quiet
from virtoll.catalogue import catalogue
from virtoll.fakes import FakeExperiment, FakeHarm, fake_environment
from virtoll.record.store import RunDirectory
from virtoll.run.execute import execute
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.plan import make_plan

TOLLS = {"native": 1.0, "docker": 1.05, "lxc": 1.04, "uml": 4.0, "kvm": 1.3, "qemu-tcg": 9.0}
HARMS: Mapping[str, FakeHarm] = {
    "cpu": FakeHarm(kept=0.8, rise=2.0),
    "qemu-tcg/cpu": FakeHarm(kept=0.4, rise=8.0, recovery_ns=600_000_000),
    "memory": FakeHarm(kept=0.5, rise=3.0, recovery_ns=5 * 10**9),
    "uml/memory": FakeHarm(kept=0.0, outcome="victim died"),
    "fork": FakeHarm(kept=0.0, rise=4.0, outcome="did not answer", recovery_ns=400_000_000),
    "disk": FakeHarm(rise=1.5, overshoot_ns=300_000_000),
    "net-receive": FakeHarm(),
    "docker/net-receive": FakeHarm(refused="the flood has no way in: the port is not published"),
    "timer": FakeHarm(rise=1.3),
    "cache": FakeHarm(rise=1.02),
}
# As virtoll.trial.proofs words them.
PROOFS = {
    "the CPU limit bites": "2 busy threads got 1.02 CPU",
    "the disk limit bites": "640 MiB asked for, 512 MiB got: fallocate: No space left on device",
    "the limit of processes bites": "320 processes asked for, 251 got: sh: 4: Cannot fork",
    "the memory limit bites": "640 MiB asked for, 498 MB got: killed",
}


def run_of(
    path: Path,
    name: str = "isolation",
    harms: Mapping[str, FakeHarm] = HARMS,
    *,
    quick: bool = False,
    spread: float = 0.02,
    blocks: int = 3,
    factors: Mapping[str, tuple[Any, ...]] | None = None,
    until: int | None = None,
    also: str = "",
) -> Path:
    """A run of a ready-made study on a fake with these harms; its window is six seconds. ``factors``: what is varied
    besides the neighbour; ``until``: after so many of its blocks it was interrupted; ``also``: more of its file.
    """
    text = (files("virtoll.studies") / f"{name}.toml").read_text(encoding="utf-8") + also
    study = dataclasses.replace(read_study(text, f"{name}.toml", catalogue(), quick=quick), blocks=blocks, seed=7)
    study = dataclasses.replace(study, factors={**study.factors, **(factors or {})})
    if study.load:
        study = dataclasses.replace(study, base={**study.base, "load.time_limit_ns": 6 * 10**9})
    arms = [entry.arm for entry in study.arms if entry.arm.platform != "kvm"]
    plan = make_plan(study, arms, dict.fromkeys(TOLLS, 1.0))
    run = RunDirectory.create(path, document.as_json(study), plan, fake_environment())
    fake = FakeExperiment(
        TOLLS, harms=harms, proofs=PROOFS, spread=spread, window_ns=6 * 10**9, native_latency_ns=1_500_000
    )
    asked = iter([False] * (blocks if until is None else until))
    execute(run, fake, Quiet(), ends=lambda: next(asked, True))
    return path
