"""The publisher by RTSP beside its viewers, for real, with a server on loopback that hands on what it is given."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import pytest

from rtmp_server import FRAMES_PER_S, flv, wait_for
from rtsp_server import RtspServer
from virtoll import films
from virtoll.errors import TrialError
from virtoll.lab.client import Client
from virtoll.loads.publishing import publishing
from virtoll.loads.rtsp_viewers import RtspViewersLoad, RtspViewersSettings
from virtoll.offers import Film, Rtsp
from virtoll.record.model import DROPPED, Window
from windows import total, until

SECOND = 10**9
FILM = Film(4 * SECOND, 64_000)
MARK = "0123456789abcdef"
VIDEO_HZ, AUDIO_HZ = 90_000, 44_100
SEI, PICTURE = 6, 5


@pytest.fixture
def server() -> Iterator[RtspServer]:
    with RtspServer() as running:
        yield running


@pytest.fixture(autouse=True)
def film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a second, where films are looked for."""
    path = tmp_path / "film.flv"
    flv(path)
    monkeypatch.setattr(films, "file", lambda film, form: path)
    return path


def offer_of(server: RtspServer) -> Rtsp:
    return server.offer(is_live=True, publish_path="/publish/{film}")


def load_of(**settings: Any) -> RtspViewersLoad:
    """Who fails does not come again, and patience is for slow machines."""
    defaults: dict[str, Any] = {
        "viewers": 2,
        "clip_ns": FILM.duration_ns,
        "bitrate_bit_per_s": float(FILM.bit_rate),
        "settle_ns": 0,
        "time_limit_ns": 3 * SECOND,
        "patience_ns": 600 * SECOND,
        "rest_ns": 3600 * SECOND,
    }
    return RtspViewersLoad(RtspViewersSettings(**{**defaults, **settings}))


def packets(server: RtspServer, channel: int) -> list[tuple[int, int, bool, bytes]]:
    """Sequence number, timestamp, marker and payload of each that was published over a channel."""
    told = []
    for other, packet in list(server.published):
        if other == channel:
            _, kind, number, timestamp, _ = struct.unpack("!BBHII", packet[:12])
            told.append((number, timestamp, bool(kind & 0x80), packet[12:]))
    return told


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_film_is_published_and_its_age_is_told(
    client: Client, server: RtspServer, transport: Literal["tcp", "udp"]
) -> None:
    load = load_of(transport=transport)

    def is_told(window: Window) -> bool:
        """Audio and video of three seconds, though it may be late at both ends; a late one sends several frames; and
        each viewer looks up by itself. Where somebody stood still for a window, another is asked for.
        """
        least = {"published": 3 * FRAMES_PER_S + 1, "sends": FRAMES_PER_S, "wakes": 2 * 3 * 4}
        is_whole = window.counts["lost"] == 0 and all(window.counts[key] >= least[key] for key in least)
        return is_whole and window.values.get("media_age_ms", 0) > 0

    with load.session(client, offer_of(server)) as session:
        measured = until(session, lambda windows: sum(map(is_told, windows)) == 2)
    for one in measured:
        assert one.window.events["start-up"].failures == one.window.events["view"].failures == {}
        assert one.window.counts["publish_failures"] == 0
    lost, dropped = (total([one.window for one in measured], key) for key in ("lost", DROPPED))
    assert lost <= dropped, "by who stood still, and had no room for what came"
    measurements = [one for one in measured if is_told(one.window)]
    assert len(measurements) == 2
    assert set(load.measured(measurements).quantities) == set(load.quantities)
    assert server.asked.count("RECORD") == 1, "once for all windows"
    assert server.was_asked("TEARDOWN", 1 + 2), "viewers stay from window to window"


def test_frames_go_at_their_times_round_and_round_and_a_mark_before_key_frames(
    client: Client, server: RtspServer
) -> None:
    with publishing(client, offer_of(server), FILM, MARK):
        wait_for(lambda: len(server.published) > 5 * FRAMES_PER_S)
    for channel, clock_hz in ((0, VIDEO_HZ), (2, AUDIO_HZ)):
        sent = packets(server, channel)
        steps = {(after[0] - before[0]) % 2**16 for before, after in pairwise(sent)}
        assert steps == {1}, "no number is left out"
        times = [timestamp for timestamp, _ in groupby(sent, key=itemgetter(1))]
        assert {(after - before) % 2**32 for before, after in pairwise(times)} == {clock_hz // FRAMES_PER_S}
        assert len(times) > FRAMES_PER_S, "the film is a second long"
    pictures = packets(server, 0)
    assert all(marker == (payload[0] & 0x1F == PICTURE) for _, _, marker, payload in pictures)
    marked = [timestamp for _, timestamp, _, payload in pictures if payload[0] == SEI and MARK.encode() in payload]
    times = [timestamp for timestamp, _ in groupby(pictures, key=itemgetter(1))]
    keys = [timestamp for at, timestamp in enumerate(times) if at % FRAMES_PER_S % (FRAMES_PER_S // 2) == 0]
    assert marked == keys, "of each round of the film"
    sounds = packets(server, 2)
    assert {payload[:4] for _, _, _, payload in sounds} == {b"\x00\x10" + struct.pack("!H", 40 << 3)}
    reports = [packet for channel, packet in server.published if channel in (1, 3)]
    assert {packet[1] for packet in reports} == {200}, "of the sender"
    assert re.search(r"a=rtpmap:97 MPEG4-GENERIC/44100/2\r\n", server.announced)


def test_many_streams_are_published_by_one_process(client: Client, server: RtspServer, monkeypatch: Any) -> None:
    urls = [f"rtsp://127.0.0.1:{server.where[1]}/publish/{number}" for number in range(20)]
    monkeypatch.setattr("virtoll.loads.publishing._streams", lambda offer, film: {"rtsp": {"urls": urls}})
    with publishing(client, offer_of(server), FILM, MARK) as publisher:
        wait_for(lambda: len({packet[8:12] for _, packet in list(server.published) if packet[1] & 0x7F == 96}) == 20)
        told = publisher.report()
    assert (told.published, told.failures, server.asked.count("RECORD")) == (20, {}, 20)


def test_a_publisher_that_is_not_taken_is_an_error(client: Client, server: RtspServer, monkeypatch: Any) -> None:
    server.manner = "no-record"
    for patience_s in (1, 8, 64):  # a busy server may say nothing for a while
        monkeypatch.setattr("virtoll.loads.publishing._PATIENCE_NS", patience_s * SECOND)
        words = rf"publish/film-4000-64000 takes 0 of 1 streams within {patience_s} s"
        with pytest.raises(TrialError, match=words) as caught, load_of().session(client, offer_of(server)):
            pass
        if "status" in str(caught.value):
            break
    assert re.search(r"\(\d+ status\)", str(caught.value))


def test_a_publisher_that_is_dropped_comes_again_and_says_so(client: Client, server: RtspServer) -> None:
    with publishing(client, offer_of(server), FILM, MARK) as publisher:
        wait_for(lambda: server.published)
        server.drop()
        wait_for(lambda: publisher.report().failures == {"reset": 1})
        assert server.was_asked("RECORD", 2)


def test_a_film_that_rtp_does_not_carry_is_an_error(client: Client, server: RtspServer, film: Path) -> None:
    film.write_bytes(film.read_bytes().replace(b"\xaf\x00\x12\x10", b"\xaf\x00\x17\x10"))
    with (
        pytest.raises(TrialError, match=r"film\.flv: it does not say how its AAC is decoded"),
        publishing(client, offer_of(server), FILM, MARK),
    ):
        pass


def test_what_is_the_servers_own_or_the_users_is_not_published(client: Client, server: RtspServer) -> None:
    for load, offer in ((load_of(), server.offer(is_live=True)), (load_of(path="/mine"), offer_of(server))):
        with load.session(client, offer) as session:
            window = session.measure(duration_ns=SECOND // 2).window
        assert "published" not in window.counts
        assert "media_age_ms" not in window.values
    assert "ANNOUNCE" not in server.asked
