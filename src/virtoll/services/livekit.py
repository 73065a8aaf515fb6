"""LiveKit, a conference server in Go, built with Pion: it passes what each publisher sends on to all who watch.

It is built from Go modules (``livekit.mod``, ``livekit.sum``): version 1.13.5, the last that Pion's own modules are
enough for; those after it take changed ones. Nothing is decoded or mixed, and all media go through one UDP port.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar

from virtoll.errors import Problem, TrialError
from virtoll.images.base import GO, GoProgram, Wanted
from virtoll.networks.base import Attachment
from virtoll.offers import Content, LiveKitRoom, Offer, Port
from virtoll.platforms.base import Instance
from virtoll.services import daemon, json_http
from virtoll.services.base import Service, Visitor
from virtoll.units import within

_HERE = files("virtoll.services")
_MEDIA = Port(7900, "udp")  # for all of them
_ROOM, _KEY = "virtoll", "virtoll"
_API = "/twirp/livekit.RoomService"
_READY_S, _DAY_S = 60.0, 86_400
_EXPIRES_S = 4_102_444_800  # 2100: nobody's clock is asked
_PACKAGE = "github.com/livekit/livekit-server/cmd/server"
_SHA256 = "70b4554cb9ab072e23306d1e136059aef213f203e55f1128fb23b961a422ceab"


@dataclass(frozen=True)
class LiveKitSettings:
    """Settings of LiveKit. ``participants``: how many can be there at once."""

    participants: int = within(1000, least=1, most=100_000)


class LiveKit(Service):
    """LiveKit's server, alone and without Redis, with one room."""

    name: ClassVar[str] = "livekit"
    summary: ClassVar[str] = "LiveKit: when you serve web conferences from a server in Go"
    port: ClassVar[int] = 7880
    offered: ClassVar[tuple[type[Offer], ...]] = (LiveKitRoom,)
    Settings: ClassVar[type[LiveKitSettings]] = LiveKitSettings
    settings: LiveKitSettings

    @property
    def image(self) -> Wanted:
        """The one program."""
        return Wanted(packages=self.packages, programs=(program(),))

    @property
    def ports(self) -> tuple[Port, ...]:
        """Of WebSockets and its API, and of media."""
        return (Port(self.port), _MEDIA)

    def start(self, instance: Instance, behind: Offer | None) -> LiveKitRoom:  # noqa: ARG002 - it stands alone
        """Start it with a key of its own; the room is made as the first comes in."""
        secret = secrets.token_hex(32)
        path = f"{daemon.DIRECTORY}/livekit.yaml"
        instance.agent.put(path, self.configuration(instance.attachment, secret).encode())
        argv = [*daemon.ALL_FILES, program().inside, "--config", path]
        daemon.start(instance, self.name, argv, self.port, user="nobody")
        return LiveKitRoom(instance.attachment.endpoint_address, self.port, _MEDIA, _ROOM, _KEY, secret)

    def await_ready(self, instance: Instance, offer: Offer, visitor: Visitor) -> None:
        """Wait until its API answers, which is after it listens."""

        def missing() -> str:
            problems = self.verify(offer, visitor, None)
            return problems[0].what if problems else ""

        daemon.await_ready(instance, self.name, _READY_S, missing)

    def configuration(self, attachment: Attachment, secret: str) -> str:
        """Its file, for an instance that is attached so: JSON, which is YAML.

        It tells its peers the address at which they reach it, and gathers from its own that matters: a namespace may
        have further ones (the one towards an origin).
        """
        outside = attachment.endpoint_address
        own = outside if attachment.kind == "shared" else attachment.address
        room = {"auto_create": True, "empty_timeout": _DAY_S, "departure_timeout": _DAY_S}
        told = {
            "port": self.port,
            "bind_addresses": ["0.0.0.0"],
            "rtc": {
                "udp_port": _MEDIA.number,
                "tcp_port": 0,
                "allow_tcp_fallback": False,  # else whoever was cut off once is told no address of UDP for five minutes
                "use_external_ip": False,
                "node_ip": outside,
                **({"ips": {"includes": [f"{own}/32"]}} if own else {}),
                # Of those whom it takes to be short of bandwidth it would stop sending to.
                "congestion_control": {"enabled": True, "allow_pause": False},
            },
            "room": {**room, "max_participants": self.settings.participants},
            "keys": {_KEY: secret},
            "logging": {"level": "warn", "pion_level": "error"},
        }
        return json.dumps(told, indent=1) + "\n"

    def counted(self, offer: Offer, visitor: Visitor) -> dict[str, int]:
        """Participants in the room."""
        assert isinstance(offer, LiveKitRoom)
        told = self._asked(offer, visitor, "ListParticipants", {"room": offer.room}, {"roomAdmin": True})
        present = told.get("participants")
        return {"participants": len(present)} if isinstance(present, list) else {}

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:  # noqa: ARG002
        """It lists its rooms for who has its key, and opens to nobody else."""
        assert isinstance(offer, LiveKitRoom)
        where = f"{self.name}, http://{offer.address}:{offer.port}{_API}"
        told = self._asked(offer, visitor, "ListRooms", {}, {"roomList": True})
        wrong = "" if isinstance(told.get("rooms"), list) else f"asked for its rooms, it says {str(told)[:200]}"
        if not wrong and self._opens_to_anybody(offer, visitor):
            wrong = "it lists its rooms for a key that is not its own"
        return [Problem(wrong, where, "the service's log in the trial says why")] if wrong else []

    def _opens_to_anybody(self, offer: LiveKitRoom, visitor: Visitor) -> bool:
        stranger = LiveKitRoom(offer.address, offer.port, offer.media, offer.room, offer.key, secrets.token_hex(32))
        try:
            self._asked(stranger, visitor, "ListRooms", {}, {"roomList": True})
        except TrialError as refusal:
            if re.search(r"it answers 'HTTP/1\.[01] 401\b", str(refusal)):
                return False
            raise  # nobody refused: it did not answer, or with something else
        return True

    def _asked(
        self, offer: LiveKitRoom, visitor: Visitor, method: str, message: Mapping[str, Any], grants: Mapping[str, Any]
    ) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token(offer, grants)}"}
        return json_http.asked(visitor, offer, f"{_API}/{method}", message, headers)


def program() -> GoProgram:
    """The server."""
    modules, sums = ((_HERE / f"livekit.{kind}").read_text(encoding="utf-8") for kind in ("mod", "sum"))
    return GoProgram(_PACKAGE, "livekit-server", *GO, modules, sums, _SHA256)


def token(offer: LiveKitRoom, grants: Mapping[str, Any]) -> str:
    """What opens the room's server to who has these grants (RFC 7519, with HMAC-SHA256)."""
    video = {"room": offer.room, **grants}
    claims = {"iss": offer.key, "sub": "virtoll", "exp": _EXPIRES_S, "video": video}
    signed = b".".join(_part(json.dumps(each).encode()) for each in ({"alg": "HS256", "typ": "JWT"}, claims))
    return (signed + b"." + _part(hmac.digest(offer.secret.encode(), signed, hashlib.sha256))).decode()


def _part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
