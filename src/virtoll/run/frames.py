"""Messages over a pipe: the length of each (8 bytes, big endian), then its bytes."""

from __future__ import annotations

import os
import select

from virtoll.agent.streams import is_ready
from virtoll.run.handed import MOST_BYTES

LENGTH = 8
_PIECE = 1024**2


class FramesError(Exception):
    """No message comes any more, and why."""


def write(descriptor: int, *pieces: bytes) -> None:
    """All of it, however long nobody reads. OSError where nobody reads any more."""
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(descriptor, rest[:_PIECE]) :]


def write_patiently(descriptor: int, piece: bytes, silence_s: float) -> None:
    """All of it. FramesError where nobody reads for so long; OSError where nobody reads any more."""
    rest = memoryview(piece)
    while rest:
        if not is_ready(descriptor, select.POLLOUT, silence_s):
            raise FramesError(f"nothing was taken for {silence_s:g} s")
        rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]  # so much a pipe takes at once that takes any


def write_message(descriptor: int, body: bytes) -> None:
    """One message."""
    write(descriptor, len(body).to_bytes(LENGTH, "big"), body)


def read_message(descriptor: int, most_bytes: int = MOST_BYTES, silence_s: float | None = None) -> bytes:
    """The next message. FramesError where it is too long, or none is to come.

    ``silence_s``: how long to wait for any byte; None: for ever.
    """
    size = int.from_bytes(_exactly(descriptor, LENGTH, silence_s), "big")
    if size > most_bytes:
        raise FramesError(f"a message of {size:,} B, and none is longer than {most_bytes:,}")
    return _exactly(descriptor, size, silence_s)


def await_line(descriptor: int, wanted: bytes, most_bytes: int, silence_s: float) -> None:
    """Pass over what a login shell prints, to the end of this line and no byte further. FramesError where it does not
    come within so many bytes, or nothing does for so long.
    """
    ending = b""
    for _ in range(most_bytes):
        ending = (ending + _exactly(descriptor, 1, silence_s))[-len(wanted) :]
        if ending == wanted:
            return
    raise FramesError(f"{most_bytes:,} B of something else")


def _exactly(descriptor: int, size: int, silence_s: float | None) -> bytes:
    """So many bytes. What is held grows with what has come, whatever was announced."""
    found = bytearray()
    while len(found) < size:
        if silence_s is not None and not is_ready(descriptor, select.POLLIN, silence_s):
            raise FramesError(f"nothing was heard for {silence_s:g} s")
        try:
            piece = os.read(descriptor, min(size - len(found), _PIECE))
        except OSError as error:
            raise FramesError(f"it cannot be read: {error.strerror}") from None
        if not piece:
            raise FramesError("it ended within a message" if found else "it has ended")
        found += piece
    return bytes(found)
