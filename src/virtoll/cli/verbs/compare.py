"""`virtoll compare`: what changed from one run to another."""

from __future__ import annotations

import argparse

from virtoll.report.begin import helped_to_measure


def do(arguments: argparse.Namespace) -> int:
    """Compare two runs; 5 or 6 where a threshold was given and B is worse, or none can tell."""
    with helped_to_measure(arguments.before, arguments.after):
        from virtoll.cli.compared import tell

        return tell(arguments)
