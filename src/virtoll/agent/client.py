"""The client: one request, one response, in order. Everything is said in docs/PROTOCOL.md."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from virtoll.agent.answers import MOST_VALUES, Fields, clipped, response, sample_page
from virtoll.agent.base import (
    ClockOffset,
    ExecResult,
    Got,
    GuestSettings,
    Process,
    Samples,
    Source,
    Stream,
    StreamError,
    StreamTimeoutError,
    Transport,
)
from virtoll.errors import AgentError

PROTOCOL = 4
MARKER = b"== virtoll-agent =="
CHUNK_BYTES = 32 * 1024  # of a file in one message
MOST_GET_BYTES = 1024**2
MOST_TOLD_BYTES = 1024**2  # of a command's output (each on stdout and stderr), a file's end, a process's environment

_PATIENCE_S = 30.0  # for an answer that takes no time, from a guest that may be emulated and busy
_SLOWEST_BYTES_PER_S = 2e6  # an emulated guest writes to its disk some ten times as fast
_WHOLE_S = 4 * _PATIENCE_S  # for what comes in many answers, all together
_SYNC_S = 600.0  # for a fifth of a machine's memory (vm.dirty_ratio), which a slow disk is yet to have
_COUNTED = {"cpus", "cpus_online", "memory_bytes"}  # of the facts: what a report computes with
_MOST_ERRNO = 4095  # Linux, include/linux/err.h
MOST_COUNTERS = 6  # of one source
_HELLO_INTERVAL_S = 0.1  # what is sent before a serial line is open is lost, so hello is repeated
_CLOCK_EXCHANGES = 8
_PART = '{"id":%d,"op":{"part":{"text":%s}}}\n'
_WHOLE = b'{"id":0,"op":{"whole":{}}}\n'


class AgentClient:
    """The operations of `Agent` over a stream. Constructing it says hello and waits until the agent answers.

    ``timeout_s`` is how long the instance may take to boot. Requests longer than ``longest_request_bytes`` go in
    parts, each of which the agent has taken before the next is sent: for a line that loses or stops at what its
    buffer does not hold. AgentError when no agent answers in time, or one of another protocol, and later for
    whatever an agent says that is no answer.
    """

    def __init__(self, stream: Stream, *, timeout_s: float = 60.0, longest_request_bytes: int | None = None) -> None:
        self._stream = stream
        self._longest_request_bytes = longest_request_bytes
        self._where = getattr(stream, "where", "agent")
        self._last_id = 0
        self._awaited_id = 0  # of the request whose answer is waited for
        self._most_rows, self._most_counters = MOST_VALUES, MOST_VALUES
        self._until = math.inf  # by time.monotonic(): see `within`
        self._noise: deque[str] = deque(maxlen=10)
        self._greet(timeout_s)

    @contextlib.contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """See `Agent.within`."""
        outer = self._until
        self._until = min(outer, time.monotonic() + timeout_s)
        try:
            yield
        finally:
            self._until = outer

    def facts(self) -> dict[str, Any]:
        """See `Agent.facts`; None where the instance cannot say."""
        answer = self._ask("facts", {})
        facts = answer.facts()
        for name in _COUNTED & facts.keys():
            answer.count_or_none(name)
        return facts

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
    ) -> ExecResult:
        """See `Agent.run`; at most 1 MiB of output each on stdout and stderr."""
        arguments = {"argv": list(argv), "stdin": _text(stdin), "timeout_ms": round(timeout_s * 1000)}
        answer = self._ask("run", {**arguments, **_setting(env, cwd, user)}, timeout_s + _PATIENCE_S)
        stdout, stderr = (answer.data(name, MOST_TOLD_BYTES) for name in ("stdout", "stderr"))
        return ExecResult(answer.integer("returncode"), stdout, stderr)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        log: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
    ) -> int:
        """See `Agent.spawn`."""
        return self._ask("spawn", {"argv": list(argv), "log": log, **_setting(env, cwd, user)}).integer("pid")

    def alive(self, pid: int) -> bool:
        """See `Agent.alive`."""
        return self._ask("alive", {"pid": pid}).boolean("alive")

    def returncode(self, pid: int) -> int | None:
        """See `Agent.returncode`."""
        answer = self._ask("alive", {"pid": pid})
        return None if answer.boolean("alive") else answer.integer("returncode")

    def kill(self, pid: int, grace_s: float = 0.0) -> None:
        """See `Agent.kill`; its whole session ends with it."""
        self._ask("kill", {"pid": pid, "grace_ms": round(grace_s * 1000)}, grace_s + _PATIENCE_S)

    def describe(self, pid: int) -> Process:
        """See `Agent.describe`; what is no UTF-8 is told as \\xNN: a record keeps text."""
        answer = self._ask("describe", {"pid": pid})
        environment = answer.data_or_none("environment", MOST_TOLD_BYTES)
        pairs = [one.partition("=") for one in _strings(environment or b"")]
        return Process(
            argv=tuple(_strings(answer.data("command_line", MOST_TOLD_BYTES))),
            exe=answer.text_or_none("exe"),
            cwd=answer.text_or_none("cwd"),
            uid=answer.count("uid"),
            gid=answer.count("gid"),
            groups=tuple(answer.integers("groups")),
            environment=None if environment is None else {name: value for name, _, value in pairs if name},
        )

    def listening(self, port: int, protocol: Transport = "tcp") -> bool:
        """See `Agent.listening`."""
        return self._ask("listening", {"port": port, "protocol": protocol}).boolean("listening")

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See `Agent.put`."""
        for offset in range(0, max(len(data), 1), CHUNK_BYTES):
            part = _text(data[offset : offset + CHUNK_BYTES])
            self._ask("put", {"path": path, "mode": mode, "offset": offset, "data": part})

    def get(self, path: str) -> bytes:
        """See `Agent.get`."""
        data, deadline = bytearray(), time.monotonic() + _WHOLE_S
        while len(data) <= MOST_GET_BYTES:
            part = self._ask_by(deadline, "get", {"path": path, "offset": len(data)})
            more, end = part.data("data", CHUNK_BYTES), part.boolean("end")
            data += more
            if end and len(data) <= MOST_GET_BYTES:
                return bytes(data)
            if not end and len(more) != CHUNK_BYTES:
                raise part.error(f"a part of {len(more)} bytes that is not the last")
        raise AgentError(
            f"get: {path} is larger than {MOST_GET_BYTES} bytes",
            where=self._where,
            remedy="take the part you need: its tail",
        )

    def tail(self, path: str, most_bytes: int) -> bytes:
        """See `Agent.tail`."""
        return self._ask("tail", {"path": path, "bytes": most_bytes}).data("data", most_bytes)

    def fill(self, path: str, length_bytes: int, begin_bytes: int = 0) -> None:
        """See `Agent.fill`."""
        patience_s = _PATIENCE_S + length_bytes / _SLOWEST_BYTES_PER_S
        arguments = {"path": path, "length_bytes": length_bytes, "begin_bytes": begin_bytes}
        self._ask("fill", arguments, patience_s)

    def sync(self, path: str) -> None:
        """See `Agent.sync`."""
        self._ask("sync", {"path": path}, _SYNC_S)

    def burn(self, threads: int, duration_ms: int) -> dict[str, int]:
        """See `Agent.burn`."""
        arguments = {"threads": threads, "duration_ms": duration_ms}
        burnt = self._ask("burn", arguments, duration_ms / 1000 + _PATIENCE_S)
        return {name: burnt.count(name) for name in ("wall_ns", "cpu_ns")}

    def allocate(self, bytes_: int) -> dict[str, Any]:
        """See `Agent.allocate`."""
        answer = self._ask("allocate", {"bytes": bytes_}, 4 * _PATIENCE_S)
        return {"touched_bytes": answer.count("touched_bytes"), "ended": answer.text("ended")}

    def reserve(self, directory: str, bytes_: int) -> Got:
        """See `Agent.reserve`."""
        patience_s = _WHOLE_S + bytes_ / _SLOWEST_BYTES_PER_S
        answer = self._ask("reserve", {"directory": directory, "bytes": bytes_}, patience_s)
        return Got(answer.count("reserved_bytes"), _errno(answer))

    def processes(self, count: int) -> Got:
        """See `Agent.processes`."""
        answer = self._ask("processes", {"count": count}, 4 * _WHOLE_S)
        return Got(answer.count("processes"), _errno(answer))

    def clock(self) -> ClockOffset:
        """See `Agent.clock`."""
        return min((self._exchange_clocks() for _ in range(_CLOCK_EXCHANGES)), key=lambda clock: clock.round_trip_ns)

    def start_sampling(self, sources: Sequence[Source], rate_hz: float, *, keep_s: float = 900.0) -> None:
        """See `Agent.start_sampling`."""
        keep_ticks = max(1, round(keep_s * rate_hz))
        arguments = {
            "sources": [asdict(source) for source in sources],
            "interval_ns": round(1e9 / rate_hz),
            "keep_ticks": keep_ticks,
        }
        self._most_rows, self._most_counters = keep_ticks, MOST_COUNTERS * len(sources)
        self._ask("sample_start", arguments)

    def sample_now(self) -> None:
        """See `Agent.sample_now`."""
        self._ask("sample_now", {})

    def collect(self) -> Samples:
        """See `Agent.collect`."""
        deadline = time.monotonic() + _WHOLE_S
        first = self._ask("sample_collect", {"from": 0})  # it alone tells what goes for all rows
        names, rows = first.texts("counters"), first.count("rows")
        if rows > self._most_rows or len(names) > self._most_counters or rows * (len(names) + 1) > MOST_VALUES:
            raise first.error(f"{rows} rows of {len(names)} counters are more than was asked for, or any ring holds")
        times_ns, columns = sample_page(first, len(names), rows)
        while len(times_ns) < rows:
            page = self._ask_by(deadline, "sample_collect", {"from": len(times_ns)})
            more, values = sample_page(page, len(names), rows - len(times_ns))
            if not more:
                raise page.error(f"0 rows after {len(times_ns)} rows of {rows}")
            times_ns += more
            for column, longer in zip(columns, values, strict=True):
                column.extend(longer)
        return Samples(
            times_ns=times_ns,
            counters=dict(zip(names, columns, strict=True)),
            late_ticks=first.count("late_ticks"),
            dropped=first.count("dropped"),
            unreadable={
                source.text("name"): f"{source.text('path')}: {source.text('reason')}"
                for source in first.objects("unreadable")
            },
        )

    def configure(self, guest: GuestSettings) -> None:
        """See `Agent.configure`."""
        self._ask("configure", asdict(guest))

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
        agent_ns = self._ask("clock", {}).count("t_ns")
        after_ns = time.monotonic_ns()
        return ClockOffset(agent_ns - (before_ns + after_ns) // 2, after_ns - before_ns)

    def _greet(self, timeout_s: float) -> None:
        """Say hello until the agent answers, and agree on the protocol."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            try:
                if self._stream.has_room():  # a guest that boots for minutes reads none of many: one is enough
                    self._send("hello", {"protocol": PROTOCOL})
                self._skip_to_marker(max(0.0, min(left, _HELLO_INTERVAL_S)))
                break
            except StreamTimeoutError as error:
                if left < _HELLO_INTERVAL_S:
                    raise self._explained("hello", f"no agent answered within {timeout_s:g} s", error) from error
            except StreamError as error:
                raise self._explained("hello", error.problem.what, error) from error
        protocol = self._answer("hello", _PATIENCE_S).integer("protocol")
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
            self._expect_more(deadline, timeout_s)

    def _ask(self, op: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Fields:
        within_s = _PATIENCE_S if timeout_s is None else timeout_s
        try:
            self._send(op, arguments)
            return self._answer(op, max(0.0, min(within_s, self._until - time.monotonic())))
        except StreamError as error:
            raise self._explained(op, error.problem.what, error) from error

    def _ask_by(self, deadline: float, op: str, arguments: dict[str, Any]) -> Fields:
        """One of many answers to what must be whole at ``deadline``: each may come in time, and all of them never."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise AgentError(
                f"{op}: not all of it came within {_WHOLE_S:g} s",
                where=self._where,
                remedy="see the instance's log: it may be overloaded",
            )
        return self._ask(op, arguments, min(_PATIENCE_S, left_s))

    def _send(self, op: str, arguments: dict[str, Any]) -> None:
        self._last_id += 1
        self._awaited_id = self._last_id
        line = json.dumps({"id": self._last_id, "op": {op: arguments}}, separators=(",", ":"))
        if self._longest_request_bytes is None or len(line) < self._longest_request_bytes:
            self._stream.send(line.encode() + b"\n")
        else:
            self._send_in_parts(line)

    def _send_in_parts(self, line: str) -> None:
        """Hand the agent a request's text bit by bit; then it answers the request, by the request's own id."""
        assert self._longest_request_bytes is not None
        own_id = self._awaited_id
        room = (self._longest_request_bytes - len(_PART % (2**63, ""))) // 2  # a quoted text is at most twice as long
        for offset in range(0, len(line), room):
            self._last_id += 1
            self._awaited_id = self._last_id
            self._stream.send((_PART % (self._last_id, json.dumps(line[offset : offset + room]))).encode())
            self._answer("part", _PATIENCE_S)
        self._stream.send(_WHOLE)
        self._awaited_id = own_id

    def _answer(self, op: str, timeout_s: float) -> Fields:
        """The answer to the last request. Noise and late answers to earlier requests are passed over."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._stream.receive_line(max(0.0, deadline - time.monotonic()))
            found = response(line)
            if found is None:
                self._note(line)
            elif found["id"] in (self._awaited_id, 0):
                return self._checked(op, found)
            self._expect_more(deadline, timeout_s)

    def _expect_more(self, deadline: float, timeout_s: float) -> None:
        """Lines that never end must not keep us from the time's being over."""
        if time.monotonic() > deadline:
            raise StreamTimeoutError(
                f"no answer within {timeout_s:g} s",
                where=self._where,
                remedy="see the instance's log: it may be overloaded",
            )

    def _checked(self, op: str, found: dict[str, Any]) -> Fields:
        if found.get("error") is None:
            return Fields(found["ok"], op, self._where)
        error = Fields(found["error"], op, self._where)
        place = error.words("where")
        where = f"{self._where}, {place}" if place else self._where
        raise AgentError(f"{op}: {error.words('what')}", where=where, remedy=error.words("remedy"))

    def _note(self, line: bytes) -> None:
        text = line.decode(errors="replace").strip()
        if text and not line.endswith(MARKER):
            self._noise.append(clipped(text))

    def _explained(self, op: str, what: str, error: AgentError) -> AgentError:
        """An error with what else came over the stream: a kernel's last words tell most."""
        heard = "".join(f"\n  heard: {line}" for line in self._noise)
        return type(error)(f"{op}: {what}{heard}", where=self._where, remedy=error.problem.remedy)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _setting(env: Mapping[str, str] | None, cwd: str, user: str) -> dict[str, Any]:
    return {"env": None if env is None else dict(env), "cwd": cwd, "user": user}


def _errno(answer: Fields) -> int | None:
    errno = answer.count_or_none("errno")
    if errno is not None and errno > _MOST_ERRNO:
        raise answer.error(f"errno is {errno}")
    return errno


def _strings(ended_by_zero: bytes) -> list[str]:
    return [one.decode(errors="backslashreplace") for one in ended_by_zero.removesuffix(b"\0").split(b"\0")]
