"""Where a load's window ends, what is under way then, and whose fault a late request is: with the real generator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loads_server import BODY, MisbehavingServer, misbehaving_server
from virtoll.binaries import binary
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads.base import HttpObject, LoadResult
from virtoll.loads.http import HttpLoad, HttpSettings, read_request_log, result_of, specification
from virtoll.record.model import LATE_NS, LoadWindow, LogExtent
from virtoll.trial import proofs
from virtoll.trial.notes import Notes

SECOND = 10**9
OBJECT = HttpObject("/ok", len(BODY))


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with misbehaving_server() as running:
        yield running


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(LocalHost(), Confinement(), tmp_path, cpus=1)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path, lambda _phase: None)


def passed(notes: Notes) -> dict[str, bool | None]:
    return {check.name: check.passed for check in notes.checks}


# -- window and drain ------------------------------------------------------------------------------------


def test_a_request_that_hangs_is_in_no_rate(client: Client, server: MisbehavingServer) -> None:
    """One of two connections hangs to its time-out; the other's answers belong to the second that was asked for."""
    server.hang_at = 10
    settings = HttpSettings(connections=2, time_limit_ns=SECOND, timeout_ns=3 * SECOND)
    result = HttpLoad(settings).drive(client, server.endpoint, OBJECT)
    assert result.failures == {"timeout": 1}
    assert result.drain is not None
    assert result.drain.end_ns - result.window.end_ns >= SECOND
    assert result.window.duration_ns <= SECOND
    assert result.window.completed + result.drain.completed == result.completed == len(server.lines) - 1
    assert 1 <= result.drain.under_way <= 2
    rate = result.window.requests_per_s
    assert rate is not None
    assert rate >= result.window.completed
    assert result.window.partial is not None
    assert result.window.partial <= 1, "the one that hung until its time-out is no part of it"


@pytest.mark.parametrize(("slow_s", "requests"), [(0.15, 0), (0.6, 0), (0.15, 4)])
def test_what_is_under_way_at_the_end_counts_for_its_part_within_the_window(
    client: Client, server: MisbehavingServer, slow_s: float, requests: int
) -> None:
    """Also of a service slower than the window, of which nothing is completed in it: the truth is in the log."""
    server.slow_s = slow_s
    limit_ns = 60 * SECOND if requests else SECOND // 2
    settings = HttpSettings(connections=3, requests=requests, time_limit_ns=limit_ns)
    result = HttpLoad(settings).drive(client, server.endpoint, HttpObject("/slow", len(BODY)))
    assert result.request_log is not None
    log = read_request_log(result.request_log)
    end_ns = log.intended_ns + log.latency_ns
    after = end_ns > result.window.duration_ns
    parts = (result.window.duration_ns - log.intended_ns[after]) / log.latency_ns[after]
    assert result.drain is not None
    assert result.drain.under_way == after.sum() >= 1
    assert result.window.partial == pytest.approx(parts.sum(), abs=1e-9)
    assert result.window.completed == (~after).sum()
    rate = result.window.requests_per_s
    assert rate is not None
    assert rate * result.window.duration_ns / 1e9 == pytest.approx((~after).sum() + parts.sum())


@pytest.mark.parametrize("connections", [1, 2])
def test_a_number_of_requests_ends_its_window_when_the_last_is_sent(
    client: Client, server: MisbehavingServer, connections: int
) -> None:
    """The last one hangs: it is waited for, and the window ended when nothing was left to ask."""
    server.hang_at = 40
    settings = HttpSettings(connections=connections, requests=40, time_limit_ns=60 * SECOND, timeout_ns=SECOND)
    result = HttpLoad(settings).drive(client, server.endpoint, OBJECT)
    assert (result.offered, result.completed, result.failures) == (40, 39, {"timeout": 1})
    assert result.drain is not None
    assert result.drain.end_ns - result.window.end_ns >= SECOND // 2
    assert result.window.completed >= 40 - connections - 1


def test_the_time_limit_ends_the_window_of_a_number_that_is_not_reached(
    client: Client, server: MisbehavingServer
) -> None:
    server.hang_at = 5
    settings = HttpSettings(connections=1, requests=40, time_limit_ns=SECOND, timeout_ns=2 * SECOND)
    result = HttpLoad(settings).drive(client, server.endpoint, OBJECT)
    assert (result.offered, result.completed, result.window.completed) == (5, 4, 4)
    assert result.window.duration_ns <= SECOND
    assert result.drain is not None
    assert result.drain.completed == 0


def test_the_generators_cpu_is_that_of_the_window(client: Client, server: MisbehavingServer) -> None:
    """An answer at full speed goes on long after the window: more CPU time than a thread could have used within it."""
    settings = HttpSettings(connections=1, time_limit_ns=SECOND // 10, timeout_ns=2 * SECOND)
    result = HttpLoad(settings).drive(client, server.endpoint, HttpObject("/endless", len(BODY)))
    used = result.window.generator_cpus
    assert used is not None
    assert 0 < used <= 1.05


def test_all_sent_at_once_is_no_rate_and_no_error(client: Client, server: MisbehavingServer, notes: Notes) -> None:
    result = HttpLoad(HttpSettings(requests=1)).drive(client, server.endpoint, OBJECT)
    assert (result.completed, result.window.requests_per_s, result.window.duration_ns) == (1, None, 0)
    server.hold_until = len(server.lines) + 4
    held = HttpObject("/held", len(BODY))
    many = HttpLoad(HttpSettings(requests=4, connections=4)).drive(client, server.endpoint, held)
    assert (many.completed, many.window.completed, many.window.partial) == (4, 0, None)
    assert many.window.requests_per_s is None
    proofs.of_load(notes, result, 1)
    assert passed(notes) == {"the generator had headroom": None, "requests were answered": True}


# -- the generator's own lateness ------------------------------------------------------------------------


def stopped(client: Client, server: MisbehavingServer, stopped_s: float, **settings: Any) -> LoadResult:
    """Two seconds of an open loop, the generator stopped for a while in their midst."""
    asked = HttpSettings(loop="open", arrival="constant", time_limit_ns=2 * SECOND, **settings)
    log = client.directory / "requests.bin"
    spec = specification(asked, client, server.endpoint, OBJECT, log)
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
        return result_of(json.loads(process.stdout.read()), log)


@pytest.mark.parametrize(("connections", "rate_per_s"), [(200, 300.0), (4, 300.0), (1, 50.0)])
def test_a_generator_that_was_stopped_voids_the_trial(
    client: Client, server: MisbehavingServer, notes: Notes, connections: int, rate_per_s: float
) -> None:
    """Also where what was due queued for the few connections: the generator was not there to see them free."""
    result = stopped(client, server, 0.3, connections=connections, rate_per_s=rate_per_s)
    assert result.late is not None
    assert result.late >= 0.2 * rate_per_s  # of 0.3 s, the last 10 ms are no lateness
    proofs.of_generator(notes, result, 1)
    assert passed(notes)["the generator kept its schedule"] is False
    (told,) = (check.detail for check in notes.checks if check.name == "the generator kept its schedule")
    assert f"{result.late} of {result.offered} requests" in told
    assert result.request_log is not None
    late_ns = read_request_log(result.request_log).late_ns  # exact; of the histogram, a bucket is 0.4 % wide at most
    assert (late_ns >= LATE_NS).sum() >= result.late >= (late_ns >= 1.01 * LATE_NS).sum()


def made_up(late: int, offered: int) -> LoadResult:
    rows = [(50_000, 50_100, offered - late)]
    if late:
        rows.append((LATE_NS, LATE_NS + 100, late))
    window = LoadWindow(
        start_ns=0, end_ns=SECOND, completed=offered, body_bytes=0, cpu_user_ns=0, cpu_system_ns=SECOND // 10
    )
    return LoadResult("open", offered, offered, offered, {}, window, None, None, lateness=rows)


@pytest.mark.parametrize(
    ("offered", "late", "kept"),
    [
        *[(1000, 0, True), (1000, 5, True), (1000, 6, False), (10_000, 50, True), (10_000, 51, False)],
        *[(210, 2, True), (210, 10, True), (210, 11, False), (40, 10, True), (40, 11, False)],
        *[(9, 0, True), (9, 1, False)],
    ],
)
def test_as_many_may_be_late_as_cannot_move_what_is_told(notes: Notes, offered: int, late: int, kept: bool) -> None:
    """Half of those beyond the highest percentile that has five beyond it: of 1,000 that is p99, of 210 p90."""
    proofs.of_generator(notes, made_up(late, offered), 1)
    assert passed(notes)["the generator kept its schedule"] is kept


# -- the request log -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_log_that_is_full_is_whole_up_to_where_it_says(client: Client, server: MisbehavingServer, cpus: int) -> None:
    """Requests 5 and later are held back, so that others end before them: their places are theirs all the same."""
    server.stall_at, server.stall_s = 5, 0.1
    log = client.directory / "requests.bin"
    settings = HttpSettings(
        loop="open", arrival="constant", rate_per_s=200.0, connections=40, time_limit_ns=SECOND // 2
    )
    spec = specification(settings, replace(client, cpus=cpus), server.endpoint, OBJECT, log) | {"log_limit": 20}
    argv = [str(binary("virtoll-load")), "http"]
    done = subprocess.run(argv, input=json.dumps(spec).encode(), stdout=subprocess.PIPE, check=True)
    result = result_of(json.loads(done.stdout), log)
    assert result.intended == 100
    assert result.log == LogExtent(logged=20, whole_until_ns=100_000_000)  # one each 5 ms
    assert list(read_request_log(log).intended_ns) == list(np.arange(20) * 5_000_000)


def test_a_log_with_room_is_whole(client: Client, server: MisbehavingServer) -> None:
    result = HttpLoad(HttpSettings(requests=30, connections=3)).drive(client, server.endpoint, OBJECT)
    assert result.log == LogExtent(logged=30, whole_until_ns=None)
    without = HttpLoad(HttpSettings(requests=30, log_requests=False)).drive(client, server.endpoint, OBJECT)
    assert without.log is None


# -- fairness --------------------------------------------------------------------------------------------


def test_a_flood_on_one_connection_ends_with_its_time_out(client: Client, server: MisbehavingServer) -> None:
    """An answer without an end, at full speed, on the thread's only connection, and on one of two."""
    for connections in (1, 2):
        settings = HttpSettings(connections=connections, requests=connections, timeout_ns=SECOND // 5)
        result = HttpLoad(settings).drive(client, server.endpoint, HttpObject("/endless", len(BODY)))
        assert result.failures == {"timeout": connections}
