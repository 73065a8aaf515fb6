"""The native generator, for real, against a server on loopback that misbehaves on demand."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loads_server import BODY, MisbehavingServer, misbehaving_server
from virtoll.binaries import binary
from virtoll.errors import HostError, TrialError
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client, fetch, wait_until_ready
from virtoll.loads.base import HttpObject, LoadResult, loads
from virtoll.loads.http import HttpLoad, HttpSettings, read_request_log, specification
from virtoll.services.base import Endpoint

SECOND = 10**9
LOGGED_AS = {"length": -5, "status": 503, "reset": -3, "parse": -6}


@pytest.fixture(autouse=True)
def _built() -> None:
    try:
        binary("virtoll-load")
    except HostError as error:
        pytest.skip(str(error))


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with misbehaving_server() as running:
        yield running


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(LocalHost(), Confinement(), tmp_path, cpus=1)


def drive(client: Client, endpoint: Endpoint, path: str, **settings: Any) -> LoadResult:
    defaults: dict[str, Any] = {"requests": 20, "connections": 2, "time_limit_ns": 20 * SECOND}
    load = HttpLoad(HttpSettings(**{**defaults, **settings}))
    return load.drive(client, endpoint, HttpObject(path, len(BODY)))


def test_every_load_is_registered_with_settings_that_have_defaults() -> None:
    assert set(loads()) >= {"http", "ab", "wrk", "siege"}
    for cls in loads().values():
        assert cls().settings == cls.Settings()
        assert cls.summary


@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("path", ["/ok", "/chunked", "/torn", "/until-close"])
def test_correct_answers_are_completed(
    client: Client, server: MisbehavingServer, path: str, keep_alive: bool, connections: int
) -> None:
    result = drive(client, server.endpoint, path, connections=connections, keep_alive=keep_alive)
    assert (result.intended, result.offered, result.completed, result.failures) == (20, 20, 20, {})
    assert result.window.body_bytes == result.window.completed * len(BODY)
    assert result.drain is not None
    assert result.window.completed + result.drain.completed == 20
    assert 1 <= result.drain.under_way == result.drain.completed <= connections
    assert result.histogram is not None
    assert sum(count for _, _, count in result.histogram) == 20
    assert all(0 < lower < upper for lower, upper, _ in result.histogram)
    assert result.window.start_ns < result.window.end_ns <= result.drain.end_ns
    assert (result.lateness, result.late, result.queued) == (None, None, None)
    assert len(server.lines) == 20


@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/other-length", "length"),
        ("/truncated", "length"),
        ("/unavailable", "status"),
        ("/reset", "reset"),
        ("/hang-up", "reset"),
        ("/junk", "parse"),
    ],
)
def test_wrong_answers_are_failures_of_their_kind(
    client: Client, server: MisbehavingServer, path: str, kind: str, connections: int
) -> None:
    result = drive(client, server.endpoint, path, connections=connections)
    assert (result.offered, result.completed, result.failures) == (20, 0, {kind: 20})
    assert result.histogram == []
    assert result.request_log is not None
    assert set(read_request_log(result.request_log).status) == {LOGGED_AS[kind]}


@pytest.fixture
def closed_port() -> Iterator[Endpoint]:
    """Held for the length of the test, so that nobody else comes to listen there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield Endpoint("127.0.0.1", held.getsockname()[1])


@pytest.mark.parametrize("connections", [1, 3])
def test_a_refused_connection_is_a_failure_to_connect(client: Client, closed_port: Endpoint, connections: int) -> None:
    result = drive(client, closed_port, "/ok", connections=connections, requests=6)
    assert (result.completed, result.failures) == (0, {"connect": 6})


@pytest.mark.parametrize("connections", [1, 3])
def test_no_answer_in_time_is_a_timeout(client: Client, server: MisbehavingServer, connections: int) -> None:
    result = drive(client, server.endpoint, "/silent", connections=connections, requests=3, timeout_ns=SECOND // 10)
    assert (result.offered, result.failures) == (3, {"timeout": 3})
    assert result.request_log is not None
    assert (read_request_log(result.request_log).latency_ns >= SECOND // 10).all()


@pytest.mark.parametrize("connections", [1, 3])
def test_what_is_under_way_at_the_time_limit_is_waited_for(
    client: Client, server: MisbehavingServer, connections: int
) -> None:
    bounds = {"requests": 0, "time_limit_ns": SECOND // 5, "timeout_ns": SECOND // 2}
    result = drive(client, server.endpoint, "/silent", connections=connections, **bounds)
    assert (result.offered, result.failures) == (connections, {"timeout": connections})


@pytest.mark.parametrize("connections", [1, 2])
def test_big_bodies_are_counted_to_the_byte(client: Client, server: MisbehavingServer, connections: int) -> None:
    load = HttpLoad(HttpSettings(requests=4, connections=connections))
    result = load.drive(client, server.endpoint, HttpObject("/big", 3_000_000))
    assert result.completed == 4
    assert result.window.body_bytes == result.window.completed * 3_000_000


def test_a_proxy_is_sent_absolute_urls(client: Client, server: MisbehavingServer) -> None:
    proxy = replace(server.endpoint, proxy=True, upstream="198.18.2.2:8080")
    assert drive(client, proxy, "/ok", requests=1).completed == 1
    assert server.lines == ["GET http://198.18.2.2:8080/ok HTTP/1.1"]
    assert fetch(client, proxy, "/ok").status == 200
    assert server.lines[-1] == "GET http://198.18.2.2:8080/ok HTTP/1.1"


def test_several_threads_share_the_requests(client: Client, server: MisbehavingServer) -> None:
    result = drive(replace(client, cpus=2), server.endpoint, "/ok", connections=5, requests=101)
    assert (result.offered, result.completed, len(server.lines)) == (101, 101, 101)
    assert result.request_log is not None
    intended_ns = read_request_log(result.request_log).intended_ns
    assert len(intended_ns) == 101
    assert (np.diff(intended_ns) >= 0).all()


@pytest.mark.parametrize("arrival", ["constant", "poisson"])
@pytest.mark.parametrize("keep_alive", [True, False])
def test_open_loop_sends_its_schedule(
    client: Client, server: MisbehavingServer, arrival: str, keep_alive: bool
) -> None:
    settings = {"loop": "open", "arrival": arrival, "rate_per_s": 200.0, "connections": 50, "keep_alive": keep_alive}
    result = drive(client, server.endpoint, "/ok", time_limit_ns=SECOND // 2, **settings)
    assert result.offered == result.completed == result.intended == len(server.lines)
    assert result.failures == {}
    if arrival == "constant":
        assert result.intended == 100
    assert result.request_log is not None
    log = read_request_log(result.request_log)
    intended_ns, latency_ns, status = log.intended_ns, log.latency_ns, log.status
    assert (np.diff(intended_ns) >= 0).all()
    assert intended_ns[-1] < SECOND // 2
    assert (latency_ns > 0).all()
    assert set(status) == {200}
    assert result.lateness is not None
    assert sum(count for _, _, count in result.lateness) == result.offered


@pytest.mark.parametrize(
    "connections", [1, 200]
)  # with one for each request, none waits for one, however long the stall
def test_a_stall_is_charged_to_every_request_that_was_due_in_it(
    client: Client, server: MisbehavingServer, connections: int
) -> None:
    """The test of coordinated omission: no request that was due in the stall may look faster than the stall's rest."""
    server.stall_at, server.stall_s = 20, 0.3
    settings: dict[str, Any] = {"loop": "open", "arrival": "constant", "rate_per_s": 200.0}
    result = drive(client, server.endpoint, "/ok", connections=connections, time_limit_ns=SECOND, **settings)
    assert result.intended == result.completed == 200
    assert result.request_log is not None
    assert server.stall_ns is not None
    log = read_request_log(result.request_log)
    intended_ns, latency_ns = log.intended_ns, log.latency_ns
    due_ns = result.window.start_ns + intended_ns
    caught = (due_ns >= server.stall_ns[0]) & (due_ns <= server.stall_ns[1])
    assert caught.sum() >= 50  # 60 are due in 0.3 s
    assert (due_ns[caught] + latency_ns[caught] >= server.stall_ns[1]).all()
    assert result.queued is not None
    assert (result.queued > 0) == (connections == 1)


def test_warm_up_is_the_same_load_and_leaves_no_log(client: Client, server: MisbehavingServer) -> None:
    HttpLoad(HttpSettings(warm_up_ns=SECOND // 20)).warm_up(client, server.endpoint, HttpObject("/ok", len(BODY)))
    assert server.lines
    assert not (client.directory / "requests.bin").exists()
    server.lines.clear()
    HttpLoad(HttpSettings(warm_up_ns=0)).warm_up(client, server.endpoint, HttpObject("/ok", len(BODY)))
    assert not server.lines


def test_the_generators_own_failure_is_an_error_with_its_words(client: Client, server: MisbehavingServer) -> None:
    with pytest.raises(TrialError, match=r"rate_per_s must be above 0"):
        drive(client, server.endpoint, "/ok", loop="open", rate_per_s=0.0)
    with pytest.raises(TrialError, match=r"requests.bin"):
        drive(replace(client, directory=Path("/nonexistent")), server.endpoint, "/ok")


def test_the_specification_says_what_the_settings_say(client: Client) -> None:
    endpoint = Endpoint("198.18.3.10", 3128, proxy=True, upstream="198.18.2.2:8080")
    pinned = replace(client, confinement=Confinement(cpus=frozenset({3, 1})), cpus=2)
    settings = HttpSettings(loop="open", rate_per_s=50.0, connections=7, log_requests=False)
    spec = specification(settings, pinned, endpoint, HttpObject("/1k", 1000), None)
    assert spec["target"] == {"address": "198.18.3.10:3128", "url": "http://198.18.2.2:8080/1k", "proxy": True}
    assert (spec["threads"], spec["cpus"], spec["request_log"]) == (2, [1, 3], None)
    assert spec["loop"]["open"]["max_connections"] == 7


def test_fetch_brings_evidence(client: Client, server: MisbehavingServer) -> None:
    answer = fetch(client, server.endpoint, "/ok")
    assert (answer.status, answer.length_bytes) == (200, len(BODY))
    assert answer.sha256 == hashlib.sha256(BODY).hexdigest()
    assert answer.headers["x-cache"] == "HIT"
    assert fetch(client, server.endpoint, "/unavailable").status == 503


def test_fetch_of_no_answer_is_an_error(client: Client, server: MisbehavingServer, closed_port: Endpoint) -> None:
    with pytest.raises(TrialError, match="ended within the answer"):
        fetch(client, server.endpoint, "/truncated")
    with pytest.raises(TrialError, match="Connection refused"):
        fetch(client, closed_port, "/ok")


def test_wait_until_ready(client: Client, server: MisbehavingServer, closed_port: Endpoint) -> None:
    ready = wait_until_ready(client, server.endpoint, "/ok", deadline_s=10)
    assert ready.attempts == 1
    with pytest.raises(TrialError, match=r"did not answer within 0\.05 s"):
        wait_until_ready(client, closed_port, deadline_s=0.05)
    assert wait_until_ready(client, server.endpoint, answer=False, deadline_s=10).waited_ns > 0
