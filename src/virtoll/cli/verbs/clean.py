"""`virtoll clean`: what a killed virtoll left, removed."""

from __future__ import annotations

import argparse

from virtoll.cli import common
from virtoll.hosts import tuning
from virtoll.hosts.ledger import LEFT, clean
from virtoll.hosts.local import LocalHost
from virtoll.images.rootfs import remove_unfinished
from virtoll.plain import printable
from virtoll.run.alone import alone


def do(arguments: argparse.Namespace) -> int:
    """Remove it, and say what."""
    if arguments.host is not None:
        from virtoll.run.by_ssh import asked
        from virtoll.run.there import Cleaned

        removed = asked(arguments.host, "clean", Cleaned).removed
        _tell(removed)
    else:
        common.require_root()
        with alone(LocalHost(), everywhere=True) as removed:  # a run that begins meanwhile is told who is at work
            try:
                removed.extend(clean(LocalHost(), tuning.directory()))
                removed.extend(remove_unfinished(LocalHost()))
            finally:
                _tell(removed)
    count = sum(not line.startswith(LEFT) for line in removed)
    print("nothing was left" if not removed else f"{count} removed")
    return 0


def _tell(removed: list[str]) -> None:
    for line in removed:
        print(printable(line if line.startswith(LEFT) else f"removed {line}"))
