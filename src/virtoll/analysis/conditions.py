"""What a trial was measured under, in the words of a report: the levels of the factors, less the arm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from virtoll.record.model import BESIDE, PROBE, SERVER, PlannedTrial
from virtoll.units import exact_bit_rate, exact_duration, exact_rate, exact_size

INSTRUMENT = "instrument"


@dataclass(frozen=True)
class Condition:
    """Levels of the factors other than the arm, by dotted path, in the plan's order of paths."""

    levels: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, trial: PlannedTrial) -> Condition:
        """The condition of a planned trial. Levels that are lists or tables are kept as JSON text."""
        return cls.of_levels(trial.condition)

    @classmethod
    def of_levels(cls, condition: Mapping[str, Any]) -> Condition:
        """The condition with these levels, the probe's name first."""
        levels = ((path, _hashable(level)) for path, level in condition.items())
        return cls(tuple(sorted(levels, key=lambda level: (level[0] not in (SERVER, PROBE), level[0]))))

    def get(self, path: str, default: Any = None) -> Any:
        """The level of one factor."""
        return dict(self.levels).get(path, default)

    @property
    def probe(self) -> str:
        """The probe whose case it is; "" under a load."""
        return str(self.get(PROBE, ""))

    def by(self, instrument: str) -> Condition:
        """The same case where an outside instrument stands in for the probe."""
        return Condition.of_levels({**dict(self.levels), INSTRUMENT: instrument})

    def label(self, paths: tuple[str, ...] | None = None) -> str:
        """As a report prints it: "10 kB, 100 connections, cache off"; only ``paths``, where given."""
        shown = [(path, level) for path, level in self.levels if paths is None or path in paths]
        shown.sort(key=lambda level: not self._tells(*level))
        return ", ".join(
            _told(path, level) if self._tells(path, level) else level_label(path, level) for path, level in shown
        )

    def _tells(self, path: str, level: Any) -> bool:
        """Whether a level says alone what it is; a number, a yes or "small" does not."""
        owner, _, setting = path.partition(".")
        is_own = owner == self.probe and setting in _SELF_EVIDENT
        return isinstance(level, str) and (path in (SERVER, PROBE) or is_own)


def each_condition(trials: Iterable[PlannedTrial]) -> Iterator[Condition]:
    """The condition of each trial, made once: a plan has thousands of trials under few."""
    known: dict[str, Condition] = {}
    for trial in trials:
        text = repr(trial.condition)
        if text not in known:
            known[text] = Condition.of(trial)
        yield known[text]


def _told(path: str, level: str) -> str:
    return level if path == SERVER else level.replace("-", " ")  # a server's name is its study's own


# Settings of probes whose levels say alone what they are: "random read", "tcp", "triad".
_SELF_EVIDENT = frozenset({"operation", "kernel", "test", "protocol", "direction", "unit", "call"})
_WORDS = {
    "load.connections": ("connection", "connections"),
    "load.viewers": ("viewer", "viewers"),
    "load.participants": ("participant", "participants"),
    "background.hogs": ("CPU hog", "CPU hogs"),
}


_ALONE_OR_NOT = {(BESIDE, "none"): "alone", (BESIDE, "others"): "beside the others"}
_QUANTITIES: dict[str, Callable[[Any], str]] = {
    "_bytes": exact_size,
    "_ns": exact_duration,
    "_bit_per_s": exact_bit_rate,
    "_per_s": exact_rate,
}


def level_label(path: str, level: Any) -> str:
    """One level in words."""
    if path == "load.object_bytes":
        return exact_size(level)
    if path in (SERVER, PROBE, INSTRUMENT, BESIDE):
        return f"by {level}" if path == INSTRUMENT else _ALONE_OR_NOT.get((path, level), str(level))
    if path in _WORDS:
        one, many = _WORDS[path]
        return f"no {many}" if level == 0 else f"{level:,} {one if level == 1 else many}"
    if path == "load.loop":
        return f"{level} loop"
    name = path.rsplit(".", 1)[-1]
    for suffix, words in _QUANTITIES.items():
        if name.endswith(suffix):
            shown = "none" if level is None else words(level)
            return f"{name.removesuffix(suffix).replace('_', ' ')} {shown}"
    return f"{name.replace('_', ' ')} {_plain(level)}"


def level_value(path: str, level: Any) -> str:
    """One level without the name of what it sets: "4 KiB", "1,000", "random read"."""
    name = path.rsplit(".", 1)[-1]
    for suffix, words in _QUANTITIES.items():
        if name.endswith(suffix):
            return "none" if level is None else words(level)
    return _plain(level)


def setting_name(path: str) -> str:
    """What a level sets, in words: "order", "block", "queue depth"."""
    name = path.rsplit(".", 1)[-1]
    for suffix in _QUANTITIES:
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _plain(level: Any) -> str:
    if isinstance(level, bool):
        return "yes" if level else "no"
    if level is None or level == "":
        return "none"
    return f"{level:,}" if isinstance(level, int) else str(level)


def _hashable(level: Any) -> Any:
    return json.dumps(level, sort_keys=True) if isinstance(level, list | dict) else level
