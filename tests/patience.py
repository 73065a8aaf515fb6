"""No clock decides a test: where many share two CPUs, an emulated guest may take minutes to boot."""

from __future__ import annotations

from virtoll.agent import client
from virtoll.platforms import vm


def wait_for_boots() -> None:
    """Have a guest's boot, and an agent's answer, take as long as they take: many times as long as elsewhere."""
    vm.BOOT_LIMIT_S = 480.0
    client._PATIENCE_S = 480.0
