"""What the verbs share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping

from virtoll.errors import HostError, Problem
from virtoll.hosts.local import LocalHost
from virtoll.plain import printable


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


def print_columns(found: Mapping[str, str]) -> None:
    """Words, and what each is."""
    width = max(map(len, found))
    for name, summary in found.items():
        print(printable(f"{name:<{width}}  {summary}"))
