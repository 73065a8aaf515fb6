"""LiveKit: its configuration, its ports, its key, and what a verification sees in its answers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from virtoll.errors import TrialError
from virtoll.lab.client import Answer
from virtoll.loads.participants import ParticipantsLoad
from virtoll.networks.base import Attachment, Kind
from virtoll.offers import Http, LiveKitRoom, Offer, Port
from virtoll.services.livekit import LiveKit, program, token

OFFER = LiveKitRoom("198.18.3.10", 7880, Port(7900, "udp"), "virtoll", "virtoll", "secret")


def claims_of(text: str, secret: str) -> dict[str, Any] | None:
    """Of a token whose signature holds (RFC 7515, 5.2)."""
    head, body, signature = text.split(".")
    expected = hmac.new(secret.encode(), f"{head}.{body}".encode(), hashlib.sha256).digest()
    padded = [part + "=" * (-len(part) % 4) for part in (body, signature)]
    if base64.urlsafe_b64decode(padded[1]) != expected:
        return None
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(padded[0]))
    return claims


def attached(mode: str, kind: Kind, outside: str, own: str = "") -> Attachment:
    return Attachment(mode, kind, "sut", outside, LiveKit().ports, address=own)


class Server:
    """Answers as LiveKit does to who has the key."""

    def __init__(self, rooms: Any = (), participants: Any = (), opens_to_all: bool = False) -> None:
        self.told = {"ListRooms": {"rooms": rooms}, "ListParticipants": {"participants": participants}}
        self.opens_to_all = opens_to_all

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        head, _, _ = sent.decode().partition("\r\n\r\n")
        path = head.split()[1]
        bearer = next(line for line in head.splitlines() if line.startswith("Authorization: Bearer "))
        claims = claims_of(bearer.removeprefix("Authorization: Bearer "), "secret")
        if claims is None and not self.opens_to_all:
            return b'HTTP/1.1 401 Unauthorized\r\n\r\n{"code":"unauthenticated"}'[:most_bytes]
        method = path.removeprefix("/twirp/livekit.RoomService/")
        if claims is not None:
            assert claims["iss"] == "virtoll"
            assert claims["video"]["roomAdmin" if method == "ListParticipants" else "roomList"] is True
        return b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(self.told[method]).encode()[:most_bytes]

    def get(self, offer: Http, path: str) -> Answer:
        raise AssertionError("what it serves is no object")


def wrong(server: Server) -> list[str]:
    return [problem.what for problem in LiveKit().verify(OFFER, server, None)]


def test_a_server_that_opens_to_its_key_alone_is_seen() -> None:
    assert wrong(Server(rooms=[])) == []


def test_another_is_told() -> None:
    assert wrong(Server(rooms=7)) == ["asked for its rooms, it says {'rooms': 7}"]
    assert wrong(Server(rooms=[], opens_to_all=True)) == ["it lists its rooms for a key that is not its own"]


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nwelcome"]
)
def test_a_stranger_who_was_not_refused_proves_nothing(answer: bytes) -> None:
    """Whatever went wrong was taken for a refusal."""

    class Faltering(Server):
        def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
            told = super().exchange(offer, sent, most_bytes)
            return answer if b" 401 " in told else told

    with pytest.raises(TrialError):
        LiveKit().verify(OFFER, Faltering(rooms=[]), None)


def test_one_with_another_key_is_an_error() -> None:
    other = LiveKitRoom(OFFER.address, OFFER.port, OFFER.media, OFFER.room, OFFER.key, "another")
    with pytest.raises(TrialError, match="401"):
        LiveKit().verify(other, Server(rooms=[]), None)


def test_it_counts_who_is_there() -> None:
    assert LiveKit().counted(OFFER, Server(participants=[{}, {}])) == {"participants": 2}
    assert LiveKit().counted(OFFER, Server(participants=None)) == {}


def test_a_token_tells_what_it_opens_and_is_signed() -> None:
    claims = claims_of(token(OFFER, {"roomList": True}), "secret")
    assert claims is not None
    assert claims["video"] == {"room": "virtoll", "roomList": True}
    assert claims_of(token(OFFER, {}), "another") is None


@pytest.mark.parametrize(
    ("attachment", "own", "outside"),
    [
        (attached("routed", "veth", "198.18.3.10", "198.18.3.10"), "198.18.3.10/32", "198.18.3.10"),
        (attached("published", "published", "198.18.1.2", "172.18.0.2"), "172.18.0.2/32", "198.18.1.2"),
        (attached("host", "shared", "198.18.1.2"), "198.18.1.2/32", "198.18.1.2"),
    ],
)
def test_it_tells_its_peers_where_they_reach_it(attachment: Attachment, own: str, outside: str) -> None:
    told = json.loads(LiveKit().configuration(attachment, "secret"))
    assert (told["rtc"]["node_ip"], told["rtc"]["ips"]) == (outside, {"includes": [own]})
    assert told["keys"] == {"virtoll": "secret"}


def test_media_go_through_one_port_and_no_other_way() -> None:
    assert LiveKit().ports == (Port(7880), Port(7900, "udp"))
    told = json.loads(LiveKit().configuration(attached("host", "shared", "198.18.1.2"), "s"))["rtc"]
    assert (told["udp_port"], told["tcp_port"], told["allow_tcp_fallback"]) == (7900, 0, False)


def test_what_is_locked_is_what_the_program_is_made_of() -> None:
    locked = program()
    assert "github.com/livekit/livekit-server v1.13.5" in locked.modules
    assert "github.com/livekit/livekit-server v1.13.5 h1:" in locked.sums
    assert len(locked.sha256) == 64
    assert locked.inside == "/virtoll/programs/livekit-server"


def test_participants_enter_its_room() -> None:
    assert any(issubclass(LiveKitRoom, taken) for taken in ParticipantsLoad.takes)
