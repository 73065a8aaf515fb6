"""The native generator's viewers over RTSP, for real, against a server on loopback that misbehaves on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pytest

from rtsp_server import Manner, RtspServer
from virtoll.errors import TrialError
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads.base import Measurement
from virtoll.loads.rtsp_viewers import RtspViewersLoad, RtspViewersSettings
from virtoll.offers import Film, Rtsp
from virtoll.record.model import DROPPED, Events, Window
from virtoll.trial import proofs
from virtoll.trial.notes import Notes
from windows import longer

SECOND = 10**9
HOUR = 3600 * SECOND
Transport = Literal["tcp", "udp"]


@pytest.fixture
def server() -> Iterator[RtspServer]:
    with RtspServer() as running:
        yield running


def load_of(transport: Transport, **settings: Any) -> RtspViewersLoad:
    """An hour's film; who fails does not come again, and patience is for slow machines."""
    defaults: dict[str, Any] = {
        "viewers": 2,
        "clip_ns": HOUR,
        "startup_ns": SECOND,
        "settle_ns": 0,
        "time_limit_ns": 2 * SECOND,
        "patience_ns": 600 * SECOND,
        "rest_ns": HOUR,
    }
    return RtspViewersLoad(RtspViewersSettings(transport=transport, **{**defaults, **settings}))


def drive(client: Client, offer: Rtsp, transport: Transport, **settings: Any) -> Measurement:
    with load_of(transport, **settings).session(client, offer) as session:
        return session.measure()


def told(
    client: Client,
    server: RtspServer,
    transport: Transport,
    wanted: Mapping[str, Any],
    *,
    seconds: float = 2,
    **settings: Any,
) -> Measurement:
    """Of a window of so many seconds; of a longer one, where it does not tell what is wanted: counts, or of what views
    failed.
    """

    def measure(length_ns: int) -> Measurement:
        return drive(client, server.offer(), transport, time_limit_ns=length_ns, **settings)

    def holds(window: Window) -> bool:
        found = {**window.counts, "failures": window.events["view"].failures}
        return all(found[key] == wanted[key] for key in wanted)

    return longer(measure, holds, seconds)


def startups(measurement: Measurement) -> Events:
    return measurement.window.events["start-up"]


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_film_is_watched_and_all_its_packets_are_counted(
    client: Client, server: RtspServer, transport: Transport
) -> None:
    measurement = told(client, server, transport, {"packets": 3 * 200}, viewers=3)
    window, asked = measurement.window, startups(measurement)
    assert (asked.offered, asked.completed, asked.failures) == (3, 3, {})
    assert window.events["view"].failures == {}
    assert (window.counts["packets"], window.counts["expected"]) == (3 * 200, 3 * 200)
    assert window.counts["body_bytes"] == 3 * 200 * 100
    assert [window.values[f"{key}_percent"] for key in ("loss", "duplicates", "reordered")] == [0, 0, 0]
    assert 0 <= window.values["jitter_ms"] <= window.values["jitter_worst_ms"]
    assert 0 < window.work <= 3 * window.duration_ns / SECOND
    assert server.was_asked("TEARDOWN", server.asked.count("PLAY"))
    assert server.asked.count("PLAY") % 3 == 0


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_what_a_path_does_to_the_packets_is_told_exactly(
    client: Client, server: RtspServer, transport: Transport
) -> None:
    """Of each ten the fourth is lost, the seventh comes twice, and the ninth after its successor."""

    def path(sent: int) -> Iterator[int]:
        for begin in range(0, sent, 10):
            yield from (begin + number for number in (0, 1, 2, 4, 5, 6, 6, 7, 9, 8))

    server.path = path
    window = told(client, server, transport, {"expected": 2 * 2 * 100, "reordered": 2 * 2 * 10}).window
    assert window.counts["expected"] == 2 * 2 * 100
    assert window.counts["lost"] == window.counts["duplicates"] == window.counts["reordered"] == 2 * 2 * 10
    assert window.values["loss_percent"] == pytest.approx(10, rel=1e-9)


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize(
    ("manner", "kind"),
    [
        ("missing", "status 404"),
        ("no-transport", "status 461"),
        ("no-session", "status 454"),
        ("broken", "status 500"),
        ("elsewhere", "status 302"),
        ("junk", "parse"),
        ("hang-up", "reset"),
        ("reset", "reset"),
    ],
)
def test_who_never_plays_is_told_by_kind(
    client: Client, server: RtspServer, transport: Transport, manner: Manner, kind: str
) -> None:
    server.manner = manner
    asked = startups(drive(client, server.offer(), transport, time_limit_ns=SECOND // 2))
    assert (asked.offered, asked.completed, asked.failures, asked.censored) == (2, 0, {kind: 2}, 2)


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("manner", ["leap", "back"])
def test_timestamps_that_leap_are_told(
    client: Client, server: RtspServer, transport: Transport, manner: Manner
) -> None:
    server.manner = manner
    wanted = {"timestamps": 2}
    assert told(client, server, transport, {"failures": wanted}).window.events["view"].failures == wanted


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_film_that_ends_before_its_end_is_cut(client: Client, server: RtspServer, transport: Transport) -> None:
    """It is told a second after the farewell; what had come would have played for ten."""
    server.manner = "cut"
    wanted = {"length": 2}
    assert told(client, server, transport, {"failures": wanted}, seconds=6).window.events["view"].failures == wanted


def test_a_server_that_closes_while_it_plays_has_cut_the_film(client: Client, server: RtspServer) -> None:
    server.manner = "close"
    wanted = {"length": 2}
    assert told(client, server, "tcp", {"failures": wanted}).window.events["view"].failures == wanted


def test_a_film_is_over_when_all_has_come(client: Client, server: RtspServer) -> None:
    """All media come at once, and nothing after them: they are played, and another viewer joins."""
    server.length_s, server.sent = 2, 20

    def measure(length_ns: int) -> Measurement:
        return drive(client, server.offer(), "udp", clip_ns=2 * SECOND, viewers=1, time_limit_ns=length_ns)

    measurement = longer(measure, lambda window: window.events["start-up"].offered > 1, 8)
    assert measurement.window.events["view"].failures == {}
    assert startups(measurement).offered > 1


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_where_no_media_come_a_viewer_gives_up(client: Client, server: RtspServer, transport: Transport) -> None:
    server.manner = "silent"
    measurement = drive(client, server.offer(), transport, patience_ns=SECOND, time_limit_ns=SECOND)
    assert startups(measurement).failures == {"timeout": 2}
    assert "loss_percent" not in measurement.window.values, "of nothing there is no share"
    assert "loss_percent" not in load_of(transport).measured([measurement]).quantities


def test_a_transport_that_is_not_offered_is_refused(client: Client, server: RtspServer) -> None:
    with pytest.raises(TrialError) as refused:
        drive(client, server.offer("udp"), "tcp")
    assert "does not deliver media over tcp, but over udp" in str(refused.value)
    assert refused.value.problem.remedy == '[load] transport = "udp"'


def test_what_is_live_is_asked_for_without_a_length(client: Client, server: RtspServer) -> None:
    media = load_of("udp").asked(server.offer(is_live=True))["media"]["rtsp"]
    assert media == {"transport": "udp", "length_ns": None, "live": True, "mark": None}
    own = load_of("tcp", path="/x")
    assert own.content is None
    assert own.asked(server.offer())["target"]["url"].endswith("/x")
    assert load_of("tcp").content == Film(HOUR, 900_000)
    assert drive(client, server.offer(is_live=True), "udp", clip_ns=SECOND).window.events["view"].failures == {}


def test_viewers_cannot_be_unpaced() -> None:
    assert [problem.where for problem in load_of("tcp", paced=False).check(LocalHost())] == ["[load] paced"]


def test_a_window_in_which_the_generator_dropped_datagrams_proves_nothing(client: Client, server: RtspServer) -> None:
    measurement = drive(client, server.offer(), "udp", time_limit_ns=SECOND // 2)
    window = measurement.window
    for dropped, held in ((0, True), (3, False)):
        window = window.model_copy(update={"counts": {**window.counts, DROPPED: dropped}})
        measured = load_of("udp").measured([Measurement("x", window)])
        notes = Notes(client.directory, lambda _: None)
        proofs.of_generator(notes, measured, 1)
        found = {check.name: check.passed for check in notes.checks}
        assert found["the generator kept what came"] is held
