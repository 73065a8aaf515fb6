"""nginx: the origin by default, because it costs the least of what stands behind the measured service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.services import daemon
from virtoll.services.origin import CACHE_CONTROL, CERTIFICATE, KEY, ROOT, WebServer, WebServerSettings
from virtoll.units import within

# Each handshake is a full one: a session that is resumed costs next to nothing.
_TLS = f"""\
        ssl_certificate {CERTIFICATE};
        ssl_certificate_key {KEY};
        ssl_protocols TLSv1.3;
        ssl_session_cache off;
        ssl_session_tickets off;
"""


# Of a worker's connections: sockets that listen, its master, whoever looks whether it answers, and some to spare.
_ITS_OWN = 16


def nginx_users(workers: int, connections: int) -> int:
    """How many can be connected to nginx at once, where each worker may have so many connections."""
    return workers * max(1, connections - _ITS_OWN)


def nginx_files(connections: int) -> int:
    """How many files a worker may have open: one for each of its connections, and as many of those that it serves."""
    return 2 * connections


@dataclass(frozen=True)
class NginxSettings(WebServerSettings):
    """Settings of nginx."""

    connections: int = within(4096, least=16, most=1_000_000)  # of each worker, at once: nginx reserves their memory


class Nginx(WebServer):
    """nginx with sendfile and connections that are kept for as long as a client wants them.

    Files stay open, as many as leave descriptors for all connections: one that is opened anew for a request costs half
    as much CPU time again, and a long clip has hundreds of segments.
    """

    name: ClassVar[str] = "nginx"
    summary: ClassVar[str] = "nginx: a web server of static files at its leanest; also the origin behind a proxy"
    packages: ClassVar[tuple[str, ...]] = ("nginx",)
    lets_in: ClassVar[str] = "connections"
    Settings: ClassVar[type[NginxSettings]] = NginxSettings
    settings: NginxSettings

    def most_users(self, transport: Literal["tcp", "udp"] = "tcp") -> int:  # noqa: ARG002
        """See `Service.most_users`."""
        return nginx_users(self.settings.workers, self.settings.connections)

    @property
    def open_files(self) -> int:
        """Of a worker; see `Service.open_files`."""
        return nginx_files(self.settings.connections)

    def configuration(self) -> str:
        """nginx.conf."""
        return f"""\
daemon off;
user www-data;
worker_processes {self.settings.workers};
worker_rlimit_nofile {self.open_files};
pid {daemon.DIRECTORY}/nginx.pid;
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
    server {{
        listen 0.0.0.0:{self.port}{" ssl" * self.settings.tls} backlog=4096;
        root {ROOT};
        add_header Cache-Control "{CACHE_CONTROL}";
{_TLS if self.settings.tls else ""}    }}
}}
"""

    def argv(self, configuration_path: str) -> list[str]:
        """The command that serves in the foreground."""
        return ["nginx", "-e", "stderr", "-c", configuration_path]
