"""What an instance believes it has, next to what it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtoll.limits import Limits


def beliefs(facts: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """An agent's facts, and beside them what the instance really has: ``has_cpus``, ``has_memory_bytes``.

    ``cpus`` is what `nproc` prints there, ``cpus_online`` what programs see that do not ask for their affinity
    (which then start a worker too many for each). ``memory_bytes`` is MemTotal.
    """
    return {
        **facts,
        "cpus": facts["cpus_usable"],
        "has_cpus": limits.vcpus,
        "has_memory_bytes": limits.memory_bytes,
    }
