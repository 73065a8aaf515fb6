"""A made-up run of a programme of probes with known truth: its figures, its tolls and its outside instruments.

Each value is  figure(case) x toll(arm, probe) x drift(block) x noise, the last two log-normal; a toll worsens,
whichever way that is.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from synthetic import AGAIN, DOCKER, KVM, LXC, NATIVE, TCG, UML, write_histogram
from virtoll.record.model import (
    Arm,
    Check,
    Environment,
    Measured,
    Phase,
    Plan,
    PlannedTrial,
    Quantity,
    SkippedArm,
    TrialRecord,
    Window,
)

LXCFS = Arm(label="lxc+routed (lxcfs)", platform="lxc", network="routed", settings={"lxcfs": True})
ARMS = (NATIVE, AGAIN, DOCKER, LXC, LXCFS, UML, TCG)
# By platform and probe, how many times worse than native; 1 where none is named.
TOLLS: dict[str, dict[str, float]] = {
    "docker": {"round-trip": 1.12, "disk": 1.06, "connect": 1.2},
    "lxc": {"round-trip": 1.09},
    "uml": {"first-touch": 21.0, "round-trip": 4.1, "disk": 1.8, "unix": 9.0, "connect": 6.0, "clock": 40.0},
    "qemu-tcg": {"linpack": 60.0, "memory": 5.0, "stream": 8.0, "round-trip": 7.0, "disk": 2.4, "unix": 14.0,
                 "connect": 11.0, "clock": 9.0, "first-touch": 6.0},
}  # fmt: skip
_EPOCH_NS = 10**12


@dataclass(frozen=True)
class MadeUp:
    """A probe: its levels by setting, its quantities as (title, unit, better, figure), the first its headline."""

    levels: Mapping[str, Sequence[Any]]
    quantities: Mapping[str, tuple[str, str, str | None, float]]
    histogram: bool = False


PROBES: dict[str, MadeUp] = {
    "linpack": MadeUp(
        {"order": [500, 1000, 2000, 4000]},
        {"gflops": ("LINPACK", "GFLOP/s", "more", 38.0), "residual": ("Scaled residual", "", None, 0.02)},
    ),
    "memory": MadeUp(
        {"operation": ["read", "write"], "block_bytes": [2**k for k in range(10, 27)]},
        {"bandwidth_mb_per_s": ("Memory bandwidth", "MB/s", "more", 40_000.0)},
    ),
    "stream": MadeUp(
        {},
        {
            "triad_mb_per_s": ("STREAM triad", "MB/s", "more", 21_000.0),
            "copy_mb_per_s": ("STREAM copy", "MB/s", "more", 19_000.0),
            "scale_mb_per_s": ("STREAM scale", "MB/s", "more", 18_500.0),
            "sum_mb_per_s": ("STREAM sum", "MB/s", "more", 20_500.0),
        },
    ),
    "first-touch": MadeUp({}, {"page_ns": ("First touch of a page", "ns", "less", 420.0)}),
    "disk": MadeUp(
        {"operation": ["write", "rewrite", "read", "reread", "random-read", "random-write"], "direct": ["no", "yes"]},
        {
            "throughput_mb_per_s": ("Disk throughput", "MB/s", "more", 900.0),
            "latency_us": ("Disk latency, mean", "us", "less", 70.0),
        },
    ),
    "round-trip": MadeUp(
        {"protocol": ["tcp", "udp"], "message_bytes": [1, 128, 1024, 8192]},
        {
            "rtt_p50_us": ("Round trip, median", "us", "less", 21.0),
            "rtt_p99_us": ("Round trip, 99th percentile", "us", "less", 48.0),
            "transactions_per_s": ("Transactions", "/s", "more", 44_000.0),
        },
        histogram=True,
    ),
    "connect": MadeUp({}, {"connections_per_s": ("Connections", "/s", "more", 16_000.0)}),
    "unix": MadeUp(
        {"test": ["syscall", "pipe", "context-switch", "spawn", "execl", "shell-1", "shell-8"]},
        {"rate_per_s": ("Kernel work", "/s", "more", 100_000.0)},
    ),
    "clock": MadeUp({}, {"read_ns": ("Reading the clock", "ns", "less", 26.0)}),
}
# What an outside instrument reads over what our probe reads, by probe.
INSTRUMENTS: dict[str, tuple[str, float]] = {"disk": ("fio", 1.005), "round-trip": ("sockperf", 0.94)}


@dataclass(frozen=True)
class Recipe:
    """What to make up. ``noise`` and ``drift`` are standard deviations of logarithms, per trial and per block."""

    arms: Sequence[Arm] = ARMS
    probes: Mapping[str, MadeUp] = field(default_factory=lambda: PROBES)
    instruments: Mapping[str, tuple[str, float]] = field(default_factory=lambda: INSTRUMENTS)
    factors: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # of the deployment, by dotted path
    blocks: int = 4
    seed: int = 1
    noise: float = 0.006
    drift: float = 0.02
    spoilt: Mapping[str, str] = field(default_factory=dict)  # trial id: why it failed
    sealed: int | None = None


def cases(recipe: Recipe) -> list[dict[str, Any]]:
    """The programme, as study.json holds it."""
    found: list[dict[str, Any]] = []
    for name, probe in recipe.probes.items():
        for levels in itertools.product(*probe.levels.values()):
            settings = dict(zip(probe.levels, levels, strict=True))
            condition = {"probe": name, **{f"{name}.{key}": level for key, level in settings.items()}}
            manner = {"windows": 3, "time_ns": 500_000_000}
            found.append({"probe": name, "settings": {**manner, **settings}, "condition": condition, "instrument": ""})
    for case in list(found):
        if case["probe"] in recipe.instruments:
            instrument, _ = recipe.instruments[case["probe"]]
            condition = {**case["condition"], "instrument": instrument}
            found.append({**case, "condition": condition, "instrument": instrument})
    return found


def write_programme(directory: Path, recipe: Recipe) -> Path:
    """Write the run directory and return it."""
    rng = np.random.default_rng(recipe.seed)
    directory.mkdir(parents=True, exist_ok=True)
    programme = cases(recipe)
    plan = _plan(recipe, programme, rng)
    (directory / "study.json").write_text(json.dumps(_study(recipe, programme), indent=1))
    (directory / "plan.json").write_text(plan.model_dump_json(indent=1))
    (directory / "environment.json").write_text(_environment().model_dump_json(indent=1))
    drift = {block: math.exp(rng.normal(0, recipe.drift)) for block in range(1, recipe.blocks + 1)}
    lines = []
    for number, trial in enumerate(plan.trials[: recipe.sealed]):
        record = _record(recipe, trial, drift[trial.block], number, rng)
        lines.append(record.model_dump_json() + "\n")
        if record.status == "valid" and recipe.probes[trial.condition["probe"]].histogram:
            where = directory / "trials" / trial.id
            where.mkdir(parents=True)
            assert record.measured is not None
            (value, *_) = record.measured.values(record.measured.headline)
            write_histogram(where / "latency.parquet", value * 1e3 * np.exp(rng.gamma(2, 0.2, 4000)))
    (directory / "trials.jsonl").write_text("".join(lines))
    return directory


def _plan(recipe: Recipe, programme: list[dict[str, Any]], rng: np.random.Generator) -> Plan:
    trials: list[PlannedTrial] = []
    levels = [dict(zip(recipe.factors, some, strict=True)) for some in itertools.product(*recipe.factors.values())]
    treatments = list(itertools.product(recipe.arms, levels))
    for block in range(1, recipe.blocks + 1):
        for number, t in enumerate(rng.permutation(len(treatments)), 1):
            arm, level = treatments[int(t)]
            mine = [case for case in programme if not case["instrument"] or arm.role == "baseline"]
            for c in rng.permutation(len(mine)):
                position = len(trials) + 1
                trials.append(
                    PlannedTrial(
                        id=f"b{block:02d}-t{position:04d}",
                        block=block,
                        position=position,
                        arm=arm,
                        condition={**level, **mine[int(c)]["condition"]},
                        deployment=f"b{block:02d}-d{number:04d}",
                    )
                )
    return Plan(seed=recipe.seed, blocks=recipe.blocks, trials=trials, estimate_s=60.0)


def _study(recipe: Recipe, programme: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": "micro",
        "title": "What virtualization costs the machine itself",
        "question": "What does each platform cost CPU, memory, disk, network and the kernel?",
        "arms": [{"arm": arm.model_dump(), "optional": False, "line": 1} for arm in recipe.arms],
        "claims": [],
        "margin": 0.03,
        "blocks": recipe.blocks,
        "service": "",
        "origin": "",
        "load": "",
        "base": {"limits.vcpus": 1, "limits.memory_bytes": 512 * 1024**2, "background.hogs": 0},
        "programme": programme,
        "command": "micro",
    }


def _environment() -> Environment:
    return Environment(
        created_at="2026-11-21T08:00:00Z",
        virtoll="0.1.0",
        comparable={"kernel": "6.1.0-42-amd64", "cpu_model": "Synthetic CPU @ 2.00GHz", "cpus": 4},
        notes={"load_average": [0.2, 0.3, 0.3]},
        skipped=[SkippedArm(arm=KVM, reason="no /dev/kvm on this machine")],
    )


def figure(probe: str, key: str, settings: Mapping[str, Any], probes: Mapping[str, MadeUp] = PROBES) -> float:
    """What native reads: the quantity's figure, changed by the case so that curves and categories differ."""
    base = probes[probe].quantities[key][3]
    if probe == "linpack":
        return base * (1 - 120 / (int(settings["order"]) + 120))
    if probe == "memory":
        return base * (2.5 if settings["block_bytes"] < 2**15 else 1.6 if settings["block_bytes"] < 2**20 else 0.5)
    if probe == "round-trip":
        return base * (1 + int(settings["message_bytes"]) / 6000)
    words = [str(level) for level in settings.values()]
    return base * math.prod(0.35 + (sum(word.encode()) % 17) / 17 for word in words)


def _record(recipe: Recipe, trial: PlannedTrial, drift: float, number: int, rng: np.random.Generator) -> TrialRecord:
    start_ns = _EPOCH_NS + number * 10**9
    reason = recipe.spoilt.get(trial.id, "")
    return TrialRecord(
        trial=trial,
        status="failed" if reason else "valid",
        reason=reason,
        started_at="2026-11-21T08:00:00Z",
        checks=[Check(name="the CPU limit held", passed=True, detail="0.99 of 1 CPU used")],
        phases=[Phase(name="window", start_ns=start_ns, duration_ns=9 * 10**8)],
        measured=None if reason else _probe(recipe, trial, drift, start_ns, rng),
        believes=_believes(trial.arm),
    )


def _probe(recipe: Recipe, trial: PlannedTrial, drift: float, start_ns: int, rng: np.random.Generator) -> Measured:
    name = trial.condition["probe"]
    made_up = recipe.probes[name]
    settings = {key: trial.condition[f"{name}.{key}"] for key in made_up.levels}
    toll = TOLLS.get(trial.arm.platform, {}).get(name, 1.0)
    _, read = recipe.instruments[name] if "instrument" in trial.condition else ("", 1.0)
    noise = math.exp(rng.normal(0, recipe.noise))
    values = {}
    for key, (_, _, better, _) in made_up.quantities.items():
        worse = {"more": 1 / toll, "less": toll, None: 1.0}[better]
        value = figure(name, key, settings, recipe.probes) * worse * read * drift * noise
        values[key] = [float(value * math.exp(rng.normal(0, recipe.noise / 2))) for _ in range(3)]
    return Measured(
        name=name,
        instrument=f"{trial.condition.get('instrument', 'virtoll-agent')} 3.1",
        settings=settings,
        headline=next(iter(values)),
        quantities={
            key: Quantity.model_validate({"title": title, "unit": unit, "better": better})
            for key, (title, unit, better, _) in made_up.quantities.items()
        },
        windows=[
            Window(
                start_ns=start_ns + i * 3 * 10**8,
                duration_ns=3 * 10**8,
                work=100,
                values={key: of_key[i] for key, of_key in values.items()},
            )
            for i in range(3)
        ],
    )


def _believes(arm: Arm) -> dict[str, Any]:
    sees_all = arm.platform in ("native", "docker", "lxc") and not arm.settings.get("lxcfs")
    return {"cpus": 4 if sees_all else 1, "memory_bytes": 16 * 1024**3 if sees_all else 512 * 1024**2}
