"""The client: one request, one response, in order. Everything is said in docs/PROTOCOL.md."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from virtoll.agent.base import ClockOffset, ExecResult, Samples, Source, Stream, StreamError, StreamTimeoutError
from virtoll.errors import AgentError

PROTOCOL = 1
MARKER = b"== virtoll-agent =="
CHUNK_BYTES = 32 * 1024  # of a file in one message
MOST_GET_BYTES = 1024**2

_PATIENCE_S = 30.0  # for an answer that takes no time, from a guest that may be emulated and busy
_HELLO_INTERVAL_S = 0.1  # what is sent before a serial line is open is lost, so hello is repeated
_CLOCK_EXCHANGES = 8


class AgentClient:
    """The operations of `Agent` over a stream. Constructing it says hello and waits until the agent answers.

    ``timeout_s`` is how long the instance may take to boot. AgentError when no agent answers in time, or one of
    another protocol.
    """

    def __init__(self, stream: Stream, *, timeout_s: float = 60.0) -> None:
        self._stream = stream
        self._where = getattr(stream, "where", "agent")
        self._last_id = 0
        self._noise: deque[str] = deque(maxlen=10)
        self._greet(timeout_s)

    def facts(self) -> dict[str, Any]:
        """See `Agent.facts`; None where the instance cannot say."""
        return self._ask("facts", {})

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> ExecResult:
        """See `Agent.run`; at most 1 MiB of output each on stdout and stderr."""
        arguments = {"argv": list(argv), "stdin": _text(stdin), "timeout_ms": round(timeout_s * 1000)}
        answer = self._ask("run", arguments, timeout_s + _PATIENCE_S)
        return ExecResult(answer["returncode"], _bytes(answer["stdout"]), _bytes(answer["stderr"]))

    def spawn(self, argv: Sequence[str], *, user: str = "", log: str = "") -> int:
        """See `Agent.spawn`."""
        pid: int = self._ask("spawn", {"argv": list(argv), "user": user, "log": log})["pid"]
        return pid

    def alive(self, pid: int) -> bool:
        """See `Agent.alive`."""
        return bool(self._ask("alive", {"pid": pid})["alive"])

    def kill(self, pid: int) -> None:
        """See `Agent.kill`; its whole session ends with it."""
        self._ask("kill", {"pid": pid})

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See `Agent.put`."""
        for offset in range(0, max(len(data), 1), CHUNK_BYTES):
            part = _text(data[offset : offset + CHUNK_BYTES])
            self._ask("put", {"path": path, "mode": mode, "offset": offset, "data": part})

    def get(self, path: str) -> bytes:
        """See `Agent.get`."""
        data = bytearray()
        while len(data) <= MOST_GET_BYTES:
            part = self._ask("get", {"path": path, "offset": len(data)})
            data += _bytes(part["data"])
            if part["end"] and len(data) <= MOST_GET_BYTES:
                return bytes(data)
        raise AgentError(
            f"get: {path} is larger than {MOST_GET_BYTES} bytes",
            where=self._where,
            remedy="take the part you need: run tail or head inside",
        )

    def burn(self, threads: int, duration_ms: int) -> dict[str, int]:
        """See `Agent.burn`."""
        return self._ask("burn", {"threads": threads, "duration_ms": duration_ms}, duration_ms / 1000 + _PATIENCE_S)

    def allocate(self, bytes_: int) -> dict[str, Any]:
        """See `Agent.allocate`."""
        return self._ask("allocate", {"bytes": bytes_}, 4 * _PATIENCE_S)

    def clock(self) -> ClockOffset:
        """See `Agent.clock`."""
        return min((self._exchange_clocks() for _ in range(_CLOCK_EXCHANGES)), key=lambda clock: clock.round_trip_ns)

    def start_sampling(self, sources: Sequence[Source], rate_hz: float, *, keep_s: float = 900.0) -> None:
        """See `Agent.start_sampling`."""
        arguments = {
            "sources": [asdict(source) for source in sources],
            "interval_ns": round(1e9 / rate_hz),
            "keep_ticks": max(1, round(keep_s * rate_hz)),
        }
        self._ask("sample_start", arguments)

    def collect(self) -> Samples:
        """See `Agent.collect`."""
        page = self._ask("sample_collect", {"from": 0})
        times_ns: list[int] = page["times_ns"]
        columns: list[list[int | None]] = page["values"]
        while len(times_ns) < page["rows"]:
            page = self._ask("sample_collect", {"from": len(times_ns)})
            times_ns += page["times_ns"]
            for column, more in zip(columns, page["values"], strict=True):
                column.extend(more)
        return Samples(
            times_ns=times_ns,
            counters=dict(zip(page["counters"], columns, strict=True)),
            late_ticks=page["late_ticks"],
            dropped=page["dropped"],
            unreadable={source["name"]: f"{source['path']}: {source['reason']}" for source in page["unreadable"]},
        )

    def power_off(self) -> None:
        """See `Agent.power_off`; the machine is off, or nearly so, when this returns."""
        with contextlib.suppress(StreamError):  # the end of the stream is the success
            self._send("poweroff", {})
            self._answer("poweroff", _PATIENCE_S)
        self._stream.close()

    def close(self) -> None:
        """End the stream; the agent kills what it started and exits."""
        self._stream.close()

    def _exchange_clocks(self) -> ClockOffset:
        before_ns = time.monotonic_ns()
        agent_ns = self._ask("clock", {})["t_ns"]
        after_ns = time.monotonic_ns()
        return ClockOffset(agent_ns - (before_ns + after_ns) // 2, after_ns - before_ns)

    def _greet(self, timeout_s: float) -> None:
        """Say hello until the agent answers, and agree on the protocol."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            try:
                self._send("hello", {"protocol": PROTOCOL})
                self._skip_to_marker(max(0.0, min(left, _HELLO_INTERVAL_S)))
                break
            except StreamTimeoutError as error:
                if left < _HELLO_INTERVAL_S:
                    raise self._explained("hello", f"no agent answered within {timeout_s:g} s", error) from error
            except StreamError as error:
                raise self._explained("hello", error.problem.what, error) from error
        protocol = self._answer("hello", _PATIENCE_S)["protocol"]
        if protocol != PROTOCOL:
            raise AgentError(
                f"hello: the agent speaks protocol {protocol}, the controller protocol {PROTOCOL}",
                where=self._where,
                remedy="rebuild the agent and the image: `make`",
            )

    def _skip_to_marker(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._stream.receive_line(max(0.0, deadline - time.monotonic())).rstrip(b"\r")
            if line.endswith(MARKER):
                return
            self._note(line)

    def _ask(self, op: str, arguments: dict[str, Any], timeout_s: float = _PATIENCE_S) -> dict[str, Any]:
        try:
            self._send(op, arguments)
            return self._answer(op, timeout_s)
        except StreamError as error:
            raise self._explained(op, error.problem.what, error) from error

    def _send(self, op: str, arguments: dict[str, Any]) -> None:
        self._last_id += 1
        request = {"id": self._last_id, "op": {op: arguments}}
        self._stream.send(json.dumps(request, separators=(",", ":")).encode() + b"\n")

    def _answer(self, op: str, timeout_s: float) -> dict[str, Any]:
        """The answer to the last request. Noise and late answers to earlier requests are passed over."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._stream.receive_line(max(0.0, deadline - time.monotonic()))
            response = _response(line)
            if response is None:
                self._note(line)
            elif response["id"] in (self._last_id, 0):
                return self._checked(op, response)

    def _checked(self, op: str, response: dict[str, Any]) -> dict[str, Any]:
        error = response.get("error")
        if error is not None:
            where = f"{self._where}, {error['where']}" if error["where"] else self._where
            raise AgentError(f"{op}: {error['what']}", where=where, remedy=error["remedy"])
        answer: dict[str, Any] = response["ok"]
        return answer

    def _note(self, line: bytes) -> None:
        text = line.decode(errors="replace").strip()
        if text and not line.endswith(MARKER):
            self._noise.append(text)

    def _explained(self, op: str, what: str, error: AgentError) -> AgentError:
        """An error with what else came over the stream: a kernel's last words tell most."""
        heard = "".join(f"\n  heard: {line}" for line in self._noise)
        return type(error)(f"{op}: {what}{heard}", where=self._where, remedy=error.problem.remedy)


def _response(line: bytes) -> dict[str, Any] | None:
    try:
        response = json.loads(line)
    except ValueError:
        return None
    return response if isinstance(response, dict) and ("ok" in response or "error" in response) else None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
