"""PostgreSQL, durable: what a commit waits for is the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.offers import Content, Offer, Postgres
from virtoll.platforms.base import Instance
from virtoll.services import daemon
from virtoll.services.base import Service, Visitor
from virtoll.units import within

_PROGRAM, _DATA = "/usr/lib/postgresql/15/bin/postgres", "/var/lib/postgresql/15/main"
_CONFIGURATION, _ADMISSION = f"{daemon.DIRECTORY}/postgresql.conf", f"{daemon.DIRECTORY}/pg_hba.conf"
_SSL_REQUEST = bytes.fromhex("00000008 04d2162f")  # PostgreSQL's protocol, 55.7: answered by one byte, S or N


@dataclass(frozen=True)
class PostgresSettings:
    """Settings of PostgreSQL; all else is as its authors ship it. ``commit``: whether a commit waits for the disk."""

    commit: Literal["durable", "asynchronous"] = "durable"
    shared_buffers_bytes: int = within(128 * 1024**2, least=1024**2)
    connections: int = within(100, least=10, most=10_000)


class PostgresServer(Service):
    """Debian's own cluster; users of the lab need no password."""

    name: ClassVar[str] = "postgres"
    summary: ClassVar[str] = "PostgreSQL: when transactions wait for the disk, and you ask what its sync costs"
    packages: ClassVar[tuple[str, ...]] = ("postgresql",)
    port: ClassVar[int] = 5432
    offered: ClassVar[tuple[type[Offer], ...]] = (Postgres,)
    Settings: ClassVar[type[PostgresSettings]] = PostgresSettings
    settings: PostgresSettings

    def start(self, instance: Instance, behind: Offer | None) -> Postgres:  # noqa: ARG002 - it stands alone
        """Start the cluster that Debian's package made."""
        instance.agent.put(_CONFIGURATION, configuration(self.settings, self.port).encode())
        instance.agent.put(_ADMISSION, b"host all all 0.0.0.0/0 trust\n")
        words = [_PROGRAM, "-D", _DATA, "-c", f"config_file={_CONFIGURATION}"]
        daemon.start(instance, self.name, words, self.port, user="postgres")
        return Postgres(instance.attachment.endpoint_address, self.port)

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:  # noqa: ARG002
        """It speaks its protocol; what it answers to queries, the load checks at each of them."""
        said = visitor.exchange(offer, _SSL_REQUEST, 1)
        return [] if said in (b"N", b"S") else [Problem(f"it answers {said!r}, and not as PostgreSQL", offer.address)]


def configuration(settings: PostgresSettings, port: int) -> str:
    """postgresql.conf."""
    lines = [
        "listen_addresses = '*'",
        f"port = {port}",
        "unix_socket_directories = ''",
        f"hba_file = '{_ADMISSION}'",
        "fsync = on",
        f"synchronous_commit = {'on' if settings.commit == 'durable' else 'off'}",
        f"shared_buffers = {settings.shared_buffers_bytes // 1024}kB",
        f"max_connections = {settings.connections}",
        "logging_collector = off",
        "autovacuum = off  # it would begin in some windows and not in others",
    ]
    return "\n".join([*lines, ""])
