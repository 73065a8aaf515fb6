"""`virtoll untune`: what `virtoll tune` has done, undone."""

from __future__ import annotations

import argparse

from virtoll.cli.verbs.tune import tuned
from virtoll.hosts.local import LocalHost
from virtoll.run import tune


def do(arguments: argparse.Namespace) -> int:
    """Undo it."""
    return tuned(arguments, lambda knobs, where: tune.untune(knobs, LocalHost(), where))
