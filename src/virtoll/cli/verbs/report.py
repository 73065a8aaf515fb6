"""`virtoll report`: a run's report, built again."""

from __future__ import annotations

import argparse

from virtoll.cli import common
from virtoll.hosts.ledger import state_directory
from virtoll.hosts.lock import beside_nobody
from virtoll.report.begin import helped


def do(arguments: argparse.Namespace) -> int:
    """Build it, and say where it is."""
    with beside_nobody(state_directory()), helped():
        from virtoll.report.build import as_json, report_of

        findings, page = report_of(arguments.run)
        if arguments.json:
            common.print_json(as_json(findings, page))
        else:
            print(page)
    return 0
