"""Forked children of a warmed-up parent: a process of virtoll's costs milliseconds, not a second of imports."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HANG_S = 600.0  # nothing that is asked of a process here takes as long, however busy the machine is
CRASHED = 70  # a child's exit code after an exception that nobody expected (sysexits.h: EX_SOFTWARE)


def forked(work: Callable[[], int], log: Path) -> int:
    """The pid of a child in a session of its own that does ``work`` and exits with its answer.

    stdout goes to ``log``, stderr to ``log`` with the suffix ``.err``; SIGUSR2 adds where its threads are.
    """
    pid = os.fork()
    if pid == 0:
        _live(work, log)
    return pid


def _live(work: Callable[[], int], log: Path) -> NoReturn:
    code = CRASHED
    try:
        os.setsid()
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for descriptor, path in ((1, log), (2, log.with_suffix(".err"))):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, descriptor)
            os.close(file)
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
        code = work()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    except KeyboardInterrupt:  # as Python itself ends then
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> int | None:
    """How a child ended (negative: the signal that killed it), or None while it lives. Ask once after the end."""
    _bury_orphans(pid)
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _bury_orphans(but: int) -> None:
    """As the first process of this place it inherits whoever has lost its parent, and has to do as init does."""
    while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid != but:
        os.waitpid(dead.si_pid, 0)


def await_end(pid: int, within_s: float) -> int | None:
    """`ended`, within a time that only a hang exceeds: then None, after its threads were asked where they are."""
    deadline = time.monotonic() + within_s
    while (code := ended(pid)) is None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGUSR2)
            time.sleep(1)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.005)
    return code


def asked(question: Callable[[], Any], within_s: float = HANG_S) -> Any:
    """What a forked child answers (as JSON): the parent stays without the threads that libraries start."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = CRASHED
        try:
            os.close(read)
            with os.fdopen(write, "w") as pipe:
                json.dump(question(), pipe)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    code_of = await_end(pid, within_s)
    if code_of != 0:
        raise RuntimeError(f"the harness's own question failed ({code_of})")
    return json.loads(text)
