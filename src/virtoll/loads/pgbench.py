"""pgbench: PostgreSQL's own load; open loop by --rate, whose latency then runs from the scheduled time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.loads.program import Figures, ProgramLoad, ProgramSettings
from virtoll.loads.reading import finite
from virtoll.offers import Offer, Postgres
from virtoll.record.model import Quantity
from virtoll.units import within


@dataclass(frozen=True)
class PgbenchSettings(ProgramSettings):
    """Settings of pgbench. ``script``: TPC-B-like (five statements, three of them writes), or a read alone. ``scale``:
    100,000 accounts each. ``users`` are its clients.
    """

    script: Literal["tpcb-like", "select-only"] = "tpcb-like"
    scale: int = within(10, least=1, most=10_000)


class Pgbench(ProgramLoad):
    """`pgbench`, seeded once for each deployment."""

    name: ClassVar[str] = "pgbench"
    summary: ClassVar[str] = "pgbench: for PostgreSQL, transactions that write or reads alone; closed or open loop"
    takes: ClassVar[tuple[type[Offer], ...]] = (Postgres,)
    tells_percentiles: ClassVar[bool] = False
    from_due: ClassVar[tuple[str, ...]] = ("latency_mean_ms",)
    packages: ClassVar[tuple[str, ...]] = ("postgresql-15",)
    Settings: ClassVar[type[PgbenchSettings]] = PgbenchSettings
    settings: PgbenchSettings

    @property
    def unit(self) -> str:
        """A transaction."""
        return "transaction"

    def usable_cpus(self, cpus: int, intensity: float | None = None) -> float | None:  # noqa: ARG002
        """Its one thread's."""
        return _THREADS

    @property
    def quantities(self) -> dict[str, Quantity]:
        """Its averages."""
        return {
            "latency_mean_ms": Quantity("Latency of a transaction, mean", "ms", "less"),
            "latency_stddev_ms": Quantity("Latency of a transaction, standard deviation", "ms", None),
        }

    def seed(self, settings: PgbenchSettings, offer: Offer) -> Sequence[str]:
        """Its tables, filled."""
        return [_PROGRAM, "--initialize", "--quiet", "--scale", str(settings.scale), *_where(offer)]

    def command(self, settings: PgbenchSettings, offer: Offer, seconds: int) -> Sequence[str]:
        """One window; --progress makes it print the standard deviation."""
        words = [_PROGRAM, "--builtin", settings.script, "--client", str(settings.users), "--time", str(seconds)]
        words += ["--jobs", str(_THREADS), "--no-vacuum", "--progress", "3600"]
        if settings.loop == "open":
            words += ["--rate", f"{settings.rate_per_s:.10g}"]
        return [*words, *_where(offer)]

    def figures(self, said: str) -> Figures:
        """Of its closing report (version 15)."""
        completed = _number(r"^number of transactions actually processed: (\d+)", said)
        rate = _number(r"^tps = ([\d.]+) \(without initial connection time\)", said)
        if rate <= 0:
            raise ValueError("no transaction was processed")
        return Figures(
            work=completed,
            failed=round(_number(r"^number of failed transactions: (\d+)", said)),
            elapsed_s=completed / rate,
            lead_s=_number(r"^initial connection time = ([\d.]+) ms", said) / 1000,
            values={
                "latency_mean_ms": _number(r"^latency average = ([\d.]+) ms", said),
                "latency_stddev_ms": _number(r"^latency stddev = ([\d.]+) ms", said),
            },
        )


_PROGRAM = "/usr/lib/postgresql/15/bin/pgbench"
_THREADS = 1


def _where(offer: Offer) -> list[str]:
    assert isinstance(offer, Postgres)
    return ["--host", offer.address, "--port", str(offer.port), "--username", offer.user, offer.database]


def _number(pattern: str, said: str) -> float:
    found = re.search(pattern, said, re.MULTILINE)
    if found is None:
        raise ValueError(f"nothing in the report of pgbench matches {pattern!r}")
    return finite(found[1])
