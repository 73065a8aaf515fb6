"""Proxmox VE's containers: made by pct(1) on a volume of the host's storage, run by liblxc as Proxmox configures it.

NOT YET RUN ON A LIVE HOST. It was written from pct(1), pct.conf(5), pvesm(1), pmxcfs(8) and the public source of
pve-container, and has run against a stand-in for Proxmox's programs (tests/proxmox_double.py), which is no Proxmox.

Proxmox puts a container into a control group of its own choice (lxc/NUMBER), which is where its cost is booked; LXC's
monitor (lxc.monitor/NUMBER) and the `pct exec` that the agent is reached by stay beside it, and their cost is not in
the container's: the record and the report say so. The container has no distribution's init: its first process sleeps.
It has no device of Proxmox's (net0): its link is the lab's own veth, moved in, as on every platform.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from virtoll.errors import HostError, PlatformError, Problem
from virtoll.features import Features, no, partly, yes
from virtoll.hosts import proxmox
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.cgroup import owned
from virtoll.images import disk
from virtoll.images import proxmox as volumes
from virtoll.images.base import AGENT, Image
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import proxmox_host, veth
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.groups import instance_cpus
from virtoll.platforms.kinds import CONTAINER
from virtoll.platforms.proxmox_host import UNTRIED, OnProxmox
from virtoll.platforms.requirements import bare, refuse_kind
from virtoll.platforms.stdio import PATH, agent_on_stdio
from virtoll.platforms.vm import HOSTNAME
from virtoll.record.model import NOT_BOOKED
from virtoll.study.limits import Limits
from virtoll.units import within

LEAST = (7, 2)  # control groups of version 2 are its own since 7.0; --destroy-unreferenced-disks is a little later

_CHAPTER = "pve.proxmox.com/pve-docs/chapter-pct.html"
_MIB = 1024**2
_INIT, _ENTER = "/virtoll/init", "/virtoll/enter"
# What lies in the container beside the image's files.
SCRIPTS = {
    _INIT: "#!/bin/sh\nexec sleep 2147483647\n",
    _ENTER: f"#!/bin/sh\nexec env -i {PATH} {AGENT} serve\n",
}


@dataclass(frozen=True)
class ProxmoxCtSettings:
    """``storage``: the store that the containers' disks are made on (ZFS's and those with volumes; no btrfs).

    ``unprivileged``: root inside is a user of the host's who may do nothing there (Proxmox's own choice), and not root.
    ``cpuunits``: the container's weight where others want the same CPU; 100 is Proxmox's default.
    """

    storage: str = proxmox_host.storage_field()
    unprivileged: bool = True
    cpuunits: int = within(100, least=1, most=10_000)


class ProxmoxCt(OnProxmox):
    """Containers of Proxmox VE."""

    name: ClassVar[str] = "proxmox-ct"
    summary: ClassVar[str] = "containers of a Proxmox VE host (pct), on its storage; not yet run on a live host"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth",)
    runtimes: ClassVar[tuple[str, ...]] = ("lxc-start",)
    content: ClassVar[str] = "rootdir"
    expected_overhead_s: ClassVar[float] = 15.0
    features: ClassVar[Features] = {
        **CONTAINER,
        "root-inside": yes("unprivileged, it is a user of the host's without any rights there", _CHAPTER),
        "shared-base": partly(
            "linked clones of a template, where the storage has them; a container of a template's tar has a whole disk",
            f"{_CHAPTER}; pve.proxmox.com/pve-docs/pct.1.html, pct clone",
        ),
        "stock-kernel": no("Proxmox's own, of Ubuntu's", "pve.proxmox.com/wiki/Proxmox_VE_Kernel"),
        "live-migration": no("it is stopped, moved and started again", f"{_CHAPTER}, Migration"),
        "checkpoint": no("what is saved of it are its files (snapshots of its storage)", f"{_CHAPTER}, Backup"),
        "own-resource-view": yes("its /proc is lxcfs", f"{_CHAPTER}, Technology Overview"),
        "resize": yes("cores, memory and swap while it runs, by pct set", "pve.proxmox.com/pve-docs/pct.1.html"),
    }
    Settings: ClassVar[type[ProxmoxCtSettings]] = ProxmoxCtSettings
    settings: ProxmoxCtSettings

    def check(self, host: Host) -> list[Problem]:
        """See `Platform.check`."""
        found = proxmox_host.problems(host, "pct", self.settings.storage, self.content, LEAST)
        if not found and self._kind_of_storage(host) == "btrfs":
            what = f"storage {self.settings.storage} is btrfs: its containers' disks have no size"
            found.append(Problem(what, host.where, "name another storage"))
        return found

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:  # noqa: ARG002
        """The template that each is unpacked from; and what is asked and counted once, before anything is timed."""
        volumes.template(host, image, SCRIPTS, progress)
        self._kind_of_storage(host)
        _used_bytes(image.rootfs)

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """See `Platform.deploy`."""
        refuse_kind(self, attachment)
        host, cpus, guest = lab.host, instance_cpus(lab, limits), proxmox.drawn()
        group = control_group(guest.number)
        with ExitStack() as stack:
            helpers_cpus = cpus if limits.budget == "inclusive" else lab.generator.cpus
            helpers = stack.enter_context(
                owned(lab.ledger, f"{lab.cgroup}/{directory.name}/helpers", cpus=helpers_cpus)
            )
            stack.enter_context(lab.ledger.owning("proxmox-ct", guest.name))
            volume_mib = self._volume_mib(host, image, limits)
            packed = volumes.template(host, image, SCRIPTS, lambda _line: None)
            known_by = ["--tags", guest.tag, "--description", f"virtoll, run {lab.run_tag}: {directory.name}"]
            options = [*create_options(limits, self.settings, volume_mib), *known_by]
            made = ["pct", "create", str(guest.number), str(packed.resolve()), *options]
            proxmox_host.run(host, self.name, made, proxmox_host.MAKE_S)
            configure(guest.number, raw_lines(limits, cpus))
            started = proxmox_host.run(host, self.name, ["pct", "start", str(guest.number)])
            pid = proxmox_host.processes(self.name, group)[0]
            file_system = self._left_free(host, pid, volume_mib, limits)
            veth.move_in(host, attachment, pid)
            argv = ["pct", "exec", str(guest.number), "--", _ENTER]
            agent, process = stack.enter_context(
                agent_on_stdio(
                    host,
                    bare(argv),
                    log=directory / "pct.log",
                    confinement=Confinement(helpers.procs),
                    platform=self.name,
                )
            )
            yield Instance(
                platform=self.name,
                agent=agent,
                attachment=attachment,
                accounting=Accounting(group, directory, {"payload": group}, is_disk_elsewhere=True),
                limits=limits,
                facts={
                    "proxmox": proxmox_host.version(host),
                    "storage": self._kind_of_storage(host),
                    "unprivileged": self.settings.unprivileged,
                    "commands": [made, started, argv],
                    "configuration": _configured(host, guest.number),
                    "kernel": os.uname().release,
                    "disk_limit": volumes.DISK_LIMIT.format(kind=file_system),
                    "untried": UNTRIED,
                    NOT_BOOKED: "pct exec and LXC's monitor",
                },
                is_running=lambda: process.poll() is None,
                image=image,
            )

    def _volume_mib(self, host: Host, image: Image, limits: Limits) -> int:
        is_ext4 = self._kind_of_storage(host) != "zfspool"
        return volumes.size_mib(_used_bytes(image.rootfs), limits.disk_bytes, is_ext4=is_ext4)

    def _kind_of_storage(self, host: Host) -> str:
        return proxmox_host.kind_of_storage(host, self.settings.storage, self.content)

    def _left_free(self, host: Host, pid: int, volume_mib: int, limits: Limits) -> str:
        """See `volumes.leave_free`: nobody works in the container yet."""
        root = proxmox.PROC / str(pid) / "root"
        is_hosts_root = not self.settings.unprivileged
        return volumes.leave_free(host, root, volume_mib * _MIB, limits.disk_bytes, is_hosts_root=is_hosts_root)


@cache
def _used_bytes(rootfs: Path) -> int:
    """What an image's files take; counted once, for each of them is looked at."""
    return disk.content(rootfs).bytes


def control_group(number: int) -> str:
    """Where Proxmox has LXC put a container (PVE::LXC, update_lxc_config: lxc.cgroup.dir.container)."""
    return f"lxc/{number}"


def create_options(limits: Limits, settings: ProxmoxCtSettings, volume_mib: int) -> list[str]:
    """Of `pct create`: memory in MiB, a part of one left out; the disk in GiB; the quota in CPUs."""
    return [
        *("--rootfs", f"{settings.storage}:{volume_mib / 1024:.10f}"),
        *("--arch", "amd64", "--ostype", "unmanaged", "--hostname", HOSTNAME),
        *("--unprivileged", str(int(settings.unprivileged))),
        *("--cores", str(limits.vcpus), "--cpulimit", str(limits.vcpus), "--cpuunits", str(settings.cpuunits)),
        *("--memory", str(limits.memory_bytes // _MIB), "--swap", "0"),
        *("--onboot", "0", "--console", "0", "--tty", "0"),
    ]


def raw_lines(limits: Limits, cpus: frozenset[int]) -> list[str]:
    """What pct has no option for, as lines of the container's file (pct.conf(5)). A set of CPUs that is written there
    is left alone by Proxmox, which moves other containers from CPU to CPU as it likes (pvestatd).
    """
    shared = f"shm dev/shm tmpfs mode=1777,nosuid,nodev,size={limits.memory_bytes},create=dir 0 0"
    return [
        f"lxc.cgroup2.cpuset.cpus: {','.join(str(cpu) for cpu in sorted(cpus))}",
        f"lxc.cgroup2.pids.max: {limits.pids}",
        "lxc.net.0.type: empty",
        f"lxc.init.cmd: {_INIT}",
        f"lxc.mount.entry: {shared}",
    ]


def configure(number: int, lines: list[str]) -> None:
    """Add lines to a container's file: root may, and there is no command that does."""
    path = proxmox.configuration_of("ct", number)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise PlatformError(
            f"cannot write what it is limited to: {error.strerror}",
            where=str(path),
            remedy="pvecm status: is there a quorum?",
        ) from error


def _configured(host: Host, number: int) -> list[str]:
    try:
        return host.read(proxmox.configuration_of("ct", number)).decode(errors="replace").splitlines()
    except HostError as error:
        return [str(error)]
