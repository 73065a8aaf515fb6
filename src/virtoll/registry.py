"""Finds the implementations of a seam: one file each, plus third parties' entry points.

A module of the seam's package (``virtoll.platforms.docker``) that defines a public subclass of the seam's base
class with a ``name`` is registered under that name. A third party registers a class under the entry point group
of the same dotted name (``virtoll.platforms``), by the class's own name.

A third party's class adds to what there is and replaces nothing; one that cannot be taken is left out, and `refused`
says which, of which distribution, and why. The rest works on.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from abc import ABC
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar

from virtoll.errors import Problem


@dataclass(frozen=True)
class NoSettings:
    """Of a part that has nothing to set."""


class Part(ABC):  # noqa: B024 - what must be defined is each seam's own
    """What users can add: a platform, network mode, service, load, probe, instrument or aggressor.

    A module defines all about one, and nothing elsewhere names it. ``Settings`` is a frozen dataclass of what a study
    file may set for it.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""  # one line for `virtoll list`: when to pick it
    Settings: ClassVar[type[Any]] = NoSettings

    def __init__(self, settings: Any = None) -> None:
        self.settings = self.Settings() if settings is None else settings


@dataclass(frozen=True)
class Registered:
    """What implements a seam, in alphabetical order."""

    classes: dict[str, type[Any]]
    origins: dict[str, str]  # of third parties' only: "virtoll-bhyve 1.2 (bhyve:Bhyve)"
    refused: tuple[Problem, ...]


def implementations(package: str, base: Any) -> dict[str, type[Any]]:
    """Map names to the classes of ``package`` derived from ``base``, in alphabetical order."""
    return dict(registered(package, base).classes)


@cache
def registered(package: str, base: type[Any]) -> Registered:
    """The classes of ``package`` derived from ``base``, where third parties' come from, and those that were refused."""
    found: dict[str, type[Any]] = {}
    for module_info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{module_info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__:
                name = getattr(value, "name", "")
                if name:
                    found[name] = value
    origins: dict[str, str] = {}
    refused: list[Problem] = []
    entries = sorted(_entry_points().select(group=package), key=_origin)
    offered = Counter(entry.name for entry in entries)
    for entry in entries:
        taken = "virtoll's own is called so" if entry.name in found and entry.name not in origins else ""
        if offered[entry.name] > 1:
            taken = taken or f"{offered[entry.name]} plugins offer one of this name"
        cls = f"{taken}: which one is meant cannot be told" if taken else _loaded(entry, base)
        if isinstance(cls, str):
            remedy = f"mend or uninstall {_distribution(entry)}; all else works without it"
            refused.append(Problem(f"{entry.name!r} is left out: {cls}", f"{package}: {_origin(entry)}", remedy))
        else:
            found[entry.name] = cls
            origins[entry.name] = _origin(entry)
    return Registered(dict(sorted(found.items())), dict(sorted(origins.items())), tuple(refused))


@cache
def _entry_points() -> Any:  # EntryPoints, before Python 3.12 SelectableGroups
    """Of all that is installed: each seam's are of the same files."""
    return entry_points()


def forget() -> None:
    """Look anew, for tests: what is installed is looked at once in the life of a process."""
    registered.cache_clear()
    _entry_points.cache_clear()


def _loaded(entry: EntryPoint, base: type[Any]) -> type[Any] | str:
    """The class, or why it is none that can be used. Whatever a plugin raises when it is imported is its own."""
    try:
        cls = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"it cannot be imported: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return _flaw(cls, entry, base) or cls


def _flaw(cls: Any, entry: EntryPoint, base: type[Any]) -> str:
    """Why a class cannot be used, "" where it can."""
    if not (isinstance(cls, type) and issubclass(cls, base)):
        return f"{entry.value} is no {base.__name__} of virtoll's"
    lacking = [*getattr(cls, "__abstractmethods__", ()), *(n for n in _told_of_a_class(base) if not hasattr(cls, n))]
    if lacking:
        return f"{entry.value} lacks {', '.join(sorted(lacking))}"
    name, summary = getattr(cls, "name", None), getattr(cls, "summary", None)
    if name != entry.name:
        return f"{entry.value} calls itself {name!r}"
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,59}", entry.name):
        return "a name has lower-case letters, digits and hyphens"
    if not (isinstance(summary, str) and dataclasses.is_dataclass(getattr(cls, "Settings", Registered))):
        return f"the summary of {entry.value} is a line of text, and its Settings are a dataclass"
    return ""


def _told_of_a_class(base: type[Any]) -> list[str]:
    """What a seam declares that its classes say of themselves."""
    annotations = {name: hint for cls in base.__mro__ for name, hint in vars(cls).get("__annotations__", {}).items()}
    return [name for name, hint in annotations.items() if str(hint).startswith("ClassVar")]


def _distribution(entry: EntryPoint) -> str:
    return "the plugin" if entry.dist is None else entry.dist.name


def _origin(entry: EntryPoint) -> str:
    return f"{_distribution(entry)}{'' if entry.dist is None else f' {entry.dist.version}'} ({entry.value})"
