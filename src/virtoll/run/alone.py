"""A machine to ourselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import exclusive
from virtoll.plain import printable


@contextmanager
def alone(host: LocalHost, *, everywhere: bool = False) -> Iterator[list[str]]:
    """This machine to ourselves, without what killed runs left working on it: nothing is measured beside those.

    Yields what was removed, one line for each thing (with ``everywhere`` also what is left as it is). HostError when
    another virtoll has the machine, or when something could not be removed. What is left on another machine that cannot
    be reached is told on stderr, and is an error with ``everywhere``.
    """
    with exclusive(ledgers.state_directory()):
        try:
            removed = ledgers.clean(host, ledgers.state_directory() / "ledger")
        except ledgers.ElsewhereError as error:
            if everywhere:
                raise
            removed = []
            print(printable(str(error)), file=sys.stderr)
        yield removed if everywhere else [line for line in removed if not line.startswith(ledgers.LEFT)]
