"""`virtoll calibrate`: how far virtoll can be trusted on this machine."""

from __future__ import annotations

import argparse

from virtoll.cli import common
from virtoll.run.calibrating import CALIBRATION, calibrate
from virtoll.run.request import Request


def do(arguments: argparse.Namespace) -> int:
    """Run the calibration."""
    if not arguments.dry_run:
        common.require_root()
    return calibrate(
        Request(
            study=CALIBRATION,
            quick=arguments.quick,
            blocks=arguments.blocks,
            seed=arguments.seed,
            dry_run=arguments.dry_run,
            out=arguments.out,
            as_json=arguments.json,
        )
    )
