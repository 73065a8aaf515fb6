"""What the verbs share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from virtoll.errors import HostError, Problem
from virtoll.hosts.local import LocalHost
from virtoll.plain import printable

if TYPE_CHECKING:
    from rich.console import Console


def require_root() -> None:
    """HostError for anybody else."""
    if os.geteuid() != 0:
        raise HostError(
            "virtoll makes namespaces, cgroups and instances, and only root may",
            where=LocalHost.where,
            remedy="run it with sudo",
        )


def tell_refused(problems: Iterable[Problem]) -> None:
    """Plugins that are left out; whoever names one in a study is told that there is none of that name."""
    for problem in problems:
        print(printable(f"virtoll: {problem}"), file=sys.stderr)


def print_json(document: object) -> None:
    """For programs."""
    print(json.dumps(document, indent=2))


def print_shown(show: Callable[[Console], None]) -> None:
    """Print what ``show`` puts on a console. BrokenPipeError where nobody reads it; rich by itself exits with 1."""
    from rich.console import Console  # not every verb lays anything out

    console = Console()
    with console.capture() as shown:
        show(console)
    print(shown.get(), end="")


def print_columns(found: Mapping[str, str]) -> None:
    """Words, and what each is."""
    width = max(map(len, found))
    for name, summary in found.items():
        print(printable(f"{name:<{width}}  {summary}"))
