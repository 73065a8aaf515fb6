"""Whatever comes over the stream, the client gives an answer of the right type or an AgentError, within bounds."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from virtoll.agent import (
    PROTOCOL,
    AgentClient,
    ExecResult,
    Got,
    Process,
    Samples,
    Source,
    StreamError,
    StreamTimeoutError,
    client,
)
from virtoll.agent.answers import clipped, response
from virtoll.errors import AgentError

HELLO = json.dumps({"id": 1, "ok": {"protocol": PROTOCOL, "version": "0", "pid": 1}}).encode()


class Lines:
    """A stream that says hello and then these lines, whatever it is asked, and ends."""

    where = "fuzz"

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._greeting = [b"== virtoll-agent ==", HELLO]
        self._lines = lines

    def send(self, data: bytes) -> None:
        pass

    def has_room(self) -> bool:
        return True

    def receive_line(self, timeout_s: float) -> bytes:
        if self._greeting:
            return self._greeting.pop(0)
        try:
            return next(self._lines)
        except StopIteration:
            raise StreamError("the stream has ended") from None

    def close(self) -> None:
        pass


ASK: dict[str, tuple[Callable[[AgentClient], Any], type]] = {
    "facts": (lambda client: client.facts(), dict),
    "run": (lambda client: client.run(["true"]), ExecResult),
    "spawn": (lambda client: client.spawn(["true"]), int),
    "alive": (lambda client: client.alive(1), bool),
    "returncode": (lambda client: client.returncode(1) or 0, int),
    "describe": (lambda client: client.describe(1), Process),
    "listening": (lambda client: client.listening(1), bool),
    "get": (lambda client: client.get("/x"), bytes),
    "tail": (lambda client: client.tail("/x", 4), bytes),
    "reserve": (lambda client: client.reserve("/x", 4), Got),
    "processes": (lambda client: client.processes(4), Got),
    "burn": (lambda client: client.burn(1, 1), dict),
    "allocate": (lambda client: client.allocate(1), dict),
    "collect": (lambda client: client.collect(), Samples),
}
NAMES = ("returncode", "stdout", "stderr", "pid", "alive", "data", "end", "wall_ns", "cpu_ns", "touched_bytes", "ended",
         "t_ns", "rows", "late_ticks", "dropped", "unreadable", "counters", "times_ns", "values", "protocol", "what",
         "where", "remedy", "name", "path", "reason", "command_line", "exe", "cwd", "uid", "gid", "groups",
         "environment", "listening", "length_bytes", "reserved_bytes", "processes", "errno")  # fmt: skip

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "AAAA", "A=="]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=8),
    max_leaves=12,
)
answers = st.dictionaries(st.sampled_from(NAMES), values, max_size=len(NAMES))
responses = st.builds(
    lambda id_, kind, answer: json.dumps({"id": id_, kind: answer}).encode(),
    st.sampled_from([0, 2, "2", None, 2.0, True, 10**30]),
    st.sampled_from(["ok", "error"]),
    answers | values,
)


@pytest.mark.parametrize("op", ASK)
@given(lines=st.lists(st.binary(max_size=200) | responses, max_size=5))
@settings(deadline=None, max_examples=30)
@example(lines=[b"[" * 20_000])
@example(lines=[b'{"id":2,"ok":' * 5_000])
@example(lines=[b'{"id":2,"ok":{"returncode":' + b"9" * 10_000 + b"}}"])
@example(lines=[b'{"id":2,"ok":{"pid":1e999,"rows":NaN}}'])
@example(lines=[b'{"id":0,"error":{}}'])
@example(lines=[b'{"id":0,"error":{"what":[],"where":{},"remedy":3}}'])
@example(lines=[b'{"id":0,"error":{"what":"\\ud800","where":"","remedy":""}}'])
@example(lines=[b'{"id":0,"error":{"what":"\xed\xa0\x80","where":"","remedy":""}}'])
@example(lines=[b'{"id":2,"error":null,"ok":null}'])
@example(lines=[b'{"id":2,"ok":{"processes":1,"reserved_bytes":1,"errno":99999}}'])
@example(lines=[b'{"id":2,"ok":{"data":"AAAAAAAA","end":true,"length_bytes":0}}'])
@example(
    lines=[
        b'{"id":2,"ok":{"command_line":"gAA=","exe":null,"cwd":"","uid":0,"gid":0,"groups":[],"environment":"PYCAAA=="}}'
    ]
)
@example(lines=[b'{"id":2,"ok":{"returncode":0,"stdout":"?","stderr":""}}'])
@example(lines=[b'{"id":2,"ok":{"rows":99999999999,"counters":[],"times_ns":[],"values":[]}}'])
@example(lines=[b'{"id":2,"ok":{"rows":1,"counters":["a"],"times_ns":[],"values":[[]]}}'] * 3)
@example(lines=[b'{"id":0,"ok":{"data":"","end":false}}'] * 3)
def test_whatever_is_said_there_is_an_answer_or_a_typed_error(op: str, lines: list[bytes]) -> None:
    ask, kind = ASK[op]
    agent = AgentClient(Lines(iter(lines)))
    try:
        answer = ask(agent)
    except AgentError as error:
        told = str(error).encode()  # can be printed, too
    else:
        assert type(answer) is kind
        told = b""
    assert len(told) < 20_000


def repeated(line: bytes) -> Iterator[bytes]:
    while True:
        yield line


WHOLE_PART = b'{"id":0,"ok":{"data":"%s","end":false}}' % base64.b64encode(bytes(client.CHUNK_BYTES))
ONE_ROW = b'{"id":0,"ok":{"rows":99,"counters":["a"],"times_ns":[1],"values":[[1]],"late_ticks":0,"dropped":0}}'


@pytest.mark.parametrize(
    ("op", "line", "told"),
    [
        ("get", b'{"id":0,"ok":{"data":"","end":false}}', "a part of 0 bytes that is not the last"),
        ("get", b'{"id":0,"ok":{"data":"AAAA","end":false}}', "a part of 3 bytes that is not the last"),
        ("get", WHOLE_PART, "larger than 1048576 bytes"),
        ("collect", b'{"id":0,"ok":{"rows":9,"counters":[],"times_ns":[],"values":[]}}', "0 rows"),
    ],
)
def test_pages_that_never_end_do(op: str, line: bytes, told: str) -> None:
    with pytest.raises(AgentError, match=told):
        ASK[op][0](AgentClient(Lines(repeated(line))))


@pytest.mark.parametrize(("op", "line"), [("get", WHOLE_PART), ("collect", ONE_ROW)])
def test_pages_that_each_come_in_time_are_not_waited_for_without_end(
    op: str, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_WHOLE_S", 120.0)
    agent = AgentClient(Lines(repeated(line)))
    monkeypatch.setattr(time, "monotonic", (14 * tick for tick in range(10**9)).__next__)  # between looks at the clock
    with pytest.raises(AgentError, match="not all of it came within 120 s"):
        ASK[op][0](agent)


@pytest.mark.parametrize(("rows", "counters"), [(11, 1), (10**6, 1), (1, 7)])
def test_no_more_samples_come_than_were_asked_for(rows: int, counters: int) -> None:
    times_ns = [1] * min(rows, 99)
    answer = {"rows": rows, "counters": ["a"] * counters, "times_ns": times_ns, "values": [times_ns] * counters}
    lines = [{"id": 0, "ok": {}}, {"id": 0, "ok": {**answer, "late_ticks": 0, "dropped": 0, "unreadable": []}}]
    agent = AgentClient(Lines(json.dumps(line).encode() for line in lines))
    agent.start_sampling([Source("a", "stat", "/proc/stat")], 10, keep_s=1)
    with pytest.raises(AgentError, match="more than was asked for"):
        agent.collect()


@pytest.mark.parametrize(
    ("times_ns", "values", "second"),
    [
        ([1], [[1]], [[2, 3]]),
        ([1], [[1]], [[2] * 100_000]),
        ([1], [[1]], [[]]),
        ([1], [[1]], [[2], [2]]),
        ([1], [[1, 1]], None),
        ([1], [[]], None),
        ([1], [], None),
        ([1, 2, 3], [[1, 2, 3]], None),
    ],
)
def test_every_page_holds_whole_rows_and_no_more_than_there_are(
    times_ns: list[int], values: list[list[int]], second: list[list[int]] | None
) -> None:
    rest = {"rows": 2, "counters": ["a"], "late_ticks": 0, "dropped": 0, "unreadable": []}
    pages = [{**rest, "times_ns": times_ns, "values": values}, {**rest, "times_ns": [2], "values": second or [[2]]}]
    lines = [json.dumps({"id": 0, "ok": page}).encode() for page in pages]
    heard = iter(lines)
    with pytest.raises(AgentError, match=r"columns for 1 counters") as raised:
        AgentClient(Lines(heard)).collect()
    assert len(str(raised.value)) < 500
    assert len(list(heard)) == (0 if second is not None else 1), "it is refused at once"


def test_noise_that_never_ends_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that lines keep coming in before is one all the same."""
    monkeypatch.setattr(client, "_PATIENCE_S", 30.0)
    monkeypatch.setattr(time, "monotonic", iter(range(10**9)).__next__)
    agent = AgentClient(Lines(repeated(b"noise " * 1000)))
    with pytest.raises(StreamTimeoutError, match="no answer within 30 s") as caught:
        agent.facts()
    assert len(str(caught.value)) < 20_000


def test_an_error_is_told_in_words_that_fit() -> None:
    assert clipped("a\x1b[2J\nb") == "a [2J b"
    assert clipped("x" * 1000) == "x" * 300 + "..."
    said = json.dumps({"id": 0, "error": {"what": "y" * 10**6, "where": "", "remedy": ""}}).encode()
    with pytest.raises(AgentError) as caught:
        AgentClient(Lines(iter([said]))).facts()
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize("wrong", [{"memory_bytes": "all"}, {"cpus": -1}, {"cpus_online": "2"}])
def test_facts_that_are_computed_with_are_counts(wrong: dict[str, Any]) -> None:
    """One guest that told its memory in words had its trial valid, and no report of the whole run could be made."""
    facts = {"cpus": 2, "cpus_online": None, "memory_bytes": 2**29, "hostname": "instance"}
    lines = [json.dumps({"id": id_, "ok": ok}).encode() for id_, ok in ((2, facts), (3, facts | wrong))]
    agent = AgentClient(Lines(iter(lines)))
    assert agent.facts() == facts
    with pytest.raises(AgentError, match=f"not an answer: {next(iter(wrong))} is "):
        agent.facts()


def test_what_a_process_shows_that_is_no_utf_8_can_be_kept() -> None:
    """A service with such a byte in its arguments or environment failed each trial, when all of it was measured: a
    record keeps no half surrogates.
    """
    told: dict[str, Any] = {"exe": None, "cwd": None, "uid": 0, "gid": 0, "groups": []}
    told |= {"command_line": _base64(b"shop\0\xff\0"), "environment": _base64(b"NAME=caf\xe9\0")}
    found = AgentClient(Lines(iter([json.dumps({"id": 2, "ok": told}).encode()]))).describe(7)
    assert (found.argv, found.environment) == (("shop", "\\xff"), {"NAME": "caf\\xe9"})
    assert json.dumps([found.argv, found.environment], ensure_ascii=False).encode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@given(st.binary(max_size=300))
@example(b"{" * 20_000)
def test_a_line_is_a_response_or_it_is_not(line: bytes) -> None:
    found = response(line)
    assert found is None or type(found["id"]) is int


def test_the_bounds_are_the_agents() -> None:
    assert client.CHUNK_BYTES == 32 * 1024
    parse = (Path(__file__).parent.parent / "rust/agent/src/parse.rs").read_text()
    assert f"const MOST_COUNTERS: usize = {client.MOST_COUNTERS};" in parse
    assert client.MOST_TOLD_BYTES == 2**20
