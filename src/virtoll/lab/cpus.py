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
    cores serves anybody else unless there are no other cores; and of one socket, as far as they reach. Generator and
    origin part ways, in whole cores where two are left, else where two CPUs are beyond the ``far_vcpus`` that instances
    on the generator's side need (`virtoll.lab.slices`).
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
    instance = _taken(cores, vcpus)
    spare = instance[vcpus:]
    instance = instance[:vcpus]
    others = [cpu for core in cores for cpu in core]
    others += spare if len(others) < far_vcpus else []
    generator = _share(cores, others, max((len(others) + 1) // 2, far_vcpus))
    origin = [cpu for cpu in others if cpu not in generator] or others
    return CpuPlan(frozenset(instance), frozenset(generator), frozenset(origin))


def instances(host: Host, cpus: frozenset[int], vcpus: int) -> frozenset[int]:
    """Of the CPUs that a plan for more vCPUs leaves to an instance those that one for ``vcpus`` would: whole cores, and
    of one socket. Figures of so many are the same ones whatever else a study asks for.
    """
    if vcpus >= len(cpus):
        return cpus
    key = (host.where, cpus, vcpus)
    if key not in _known:  # asked for each deployment
        _known[key] = frozenset(_taken(_cores(host, sorted(cpus)), vcpus)[:vcpus])
    return _known[key]


_known: dict[tuple[str, frozenset[int], int], frozenset[int]] = {}


def _taken(cores: list[list[int]], vcpus: int) -> list[int]:
    """The CPUs of the last cores, at least so many, and away with those cores."""
    taken: list[int] = []
    while len(taken) < vcpus:
        taken += cores.pop()
    return taken


def _share(cores: list[list[int]], cpus: list[int], least: int) -> list[int]:
    """At least so many of the CPUs, in whole cores where some are left then: of a core's threads, one slows another.

    The cores are taken as they lie, or those with most threads first, lest one of the few be left that fits beside none
    of the others: whichever takes less beyond ``least``.
    """
    fitting = []
    for ordered in (cores, sorted(cores, key=len, reverse=True)):
        whole: list[int] = []
        for core in ordered:
            whole += core if len(whole) < least else []
        fitting += [whole] if least <= len(whole) < len(cpus) else []
    return min(fitting, key=len, default=cpus[:least])


def _cores(host: Host, allowed: list[int]) -> list[list[int]]:
    """The allowed CPUs by physical core, socket by socket; each is its own core where the kernel does not tell."""
    cores: dict[frozenset[int], list[int]] = {}
    for cpu in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings = parse_cpu_list(host.read(path).decode())
        except HostError:
            siblings = frozenset({cpu})
        cores.setdefault(siblings, []).append(cpu)
    return sorted(cores.values(), key=lambda core: _socket(host, core[0]))


def _socket(host: Host, cpu: int) -> int:
    """The socket that it is in, whose memory is nearest: many servers number their CPUs by turns. 0: nobody tells."""
    try:
        return int(host.read(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id")))
    except (HostError, ValueError):
        return 0
