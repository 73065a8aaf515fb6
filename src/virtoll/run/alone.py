"""A machine to ourselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import exclusive


@contextmanager
def alone(host: LocalHost) -> Iterator[list[str]]:
    """This machine to ourselves, without what killed runs left working on it: nothing is measured beside those.

    Yields what was removed, one line for each thing. HostError when another virtoll has the machine, or when
    something could not be removed.
    """
    with exclusive(ledgers.state_directory()):
        yield ledgers.clean(host, ledgers.state_directory() / "ledger")
