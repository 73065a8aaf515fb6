"""`virtoll clean`: what a killed virtoll left, removed."""

from __future__ import annotations

import argparse

from virtoll.cli import common
from virtoll.hosts.ledger import LEFT
from virtoll.hosts.local import LocalHost
from virtoll.plain import printable
from virtoll.run.alone import remove_all_left


def do(arguments: argparse.Namespace) -> int:
    """Remove it, and say what."""
    if arguments.host is not None:
        from virtoll.run.by_ssh import asked
        from virtoll.run.there import Cleaned

        removed = asked(arguments.host, "clean", Cleaned).removed
    else:
        common.require_root()
        removed = remove_all_left(LocalHost())
    tell(removed)
    count = sum(not line.startswith(LEFT) for line in removed)
    print("nothing was left" if not removed else f"{count} removed")
    return 0


def tell(removed: list[str]) -> None:
    """Print what was removed, and what was left as it is."""
    for line in removed:
        print(printable(line if line.startswith(LEFT) else f"removed {line}"))
