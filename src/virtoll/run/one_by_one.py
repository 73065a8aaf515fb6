"""Work that comes from threads, carried out in the main one, which can be interrupted."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from virtoll.hosts import interrupts

_P = ParamSpec("_P")
_T = TypeVar("_T")
_ARRIVES_S = 1.0  # an interrupt that was sent to this process
_AGAIN_S = 1.0  # where it was not noticed


class OneByOne(Executor):
    """Carries out what a worker is given in the thread that calls `run`: a command's main thread, as in a local run,
    for only that one is interrupted, and children die with the thread that started them.

    ``interrupt`` makes a KeyboardInterrupt in that thread.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_busy = self._is_cut_short = self._is_over = False
        self._heard_before = 0

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Behind what was submitted before."""
        future: Future[_T] = Future()

        def carry_out() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except KeyboardInterrupt:
                if not future.done():  # between its result and this line
                    future.set_exception(RuntimeError("interrupted"))
                raise
            except BaseException as error:
                future.set_exception(error)

        self._queue.put(carry_out)
        return future

    def cut_short(self) -> None:
        """Interrupt what is being carried out, if anything is."""
        with self._lock:
            if not self._is_busy or self._is_cut_short:
                return
            self._is_cut_short, self._heard_before = True, interrupts.heard()
            self._interrupt()
        threading.Thread(target=self._until_heard, name="interrupt", daemon=True).start()

    def _until_heard(self) -> None:
        """Interrupt again: a thread that was just beginning to wait for something notices the first when that ends."""
        while True:
            time.sleep(_AGAIN_S)
            with self._lock:
                if not self._is_cut_short or interrupts.heard() > self._heard_before:
                    return
                self._interrupt()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """End `run`, once what is being carried out has been undone; that is not waited for here. What was submitted
        and is not begun yet never is: nobody waits for it any more.
        """
        with self._lock:
            self._is_over = True
        self._queue.put(None)
        self.cut_short()

    def run(self) -> None:
        """Until it is shut down. KeyboardInterrupt where somebody else than `cut_short` interrupts."""
        while True:
            try:
                if not self._carried_out():
                    return
            except KeyboardInterrupt:
                with self._lock:
                    is_ours, self._is_cut_short, self._is_busy = self._is_cut_short, False, False
                    others = interrupts.heard() - self._heard_before - 1  # while ours was tidied up after
                if not is_ours or others > 0:
                    raise

    def _carried_out(self) -> bool:
        """Wait for what is next; false where nothing is to come any more."""
        work = self._queue.get()
        if work is None:
            return False
        with self._lock:
            if self._is_over:
                return False
            self._is_busy = True
        work()
        with self._lock:
            self._is_busy, is_to_come = False, self._is_cut_short
        if is_to_come:
            time.sleep(_ARRIVES_S)  # it ends this, unless something in there has swallowed it
            with self._lock:
                self._is_cut_short = False
        return True
