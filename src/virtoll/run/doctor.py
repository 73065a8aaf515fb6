"""What this machine can offer: each platform in each network mode, and what mends what is missing."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.networks.base import common_kind, network_modes
from virtoll.plain import plain
from virtoll.platforms.base import platforms
from virtoll.run.environment import warnings
from virtoll.run.readiness import Readiness


def show(host: Host, console: Console) -> bool:
    """Print the matrix and the remedies; true when some platform beside native is ready in some mode.

    Some answers need a guest to be booted: the machine must be the caller's alone (`virtoll.run.stage.alone`).
    """
    readiness = Readiness(host)
    modes = network_modes()
    table = Table(title="platform x network mode", title_justify="left", box=None, header_style="bold")
    table.add_column("platform")
    for heading in modes:
        table.add_column(plain(heading), justify="center")
    missing: dict[str, dict[Problem, None]] = {}
    any_ready = False
    for name, cls in platforms().items():
        cells = []
        for mode_name, mode in modes.items():
            if isinstance(common_kind(name, cls.kinds, mode), Problem):
                cells.append("[dim]-[/]")
                continue
            problems = readiness.problems(cls(), mode_name)
            missing.setdefault(name, {}).update(dict.fromkeys(problems))
            any_ready = any_ready or (not problems and name != "native")
            cells.append("[yellow]missing[/]" if problems else "[green]ready[/]")
        table.add_row(plain(name), *cells)
    console.print(table)
    console.print("[dim]-: the platform cannot be attached in this way[/]")
    console.print("[dim]native: root inside is root of the host, whom nothing keeps from it[/]")
    for name, problems_of in missing.items():
        for problem in problems_of:
            console.print()
            console.print(plain(name, "bold"), end=": ")
            console.print(plain(str(problem)))
    for warning in warnings():
        console.print("\n[yellow]note[/]", end=": ")
        console.print(plain(warning))
    return any_ready
