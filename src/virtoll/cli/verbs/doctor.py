"""`virtoll doctor`: what this machine offers, or how steady it is."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from virtoll.catalogue import refused
from virtoll.cli import common
from virtoll.errors import HostError, Problem, StudyError
from virtoll.hosts import tuning
from virtoll.hosts.local import LocalHost
from virtoll.plain import printable
from virtoll.run import doctor, machine
from virtoll.run.alone import alone


def do(arguments: argparse.Namespace) -> int:
    """Show it; 3 where nothing can be measured."""
    if arguments.host is not None:
        return _elsewhere(arguments.host, machine=arguments.machine, as_json=arguments.json)
    common.require_root()
    common.tell_refused(refused())
    with alone(LocalHost()) as removed:
        _tell(removed, as_json=arguments.json)
        if arguments.machine:
            return _machine(removed, as_json=arguments.json)
        return _show(doctor.examine(LocalHost()), removed, as_json=arguments.json)


def _elsewhere(host: str, *, machine: bool, as_json: bool) -> int:
    from virtoll.run.by_ssh import asked
    from virtoll.run.there import Examined

    if machine:
        raise StudyError([Problem("that looks at this machine alone", "--machine", "leave out it or --host")])
    found = asked(host, "doctor", Examined)
    _tell(found.removed, as_json=as_json)
    return _show(found.offer, found.removed, as_json=as_json)


def _show(offer: doctor.MachineOffer, removed: list[str], *, as_json: bool) -> int:
    if as_json:
        common.print_json({**doctor.as_json(offer), "removed": removed})
    else:
        doctor.show(offer, Console())
    return 0 if offer.is_ready else HostError.exit_code


def _tell(removed: list[str], *, as_json: bool) -> None:
    for line in [] if as_json else removed:
        print(printable(f"a killed run had left, and it was removed: {line}"))


def _machine(removed: list[str], *, as_json: bool) -> int:
    findings = machine.examine(Path("/"), machine.measure())
    tuned = tuning.in_force(tuning.directory())
    if as_json:
        common.print_json({**machine.as_json(findings, tuned), "removed": removed})
    else:
        machine.show(findings, tuned, Console())
    return 0
