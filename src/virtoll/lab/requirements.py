"""What every lab needs, whatever is deployed in it."""

from __future__ import annotations

from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import hierarchies
from virtoll.hosts.programs import apparmor_strips, find

_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "taskset": "util-linux",
}
_NEEDED = ("cpu", "cpuset", "memory", "pids")


def check(host: Host) -> list[Problem]:
    """What keeps a lab from being wired on this host; empty when ready. Leaves no trace."""
    problems = [
        Problem(f"{program} is not installed", host.where, f"apt-get install {package}")
        for program, package in _PACKAGES.items()
        if find(program) is None
    ]
    if problems:
        return problems
    try:
        layout = hierarchies()
        for controller in _NEEDED:
            layout.directory(controller, "")
    except HostError as error:
        problems.append(error.problem)
    trial = host.run(["unshare", "--net", "ip", "link", "add", "vt0", "type", "veth"], check=False)
    if trial.returncode != 0:
        detail = trial.stderr.decode(errors="replace").strip()
        remedy = apparmor_strips("unshare") or "run as root, in a container with --privileged; modprobe veth"
        problems.append(Problem(f"no network namespace with a veth pair: {detail}", host.where, remedy))
    return problems
