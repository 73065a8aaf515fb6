"""Where a load's window ends, what is under way then, and whose fault a late request is: with the real generator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from loads_server import BODY, MisbehavingServer
from virtoll.binaries import binary
from virtoll.errors import TrialError
from virtoll.lab.client import Client
from virtoll.loads import http
from virtoll.loads.base import Measurement, late
from virtoll.loads.http import HttpLoad, HttpSession, HttpSettings
from virtoll.loads.native import driven, measurement_of
from virtoll.record.model import LATE_NS, Events, LogExtent, Measured, Window
from virtoll.record.objective import parse, values_of
from virtoll.study.model import LONGEST_IN_TURN_NS
from virtoll.trial import proofs
from virtoll.trial.notes import Notes
from virtoll.trial.request_log import read_request_log
from windows import longer

SECOND = 10**9


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as running:
        yield running


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path, lambda _phase: None)


def drive(client: Client, server: MisbehavingServer, **settings: Any) -> Measurement:
    """Patience is for slow machines."""
    load = HttpLoad(HttpSettings(object_bytes=len(BODY), **{"timeout_ns": 600 * SECOND, **settings}))
    with load.session(client, server.offer) as session:
        return session.measure()


def asked(measurement: Measurement) -> Events:
    return measurement.window.events["request"]


def partial(window: Window) -> float:
    """What is in the window's work of those that ended after it."""
    return window.work - window.counts["completed"]


def passed(notes: Notes) -> dict[str, bool | None]:
    return {check.name: check.passed for check in notes.checks}


# -- window and drain ------------------------------------------------------------------------------------


def test_a_request_that_hangs_is_in_no_rate(client: Client) -> None:
    """One of two connections hangs to its time-out; the other's answers belong to the second that was asked for."""
    lines: list[str] = []
    limits_ns: list[int] = []

    def measure(length_ns: int) -> Measurement:
        limits_ns.append(length_ns)
        with MisbehavingServer() as server:
            server.hang_at = 10
            measurement = drive(client, server, connections=2, time_limit_ns=length_ns, timeout_ns=3 * length_ns)
            lines[:] = server.lines
        return measurement

    measurement = longer(measure, lambda window: window.events["request"].failures == {"timeout": 1}, 1)
    window, events = measurement.window, asked(measurement)
    assert events.failures == {"timeout": 1}
    assert events.drain is not None
    assert events.drain.end_ns - window.end_ns >= SECOND
    assert window.duration_ns <= limits_ns[-1]
    assert window.counts["completed"] + events.drain.completed == events.completed == len(lines) - 1
    assert 1 <= events.drain.under_way <= 2
    assert window.rate_per_s is not None
    assert window.rate_per_s * window.duration_ns / SECOND == pytest.approx(window.work)
    assert 0 <= partial(window) <= 1, "the one that hung until its time-out is no part of it"


@pytest.mark.parametrize(("slow_s", "requests"), [(0.15, 0), (0.6, 0), (0.15, 4)])
def test_what_is_under_way_at_the_end_counts_for_its_part_within_the_window(
    client: Client, server: MisbehavingServer, slow_s: float, requests: int
) -> None:
    """Also of a service slower than the window, of which nothing is completed in it: the truth is in the log."""
    server.slow_s = slow_s
    limit_ns = 60 * SECOND if requests else SECOND // 2
    server.served_as = "/slow"
    measurement = drive(client, server, connections=3, requests=requests, time_limit_ns=limit_ns)
    window, drain = measurement.window, asked(measurement).drain
    assert measurement.bulk.log is not None
    log = read_request_log(measurement.bulk.log)
    end_ns = log.intended_ns + log.latency_ns
    after = end_ns > window.duration_ns
    parts = (window.duration_ns - log.intended_ns[after]) / log.latency_ns[after]
    assert drain is not None
    assert drain.under_way == after.sum() >= 1
    assert partial(window) == pytest.approx(parts.sum(), abs=1e-9)
    assert window.counts["completed"] == (~after).sum()
    assert window.rate_per_s is not None
    assert window.rate_per_s * window.duration_ns / 1e9 == pytest.approx((~after).sum() + parts.sum())


@pytest.mark.parametrize("told_by", ["by itself", "rotation"])
def test_a_window_begins_amid_its_load_and_tells_what_the_server_did_in_it(
    client: Client, server: MisbehavingServer, told_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users who all begin with the window are answered later and later, and half of them would be counted on top. The
    lead-in is ten times as long as it takes to answer each once: the server may be slower meanwhile, on a busy machine.
    """
    monkeypatch.setattr("virtoll.loads.native.LEAD_IN", 10.0 if told_by == "by itself" else 1.5)
    server.slow_s, server.served_as = 0.005, "/queue"
    load = HttpLoad(HttpSettings(object_bytes=len(BODY), connections=10, warm_up_ns=SECOND // 5, log_requests=False))
    windows = []
    with load.session(client, server.offer) as session:
        session.warm_up()
        for _ in range(8):
            if told_by == "rotation":
                session.lead_in(SECOND // 2)
            windows.append(session.measure(duration_ns=SECOND // 10).window)
    beyond = []
    for window in windows:
        done = sum(1 for at_ns in server.queued_ns if window.start_ns < at_ns <= window.end_ns)
        beyond.append(window.work - done)
        assert window.asked_ns is not None
        assert window.start_ns - window.asked_ns > 10 * 5_000_000, "each has been answered once"
        events = window.events["request"]
        assert events.completed == events.offered
        asked = sum(1 for at_ns in server.queued_ns if window.asked_ns < at_ns <= (window.until_ns or 0))
        assert window.served == pytest.approx(asked, abs=1), "what it cost is known whole"
    # Of most of them: who stands still at a window's end hears later of what was done in it.
    assert abs(median(beyond)) < 2, "it was 5, whatever the lead-in"


def test_a_lead_in_is_as_long_as_it_takes_to_answer_each_user_once(client: Client, server: MisbehavingServer) -> None:
    with HttpLoad(HttpSettings(connections=10, timeout_ns=SECOND)).session(client, server.offer) as session:
        assert isinstance(session, HttpSession)
        assert session.lead_ns == 0, "nobody knows"
        session._paces_per_s.update({10: 100.0, 20: 10.0})
        assert session.lead_ns == 15 * SECOND // 100
        assert (session.pace_per_s(10), session.pace_per_s(20), session.pace_per_s(30)) == (100, 10, 10)
        assert session._lead_in_ns(replace(session.load.settings, connections=20)) == SECOND, "no request lives longer"
        session.lead_in(SECOND // 4)
        assert session.lead_ns == SECOND // 4, "it is longer"
        assert session._lead_in_ns(replace(session.load.settings, connections=20)) == LONGEST_IN_TURN_NS
        session._leads_ns.clear()
        assert session._lead_in_ns(replace(session.load.settings, loop="open")) == 0


def test_what_fails_of_a_lead_in_is_told_by_itself(client: Client) -> None:
    def measure(length_ns: int) -> Measurement:
        settings = HttpSettings(object_bytes=len(BODY), connections=2, timeout_ns=length_ns // 3, warm_up_ns=0)
        with MisbehavingServer() as server, HttpLoad(settings).session(client, server.offer) as session:
            server.hang_at = 3
            session.lead_in(length_ns // 15)
            return session.measure(duration_ns=length_ns)

    def is_told(window: Window) -> bool:
        """A server that stands still may let others fail."""
        events = window.events["request"]
        return (events.failures, events.early_failures) == ({}, {"timeout": 1})

    window = longer(measure, is_told, 3).window
    events = window.events["request"]
    assert (events.failures, events.censored) == ({}, 0)
    assert events.offered == events.completed
    assert events.early_failures == {"timeout": 1}
    assert window.served == events.completed + events.early - 1
    assert window.served is not None
    assert window.served > events.completed, "the lead-in's too"


def all_held(client: Client, load: HttpLoad, lead_s: int) -> Measurement:
    """A window that begins in so many seconds, half a second after four requests were sent, at the least: they are held
    until it is over.
    """
    start_ns = time.monotonic_ns() + lead_s * SECOND
    with MisbehavingServer() as server, load.session(client, server.offer) as session:
        server.served_as, server.hold_until = "/held", 5  # a fifth never comes
        session.lead_in((lead_s - 1) * SECOND)
        release = threading.Timer(lead_s + 1.5, server.held.set)
        release.start()
        try:
            return session.measure(duration_ns=SECOND // 50, start_ns=start_ns)
        finally:
            release.join()


def test_a_window_through_which_all_wait_has_a_rate_and_no_event(client: Client, notes: Notes) -> None:
    load = HttpLoad(HttpSettings(object_bytes=len(BODY), connections=4, timeout_ns=600 * SECOND, log_requests=False))
    for lead_s in (2, 16, 128):  # a busy machine may be late
        try:
            measurement = all_held(client, load, lead_s)
        except TrialError as error:
            if "had passed by" not in str(error):
                raise
            continue
        if asked(measurement).offered == 0:
            break
    window, events = measurement.window, asked(measurement)
    assert (events.offered, events.completed, events.drain) == (0, 0, None)
    assert window.work > 0
    assert window.served == 4
    assert window.until_ns is not None
    assert window.until_ns > window.end_ns, "they were waited for"
    proofs.of_requests(notes, load.measured([measurement]))
    assert [check.passed for check in notes.checks] == [True]
    objectives = [parse("latency_p99 < 100 ms", {}), parse("failed < 1 %", {})]
    told = values_of(objectives, window, "request", measurement.bulk.histogram)
    assert list(told.values()) == [None, 0.0], "it is missed, and nothing failed"


@pytest.mark.parametrize("connections", [1, 2])
def test_a_number_of_requests_ends_its_window_when_the_last_is_sent(client: Client, connections: int) -> None:
    """The last one hangs: it is waited for, and the window ended when nothing was left to ask."""

    def measure(length_ns: int) -> Measurement:
        """The length of a time-out here."""
        with MisbehavingServer() as server:
            server.hang_at = 40
            bounds = {"requests": 40, "time_limit_ns": 600 * SECOND, "timeout_ns": length_ns}
            return drive(client, server, connections=connections, **bounds)

    measurement = longer(measure, lambda window: window.events["request"].failures == {"timeout": 1}, 1)
    window, events = measurement.window, asked(measurement)
    assert (events.offered, events.completed, events.failures) == (40, 39, {"timeout": 1})
    assert events.censored == 1
    assert events.drain is not None
    assert events.drain.end_ns - window.end_ns >= SECOND // 2
    assert window.counts["completed"] >= 40 - connections - 1


def test_the_time_limit_ends_the_window_of_a_number_that_is_not_reached(client: Client) -> None:
    limits_ns: list[int] = []

    def measure(length_ns: int) -> Measurement:
        limits_ns.append(length_ns)
        with MisbehavingServer() as server:
            server.hang_at = 5
            bounds = {"requests": 40, "time_limit_ns": length_ns, "timeout_ns": 2 * length_ns}
            return drive(client, server, connections=1, **bounds)

    measurement = longer(measure, lambda window: window.counts["completed"] == 4, 1)
    window, events = measurement.window, asked(measurement)
    assert (events.intended, events.offered, events.completed, window.counts["completed"]) == (40, 5, 4, 4)
    assert window.duration_ns <= limits_ns[-1]
    assert events.drain is not None
    assert events.drain.completed == 0


def test_the_generators_cpu_is_that_of_the_window(client: Client, server: MisbehavingServer) -> None:
    """An answer at full speed goes on long after the window: more CPU time than a thread could have used within it."""
    server.served_as = "/endless"
    used = drive(client, server, connections=1, time_limit_ns=SECOND // 10, timeout_ns=2 * SECOND).window.cpus
    assert used is not None
    assert 0 < used <= 1.05


def test_all_sent_at_once_is_no_rate_and_no_error(client: Client, server: MisbehavingServer, notes: Notes) -> None:
    one = drive(client, server, requests=1)
    assert (asked(one).completed, one.window.rate_per_s, one.window.duration_ns) == (1, None, 0)
    server.hold_until = len(server.lines) + 4
    server.served_as = "/held"
    many = drive(client, server, requests=4, connections=4)
    assert (asked(many).completed, many.window.counts["completed"], many.window.work) == (4, 0, 0.0)
    assert many.window.rate_per_s is None
    measured = HttpLoad().measured([one])
    proofs.of_generator(notes, measured, 1)
    proofs.of_requests(notes, measured)
    assert passed(notes) == {"the generator had headroom": None, "requests were answered": True}


# -- the generator's own lateness ------------------------------------------------------------------------


def stopped(client: Client, server: MisbehavingServer, stopped_s: float, **settings: Any) -> Measurement:
    """An open loop, more than six times as long as the generator is stopped in its midst."""
    limit_ns = round(stopped_s * 7 * SECOND)
    wanted = HttpSettings(object_bytes=len(BODY), loop="open", arrival="constant", time_limit_ns=limit_ns, **settings)
    log = client.directory / "requests.bin"
    spec = http.asked(wanted, server.offer) | driven(wanted, client, log, None)
    argv = [str(binary("virtoll-load")), "http"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(spec).encode())
        process.stdin.close()
        while len(server.lines) < 20:
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(stopped_s)
        os.kill(process.pid, signal.SIGCONT)
        return measurement_of(json.loads(process.stdout.read()), log)


@pytest.mark.parametrize(("connections", "rate_per_s"), [(200, 300.0), (4, 300.0), (1, 50.0)])
def test_a_generator_that_was_stopped_voids_the_trial(
    client: Client, server: MisbehavingServer, notes: Notes, connections: int, rate_per_s: float
) -> None:
    """Also where what was due queued for the few connections: the generator was not there to see them free."""
    for stopped_s in (0.3, 2.4, 19.2):  # a busy machine may come with it when the schedule is over
        server.lines.clear()
        measurement = stopped(client, server, stopped_s, connections=connections, rate_per_s=rate_per_s)
        events, log = asked(measurement), measurement.bulk.log
        assert events.late is not None
        if is_told := events.late >= (stopped_s - 0.1) * rate_per_s:  # the last 10 ms are no lateness
            break
    assert is_told
    proofs.of_generator(notes, HttpLoad(HttpSettings(loop="open")).measured([measurement]), 1)
    assert passed(notes)["the generator kept its schedule"] is False
    (told,) = (check.detail for check in notes.checks if check.name == "the generator kept its schedule")
    assert f"{events.late} of {events.offered} requests" in told
    assert log is not None
    late_ns = read_request_log(log).late_ns  # exact; of the histogram, a bucket is 0.4 % wide at most
    assert (late_ns >= LATE_NS).sum() >= events.late >= (late_ns >= 1.01 * LATE_NS).sum()


def made_up(beyond: int, offered: int) -> Measured:
    """An open loop of which ``beyond`` were sent late, by its histogram of lateness."""
    rows = [(50_000, 50_100, offered - beyond)]
    if beyond:
        rows.append((LATE_NS, LATE_NS + 100, beyond))
    events = Events(
        intended=offered, offered=offered, completed=offered, failures={}, censored=0, queued=0, late=late(rows)
    )
    window = Window(start_ns=0, duration_ns=SECOND, work=offered, events={"request": events}, cpu_ns=SECOND // 10)
    return Measured(name="http", instrument="made up", unit="request", loop="open", windows=[window])


@pytest.mark.parametrize(
    ("offered", "beyond", "kept"),
    [
        *[(1000, 0, True), (1000, 5, True), (1000, 6, False), (10_000, 50, True), (10_000, 51, False)],
        *[(210, 2, True), (210, 10, True), (210, 11, False), (40, 10, True), (40, 11, False)],
        *[(9, 0, True), (9, 1, False)],
    ],
)
def test_as_many_may_be_late_as_cannot_move_what_is_told(notes: Notes, offered: int, beyond: int, kept: bool) -> None:
    """Half of those beyond the highest percentile that has five beyond it: of 1,000 that is p99, of 210 p90."""
    proofs.of_generator(notes, made_up(beyond, offered), 1)
    assert passed(notes)["the generator kept its schedule"] is kept


# -- the request log -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_log_that_is_full_is_whole_up_to_where_it_says(client: Client, server: MisbehavingServer, cpus: int) -> None:
    """Requests 5 and later are held back, so that others end before them: their places are theirs all the same."""
    server.stall_at, server.stall_s = 5, 0.1
    log = client.directory / "requests.bin"
    schedule: dict[str, Any] = {"loop": "open", "arrival": "constant", "rate_per_s": 200.0}
    settings = HttpSettings(object_bytes=len(BODY), connections=40, time_limit_ns=SECOND // 2, **schedule)
    driving = driven(settings, replace(client, cpus=cpus), log, None)
    spec = http.asked(settings, server.offer) | driving | {"log_limit": 20}
    argv = [str(binary("virtoll-load")), "http"]
    done = subprocess.run(argv, input=json.dumps(spec).encode(), stdout=subprocess.PIPE, check=True)
    events = asked(measurement_of(json.loads(done.stdout), log))
    assert events.intended == 100
    intended_ns = read_request_log(log).intended_ns
    first_ns = int(intended_ns[0])
    assert list(intended_ns - first_ns) == list(np.arange(20) * 5_000_000)  # one each 5 ms
    assert events.log == LogExtent(logged=20, whole_until_ns=first_ns + 100_000_000)


def test_a_log_with_room_is_whole(client: Client, server: MisbehavingServer) -> None:
    measurement = drive(client, server, requests=30, connections=3)
    assert asked(measurement).log == LogExtent(logged=30, whole_until_ns=None)
    without = drive(client, server, requests=30, log_requests=False)
    assert (asked(without).log, without.bulk.log) == (None, None)


# -- fairness --------------------------------------------------------------------------------------------


def test_a_flood_on_one_connection_ends_with_its_time_out(client: Client, server: MisbehavingServer) -> None:
    """An answer without an end, at full speed, on the thread's only connection, and on one of two."""
    server.served_as = "/endless"
    for connections in (1, 2):
        measurement = drive(client, server, connections=connections, requests=connections, timeout_ns=SECOND // 5)
        assert asked(measurement).failures == {"timeout": connections}
