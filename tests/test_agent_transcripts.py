"""The client says and understands what the golden transcripts hold; cargo test replays the same on the real agent."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from virtoll.agent import PROTOCOL, AgentClient, ClockOffset, ExecResult, Got, GuestSettings, Process, Samples, Source
from virtoll.errors import AgentError

TRANSCRIPTS = Path(__file__).parent.parent / "rust/wire/tests/transcripts"
HELLO = {"ok": {"protocol": PROTOCOL, "version": "0.1.0", "pid": 1}}

Exchange = dict[str, Any]
Ask = Callable[[AgentClient, dict[str, Any]], Any]


class ScriptedStream:
    """Answers hello, and then the one request of an exchange as often as it is asked."""

    where = "script"

    def __init__(self, exchange: Exchange, hello: dict[str, Any] = HELLO, noise: tuple[bytes, ...] = ()) -> None:
        self.exchange = exchange
        self.hello = hello
        self.lines: list[bytes] = list(noise)

    def send(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        request = json.loads(data)
        if "hello" in request["op"]:
            response, self.lines = self.hello, [*self.lines, b"", b"== virtoll-agent =="]
        else:
            assert request["op"] == self.exchange["request"]["op"]
            response = self.exchange["response"]
        self.lines.append(json.dumps({**response, "id": request["id"]}).encode())

    def has_room(self) -> bool:
        return True

    def receive_line(self, timeout_s: float) -> bytes:
        return self.lines.pop(0)

    def close(self) -> None:
        pass


def run(client: AgentClient, arguments: dict[str, Any]) -> ExecResult:
    stdin = base64.b64decode(arguments["stdin"])
    setting = {name: arguments[name] for name in ("env", "cwd", "user")}
    return client.run(arguments["argv"], stdin=stdin, timeout_s=arguments["timeout_ms"] / 1000, **setting)


def spawn(client: AgentClient, arguments: dict[str, Any]) -> int:
    return client.spawn(**arguments)


def put(client: AgentClient, arguments: dict[str, Any]) -> None:
    client.put(arguments["path"], base64.b64decode(arguments["data"]), arguments["mode"])


def start_sampling(client: AgentClient, arguments: dict[str, Any]) -> None:
    rate_hz = 1e9 / arguments["interval_ns"]
    sources = [Source(**{**source, "only": tuple(source["only"])}) for source in arguments["sources"]]
    client.start_sampling(sources, rate_hz, keep_s=arguments["keep_ticks"] / rate_hz)


ASK: dict[str, Ask] = {
    "facts": lambda client, arguments: client.facts(),
    "run": run,
    "spawn": spawn,
    "alive": lambda client, arguments: client.alive(arguments["pid"]),
    "kill": lambda client, arguments: client.kill(arguments["pid"], arguments["grace_ms"] / 1000),
    "describe": lambda client, arguments: client.describe(arguments["pid"]),
    "listening": lambda client, arguments: client.listening(arguments["port"], arguments["protocol"]),
    "put": put,
    "get": lambda client, arguments: client.get(arguments["path"]),
    "tail": lambda client, arguments: client.tail(arguments["path"], arguments["bytes"]),
    "fill": lambda client, arguments: client.fill(**arguments),
    "sync": lambda client, arguments: client.sync(arguments["path"]),
    "burn": lambda client, arguments: client.burn(arguments["threads"], arguments["duration_ms"]),
    "allocate": lambda client, arguments: client.allocate(arguments["bytes"]),
    "reserve": lambda client, arguments: client.reserve(arguments["directory"], arguments["bytes"]),
    "processes": lambda client, arguments: client.processes(arguments["count"]),
    "clock": lambda client, arguments: client.clock(),
    "sample_start": start_sampling,
    "sample_now": lambda client, arguments: client.sample_now(),
    "sample_collect": lambda client, arguments: client.collect(),
    "configure": lambda client, arguments: client.configure(GuestSettings(**arguments)),
    "poweroff": lambda client, arguments: client.power_off(),
}


def samples(ok: dict[str, Any]) -> Samples:
    columns = dict(zip(ok["counters"], ok["values"], strict=True))
    unreadable = {one["name"]: f"{one['path']}: {one['reason']}" for one in ok["unreadable"]}
    return Samples(ok["times_ns"], columns, ok["late_ticks"], ok["dropped"], unreadable)


# What the client makes of an answer, said once more; the other operations give it as it is.
UNDERSTOOD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "run": lambda ok: ExecResult(ok["returncode"], base64.b64decode(ok["stdout"]), base64.b64decode(ok["stderr"])),
    "spawn": lambda ok: ok["pid"],
    "alive": lambda ok: ok["alive"],
    "describe": lambda ok: Process(
        tuple(base64.b64decode(ok["command_line"]).decode().split("\0")[:-1]),
        ok["exe"],
        ok["cwd"],
        ok["uid"],
        ok["gid"],
        tuple(ok["groups"]),
        {"PATH": "/bin"},
    ),
    "listening": lambda ok: ok["listening"],
    "tail": lambda ok: base64.b64decode(ok["data"]),
    "reserve": lambda ok: Got(ok["reserved_bytes"], ok["errno"]),
    "processes": lambda ok: Got(ok["processes"], ok["errno"]),
    "get": lambda ok: base64.b64decode(ok["data"]),
    "kill": lambda ok: None,
    "put": lambda ok: None,
    "fill": lambda ok: None,
    "sync": lambda ok: None,
    "sample_start": lambda ok: None,
    "sample_now": lambda ok: None,
    "sample_collect": samples,
}


def exchanges() -> list[Any]:
    """Every exchange but the hellos."""
    found = []
    for path in sorted(TRANSCRIPTS.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            exchange = json.loads(line)
            op = next(iter(exchange["request"]["op"]))
            if op != "hello":
                found.append(pytest.param(op, exchange, id=f"{path.stem}-{exchange['request']['id']}-{op}"))
    return found


@pytest.mark.parametrize(("op", "exchange"), exchanges())
def test_exchange(op: str, exchange: Exchange) -> None:
    client = AgentClient(ScriptedStream(exchange))
    arguments = exchange["request"]["op"][op]
    if "error" in exchange["response"]:
        with pytest.raises(AgentError) as caught:
            ASK[op](client, arguments)
        error = exchange["response"]["error"]
        assert caught.value.problem.what == f"{op}: {error['what']}"
        assert error["where"] in caught.value.problem.where
        assert caught.value.problem.remedy == error["remedy"]
        return
    answer = ASK[op](client, arguments)
    if op == "clock":
        assert isinstance(answer, ClockOffset)
        assert answer.round_trip_ns >= 0
    else:
        assert answer == UNDERSTOOD.get(op, dict)(exchange["response"]["ok"])


def test_every_operation_has_a_transcript() -> None:
    assert {param.values[0] for param in exchanges()} == set(ASK)


def test_another_protocol_names_both() -> None:
    exchange = json.loads((TRANSCRIPTS / "other_protocol.jsonl").read_text())
    with pytest.raises(AgentError, match=r"the agent speaks protocol 4, the controller protocol 999.*\n.*make"):
        AgentClient(ScriptedStream({}, hello=exchange["response"]))


def test_noise_before_and_after_hello_is_passed_over() -> None:
    lines = (TRANSCRIPTS / "operations.jsonl").read_text().splitlines()
    exchange = next(json.loads(line) for line in lines if '"alive"' in line)
    stream = ScriptedStream(exchange, noise=(b"SeaBIOS \x1b[2J", b'{"id":1,"op":{"hello":{"protocol":4}}}'))
    client = AgentClient(stream)
    stream.lines = [b"[   12.3] random: crng init done", b'{"id":1,"ok":{}}', b"[ 7 ]", b"12"]
    assert client.alive(101) is True
