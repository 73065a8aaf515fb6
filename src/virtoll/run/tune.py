"""`virtoll tune` and `virtoll untune`: the knobs in turn, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.hosts.changes import Setting
from virtoll.hosts.ledger import LEFT, Ledger
from virtoll.hosts.tuning import Knob

Became = Literal["done", "would", "tuned already", "is so", "cannot", "failed", "undone", "not tuned"]


@dataclass(frozen=True)
class Outcome:
    """What became of one knob: ``told`` says it in words, ``problem`` what kept it from more."""

    knob: str
    became: Became
    told: str
    problem: Problem | None = None

    def __str__(self) -> str:
        """For people."""
        return f"{self.knob}: {self.became}: {self.problem or self.told}".removesuffix(": ")


def tune(knobs: Sequence[Knob], host: Host, where: Path, *, dry_run: bool = False) -> list[Outcome]:
    """Tune each that can be; one that fails is undone, and the others go on. ``where``: of the ledgers."""
    return [_tuned(knob, host, where, dry_run=dry_run) for knob in knobs]


def _tuned(knob: Knob, host: Host, where: Path, *, dry_run: bool) -> Outcome:
    if knob.is_in_force(where):
        return Outcome(knob.name, "tuned already", _changes(knob, where))
    state = knob.state()
    if state.problem is not None:
        return Outcome(knob.name, "cannot", state.now, state.problem)
    if not state.would:
        return Outcome(knob.name, "is so", f"{state.now}, and not by `virtoll tune`")
    if dry_run:
        return Outcome(knob.name, "would", state.would)
    try:
        _apply(knob, host, where)
    except HostError as error:
        return Outcome(knob.name, "failed", state.now, error.problem)
    return Outcome(knob.name, "done", _changes(knob, where))


def _changes(knob: Knob, where: Path) -> str:
    return "; ".join(change.name for change in knob.standing(where))


def _apply(knob: Knob, host: Host, where: Path) -> None:
    """All of it or nothing; what a killed command or a reboot has left of it is undone first."""
    ledger = Ledger(host, where / f"{knob.name}.jsonl")
    try:
        knob.apply(host, ledger.open())
    except BaseException:
        ledger.close()
        raise
    ledger.leave()


def untune(knobs: Sequence[Knob], host: Host, where: Path) -> list[Outcome]:
    """Undo each that was tuned; what somebody has changed since is left as it is, and said."""
    return [_untuned(knob, host, where) for knob in knobs]


def _untuned(knob: Knob, host: Host, where: Path) -> Outcome:
    kept = {one: why for one in knob.standing(where) if isinstance(one, Setting) and (why := one.why_left())}
    try:
        undone = knob.undo(host, where)
    except HostError as error:
        return Outcome(knob.name, "failed", "", error.problem)
    if not undone:
        return Outcome(knob.name, "not tuned", "there is nothing to undo")
    left = [f"left as it is, for {why}: {one.path}" for one, why in kept.items()]
    return Outcome(knob.name, "undone", "; ".join([*(line for line in undone if not line.startswith(LEFT)), *left]))


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The same for programs; docs/JSON.md has the keys."""
    knobs = [
        {
            "name": one.knob,
            "became": one.became,
            "told": one.told,
            "problem": None if one.problem is None else asdict(one.problem),
        }
        for one in outcomes
    ]
    return {"knobs": knobs}
