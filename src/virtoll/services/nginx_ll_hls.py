"""nginx with its Lua module as a server of low-latency HLS: playlists that are held back until they tell something new,
parts that are asked for before they are there (RFC 8216bis).

nginx serves the files; what makes the playlists and holds requests back is a program of ours (inside/live.lua), for no
packager of Debian's makes parts. Nothing is encoded or packaged: what is measured is the delivery.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from virtoll.agent import StreamError
from virtoll.errors import AgentError, Problem, TrialError
from virtoll.offers import Content, LiveClip, LiveHttp, Offer, Tcp
from virtoll.platforms.base import Instance
from virtoll.services import clips, daemon, live
from virtoll.services.base import Service, Visitor
from virtoll.services.nginx import nginx_files, nginx_users
from virtoll.services.origin import CACHE_CONTROL, ROOT
from virtoll.units import within

_PROGRAM = Path(__file__).parent / "inside/live.lua"
_MOST_BYTES = 2**18  # of a playlist with its head


@dataclass(frozen=True)
class NginxLlHlsSettings:
    """Settings of nginx. ``connections``: of each worker, at once; a viewer has one, and waits on it."""

    workers: int = within(1, least=1)  # worker processes; one for each CPU it may use
    connections: int = within(4096, least=16, most=1_000_000)


class NginxLlHls(Service):
    """nginx and Lua."""

    name: ClassVar[str] = "nginx-ll-hls"
    summary: ClassVar[str] = "nginx with Lua: when you serve low-latency HLS, live, in parts of fractions of a second"
    packages: ClassVar[tuple[str, ...]] = ("libnginx-mod-http-lua", "nginx")
    lets_in: ClassVar[str] = "connections"
    port: ClassVar[int] = 8080
    offered: ClassVar[tuple[type[Offer], ...]] = (LiveHttp,)
    holds: ClassVar[tuple[type[Content], ...]] = (LiveClip,)
    Settings: ClassVar[type[NginxLlHlsSettings]] = NginxLlHlsSettings
    settings: NginxLlHlsSettings

    def most_users(self, transport: Literal["tcp", "udp"] = "tcp") -> int:  # noqa: ARG002
        """See `Service.most_users`."""
        return nginx_users(self.settings.workers, self.settings.connections)

    @property
    def open_files(self) -> int:
        """Of a worker; see `Service.open_files`."""
        return nginx_files(self.settings.connections)

    def hold(self, instance: Instance, contents: Iterable[Content]) -> None:
        """Make the files of parts and segments; a directory of its own says which round is held."""
        held = [each for each in set(contents) if isinstance(each, LiveClip)]
        cuts = ((clip, length_ns) for clip in held for length_ns in (clip.part_ns, clip.segment_ns))
        pieces = {piece for clip, length_ns in cuts for piece in live.pieces(clip, length_ns)}
        try:
            for piece in sorted(pieces, key=lambda each: (each.begin_bytes, each.end_bytes)):
                instance.agent.fill(f"{ROOT}{piece.path}", piece.end_bytes - piece.begin_bytes, piece.begin_bytes)
            for clip in held:
                instance.agent.put(f"{ROOT}{clip.directory}/held", b"")
        except StreamError:
            raise
        except AgentError as error:
            raise TrialError(
                f"the parts cannot be made: {error.problem.what}",
                where=f"{instance.platform}, {ROOT} inside the instance",
                remedy="give the instance more disk, or ask for a shorter clip or a lower bit rate",
            ) from error

    def start(self, instance: Instance, behind: Offer | None) -> LiveHttp:  # noqa: ARG002 - it stands alone
        """Start it; media may be made before or after."""
        path = f"{daemon.DIRECTORY}/{self.name}.conf"
        instance.agent.put(path, self.configuration().encode())
        instance.agent.put(f"{daemon.DIRECTORY}/live.lua", _PROGRAM.read_bytes())
        daemon.start(instance, self.name, ["nginx", "-e", "stderr", "-c", path], self.port)
        return LiveHttp(instance.attachment.endpoint_address, self.port)

    def configuration(self) -> str:
        """nginx.conf. Files stay open, as many as leave descriptors for all connections (as nginx's own)."""
        return f"""\
daemon off;
user www-data;
load_module /usr/lib/nginx/modules/ndk_http_module.so;
load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;
worker_processes {self.settings.workers};
worker_rlimit_nofile {self.open_files};
pid {daemon.DIRECTORY}/{self.name}.pid;
error_log stderr warn;
events {{
    worker_connections {self.settings.connections};
}}
http {{
    access_log off;
    server_tokens off;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
    open_file_cache max={self.settings.connections // 2} inactive=1h;
    default_type application/octet-stream;
    lua_package_path "{daemon.DIRECTORY}/?.lua;;";
    init_by_lua_block {{ live = require "live" }}
    server {{
        listen 0.0.0.0:{self.port} backlog=4096;
        root {ROOT};
        location /live/ {{
            content_by_lua_block {{ live.playlist() }}
        }}
        location /o/ {{
            access_by_lua_block {{ live.await() }}
            add_header Cache-Control "{CACHE_CONTROL}";
        }}
        location = /clock {{
            content_by_lua_block {{ live.clock() }}
        }}
    }}
}}
"""

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:
        """It tells the time. Of what a load asks for: its playlist is the one that the reference makes of the same
        edge; one that is asked for a part ahead comes later, and has it; and that part, the last there is by now, is
        the right piece of the text.
        """
        assert isinstance(offer, LiveHttp)
        clock = visitor.get(offer, offer.clock_path)
        if clock.status != 200:
            return [Problem(f"status {clock.status}; expected 200", f"{self.name}, {offer.url(offer.clock_path)}")]
        return list(self._problems_of(offer, visitor, content)) if isinstance(content, LiveClip) else []

    def _problems_of(self, offer: LiveHttp, visitor: Visitor, clip: LiveClip) -> Iterator[Problem]:
        where = f"{self.name}, {offer.url(clip.path)}"
        told = _text(visitor, offer, clip.path)
        edge = live.Edge.of(told)
        if edge is None or told != live.playlist(clip, edge):
            yield Problem(f"another playlist came than expected: {told[:200]!r}", where)
            return
        each = clip.segment_ns // clip.part_ns
        number = edge.sequence * each + edge.parts
        asked = f"{clip.path}?_HLS_msn={edge.sequence}&_HLS_part={edge.parts}"
        later = _text(visitor, offer, asked)
        edge = live.Edge.of(later)
        if edge is None or later != live.playlist(clip, edge):
            yield Problem(f"another playlist came than expected: {later[:200]!r}", f"{self.name}, {offer.url(asked)}")
        elif edge.sequence * each + edge.parts <= number:
            yield Problem("a playlist came before it had the part that was asked for", f"{self.name}, {asked}")
        path = live.part_path(clip, number)
        where = f"{self.name}, {offer.url(path)}"
        yield from clips.problems_of_segment(where, visitor.get(offer, path), live.part_piece(clip, number))


def _text(visitor: Visitor, offer: LiveHttp, path: str) -> str:
    """A playlist's text; what came besides it where it is none. The server closes after it."""
    request = f"GET {path} HTTP/1.0\r\nHost: {offer.address}\r\n\r\n".encode()
    said = visitor.exchange(Tcp(offer.address, offer.port), request, _MOST_BYTES).decode(errors="replace")
    head, _, text = said.partition("\r\n\r\n")
    return text if head.split(" ")[1:2] == ["200"] else head
