"""The native generator's viewers, for real, against a server on loopback that misbehaves on demand."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from rtmp_server import wait_for
from viewers_server import Manner, MediaServer
from virtoll.binaries import binary
from virtoll.errors import TrialError
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads import conversation
from virtoll.loads.base import Measurement
from virtoll.loads.viewers import ViewersLoad, ViewersSettings
from virtoll.loads.viewing import ViewingSession, ViewingSettings, measurement_of, order, specification
from virtoll.offers import Http, Offer
from virtoll.record.model import Events, Window
from virtoll.services import clips
from virtoll.trial import proofs
from virtoll.trial.notes import Notes
from windows import failures, lasted_s, longer, total, until

SECOND = 10**9
HOUR = 3600 * SECOND
WRONG: list[tuple[Manner, str]] = [
    ("missing", "status"),
    ("junk", "parse"),
    ("hang-up", "reset"),
    ("reset", "reset"),
    ("cut", "length"),
    ("long", "length"),
    ("wrong", "content"),
]


# Audio and video of four seconds.
TEMPLATE = """\
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT4S"><Period>
<AdaptationSet contentType="video">
<SegmentTemplate media="$RepresentationID$/$Number$" initialization="video/init" startNumber="7" duration="2"/>
<Representation id="video" bandwidth="9000"/></AdaptationSet>
<AdaptationSet contentType="audio"><SegmentTemplate media="audio/$Time$" timescale="50">
<SegmentTimeline><S d="100" r="1"/></SegmentTimeline></SegmentTemplate>
<Representation id="audio" bandwidth="1000"/></AdaptationSet>
</Period></MPD>
"""


@pytest.fixture
def server() -> Iterator[MediaServer]:
    with MediaServer() as running:
        yield running


def measured_by(settings: ViewingSettings) -> Measurement:
    return Measurement("double", Window(start_ns=0, duration_ns=settings.time_limit_ns, work=1.0))


def load_of(**settings: Any) -> ViewersLoad:
    """8 kB/s, in segments of a second; who fails does not come again, and patience is for slow machines."""
    defaults: dict[str, Any] = {
        "viewers": 3,
        "bitrate_bit_per_s": 64_000.0,
        "clip_ns": 4 * SECOND,
        "segment_ns": SECOND,
        "startup_ns": 2 * SECOND,
        "settle_ns": 0,
        "time_limit_ns": SECOND // 2,
        "patience_ns": 600 * SECOND,
        "rest_ns": HOUR,
    }
    return ViewersLoad(ViewersSettings(**{**defaults, **settings}))


def drive(client: Client, offer: Http, **settings: Any) -> Measurement:
    with load_of(**settings).session(client, offer) as session:
        return session.measure()


def startups(measurement: Measurement) -> Events:
    return measurement.window.events["start-up"]


def serve(server: MediaServer, **settings: Any) -> None:
    """The clip of these settings."""
    server.playlists = {path: [text] for path, text in clips.manifests(load_of(**settings).settings.clip)}


def test_viewers_who_get_what_they_ask_for_watch(client: Client, server: MediaServer) -> None:
    with load_of(time_limit_ns=2 * SECOND, buffer_ns=3 * SECOND).session(client, server.offer) as session:
        measured = until(session, lambda windows: windows[-1].work > 0)
    measurement, window, asked = measured[0], measured[-1].window, startups(measured[0])
    assert (asked.intended, asked.offered, asked.completed, asked.failures) == (3, 3, 3, {})
    assert all(found == {} for found in failures([one.window for one in measured]))
    assert 0 < window.work <= 3 * 2.0
    assert window.duration_ns == 2 * SECOND
    assert measurement.bulk.histogram is not None
    assert sum(count for _, _, count in measurement.bulk.histogram) == 3
    assert measurement.bulk.lateness is not None
    assert asked.late is not None
    assert window.cpu_ns is not None
    assert set(server.asked) == {load_of().settings.file.path}
    assert 0 < window.values["watching_percent"] <= 100
    assert measurement.window.counts["body_bytes"] <= 3 * 32_000


def test_who_still_waits_for_play_at_the_windows_end_keeps_all_watching_and_that_is_told(
    client: Client, server: MediaServer
) -> None:
    """In rotation an arm is idle only when they have gone."""
    server.manner = "silent"
    measurement = drive(client, server.offer, time_limit_ns=1, patience_ns=SECOND // 2)
    drain = startups(measurement).drain
    assert drain is not None
    assert (drain.under_way, drain.completed) == (3, 0)
    assert measurement.window.until_ns == drain.end_ns > measurement.window.end_ns + SECOND // 4
    server.manner = "ok"
    with load_of(clip_ns=600 * SECOND).session(client, server.offer) as session:
        session.measure()  # till all play
        window = session.measure().window
    assert window.until_ns == window.end_ns


def test_paced_no_more_is_read_than_fits_ahead_and_unpaced_all_is(client: Client, server: MediaServer) -> None:
    """Of 8 kB/s: what is read of it does not depend on how fast the machine is."""
    paced = load_of(viewers=1, clip_ns=600 * SECOND, buffer_ns=3 * SECOND, time_limit_ns=SECOND)
    with paced.session(client, server.offer) as session:
        measured = until(session, lambda windows: total(windows, "body_bytes") >= 2 * 8000)
    windows = [one.window for one in measured]
    assert 2 * 8000 <= total(windows, "body_bytes") <= (3 + lasted_s(windows)) * 8000
    unpaced = load_of(viewers=1, clip_ns=60 * SECOND, paced=False, time_limit_ns=4 * SECOND)

    def is_watched(window: Window) -> bool:
        """All of it, and as soon as one is done, the next one comes: within one window, which is far shorter."""
        return window.counts["body_bytes"] >= 60 * 8000 and window.counts["connects"] > 1

    with unpaced.session(client, server.offer) as session:
        measured = until(session, lambda windows: is_watched(windows[-1]))
    assert is_watched(measured[-1].window)
    for one in measured:
        assert one.window.work * 8000 == pytest.approx(one.window.counts["body_bytes"], abs=1)
        assert (one.bulk.lateness, startups(one).late) == (None, None)


@pytest.mark.parametrize(("manner", "kind"), WRONG)
@pytest.mark.parametrize("delivery", ["progressive", "hls", "dash"])
def test_what_is_wrong_is_told_by_kind(
    client: Client, server: MediaServer, delivery: str, manner: Manner, kind: str
) -> None:
    """A viewer that has not begun to play fails in its start-up: the half of the clip is too little for it."""
    server.manner = manner
    serve(server)
    asked = startups(drive(client, server.offer, delivery=delivery, startup_ns=4 * SECOND))
    assert (asked.offered, asked.completed, asked.failures, asked.censored) == (3, 0, {kind: 3}, 3)


@pytest.mark.parametrize(("manner", "kind"), [("missing", "status"), ("cut", "length"), ("wrong", "content")])
def test_a_view_that_breaks_off_is_told_apart_from_one_that_never_begins(
    client: Client, server: MediaServer, manner: Manner, kind: str
) -> None:
    serve(server)

    def measure(length_ns: int) -> Measurement:
        server.manners = ["ok", "ok", manner]
        return drive(client, server.offer, delivery="hls", viewers=1, time_limit_ns=length_ns, startup_ns=SECOND)

    measurement = longer(measure, lambda window: bool(window.events["view"].failures), 4)
    assert startups(measurement).failures == {}
    watched = measurement.window.events["view"]
    assert (watched.offered, watched.completed, watched.failures) == (1, 0, {kind: 1})
    assert measurement.window.values["watching_percent"] < 100, "nobody is there after it"


@pytest.mark.parametrize("manner", ["silent", "trickle"])
def test_who_waits_too_long_for_play_to_begin_fails(client: Client, server: MediaServer, manner: Manner) -> None:
    """Also where a byte comes now and then."""
    server.manner = manner
    asked = startups(drive(client, server.offer, patience_ns=SECOND // 5))
    assert asked.failures == {"timeout": 3}


def test_a_stream_that_stalls_is_a_stall_and_then_a_failure(client: Client, server: MediaServer) -> None:
    server.manner, server.stall_at = "stall", 8000

    def measure(length_ns: int) -> Measurement:
        """A server that stands still has as much patience: a sixth of the window."""
        asked = {"startup_ns": SECOND // 2, "patience_ns": length_ns // 6, "time_limit_ns": length_ns}
        return drive(client, server.offer, **asked)

    def is_told(window: Window) -> bool:
        return (window.events["start-up"].failures, window.events["view"].censored) == ({}, 3)

    window = longer(measure, is_told, 6).window
    assert window.events["start-up"].failures == {}
    assert window.events["view"].failures == {"timeout": 3}
    assert window.counts["stalls"] == 3
    # A second of media, and a second of patience, or more of it.
    assert window.work == pytest.approx(3 * 1.0)
    assert window.values["stalled_percent"] > 30  # at least: a busy machine loses patience later


def test_a_stall_ends_when_enough_has_come_again(client: Client) -> None:
    def measure(length_ns: int) -> Measurement:
        with MediaServer() as server:
            server.manner, server.stall_at = "stall", 8000

            def let_go() -> None:
                """When all three have what lasts a second, and that second is over, and one more for who reads late."""
                for _ in range(3):
                    assert server.stalled.acquire(timeout=600)
                time.sleep(2.0)
                server.let_go()

            load = load_of(startup_ns=SECOND // 2, time_limit_ns=length_ns, clip_ns=600 * SECOND)
            with load.session(client, server.offer) as session:
                helper = threading.Thread(target=let_go)
                helper.start()
                measurement = session.measure()
                helper.join()
            return measurement

    window = longer(measure, lambda window: window.counts["stalls"] >= 3 and window.work > 3, 6).window
    assert window.events["view"].failures == {}
    assert window.counts["stalls"] >= 3
    assert 3 < window.work < 3 * window.duration_ns / SECOND


def test_nobody_there_is_a_failure_to_connect(client: Client) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        measurement = drive(client, Http("127.0.0.1", held.getsockname()[1]))
    assert startups(measurement).failures == {"connect": 3}
    record = load_of().measured([measurement])
    assert set(record.quantities) == {"watching_percent", "goodput_mbit_per_s"}, "nobody watched: no stalls to tell of"
    assert [record.values(key) for key in record.quantities] == [[0.0], [0.0]]
    assert record.notes


def test_in_how_many_windows_nobody_watched_is_told() -> None:
    watched, frozen = (
        Measurement("", Window(start_ns=0, duration_ns=SECOND, work=1.0, values=values))
        for values in ({"watching_percent": 100.0, "stalled_percent": 0.0}, {"watching_percent": 0.0})
    )
    record = load_of().measured([watched, frozen, watched])
    assert set(record.quantities) == {"watching_percent"}
    assert record.notes == ["in 1 of 3 windows nobody watched: stalls are not told of the trial"]
    assert load_of().measured([frozen, frozen]).notes == ["nobody watched: there are no stalls to tell of"]
    assert load_of().measured([watched]).notes == []


def test_another_takes_the_place_of_one_that_failed(client: Client, server: MediaServer) -> None:
    def measure(length_ns: int) -> Measurement:
        server.manners = ["hang-up"]
        settings: dict[str, Any] = {"viewers": 1, "rest_ns": SECOND // 100, "clip_ns": 600 * SECOND}
        return drive(client, server.offer, **settings, time_limit_ns=length_ns)

    asked = startups(longer(measure, lambda window: window.events["start-up"].offered > 1, 2))
    assert (asked.offered, asked.completed, asked.failures) == (2, 1, {"reset": 1})


def test_viewers_join_by_their_schedule_and_the_window_begins_when_all_are_there(
    client: Client, server: MediaServer
) -> None:
    for arrival in ("constant", "poisson"):
        settings: dict[str, Any] = {"viewers": 20, "join_ns": SECOND // 50, "clip_ns": 600 * SECOND}
        measurement = drive(client, server.offer, **settings, arrival=arrival)
        assert startups(measurement).offered == 20
        assert measurement.window.counts["connects"] == 20


def test_stays_are_drawn_and_others_take_their_places(client: Client, server: MediaServer) -> None:
    def joins(windows: Sequence[Window]) -> int:
        return sum(window.events["start-up"].offered for window in windows)

    # Of so long a clip nobody leaves because it is over.
    load = load_of(startup_ns=1, stay_ns=SECOND // 5, time_limit_ns=2 * SECOND, clip_ns=600 * SECOND)
    with load.session(client, server.offer) as session:
        measured = until(session, lambda windows: joins(windows) > 3)
    windows = [one.window for one in measured]
    assert joins(windows) > 3
    assert all(found == {} for found in failures(windows))


def test_who_waits_for_play_to_begin_does_not_leave_meanwhile(client: Client, server: MediaServer) -> None:
    """Else the slowest start-ups would be told as no start-ups at all."""
    server.manner = "silent"
    asked = startups(drive(client, server.offer, stay_ns=1, patience_ns=SECOND // 5))
    assert (asked.offered, asked.failures) == (3, {"timeout": 3})


def test_the_window_begins_when_it_is_told_to(client: Client, server: MediaServer) -> None:
    with load_of(settle_ns=SECOND // 10, join_ns=SECOND // 100).session(client, server.offer) as session:
        for lead_s in (3, 30, 300):  # a busy machine may be late
            start_ns = time.monotonic_ns() + lead_s * SECOND
            try:
                window = session.measure(start_ns=start_ns).window
                break
            except TrialError as error:
                if "had passed by" not in str(error):
                    raise
        assert window.start_ns == start_ns
        with pytest.raises(TrialError, match=r"the viewers: start_ns .* had passed by"):
            session.measure(start_ns=start_ns)
        assert startups(session.measure()).offered == 3, "others come"


def test_who_is_there_stays_from_window_to_window_until_all_rest(client: Client, server: MediaServer) -> None:
    """Their film is longer than any machine is slow."""
    with load_of(clip_ns=600 * SECOND, join_ns=1000, viewers=4).session(client, server.offer) as session:
        windows = [session.measure().window for _ in range(2)]
        assert [window.events["start-up"].completed for window in windows] == [4, 0]
        assert [window.counts["connects"] for window in windows] == [4, 0]
        assert windows[1].events["view"].offered == 4, "those who were there"
        assert server.connections == 4
        session.rest()
        assert startups(session.measure()).completed == 4, "all had gone"
        assert server.connections == 8


def test_in_a_search_start_ups_are_of_those_who_come_anew(client: Client, server: MediaServer) -> None:
    with load_of(clip_ns=600 * SECOND, join_ns=1000, churn_share=0.2).session(client, server.offer) as session:
        windows = [session.measure(intensity=viewers).window for viewers in (5, 5, 10, 11, 4)]
    for window, anew in zip(windows, (1, 1, 2, 3, 1), strict=True):
        assert (window.events["start-up"].offered, window.events["start-up"].completed) == (anew, anew)
        assert window.events["view"].failures == {}
        assert window.at is not None
        assert window.work <= window.at * window.duration_ns / 1e9


def test_what_is_asked_of_a_window() -> None:
    settings = load_of(viewers=21, churn_share=0.1, settle_ns=SECOND).settings
    window = {"viewers": 21, "settle_ns": SECOND, "duration_ns": SECOND // 2, "start_ns": None}
    window["pauses_over_ns"] = None
    assert order(settings) == {**window, "anew": None}
    assert order(settings, 7, anew=3) == {**window, "anew": 3, "start_ns": 7}


def test_a_generator_that_has_ended_says_so(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "virtoll-load"
    program.write_text("#!/bin/sh\nread spec\necho 'virtoll-load: no socket' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(conversation, "binary", lambda _name: program)
    with (
        load_of().session(client, Http("127.0.0.1", 1)) as session,
        pytest.raises(TrialError, match="the viewers: no socket"),
    ):
        session.measure()


def test_an_intensity_is_a_number_of_viewers(client: Client, server: MediaServer) -> None:
    with load_of(clip_ns=600 * SECOND).session(client, server.offer) as session:
        session.warm_up()
        session.lead_in(SECOND // 10)
        assert server.asked == [], "none was asked for, and each window's viewers settle by themselves"
        session.warm_up(SECOND // 10)
        assert len(server.asked) == 3
        measurement = session.measure(intensity=5, duration_ns=SECOND // 4)
    window = measurement.window
    assert (window.at, window.duration_ns) == (5, SECOND // 4)
    assert len(server.asked) >= 3 + 5
    assert startups(measurement).offered >= 1, "those who come anew"


def test_hls_on_demand_plays_all_segments_of_the_clip(client: Client, server: MediaServer) -> None:
    settings: dict[str, Any] = {"delivery": "hls", "qualities": 2, "quality": "highest", "viewers": 1}
    serve(server, **settings)
    with load_of(**settings).session(client, server.offer) as session:
        measurement = session.measure()
        wait_for(lambda: len(server.asked) >= 6)
    assert startups(measurement).failures == {}
    clip = load_of(**settings).settings.clip
    segments = [piece.path for piece in clips.segments(clip, clip.bit_rates[-1])]
    assert server.asked[:6] == [clip.path, f"{clip.directory}/64000.m3u8", *segments]
    assert set(server.asked_over[:6]) == {1}, "over one connection"


def test_dash_plays_the_same_segments_as_hls(client: Client) -> None:
    settings: dict[str, Any] = {"qualities": 2, "quality": "highest", "viewers": 1, "clip_ns": 7 * SECOND // 2}
    asked = []
    for delivery in ("hls", "dash"):
        load = load_of(**settings, delivery=delivery)
        clip = load.settings.clip
        manifests = [clip.path, f"{clip.directory}/64000.m3u8"] if delivery == "hls" else [clip.mpd_path]
        with MediaServer() as server:
            serve(server, **settings)
            with load.session(client, server.offer) as session:
                window = session.measure().window
                wait_for(lambda: len(server.asked) >= len(manifests) + 4)  # noqa: B023 (they end with the round)
            assert all(found == {} for found in failures([window]))
            assert server.asked[: len(manifests)] == manifests
            asked.append(server.asked[len(manifests) :][:4])
    assert asked[0] == asked[1] == [piece.path for piece in clips.segments(clip, clip.bit_rates[-1])]


def test_dash_of_the_users_own_is_played_by_its_template(client: Client, server: MediaServer) -> None:
    server.playlists["/film/a.mpd"] = [TEMPLATE]
    paths = ["/film/video/init", "/film/video/7", "/film/audio/0", "/film/video/8", "/film/audio/100"]
    for path in paths:
        server.playlists[path] = [path * 100]
    with load_of(delivery="dash", path="/film/a.mpd", viewers=1).session(client, server.offer) as session:
        window = session.measure().window
        wait_for(lambda: len(server.asked) >= 6)
    assert all(found == {} for found in failures([window]))
    assert server.asked[:6] == ["/film/a.mpd", *paths]


@pytest.mark.parametrize(
    "text", ["<html/>", "<MPD", TEMPLATE.replace("static", "dynamic"), TEMPLATE.replace("<Period>", "<Period><Other/>")]
)
def test_what_is_no_mpd_or_not_understood_is_a_failure(client: Client, server: MediaServer, text: str) -> None:
    server.playlists["/a.mpd"] = [text]
    asked = startups(drive(client, server.offer, delivery="dash", path="/a.mpd"))
    assert asked.failures == {"parse": 3}
    assert set(server.asked) == {"/a.mpd"}


def test_hls_makes_a_new_connection_where_the_server_closes(client: Client, server: MediaServer) -> None:
    server.manner = "close"
    serve(server)
    with load_of(delivery="hls", viewers=1).session(client, server.offer) as session:
        measured = until(session, lambda _: server.connections >= 5)
    assert all(found == {} for found in failures([one.window for one in measured]))
    assert server.connections >= 5


def test_hls_makes_a_new_connection_where_the_server_closes_without_a_word(client: Client, server: MediaServer) -> None:
    server.manner = "leave"
    serve(server)
    with load_of(delivery="hls", viewers=1).session(client, server.offer) as session:
        measured = until(session, lambda _: server.connections >= 5)
    assert all(found == {} for found in failures([one.window for one in measured]))
    assert server.connections >= 5


def test_hls_unpaced_the_next_comes_when_the_last_segment_has(client: Client, server: MediaServer) -> None:
    """And not when its patience, ten minutes of it, is over."""
    serve(server)

    def have_come(window: Window) -> bool:
        """Of one window: in several, those who are paced come, too."""
        return window.counts["connects"] > 2 and window.work > 2 * 4

    load = load_of(delivery="hls", viewers=1, paced=False, time_limit_ns=4 * SECOND)
    with load.session(client, server.offer) as session:
        measured = until(session, lambda windows: have_come(windows[-1]))
    assert have_come(measured[-1].window)


def test_hls_a_clip_shorter_than_a_start_up_begins(client: Client, server: MediaServer) -> None:
    settings: dict[str, Any] = {"delivery": "hls", "viewers": 1, "clip_ns": SECOND, "time_limit_ns": 3 * SECOND}
    serve(server, **settings)
    with load_of(**settings).session(client, server.offer) as session:
        measured = until(session, lambda windows: sum(one.events["start-up"].offered for one in windows) > 1)
    for asked in map(startups, measured):
        assert (asked.failures, asked.completed) == ({}, asked.offered)
    assert sum(startups(one).offered for one in measured) > 1


def playlist(first: int, last: int) -> str:
    """Live: segments of a fifth of a second, 8000 bytes each."""
    lines = "".join(f"#EXTINF:0.2,\n/o/{n * 8000}-{(n + 1) * 8000}\n" for n in range(first, last))
    return f"#EXTM3U\n#EXT-X-TARGETDURATION:0.2\n#EXT-X-MEDIA-SEQUENCE:{first}\n{lines}"


def test_hls_live_goes_on_as_its_playlist_slides(client: Client, server: MediaServer) -> None:
    server.playlists["/live"] = [playlist(n, n + 5) for n in range(4)] + [playlist(3, 8) + "#EXT-X-ENDLIST\n"]

    def segments() -> list[str]:
        return [path for path in list(server.asked) if path != "/live"]

    load = load_of(delivery="hls", path="/live", viewers=1, startup_ns=SECOND // 5, time_limit_ns=SECOND)
    with load.session(client, server.offer) as session:
        measured = until(session, lambda _: len(segments()) >= 6)
    assert all(found == {} for found in failures([one.window for one in measured]))
    assert segments()[:6] == [f"/o/{n * 8000}-{(n + 1) * 8000}" for n in range(2, 8)]
    assert server.asked.count("/live") >= 4


def test_who_is_to_be_there_while_others_viewers_join_comes_sooner(client: Client, server: MediaServer) -> None:
    """Ten beside a hundred who joined for ten seconds came when those were there: their start-ups were told as beside
    somebody, and were beside nobody.
    """
    session = load_of(viewers=10, settle_ns=2 * SECOND, join_ns=SECOND // 20).session(client, server.offer)
    with session as viewing, pytest.MonkeyPatch.context() as patch:
        assert isinstance(viewing, ViewingSession)
        settled: list[int] = []

        def drive(_session: ViewingSession, settings: ViewingSettings, *_: Any, **__: Any) -> Measurement:
            settled.append(settings.settle_ns)
            return measured_by(settings)

        patch.setattr(ViewingSession, "_drive", drive)
        viewing.lead_at_least(viewing.lead_ns + 7 * SECOND)
        viewing.measure()
        viewing.measure()
        viewing.lead_at_least(SECOND)
        viewing.measure()
    assert settled == [9 * SECOND, 2 * SECOND, 2 * SECOND]


@pytest.mark.parametrize("text", ["<html>", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://other.example/x\n"])
def test_what_is_no_playlist_or_leads_elsewhere_is_a_failure(client: Client, server: MediaServer, text: str) -> None:
    server.playlists["/live"] = [text]
    asked = startups(drive(client, server.offer, delivery="hls", path="/live"))
    assert asked.failures == {"parse": 3}
    assert set(server.asked) == {"/live"}


def test_a_path_of_the_users_is_watched_whatever_it_holds(client: Client, server: MediaServer) -> None:
    server.playlists["/film"] = ["x" * 32_000]
    assert startups(drive(client, server.offer, path="/film")).failures == {}


def test_many_viewers_are_served_by_one_thread(client: Client, server: MediaServer) -> None:
    measurement = drive(client, server.offer, viewers=300, join_ns=SECOND // 500, time_limit_ns=2 * SECOND)
    asked = startups(measurement)
    assert (asked.completed, asked.failures) == (300, {})


def test_what_cannot_work_is_said_beforehand(client: Client) -> None:
    (problem,) = load_of(startup_ns=20 * SECOND).check(LocalHost())
    assert "never begins" in problem.what
    long: dict[str, Any] = {"clip_ns": 10_001 * SECOND, "segment_ns": SECOND}
    (problem,) = load_of(delivery="hls", **long).check(LocalHost())
    said = "a clip of 10001 s in segments of 1 s lists 10,001 of them in one manifest, which can hold 10,000"
    assert problem.what == said
    (problem,) = load_of(delivery="dash", clip_ns=5001 * SECOND, segment_ns=SECOND, qualities=2).check(LocalHost())
    assert "10,002 of them" in problem.what
    assert load_of(delivery="dash", clip_ns=5000 * SECOND, segment_ns=SECOND, qualities=2).check(LocalHost()) == []
    assert load_of(**long).check(LocalHost()) == load_of(delivery="hls", path="/live", **long).check(LocalHost()) == []
    with pytest.raises(TrialError, match="viewers speak plain HTTP"):
        load_of().session(client, Http("127.0.0.1", 1, certificate="ab"))


def test_the_record_says_what_was_measured(client: Client, server: MediaServer) -> None:
    for seconds in (2, 8, 32):  # in all of a short one nobody may watch, where much else runs
        load = load_of(time_limit_ns=seconds * SECOND, clip_ns=600 * SECOND)
        with load.session(client, server.offer) as session:
            first = session.measure()
            session.rest()
            measured = [first, session.measure()]
        if all("stalled_percent" in one.window.values for one in measured):
            break
    record = load.measured(measured)
    assert (record.unit, record.asked, record.loop) == ("viewer-second", "start-up", "open")
    assert record.settings == asdict(load.settings)
    assert set(record.quantities) == set(load.quantities)
    assert record.events is not None
    assert record.events.offered == 6
    assert all(len(record.values(key)) == 2 for key in record.quantities)


def _is_stopped(pid: int) -> bool:
    """All threads: one of them takes the signal, and the others go on until it has told them."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def test_start_ups_wait_for_a_generator_that_is_not_there(client: Client, server: MediaServer, tmp_path: Path) -> None:
    """It was stopped when what they waited for came, and has joined them in time."""
    server.manner, server.stall_at = "stall", 100
    load = load_of(time_limit_ns=2 * SECOND)
    spec = specification(load.settings, load.asked(server.offer), client)
    argv = [str(binary("virtoll-load")), "view"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(spec).encode() + b"\n" + json.dumps(order(load.settings)).encode() + b"\n")
        process.stdin.flush()
        while len(server.asked) < 3:
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGSTOP)
        while not _is_stopped(process.pid):
            time.sleep(0.001)
        server.let_go()
        for _ in range(3):  # whatever comes after the stop waits for nobody
            assert server.went_on.acquire(timeout=600)
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGCONT)
        report = json.loads(process.stdout.readline())
        process.stdin.close()
    measurement = measurement_of(report, load.settings, {}, {})
    events = startups(measurement)
    assert (events.completed, events.late) == (3, 3)
    assert events.latest_ns is not None
    assert events.latest_ns > 0.29 * SECOND
    assert measurement.bulk.histogram is not None
    assert measurement.bulk.lateness is not None
    delays_ns, late_ns = (
        sum(upper * number for _, upper, number in rows)
        for rows in (measurement.bulk.histogram, measurement.bulk.lateness)
    )
    assert late_ns < 1.01 * delays_ns
    notes = Notes(tmp_path, lambda _: None)
    proofs.of_generator(notes, load.measured([measurement]), 1)
    assert {check.name: check.passed for check in notes.checks}["the generator kept its schedule"] is False


def test_who_read_late_where_viewers_stalled_proves_nothing(
    client: Client, server: MediaServer, tmp_path: Path
) -> None:
    measurement = drive(client, server.offer)
    best = {"stalled_percent": 0.0, "watching_percent": 100.0}
    for wakes, late, stalls, held in (
        (100, 0, 1, True),
        (100, 1, 1, True),
        (100, 2, 1, False),
        (100, 9, 0, True),
        (0, 0, 1, None),
    ):
        counts = {**measurement.window.counts, "wakes": wakes, "wakes_late": late, "stalls": stalls}
        window = measurement.window.model_copy(update={"counts": counts, "values": measurement.window.values | best})
        notes = Notes(tmp_path, lambda _: None)
        proofs.of_generator(notes, load_of().measured([replace(measurement, window=window)]), 1)
        check = {check.name: check for check in notes.checks}["the generator read in time"]
        assert check.passed is held
        assert check.detail == f"{late} of {wakes} times a viewer read on more than 10 ms late; {stalls} stalls"


def test_settings_say_what_the_service_must_hold() -> None:
    assert load_of().content == load_of().settings.file
    assert load_of(delivery="hls").content == load_of().settings.clip
    assert load_of(path="/film").content is None
    three = replace(load_of().settings, qualities=3, bitrate_bit_per_s=4000.0)
    assert three.clip.bit_rates == (1000, 2000, 4000)
    assert issubclass(Http, tuple(ViewersLoad.takes))
    assert not issubclass(Offer, tuple(ViewersLoad.takes))
