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
# PostgreSQL's protocol, 55.7: a StartupMessage of version 3.0, answered by R (welcome) or E (it is starting up, or has
# no such user), and a Terminate.
_GREETING = b"user\0postgres\0database\0postgres\0\0"
_GREETING = (len(_GREETING) + 8).to_bytes(4, "big") + bytes.fromhex("00030000") + _GREETING + b"X\0\0\0\4"
# Of its connections: whoever looks whether it answers or first asks what tables there are, and those that still end.
_ITS_OWN = 8
_READY_S = 120.0  # after it listens: an emulated machine needs seconds to recover what is empty


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
    packages: ClassVar[tuple[str, ...]] = ("postgresql-15",)
    lets_in: ClassVar[str] = "connections"
    port: ClassVar[int] = 5432
    offered: ClassVar[tuple[type[Offer], ...]] = (Postgres,)
    Settings: ClassVar[type[PostgresSettings]] = PostgresSettings
    settings: PostgresSettings

    def most_users(self, transport: Literal["tcp", "udp"] = "tcp") -> int:  # noqa: ARG002
        """See `Service.most_users`: all are its superuser, for whom it keeps the last three of them."""
        return self.settings.connections

    def start(self, instance: Instance, behind: Offer | None) -> Postgres:  # noqa: ARG002 - it stands alone
        """Start the cluster that Debian's package made."""
        instance.agent.put(_CONFIGURATION, configuration(self.settings, self.port).encode())
        instance.agent.put(_ADMISSION, b"host all all 0.0.0.0/0 trust\n")
        words = [_PROGRAM, "-D", _DATA, "-c", f"config_file={_CONFIGURATION}"]
        daemon.start(instance, self.name, words, self.port, user="postgres")
        return Postgres(instance.attachment.endpoint_address, self.port)

    def await_ready(self, instance: Instance, offer: Offer, visitor: Visitor) -> None:
        """Wait until it lets users in: it listens before it has started up."""
        daemon.await_ready(instance, self.name, _READY_S, lambda: _missing(offer, visitor))

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:  # noqa: ARG002
        """It lets users in; what it answers to queries, the load checks at each of them."""
        return [Problem(missing, offer.address)] if (missing := _missing(offer, visitor)) else []


def _missing(offer: Offer, visitor: Visitor) -> str:
    said = visitor.exchange(offer, _GREETING, 1)
    return "" if said == b"R" else f"it answers a greeting with {said!r}, not as PostgreSQL that lets users in"


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
        f"max_connections = {settings.connections + _ITS_OWN}",
        "logging_collector = off",
        "autovacuum = off  # it would begin in some windows and not in others",
        "checkpoint_timeout = 1d  # so would these; what is written brings them about as ever (max_wal_size)",
        "huge_pages = off  # the host's would be native's and the containers', and in no control group's books",
    ]
    return "\n".join([*lines, ""])
