"""A made-up run with known truth: a run directory as virtoll.record.model says, from a seed.

Each trial's rate is  base(condition) x toll(arm) x drift(block) x noise, all log-normal; latencies, CPU and memory
follow from it. Used by the tests of the analysis and by bench/report.py.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from virtoll.record.model import (
    Arm,
    Audit,
    Check,
    Environment,
    Events,
    Measured,
    Phase,
    Plan,
    PlannedTrial,
    SkippedArm,
    TrialRecord,
    Window,
)
from virtoll.record.tables import packed

NATIVE = Arm(label="native+host", platform="native", network="host", role="baseline")
AGAIN = Arm(label="native+host (again)", platform="native", network="host", role="floor")
DOCKER = Arm(label="docker+routed", platform="docker", network="routed")
PUBLISHED = Arm(label="docker+published", platform="docker", network="published")
LXC = Arm(label="lxc+routed", platform="lxc", network="routed")
UML = Arm(label="uml+routed", platform="uml", network="routed")
TCG = Arm(label="qemu-tcg+routed", platform="qemu-tcg", network="routed")
KVM = Arm(label="kvm+routed", platform="kvm", network="routed")

# Throughput over native's: the truth an analysis should find.
TRUTH: dict[str, float] = {
    NATIVE.label: 1.0,
    AGAIN.label: 1.0,
    LXC.label: 0.995,
    DOCKER.label: 0.985,
    PUBLISHED.label: 0.86,
    UML.label: 0.16,
    TCG.label: 0.075,
}
ARMS = (NATIVE, AGAIN, LXC, DOCKER, PUBLISHED, UML, TCG)
FACTORS: dict[str, list[Any]] = {
    "load.object_bytes": [1000, 10_000, 100_000, 1_000_000, 10_000_000],
    "load.connections": [1, 100],
    "service.cache": ["off", "on"],
}
QUICK: dict[str, list[Any]] = {"load.object_bytes": [1000, 100_000], "load.connections": [1, 100]}
_EPOCH_NS = 10**12


@dataclass(frozen=True)
class Recipe:
    """What to make up. ``noise`` and ``drift`` are standard deviations of logarithms, per trial and per block."""

    arms: Sequence[Arm] = ARMS
    factors: Mapping[str, list[Any]] = field(default_factory=lambda: QUICK)
    truth: Mapping[str, float] = field(default_factory=lambda: TRUTH)
    blocks: int = 5
    seed: int = 1
    noise: float = 0.015
    drift: float = 0.05
    requests: int = 10_000
    samples_per_trial: int = 400
    bulk: bool = True  # write the parquet files
    spoilt: Mapping[str, str] = field(default_factory=dict)  # trial id: "failed" or "invalid"
    skip_kvm: bool = True
    audits: Mapping[str, Audit] = field(default_factory=dict)  # by arm's label, in its first trial
    exits_per_s: float | None = None  # of guests under KVM, where the host tells
    sealed: int | None = None  # how many trials have been sealed; None: all


def write_run(directory: Path, recipe: Recipe) -> Path:
    """Write the run directory and return it."""
    rng = np.random.default_rng(recipe.seed)
    directory.mkdir(parents=True, exist_ok=True)
    plan = _plan(recipe, rng)
    (directory / "study.json").write_text(_study(recipe))
    (directory / "plan.json").write_text(plan.model_dump_json(indent=1))
    (directory / "environment.json").write_text(_environment(recipe).model_dump_json(indent=1))
    drift = {block: math.exp(rng.normal(0, recipe.drift)) for block in range(1, recipe.blocks + 1)}
    lines, audits = [], dict(recipe.audits)
    for number, trial in enumerate(plan.trials[: recipe.sealed]):
        record, rate = _record(recipe, trial, drift[trial.block], number, rng)
        if trial.arm.label in audits:
            record = record.model_copy(update={"audit": audits.pop(trial.arm.label)})
        if recipe.bulk and record.status != "failed":
            _write_bulk(directory / "trials" / trial.id, recipe, record, rate, rng)
        lines.append(record.model_dump_json() + "\n")
    (directory / "trials.jsonl").write_text("".join(lines))
    return directory


def measured_elsewhere(directory: Path, notes: Mapping[str, Any]) -> None:
    """As if a host had measured a run that was written, with what is noted of how it was reached."""
    plan = Plan.model_validate_json((directory / "plan.json").read_text())
    there = {trial.id: trial.model_copy(update={"host": "node1"}) for trial in plan.trials}
    (directory / "plan.json").write_text(plan.model_copy(update={"trials": list(there.values())}).model_dump_json())
    found = Environment.model_validate_json((directory / "environment.json").read_text())
    found = found.model_copy(update={"notes": {**found.notes, **notes}})
    (directory / "environment.json").write_text(found.model_dump_json())
    records = [TrialRecord.model_validate_json(line) for line in (directory / "trials.jsonl").open()]
    kept = [record.model_copy(update={"trial": there[record.trial.id]}).model_dump_json() for record in records]
    (directory / "trials.jsonl").write_text("".join(f"{line}\n" for line in kept))


def excluding(directory: Path, excluded: Callable[[PlannedTrial], bool]) -> Path:
    """A run that was written, as if its study did not ask for some trials: a rule of [[exclude]] for some platforms."""
    plan = Plan.model_validate_json((directory / "plan.json").read_text())
    asked = [trial for trial in plan.trials if not excluded(trial)]
    (directory / "plan.json").write_text(plan.model_copy(update={"trials": asked}).model_dump_json())
    lines = (directory / "trials.jsonl").read_text().splitlines()
    kept = [line for line in lines if not excluded(TrialRecord.model_validate_json(line).trial)]
    (directory / "trials.jsonl").write_text("".join(f"{line}\n" for line in kept))
    return directory


def _plan(recipe: Recipe, rng: np.random.Generator) -> Plan:
    conditions = [
        dict(zip(recipe.factors, levels, strict=True)) for levels in itertools.product(*recipe.factors.values())
    ]
    trials: list[PlannedTrial] = []
    for block in range(1, recipe.blocks + 1):
        treatments = [(arm, condition) for condition in conditions for arm in recipe.arms]
        for index in rng.permutation(len(treatments)):
            arm, condition = treatments[int(index)]
            position = len(trials) + 1
            trial_id = f"b{block:02d}-t{position:03d}"
            trials.append(PlannedTrial(id=trial_id, block=block, position=position, arm=arm, condition=condition))
    return Plan(seed=recipe.seed, blocks=recipe.blocks, trials=trials, estimate_s=60.0)


def _study(recipe: Recipe) -> str:
    import json

    return json.dumps(
        {
            "name": "proxy",
            "title": "What does each platform cost an HTTP proxy?",
            "arms": [{"arm": arm.model_dump(), "optional": False, "line": 1} for arm in recipe.arms],
            "question": "What does each platform cost an HTTP proxy (Squid)?",
            "claims": ["proxy"],
            "margin": 0.03,
            "blocks": recipe.blocks,
            "service": "squid",
            "origin": "nginx",
            "load": "http",
            "base": {
                "service.cache": "off",
                "load.loop": "closed",
                "load.requests": recipe.requests,
                "load.connections": 1,
                "load.object_bytes": 1000,
                "background.hogs": 0,
                "limits.vcpus": 1,
                "limits.memory_bytes": 1024**3,
                "monitor.rate_per_s": 10.0,
            },
        },
        indent=1,
    )


def _environment(recipe: Recipe) -> Environment:
    skipped = [SkippedArm(arm=KVM, reason="no /dev/kvm on this machine")] if recipe.skip_kvm else []
    return Environment(
        created_at="2026-11-21T08:00:00Z",
        virtoll="0.1.0",
        comparable={
            "kernel": "6.1.0-42-amd64",
            "machine": {"cpu_model": "Synthetic CPU @ 2.00GHz", "cpus": 4, "memory_bytes": 16 * 1024**3},
            "mitigations": {"spectre_v2": "Mitigation: Retpolines", "meltdown": "Not affected"},
            "image": {"proxy": "5d1f" * 16},
            "tools": {"docker": "20.10.24", "lxc": "5.0.2", "qemu": "7.2.22"},
        },
        notes={"load_average": [0.2, 0.3, 0.3], "governor": "performance"},
        skipped=skipped,
        warnings=["The CPU frequency may change (governor powersave): set `performance` for steadier results."],
    )


def _record(
    recipe: Recipe, trial: PlannedTrial, drift: float, number: int, rng: np.random.Generator
) -> tuple[TrialRecord, float]:
    rate = _base_rate(trial.condition) * recipe.truth[trial.arm.label] * drift * math.exp(rng.normal(0, recipe.noise))
    start_ns = _EPOCH_NS + number * 10**10
    status = recipe.spoilt.get(trial.id, "valid")
    reason = {"failed": "the guest never answered within 60 s", "invalid": "the generator was the limit"}.get(
        status, ""
    )
    completed = min(recipe.requests, max(1, int(rate * 30)))
    end_ns = start_ns + int(completed / rate * 1e9)
    events = Events(intended=recipe.requests, offered=completed, completed=completed, failures={}, censored=0)
    measured = Measured(
        name="http",
        instrument="virtoll-load 0.1.0",
        unit="request",
        loop="closed",
        windows=[
            Window(
                start_ns=start_ns,
                duration_ns=end_ns - start_ns,
                work=completed,
                counts={"completed": completed},
                events={"request": events},
                cpu_ns=completed * 60_000,
            )
        ],
    )
    record = TrialRecord.model_validate(
        {
            "trial": trial,
            "status": status,
            "reason": reason,
            "started_at": "2026-11-21T08:00:00Z",
            "checks": [
                Check(name="answers correctly", passed=True, detail="200, length and digest as expected"),
                Check(name="generator headroom", passed=status != "invalid", detail="0.41 of 1 CPU"),
            ],
            "phases": [
                Phase(
                    name="deploy",
                    start_ns=start_ns - 10**9,
                    duration_ns=int(3e8 / recipe.truth[trial.arm.label] * math.exp(rng.normal(0, 0.03))),
                ),
                Phase(name="window", start_ns=start_ns, duration_ns=end_ns - start_ns),
            ],
            "measured": None if status == "failed" else measured,
            "facts": {"squid": "5.7"} | ({"accelerator": "kvm"} if trial.arm.platform == "kvm" else {}),
            "believes": {
                "cpus": 4 if trial.arm.platform in ("docker", "native") else 1,
                "memory_bytes": 16 * 1024**3 if trial.arm.platform in ("docker", "native") else 512 * 1024**2,
                "kernel": "6.1.0-42-amd64",
            },
        }
    )
    return record, rate


def _base_rate(condition: Mapping[str, Any]) -> float:
    size = condition.get("load.object_bytes", 10_000)
    factor = (
        1 + 1.6 * (condition.get("load.connections", 1) > 1) + 0.7 * (condition.get("service.cache", "off") == "on")
    )
    return float(1400 * factor / (1 + size / 60_000))


def _write_bulk(directory: Path, recipe: Recipe, record: TrialRecord, rate: float, rng: np.random.Generator) -> None:
    assert record.measured is not None
    assert record.measured.events is not None
    completed = record.measured.events.completed
    directory.mkdir(parents=True, exist_ok=True)
    connections = record.trial.condition.get("load.connections", 1)
    mean_ns = connections / rate * 1e9
    latencies = mean_ns * np.exp(rng.normal(-0.06, 0.35, min(completed, 20_000)))
    latencies[rng.random(latencies.size) < 0.02] *= 6
    write_histogram(directory / "latency.parquet", latencies)
    _write_samples(directory, recipe, record, rate, rng)


def write_histogram(path: Path, latencies_ns: np.ndarray[Any, Any]) -> None:
    """Latencies in buckets three digits fine, as the generator records them."""
    edges = _edges()
    count, _ = np.histogram(latencies_ns, edges)
    used = np.flatnonzero(count)
    table = pa.table({"lower_ns": edges[used], "upper_ns": edges[used + 1], "count": count[used].astype(np.int64)})
    path.write_bytes(packed(table))


@functools.cache
def _edges() -> np.ndarray[Any, Any]:
    return np.unique(np.round(np.geomspace(1e3, 6e11, 9000)).astype(np.int64))


def _write_samples(directory: Path, recipe: Recipe, record: TrialRecord, rate: float, rng: np.random.Generator) -> None:
    assert record.measured is not None
    window = record.measured.window
    slow = record.trial.arm.platform in ("uml", "qemu-tcg")
    outside = {
        ("instance", "cpu.usage_ns"): 0.95e9,
        ("instance", "cpu.user_ns"): 0.4e9,
        ("instance", "cpu.system_ns"): 0.55e9,
        ("instance", "memory.usage_bytes"): -(90 if not slow else 420) * 1024**2,
        ("instance", "memory.resident_bytes"): -(60 if not slow else 400) * 1024**2,
        ("generator", "cpu.usage_ns"): 0.4e9,
        ("host", "cpu.usage_ns"): 1.5e9,
        ("origin", "cpu.usage_ns"): 0.2e9,
    }
    if slow:
        outside["helpers", "cpu.usage_ns"] = 0.2e9
    if record.trial.arm.platform == "kvm" and recipe.exits_per_s is not None:
        outside["instance", "kvm.exits"] = recipe.exits_per_s
    inside = {("inside", "cpu.usage_ns"): 0.7e9 if slow else 0.93e9, ("inside", "memory.available_bytes"): -3e8}
    share = recipe.samples_per_trial // (len(outside) + len(inside))
    for side, counters in (("outside", outside), ("inside", inside)):
        write_samples(directory / f"{side}.parquet", counters, (window.start_ns, window.end_ns), max(3, share), rng)


def write_samples(
    path: Path,
    counters: Mapping[tuple[str, str], float],
    window_ns: tuple[int, int],
    ticks: int,
    rng: np.random.Generator,
) -> None:
    """Counters that grow at a rate a second (positive) or stay about a level (negative), a little beyond a window."""
    margin = (window_ns[1] - window_ns[0]) // 20 + 1
    t_ns = np.linspace(window_ns[0] - margin, window_ns[1] + margin, ticks).astype(np.int64)
    columns: dict[str, list[Any]] = {"t_ns": [], "source": [], "counter": [], "value": []}
    for (source, counter), rate in counters.items():
        if rate >= 0:
            value = 10**9 + ((t_ns - t_ns[0]) / 1e9 * rate).astype(np.int64)
        else:
            value = (-rate * (1 + rng.normal(0, 0.01, ticks))).astype(np.int64)
        columns["t_ns"].append(t_ns)
        columns["value"].append(value)
        columns["source"].append(np.full(ticks, source))
        columns["counter"].append(np.full(ticks, counter))
    flat = {name: pa.array(np.concatenate(parts)) for name, parts in columns.items()}
    order = np.argsort(np.concatenate(columns["t_ns"]), kind="stable")
    table = pa.table({n: v.dictionary_encode() if n in ("source", "counter") else v for n, v in flat.items()})
    path.write_bytes(packed(table.take(order)))
