"""Janus: its configuration, its ports, and what a verification sees in its answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.errors import TrialError
from virtoll.lab.client import Answer
from virtoll.networks.base import Attachment, network_modes
from virtoll.offers import Http, JanusRoom, Offer, Port
from virtoll.services.janus import Janus, JanusSettings, nat
from virtoll.services.json_http import read_answer

OFFER = JanusRoom("198.18.3.10", 8188, Port(20_000, "udp", 20_799), 8088)
# As Janus 1.1.2 said it, shortened.
INFO = {
    "janus": "server_info",
    "name": "Janus WebRTC Server",
    "version_string": "1.1.2",
    "transports": {"janus.transport.http": {"version": 2}, "janus.transport.websockets": {"version": 1}},
    "plugins": {"janus.plugin.videoroom": {"version": 9}},
}
AUDIO_INFO = {
    **INFO,
    "plugins": {"janus.plugin.videoroom": {"version": 9}, "janus.plugin.audiobridge": {"version": 12}},
}
AUDIO_ROOM = {"room": 1, "description": "virtoll", "sampling_rate": 48_000, "num_participants": 0}
ROOM = {
    "room": 1,
    "description": "virtoll",
    "max_publishers": 9,
    "bitrate": 2_000_000,
    "videocodec": "vp8,h264",
    "num_participants": 0,
}
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\n\r\n"


class Server:
    """Answers as Janus does: a session, a handle, a list of rooms."""

    def __init__(
        self,
        info: Any = INFO,
        rooms: Any = (ROOM,),
        sessions: Any = (),
        upgraded: bytes = UPGRADED,
        audio_rooms: Any = None,
    ) -> None:
        self.info, self.sessions, self.upgraded = info, sessions, upgraded
        self.rooms = {"janus.plugin.videoroom": rooms, "janus.plugin.audiobridge": audio_rooms}
        self.asked_of = ""
        self.open: set[str] = set()

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        head, _, body = sent.decode().partition("\r\n\r\n")
        path = head.split()[1]
        if offer.port == 8188:
            assert "Upgrade: websocket" in head
            return self.upgraded[:most_bytes]
        told = self.info if head.startswith("GET /janus/info") else self.asked(offer.port, path, json.loads(body))
        text = told if isinstance(told, str) else json.dumps(told)
        return f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{text}".encode()[:most_bytes]

    def asked(self, port: int, path: str, message: dict[str, Any]) -> Any:
        assert message["transaction"]
        match port, message["janus"]:
            case 7088, "list_sessions":
                return {"janus": "success", "sessions": list(self.sessions)}
            case 8088, "create":
                self.open.add("77")
                return {"janus": "success", "data": {"id": 77}}
            case 8088, "attach":
                assert path == "/janus/77"
                self.asked_of = message["plugin"]
                return {"janus": "success", "data": {"id": 88}}
            case 8088, "message":
                assert (path, message["body"]) == ("/janus/77/88", {"request": "list"})
                return {"janus": "success", "plugindata": {"data": {"list": self.rooms[self.asked_of]}}}
            case 8088, "destroy":
                self.open.remove(path.rpartition("/")[2])
                return {"janus": "success"}
        raise AssertionError(message)

    def get(self, offer: Http, path: str) -> Answer:
        raise AssertionError("what it serves is no object")


def wrong(server: Server) -> list[str]:
    return [problem.what for problem in Janus().verify(OFFER, server, None)]


def test_a_room_as_it_was_configured_is_seen() -> None:
    server = Server()
    assert wrong(server) == []
    assert not server.open, "no session is left behind"


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (Server(info={**INFO, "plugins": {**INFO["plugins"], "janus.plugin.sip": {}}}), "its plugins are .*sip"),  # type: ignore[dict-item]
        (Server(info={**INFO, "transports": {"janus.transport.http": {}}}), "its transports are"),
        (Server(info={"janus": "error"}), "asked who it is"),
        (Server(rooms=[{**ROOM, "max_publishers": 3}]), r"room 1 has max_publishers 3, not 9"),
        (Server(rooms=[{**ROOM, "bitrate": 128_000}]), "bitrate 128000, not 2000000"),
        (Server(rooms=[{**ROOM, "videocodec": "vp8"}]), "videocodec vp8, not vp8,h264"),
        (Server(rooms=[{**ROOM, "room": 2}]), "it has no room 1"),
        (Server(rooms=[]), "it has no room 1"),
        (Server(upgraded=b"HTTP/1.1 403 Forbidden\r\n\r\n"), "asked for a WebSocket, it says"),
    ],
)
def test_another_room_is_told(server: Server, words: str) -> None:
    (told,) = wrong(server)
    assert re.search(words, told), told


WITH_AUDIO = Janus(JanusSettings(audio=True))


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (
            Server(),
            "its plugins are janus.plugin.videoroom, and janus.plugin.audiobridge and janus.plugin.videoroom were",
        ),
        (Server(info=AUDIO_INFO, audio_rooms=[]), "it has no room 1 for audio"),
        (Server(info=AUDIO_INFO, audio_rooms=[{**AUDIO_ROOM, "room": 2}]), "it has no room 1 for audio"),
        (
            Server(info=AUDIO_INFO, audio_rooms=[{**AUDIO_ROOM, "sampling_rate": 16_000}]),
            "room 1 mixes audio at 16000 Hz, not 48000",
        ),
    ],
)
def test_another_room_for_audio_is_told(server: Server, words: str) -> None:
    (problem,) = WITH_AUDIO.verify(OFFER, server, None)
    assert words in problem.what


def test_a_room_for_audio_is_seen_and_counted() -> None:
    server = Server(info=AUDIO_INFO, rooms=[{**ROOM, "num_participants": 8}], audio_rooms=[AUDIO_ROOM])
    assert WITH_AUDIO.verify(OFFER, server, None) == []
    told = WITH_AUDIO.counted(replace(OFFER, audio_room=1), server)
    assert told == {"sessions": 0, "participants": 8, "audio_participants": 0}
    assert not server.open, "no session is left behind"
    (problem,) = Janus().verify(OFFER, server, None)
    assert "its plugins are" in problem.what, "nor is there one where none was to be"


def test_audio_brings_a_plugin_its_room_and_a_port_for_each() -> None:
    shared = Attachment("host", "shared", "", "198.18.1.2", ())
    settings = JanusSettings(participants=60)
    without, files = (Janus(each).configuration(shared) for each in (settings, replace(settings, audio=True)))
    room = values(files.pop("janus.plugin.audiobridge.jcfg"))
    assert (room["sampling_rate"], room["record"]) == ("48000", "false")
    assert files.keys() == without.keys(), "and where there is none, all is as before"
    assert values(files["janus.jcfg"])["rtp_port_range"] == "20000-20179"
    assert "libjanus_audiobridge.so" in without["janus.jcfg"]
    assert "libjanus_audiobridge.so" not in files["janus.jcfg"]
    assert all(text.count("{") == text.count("}") for text in files.values())


def test_more_participants_than_there_are_ports_for_are_refused() -> None:
    assert Janus(JanusSettings(participants=10_000)).problems(None) == []
    (problem,) = Janus(JanusSettings(participants=6_667, audio=True)).problems(None)
    assert "6,667 participants with audio take three ports each, and there are some for 6,666" in problem.what
    assert Janus(JanusSettings(participants=6_666, audio=True)).problems(None) == []


@pytest.mark.parametrize("rooms", [None, 7, {"a": 1}])
def test_no_list_of_rooms_is_an_error(rooms: Any) -> None:
    with pytest.raises(TrialError, match="asked for its rooms"):
        Janus().verify(OFFER, Server(rooms=rooms), None)


def test_it_counts_who_is_there() -> None:
    server = Server(rooms=[{**ROOM, "num_participants": 8}], sessions=[1, 2, 3])
    assert Janus().counted(OFFER, server) == {"sessions": 3, "participants": 8}
    assert Janus().counted(OFFER, Server(sessions={}, rooms=[])) == {"sessions": 0}


@pytest.mark.parametrize("told", [True, "8", None, -1, 2**64])
def test_a_count_that_is_none_is_missing(told: Any) -> None:
    assert Janus().counted(OFFER, Server(rooms=[{**ROOM, "num_participants": told}])) == {"sessions": 0}


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda body: b"HTTP/1.1 200 OK\r\n\r\n" + body))
def test_any_answer_is_read_or_refused(said: bytes) -> None:
    try:
        told = read_answer(said, "here")
    except TrialError:
        return
    assert isinstance(told, dict)


def values(text: str) -> dict[str, str]:
    """The settings of a file by name; of names that several groups have, the last."""
    return {name: value.strip('"') for name, value in re.findall(r"^ *(\w+) = (\S+)$", text, re.MULTILINE)}


def test_its_files_say_what_its_settings_say() -> None:
    shared = Attachment("host", "shared", "", "198.18.1.2", ())
    settings = JanusSettings(publishers=5, participants=60, bitrate_bit_per_s=300_000, event_loops=2)
    files = Janus(settings).configuration(shared)
    core = values(files["janus.jcfg"])
    assert (core["rtp_port_range"], core["event_loops"], core["ice_enforce_list"]) == ("20000-20119", "2", "198.18.1.2")
    room = values(files["janus.plugin.videoroom.jcfg"])
    assert (room["publishers"], room["bitrate"], room["record"]) == ("5", "300000", "false")
    assert room["videocodec"] == "vp8,h264"
    assert values(files["janus.transport.websockets.jcfg"])["ws_port"] == "8188"
    assert values(files["janus.transport.http.jcfg"])["admin_port"] == "7088"
    assert "event_loops" not in values(Janus().configuration(shared)["janus.jcfg"])
    assert all(text.count("{") == text.count("}") for text in files.values())


@pytest.mark.parametrize(
    ("kind", "own", "expected"),
    [
        ("shared", "", {"ice_enforce_list": "198.18.1.2"}),
        ("veth", "198.18.1.2", {"ice_enforce_list": "198.18.1.2"}),  # bridge, routed
        ("tap", "198.18.3.10", {"ice_enforce_list": "198.18.3.10", "nat_1_1_mapping": "198.18.1.2"}),  # nat
        ("published", "", {"nat_1_1_mapping": "198.18.1.2"}),
        ("user", "10.0.2.15", {"ice_enforce_list": "10.0.2.15", "nat_1_1_mapping": "198.18.1.2"}),
    ],
)
def test_it_tells_its_peers_the_address_at_which_they_reach_it(kind: Any, own: str, expected: dict[str, str]) -> None:
    assert values(nat(Attachment("any", kind, "", "198.18.1.2", (), address=own))) == expected


@pytest.mark.parametrize("mode", ["pasta", "published", "slirp4netns", "usernet"])
def test_modes_that_publish_ports_one_by_one_say_beforehand_how_many_they_take(mode: str) -> None:
    network = network_modes()[mode]()
    assert network.problems_with(Janus(JanusSettings(participants=120)).ports) == []
    (problem,) = network.problems_with(Janus().ports)
    assert "brings ports to the instance one by one: 803 are more than 256" in problem.what
    assert network_modes()["routed"]().problems_with(Janus().ports) == []


def test_its_ports_are_of_all_who_can_be_there() -> None:
    assert Janus(JanusSettings(participants=60)).ports == (
        Port(8188),
        Port(8088),
        Port(7088),
        Port(20_000, "udp", 20_119),
    )


def test_more_publishers_than_participants_are_refused() -> None:
    assert Janus(JanusSettings(publishers=9, participants=9)).problems(None) == []
    (problem,) = Janus(JanusSettings(publishers=9, participants=8)).problems(None)
    assert "9 publishers are more than the 8" in problem.what
