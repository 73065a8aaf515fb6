"""`virtoll keep`: a run, small enough for a repository."""

from __future__ import annotations

import argparse

from virtoll.analysis.keeping import keep
from virtoll.plain import printable
from virtoll.report.findings import told_as_damage


def do(arguments: argparse.Namespace) -> int:
    """Copy it, and say what is not in the copy."""
    with told_as_damage(arguments.run):
        kept = keep(arguments.run, arguments.to)
    size_bytes = sum(path.stat().st_size for path in arguments.to.rglob("*") if path.is_file())
    print(printable(f"{arguments.to}: {size_bytes / 1e6:.2f} MB"))
    for left_out in kept.left_out:
        print(f"left out: {left_out}")
    return 0
