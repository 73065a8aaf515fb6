"""Squid, the caching HTTP proxy: the network function of the study `proxy`.

Configured as Debian ships it, except for what a measurement needs: memory cache only, nothing written per
request, no name resolution, no access to anything but the origin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.errors import Problem, TrialError
from virtoll.offers import Content, Http, HttpObject, Offer
from virtoll.platforms.base import Instance
from virtoll.services import daemon, objects
from virtoll.services.base import Service, Visitor

_CONFIGURATION = f"{daemon.DIRECTORY}/squid.conf"

# An object is stored with its header, so one just below the limit may or may not fit.
_HEADER_BYTES = 2048
# Open files: each user's connection and, of what is not in the cache (yet), one to the origin. It accepts nobody while
# fewer than a hundred are left (RESERVED_FD), and has a few of its own.
_DESCRIPTORS, _ITS_OWN = 4096, 128


@dataclass(frozen=True)
class SquidSettings:
    """Settings of Squid. The defaults are those of Eiras, Couto and Rubinstein (2016): Squid's own, save that an
    object may fill the 1024 kB that Squid 3 allowed in memory (today's default is 512 kB).
    """

    cache: Literal["off", "on"] = "off"
    cache_memory_bytes: int = 256 * 1024**2  # cache_mem
    maximum_object_bytes: int = 1024 * 1024  # maximum_object_size_in_memory, header included


class Squid(Service):
    """The proxy under test, one worker process."""

    name: ClassVar[str] = "squid"
    summary: ClassVar[str] = "Squid: a forward proxy between clients and an origin; its memory cache off or on"
    packages: ClassVar[tuple[str, ...]] = ("squid",)
    port: ClassVar[int] = 3128
    offered: ClassVar[tuple[type[Offer], ...]] = (Http,)
    needs: ClassVar[type[Offer] | None] = Http
    Settings: ClassVar[type[SquidSettings]] = SquidSettings
    settings: SquidSettings

    def most_users(self, transport: Literal["tcp", "udp"] = "tcp") -> int:  # noqa: ARG002
        """See `Service.most_users`."""
        return (_DESCRIPTORS - _ITS_OWN) // 2

    @property
    def open_files(self) -> int:
        """See `Service.open_files`: what it is not let have it does without, and so lets fewer users in."""
        return _DESCRIPTORS

    def problems(self, origin: Service | None) -> list[Problem]:
        """An origin that it cannot ask."""
        if origin is None or not getattr(origin.settings, "tls", False):
            return []
        return [Problem("squid asks its origin in plain HTTP", "[origin] tls", "leave it out")]

    def start(self, instance: Instance, behind: Offer | None) -> Http:
        """Start Squid as a proxy that reaches the origin and nothing else."""
        if behind is None:
            raise TrialError("a proxy needs an origin to stand before", where=self.name, remedy="name one in `origin`")
        instance.agent.put(_CONFIGURATION, configuration(self.settings, self.port, behind).encode())
        # It keeps tables in POSIX shared memory even with one worker: every platform has a world-writable /dev/shm.
        # -N: one process, in the foreground; it drops to user `proxy` by itself. -d 1: its log goes to stderr.
        daemon.start(instance, self.name, ["squid", "-N", "-d", "1", "-f", _CONFIGURATION], self.port)
        attachment = instance.attachment
        upstream = f"{behind.address}:{behind.port}"
        return Http(attachment.endpoint_address, self.port, proxy=True, upstream=upstream)

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:
        """Fetch the object twice; both must be whole, and the second must come from where the settings say.

        Where none is asked for, any answer will do.
        """
        assert isinstance(offer, Http)
        if not isinstance(content, HttpObject):
            visitor.get(offer, "/")
            return []
        where = f"{self.name}, {offer.url(content.path)}"
        answers = [visitor.get(offer, content.path) for _ in range(2)]
        found = [problem for answer in answers for problem in objects.problems_of(where, answer, content)]
        if found:
            return list(dict.fromkeys(found))  # both fetches mostly fail alike
        return list(self._verify_cache(where, [_verdict(answer.headers) for answer in answers], content.length_bytes))

    def _verify_cache(self, where: str, verdicts: list[str], length_bytes: int) -> Iterator[Problem]:
        settings = self.settings
        if settings.cache == "off":
            if verdicts != ["MISS", "MISS"]:
                yield Problem(
                    f"X-Cache says {' then '.join(verdicts)} with the cache off; expected MISS then MISS",
                    where,
                    "another proxy answers, or Squid runs with a different configuration",
                )
            return
        expected = _expected(length_bytes, settings.maximum_object_bytes)
        if expected and verdicts[1] != expected:
            yield Problem(
                f"X-Cache says {verdicts[1]} on the second fetch of {length_bytes} bytes with the cache on "
                f"(limit {settings.maximum_object_bytes} bytes); expected {expected}",
                where,
                "see that the origin allows caching, and that the instance's clock is not years off",
            )


def configuration(settings: SquidSettings, port: int, behind: Offer) -> str:
    """squid.conf. Byte sizes are written out, so that no unit of Squid's is involved."""
    cache = "deny all" if settings.cache == "off" else "allow all"
    lines = [
        f"http_port 0.0.0.0:{port}",
        "visible_hostname virtoll",
        "",
        "# what is measured",
        "workers 1",
        f"cache {cache}",
        f"cache_mem {settings.cache_memory_bytes} bytes",
        f"maximum_object_size {settings.maximum_object_bytes} bytes",
        f"maximum_object_size_in_memory {settings.maximum_object_bytes} bytes",
        f"max_filedescriptors {_DESCRIPTORS}",
        "",
        "# only the origin, by address",
        f"acl origin dst {behind.address}",
        f"acl origin_port port {behind.port}",
        "http_access allow origin origin_port",
        "http_access deny all",
        "dns_nameservers 127.0.0.1",
        "hosts_file none",
        "via off",
        "forwarded_for delete",
        "",
        "# nothing is written, nothing else runs",
        "access_log none",
        "cache_log /dev/null",
        "netdb_filename none",
        "pid_filename none",
        "pinger_enable off",
        "digest_generation off",
        "coredump_dir none",
        "shutdown_lifetime 0 seconds",
    ]
    return "\n".join(lines) + "\n"


def _verdict(headers: dict[str, str]) -> str:
    """HIT or MISS of ``X-Cache: HIT from NAME``; "nothing" where the header is missing."""
    values = [value for name, value in headers.items() if name.lower() == "x-cache"]
    return values[0].split()[0] if values and values[0] else "nothing"


def _expected(length_bytes: int, limit_bytes: int) -> Literal["HIT", "MISS", ""]:
    """What the second fetch must say with the cache on; empty within a header's length below the limit."""
    if length_bytes > limit_bytes:
        return "MISS"
    return "HIT" if length_bytes + _HEADER_BYTES <= limit_bytes else ""
