"""A function at work in other processes while this one goes on: threads take turns at the interpreter's lock.

Such a process begins as an empty Python, which loads the function's module and no more: nothing of this one (threads,
open files, its main module) is in it, as would be with a fork. It ends when this one does.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar, cast

from virtoll.errors import HostError

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Helpers(Generic[_P, _R]):
    """Processes that each answer one call after another."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], pool: ThreadPoolExecutor) -> None:
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._pool = pool
        for process in processes:
            self._idle.put(process)

    def submit(self, *arguments: _P.args, **named: _P.kwargs) -> Future[_R]:
        """Call the function in whichever process is idle first; HostError where that process dies."""
        return self._pool.submit(self._call, arguments, named)

    def _call(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> _R:
        process = self._idle.get()
        try:
            raised, answer = _asked(process, (arguments, named))
        finally:
            self._idle.put(process)
        if raised:
            raise answer
        return cast(_R, answer)


@contextmanager
def helpers(function: Callable[_P, _R], most: int) -> Iterator[Helpers[_P, _R]]:
    """As many processes as there are CPUs for, at most ``most``, until the block is left; what was not answered by then
    never will be. ``function`` is one of a module; what it takes and gives can be pickled."""
    module, name = function.__module__, function.__qualname__
    code = f"from virtoll.helpers import serve; from {module} import {name}; serve({name})"
    argv = (sys.executable, "-P", "-c", code)  # -P: no module is looked for in the working directory
    count = min(most, len(os.sched_getaffinity(0)))
    with ExitStack() as stack:
        processes = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
        for process in processes:
            stack.callback(process.communicate)
        pool = stack.enter_context(ThreadPoolExecutor(count))
        for process in processes:
            stack.callback(process.kill)
        yield Helpers(processes, pool)


def _asked(process: subprocess.Popen[bytes], question: object) -> tuple[bool, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(question, process.stdin, pickle.HIGHEST_PROTOCOL)
        process.stdin.flush()
        return cast(tuple[bool, Any], pickle.load(process.stdout))
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise HostError(
            f"a process that was to help ended before its time (exit status {process.wait()})",
            remedy="was it killed, for want of memory? do the same again: nothing was changed",
        ) from error


def serve(function: Callable[..., object]) -> None:
    """What such a process does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the one that started it tells the user
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else may be printed is no answer
    while True:
        try:
            arguments, named = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (False, function(*arguments, **named))
        except Exception as error:
            answer = (True, error)
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()
