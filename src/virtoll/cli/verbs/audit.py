"""`virtoll audit`: in what the arms of a study differ from native."""

from __future__ import annotations

import argparse

from virtoll.catalogue import refused
from virtoll.cli import common
from virtoll.run.audit import audit_study
from virtoll.run.request import Request


def do(arguments: argparse.Namespace) -> int:
    """Deploy each arm once, and show it."""
    common.require_root()
    common.tell_refused(refused())
    return audit_study(
        Request(
            study=arguments.study,
            quick=arguments.quick,
            platforms=arguments.platforms,
            as_json=arguments.json,
        )
    )
