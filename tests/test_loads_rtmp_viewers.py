"""Viewers by RTMP and the publisher beside them, for real, against a server on loopback that misbehaves on demand."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rtmp_server import FRAME_BYTES, FRAMES_PER_S, PICTURE_SETUP, Manner, RtmpServer, flv, number, text, wait_for
from virtoll import films
from virtoll.errors import TrialError
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads.base import Measurement
from virtoll.loads.publishing import Published, publishing
from virtoll.loads.rtmp_viewers import RtmpViewersLoad, RtmpViewersSettings
from virtoll.offers import Film, Http, Rtmp
from virtoll.record.model import Events, Window
from windows import failures, longer, until

SECOND = 10**9
HOUR = 3600 * SECOND
FILM = Film(4 * SECOND, 64_000)
WRONG: list[tuple[Manner, str]] = [
    ("refuse", "status"),
    ("missing", "status"),
    ("junk", "parse"),
    ("hang-up", "reset"),
    ("reset", "reset"),
    ("cut", "length"),
    ("short", "length"),
    ("early", "length"),
    ("back", "timestamps"),
    ("gap", "timestamps"),
]


@pytest.fixture
def server() -> Iterator[RtmpServer]:
    with RtmpServer() as running:
        yield running


@pytest.fixture
def film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a second, where films are looked for."""
    path = tmp_path / "film.flv"
    flv(path)
    monkeypatch.setattr(films, "file", lambda film, form: path)
    return path


def load_of(**settings: Any) -> RtmpViewersLoad:
    """Who fails does not come again, and patience is for slow machines."""
    defaults: dict[str, Any] = {
        "viewers": 3,
        "bitrate_bit_per_s": 64_000.0,
        "clip_ns": 4 * SECOND,
        "startup_ns": 1 * SECOND,
        "resume_ns": 1 * SECOND,
        "settle_ns": 0,
        "time_limit_ns": SECOND // 2,
        "patience_ns": 600 * SECOND,
        "rest_ns": HOUR,
    }
    return RtmpViewersLoad(RtmpViewersSettings(**{**defaults, **settings}))


def drive(client: Client, offer: Rtmp, **settings: Any) -> Measurement:
    with load_of(**settings).session(client, offer) as session:
        return session.measure()


def startups(measurement: Measurement) -> Events:
    return measurement.window.events["start-up"]


def test_viewers_who_get_what_they_ask_for_watch(client: Client, server: RtmpServer) -> None:
    server.seconds = 600
    load = load_of(time_limit_ns=2 * SECOND, clip_ns=600 * SECOND)
    with load.session(client, server.offer()) as session:
        measured = until(session, lambda windows: windows[-1].work > 0)
        wait_for(lambda: server.pongs == 3)
    window, asked = measured[-1].window, startups(measured[0])
    assert (asked.intended, asked.completed, asked.failures) == (3, 3, {})
    assert all(found == {} for found in failures([one.window for one in measured]))
    assert 0 < window.work <= 3 * 2.0
    assert 0 < window.values["watching_percent"] <= 100
    assert "media_age_ms" not in window.values
    name = load.settings.film.name
    assert {said for command, said in server.asked if command == "play"} == {
        number(0) + b"\x05" + text(name) + number(0)
    }
    assert set(server.buffers_ms) == {10_000}
    assert server.pongs == 3


def test_unpaced_a_view_brings_each_frame_once_and_the_next_comes(client: Client, server: RtmpServer) -> None:
    server.seconds = 100  # longer than the longest window: who is paced sees no end of it

    def measure(length_ns: int) -> Measurement:
        load = load_of(paced=False, viewers=1, clip_ns=100 * SECOND, time_limit_ns=length_ns)
        with load.session(client, server.offer()) as session:
            measurement = session.measure()
            wait_for(lambda: max(server.acknowledged, default=0) >= 10_000)
        return measurement

    measurement = longer(measure, lambda window: window.counts["connects"] > 1, 3)
    window = measurement.window
    assert window.events["view"].failures == startups(measurement).failures == {}
    assert window.counts["connects"] > 1
    assert window.counts["body_bytes"] == window.counts["messages"] * FRAME_BYTES
    whole = 100 * FRAMES_PER_S
    assert window.counts["answers"] * whole <= window.counts["messages"] <= (window.counts["answers"] + 1) * whole
    assert max(server.acknowledged) >= 10_000, "so much comes that the server wants to hear of it"


def test_paced_no_more_is_read_than_fits_ahead(client: Client, server: RtmpServer) -> None:
    server.seconds = 600
    settings: dict[str, Any] = {"clip_ns": 600 * SECOND, "viewers": 1, "buffer_ns": 3 * SECOND, "receive_bytes": 8192}
    for seconds in (1, 4, 16, 64):  # where much else runs, a short window ends before anything has come
        window = drive(client, server.offer(), **settings, time_limit_ns=seconds * SECOND).window
        if (came_bytes := window.counts["body_bytes"]) >= 3 * 8000:
            break
    # What the last read brings is more than the buffer.
    assert 3 * 8000 <= came_bytes <= (3 + seconds) * 8000 + 65_536


@pytest.mark.parametrize(("manner", "kind"), WRONG)
def test_what_is_wrong_is_told_by_kind(client: Client, server: RtmpServer, manner: Manner, kind: str) -> None:
    """A viewer that has not begun to play fails in its start-up: the half is too little for it."""
    server.manner = manner
    asked = startups(drive(client, server.offer(), startup_ns=3 * SECOND))
    assert (asked.offered, asked.completed, asked.failures, asked.censored) == (3, 0, {kind: 3}, 3)


@pytest.mark.parametrize("manner", ["cut", "gap"])
def test_a_view_that_breaks_off_is_told_apart_from_one_that_never_begins(
    client: Client, server: RtmpServer, manner: Manner
) -> None:
    server.manner = manner

    def measure(length_ns: int) -> Measurement:
        return drive(client, server.offer(), viewers=1, time_limit_ns=length_ns)

    measurement = longer(measure, lambda window: bool(window.events["view"].failures), 4)
    assert startups(measurement).failures == {}
    kind = "length" if manner == "cut" else "timestamps"
    assert measurement.window.events["view"].failures == {kind: 1}


def test_who_waits_too_long_fails_at_the_start_and_in_a_stall(client: Client, server: RtmpServer) -> None:
    server.manner = "silent"
    assert startups(drive(client, server.offer(), patience_ns=SECOND // 5)).failures == {"timeout": 3}
    server.manner = "stall"

    def measure(length_ns: int) -> Measurement:
        """A server that stands still has as much patience: a sixth of the window."""
        return drive(client, server.offer(), patience_ns=length_ns // 6, time_limit_ns=length_ns)

    def is_told(window: Window) -> bool:
        return (window.events["start-up"].failures, window.events["view"].censored) == ({}, 3)

    window = longer(measure, is_told, 6).window
    assert window.events["start-up"].failures == {}
    assert window.events["view"].failures == {"timeout": 3}
    assert window.counts["stalls"] == 3


def test_nobody_there_is_a_failure_to_connect(client: Client) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        measurement = drive(client, Rtmp("127.0.0.1", held.getsockname()[1], application="app"))
    assert startups(measurement).failures == {"connect": 3}


def test_many_viewers_are_served_by_one_thread(client: Client, server: RtmpServer) -> None:
    asked = startups(drive(client, server.offer(), viewers=200, join_ns=SECOND // 500, time_limit_ns=2 * SECOND))
    assert (asked.completed, asked.failures) == (200, {})


@pytest.mark.usefixtures("film")
def test_a_live_film_is_published_round_and_round_and_its_age_is_told(client: Client, server: RtmpServer) -> None:
    load = load_of(viewers=2, time_limit_ns=3 * SECOND)

    def is_told(window: Window) -> bool:
        """Audio and video of three seconds, though it may be late at both ends; a late one sends several frames; and
        each viewer looks up by itself. Where somebody stood still for a window, another is asked for.
        """
        least = {"published": 3 * FRAMES_PER_S + 1, "sends": FRAMES_PER_S, "wakes": 2 * 3 * 4}
        return window.values.get("media_age_ms", 0) > 0 and all(window.counts[key] >= least[key] for key in least)

    with load.session(client, server.offer(is_live=True)) as session:
        measured = until(session, lambda windows: sum(map(is_told, windows)) == 2)
    for one in measured:
        assert startups(one).failures == one.window.events["view"].failures == {}
        assert one.window.counts["publish_failures"] == 0
    measurements = [one for one in measured if is_told(one.window)]
    assert len(measurements) == 2
    record = load.measured(measurements)
    assert set(record.quantities) == set(load.quantities)
    names = [said for command, said in server.asked if command == "publish"]
    assert names == [number(0) + b"\x05" + text(FILM.name) + text("live")], "once for all windows"
    wait_for(lambda: "deleteStream" in [command for command, _ in server.asked])  # the server may still be reading
    for kind in (8, 9):
        at_ms = [at for other, at, _ in server.published if other == kind]
        assert max(later - earlier for earlier, later in pairwise(at_ms)) == 40
        assert at_ms == sorted(at_ms)
        assert at_ms[-1] > 5000, "the film is a second long"


@pytest.mark.usefixtures("film")
def test_live_frames_pass_unchanged_but_for_the_mark_in_key_frames(client: Client, server: RtmpServer) -> None:
    with load_of().session(client, server.offer(is_live=True)):
        wait_for(lambda: len(server.published) > 60)
    pictures = [payload for kind, _, payload in server.published if kind == 9]
    config, frames = pictures[0], pictures[1:]
    assert config == PICTURE_SETUP
    assert {len(payload) for payload in frames if payload[0] == 0x27} == {5 + 4 + 201}
    assert {len(payload) for payload in frames if payload[0] == 0x17} == {5 + 4 + 201 + 40}


@pytest.mark.usefixtures("film")
def test_a_publisher_that_is_not_taken_is_an_error(client: Client, server: RtmpServer, monkeypatch: Any) -> None:
    server.takes_streams = False
    for patience_s in (1, 8, 64):  # a busy server may say nothing for a while
        monkeypatch.setattr("virtoll.loads.publishing._PATIENCE_NS", patience_s * SECOND)
        with pytest.raises(TrialError, match=rf"takes 0 of 1 streams within {patience_s} s") as caught:
            drive(client, server.offer(is_live=True))
        if "status" in str(caught.value):
            break
    assert re.search(r"\(\d+ status\)", str(caught.value))


def test_a_film_that_is_none_is_an_error(client: Client, server: RtmpServer, film: Path) -> None:
    film.write_bytes(b"RIFF")
    with (
        pytest.raises(TrialError, match=r"film\.flv: it is no FLV file; make an FLV file"),
        publishing(client, server.offer(is_live=True), FILM, "0123456789abcdef"),
    ):
        pass


class Doomed(LocalHost):
    """Whose publisher says that it publishes, and that is all it does."""

    def spawn(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        nothing = json.dumps({field.name: {} if field.name == "failures" else 0 for field in fields(Published)})
        return super().spawn(["sh", "-c", 'read -r spec; echo "$1"; echo why >&2', "sh", nothing], **options)


@pytest.mark.usefixtures("film")
def test_a_publisher_that_has_ended_says_why_and_nothing_else_is_raised(client: Client) -> None:
    """Though what it was to be asked is still in a pipe that nobody reads."""

    def ask_the_dead() -> None:
        there = Rtmp("127.0.0.1", 1, is_live=True)
        with publishing(replace(client, host=Doomed()), there, FILM, "0123456789abcdef") as publisher:
            os.waitid(os.P_PID, publisher._conversation._process.pid, os.WEXITED | os.WNOWAIT)
            publisher.report()

    with pytest.raises(TrialError, match="the publisher: why"):
        ask_the_dead()


@pytest.mark.usefixtures("film")
def test_who_watches_a_stream_that_breaks_off_fails_and_the_publisher_says_so(
    client: Client, server: RtmpServer
) -> None:
    with publishing(client, server.offer(is_live=True), FILM, "0123456789abcdef") as publisher:
        wait_for(lambda: len(server.published) > 10)
        assert publisher.report().failures == {}
        server.manner = "hang-up"
        server.drop()
        wait_for(lambda: publisher.report().failures == {"reset": 1})


@pytest.mark.usefixtures("film")
def test_a_publisher_that_dies_is_an_error(client: Client, server: RtmpServer) -> None:
    def die() -> None:
        with publishing(client, server.offer(is_live=True), FILM, "0123456789abcdef") as publisher:
            publisher._conversation._process.kill()
            publisher._conversation._process.wait()
            publisher.report()

    with pytest.raises(TrialError, match="the publisher: it was ended by signal 9"):
        die()


def test_a_window_has_its_part_of_what_was_published_and_the_lateness_in_it() -> None:
    told: dict[str, Any] = {"published": 1, "latest_ns": SECOND, "body_bytes": 0, "failures": {}}
    late_at_ns = [1 * SECOND, 10 * SECOND, 19 * SECOND, 20 * SECOND]
    used: dict[str, Any] = {"cpu_user_ns": 3 * SECOND, "cpu_system_ns": SECOND}
    whole = Published(0, 40 * SECOND, messages=4000, late=4, late_at_ns=late_at_ns, **used, **told)
    assert whole.cpu_ns_of(10 * SECOND) == SECOND
    assert whole.messages_of(10 * SECOND) == 1000
    assert whole.late_within(10 * SECOND, 10 * SECOND) == 2
    more = Published(0, 40 * SECOND, messages=4000, late=9, late_at_ns=late_at_ns, **used, **told)
    assert more.late_within(10 * SECOND, 10 * SECOND) == 2 + 5, "it may have been any of them"


def test_a_stream_of_the_users_is_watched_whatever_length_it_has(client: Client, server: RtmpServer) -> None:
    load = load_of(stream="mp4:mine.mp4", clip_ns=3600 * SECOND)
    assert load.content is None
    with load.session(client, server.offer()) as session:
        assert startups(session.measure()).failures == {}
    assert any(text("mp4:mine.mp4") in said for command, said in server.asked if command == "play")


def test_what_cannot_work_is_said_beforehand(client: Client) -> None:
    (problem,) = load_of(startup_ns=20 * SECOND, bitrate_bit_per_s=900_000.0).check(LocalHost())
    assert "never begins" in problem.what
    (problem,) = load_of().check(LocalHost())
    assert problem.what == "a film of 4 s at 0.064 Mbit/s cannot be made"
    with (
        pytest.raises(TrialError, match="what is live is watched as it comes"),
        load_of(paced=False).session(client, Rtmp("127.0.0.1", 1, is_live=True)),
    ):
        pass
    assert issubclass(Rtmp, RtmpViewersLoad.takes)
    assert not issubclass(Http, RtmpViewersLoad.takes)
    assert load_of().content == FILM
