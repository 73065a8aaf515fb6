"""A minimal client of QEMU's machine protocol: JSON lines, one command at a time (docs/interop/qmp-spec.txt)."""

from __future__ import annotations

import json
import socket
from typing import Any

from virtoll.errors import PlatformError

MOST_BYTES = 4_000_000  # of one answer


class Qmp:
    """A QMP session over a connected socket; events are skipped. PlatformError when QEMU is silent, refuses or ends."""

    def __init__(self, connection: socket.socket, timeout_s: float = 30.0) -> None:
        connection.settimeout(timeout_s)
        self._connection = connection  # the caller closes it
        self._lines = connection.makefile("rb")
        self._receive()  # the greeting
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run a command and return its result; keyword ``device_id`` becomes argument ``device-id``."""
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        try:
            self._connection.sendall(json.dumps({"execute": command, "arguments": named}).encode() + b"\n")
        except OSError as error:
            raise PlatformError(f"QEMU takes no command: {error}", where=f"QMP {command}") from error
        while True:
            answer = self._receive()
            if "error" in answer:
                refusal = answer["error"]
                told = refusal.get("desc", refusal) if isinstance(refusal, dict) else refusal
                raise PlatformError(f"QEMU refuses: {str(told)[:1000]}", where=f"QMP {command}")
            if "return" in answer:
                return answer["return"]

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._lines.readline(MOST_BYTES + 1)
        except OSError as error:
            raise PlatformError("QEMU does not answer", where="QMP") from error
        if not line:
            raise PlatformError("QEMU has ended", where="QMP")
        if len(line) > MOST_BYTES:
            raise PlatformError(f"QEMU says more than {MOST_BYTES} bytes in a line", where="QMP")
        try:
            answer = json.loads(line)
        except (RecursionError, ValueError):
            answer = None
        if not isinstance(answer, dict):
            raise PlatformError(f"QEMU says what is no JSON object: {line[:200]!r}", where="QMP")
        return answer
