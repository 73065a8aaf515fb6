"""Searches by the real generator, on loopback: each load takes its intensity, and tells what is judged."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from loads_server import MisbehavingServer
from resp_server import MisbehavingRedis
from viewers_server import MediaServer
from virtoll.lab.client import Client
from virtoll.loads.base import Load, Measurement
from virtoll.loads.http import HttpLoad, HttpSession, HttpSettings
from virtoll.loads.redis import RedisLoad, RedisSettings
from virtoll.loads.viewers import ViewersLoad, ViewersSettings
from virtoll.offers import Offer
from virtoll.record.knee import Knee as Found
from virtoll.record.model import ALL_THERE, Measured
from virtoll.study.model import Knee
from virtoll.trial.searching import KneeSearch

SECOND = 10**9
# Kept by whatever answers, however busy the machine is.
ANY = ("latency_p99 < 1000 s", "failed < 50 %")
PATIENCE: dict[str, Any] = {"timeout_ns": 600 * SECOND}


def searched(client: Client, load: Load, offer: Offer, least: int, most: int, *more: str) -> tuple[Measured, Found]:
    settings = Knee((*ANY, *more), least, most, precision_share=1.0, window_ns=SECOND // 4, windows=1)
    search = KneeSearch(settings, load, client.cpus, "b01-t0001")
    with load.session(client, offer) as session:
        while search.asked is not None:
            search.gather(session)
            search.measure(session)
    measured = search.measured()
    assert measured.knee is not None
    assert measured.windows[0].at == least
    return measured, measured.knee


@pytest.fixture
def web() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as running:
        yield running


def test_a_web_server_is_asked_at_higher_rates_until_the_most(client: Client, web: MisbehavingServer) -> None:
    settings = HttpSettings(loop="open", connections=50, log_requests=False, warm_up_ns=0, **PATIENCE)
    measured, knee = searched(client, HttpLoad(settings), web.offer, 20, 80)
    assert (knee.ended, knee.lower, knee.unit) == ("beyond most", 80, "requests/s")
    asked = [window.events["request"].intended for window in measured.windows]
    assert asked[0] < asked[-1], "its schedule has four times as many"
    assert all(step.values["latency_p99_ms"] is not None for step in knee.steps)


def test_a_web_server_is_asked_by_more_users_until_the_most(client: Client, web: MisbehavingServer) -> None:
    load = HttpLoad(HttpSettings(loop="closed", log_requests=False, warm_up_ns=0, **PATIENCE))
    _, knee = searched(client, load, web.offer, 1, 4)
    assert (knee.ended, knee.lower, knee.unit) == ("beyond most", 4, "users")


def test_a_level_that_does_not_take_its_users_in_is_not_met(
    client: Client, web: MisbehavingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the others say, who are served the faster for it: and no generator is in the way."""
    measure = HttpSession.measure

    def measured(session: HttpSession, *, intensity: float, duration_ns: int) -> Measurement:
        measurement = measure(session, intensity=intensity, duration_ns=duration_ns)
        told = {"starting_ms": 100 if intensity > 2 else 0, "there_ms": 1000}
        counts = measurement.window.counts | told
        return replace(measurement, window=measurement.window.model_copy(update={"counts": counts}))

    monkeypatch.setattr(HttpSession, "measure", measured)
    load = HttpLoad(HttpSettings(loop="closed", log_requests=False, warm_up_ns=0, **PATIENCE))
    _, knee = searched(client, load, web.offer, 2, 4)
    assert (knee.ended, knee.lower, knee.upper) == ("settled", 2, 3)
    assert {step.told for step in knee.steps} == {"met", "not met"}
    missed = [step.missed for step in knee.steps if step.told == "not met"]
    assert missed == [["all users were there in the window"]] * len(missed)


def test_a_web_server_that_refuses_everybody_is_below_the_least(client: Client, web: MisbehavingServer) -> None:
    web.served_as = "/unavailable"
    load = HttpLoad(HttpSettings(loop="closed", log_requests=False, warm_up_ns=0, **PATIENCE))
    _, knee = searched(client, load, web.offer, 2, 16)
    assert (knee.ended, knee.lower, knee.upper) == ("below least", None, 2)
    for step in knee.steps:
        assert (step.missed, step.values) == (list(ANY), {"latency_p99_ms": None, "failed_percent": 100.0})


def test_redis_is_asked_for_rounds(client: Client) -> None:
    settings = RedisSettings(
        loop="open", connections=20, pipeline=4, keys=20, log_requests=False, warm_up_ns=0, **PATIENCE
    )
    with MisbehavingRedis() as server:
        measured, knee = searched(client, RedisLoad(settings), server.offer, 20, 40)
    assert (knee.ended, knee.lower, knee.unit) == ("beyond most", 40, "rounds/s")
    assert all(window.work > window.events["round"].completed for window in measured.windows), "four commands each"


def test_viewers_are_counted_and_judged_by_how_they_watch(client: Client) -> None:
    told: dict[str, Any] = {"bitrate_bit_per_s": 64_000.0, "clip_ns": 4 * SECOND, "startup_ns": SECOND, "settle_ns": 0}
    load = ViewersLoad(ViewersSettings(**told, patience_ns=600 * SECOND))
    with MediaServer() as server:
        measured, knee = searched(client, load, server.offer, 1, 3, "goodput > 0 Mbit/s", "stalls < 100000")
    assert all(window.events["start-up"].offered for window in measured.windows), "a few come anew where all stay"
    assert knee.unit == "viewers"
    assert {"stalls_per_hour", "goodput_mbit_per_s"} <= knee.steps[0].values.keys()
    for step in knee.steps:  # on a busy machine nothing may come within a quarter of a second
        assert ("goodput > 0 Mbit/s" in step.missed) == (not step.values["goodput_mbit_per_s"])
    if not any(step.missed for step in knee.steps):
        assert (knee.ended, knee.lower) == ("beyond most", 3)


def test_a_service_that_freezes_and_comes_back_has_missed_what_nobody_could_see(client: Client) -> None:
    """Nobody watches within the first window, and so nothing stalls in it; all begin to play after it. The crowd that
    gathered for it was not waited for any longer."""
    told: dict[str, Any] = {"bitrate_bit_per_s": 64_000.0, "clip_ns": 4 * SECOND, "startup_ns": SECOND, "settle_ns": 0}
    load = ViewersLoad(ViewersSettings(**told, buffer_ns=SECOND, resume_ns=SECOND, patience_ns=600 * SECOND))
    with MediaServer() as server:
        server.manner = "stall"

        def let_go() -> None:
            """When the crowd of five waits and who comes anew, and the window, within which that is, is over."""
            for _ in range(6):
                assert server.stalled.acquire(timeout=600)
            time.sleep(1)
            server.let_go()

        helper = threading.Thread(target=let_go)
        helper.start()
        measured, knee = searched(client, load, server.offer, 5, 9, "stalled < 1 %")
        helper.join()
    events = measured.windows[0].events["start-up"]
    assert (events.offered, events.completed, events.failures) == (1, 1, {})
    assert events.drain is not None
    assert (measured.windows[0].work, "stalled_percent" in measured.windows[0].values) == (0, False)
    assert knee.steps[0].missed == ["stalled < 1 %", ALL_THERE]
    assert knee.steps[0].values["stalled_percent"] is None


def test_a_crowd_of_whom_most_never_begin_to_play_is_not_served(client: Client) -> None:
    """The start-ups of those who gather are told by none, and who never begins cannot stall: it was met."""
    told: dict[str, Any] = {"bitrate_bit_per_s": 64_000.0, "clip_ns": 600 * SECOND, "startup_ns": SECOND}
    load = ViewersLoad(ViewersSettings(**told, settle_ns=SECOND, rest_ns=3600 * SECOND, patience_ns=600 * SECOND))
    with MediaServer() as server:
        server.manners = ["ok", "ok", "reset", "reset", "reset"]
        measured, knee = searched(client, load, server.offer, 5, 6)
    assert measured.windows[0].events["start-up"].failures == {}, "who comes anew is served"
    assert measured.windows[0].events["view"].failures == {}
    assert knee.steps[0].missed == [ALL_THERE]
