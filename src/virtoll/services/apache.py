"""Apache httpd with its event MPM: the origin of Hong et al. (2017)."""

from __future__ import annotations

from typing import ClassVar, Literal

from virtoll.services import daemon
from virtoll.services.origin import CACHE_CONTROL, CERTIFICATE, KEY, ROOT, WebServer

_MODULES = "/usr/lib/apache2/modules"
_THREADS = 128  # per worker process; a thread serves one request, the listener keeps idle connections


# Each handshake is a full one: a session that is resumed costs next to nothing.
_TLS = f"""\
LoadModule ssl_module {_MODULES}/mod_ssl.so
SSLEngine on
SSLProtocol -all +TLSv1.3
SSLCertificateFile {CERTIFICATE}
SSLCertificateKeyFile {KEY}
SSLSessionCache none
SSLSessionTickets off
"""


class Apache(WebServer):
    """Apache httpd as a server of static objects; one ``worker`` is one process of 128 threads."""

    name: ClassVar[str] = "apache"
    summary: ClassVar[str] = "Apache httpd (event MPM): a web server with threads and processes, static files"
    packages: ClassVar[tuple[str, ...]] = ("apache2-bin",)
    lets_in: ClassVar[str] = "workers"

    def most_users(self, transport: Literal["tcp", "udp"] = "tcp") -> int:  # noqa: ARG002
        """See `Service.most_users`: so many it lets in whatever they do; two more for each of its threads that is idle,
        and while none is it accepts nobody else (httpd.apache.org, mod/event.html, AsyncRequestWorkerFactor).
        """
        return self.settings.workers * _THREADS

    def configuration(self) -> str:
        """apache2.conf."""
        workers = self.settings.workers
        return f"""\
ServerRoot {ROOT}
ServerName virtoll
Listen 0.0.0.0:{self.port}
ListenBacklog 4096
LoadModule mpm_event_module {_MODULES}/mod_mpm_event.so
LoadModule authz_core_module {_MODULES}/mod_authz_core.so
LoadModule headers_module {_MODULES}/mod_headers.so
User www-data
Group www-data
PidFile {daemon.DIRECTORY}/apache.pid
DefaultRuntimeDir {daemon.DIRECTORY}
ErrorLog /dev/stderr
ServerLimit {workers}
StartServers {workers}
ThreadsPerChild {_THREADS}
ThreadLimit {_THREADS}
MaxRequestWorkers {workers * _THREADS}
MinSpareThreads 1
MaxSpareThreads {workers * _THREADS}
ServerTokens Prod
EnableSendfile On
KeepAlive On
KeepAliveTimeout 3600
MaxKeepAliveRequests 0
DocumentRoot {ROOT}
<Directory {ROOT}>
    AllowOverride None
    Require all granted
</Directory>
Header set Cache-Control "{CACHE_CONTROL}"
{_TLS if self.settings.tls else ""}"""

    def argv(self, configuration_path: str) -> list[str]:
        """The command that serves in the foreground."""
        return ["apache2", "-D", "FOREGROUND", "-f", configuration_path]
