"""A plugin for the pytest that runs in an emulated computer: what is slow there gets more time, and nothing else."""

from __future__ import annotations

from virtoll.platforms import dockerd

dockerd._START_S = 600.0  # seen: more than 30 s
