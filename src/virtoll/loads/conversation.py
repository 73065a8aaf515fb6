"""A process of a native generator that is asked line by line for as long as it runs."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from virtoll.agent.streams import is_ready
from virtoll.binaries import binary
from virtoll.errors import TrialError
from virtoll.hosts.local import end_session
from virtoll.lab.client import Client

_LEAVE_S = 5.0
_MOST_LINE_BYTES, _PIECE_BYTES = 64 * 2**20, 2**16


def ahead_s(start_ns: int | None) -> float:
    """How long it is until a time by CLOCK_MONOTONIC that others may have set: an answer comes so much later."""
    return 0.0 if start_ns is None else max(0.0, (start_ns - time.monotonic_ns()) / 1e9)


class Conversation:
    """One such process, of this binary. ``who``: what it is called in errors."""

    def __init__(self, process: subprocess.Popen[bytes], generator: str, who: str, where: str) -> None:
        self._process, self._generator, self._who, self._where = process, generator, who, where
        self._rest = b""

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def ask(self, line: bytes, timeout_s: float) -> dict[str, Any]:
        """Its answer to a line. TrialError with its own words where it has ended, or does not answer in time."""
        self.write(line + b"\n")
        return self.read(timeout_s)

    def leave(self) -> None:
        """Have it end as it does when there is nothing more to ask."""
        assert self._process.stdin is not None
        with suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._process.stdin.close()
            self._process.wait(_LEAVE_S)

    def end(self) -> None:
        """Have it end at once, whatever it does."""
        end_session(self._process)

    def write(self, line: bytes) -> None:
        """Ask it. One that is gone says why when it is read."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), line)  # what is left in a buffer would fail again as it is closed

    def read(self, timeout_s: float) -> dict[str, Any]:
        """The next line; TrialError as `ask`."""
        deadline = time.monotonic() + timeout_s
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready = is_ready(out, select.POLLIN, deadline - time.monotonic())
            piece = os.read(out, _PIECE_BYTES) if ready else b""
            self._rest += piece
            if not piece or len(self._rest) > _MOST_LINE_BYTES:
                raise TrialError(f"{self._who}: {self._words(has_ended=ready)}", where=self._where)
        line, _, self._rest = self._rest.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def _words(self, *, has_ended: bool) -> str:
        if not has_ended:
            return "it does not answer"
        if self._rest:
            return "its answer has no end"
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode(errors="replace").strip().removeprefix(f"{self._generator}: ")
        return said or self._end()

    def _end(self) -> str:
        try:
            code = self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            return "it says nothing more"
        return f"it was ended by signal {-code}" if code < 0 else f"it has ended with exit {code}"


@contextmanager
def conversing(
    client: Client, command: Sequence[str], who: str, spec: Mapping[str, Any] | None = None
) -> Iterator[Conversation]:
    """A process of a generator (``command``: the binary's name, and what it is called with) where the client stands,
    which was told ``spec`` if there is one; it is ended with the block.
    """
    generator, *words = command
    pipe, argv = subprocess.PIPE, [str(binary(generator)), *words]
    process = client.host.spawn(argv, stdin=pipe, stdout=pipe, stderr=pipe, confinement=client.confinement)
    conversation = Conversation(process, generator, who, f"the load generator on {client.host.where}")
    with process:
        try:
            if spec is not None:
                conversation.write(json.dumps(spec).encode() + b"\n")
            yield conversation
            conversation.leave()
        finally:
            end_session(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # what was not written any more is tried once more
                process.stdin.close()
