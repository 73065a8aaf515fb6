"""Imported where virtoll runs in an emulated computer (there a plugin of pytest): what is slow there gets more time."""

from __future__ import annotations

from virtoll.platforms import dockerd

dockerd._START_S = 600.0  # seen: more than 30 s
