"""Redis: a key-value store in memory, one thread.

With a log it rewrites that by itself where it has doubled (from 64 MB on), and a child of it uses the instance's CPU
meanwhile: in windows of fast arms more often than of slow ones, as it would serve a user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.offers import Content, Offer, Redis
from virtoll.platforms.base import Instance
from virtoll.services import daemon
from virtoll.services.base import Service, Visitor

# docs: redis.io/docs/management/persistence. "always" waits for the disk at each write.
_PERSISTENCE = {
    "none": "appendonly no",
    "every-second": "appendonly yes\nappendfsync everysec",
    "always": "appendonly yes\nappendfsync always",
}
_USERS, _ITS_OWN = 10_000, 32  # maxclients, as its authors ship it, and the files that it keeps for itself
_KEPT = b"+OK\r\n$1\r\n1\r\n:1\r\n"  # what it answers to SET, GET and DEL of one key


@dataclass(frozen=True)
class RedisSettings:
    """Settings of Redis. ``persistence``: whether writes go to a log on disk, and how often that is synced."""

    persistence: Literal["none", "every-second", "always"] = "none"


class RedisServer(Service):
    """redis-server as Debian ships it, without snapshots."""

    name: ClassVar[str] = "redis"
    summary: ClassVar[str] = "Redis: when small requests to a store in memory are what you serve"
    packages: ClassVar[tuple[str, ...]] = ("redis-server",)
    port: ClassVar[int] = 6379
    offered: ClassVar[tuple[type[Offer], ...]] = (Redis,)
    Settings: ClassVar[type[RedisSettings]] = RedisSettings
    settings: RedisSettings

    def most_users(self, transport: Literal["tcp", "udp"] = "tcp") -> int:  # noqa: ARG002
        """See `Service.most_users`."""
        return _USERS

    @property
    def open_files(self) -> int:
        """See `Service.open_files`: what it is not let have it does without, and so lets fewer users in."""
        return _USERS + _ITS_OWN

    def start(self, instance: Instance, behind: Offer | None) -> Redis:  # noqa: ARG002 - it stands alone
        """Start it, empty."""
        path = f"{daemon.DIRECTORY}/redis.conf"
        instance.agent.put(path, configuration(self.settings, self.port).encode())
        daemon.start(instance, self.name, ["redis-server", path], self.port)
        return Redis(instance.attachment.endpoint_address, self.port)

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:  # noqa: ARG002
        """It keeps what it is given."""
        said = visitor.exchange(offer, b"SET virtoll-probe 1\r\nGET virtoll-probe\r\nDEL virtoll-probe\r\n", len(_KEPT))
        if said == _KEPT:
            return []
        return [Problem(f"it answers {said!r} to SET, GET and DEL; expected {_KEPT!r}", f"redis, {offer.address}")]


def configuration(settings: RedisSettings, port: int) -> str:
    """redis.conf."""
    lines = ["bind 0.0.0.0", f"port {port}", "protected-mode no", "daemonize no", 'save ""', "dir /var/lib/redis"]
    return "\n".join([*lines, _PERSISTENCE[settings.persistence], ""])
