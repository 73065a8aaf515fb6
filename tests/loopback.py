"""A server on loopback that answers as a test has it, and how its connections end."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from contextlib import suppress
from typing import Any, Self


class LoopbackServer(socketserver.ThreadingTCPServer):
    """On a port of its own, for the length of a `with` block."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self, connection: type[Connection]) -> None:
        super().__init__(("127.0.0.1", 0), connection)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def where(self) -> tuple[str, int]:
        """Its address and port."""
        address, port = self.server_address[:2]
        return str(address), int(port)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class Connection(socketserver.StreamRequestHandler):
    """One of them; its client may be gone when it ends."""

    def reset(self) -> None:
        """End it without a word, and not in order."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
