"""Janus, a conference server: its VideoRoom, which passes what each publisher sends on to all who watch.

It plays the part that BigBlueButton's media server has in a conference, and is not BigBlueButton: there are no
presentations, no chat and no users' pages. No video is decoded or mixed. With ``audio`` there is a room of its
AudioBridge besides, which decodes what is said, mixes it, and encodes for each participant the mix of all others.

Debian's package loads every plugin and transport it brings; here it has VideoRoom alone, or AudioBridge too, WebSockets
for participants, and HTTP for what is asked about it, by a configuration of our own. That nothing else came is
verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

from virtoll.errors import Problem, TrialError
from virtoll.networks.base import Attachment
from virtoll.offers import Content, JanusRoom, Offer, Port, Tcp
from virtoll.platforms.base import Instance
from virtoll.services import daemon, json_http
from virtoll.services.base import Service, Visitor
from virtoll.units import within

_FIRST_MEDIA, _MOST_MEDIA = 20_000, 40_000
_ROOM, _AUDIO_ROOM, _PATH, _ADMIN_PATH = 1, 1, "/janus", "/admin"
_AUDIO_HZ = 48_000  # at which it mixes: Opus's full band
_READY_S = 60.0
_PLUGIN, _HTTP, _WEBSOCKETS = "janus.plugin.videoroom", "janus.transport.http", "janus.transport.websockets"
_AUDIO_PLUGIN = "janus.plugin.audiobridge"
_VIDEO = "vp8,h264"  # what publishers may send; each sends one of them
# Of Debian's package.
_OTHERS = {
    "plugins": "audiobridge duktape echotest lua nosip recordplay sip streaming textroom videocall voicemail",
    "transports": "mqtt nanomsg pfunix rabbitmq",
}


@dataclass(frozen=True)
class JanusSettings:
    """Settings of Janus. ``publishers``: how many may send at once. ``participants``: how many can be there at once,
    each of whom takes two UDP ports (for what it sends and what it receives); in network modes that publish ports one
    by one, no more than 126 can (with audio 84). ``bitrate``: what a publisher is told to send at most (by REMB, as it
    joins).
    ``event_loops``: threads that all connections share; 0: each has a thread of its own, as is Janus's default.
    ``audio``: there is a room in which what is said is mixed; a participant takes three ports then, and its mixer wakes
    200 times a second whoever is there, so there is none unless it is asked for.
    """

    publishers: int = within(9, least=1, most=1000)
    participants: int = within(400, least=1, most=(_MOST_MEDIA - _FIRST_MEDIA) // 2)
    bitrate_bit_per_s: float = within(2e6, least=64_000, most=1e8)
    event_loops: int = within(0, most=64)
    audio: bool = False

    @property
    def ports_each(self) -> int:
        """UDP ports that a participant takes at most."""
        return 3 if self.audio else 2


class Janus(Service):
    """Debian's Janus with one room."""

    name: ClassVar[str] = "janus"
    summary: ClassVar[str] = "Janus's VideoRoom: when you serve web conferences, in BigBlueButton's part"
    packages: ClassVar[tuple[str, ...]] = ("janus",)
    port: ClassVar[int] = 8188
    api_port: ClassVar[int] = 8088
    admin_port: ClassVar[int] = 7088
    offered: ClassVar[tuple[type[Offer], ...]] = (JanusRoom,)
    Settings: ClassVar[type[JanusSettings]] = JanusSettings
    settings: JanusSettings

    @property
    def ports(self) -> tuple[Port, ...]:
        """Of WebSockets, its two APIs over HTTP, and media."""
        return (Port(self.port), Port(self.api_port), Port(self.admin_port), self._media)

    @property
    def _media(self) -> Port:
        most = _FIRST_MEDIA + self.settings.ports_each * self.settings.participants - 1
        return Port(_FIRST_MEDIA, "udp", min(most, _MOST_MEDIA - 1))

    @property
    def _plugins(self) -> list[str]:
        return sorted([_PLUGIN, *([_AUDIO_PLUGIN] if self.settings.audio else [])])

    def problems(self, origin: Service | None) -> list[Problem]:  # noqa: ARG002
        """Who sends is there, and there are ports for all."""
        publishers, participants, problems = self.settings.publishers, self.settings.participants, []
        if publishers > participants:
            what = f"{publishers} publishers are more than the {participants} who can be there"
            problems.append(Problem(what, "[service] participants", f"write participants = {publishers} or more"))
        most = (_MOST_MEDIA - _FIRST_MEDIA) // self.settings.ports_each
        if participants > most:
            what = f"{participants:,} participants with audio take three ports each, and there are some for {most:,}"
            problems.append(Problem(what, "[service] participants", f"write participants = {most}, or no audio"))
        return problems

    def start(self, instance: Instance, behind: Offer | None) -> JanusRoom:  # noqa: ARG002 - it stands alone
        """Start it with the one room, and that for audio."""
        for file, text in self.configuration(instance.attachment).items():
            instance.agent.put(f"{daemon.DIRECTORY}/{file}", text.encode())
        argv = [*daemon.ALL_FILES, "janus", "-F", daemon.DIRECTORY]
        daemon.start(instance, self.name, argv, self.port, user="nobody")
        address, audio_room = instance.attachment.endpoint_address, _AUDIO_ROOM if self.settings.audio else None
        return JanusRoom(address, self.port, self._media, self.api_port, _ROOM, audio_room)

    def await_ready(self, instance: Instance, offer: Offer, visitor: Visitor) -> None:
        """Wait until it has its plugin, which is after it listens."""

        def missing() -> str:
            problems = self.verify(offer, visitor, None)
            return problems[0].what if problems else ""

        daemon.await_ready(instance, self.name, _READY_S, missing)

    def configuration(self, attachment: Attachment) -> dict[str, str]:
        """Its files by their names, for an instance that is attached so."""
        settings = self.settings
        loops = f"    event_loops = {settings.event_loops}\n" if settings.event_loops else ""
        general = f"""\
general: {{
    configs_folder = "{daemon.DIRECTORY}"
    debug_level = 3
    debug_timestamps = true
    debug_colors = false
{loops}}}
media: {{
    ipv6 = false
    rtp_port_range = "{self._media.number}-{self._media.end}"
}}
nat: {{
    nice_debug = false
{nat(attachment)}}}
plugins: {{
    disable = "{_files("plugins", self._plugins)}"
}}
transports: {{
    disable = "{_files("transports", [])}"
}}
events: {{
    broadcast = false
}}
"""
        http = f"""\
general: {{
    json = "compact"
    base_path = "{_PATH}"
    http = true
    port = {self.api_port}
    ip = "0.0.0.0"
    https = false
}}
admin: {{
    admin_base_path = "{_ADMIN_PATH}"
    admin_http = true
    admin_port = {self.admin_port}
    admin_ip = "0.0.0.0"
    admin_https = false
}}
"""
        # Without ``ws_ip`` it listens by IPv6 or not at all, and uml's kernel has none.
        sockets = f"""\
general: {{
    json = "compact"
    ws = true
    ws_port = {self.port}
    ws_ip = "0.0.0.0"
    wss = false
}}
admin: {{
    admin_ws = false
    admin_wss = false
}}
"""
        room = f"""\
general: {{
    events = false
}}
room-{_ROOM}: {{
    description = "virtoll"
    publishers = {settings.publishers}
    bitrate = {round(settings.bitrate_bit_per_s)}
    fir_freq = 0
    audiocodec = "opus"
    videocodec = "{_VIDEO}"
    record = false
}}
"""
        audio = f"""\
general: {{
    events = false
}}
room-{_AUDIO_ROOM}: {{
    description = "virtoll"
    sampling_rate = {_AUDIO_HZ}
    spatial_audio = false
    audiolevel_event = false
    record = false
}}
"""
        files = {
            "janus.jcfg": general,
            f"{_HTTP}.jcfg": http,
            f"{_WEBSOCKETS}.jcfg": sockets,
            f"{_PLUGIN}.jcfg": room,
        }
        return files | ({f"{_AUDIO_PLUGIN}.jcfg": audio} if settings.audio else {})

    def counted(self, offer: Offer, visitor: Visitor) -> dict[str, int]:
        """Sessions by the administrators' API, and participants in the room, and in that for audio."""
        assert isinstance(offer, JanusRoom)
        admin = Tcp(offer.address, self.admin_port)
        told = json_http.asked(visitor, admin, _ADMIN_PATH, {"janus": "list_sessions", "transaction": "v"})
        found = {"sessions": len(told["sessions"])} if isinstance(told.get("sessions"), list) else {}
        rooms = {"participants": (_PLUGIN, offer.room), "audio_participants": (_AUDIO_PLUGIN, offer.audio_room)}
        for name, (plugin, number) in rooms.items():
            room = _numbered(self._rooms(offer, visitor, plugin), number) if number is not None else None
            present = room.get("num_participants") if room else None
            found |= {name: present} if _is_count(present) else {}
        return found

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:  # noqa: ARG002
        """It is Janus with the plugins of its settings alone, its rooms are as they were configured, and it opens a
        WebSocket.
        """
        assert isinstance(offer, JanusRoom)
        api = Tcp(offer.address, offer.api_port)
        where = f"{self.name}, http://{api.address}:{api.port}{_PATH}"
        told = json_http.got(visitor, api, f"{_PATH}/info")
        wrong = self._wrong_with(told) or self._wrong_with_rooms(self._rooms(offer, visitor, _PLUGIN), offer.room)
        if self.settings.audio:
            wrong = wrong or _wrong_with_audio(self._rooms(offer, visitor, _AUDIO_PLUGIN))
        wrong = wrong or _wrong_with_socket(visitor.exchange(offer, _upgrade(offer), len(_SWITCHED)))
        return [Problem(wrong, where, "the service's log in the trial says why")] if wrong else []

    def _wrong_with(self, told: Mapping[str, Any]) -> str:
        if told.get("janus") != "server_info":
            return f"asked who it is, it says {str(told)[:200]}"
        for what, wanted in (("plugins", self._plugins), ("transports", [_HTTP, _WEBSOCKETS])):
            loaded = sorted(told[what]) if isinstance(told.get(what), dict) else []
            if loaded != wanted:
                return f"its {what} are {', '.join(loaded) or 'none'}, and {' and '.join(wanted)} were to be"
        return ""

    def _wrong_with_rooms(self, rooms: list[dict[str, Any]], number: int) -> str:
        room = _numbered(rooms, number)
        if room is None:
            return f"it has no room {number}"
        wanted = {
            "max_publishers": self.settings.publishers,
            "bitrate": round(self.settings.bitrate_bit_per_s),
            "videocodec": _VIDEO,
        }
        differing = [
            f"{name} {room.get(name)}, not {value}" for name, value in wanted.items() if room.get(name) != value
        ]
        return f"room {number} has {'; '.join(differing)}" if differing else ""

    def _rooms(self, offer: JanusRoom, visitor: Visitor, plugin: str) -> list[dict[str, Any]]:
        """A plugin's rooms as it lists them, asked in a session that is ended again."""
        api = Tcp(offer.address, offer.api_port)
        where = f"{self.name}, http://{api.address}:{api.port}{_PATH}"
        session = _number_in(json_http.asked(visitor, api, _PATH, {"janus": "create", "transaction": "v"}), where)
        path = f"{_PATH}/{session}"
        attach = {"janus": "attach", "plugin": plugin, "transaction": "v"}
        handle = _number_in(json_http.asked(visitor, api, path, attach), where)
        message = {"janus": "message", "body": {"request": "list"}, "transaction": "v"}
        told = json_http.asked(visitor, api, f"{path}/{handle}", message)
        json_http.asked(visitor, api, path, {"janus": "destroy", "transaction": "v"})
        said = told.get("plugindata")
        data = said.get("data") if isinstance(said, dict) else None
        rooms = data.get("list") if isinstance(data, dict) else None
        if not isinstance(rooms, list):
            raise TrialError(f"asked for its rooms, it says {str(told)[:200]}", where=where)
        return [room for room in rooms if isinstance(room, dict)]


def _files(kind: str, loaded: list[str]) -> str:
    """The files of what is not loaded."""
    names = (name for name in _OTHERS[kind].split() if f"janus.plugin.{name}" not in loaded)
    return ",".join(f"libjanus_{name}.so" for name in names)


def _numbered(rooms: list[dict[str, Any]], number: int) -> dict[str, Any] | None:
    return next((room for room in rooms if room.get("room") == number), None)


def _wrong_with_audio(rooms: list[dict[str, Any]]) -> str:
    room = _numbered(rooms, _AUDIO_ROOM)
    if room is None:
        return f"it has no room {_AUDIO_ROOM} for audio"
    rate = room.get("sampling_rate")
    return f"room {_AUDIO_ROOM} mixes audio at {rate} Hz, not {_AUDIO_HZ}" if rate != _AUDIO_HZ else ""


def nat(attachment: Attachment) -> str:
    """Which addresses it tells its peers: the instance's own, where users reach it there; else the one in front of it.

    A namespace may have further addresses (the one towards an origin), which no participant can reach: it gathers from
    the one that matters.
    """
    outside, own = attachment.endpoint_address, attachment.address
    if attachment.kind == "shared" or own == outside:
        return f'    ice_enforce_list = "{outside}"\n'
    enforced = f'    ice_enforce_list = "{own}"\n' if own else ""
    return f'{enforced}    nat_1_1_mapping = "{outside}"\n'


# -- what it is asked, and what it answers ----------------------------------------------------------------


_SWITCHED = b"HTTP/1.1 101"


def _upgrade(offer: Tcp) -> bytes:
    """The opening of a WebSocket (RFC 6455, 4.1), with the key of its example."""
    return (
        f"GET / HTTP/1.1\r\nHost: {offer.address}:{offer.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: janus-protocol\r\n\r\n"
    ).encode()


def _wrong_with_socket(said: bytes) -> str:
    return (
        "" if said.startswith(_SWITCHED) else f"asked for a WebSocket, it says {said[:40].decode(errors='replace')!r}"
    )


def _number_in(told: Mapping[str, Any], where: str) -> int:
    """The number of the session, or the handle, that an answer is of."""
    data = told.get("data")
    number = data.get("id") if isinstance(data, dict) else None
    if told.get("janus") != "success" or not _is_count(number):
        raise TrialError(f"it lets nobody in, and says {str(told)[:200]}", where=where)
    return number


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64
