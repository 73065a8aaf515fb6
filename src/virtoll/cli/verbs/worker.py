"""`virtoll worker`: this host measures what others ask for."""

from __future__ import annotations

import argparse
import socket

from virtoll.catalogue import refused
from virtoll.cli import common
from virtoll.run.fleet import needs_dask


def do(arguments: argparse.Namespace) -> int:
    """Until Ctrl-C, or the scheduler's end."""
    common.require_root()
    common.tell_refused(refused())
    try:
        from virtoll.run.worker import serve_worker
    except ImportError as error:
        raise needs_dask(error) from None
    return serve_worker(arguments.address, arguments.name or socket.gethostname(), arguments.tls)
