"""Of every second worker the instances compute where others have their generators: else all were on one CPU."""

from __future__ import annotations

import os

from virtoll.hosts.base import Host
from virtoll.hosts.local import LocalHost
from virtoll.lab import cpus

_cores = cpus._cores


def take_turns() -> None:
    """In a worker of an odd number, and in what it starts: plan this machine's CPUs from the other end."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker.isdigit() and int(worker) % 2:
        vars(cpus)["_cores"] = _turned


def _turned(host: Host, allowed: list[int]) -> list[list[int]]:
    cores = _cores(host, allowed)
    return cores[::-1] if type(host) is LocalHost else cores  # a test's own machine is as it says
