"""nginx with its RTMP module: films on demand, or live streams that somebody publishes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll import films
from virtoll.errors import Problem
from virtoll.films import Form
from virtoll.offers import Content, Film, Offer, Port, Rtmp, Tcp
from virtoll.platforms.base import Instance
from virtoll.services import daemon, rtmp
from virtoll.services.base import Service, Visitor
from virtoll.services.nginx import nginx_files, nginx_users
from virtoll.units import within

_STATUS = b"GET /stat HTTP/1.0\r\n\r\n"
_STATUS_BYTES = 2**20
_COUNTED = ("naccepted", "bytes_in", "bytes_out")  # of all its connections, since it began
# What comes of a film at once: it is to be seen within as much of what the server says after the handshake. The server
# sends chunks of 4096 bytes, so the beginning of a frame is in one piece.
_SEEN_BYTES, _FRAME_BYTES = 4096, 1024
_ADMITTED_BYTES = 200  # after the handshake: the greater part of its answer to a client that connects


@dataclass(frozen=True)
class NginxRtmpSettings:
    """Settings of nginx-rtmp. ``live``: streams are there while somebody publishes them; else films are played from
    files. ``connections``: of each worker, at once.
    """

    live: bool = False
    workers: int = within(1, least=1)
    connections: int = within(4096, least=16, most=1_000_000)


class NginxRtmp(Service):
    """nginx-rtmp as Debian ships it, with its authors' defaults.

    Films are read as FLV: of MP4 it sends the last frames of audio not at all, and computes half as much again.
    """

    name: ClassVar[str] = "nginx-rtmp"
    summary: ClassVar[str] = "nginx-rtmp: when you serve RTMP at its leanest, films on demand or live"
    packages: ClassVar[tuple[str, ...]] = ("libnginx-mod-rtmp", "nginx")
    lets_in: ClassVar[str] = "connections"
    port: ClassVar[int] = 1935
    status_port: ClassVar[int] = 8080
    offered: ClassVar[tuple[type[Offer], ...]] = (Rtmp,)
    holds: ClassVar[tuple[type[Content], ...]] = (Film,)
    films: ClassVar[tuple[Form, ...]] = ("flv",)
    Settings: ClassVar[type[NginxRtmpSettings]] = NginxRtmpSettings
    settings: NginxRtmpSettings

    @property
    def ports(self) -> tuple[Port, ...]:
        """RTMP, and the page of its statistics."""
        return (Port(self.port), Port(self.status_port))

    def most_users(self, transport: Literal["tcp", "udp"] = "tcp") -> int:  # noqa: ARG002
        """See `Service.most_users`."""
        return nginx_users(self.settings.workers, self.settings.connections)

    @property
    def open_files(self) -> int:
        """Of a worker; see `Service.open_files`."""
        return nginx_files(self.settings.connections)

    def problems(self, origin: Service | None) -> list[Problem]:  # noqa: ARG002
        """Live streams are of the worker to which they are published."""
        if not self.settings.live or self.settings.workers == 1:
            return []
        what = "viewers that another worker accepts would wait for ever: a live stream is in one worker"
        return [Problem(what, "[service] workers", "write workers = 1")]

    def start(self, instance: Instance, behind: Offer | None) -> Rtmp:  # noqa: ARG002 - it stands alone
        """Start it; the films are in its image."""
        path = f"{daemon.DIRECTORY}/{self.name}.conf"
        instance.agent.put(path, self.configuration().encode())
        daemon.start(instance, self.name, ["nginx", "-e", "stderr", "-c", path], self.port)
        address = instance.attachment.endpoint_address
        application = "live" if self.settings.live else "vod"
        return Rtmp(address, self.port, application, is_live=self.settings.live)

    def configuration(self) -> str:
        """nginx.conf. At the end of each film it logs an error that is none, so only what is critical is logged."""
        application = "live { live on; }" if self.settings.live else f"vod {{ play {films.DIRECTORY}; }}"
        return f"""\
daemon off;
user www-data;
load_module /usr/lib/nginx/modules/ngx_rtmp_module.so;
worker_processes {self.settings.workers};
worker_rlimit_nofile {self.open_files};
pid {daemon.DIRECTORY}/nginx-rtmp.pid;
error_log stderr crit;
events {{
    worker_connections {self.settings.connections};
}}
rtmp {{
    access_log off;
    server {{
        listen 0.0.0.0:{self.port};
        chunk_size 4096;
        application {application}
    }}
}}
http {{
    access_log off;
    server_tokens off;
    server {{
        listen 0.0.0.0:{self.status_port};
        location = /stat {{
            rtmp_stat all;
        }}
    }}
}}
"""

    def counted(self, offer: Offer, visitor: Visitor) -> dict[str, int]:
        """Connections and bytes by its statistics page, which is one worker's: nothing where there are several."""
        if self.settings.workers > 1:
            return {}
        page = visitor.exchange(Tcp(offer.address, self.status_port), _STATUS, _STATUS_BYTES)
        return counts_of(page.decode(errors="replace"))

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:
        """It shakes hands and lets a client in; a film on demand begins to play, and is this film."""
        assert isinstance(offer, Rtmp)
        wanted = {"that it lets a client in": b"NetConnection.Connect.Success"}
        stream, most_bytes = "", rtmp.GREETED_BYTES + _ADMITTED_BYTES
        if isinstance(content, Film) and not offer.is_live:
            stream, most_bytes = offer.stream_of(content), rtmp.GREETED_BYTES + _SEEN_BYTES
            with films.file(content, "flv").open("rb") as flv:
                setup, picture = rtmp.first_frames(flv, _FRAME_BYTES)
            wanted |= {"the decoder's set-up": setup, "the film's first picture": picture}
        where = f"{self.name}, rtmp://{offer.address}:{offer.port}/{offer.application}/{stream}"
        return list(rtmp.problems_of(where, visitor.exchange(offer, rtmp.asking(offer, stream), most_bytes), wanted))


def counts_of(page: str) -> dict[str, int]:
    """What the page of its statistics tells of the whole server; what it does not tell, or in more digits than
    any counter of 64 bit has, is missing.
    """
    whole = page.partition("<server>")[0]
    found = {name: re.search(rf"<{name}>(\d{{1,20}})</{name}>", whole) for name in _COUNTED}
    return {name: int(match[1]) for name, match in found.items() if match is not None}
