"""What every lab needs, whatever is deployed in it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import Cgroup, Hierarchies, expect_handed_down, hierarchies
from virtoll.hosts.programs import apparmor_strips, find
from virtoll.lab.cpus import parse_cpu_list

_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "taskset": "util-linux",
}
_NEEDED = ("cpu", "cpuset", "memory", "pids")


_CPUS = "/sys/devices/system/cpu"


def _isolated(host: Host) -> set[int]:
    """The CPUs that RPS takes no packets to (Linux, net/core/net-sysfs.c, rps_cpumask_housekeeping)."""
    found: set[int] = set()
    for name in ("isolated", "nohz_full"):
        with suppress(HostError, ValueError):  # a kernel without it; "(null)" where none was named
            found |= parse_cpu_list(host.read(Path(_CPUS, name)).decode())
    return found


def _throttled(layout: Hierarchies, ours: set[int]) -> list[Problem]:
    """A container's own quota holds all that is below its top group together: instance, generator and origin stand
    still for the rest of each period once that is used up. The machine's own top has none.
    """
    top = Cgroup("", layout)
    try:
        quota = top.quota_cpus()
    except OSError:  # no such file
        return []
    if quota is None or quota >= len(ours):
        return []
    what = f"a quota lets all that virtoll starts have {quota:g} CPUs together, of the {len(ours)} that it may use"
    remedy = "give this container CPUs in place of a quota (docker: --cpuset-cpus)"
    if quota >= 2:
        given = ",".join(str(cpu) for cpu in sorted(ours)[: int(quota)])
        remedy = f"taskset -c {given} virtoll ..., or {remedy}"
    return [Problem(what, str(top.directory("cpu")), remedy)]


def _parted(layout: Hierarchies, ours: set[int]) -> list[Problem]:
    """A partition of version 2 takes its CPUs from all groups beside it, as virtoll's are (Linux, cgroup-v2.rst:
    cpuset.cpus.partition). Who is told none but such CPUs runs on all others.
    """
    file = layout.directory("cpuset", "") / "cpuset.cpus.effective"
    if layout.version == 1 or not file.exists():
        return []
    told = file.read_text(encoding="utf-8").strip()  # nothing where partitions below have them all
    there = parse_cpu_list(told) if told else frozenset[int]()
    if not (parted := sorted(ours - there)):
        return []
    kept = ",".join(str(cpu) for cpu in sorted(ours & there))
    which = ", ".join(map(str, parted))
    what = (
        f"CPUs {which} are in a partition of control groups, and no group of virtoll's, which lie beside it, has them"
    )
    remedy = f"begin virtoll outside of it (echo $$ >{file.parent}/cgroup.procs), or let it be no partition any more"
    return [Problem(what, str(file), f"taskset -c {kept} virtoll ..., or {remedy}" if kept else remedy)]


def check(host: Host) -> list[Problem]:
    """What keeps a lab from being wired on this host; empty when ready. Leaves no trace."""
    problems = [
        Problem(f"{program} is not installed", host.where, f"apt-get install {package}")
        for program, package in _PACKAGES.items()
        if find(program) is None
    ]
    if problems:
        return problems
    ours = os.sched_getaffinity(0)
    try:
        layout = hierarchies()
        for controller in _NEEDED:
            layout.directory(controller, "")
        problems += _throttled(layout, ours) + _parted(layout, ours)
        expect_handed_down(layout)
    except HostError as error:
        problems.append(error.problem)
    if isolated := sorted(_isolated(host) & ours):
        given = ",".join(str(cpu) for cpu in sorted(ours.difference(isolated))) or "CPUS"
        what = f"CPUs {', '.join(map(str, isolated))} are isolated: the kernel steers no packets to them"
        problems.append(Problem(what, _CPUS, f"taskset -c {given} virtoll ..., or boot without isolcpus and nohz_full"))
    trial = host.run(["unshare", "--net", "ip", "link", "add", "vt0", "type", "veth"], check=False)
    if trial.returncode != 0:
        detail = trial.stderr.decode(errors="replace").strip()
        remedy = apparmor_strips("unshare") or "run as root, in a container with --privileged; modprobe veth"
        problems.append(Problem(f"no network namespace with a veth pair: {detail}", host.where, remedy))
    return problems
