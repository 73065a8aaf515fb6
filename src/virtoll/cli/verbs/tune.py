"""`virtoll tune`: a steadier machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from virtoll.cli import common
from virtoll.errors import HostError
from virtoll.hosts import tuning
from virtoll.hosts.ledger import state_directory
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import exclusive
from virtoll.hosts.tuning import KNOBS, Knob
from virtoll.plain import printable
from virtoll.run import tune


def do(arguments: argparse.Namespace) -> int:
    """Tune it."""
    return tuned(arguments, lambda knobs, where: tune.tune(knobs, LocalHost(), where, dry_run=arguments.dry_run))


def tuned(arguments: argparse.Namespace, do: Callable[[list[Knob], Path], list[tune.Outcome]]) -> int:
    """Turn the knobs that are named, or all; 3 where one failed, or was asked for by name and cannot be turned here."""
    common.require_root()
    knobs = [knob() for knob in KNOBS if not arguments.what or knob.name in arguments.what]
    with exclusive(state_directory()):  # not in the middle of somebody's measurement
        outcomes = do(knobs, tuning.directory())
    if arguments.json:
        common.print_json(tune.as_json(outcomes))
    else:
        for outcome in outcomes:
            print(printable(str(outcome)))
    bad = ("failed", "cannot") if arguments.what else ("failed",)
    return HostError.exit_code if any(one.became in bad for one in outcomes) else 0
