"""A console as the agent's way in, shared with the guest's kernel: its lines, and the kernel's between them."""

from __future__ import annotations

import os
import termios
import tty
from contextlib import suppress

from virtoll.agent import FdStream
from virtoll.agent.client import MARKER

# Seen with Linux 6.1: of a line that is longer than the guest's terminal's buffer (4096 bytes) parts are lost.
LONGEST_REQUEST_BYTES = 3800
_CHUNK_BYTES = 64 * 1024
_MOST_LAST_BYTES = 4 * 1024**2  # of what a console still holds; xenconsoled keeps 1 MiB of a domain's
_ANSWER = b'{"id":'  # the agent's own lines on a console that carries the kernel's, too


def opened_raw(terminal: str) -> int:
    """A descriptor of a terminal that changes no byte. OSError or termios.error where it cannot be had."""
    fd = os.open(terminal, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        tty.setraw(fd, termios.TCSANOW)  # not the default, which throws away what was said already
    except BaseException:
        os.close(fd)
        raise
    return fd


class Console(FdStream):
    """The host's end of a guest's console.

    All that is not the agent's goes to ``log_fd``, which the caller closes later. Owns the other two, which may be one.
    """

    def __init__(self, read_fd: int, write_fd: int, log_fd: int, where: str, holder: int) -> None:
        super().__init__(read_fd, write_fd, where, holder)
        os.set_blocking(read_fd, False)
        self._log_fd = log_fd

    def receive_line(self, timeout_s: float) -> bytes:
        """See `FdStream.receive_line`."""
        line = super().receive_line(timeout_s)
        if line and not line.startswith(_ANSWER) and not line.endswith(MARKER):
            self._keep(line + b"\n")
        return line

    def drain(self) -> None:
        """Keep what was said and nobody has read; it waits for nothing. Nothing of a stream that is closed.

        The last that is kept: the log is closed next, and its number may be another file's then.
        """
        if self._closed:
            return
        with suppress(OSError):  # the other end is gone
            kept_bytes = self._keep(bytes(self._pending))
            while kept_bytes < _MOST_LAST_BYTES and (chunk := os.read(self._read_fd, _CHUNK_BYTES)):
                kept_bytes += self._keep(chunk)
        self._log_fd = -1

    def _keep(self, data: bytes) -> int:
        """Write to the log as much as it takes; a pipe takes all, unless its reader is gone."""
        with suppress(OSError):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._log_fd, rest) :]
        return len(data)
