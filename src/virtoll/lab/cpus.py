"""Who computes where: the instance on CPUs of its own, generator and origin on others."""

from __future__ import annotations

import os
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.lab.base import CpuPlan


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPUs of the kernel's list format: ``"0-2,5"``."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def cpu_plan(host: Host, vcpus: int, far_vcpus: int = 1) -> CpuPlan:
    """Share out the CPUs that this process may use. HostError where none would be left for generator and origin.

    The instance takes whole cores from the end (CPU 0 has the most interrupts), so that no hardware thread of its
    cores serves anybody else unless there are no other cores. Generator and origin part ways where two CPUs are left
    beyond the ``far_vcpus`` that instances on the generator's side need (`virtoll.lab.slices`).
    """
    # Not Cpus_allowed_list of /proc/self/status: it holds those, too, that may be plugged into a virtual machine later,
    # and threads of cores whose SMT is off. A group of version 2 that is given such a CPU alone runs on all.
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < vcpus + far_vcpus:
        beside = "a load generator" if far_vcpus == 1 else f"an instance of {far_vcpus} vCPUs on the other node"
        raise HostError(
            f"{len(allowed)} CPU(s) for {vcpus} vCPU(s) and {beside} beside them",
            where=host.where,
            remedy="use fewer vCPUs ([limits] vcpus), a machine with more, or a wider taskset",
        )
    cores = _cores(host, allowed)
    instance: list[int] = []
    while len(instance) < vcpus:
        instance += cores.pop()
    spare = instance[vcpus:]
    instance = instance[:vcpus]
    others = [cpu for core in cores for cpu in core]
    others += spare if len(others) < far_vcpus else []
    half = max((len(others) + 1) // 2, far_vcpus)
    generator, origin = others[:half], others[half:] or others
    return CpuPlan(frozenset(instance), frozenset(generator), frozenset(origin))


def _cores(host: Host, allowed: list[int]) -> list[list[int]]:
    """The allowed CPUs, grouped by physical core; each its own core where the kernel does not tell."""
    cores: dict[frozenset[int], list[int]] = {}
    for cpu in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings = parse_cpu_list(host.read(path).decode())
        except HostError:
            siblings = frozenset({cpu})
        cores.setdefault(siblings, []).append(cpu)
    return list(cores.values())
