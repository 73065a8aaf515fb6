"""What an instance may use: the same on every platform, native too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from virtoll.units import within

Budget = Literal["inclusive", "vcpus"]
LEAST_MEMORY_BYTES = 1024**2


@dataclass(frozen=True)
class Limits:
    """One resource specification, compiled to each platform and then proved by effect.

    ``budget``: *inclusive* puts an instance's helpers (QEMU's I/O threads, UML's helpers, docker-proxy, shims)
    inside the same CPUs and quota as its vCPUs; *vcpus* gives only the vCPUs the quota and leaves helpers to the
    generator's side of the machine, as most clouds do.
    """

    vcpus: int = within(1, least=1)
    memory_bytes: int = within(512 * 1024**2, least=LEAST_MEMORY_BYTES)
    pids: int = within(512, least=1)
    disk_bytes: int = within(1024**3, least=1024**2)
    budget: Budget = "inclusive"
