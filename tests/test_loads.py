"""The native generator, for real, against a server on loopback that misbehaves on demand."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from loads_server import BODY, MisbehavingServer
from rtmp_server import wait_for
from virtoll.errors import TrialError
from virtoll.hosts.base import Confinement
from virtoll.lab.client import Client, wait_until_ready
from virtoll.loads import http
from virtoll.loads.base import Measurement, at_intensity, loads
from virtoll.loads.http import HttpLoad, HttpSession, HttpSettings
from virtoll.loads.native import driven, measurement_of
from virtoll.offers import Http
from virtoll.trial.request_log import read_request_log

SECOND = 10**9
LOGGED_AS = {"length": -5, "status": 503, "reset": -3, "parse": -6}


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as running:
        yield running


def drive(client: Client, offer: Http, **settings: Any) -> Measurement:
    """Patience is for slow machines."""
    defaults: dict[str, Any] = {"requests": 20, "connections": 2}
    defaults |= {"time_limit_ns": 600 * SECOND, "timeout_ns": 600 * SECOND}
    load = HttpLoad(HttpSettings(**{"object_bytes": len(BODY), **defaults, **settings}))
    with load.session(client, offer) as session:
        return session.measure()


def test_every_load_is_registered_with_settings_that_have_defaults() -> None:
    assert set(loads()) >= {"http", "ab", "wrk", "siege"}
    for name, cls in loads().items():
        assert cls.summary
        if name != "command":  # it is nothing until a study says what is run
            assert cls().settings == cls.Settings()


@pytest.mark.parametrize(
    ("loop", "intensity", "told"),
    [
        ("closed", None, (7, 50.0)),
        ("closed", 2.6, (3, 50.0)),
        ("open", None, (7, 50.0)),
        ("open", 2.6, (7, 2.6)),
    ],
)
def test_an_intensity_is_of_users_or_of_arrivals_as_the_loop_says(
    loop: Literal["closed", "open"], intensity: float | None, told: tuple[int, float]
) -> None:
    settings = HttpSettings(loop=loop, connections=7, rate_per_s=50.0)
    found = at_intensity(settings, loop, intensity, users="connections")
    assert (found.connections, found.rate_per_s) == told


@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("path", ["/ok", "/chunked", "/torn", "/until-close"])
def test_correct_answers_are_completed(
    client: Client, server: MisbehavingServer, path: str, keep_alive: bool, connections: int
) -> None:
    server.served_as = path
    measurement = drive(client, server.offer, connections=connections, keep_alive=keep_alive)
    window, bulk = measurement.window, measurement.bulk
    asked = window.events["request"]
    assert (asked.intended, asked.offered, asked.completed, asked.failures) == (20, 20, 20, {})
    assert asked.censored == 0
    assert window.counts["body_bytes"] == window.counts["completed"] * len(BODY)
    assert asked.drain is not None
    assert window.counts["completed"] + asked.drain.completed == 20
    assert 1 <= asked.drain.under_way == asked.drain.completed <= connections
    assert bulk.histogram is not None
    assert sum(count for _, _, count in bulk.histogram) == 20
    assert all(0 < lower < upper for lower, upper, _ in bulk.histogram)
    assert window.start_ns < window.end_ns <= asked.drain.end_ns
    assert (bulk.lateness, asked.late, asked.queued) == (None, None, None)
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
    server.served_as = path
    measurement = drive(client, server.offer, connections=connections)
    asked = measurement.window.events["request"]
    assert (asked.offered, asked.completed, asked.failures, asked.censored) == (20, 0, {kind: 20}, 20)
    assert measurement.bulk.histogram == []
    assert measurement.bulk.log is not None
    assert set(read_request_log(measurement.bulk.log).status) == {LOGGED_AS[kind]}


@pytest.fixture
def closed_port() -> Iterator[Http]:
    """Held for the length of the test, so that nobody else comes to listen there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield Http("127.0.0.1", held.getsockname()[1])


@pytest.mark.parametrize("connections", [1, 3])
def test_a_refused_connection_is_a_failure_to_connect(client: Client, closed_port: Http, connections: int) -> None:
    asked = drive(client, closed_port, connections=connections, requests=6).window.events["request"]
    assert (asked.completed, asked.failures) == (0, {"connect": 6})


@pytest.mark.parametrize("connections", [1, 3])
def test_no_answer_in_time_is_a_timeout(client: Client, server: MisbehavingServer, connections: int) -> None:
    server.served_as = "/silent"
    measurement = drive(client, server.offer, connections=connections, requests=3, timeout_ns=SECOND // 10)
    asked = measurement.window.events["request"]
    assert (asked.offered, asked.failures) == (3, {"timeout": 3})
    assert measurement.bulk.log is not None
    assert (read_request_log(measurement.bulk.log).latency_ns >= SECOND // 10).all()


@pytest.mark.parametrize("connections", [1, 3])
def test_what_is_under_way_at_the_time_limit_is_waited_for(
    client: Client, server: MisbehavingServer, connections: int
) -> None:
    server.served_as = "/silent"
    bounds = {"requests": 0, "time_limit_ns": SECOND // 5, "timeout_ns": SECOND // 2}
    asked = drive(client, server.offer, connections=connections, **bounds).window.events["request"]
    assert (asked.offered, asked.failures) == (connections, {"timeout": connections})


@pytest.mark.parametrize("connections", [1, 2])
def test_big_bodies_are_counted_to_the_byte(client: Client, server: MisbehavingServer, connections: int) -> None:
    server.served_as = "/big"
    window = drive(client, server.offer, object_bytes=3_000_000, requests=4, connections=connections).window
    assert window.events["request"].completed == 4
    assert window.counts["body_bytes"] == window.counts["completed"] * 3_000_000


def test_a_proxy_is_sent_absolute_urls(client: Client, server: MisbehavingServer) -> None:
    proxy = replace(server.offer, proxy=True, upstream="198.18.2.2:8080")
    assert drive(client, proxy, requests=1).window.events["request"].completed == 1
    assert server.lines == ["GET http://198.18.2.2:8080/o/1000 HTTP/1.1"]
    assert client.get(proxy, "/ok").status == 200
    assert server.lines[-1] == "GET http://198.18.2.2:8080/ok HTTP/1.1"


def test_several_threads_share_the_requests(client: Client, server: MisbehavingServer) -> None:
    measurement = drive(replace(client, cpus=2), server.offer, connections=5, requests=101)
    asked = measurement.window.events["request"]
    assert (asked.offered, asked.completed, len(server.lines)) == (101, 101, 101)
    assert measurement.bulk.log is not None
    intended_ns = read_request_log(measurement.bulk.log).intended_ns
    assert len(intended_ns) == 101
    assert (np.diff(intended_ns) >= 0).all()


@pytest.mark.parametrize("arrival", ["constant", "poisson"])
@pytest.mark.parametrize("keep_alive", [True, False])
def test_open_loop_sends_its_schedule(
    client: Client, server: MisbehavingServer, arrival: str, keep_alive: bool
) -> None:
    settings = {"loop": "open", "arrival": arrival, "rate_per_s": 200.0, "connections": 50, "keep_alive": keep_alive}
    measurement = drive(client, server.offer, time_limit_ns=SECOND // 2, **settings)
    asked, bulk = measurement.window.events["request"], measurement.bulk
    assert asked.offered == asked.completed == asked.intended == len(server.lines)
    assert asked.failures == {}
    if arrival == "constant":
        assert asked.intended == 100
    assert bulk.log is not None
    log = read_request_log(bulk.log)
    intended_ns, latency_ns, status = log.intended_ns, log.latency_ns, log.status
    assert (np.diff(intended_ns) >= 0).all()
    assert intended_ns[-1] < SECOND // 2
    assert (latency_ns > 0).all()
    assert set(status) == {200}
    assert bulk.lateness is not None
    assert sum(count for _, _, count in bulk.lateness) == asked.offered


@pytest.mark.parametrize(
    "connections", [1, 200]
)  # with one for each request, none waits for one, however long the stall
def test_a_stall_is_charged_to_every_request_that_was_due_in_it(client: Client, connections: int) -> None:
    """The test of coordinated omission: no request that was due in the stall may look faster than the stall's rest."""
    settings: dict[str, Any] = {"loop": "open", "arrival": "constant", "rate_per_s": 200.0}
    for seconds in (1, 4, 16):  # where somebody stood still before, the stall may come when all has been sent
        most = 1 if connections == 1 else seconds * connections
        with MisbehavingServer() as server:
            server.stall_at, server.stall_s = 20, 0.3
            measurement = drive(client, server.offer, connections=most, time_limit_ns=seconds * SECOND, **settings)
        asked = measurement.window.events["request"]
        assert asked.intended == asked.completed == 200 * seconds
        assert measurement.bulk.log is not None
        assert server.stall_ns is not None
        stall_ns: tuple[int, int] = server.stall_ns
        log = read_request_log(measurement.bulk.log)
        intended_ns, latency_ns = log.intended_ns, log.latency_ns
        due_ns = measurement.window.start_ns + intended_ns
        caught = (due_ns >= stall_ns[0]) & (due_ns <= stall_ns[1])
        if caught.sum() >= 50:  # 60 are due in 0.3 s
            break
    assert caught.sum() >= 50
    assert (due_ns[caught] + latency_ns[caught] >= stall_ns[1]).all()
    assert asked.queued is not None
    assert (asked.queued > 0) == (connections == 1)


def test_warm_up_is_the_same_load_and_leaves_no_log(client: Client, server: MisbehavingServer) -> None:
    with HttpLoad(HttpSettings(warm_up_ns=SECOND // 20)).session(client, server.offer) as session:
        session.warm_up()
        wait_for(lambda: server.lines)
    assert list(client.directory.iterdir()) == []
    server.lines.clear()
    with HttpLoad(HttpSettings(warm_up_ns=0)).session(client, server.offer) as session:
        session.warm_up()
    assert not server.lines


def test_the_generators_own_failure_is_an_error_with_its_words(client: Client, server: MisbehavingServer) -> None:
    with pytest.raises(TrialError, match=r"rate_per_s must be above 0"):
        drive(client, server.offer, loop="open", rate_per_s=0.0)
    with pytest.raises(TrialError, match=r"/nonexistent/requests.*\.bin"):
        drive(replace(client, directory=Path("/nonexistent")), server.offer)


@pytest.mark.parametrize(("loop", "connections", "threads"), [("closed", 7, 2), ("open", 31, 1), ("open", 32, 2)])
def test_a_thread_of_an_open_loop_has_connections_enough(
    loop: Literal["closed", "open"], connections: int, threads: int, client: Client
) -> None:
    settings = HttpSettings(loop=loop, connections=connections)
    assert driven(settings, replace(client, cpus=2), None, None)["threads"] == threads
    assert loop == "closed" or HttpLoad(settings).usable_cpus(2) == threads


def test_the_specification_says_what_the_settings_say(client: Client) -> None:
    offer = Http("198.18.3.10", 3128, proxy=True, upstream="198.18.2.2:8080")
    pinned = replace(client, confinement=Confinement(cpus=frozenset({3, 1})), cpus=2)
    settings = HttpSettings(object_bytes=1234, loop="open", rate_per_s=50.0, connections=7, log_requests=False)
    spec = http.asked(settings, offer) | driven(settings, pinned, None, None)
    url = "http://198.18.2.2:8080/o/1234"
    assert spec["target"] == {"address": "198.18.3.10:3128", "url": url, "proxy": True, "tls": None}
    assert (spec["threads"], spec["cpus"], spec["request_log"]) == (1, [1, 3], None)
    assert spec["loop"]["open"]["max_connections"] == 7
    assert spec["expect"] == {"status": 200, "length_bytes": 1234}


@dataclass
class Generator:
    """Stands in for the native one: keeps what it was asked, and reports that nothing came of it."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    within_s: list[float] = field(default_factory=list)

    def told(self, spec: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.asked.append(spec)
        self.within_s.append(timeout_s)
        counts = dict.fromkeys(("intended", "offered", "completed"), 0)
        window = dict.fromkeys(("start_ns", "end_ns", "completed", "body_bytes", "cpu_user_ns", "cpu_system_ns"), 0)
        nothing: dict[str, Any] = {
            "failures": {},
            "histogram": [],
            "queued": None,
            "drain": None,
            "lead_in": None,
            "users": None,
            "log": None,
            "lateness": None,
        }
        return {**counts, **nothing, "window": {**window, "partial": None}}


def test_what_failed_of_the_lead_in_is_told_by_itself() -> None:
    report = Generator().told({}, 0) | {"offered": 3, "completed": 2, "failures": {"status": 1}}
    report["lead_in"] = {"start_ns": 1, "completed": 5, "end_ns": 9, "failures": {"timeout": 2}}
    window = measurement_of(report, None).window
    events = window.events["request"]
    assert (events.offered, events.failures, events.censored) == (3, {"status": 1}, 1)
    assert (events.early, events.early_failures, events.failed_share) == (7, {"timeout": 2}, 0.3)
    assert (window.served, window.until_ns) == (5, 9)


def test_how_long_users_were_still_to_come_is_told_of_a_closed_loop() -> None:
    users = {"beginning_ns": 30_000_000, "there_ns": 5_000_000_000}
    counts = measurement_of(Generator().told({}, 0) | {"users": users}, None).window.counts
    assert (counts["starting_ms"], counts["there_ms"]) == (30, 5000)
    assert "there_ms" not in measurement_of(Generator().told({}, 0), None).window.counts


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Generator:
    double = Generator()
    monkeypatch.setattr(HttpSession, "_told", lambda _self, spec, timeout_s: double.told(spec, timeout_s))
    return double


def test_users_and_duration_override_the_settings_for_one_window(client: Client, generator: Generator) -> None:
    settings = HttpSettings(connections=2, requests=500, time_limit_ns=10 * SECOND, timeout_ns=SECOND)
    with HttpLoad(settings).session(replace(client, cpus=2), Http("198.18.3.10", 8080)) as session:
        session.warm_up()
        plain = session.measure()
        crowd = session.measure(intensity=30, duration_ns=4 * SECOND, start_ns=77)
        alone = session.measure(intensity=1)
        session.measure()
    as_set = {"connections": 2, "requests": 500, "time_limit_ns": 10 * SECOND}
    assert [spec["loop"]["closed"] for spec in generator.asked] == [
        {"connections": 2, "requests": None, "time_limit_ns": SECOND},
        as_set,
        {"connections": 30, "requests": None, "time_limit_ns": 4 * SECOND},  # no number of requests ends it before
        {**as_set, "connections": 1},
        as_set,
    ]
    assert [spec["threads"] for spec in generator.asked] == [2, 2, 2, 1, 2]
    assert [spec.get("start_ns") for spec in generator.asked] == [None, None, 77, None, None]
    assert generator.within_s == [2, 13, 7, 13, 13]
    assert [spec["lead_in_most_ns"] for spec in generator.asked] == [0, *[2 * SECOND] * 4]
    assert [measurement.window.at for measurement in (plain, crowd, alone)] == [None, 30, 1]


def test_arrivals_and_duration_override_the_settings_for_one_window(client: Client, generator: Generator) -> None:
    settings = HttpSettings(loop="open", rate_per_s=100.0, connections=50, time_limit_ns=10 * SECOND, seed=3)
    with HttpLoad(settings).session(client, Http("198.18.3.10", 8080)) as session:
        plain, faster = session.measure(), session.measure(intensity=250.5, duration_ns=2 * SECOND)
    as_set = {"rate_per_s": 100.0, "arrival": "poisson", "duration_ns": 10 * SECOND, "seed": 3, "max_connections": 50}
    assert [spec["loop"] for spec in generator.asked] == [
        {"open": as_set},
        {"open": {**as_set, "rate_per_s": 250.5, "duration_ns": 2 * SECOND, "seed": 4}},  # a schedule of its own
    ]
    assert (plain.window.at, faster.window.at) == (None, 250.5)


def test_a_session_measured_twice_keeps_both_windows_apart(client: Client, server: MisbehavingServer) -> None:
    settings = HttpSettings(connections=2, requests=20, warm_up_ns=SECOND // 20)
    load = HttpLoad(settings)
    with load.session(client, server.offer) as session:
        session.warm_up()
        before = len(server.lines)
        first = session.measure()
        between = len(server.lines)
        second = session.measure(duration_ns=SECOND // 4, intensity=3)
    assert first.window.events["request"].offered == 20
    assert between - before == first.window.served, "with its lead-in"
    drain = first.window.events["request"].drain
    assert drain is not None
    assert drain.end_ns < second.window.start_ns
    assert second.window.served == len(server.lines) - between
    assert 0 < second.window.events["request"].completed < second.window.served
    for measurement, most_ns in ((first, settings.time_limit_ns), (second, SECOND // 4)):
        asked = measurement.window.events["request"]
        assert measurement.window.duration_ns <= most_ns
        assert measurement.bulk.log is not None
        log = read_request_log(measurement.bulk.log)
        assert len(log.status) == asked.completed
        assert measurement.bulk.histogram is not None
        assert sum(count for _, _, count in measurement.bulk.histogram) == asked.completed
    measured = load.measured([first, second])
    assert measured.windows == [first.window, second.window]
    assert [window.at for window in measured.windows] == [None, 3]
    assert (measured.name, measured.unit, measured.loop) == ("http", "request", "closed")
    assert (measured.instrument, measured.settings) == (first.instrument, asdict(settings))


def test_fetch_brings_evidence(client: Client, server: MisbehavingServer) -> None:
    answer = client.get(server.offer, "/ok")
    assert (answer.status, answer.length_bytes) == (200, len(BODY))
    assert answer.sha256 == hashlib.sha256(BODY).hexdigest()
    assert answer.headers["x-cache"] == "HIT"
    assert client.get(server.offer, "/unavailable").status == 503


def test_fetch_of_no_answer_is_an_error(client: Client, server: MisbehavingServer, closed_port: Http) -> None:
    with pytest.raises(TrialError, match="ended within the answer"):
        client.get(server.offer, "/truncated")
    with pytest.raises(TrialError, match="Connection refused"):
        client.get(closed_port, "/ok")


def test_wait_until_ready(client: Client, server: MisbehavingServer, closed_port: Http) -> None:
    ready = wait_until_ready(client, server.offer, "/ok", deadline_s=600)
    assert ready.attempts <= 1 + ready.waited_ns // (5 * SECOND), "each waits for 5 s, if need be"
    with pytest.raises(TrialError, match=r"did not answer within 0\.05 s"):
        wait_until_ready(client, closed_port, deadline_s=0.05)
    assert wait_until_ready(client, server.offer, answer=False, deadline_s=600).waited_ns > 0


def test_all_windows_of_a_session_are_one_process_s_and_each_has_its_own_connections(
    client: Client, server: MisbehavingServer
) -> None:
    load = HttpLoad(HttpSettings(requests=20, connections=2, object_bytes=len(BODY), keep_alive=True))
    with load.session(client, server.offer) as session:
        assert isinstance(session, HttpSession)
        windows = [session.measure().window for _ in range(3)]
        (conversation,) = session._there
        assert conversation._process.poll() is None
    assert [window.events["request"].completed for window in windows] == [20] * 3
    assert [window.end_ns < after.start_ns for window, after in pairwise(windows)] == [True] * 2
    assert conversation._process.poll() == 0


def test_a_generator_that_is_killed_fails_its_window_and_no_other(client: Client, server: MisbehavingServer) -> None:
    load = HttpLoad(HttpSettings(requests=20, connections=2, object_bytes=len(BODY)))
    with load.session(client, server.offer) as session:
        assert isinstance(session, HttpSession)
        session.measure()
        session._there[0]._process.kill()
        with pytest.raises(TrialError, match="virtoll-load http: it was ended by signal 9"):
            session.measure()
        assert session.measure().window.events["request"].completed == 20


def test_what_the_generator_refuses_is_told_in_its_own_words(client: Client, server: MisbehavingServer) -> None:
    load = HttpLoad(HttpSettings(object_bytes=len(BODY)))
    with load.session(client, server.offer) as session, pytest.raises(TrialError, match="had passed"):
        session.measure(start_ns=1)
