"""Participants of a conference: what the generator is asked, and what is made of what it reports."""

from __future__ import annotations

import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import confer_fake
from virtoll import footage, voice
from virtoll.errors import HostError, TrialError
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads import conversation
from virtoll.loads.conference import AUDIO, JOIN, measurement_of
from virtoll.loads.participants import ParticipantsLoad, ParticipantsSettings, specification
from virtoll.offers import Footage, JanusRoom, LiveKitRoom, Port, Voice
from virtoll.record.model import DROPPED, SENDS, SENDS_LATE, STAY, WAKES, WAKES_LATE

SECOND = 10**9
ROOM = JanusRoom("198.18.3.10", 8188, Port(20_000, "udp", 20_799), 8088)
ROLES: list[dict[str, Any]] = [
    {"name": "desktop", "count": 1, "film": "d"},
    {"name": "webcam", "count": 8, "film": "w"},
    {"name": "watcher", "count": None, "film": None},
]


def load_of(**settings: Any) -> ParticipantsLoad:
    return ParticipantsLoad(ParticipantsSettings(settle_ns=SECOND, time_limit_ns=2 * SECOND, **settings))


@pytest.fixture
def manner() -> str:
    return "ok"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manner: str) -> Client:
    """Where a fake generator stands; footage is there without having been made."""
    program = tmp_path / "virtoll-confer"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{confer_fake.__file__}" {manner} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(conversation, "binary", lambda _name: program)
    monkeypatch.setattr(footage, "file", lambda each: tmp_path / f"{each.name}.ivf")
    monkeypatch.setattr(voice, "file", lambda each: tmp_path / f"{each.name}.ogg")
    return Client(LocalHost(), Confinement(), tmp_path, cpus=1)


def told(before: int = 0, participants: int = 20, **order: Any) -> dict[str, Any]:
    asked = {"participants": participants, "every_ns": 0, "settle_ns": 0, "duration_ns": 10 * SECOND, "start_ns": None}
    return confer_fake.report({**asked, **order}, ROLES, before, 5 * SECOND)


def test_a_ramp_is_one_conference_in_which_nobody_leaves(client: Client) -> None:
    load = load_of(levels=(10, 20, 60))
    with load.session(client, ROOM) as session:
        session.warm_up()
        windows = [session.measure(intensity=level).window for level in load.levels]
    assert [window.at for window in windows] == [10, 20, 60]
    assert [window.events[JOIN].offered for window in windows] == [10, 10, 40], "those who were there stayed"
    assert [window.events[STAY].offered for window in windows] == [10, 20, 60]
    assert [window.counts["joined_at_end"] for window in windows] == [10, 20, 60]
    assert windows[0].duration_ns == 2 * SECOND


def test_other_windows_have_participants_of_their_own(client: Client) -> None:
    with load_of(participants=12).session(client, ROOM) as session:
        session.warm_up()
        one, other, third = session.measure(), session.measure(intensity=30, duration_ns=SECOND), session.measure()
    assert [each.window.at for each in (one, other, third)] == [None, 30, None]
    assert [each.window.events[JOIN].offered for each in (one, other, third)] == [12, 30, 12]
    assert other.window.duration_ns == SECOND


def test_a_window_that_begins_at_a_time_is_asked_for_before_all_join(client: Client) -> None:
    with load_of(participants=12, join_ns=SECOND // 2, compression=5.0).session(client, ROOM) as session:
        assert session.lead_ns == 12 * SECOND // 10 + SECOND


def test_the_generator_is_told_of_room_roles_and_footage(client: Client) -> None:
    spec = specification(load_of(seed=3, webcams=4), ROOM, client)
    assert spec["server"]["janus"]["address"] == "198.18.3.10:8188"
    assert spec["server"]["janus"]["room"] == 1
    assert [(role["name"], role["count"]) for role in spec["roles"]] == [
        ("desktop", 1),
        ("webcam", 4),
        ("watcher", None),
    ]
    assert spec["roles"][0]["film"].endswith("desktop-1280x720-5-500000-2-10.ivf")
    assert (spec["roles"][2]["film"], spec["seed"], spec["threads"], spec["codec"]) == (None, 3, 1, "vp8")
    h264 = specification(load_of(codec="h264"), ROOM, client)
    assert h264["codec"] == "h264"
    assert h264["roles"][0]["film"].endswith("desktop-1280x720-5-500000-2-10-h264.ivf")
    assert [role["name"] for role in specification(load_of(desktops=0), ROOM, client)["roles"]] == ["webcam", "watcher"]


def test_where_some_speak_the_generator_is_told_of_the_room_for_audio(client: Client) -> None:
    load = load_of(speakers=3, audio_bitrate_bit_per_s=24_000.0)
    assert load.voice == Voice(24_000)
    audio = specification(load, replace(ROOM, audio_room=1), client)["server"]["janus"]["audio"]
    assert audio.pop("sound").endswith("voice-24000-10.ogg")
    assert audio == {"room": 1, "speakers": 3, "bitrate_bit_per_s": 24_000}
    assert load_of().voice is None
    assert specification(load_of(), ROOM, client)["server"]["janus"]["audio"] is None
    assert AUDIO.keys() <= load.quantities.keys()
    assert not AUDIO.keys() & load_of().quantities.keys()


def test_what_participants_hear_is_told() -> None:
    report = told()
    report["audio"] = confer_fake.audio(20, 20, 10 * SECOND)
    report["audio"]["waiting_ns"] = 10 * SECOND  # of 200 s
    window = measurement_of(report, before=0, at=20).window
    assert {key: window.values[key] for key in AUDIO} == {
        "audio_silent_percent": pytest.approx(7),
        "audio_waiting_percent": pytest.approx(5),
        "audio_missing_percent": 0,
        "audio_loss_percent": pytest.approx(0.1),
        "audio_jitter_ms": pytest.approx(3.0005),
        "audio_first_packet_ms": pytest.approx(70.001),
        "audio_kbit_per_s": pytest.approx(32 * 200 / 190),
    }
    assert (window.counts["audio_expected"], window.counts["audio_gaps"]) == (10_000, 20)
    report["audio"]["said_late"] = 4
    counts = measurement_of(report, before=0, at=20).window.counts
    assert (counts[SENDS], counts[SENDS_LATE]) == (9 * 150 + 150, 4), "who speaks is a part of the generator"
    measured = load_of(speakers=1).measured([measurement_of(report, before=0, at=None)])
    assert AUDIO.keys() <= measured.quantities.keys()


def test_where_nobody_heard_anything_there_is_nothing_to_tell_of_audio() -> None:
    window = measurement_of(told(), before=0, at=20).window
    assert not AUDIO.keys() & window.values.keys()
    assert not [name for name in window.counts if name.startswith("audio_")]
    report = told()
    report["audio"] |= {"there_ns": 5 * SECOND, "waiting_ns": 5 * SECOND, "listeners": 1, "unheard": 1}
    window = measurement_of(report, before=0, at=20).window
    told_of_audio = {key: value for key, value in window.values.items() if key in AUDIO}
    assert told_of_audio == {"audio_silent_percent": 100, "audio_waiting_percent": 100}


def test_a_mix_that_comes_too_slowly_lacks_something_though_no_number_is_missing() -> None:
    """A mixer without the CPU for it goes on at its own pace: four packets in the time of five lose none."""
    report = told()
    report["audio"] = confer_fake.audio(20, 20, 10 * SECOND) | {"expected": 8_000, "lost": 0}
    values = measurement_of(report, before=0, at=None).window.values
    assert values["audio_missing_percent"] == pytest.approx(20)
    assert values["audio_loss_percent"] == 0


def test_compressed_time_brings_joins_together(client: Client) -> None:
    settings = ParticipantsSettings(join_ns=30 * SECOND, compression=30)
    assert settings.every_ns == SECOND


@pytest.mark.parametrize(
    ("manner", "words"),
    [("refuse", "the participants: no film can be read there"), ("endless", "its answer has no end")],
)
def test_a_generator_that_fails_says_why(client: Client, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_MOST_LINE_BYTES", 1000)
    with load_of(participants=2).session(client, ROOM) as session, pytest.raises(TrialError, match=words):
        session.measure()


@pytest.mark.parametrize("manner", ["silent"])
def test_one_that_never_answers_is_not_waited_for_for_ever(client: Client) -> None:
    with (
        conversation.conversing(client, ("virtoll-confer",), "the participants", {"roles": []}) as asked,
        pytest.raises(TrialError, match="the participants: it does not answer"),
    ):
        asked.ask(b"{}", 0.0)


def test_what_participants_feel_is_told() -> None:
    measurement = measurement_of(told(), before=0, at=20)
    window, values = measurement.window, measurement.window.values
    assert window.work == 9 * 19 * 10, "nine streams, each seen by nineteen for ten seconds"
    assert (values["present_percent"], values["frozen_percent"], values["loss_percent"]) == (100, 0, 0)
    assert values["loss_before_percent"] == pytest.approx(0.1, rel=0.05)
    assert values["jitter_ms"] == pytest.approx(2.0005)
    assert values["round_trip_ms"] == pytest.approx(0.2005)
    assert values["rtcp_round_trip_ms"] == pytest.approx(0.5005)
    assert values["first_packet_ms"] == pytest.approx(50.001)
    assert values["first_key_frame_ms"] == pytest.approx(200.001)
    assert values["webcam_mbit_per_s"] == pytest.approx(40 * 950 * 8 / 1e6)
    assert (window.counts[DROPPED], window.counts[WAKES_LATE], window.counts["stalls"]) == (0, 0, 0)
    assert (window.counts[WAKES], window.counts[SENDS]) == (2000, 9 * 150)
    joins = window.events[JOIN]
    assert (joins.intended, joins.completed, joins.censored, joins.late) == (20, 20, 0, 0)
    assert measurement.bulk.histogram == [(20_000_000, 20_001_000, 20)]


def test_what_went_wrong_is_told_by_its_kind() -> None:
    report = told()
    report["joins"] |= {"joined": 15, "failures": {"ice failed": 2, "room full": 1}, "under_way": 2, "again": 3}
    report["leaves"]["failures"] = {"connection lost": 4}
    report["sent"]["webcam"]["late_frames"] = 7
    report["received"]["webcam"]["dropped"] = 5
    window = measurement_of(report, before=10, at=None).window
    assert window.events[JOIN].failures == {"ice failed": 2, "room full": 1, "unfinished": 2}
    assert (window.events[JOIN].censored, window.counts["again"]) == (5, 3)
    stays = window.events[STAY]
    assert (stays.offered, stays.completed, stays.failures) == (25, 21, {"connection lost": 4})
    assert (window.counts[WAKES_LATE], window.counts[SENDS_LATE], window.counts[DROPPED]) == (0, 7, 5)


def test_a_stream_that_never_shows_anything_stands_still() -> None:
    report = told()
    for each in report["received"].values():
        each["waiting_ns"], each["watched_ns"] = each["watched_ns"], 0
        each["first_key_frame"] = []
        each["no_first_key_frame"] = each["streams"]
    window = measurement_of(report, before=0, at=None).window
    assert window.work == 0
    assert (window.values["frozen_percent"], window.values["waiting_percent"]) == (100, 100)
    assert "first_key_frame_ms" not in window.values
    assert window.censored == ["first_key_frame_ms"]
    assert window.counts["no_first_key_frame"] == 9 * 19


@pytest.mark.parametrize(("came", "never", "is_told"), [(300, 2100, False), (1200, 1200, True), (1200, 1201, False)])
def test_what_never_came_took_longer_than_any(came: int, never: int, is_told: bool) -> None:
    """Of 2,400 streams 2,100 never brought a packet, and the median was that of the rest."""
    report = told()
    report["audio"] = confer_fake.audio(20, came, 10 * SECOND) | {"no_first_packet": never}
    for number, each in enumerate(report["received"].values()):
        each["first_packet"] = [[50_000_000, 50_001_000, came // 2]]
        each["no_first_packet"] = never * number  # of one role alone
    window = measurement_of(report, before=0, at=20).window
    first, heard = ("first_packet_ms", "audio_first_packet_ms")
    assert (first in window.values, heard in window.values) == (is_told, is_told)
    assert window.censored == ([] if is_told else [first, heard])
    assert (window.counts["no_first_packet"], window.counts["audio_no_first_packet"]) == (never, never)
    for load in (load_of(speakers=1), load_of(speakers=1, levels=(20,))):
        measured = load.measured([measurement_of(report, before=0, at=20)])
        assert {first, heard} <= measured.quantities.keys(), "it is worse than any, and not unknown"


def test_where_nobody_came_in_there_is_nothing_to_tell_of_streams() -> None:
    report = told(participants=1)
    report["window"] |= {"present_ns": 0, "joined_at_end": 0}
    report["received"], report["ice_rtt"], report["sent"] = {}, [], {}
    window = measurement_of(report, before=0, at=None).window
    assert window.values == {"present_percent": 0}
    measured = load_of().measured([measurement_of(report, before=0, at=None)])
    assert measured.notes == ["no stream was seen: there are no freezes to tell of"]


def test_in_how_many_windows_no_stream_was_seen_is_told() -> None:
    """Of a ramp what any level tells is told."""
    nobody = told(participants=1)
    nobody["received"], nobody["ice_rtt"], nobody["sent"] = {}, [], {}
    windows = [measurement_of(report, before=0, at=None) for report in (nobody, told(), told())]
    measured = load_of().measured(windows)
    assert "frozen_percent" not in measured.quantities
    assert measured.notes == ["in 1 of 3 windows no stream was seen: freezes are not told of the trial"]
    ramp = load_of(levels=(1, 2, 3)).measured(windows)
    assert "frozen_percent" in ramp.quantities
    assert ramp.notes == []


def test_a_bit_rate_is_that_of_the_time_in_which_streams_were_watched() -> None:
    """Half of them went in the middle of the window: at its end there are half as many streams."""
    report = told()
    for each in report["received"].values():
        each["streams"] //= 2
        each["media_bytes"] = each["media_bytes"] * 3 // 4
        each["waiting_ns"], each["watched_ns"] = each["watched_ns"] // 4, each["watched_ns"] // 2
    values = measurement_of(report, before=0, at=None).window.values
    assert values["webcam_mbit_per_s"] == pytest.approx(40 * 950 * 8 / 1e6, rel=1e-3)
    for each in report["received"].values():
        each["streams"] = 0  # all went
    assert measurement_of(report, before=0, at=None).window.values == values
    for each in report["received"].values():
        each["watched_ns"] = each["waiting_ns"] = 0
    assert "webcam_mbit_per_s" not in measurement_of(report, before=0, at=None).window.values


def test_a_round_trip_by_rtcp_is_of_who_sends_alone() -> None:
    """By the reports of all of them, each weighing as often as it was told; of a window without one nothing is."""
    report = told()
    report["sent"]["webcam"]["rtt"], report["sent"]["desktop"]["rtt"] = (
        [[1_000_000, 1_000_000, 3]],
        [[5_000_000] * 2 + [1]],
    )
    values = measurement_of(report, before=0, at=None).window.values
    assert values["rtcp_round_trip_ms"] == pytest.approx(2)
    assert values["round_trip_ms"] == pytest.approx(0.2005), "a consent check's, of all"
    for each in report["sent"].values():
        each["rtt"] = []
    for each in report["received"].values():
        each["first_packet"] = []
    window = measurement_of(report, before=0, at=None).window
    assert not {"rtcp_round_trip_ms", "first_packet_ms"} & window.values.keys()
    assert (
        not {"rtcp_round_trip_ms", "first_packet_ms"}
        & load_of().measured([measurement_of(report, before=0, at=None)]).quantities.keys()
    )


counts = st.integers(0, 10**15)


@given(st.data())
def test_shares_are_shares_whatever_is_counted(data: st.DataObject) -> None:
    report = deepcopy(told())
    for each in report["received"].values():
        each["expected"] = data.draw(counts)
        each["lost_before"] = data.draw(st.integers(0, each["expected"]))
        each["lost"] = data.draw(st.integers(0, each["lost_before"]))
        each["watched_ns"], each["waiting_ns"] = data.draw(counts), data.draw(counts)
        each["frozen_ns"] = data.draw(st.integers(0, each["watched_ns"]))
    values = measurement_of(report, before=0, at=None).window.values
    shares = {key: value for key, value in values.items() if key.endswith("_percent")}
    assert all(0 <= value <= 100.000001 for value in shares.values()), shares
    assert shares.get("loss_percent", 0) <= shares.get("loss_before_percent", 0)
    assert shares.get("waiting_percent", 0) <= shares.get("frozen_percent", 0)


def test_a_ramp_tells_what_any_level_could(client: Client) -> None:
    report = told(participants=1)
    report["received"] = {}
    measurements = [measurement_of(report, 0, 1), measurement_of(told(before=1), 1, 20)]
    assert "loss_percent" in load_of(levels=(1, 20)).measured(measurements).quantities
    assert "loss_percent" not in load_of().measured(measurements).quantities


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"webcam_size": "640"}, "'640' is no size of a picture"),
        ({"webcam_size": "641x360"}, "cannot be made"),
        ({"webcams": 0, "desktops": 0}, "nobody sends anything"),
        ({"levels": (10, 5)}, "a ramp goes up from 2 on, and 10, 5 does not"),
        ({"levels": (0, 5)}, "a ramp goes up from 2 on"),
        ({"levels": (1, 2, 4)}, "a ramp goes up from 2 on"),  # the first watches nobody
        ({"levels": (5, 5)}, "a ramp goes up from 2 on"),
        ({"webcam_frames_per_s": 12.5}, "12.5 is no whole number of frames a second"),
        ({"desktop_frames_per_s": 1.5}, "1.5 is no whole number of frames a second"),
    ],
)
def test_what_cannot_work_is_said_beforehand(
    settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtoll.binaries.binary", Path)
    assert load_of(levels=(2, 4), webcam_frames_per_s=10.0).check(LocalHost()) == []
    assert load_of(levels=(10, 340), join_ns=30 * SECOND).check(LocalHost()) == [], "the papers' own hours"
    (problem,) = load_of(**settings).check(LocalHost())
    assert words in problem.what


def test_without_a_generator_or_footage_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(_name: str) -> Path:
        raise HostError("no binary", remedy="make")

    monkeypatch.setattr("virtoll.binaries.binary", missing)
    (problem,) = load_of().check(LocalHost())
    assert problem.what == "no binary"
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path))
    with pytest.raises(HostError, match=r"a desktop of 1280x720 at 5 frames/s and 0\.5 Mbit/s was not made"):
        load_of().session(Client(LocalHost(), Confinement(), tmp_path, cpus=1), ROOM)


def test_no_knee_is_searched_for_on_a_ramp() -> None:
    assert load_of().unsearched == ""
    assert load_of(levels=(1, 2)).unsearched == "a ramp has the levels that it is given"
    assert load_of().intensity.unit == "participants"


def test_what_it_sends_is_footage_of_its_settings() -> None:
    desktop, webcam = load_of(webcam_bitrate_bit_per_s=100_000, webcam_frames_per_s=10).footage
    assert webcam == Footage("webcam", 640, 360, 10, 100_000)
    assert desktop == replace(webcam, scene="desktop", width=1280, height=720, frames_per_s=5, bit_rate=500_000)
    assert [each.scene for each in load_of(desktops=0).footage] == ["webcam"]
    assert {each.codec for each in load_of(codec="h264").footage} == {"h264"}


def test_a_room_of_livekits_opens_to_its_key(client: Client) -> None:
    room = LiveKitRoom("198.18.3.10", 7880, Port(7900, "udp"), "virtoll", "the key", "the secret")
    assert specification(load_of(), room, client)["server"] == {
        "livekit": {"address": "198.18.3.10:7880", "room": "virtoll", "key": "the key", "secret": "the secret"}
    }
