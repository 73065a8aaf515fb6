"""`virtoll doctor`: what this machine offers, or how steady it is."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from virtoll.catalogue import refused
from virtoll.cli import common
from virtoll.errors import HostError
from virtoll.hosts import tuning
from virtoll.hosts.local import LocalHost
from virtoll.plain import printable
from virtoll.run import doctor, machine
from virtoll.run.alone import alone


def do(arguments: argparse.Namespace) -> int:
    """Show it; 3 where nothing can be measured."""
    common.require_root()
    common.tell_refused(refused())
    with alone(LocalHost()) as removed:
        if not arguments.json:
            for line in removed:
                print(printable(f"a killed run had left, and it was removed: {line}"))
        if arguments.machine:
            return _machine(removed, as_json=arguments.json)
        offer = doctor.examine(LocalHost())
        if arguments.json:
            common.print_json({**doctor.as_json(offer), "removed": removed})
        else:
            doctor.show(offer, Console())
        return 0 if offer.is_ready else HostError.exit_code


def _machine(removed: list[str], *, as_json: bool) -> int:
    findings = machine.examine(Path("/"), machine.measure())
    tuned = tuning.in_force(tuning.directory())
    if as_json:
        common.print_json({**machine.as_json(findings, tuned), "removed": removed})
    else:
        machine.show(findings, tuned, Console())
    return 0
