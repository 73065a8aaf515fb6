"""Ctrl-C at any moment, except in the middle of tidying up. SIGTERM and SIGHUP (a closed terminal) mean the same.

One interrupt is one KeyboardInterrupt: whoever presses again while the first one is being tidied up after is not
heard, for a second exception would cut the tidying short.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S = 0.001  # until an interrupt that was lost is tried again
_holding: list[object] = []  # one mark for each block of the main thread that must not be interrupted
_came: list[int] = []  # what came meanwhile
_heard: list[int] = []  # all that ever came


def install() -> None:
    """Handle the three signals from now on, for the life of the process. What is ignored (nohup) stays so."""
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _handle)
        signal.signal(signal.SIGALRM, _take_effect)
        sys.unraisablehook = _or_again


def heard() -> int:
    """How many interrupts have come so far, whether they took effect or not."""
    return len(_heard)


def _handle(number: int, frame: FrameType | None) -> None:
    _heard.append(number)
    _take_effect(number, frame)


def _take_effect(number: int, _frame: FrameType | None) -> None:
    if _holding:
        _came.append(number)
    elif not is_being_tidied_up_after():
        _came.clear()
        raise KeyboardInterrupt


def _or_again(what: sys.UnraisableHookArgs) -> None:
    """Python drops what a `__del__` or a weak reference's callback raises (each import has one), an interrupt too.

    It comes again a moment later, when that code has most likely returned; and again, where it has not.
    """
    if issubclass(what.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        sys.__unraisablehook__(what)


def is_being_tidied_up_after() -> bool:
    """Whether the code that runs now is in a `finally`, `except` or `__exit__` that an interrupt has led to."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


@contextmanager
def held_off() -> Iterator[None]:
    """Let an interrupt that comes during the block take effect right after it, in a process that has called `install`.

    The block must be bounded in time. Only the main thread receives signals; in others nothing needs holding off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mark = object()
    try:
        _holding.append(mark)
        yield
    finally:
        if mark in _holding:
            _holding.remove(mark)
        if _came and not _holding:
            _came.clear()
            if not is_being_tidied_up_after():
                raise KeyboardInterrupt
