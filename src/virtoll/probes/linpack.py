"""LINPACK: how fast the instance computes with floating-point numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.probes.base import Timed
from virtoll.probes.native import NativeProbe
from virtoll.record.model import Quantity
from virtoll.study.limits import Limits
from virtoll.units import format_bytes, within

MOST_ORDER = 45_000
# What a guest's kernel keeps for itself; and what part of the rest may be the probe's, beside agent and page cache.
_KERNEL_BYTES = 48 * 1024**2
_SHARE = 0.85
# The agent's buffers, with the widest panels and tiles (rust/probe/src/linpack/factor.rs).
_PANEL, _CHUNK, _TILE = 256, 192, 24
# Beside the threads: the agent, and what a service's image runs anyway.
_SPARE_PIDS = 16


@dataclass(frozen=True)
class LinpackSettings(Timed):
    """``order``: equations and unknowns. ``threads``: 0 is one for each CPU. ``isa``: the widest instructions used."""

    order: int = within(1000, least=1, most=MOST_ORDER)
    threads: int = within(0, least=0, most=1024)
    isa: Literal["best", "avx512", "avx2", "sse2"] = "best"
    seed: int = within(1, least=0, most=2**63 - 1)


class Linpack(NativeProbe):
    """A dense random system of linear equations, factored with partial pivoting and solved, as HPL defines it."""

    name: ClassVar[str] = "linpack"
    summary: ClassVar[str] = "number crunching: floating point on a dense system of linear equations"
    quantities: ClassVar[dict[str, Quantity]] = {
        "gflops": Quantity("LINPACK", "GFLOP/s", "more"),
        "solve_s": Quantity("LINPACK, one solution", "s", "less"),
    }
    headline: ClassVar[str] = "gflops"
    Settings: ClassVar[type[LinpackSettings]] = LinpackSettings
    settings: LinpackSettings

    def check(self, limits: Limits) -> list[Problem]:
        """The matrix must fit the memory, and the threads the number of processes."""
        problems = []
        order, threads = self.settings.order, self.settings.threads or limits.vcpus
        room_bytes = max(0, int((limits.memory_bytes - _KERNEL_BYTES) * _SHARE))
        if needed_bytes(order, threads) > room_bytes:
            largest = max((most for most in range(1, order) if needed_bytes(most, threads) <= room_bytes), default=0)
            what = (
                f"order {order} needs {format_bytes(needed_bytes(order, threads))}, "
                f"and [limits] memory leaves {format_bytes(room_bytes)}"
            )
            remedy = f"the largest order that fits is {largest}" if largest else "raise [limits] memory"
            problems.append(Problem(what, f"probe {self.name}", remedy))
        most_threads = limits.pids - _SPARE_PIDS
        if threads > most_threads:
            what = f"{threads} threads, and [limits] pids leaves {most_threads}"
            problems.append(Problem(what, f"probe {self.name}", "use fewer threads, or raise [limits] pids"))
        return problems


def needed_bytes(order: int, threads: int) -> int:
    """At most so much memory the agent asks for: the matrix, two packed panels, and each thread's buffers."""
    matrix = (order + 15) * (order + 1)
    panels = 2 * (order + _TILE) * _PANEL
    buffers = threads * _PANEL * (_CHUNK + _TILE)
    return 8 * (matrix + panels + buffers) + 4 * order
