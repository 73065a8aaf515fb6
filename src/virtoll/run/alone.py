"""A machine to ourselves; and all that killed runs left there, removed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from virtoll.errors import HostError
from virtoll.files import umask
from virtoll.hosts import ledger as ledgers
from virtoll.hosts import tuning
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import exclusive
from virtoll.images.rootfs import remove_unfinished
from virtoll.plain import printable


@contextmanager
def alone(host: LocalHost) -> Iterator[list[str]]:
    """This machine to ourselves, without what killed runs left working on it: nothing is measured beside those.

    Yields what was removed, one line for each thing. HostError when another virtoll has the machine, or when something
    could not be removed. What is left on another machine that cannot be reached is told on stderr.
    """
    with exclusive(ledgers.state_directory()), umask.readable():
        try:
            removed = ledgers.clean(host, ledgers.state_directory() / "ledger")
        except ledgers.ElsewhereError as error:
            removed = []
            print(printable(str(error)), file=sys.stderr)
        yield [line for line in removed if not line.startswith(ledgers.LEFT)]


def remove_all_left(host: LocalHost) -> list[str]:
    """Remove what killed runs left, here and elsewhere, untune the machine, and remove what is unfinished in the cache;
    a line for each thing, also for what is left as it is. A run that begins meanwhile is told who is at work.

    HostError when another virtoll has the machine; and at the end, of all that could not be removed: it keeps nothing
    else from being.
    """
    removed: list[str] = []
    failures: list[HostError] = []
    state = ledgers.state_directory()
    steps: tuple[Callable[[], list[str]], ...] = (
        lambda: ledgers.clean(host, state / "ledger"),
        lambda: ledgers.clean(host, tuning.directory()),
        lambda: remove_unfinished(host),
    )
    with exclusive(state):
        for step in steps:
            try:
                removed += step()
            except HostError as error:
                failures.append(error)
            except OSError as error:
                failures.append(HostError(error.strerror or str(error), where=str(error.filename or host.where)))
    if failures:
        done = (line if line.startswith(ledgers.LEFT) else f"removed: {line}" for line in removed)
        remedies = dict.fromkeys(error.problem.remedy for error in failures if error.problem.remedy)
        raise HostError(
            "\n".join([*(error.problem.what for error in failures), *done]),
            where=", ".join(dict.fromkeys(error.problem.where for error in failures)),
            remedy="; ".join(remedies),
        )
    return removed
