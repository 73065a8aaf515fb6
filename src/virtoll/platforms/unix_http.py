"""HTTP over a Unix socket, as daemons and monitors take requests."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any


class UnixConnection(http.client.HTTPConnection):
    """A connection to the socket ``path`` (107 bytes at most); ``blocksize``: of a body that is sent from a file."""

    def __init__(self, path: str, timeout_s: float, blocksize: int = 8192) -> None:
        super().__init__("localhost", timeout=timeout_s, blocksize=blocksize)
        self._path = path

    def connect(self) -> None:
        """See `http.client.HTTPConnection.connect`."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def decoded(answer: bytes) -> Any:
    """JSON where it is that; else the text (Docker's import answers with several JSON lines)."""
    text = answer.decode(errors="replace")
    try:
        return json.loads(text) if text.strip() else None
    except (RecursionError, ValueError):
        return text
