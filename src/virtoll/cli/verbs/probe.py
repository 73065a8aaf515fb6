"""`virtoll probe`: one micro benchmark, here and now."""

from __future__ import annotations

import argparse

from virtoll.catalogue import refused
from virtoll.cli import common
from virtoll.run.single import ProbeRequest, run_probe


def do(arguments: argparse.Namespace) -> int:
    """Run it in one instance."""
    common.require_root()
    common.tell_refused(refused())
    return run_probe(
        ProbeRequest(
            probe=arguments.name,
            settings=arguments.settings,
            platform=arguments.platform,
            network=arguments.network or "",
            memory=arguments.memory or "",
            vcpus=arguments.vcpus,
            as_json=arguments.json,
        )
    )
