"""`virtoll scheduler`: where the hosts of a fleet wait for studies."""

from __future__ import annotations

import argparse

from virtoll.run.fleet import needs_dask


def do(arguments: argparse.Namespace) -> int:
    """Until Ctrl-C."""
    try:
        from virtoll.run.worker import serve_scheduler
    except ImportError as error:
        raise needs_dask(error) from None
    return serve_scheduler(arguments.address, arguments.tls)
