"""Reads /proc/meminfo (proc(5))."""

from __future__ import annotations

import re

from virtoll.errors import HostError


def meminfo_bytes(text: str, name: str) -> int:
    """The line ``name`` of a /proc/meminfo; HostError where there is none."""
    match = re.search(rf"^{name}:\s+(\d{{1,18}}) kB", text, re.MULTILINE)
    if match is None:
        raise HostError(f"no {name}", where="/proc/meminfo", remedy="is /proc mounted?")
    return int(match[1]) * 1024
