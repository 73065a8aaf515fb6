"""A client of the Docker Engine API: HTTP over a unix socket, and the raw stream of an attached container.

Reference: https://docs.docker.com/reference/api/engine/. The command line tool would do, but takes 40 ms a call.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode

from virtoll.agent import FdStream
from virtoll.agent.streams import LONGEST_LINE_BYTES
from virtoll.errors import PlatformError
from virtoll.platforms.unix_http import UnixConnection, decoded

_STDOUT = 1
_FRAME_HEADER_BYTES = 8
_READ_BYTES = 256 * 1024
_SENT_BYTES = 64 * 1024  # of an image at once: what a pipe holds; http.client's own 8 KiB take twice as long
MOST_BYTES = 64 * 1024**2  # of one answer


class Engine:
    """The API of the daemon that listens on ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def call(
        self,
        method: str,
        target: str,
        body: dict[str, Any] | IO[bytes] | None = None,
        *,
        timeout_s: float = 60.0,
        **query: Any,
    ) -> Any:
        """One request; the decoded JSON answer. PlatformError with the daemon's own words where it refuses."""
        connection = UnixConnection(str(self.path), timeout_s, blocksize=_SENT_BYTES)
        if query:
            target += "?" + urlencode({key: str(value) for key, value in query.items()})
        try:
            if isinstance(body, dict):
                connection.request(method, target, json.dumps(body), {"Content-Type": "application/json"})
            elif body is not None:
                connection.request(method, target, body, {"Content-Type": "application/x-tar"}, encode_chunked=True)
            else:
                connection.request(method, target)
            response = connection.getresponse()
            answer = response.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise PlatformError(
                f"dockerd does not answer: {error}",
                where=f"docker: {method} {target}",
                remedy="the next deployment starts a new one",
            ) from error
        finally:
            connection.close()
        if len(answer) > MOST_BYTES:
            raise PlatformError(
                f"dockerd answers with more than {MOST_BYTES} bytes", where=f"docker: {method} {target}"
            )
        if response.status >= 400:
            raise PlatformError(_message(answer), where=f"docker: {method} {target}")
        return decoded(answer)

    def attach(self, container: str, timeout_s: float = 10.0) -> ContainerStream:
        """Standard input and output of a container; to be called before it is started, so that nothing is lost."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        target = f"/containers/{quote(container)}/attach?stream=1&stdin=1&stdout=1"
        request = f"POST {target} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        try:
            connection.connect(str(self.path))
            connection.sendall(request.encode())
            head, _, rest = _read_head(connection).partition(b"\r\n\r\n")
        except OSError as error:
            connection.close()
            raise PlatformError(f"cannot attach: {error}", where=f"docker: POST {target}") from error
        status = head.split(b"\r\n", 1)[0].decode(errors="replace")
        if " 101 " not in status:
            connection.close()
            raise PlatformError(f"cannot attach: {status}", where=f"docker: POST {target}")
        return ContainerStream(connection.detach(), f"agent in container {container[:12]}", rest)


class ContainerStream(FdStream):
    """The agent's stream in an attached container without a terminal.

    What comes from the container is in frames: one byte of stream number, three of padding, a big-endian length,
    the data. What goes in is plain.
    """

    def __init__(self, fd: int, where: str, received: bytes = b"") -> None:
        super().__init__(fd, fd, where)
        self._frames = bytearray(received)
        self._unpack()

    def _fill(self) -> None:
        try:
            chunk = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            raise self._error("the stream has ended", "the container or dockerd ended: see the daemon's log")
        self._frames += chunk
        self._unpack()

    def _unpack(self) -> None:
        while len(self._frames) >= _FRAME_HEADER_BYTES:
            end = _FRAME_HEADER_BYTES + int.from_bytes(self._frames[4:_FRAME_HEADER_BYTES], "big")
            if end > LONGEST_LINE_BYTES:
                raise self._error(f"a frame of {end} bytes", "see the daemon's log")
            if len(self._frames) < end:
                return
            if self._frames[0] == _STDOUT:
                self._pending += self._frames[_FRAME_HEADER_BYTES:end]
            del self._frames[:end]


def _read_head(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(4096)
        if not chunk:
            raise ConnectionResetError("dockerd closed the connection")
        data += chunk
        if len(data) > MOST_BYTES:
            raise OSError(f"dockerd says more than {MOST_BYTES} bytes before it answers")
    return data


def _message(answer: bytes) -> str:
    told = decoded(answer)
    return str(told.get("message", told)) if isinstance(told, dict) else str(told)
