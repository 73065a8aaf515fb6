"""Imported where virtoll runs in an emulated computer (there a plugin of pytest): what is slow there gets more time."""

from __future__ import annotations

from functools import partial

from patience import wait_for_boots, wait_for_loads
from virtoll.platforms import dockerd, under_kvm

wait_for_boots()
wait_for_loads()
dockerd._START_S = 600.0  # seen: more than 30 s
vars(under_kvm)["boot_problem"] = partial(under_kvm.boot_problem, limit_s=300.0)
