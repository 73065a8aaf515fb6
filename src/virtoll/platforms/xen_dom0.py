"""What dom0 does for a domain: `xl` that makes it, the kernel's threads that serve it, its device among the lab's.

Ended in this order, also by who cleans after a kill: `xl`, then the domain, whatever had become of it, then the groups.
"""

from __future__ import annotations

import os
import re
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from virtoll.errors import HostError, PlatformError, Problem
from virtoll.hosts import xen
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.cgroup import Cgroup, owned
from virtoll.hosts.processes import kernel_threads
from virtoll.lab.base import Lab
from virtoll.networks import wires
from virtoll.networks.base import Attachment
from virtoll.platforms.console import Console, opened_raw
from virtoll.platforms.groups import instance_cpus
from virtoll.platforms.logs import bounded, ending
from virtoll.platforms.requirements import bare
from virtoll.platforms.vm import Machine, agents_name, end, telling_lines
from virtoll.platforms.xen_domain import Domain, configuration
from virtoll.study.limits import Limits

CREATE_LIMIT_S = 120.0  # from `xl create` until the domain has a console; Xen clears its memory first
BACKENDS_LIMIT_S = 20.0  # until dom0's threads for its disk and network are there, once it has booted
_POLL_S = 0.02
_HYPERVISOR = xen.HYPERVISOR
_CAPABILITIES = Path("/proc/xen/capabilities")
_PROC = Path("/proc")
_PIDS = 256  # xl with its threads and scripts, an HVM's QEMU


@dataclass(frozen=True)
class Groups:
    """The control groups of dom0's part. ``backends``: of the kernel's threads, which nobody can kill."""

    whole: Cgroup
    backends: Cgroup
    cpus: frozenset[int]  # of the vCPUs
    helpers: frozenset[int]  # of dom0's part
    memory_bytes: int


@contextmanager
def groups(lab: Lab, limits: Limits, name: str, memory_bytes: int) -> Iterator[Groups]:
    """With budget "inclusive" dom0's part has the vCPUs' CPUs, and Xen gives each to one or the other."""
    cpus = instance_cpus(lab, limits)
    helpers = cpus if limits.budget == "inclusive" else lab.generator.cpus
    top = f"{lab.cgroup}/{name}"
    with owned(lab.ledger, top, cpus=helpers) as whole, owned(lab.ledger, f"{top}/backends", cpus=helpers) as backends:
        if limits.budget == "vcpus":
            whole.go_first()  # as the generator, or dom0's part would wait for it on its CPUs
        yield Groups(whole, backends, cpus, helpers, memory_bytes)


@contextmanager
def owned_domain(lab: Lab, name: str) -> Iterator[Callable[[], None]]:
    """Own the domain that is made in the block; yields what ends it early."""
    with lab.ledger.owning("xen-domain", name):
        yield partial(xen.destroy_domain, lab.host, name)


@contextmanager
def created(lab: Lab, place: Groups, wanted: Domain, directory: Path) -> Iterator[tuple[Machine, int]]:
    """Have `xl` make the domain and stay until it ends; and the end of the pipe that leads to its console's log."""
    (directory / "domain.cfg").write_text(configuration(wanted), encoding="utf-8")
    argv = ["xl", "create", "-F", str(directory / "domain.cfg")]
    name = f"{place.whole.name}/helpers"
    with ExitStack() as stack:
        group = stack.enter_context(
            owned(lab.ledger, name, cpus=place.helpers, memory_bytes=place.memory_bytes, pids=_PIDS)
        )
        logs = stack.enter_context(ExitStack())
        log_fd = logs.enter_context(bounded(directory / "console.log"))
        monitor_log = logs.enter_context(bounded(directory / "monitor.log"))
        process = lab.host.spawn(
            bare(argv, HOME=str(directory), TMPDIR=str(directory)),
            stdout=monitor_log,
            stderr=monitor_log,
            confinement=Confinement(cgroup_procs=group.procs),
            cwd=directory,
        )
        stack.callback(end, group, process)
        yield Machine("xl", process, group, place.cpus, directory, logs), log_fd


def appeared(host: Host, machine: Machine, name: str, log_fd: int) -> tuple[int, Console]:
    """The domain's number and its console, once `xl` has made it. PlatformError with xl's words else."""
    deadline = time.monotonic() + CREATE_LIMIT_S
    while True:
        runs = machine.is_running()  # looked at first: a domain that died meanwhile is still there, and its console
        domain = xen.domain_id(host, name)
        if domain is not None and (terminal := _terminal(host, domain)):
            return domain, _console(machine, terminal, log_fd)
        if not runs or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    how = f"within {CREATE_LIMIT_S:g} s" if runs else f"and has ended with exit code {machine.process.poll()}"
    raise PlatformError(
        f"xl has made no domain {how}; {machine.last_words()}{_of_qemu(name)}",
        where=str(machine.directory),
        remedy="where memory is short, boot Xen with dom0_mem=; /var/log/xen holds what Xen's scripts say",
    )


def _of_qemu(name: str) -> str:
    """What an HVM's said in the end, if it said anything: that is removed with the domain."""
    lines = telling_lines(ending(xen.qemu_log(name)))
    return "\n".join(["\nits QEMU's output ends in:", *(f"    {line}" for line in lines)]) if lines else ""


def _console(machine: Machine, terminal: str, log_fd: int) -> Console:
    """The terminal that xenconsoled offers for the domain's hvc0."""
    try:
        fd = opened_raw(terminal)
    except (OSError, termios.error) as error:
        told = f"its console cannot be used: {error.args[-1]}"
        raise PlatformError(told, where=terminal, remedy="see that xenconsoled runs: service xen restart") from error
    console = Console(fd, fd, log_fd, agents_name(machine), machine.process.pid)
    machine.logs.callback(console.drain)
    return console


def _terminal(host: Host, domain: int) -> str:
    """The pseudo-terminal that xenconsoled has made for the domain; "" as long as there is none."""
    told = host.run(["xenstore-read", f"/local/domain/{domain}/console/tty"], check=False).text
    return told if re.fullmatch(r"/dev/pts/\d{1,9}", told) else ""


def take_in(machine: Machine, domain: int, backends: Cgroup) -> list[str]:
    """Move the kernel's threads that serve the domain into ``backends``; their names.

    PlatformError where they are not there in time: what disk and network cost would be booked nowhere.
    """
    deadline = time.monotonic() + BACKENDS_LIMIT_S
    while True:
        found = backend_threads(_PROC, domain)
        if any(name.startswith("vif") for name in found.values()) and any("xvda" in name for name in found.values()):
            break
        if time.monotonic() > deadline or not machine.is_running():
            raise PlatformError(
                f"the kernel's threads for domain {domain} are not there: {sorted(found.values()) or 'none'}",
                where="/proc",
                remedy="modprobe -a xen-netback xen-blkback; /var/log/xen holds what Xen's scripts say",
            )
        time.sleep(_POLL_S)
    return sorted(found[thread] for thread in backends.add_living(found))


def backend_threads(proc: Path, domain: int) -> dict[int, str]:
    """The kernel's threads of blkback (``1.xvda-0``) and netback (``vif1.0-q0-guest-rx``) for a domain, by number."""
    return kernel_threads(re.compile(rf"(?:vif{domain}\.0-|(?:blkback\.)?{domain}\.xvda)"), proc)


def wire(lab: Lab, attachment: Attachment, domain: int) -> None:
    """Bring the domain's device into the SUT's namespace, under the name that the mode's wiring speaks of."""
    there = ["netns", attachment.netns, "name", attachment.device]
    lab.host.run(["ip", "link", "set", f"vif{domain}.0", *there])
    wires.configure(lab, attachment.wiring)


def is_pinned(affinity: dict[int, str], cpus: str) -> bool:
    """Whether each of dom0's vCPUs runs on the CPU of its number alone (``all`` is alone where there is one)."""
    return bool(affinity) and all(
        hard == str(vcpu) or (hard == "all" and cpus == "1") for vcpu, hard in affinity.items()
    )


def dom0_problem(host: Host) -> Problem | None:
    """Why no domains can be made from here, if none can."""
    if os.geteuid() != 0:
        return Problem("not root", host.where, "run virtoll with sudo")
    try:
        hypervisor = host.read(_HYPERVISOR).decode().strip()
    except HostError:
        hypervisor = ""
    if hypervisor != "xen":
        boot = "apt-get install xen-system-amd64, and boot the entry 'with Xen hypervisor'; or use kvm or qemu-tcg"
        return Problem("this machine's Linux does not run on Xen", host.where, boot)
    try:
        capabilities = host.read(_CAPABILITIES).decode().split()
    except HostError:
        return Problem(f"there is no {_CAPABILITIES}", host.where, "mount -t xenfs xenfs /proc/xen")
    if "control_d" not in capabilities:
        return Problem("this is a guest of Xen's: dom0 alone makes domains", host.where, "run virtoll in dom0")
    return None
