"""The command line: verbs and their errors. What a verb does, the module of its name in `virtoll.cli.verbs` begins: it
is imported when that verb is asked for, for all of them together take longer to import than most take.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from virtoll.cli.parser import make_parser, settings_of
from virtoll.errors import INTERRUPTED, VirtollError
from virtoll.hosts import interrupts
from virtoll.plain import printable

_PRINTS_ONLY = (
    "list",
    "check",
    "history",
    "export",
    "advise",
    "plan",
    "help",
    "completion",
    "man",
)  # a reader that goes away has seen enough
# All of what they read is kept until they end, and there is too much of it to look through for garbage even once.
_READS_RUNS = ("advise", "compare", "history", "report")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point; exits with the code that errors.py gives each outcome."""
    _make_writable()
    parser = make_parser()
    arguments, rest = parser.parse_known_args(argv)
    if arguments.verb == "probe":
        arguments.settings = settings_of(parser, rest)
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    interrupts.install()
    try:
        verb = import_module(f"virtoll.cli.verbs.{arguments.verb}")
        if arguments.verb not in _READS_RUNS:
            gc.enable()  # see `virtoll.__main__`
            _leave_keys()
        code: int = verb.do(arguments)
        sys.stdout.flush()  # here, where a reader that has gone is noticed
        sys.exit(code)
    except VirtollError as error:
        _end(error.exit_code, f"virtoll: {error}")
    except KeyboardInterrupt:
        _end(INTERRUPTED, "\nvirtoll: interrupted; everything it made is undone")
    except BrokenPipeError:
        if arguments.verb in _PRINTS_ONLY or getattr(arguments, "dry_run", False):  # `virtoll list ... | head`
            _end(0)
        undone = "what it wrote stands" if arguments.verb in _WRITES_FILES else "everything it made is undone"
        _end(INTERRUPTED, f"virtoll: nobody reads its output any more; {undone}")
    except OSError as error:
        if error.errno not in _EXIT_CODES:
            raise
        where = f"\n  in {error.filename}" if error.filename else ""
        _end(_EXIT_CODES[error.errno], f"virtoll: {error.strerror}{where}")


# Of what a system refuses whatever is asked of it: a word too long for a path; a disk that is full, broken, not to be
# written to, or without locks.
_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOLCK)
_EXIT_CODES = {errno.ENAMETOOLONG: 2, **dict.fromkeys(_DISKS, 4)}
_WRITES_FILES = ("keep", "report")  # and make nothing else


def _make_writable() -> None:
    """What is printed is printed, whoever began virtoll: without any output, or with one that knows few characters; and
    its paths are found.
    """
    nowhere = Path(os.devnull)
    sys.stdout = sys.stdout or nowhere.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nowhere.open("w", encoding="utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        Path.cwd()
    except FileNotFoundError:
        _end(2, "virtoll: the directory in which it was begun is gone\n  -> cd to another")


def _leave_keys() -> None:
    from virtoll.hosts import keyring  # who only reads runs starts nobody, and is done in the time that this takes

    keyring.leave()


def _end(code: int, told: str = "") -> NoReturn:
    """Exit with ``code``, also where nobody reads any more what is still to be written."""
    with suppress(OSError):
        print(printable(told), end="\n" if told else "", file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python flushes at its end, and complains
    sys.exit(code)
