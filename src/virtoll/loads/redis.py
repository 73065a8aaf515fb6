"""Redis by the native generator: GET or SET, closed and open loop, several commands at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.client import Client, ask
from virtoll.loads.base import Measurement, Session
from virtoll.loads.native import NativeLoad, NativeSession, NativeSettings
from virtoll.offers import Offer, Redis
from virtoll.record.model import Measured
from virtoll.units import within

_ROUND_MAX_BYTES = 64 * 1024**2  # what the generator holds of one
_FILL_S = 600.0


@dataclass(frozen=True)
class RedisSettings(NativeSettings):
    """Settings of Redis. A request is a round of ``pipeline`` commands, sent at once and answered by as many replies:
    ``rate`` is of rounds, and a latency is that of a whole round; the rate that is measured is of commands.
    """

    command: Literal["get", "set"] = "get"
    value_bytes: int = within(64, least=1, most=_ROUND_MAX_BYTES)
    keys: int = within(10_000, least=1, most=10**9)  # all are set before the load begins; it draws uniformly
    pipeline: int = within(1, least=1, most=10_000)


class RedisLoad(NativeLoad):
    """GETs or SETs of random keys, each reply's kind, length and beginning checked."""

    name: ClassVar[str] = "redis"
    summary: ClassVar[str] = "for Redis: GET or SET, one by one or pipelined; closed loop, or open at a rate"
    takes: ClassVar[tuple[type[Offer], ...]] = (Redis,)
    Settings: ClassVar[type[RedisSettings]] = RedisSettings
    settings: RedisSettings

    @property
    def unit(self) -> str:
        """A command."""
        return "command"

    @property
    def request(self) -> str:
        """A round, where it is more than one command."""
        return self.unit if self.settings.pipeline == 1 else "round"

    @property
    def work_each(self) -> int:
        """The commands of a round."""
        return self.settings.pipeline

    def check(self, host: Host) -> list[Problem]:
        """The generator, and that a round is not too large for it."""
        problems, settings = super().check(host), self.settings
        if settings.value_bytes * settings.pipeline > _ROUND_MAX_BYTES:
            what = "the values of one round are more than 64 MiB"
            problems.append(Problem(what, "[load] value, pipeline", "make one of them smaller"))
        return problems

    @contextmanager
    def session(self, client: Client, offer: Offer) -> Iterator[Session]:
        """Set all keys. TrialError where the server then holds another number of them."""
        settings = self.settings
        spec = {"value_bytes": settings.value_bytes, "keys": settings.keys, "timeout_ns": round(_FILL_S * 1e9)}
        ask(client, "fill", {"target": target_of(offer), **spec}, _FILL_S)
        with closing(RedisSession(self, client, offer)) as session:
            yield session

    def measured(self, measurements: list[Measurement]) -> Measured:
        """The record; it says where a request is more than a command."""
        measured, pipeline = super().measured(measurements), self.settings.pipeline
        note = f"work is in commands; events and latencies are of rounds, {pipeline} commands each"
        return measured if pipeline == 1 else measured.model_copy(update={"notes": [*measured.notes, note]})


@dataclass(frozen=True)
class RedisSession(NativeSession):
    """The native generator at one Redis that holds its keys."""

    verb: ClassVar[str] = "redis"

    def asked(self, settings: RedisSettings) -> dict[str, Any]:
        """Rounds of one command (rust/load/src/redis.rs)."""
        commands = {name: getattr(settings, name) for name in ("command", "value_bytes", "keys", "pipeline", "seed")}
        return {"target": target_of(self.offer), "commands": commands}


def target_of(offer: Offer) -> dict[str, str]:
    """The native generator's words for an offer."""
    return {"address": f"{offer.address}:{offer.port}"}
