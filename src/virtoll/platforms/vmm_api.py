"""A client of monitors that are told over HTTP, on a Unix socket of theirs, what their guest is to be."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from virtoll.errors import PlatformError
from virtoll.platforms.unix_http import UnixConnection, decoded
from virtoll.platforms.vm import Machine

SOCKET = "api.sock"  # in the monitor's working directory
READY_LIMIT_S = 30.0  # from the monitor's start until its socket is there: some milliseconds where nothing else runs
REQUEST_LIMIT_S = 60.0
MOST_BYTES = 4_000_000  # of one answer
_POLL_S = 0.01
_MOST_TOLD = 1000  # characters of what it says


class Api:
    """The API of a running monitor, at ``directory``/api.sock: any path is short enough when told by a descriptor."""

    def __init__(self, kind: str, directory_fd: int) -> None:
        self.kind = kind
        self.path = f"/proc/self/fd/{directory_fd}/{SOCKET}"
        self.requests: list[str] = []  # that changed something, in this order, for the record

    def get(self, target: str) -> dict[str, Any]:
        """What it tells. PlatformError where that is no JSON object."""
        told = self._call("GET", target, None)
        if not isinstance(told, dict):
            raise PlatformError(f"{self.kind} says what is no JSON object: {str(told)[:200]}", where=f"GET {target}")
        return told

    def put(self, target: str, body: dict[str, Any] | None = None) -> None:
        """Have it done. PlatformError with the monitor's own words where it refuses."""
        self.requests.append(f"PUT {target} {'' if body is None else json.dumps(body)}".strip())
        self._call("PUT", target, body)

    def _call(self, method: str, target: str, body: dict[str, Any] | None) -> Any:
        where = f"{self.kind}'s API: {method} {target}"
        connection = UnixConnection(self.path, REQUEST_LIMIT_S)
        try:
            if body is None:
                connection.request(method, target)
            else:
                connection.request(method, target, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise PlatformError(f"{self.kind} does not answer: {error!s:.{_MOST_TOLD}}", where=where) from error
        finally:
            connection.close()
        if len(answer) > MOST_BYTES:
            raise PlatformError(f"{self.kind} answers with more than {MOST_BYTES} bytes", where=where)
        if not 200 <= response.status < 300:
            told = f"{response.status} {str(decoded(answer) or response.reason)[:_MOST_TOLD]}"
            raise PlatformError(f"{self.kind} refuses: {told}", where=where)
        return decoded(answer)


@contextmanager
def answering(machine: Machine) -> Iterator[Api]:
    """The API of a monitor that has just been started. PlatformError with its last words where it never listens."""
    directory_fd = os.open(machine.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        api = Api(machine.kind, directory_fd)
        deadline = time.monotonic() + READY_LIMIT_S
        while not _listens(api.path):
            if time.monotonic() > deadline or not machine.is_running():
                how = "still at it" if machine.is_running() else f"exit code {machine.process.poll()}"
                raise PlatformError(
                    f"{machine.kind} has opened no API within {READY_LIMIT_S:g} s ({how}); {machine.last_words()}",
                    where=str(machine.directory),
                    remedy="its own words say why; is it a version that virtoll knows?",
                )
            time.sleep(_POLL_S)
        yield api
    finally:
        os.close(directory_fd)


def _listens(path: str) -> bool:
    """Whether somebody accepts connections there."""
    connection = UnixConnection(path, REQUEST_LIMIT_S)
    try:
        connection.connect()
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    finally:
        connection.close()
    return True
