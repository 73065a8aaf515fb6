"""What this machine can offer: each platform in each network mode, and what mends what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.networks.base import common_kind, network_modes
from virtoll.platforms.base import platforms
from virtoll.run.environment import warnings
from virtoll.run.readiness import Readiness
from virtoll.run.unstyled import plain

State = Literal["ready", "missing", "impossible"]


@dataclass(frozen=True)
class PlatformOffer:
    """One platform here: its state in each network mode, and what it lacks."""

    modes: Mapping[str, State]
    problems: tuple[Problem, ...] = ()
    caveat: str = ""


@dataclass(frozen=True)
class MachineOffer:
    """What this machine offers. ``warnings``: what will make its figures noisy, each with its remedy."""

    platforms: Mapping[str, PlatformOffer]
    warnings: list[str] = field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        """Whether some platform beside native is ready in some mode: else there is nothing to compare."""
        return any("ready" in offer.modes.values() for name, offer in self.platforms.items() if name != "native")


def examine(host: Host) -> MachineOffer:
    """Ask every platform in every mode.

    Some answers need a guest to be booted: the machine must be the caller's alone (`virtoll.run.alone.alone`).
    """
    readiness = Readiness(host)
    offers = {}
    for name, cls in platforms().items():
        modes: dict[str, State] = {}
        missing: dict[Problem, None] = {}
        for mode_name, mode in network_modes().items():
            if isinstance(common_kind(name, cls.kinds, mode), Problem):
                modes[mode_name] = "impossible"
                continue
            problems = readiness.problems(cls(), mode_name)
            missing.update(dict.fromkeys(problems))
            modes[mode_name] = "missing" if problems else "ready"
        offers[name] = PlatformOffer(modes, tuple(missing), cls.caveat)
    return MachineOffer(offers, warnings())


def show(offer: MachineOffer, console: Console) -> None:
    """Print the matrix, the remedies and the warnings."""
    table = Table(title="platform x network mode", title_justify="left", box=None, header_style="bold")
    for heading, style in (("platform", ""), ("ready in", "green"), ("missing in", "yellow")):
        table.add_column(heading, style=style)
    for name, one in offer.platforms.items():
        table.add_row(plain(name), *(_modes(one, state) for state in ("ready", "missing")))
    console.print(table)
    console.print("[dim]in no other mode can the platform be attached[/]")
    for caveat, names in _caveats(offer).items():
        console.print(plain(f"{', '.join(names)}: {caveat}", "dim"))
    for name, one in offer.platforms.items():
        for problem in one.problems:
            console.print()
            console.print(plain(name, "bold"), end=": ")
            console.print(plain(str(problem)))
    for warning in offer.warnings:
        console.print("\n[yellow]note[/]", end=": ")
        console.print(plain(warning))


def _modes(one: PlatformOffer, state: State) -> Text:
    return plain(", ".join(mode for mode, its in one.modes.items() if its == state))


def _caveats(offer: MachineOffer) -> dict[str, list[str]]:
    """The platforms of whose driver something must be known, by what."""
    told: dict[str, list[str]] = {}
    for name, one in offer.platforms.items():
        if one.caveat:
            told.setdefault(one.caveat, []).append(name)
    return told


def as_json(offer: MachineOffer) -> dict[str, Any]:
    """The same for programs; docs/JSON.md has the keys."""
    return {
        "ready": offer.is_ready,
        "platforms": [
            {
                "name": name,
                "networks": dict(one.modes),
                "caveat": one.caveat,
                "problems": [asdict(problem) for problem in one.problems],
            }
            for name, one in offer.platforms.items()
        ],
        "warnings": offer.warnings,
    }
