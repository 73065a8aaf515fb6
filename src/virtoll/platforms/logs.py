"""Logs that somebody else fills: a guest prints what it likes and as long as it likes, on a disk of the host's."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

HEAD_BYTES = 256 * 1024  # of what is printed first, in which a boot fits
TAIL_BYTES = 64 * 1024  # and of what is printed last
_CHUNK_BYTES = 64 * 1024  # what a pipe holds
_PAUSE_S = 0.01  # after a chunk beyond the head: who floods his log waits for us, and we do little for him


@contextmanager
def bounded(path: Path) -> Iterator[int]:
    """The end of a pipe whose other end is written to ``path``: the first 256 KiB, and of what follows the last 64.

    Everything that was printed by the end of the block is in the file when the block has ended; what is printed later
    by whoever still lives finds the pipe broken.
    """
    path.touch()
    # Opened here: where that fails, nobody would read the pipe, and who prints would stand still at 64 KiB.
    with path.open("r+b", buffering=0) as log:
        source, sink = os.pipe()
        stop, stopped = os.pipe()
        copier = threading.Thread(target=_copy, args=(source, stop, log), name=f"log {path}", daemon=True)
        try:
            copier.start()
            yield sink
        finally:
            os.close(sink)
            os.close(stopped)
            if copier.is_alive():
                copier.join()
            for end in (source, stop):
                os.close(end)


def _copy(source: int, stop: int, log: FileIO) -> None:
    """Copy until the other end of ``stop`` is closed, and then what the pipe still holds."""
    os.set_blocking(source, False)
    ready = select.poll()
    for descriptor in (source, stop):
        ready.register(descriptor, select.POLLIN)
    last = bytearray()
    room = HEAD_BYTES
    while True:
        events = dict(ready.poll())
        if chunk := _read(source):
            kept = chunk[room:]
            last += kept
            del last[:-TAIL_BYTES]
            # On a full disk the log lacks words; whoever prints must not stand still for it, least of all measured.
            with suppress(OSError):
                log.write(chunk[:room])
                os.pwrite(log.fileno(), last, HEAD_BYTES)  # anew each time: the file is true at any moment
            room = max(0, room - len(chunk))
            if kept:
                time.sleep(_PAUSE_S)
        if stop in events:
            return


def _read(source: int) -> bytes:
    """What a pipe holds now; b"" for nothing."""
    try:
        return os.read(source, _CHUNK_BYTES)
    except BlockingIOError:
        return b""


def ending(path: Path) -> str:
    """The last 64 KiB of a log as text; "" where there is no such file."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read(TAIL_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
