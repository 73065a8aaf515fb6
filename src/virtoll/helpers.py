"""Other processes for what keeps the interpreter busy: threads take turns at its lock."""

from __future__ import annotations

import atexit
import gc
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Thread
from typing import TypeVar

from virtoll.errors import HostError

_Share = TypeVar("_Share")
_Answer = TypeVar("_Answer")
_Found = TypeVar("_Found")

_AHEAD = 2  # shares that a helper has: one that it works at, and the next

_here: ContextVar[ProcessPoolExecutor | None] = ContextVar("helpers", default=None)


@contextmanager
def helpers(most: int) -> Iterator[ProcessPoolExecutor]:
    """As many processes as there are CPUs beside this one's, at most ``most`` and at least one, until the block is
    left; what has not begun by then never does. HostError where one of them dies. Within another such block they are
    that one's: to begin one takes as long as much of what it helps with.

    Each begins as an empty Python: nothing of this one (threads, open files) is in it, as would be with a fork. What
    they are asked is a function of a module; what it takes and gives can be pickled.
    """
    here = _here.get()
    with nullcontext(here) if here is not None else _begun(most) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise HostError(
                "a process that was to help ended before its time",
                remedy="was it killed, for want of memory? what was measured is safe: `virtoll report RUNDIR` tells "
                "of it, and `virtoll run RUNDIR` goes on",
            ) from error


@contextmanager
def _begun(most: int) -> Iterator[ProcessPoolExecutor]:
    count = max(1, min(most, len(os.sched_getaffinity(0)) - 1))
    with ProcessPoolExecutor(count, _Context(), initializer=_begin) as pool:
        outside = _here.set(pool)
        try:
            yield pool
        finally:
            _here.reset(outside)
            # Waited for here: at Python's end the pool's pipe may be closed before its own last word.
            pool.shutdown(wait=True, cancel_futures=True)


class _Helper(SpawnProcess):
    """Born with Ctrl-C held off, which is left to the process that it helps: while it is still loading Python, it would
    tell of it by a traceback.
    """

    def start(self) -> None:
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)


class _Context(SpawnContext):
    Process = _Helper


def met_halfway(
    shares: Sequence[_Share],
    here: Callable[[_Share], _Found],
    ask: Callable[[_Share], Future[_Answer]],
    told: Callable[[_Share, _Answer], _Found],
) -> list[_Found]:
    """What each share gives, in their order: here from the first on, and, by `ask` in a helper, from the last on.

    ``told``: what a helper's answer to a share says. It is asked for no more than it can begin soon: of a pool in which
    a future was cancelled Python (3.11) stands still when its process is killed.
    """
    found: dict[int, _Found] = {}
    answers: dict[int, Future[_Answer]] = {}
    first, last = 0, len(shares)
    while first < last:
        while first < last and sum(not answer.done() for answer in answers.values()) < _AHEAD:
            last -= 1
            answers[last] = ask(shares[last])
        if first < last:
            found[first] = here(shares[first])
            first += 1
    found.update((at, told(shares[at], answer.result())) for at, answer in answers.items())
    return [found[at] for at in range(len(shares))]


def load(module: str) -> None:
    """Import what such a process will be asked for, before it is."""
    import_module(module)


def _begin() -> None:
    """What such a process does first. Its pool's pipe does not tell it that the process that it helps was killed: it
    holds both ends.
    """
    gc.disable()  # it ends with the block, and keeps little
    atexit.register(gc.freeze)  # nor is all that it has loaded looked through when it ends
    Thread(target=_end_with_the_other, daemon=True).start()


def _end_with_the_other() -> None:
    helped = parent_process()
    assert helped is not None
    helped.join()
    os._exit(1)
