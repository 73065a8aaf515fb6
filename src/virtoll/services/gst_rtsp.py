"""GStreamer's RTSP server: films over RTP, on demand, live, or as somebody publishes them. It stands in for Darwin
Streaming Server, which no distribution has any more: as there, each viewer on demand has an RTSP session and RTP
streams of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from virtoll import films
from virtoll.errors import Problem
from virtoll.films import Form
from virtoll.offers import Content, Film, Offer, Port, Rtsp
from virtoll.platforms.base import Instance
from virtoll.services import daemon, rtsp
from virtoll.services.base import Service, Visitor
from virtoll.units import within

_PROGRAM = Path(__file__).parent / "inside/rtsp.py"
_FIRST_PORT, _PORTS_EACH = 20_000, 4  # RTP and RTCP, of video and of audio


@dataclass(frozen=True)
class GstRtspSettings:
    """Settings of GStreamer's RTSP server. ``live``: all watch the same, a film again and again; else each from its
    beginning. ``published``: all watch the same, and it is what somebody publishes. ``udp_viewers``: how many can watch
    over UDP at once, each of whom takes four ports (where all watch the same, they do together, for each film); in
    network modes that publish ports one by one, no more than about 60 can. A viewer on demand takes up to ten threads
    as well, and one of what is published takes one: [limits] pids must allow them.
    """

    live: bool = False
    published: bool = False
    udp_viewers: int = within(50, least=1, most=10_000)


class GstRtsp(Service):
    """The server of GStreamer's library, by a program of ours (inside/rtsp.py)."""

    name: ClassVar[str] = "gst-rtsp"
    summary: ClassVar[str] = "GStreamer RTSP: when you serve RTP, on demand or live; stands in for Darwin's server"
    packages: ClassVar[tuple[str, ...]] = ("gir1.2-gst-rtsp-server-1.0", "gstreamer1.0-plugins-good", "python3-gi")
    lets_in: ClassVar[str] = "udp_viewers"
    port: ClassVar[int] = 8554
    offered: ClassVar[tuple[type[Offer], ...]] = (Rtsp,)
    holds: ClassVar[tuple[type[Content], ...]] = (Film,)
    films: ClassVar[tuple[Form, ...]] = ("mp4",)
    Settings: ClassVar[type[GstRtspSettings]] = GstRtspSettings
    settings: GstRtspSettings

    @property
    def ports(self) -> tuple[Port, ...]:
        """RTSP, and where it sends from and is reported to over UDP."""
        return (Port(self.port), self._media_ports)

    def most_users(self, transport: Literal["tcp", "udp"] = "tcp") -> int | None:
        """See `Service.most_users`: where each has ports of its own."""
        are_together = self.settings.live or self.settings.published
        return None if transport == "tcp" or are_together else self.settings.udp_viewers

    @property
    def _media_ports(self) -> Port:
        return Port(_FIRST_PORT, "udp", _FIRST_PORT + _PORTS_EACH * self.settings.udp_viewers - 1)

    def problems(self, origin: Service | None) -> list[Problem]:  # noqa: ARG002
        """What all watch is one or the other."""
        if not (self.settings.live and self.settings.published):
            return []
        what = "a film that the server plays to all by itself is published by nobody"
        return [Problem(what, "[service] live, published", "leave one of them out")]

    def start(self, instance: Instance, behind: Offer | None) -> Rtsp:  # noqa: ARG002 - it stands alone
        """Start it; the films are in its image."""
        path, media = f"{daemon.DIRECTORY}/{self.name}.py", self._media_ports
        instance.agent.put(path, _PROGRAM.read_bytes())
        live, published = self.settings.live, self.settings.published
        mode = "published" if published else "live" if live else "vod"
        argv = ["python3", path, str(self.port), str(media.number), str(media.end), films.DIRECTORY, mode]
        # GStreamer keeps a list of its plugins at home.
        daemon.start(instance, self.name, argv, self.port, env={"HOME": "/tmp"}, user="nobody")
        address, publish_path = instance.attachment.endpoint_address, "/publish/{film}" if published else ""
        return Rtsp(address, self.port, is_live=live or published, publish_path=publish_path)

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:
        """It speaks RTSP, and describes the film's two tracks; but what is published is not there yet."""
        assert isinstance(offer, Rtsp)
        path = offer.path_of(content) if isinstance(content, Film) and not offer.publish_path else ""
        said = visitor.exchange(offer, rtsp.asking(offer, path), rtsp.ANSWER_BYTES)
        where = f"{self.name}, rtsp://{offer.address}:{offer.port}{path}"
        return list(rtsp.problems_of(where, said, described=bool(path)))
