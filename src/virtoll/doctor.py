"""What this machine can offer: each platform in each network mode, and what mends what is missing."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from virtoll.environment import warnings
from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.networks.base import common_kind, network_modes
from virtoll.platforms.base import platforms


def readiness(host: Host, names: Iterable[str] | None = None) -> dict[str, list[Problem]]:
    """By platform, what stands in its way on this host; an empty list means ready."""
    return {name: cls().check(host) for name, cls in platforms().items() if names is None or name in names}


def show(host: Host, console: Console) -> bool:
    """Print the matrix and the remedies; true when anything but native is ready."""
    modes = network_modes()
    table = Table(title="platform x network mode", title_justify="left", box=None, header_style="bold")
    table.add_column("platform")
    for heading in modes:
        table.add_column(heading, justify="center")
    problems = readiness(host)
    for name, cls in platforms().items():
        row = []
        for mode in modes.values():
            possible = not isinstance(common_kind(name, cls.kinds, mode), Problem)
            row.append(("[green]ready[/]" if not problems[name] else "[yellow]missing[/]") if possible else "[dim]-[/]")
        table.add_row(name, *row)
    console.print(table)
    console.print("[dim]-: the platform cannot be attached in this way[/]")
    for name, found in problems.items():
        for problem in found:
            console.print(f"\n[bold]{name}[/]: ", end="")
            console.print(str(problem), markup=False, highlight=False)
    for warning in warnings():
        console.print(f"\n[yellow]note[/]: {warning}", highlight=False)
    return any(not found for name, found in problems.items() if name != "native")
