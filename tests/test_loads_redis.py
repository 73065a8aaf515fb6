"""The native generator's Redis, for real, against a server on loopback that misbehaves on demand."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from resp_server import MisbehavingRedis
from virtoll.catalogue import catalogue
from virtoll.errors import TrialError
from virtoll.lab.client import Client
from virtoll.loads.base import Measurement, Session
from virtoll.loads.redis import RedisLoad, RedisSettings
from virtoll.offers import Redis
from virtoll.record.model import Events
from virtoll.study.file import read_study
from virtoll.trial.request_log import read_request_log

SECOND = 10**9
LOGGED_AS = {"status": -4, "length": -5, "content": -9, "parse": -6, "reset": -3}


@pytest.fixture
def server() -> Iterator[MisbehavingRedis]:
    with MisbehavingRedis() as running:
        yield running


@dataclass(frozen=True)
class Counted(RedisSettings):
    """A closed loop that so many rounds end, and no clock."""

    rounds: int = 20

    @property
    def most_requests(self) -> int:
        return self.rounds


def load_of(**settings: Any) -> RedisLoad:
    defaults: dict[str, Any] = {"keys": 20, "connections": 2, "time_limit_ns": 600 * SECOND, "timeout_ns": 600 * SECOND}
    return RedisLoad(Counted(**{**defaults, **settings}))


def drive(client: Client, server: MisbehavingRedis, served_as: str = "ok", **settings: Any) -> Measurement:
    with load_of(**settings).session(client, server.offer) as session:
        server.served_as = served_as
        server.commands.clear()
        return session.measure()


def asked(measurement: Measurement) -> Events:
    (events,) = measurement.window.events.values()
    return events


@pytest.mark.parametrize("pipeline", [1, 16])
@pytest.mark.parametrize(("command", "value_bytes"), [("get", 3), ("get", 64), ("get", 100_000), ("set", 64)])
def test_correct_replies_are_counted_in_commands(
    client: Client, server: MisbehavingRedis, command: str, value_bytes: int, pipeline: int
) -> None:
    for connections in (1, 3):
        settings: dict[str, Any] = {"command": command, "value_bytes": value_bytes, "pipeline": pipeline}
        settings["connections"] = connections
        expect_correct(drive(client, server, **settings), server, **settings)


def expect_correct(
    measurement: Measurement, server: MisbehavingRedis, *, command: str, value_bytes: int, pipeline: int, **_: Any
) -> None:
    window, events = measurement.window, asked(measurement)
    assert window.events.keys() == {"command" if pipeline == 1 else "round"}
    assert events.completed == events.offered == events.intended == 20
    assert events.failures == {}
    assert len(server.commands) == pipeline * events.completed
    assert {words[0] for words in server.commands} == {command.upper().encode()}
    completed = window.counts["completed"]
    assert window.counts["body_bytes"] == completed * pipeline * value_bytes
    assert completed * pipeline <= window.work <= events.completed * pipeline
    assert measurement.bulk.histogram is not None
    assert sum(count for _, _, count in measurement.bulk.histogram) == events.completed
    assert measurement.bulk.log is not None
    assert set(read_request_log(measurement.bulk.log).status) == {0}


def test_replies_that_come_byte_by_byte_are_put_together(client: Client, server: MisbehavingRedis) -> None:
    assert asked(drive(client, server, "torn", pipeline=3)).failures == {}


@pytest.mark.parametrize("connections", [1, 3])
def test_a_round_may_be_longer_than_a_socket_takes_at_once(
    client: Client, server: MisbehavingRedis, connections: int
) -> None:
    settings: dict[str, Any] = {"command": "set", "value_bytes": 2_000_000, "pipeline": 8, "keys": 2, "rounds": 4}
    measurement = drive(client, server, timeout_ns=60 * SECOND, connections=connections, **settings)
    assert (asked(measurement).completed, asked(measurement).failures) == (4, {})
    assert {len(value) for value in server.held.values()} == {2_000_000}


@pytest.mark.parametrize(
    ("served_as", "kind"),
    [
        ("nil", "status"),
        ("error", "status"),
        ("other-length", "length"),
        ("truncated", "length"),
        ("other-value", "content"),
        ("other-kind", "parse"),
        ("junk", "parse"),
        ("reset", "reset"),
        ("hang-up", "reset"),
    ],
)
@pytest.mark.parametrize("how", [{"connections": 1}, {"connections": 3}, {"connections": 1, "pipeline": 4}], ids=str)
def test_wrong_replies_are_failures_of_their_kind(
    client: Client, server: MisbehavingRedis, served_as: str, kind: str, how: dict[str, int]
) -> None:
    """Of a round the last reply is wrong, and the round has failed."""
    server.wrong_at = how.get("pipeline", 1)
    measurement = drive(client, server, served_as, **how)
    events = asked(measurement)
    assert events.completed == 0
    assert set(events.failures) == {kind}
    assert events.failures[kind] == events.censored == events.offered == 20
    assert measurement.bulk.histogram == []
    assert measurement.bulk.log is not None
    assert set(read_request_log(measurement.bulk.log).status) == {LOGGED_AS[kind]}


def test_an_error_to_a_set_is_a_failure_too(client: Client, server: MisbehavingRedis) -> None:
    events = asked(drive(client, server, "error", command="set"))
    assert (events.completed, set(events.failures)) == (0, {"status"})


def test_no_reply_in_time_is_a_timeout(client: Client, server: MisbehavingRedis) -> None:
    events = asked(drive(client, server, "silent", timeout_ns=SECOND // 10, rounds=2))
    assert (events.offered, events.failures) == (2, {"timeout": 2})


def test_keys_are_drawn_from_all_by_the_seed(client: Client, server: MisbehavingRedis) -> None:
    def keys(seed: int) -> list[bytes]:
        drive(client, server, seed=seed, connections=1, rounds=400)
        return [words[1] for words in server.commands]

    first = keys(1)
    assert len(first) == 400
    assert first == keys(1) != keys(2)
    counts = Counter(first)
    assert sorted(counts) == [b"key:%012d" % key for key in range(20)]
    assert max(counts.values()) < 50  # 20 expected


def test_open_loop_sends_its_schedule_of_rounds(client: Client, server: MisbehavingRedis) -> None:
    settings: dict[str, Any] = {"loop": "open", "arrival": "constant", "rate_per_s": 200.0, "connections": 50}
    measurement = drive(client, server, time_limit_ns=SECOND // 2, pipeline=16, **settings)
    events = asked(measurement)
    assert events.offered == events.completed == events.intended == 100
    assert len(server.commands) == 1600
    assert measurement.window.work <= 1600
    assert measurement.bulk.log is not None
    intended_ns = read_request_log(measurement.bulk.log).intended_ns
    assert 0 <= intended_ns[0] < 5_000_000
    assert list(intended_ns - intended_ns[0]) == list(np.arange(100) * 5_000_000)
    assert measurement.bulk.lateness is not None
    assert sum(count for _, _, count in measurement.bulk.lateness) == 100


# -- the keys ----------------------------------------------------------------------------------------------


def opened(client: Client, server: MisbehavingRedis, **settings: Any) -> Session:
    with load_of(**settings).session(client, server.offer) as session:
        return session


def test_a_session_sets_every_key_once(client: Client, server: MisbehavingRedis) -> None:
    opened(client, server, keys=1000, value_bytes=20)
    assert [words[1] for words in server.commands] == [b"key:%012d" % key for key in range(1000)]
    assert server.held[b"key:000000000123"] == b"key:000000000123xxxx"


def test_a_server_that_is_not_filled_is_no_place_for_a_load(client: Client, server: MisbehavingRedis) -> None:
    server.size = 19
    with pytest.raises(TrialError, match=r"the 20 keys of Redis .* it holds 19 now; give it an empty database"):
        opened(client, server)
    server.served_as = "error"
    with pytest.raises(TrialError, match="LOADING Redis is loading"):
        opened(client, server)
    with socket.socket() as held:  # nobody listens there
        held.bind(("127.0.0.1", 0))
        refused = Redis("127.0.0.1", held.getsockname()[1])
        with pytest.raises(TrialError, match=r"could not be set: .*refused"), load_of().session(client, refused):
            pass


# -- the seam ----------------------------------------------------------------------------------------------


def test_windows_of_a_session_keep_their_own_intensity(client: Client, server: MisbehavingRedis) -> None:
    brief: dict[str, Any] = {"time_limit_ns": SECOND // 4, "warm_up_ns": SECOND // 50}
    load = RedisLoad(RedisSettings(keys=20, pipeline=4, **brief))
    with load.session(client, server.offer) as session:
        session.warm_up()
        windows = [session.measure(), session.measure(intensity=3, duration_ns=SECOND // 20)]
    assert [measurement.window.at for measurement in windows] == [None, 3]
    assert windows[1].window.duration_ns <= SECOND // 20
    measured = load.measured(windows)
    assert (measured.name, measured.unit, measured.loop) == ("redis", "command", "closed")
    assert (measured.request, measured.asked) == ("round", "round")
    assert measured.events == asked(windows[0])
    assert measured.notes == ["work is in commands; events and latencies are of rounds, 4 commands each"]
    assert load_of().measured(windows).notes == []


def test_a_round_that_is_too_large_is_refused_when_planning(client: Client, server: MisbehavingRedis) -> None:
    host = client.host
    assert load_of(pipeline=16, value_bytes=4 * 1024**2).check(host) == []
    too_large = load_of(pipeline=16, value_bytes=4 * 1024**2 + 1)
    (problem,) = too_large.check(host)
    assert "more than 64 MiB" in problem.what
    with too_large.session(client, server.offer) as session, pytest.raises(TrialError, match="more than 64 MiB"):
        session.measure()


@pytest.mark.parametrize("quick", [False, True])
def test_the_ready_made_study_asks_one_by_one_and_pipelined(quick: bool) -> None:
    text = (files("virtoll.studies") / "redis.toml").read_text("utf-8")
    study = read_study(text, "redis.toml", catalogue(), quick=quick)
    sizes = (64,) if quick else (64, 1000)
    assert study.factors == {"load.pipeline": (1, 16), "load.value_bytes": sizes}
    assert {entry.arm.platform for entry in study.arms} == {"native", "docker", "lxc", "uml", "kvm", "qemu-tcg"}
