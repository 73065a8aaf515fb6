"""Byte streams to an agent: a process's stdio, a Unix socket (QEMU's virtio-serial), a pair of file descriptors."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import time
from pathlib import Path

from virtoll.agent.base import StreamError, StreamTimeoutError
from virtoll.errors import AgentError

_READ_BYTES = 256 * 1024
LONGEST_LINE_BYTES = 4 * 1024**2  # the longest answer, to `run` with all the output that it may have, is 2.7 MiB
_SEND_PATIENCE_S = 30.0
_CONNECT_INTERVAL_S = 0.01


class FdStream:
    """Lines over a pair of file descriptors (UML's console, a serial line). Owns them: `close` closes both.

    ``where`` names the stream in errors. The stream ends with process ``holder`` (a child of ours), whoever else has
    its other end: UML's helpers outlive their kernel.
    """

    def __init__(self, read_fd: int, write_fd: int, where: str = "agent", holder: int | None = None) -> None:
        self.where = where
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._pending = bytearray()
        self._scanned = 0
        self._closed = False
        self._holder_fd = None if holder is None else _end_of(holder)
        os.set_blocking(write_fd, False)  # a peer that reads no more must not hang us

    def send(self, data: bytes) -> None:
        """Write all of ``data``; StreamError when the peer is gone or takes nothing for 30 s."""
        rest = memoryview(data)
        while rest:
            if self._closed or not is_ready(self._write_fd, select.POLLOUT, _SEND_PATIENCE_S):
                raise self._error("the agent takes no requests", "see the instance's log: it may hang")
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._error(f"the stream is broken ({error.strerror})", "see the instance's log") from error

    def has_room(self) -> bool:
        """See `Stream.has_room`; True of one that is broken, for `send` says so."""
        return self._closed or is_ready(self._write_fd, select.POLLOUT, 0)

    def receive_line(self, timeout_s: float) -> bytes:
        """The next line without its newline. StreamTimeoutError, or StreamError at the end of the stream."""
        deadline = time.monotonic() + timeout_s
        while (end := self._pending.find(b"\n", self._scanned)) < 0:
            self._scanned = len(self._pending)
            if self._scanned > LONGEST_LINE_BYTES:
                self._pending.clear()
                self._scanned = 0
                raise self._error(f"a line goes on after {LONGEST_LINE_BYTES} bytes", "look at what runs inside")
            left = deadline - time.monotonic()
            if self._closed or not self._more(left):
                raise StreamTimeoutError(
                    f"no answer within {timeout_s:g} s",
                    where=self.where,
                    remedy="see the instance's log: it may be overloaded",
                )
            self._fill()
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        self._scanned = 0
        return line

    def close(self) -> None:
        """End the stream; the agent then kills what it started and exits."""
        if not self._closed:
            self._closed = True
            for fd in {self._read_fd, self._write_fd, self._holder_fd}:
                if fd is not None:
                    os.close(fd)

    def _more(self, timeout_s: float) -> bool:
        """Wait until there is something to read, or the holder has ended; whether there is, in time."""
        return is_ready(self._read_fd, select.POLLIN, timeout_s, self._holder_fd)

    def _fill(self) -> None:
        try:
            # Where nothing is to be read it was the holder's end that was noticed.
            ended = self._holder_fd is not None and not is_ready(self._read_fd, select.POLLIN, 0)
            data = b"" if ended else os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise self._error("the stream has ended", "see the instance's log: the agent or the instance ended")
        self._pending += data

    def _error(self, what: str, remedy: str) -> StreamError:
        return StreamError(what, where=self.where, remedy=remedy)


class PipeStream(FdStream):
    """The stdio of a process that runs the agent or leads to it (``docker exec -i``, ``lxc-attach``).

    ``process`` was started with stdin and stdout as pipes; its owner ends and reaps it.
    """

    def __init__(self, process: subprocess.Popen[bytes], where: str = "") -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("start the process with stdin=PIPE and stdout=PIPE")
        read_fd, write_fd = (os.dup(pipe.fileno()) for pipe in (process.stdout, process.stdin))
        with contextlib.suppress(OSError):
            process.stdin.close()  # ours are the only copies left: closing them ends the stream
        process.stdout.close()
        super().__init__(read_fd, write_fd, where or f"agent behind process {process.pid}")


class SocketStream(FdStream):
    """A Unix stream socket, as QEMU offers a virtio-serial port (``-chardev socket,server=on,wait=off``).

    Waits up to ``timeout_s`` for the socket to be there.
    """

    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        connection = _connect(path, timeout_s)
        fd = connection.detach()
        super().__init__(fd, fd, f"agent at {path}")


def _end_of(pid: int) -> int:
    """A descriptor that can be read from the end of a process on; of one that is gone already, /dev/null, at once."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


def is_ready(fd: int, event: int, timeout_s: float, other_fd: int | None = None) -> bool:
    """Whether ``fd`` can be read or written in time, or there is something to read from the other."""
    # poll, not select: select cannot watch descriptors from 1024 on
    poll = select.poll()
    poll.register(fd, event)
    if other_fd is not None:
        poll.register(other_fd, select.POLLIN)
    return bool(poll.poll(max(timeout_s, 0) * 1000))


def _connect(path: Path, timeout_s: float) -> socket.socket:
    deadline = time.monotonic() + timeout_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise AgentError(
                    f"cannot connect: {error.strerror}",
                    where=str(path),
                    remedy="see the log of the process that should offer this socket (QEMU)",
                ) from error
            time.sleep(_CONNECT_INTERVAL_S)
