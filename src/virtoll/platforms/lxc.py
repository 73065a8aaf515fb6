"""LXC: a system container of liblxc, as Debian configures it, without a distribution's init inside.

lxc-start runs in the foreground and the agent is the container's init, so that the agent's standard input and
output are lxc-start's. The container lies in the payload cgroup; LXC's monitor (a group of LXC's making), and lxcfs and
a network stack (one of ours: a group of cgroup v2 cannot hold both processes and groups) in the helpers'.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from virtoll.errors import PlatformError, Problem
from virtoll.features import VASCONCELOS, Features, partly
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.cgroup import Cgroup, owned
from virtoll.hosts.local import end_session
from virtoll.hosts.lock import locks
from virtoll.hosts.programs import Stamp, stamp
from virtoll.images.base import Image
from virtoll.images.layer import DISK_LIMIT, overlay
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import container_network, mounts
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.groups import Groups, instance_groups
from virtoll.platforms.inside import CAPABILITIES, PROC_HIDDEN_DIRECTORIES, PROC_HIDDEN_FILES, PROC_READ_ONLY
from virtoll.platforms.kinds import CONTAINER
from virtoll.platforms.requirements import bare, containers_need, refuse_kind
from virtoll.platforms.stdio import PATH, SERVE, agent_on_stdio, tail
from virtoll.study.limits import Limits

_DEBIAN_CONFIG = Path("/usr/share/lxc/config/common.conf")
_LXCFS_FILES = (
    "proc/cpuinfo",
    "proc/loadavg",
    "proc/meminfo",
    "proc/stat",
    "proc/uptime",
    "sys/devices/system/cpu/online",
)
_LOCKS = Path("/run/lxc/lock")
_LXCFS_START_S = 60.0  # some milliseconds, where nothing else runs
_STOP_S = 5.0
_LOCK_S = 60.0  # for other virtolls' instances to come or go: any user may hold it, too


@dataclass(frozen=True)
class LxcSettings:
    """``lxcfs``: show the instance its own CPUs, memory and load in /proc (a FUSE daemon), instead of the host's."""

    lxcfs: bool = False


class Lxc(Platform):
    """Containers of liblxc."""

    name: ClassVar[str] = "lxc"
    summary: ClassVar[str] = "a whole system in a container, no daemon (as Proxmox and Incus have it); lxcfs on or off"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "stack", "shared")
    runtimes: ClassVar[tuple[str, ...]] = ("lxc-start",)
    features: ClassVar[Features] = {
        **CONTAINER,
        "live-migration": partly(
            "by CRIU, where it can restore what runs inside; Proxmox VE offers none",
            "documentation.ubuntu.com/lxd/stable-4.0/containers; pve.proxmox.com/pve-docs/chapter-pct.html",
        ),
        "checkpoint": partly("by CRIU, where it can restore what runs inside", "lxc-checkpoint(1)"),
        "own-resource-view": partly("with lxcfs = true; else it sees the host's", f"{VASCONCELOS}, 2.7 and 5"),
    }
    disk_limit: ClassVar[str] = DISK_LIMIT
    Settings: ClassVar[type[LxcSettings]] = LxcSettings
    settings: LxcSettings

    def check(self, host: Host) -> list[Problem]:
        """See `Platform.check`."""
        needed = [("lxc-start", "lxc"), *([("lxcfs", "lxcfs")] if self.settings.lxcfs else [])]
        problems = containers_need(host, *needed)
        if not problems and not _DEBIAN_CONFIG.is_file():
            problems.append(
                Problem("LXC's common configuration is missing", str(_DEBIAN_CONFIG), "apt-get install lxc")
            )
        if below := base_cgroups(host.read(Path("/proc/1/cgroup")).decode(errors="replace")):
            what = (
                f"LXC would put containers below the first process's control groups ({', '.join(below)}), unseen by us"
            )
            problems.append(Problem(what, "/proc/1/cgroup", "run virtoll where process 1 is in the top group"))
        if self.settings.lxcfs and not Path("/dev/fuse").exists():
            problems.append(Problem("lxcfs needs FUSE, and there is no /dev/fuse", host.where, "modprobe fuse"))
        return problems

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """Nothing: the image's directory is the form it takes."""

    def root(self, lab: Lab, image: Image, limits: Limits, directory: Path) -> AbstractContextManager[Path]:
        """An instance's root filesystem, mounted."""
        return overlay(lab.host, lab.ledger, image, directory, limits.disk_bytes)

    def limit_further(self, groups: Groups, limits: Limits) -> dict[str, Any]:  # noqa: ARG002
        """Limits beside those of every platform, before the instance starts; what to record of them."""
        return {}

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """See `Platform.deploy`."""
        refuse_kind(self, attachment)
        host = lab.host
        with ExitStack() as stack:
            # LXC keeps a lock below its own directory, at the very words of --lxcpath, and leaves it there: one word.
            lxc_path = f"vt-{lab.run_tag}-{directory.name}"
            stack.enter_context(_locks(lab, lxc_path))
            (directory / lxc_path).mkdir()
            root = stack.enter_context(self.root(lab, image, limits, directory))
            # Owned before the group of the process that makes the mount: the process is ended first.
            stack.enter_context(lab.ledger.owning("mount", str(_lxcfs_mount(directory))))
            groups = stack.enter_context(instance_groups(lab, directory.name, limits))
            further = self.limit_further(groups, limits)
            _let_lxc_make_groups(groups)
            daemons = stack.enter_context(owned(lab.ledger, f"{groups.helpers.name}/daemons"))
            lxcfs = stack.enter_context(_lxcfs(lab, daemons, directory)) if self.settings.lxcfs else None
            config = _config(root, groups, limits, attachment, lxcfs)
            host.put(directory / "config", config.encode())
            log = directory / "lxc.log"
            argv = [
                "env",
                f"--chdir={directory}",
                "lxc-start",
                f"--lxcpath={lxc_path}",
                f"--name={directory.name}",
                f"--rcfile={directory / 'config'}",
            ]
            argv += ["--foreground", "--close-all-fds", "--logpriority=WARN", "--logfile=/dev/stderr"]
            # Outside the container's network: whoever shares LXC's own may give its monitor commands (abstract socket).
            confinement = Confinement(daemons.procs)
            agent, process = stack.enter_context(
                agent_on_stdio(host, bare(argv), log=log, confinement=confinement, platform=self.name)
            )

            def stop() -> None:
                """Kill the container and let LXC's monitor tidy up after it."""
                groups.payload.kill()
                deadline = time.monotonic() + _STOP_S
                while process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.001)

            stack.callback(stop)
            there = replace(groups, helpers=daemons)
            network = stack.enter_context(container_network.attached(lab, attachment, there, directory))
            yield Instance(
                platform=self.name,
                agent=agent,
                attachment=attachment,
                accounting=groups.accounting(directory),
                limits=limits,
                facts={
                    "lxc": _version(host),
                    "lxcfs": lxcfs is not None,
                    "command": argv,
                    "config": config.splitlines(),
                    "kernel": os.uname().release,
                    "disk_limit": self.disk_limit,
                    **further,
                    **network.facts,
                },
                is_running=lambda: process.poll() is None and network.lives(),
                image=image,
            )


def base_cgroups(text: str) -> list[str]:
    """The groups (/proc/1/cgroup, cgroups(7)) below which liblxc puts containers, where that is not the top.

    It leaves out systemd's own (init.scope), and a hierarchy without a controller holds nothing of ours.
    """
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    return [
        f"{controllers or 'unified'}:{path}"
        for _number, controllers, path in lines
        if path not in ("/", "/init.scope") and not controllers.startswith("name=")
    ]


def _config(root: Path, groups: Groups, limits: Limits, attachment: Attachment, lxcfs: Path | None) -> str:
    """LXC's configuration: Debian's common one, less what a container without console and own distribution lacks."""
    cpus = ",".join(str(cpu) for cpu in sorted(groups.cpus))
    memory = limits.memory_bytes
    top = groups.whole.name
    lines = [
        f"lxc.include = {_DEBIAN_CONFIG}",
        "lxc.hook.mount =",  # Debian's would show the host's lxcfs, if one runs
        "lxc.hook.post-stop =",
        "lxc.tty.max = 0",
        "lxc.tty.dir =",
        "lxc.console.path = none",
        "lxc.apparmor.profile = unconfined",
        "lxc.mount.auto =",  # Debian's lets root write his own cgroup's limits, and network devices in /sys
        "lxc.mount.auto = cgroup:ro proc:mixed sys:ro",
        "lxc.cap.drop =",  # Debian's list of what is dropped leaves root the means to mount the host's /proc/sys
        f"lxc.cap.keep = {CAPABILITIES}",
        "lxc.uts.name = instance",
        f"lxc.rootfs.path = dir:{root}",
        f"lxc.init.cmd = {' '.join(SERVE)}",
        f"lxc.environment = {PATH}",
        f"lxc.mount.entry = shm dev/shm tmpfs mode=1777,nosuid,nodev,size={memory},create=dir 0 0",
        f"lxc.namespace.share.net = /run/netns/{attachment.netns}"
        if attachment.kind == "shared"
        else "lxc.net.0.type = empty",
        f"lxc.cgroup.dir.container = {groups.payload.name}/container",
        f"lxc.cgroup.dir.monitor = {groups.helpers.name}/monitor",
        f"lxc.cgroup.dir.monitor.pivot = {top}/pivot",
        f"lxc.cgroup.cpuset.cpus = {cpus}",
        f"lxc.cgroup.memory.limit_in_bytes = {memory}",
        f"lxc.cgroup.pids.max = {limits.pids}",
        f"lxc.cgroup2.cpuset.cpus = {cpus}",
        f"lxc.cgroup2.memory.max = {memory}",
        f"lxc.cgroup2.pids.max = {limits.pids}",
    ]
    lines += [f"lxc.mount.entry = /proc/{name} proc/{name} none bind,ro,optional 0 0" for name in PROC_READ_ONLY]
    lines += [f"lxc.mount.entry = /dev/null proc/{name} none bind,optional 0 0" for name in PROC_HIDDEN_FILES]
    lines += [f"lxc.mount.entry = none proc/{name} tmpfs ro,size=4k,optional 0 0" for name in PROC_HIDDEN_DIRECTORIES]
    if lxcfs is not None:
        there = mounts.listed(lxcfs)  # a line as fstab's
        lines += [f"lxc.mount.entry = {there}/{file} {file} none bind,ro 0 0" for file in _LXCFS_FILES]
    return "\n".join(lines) + "\n"


_versions: dict[tuple[str, Stamp | None], str] = {}  # by host


def _version(host: Host) -> str:
    key = (host.where, stamp("lxc-start"))  # a worker lives for weeks
    if key not in _versions:
        _versions[key] = host.run(["lxc-start", "--version"]).text
    return _versions[key]


@contextmanager
def _locks(lab: Lab, lxc_path: str) -> Iterator[None]:
    """Where LXC keeps an instance's lock. Above it nothing is left that was not there; of several instances the last
    sees to that, so it is made here, before LXC would.
    """
    with ExitStack() as stack:
        try:
            with _looked_at_alone():
                ours = not _LOCKS.is_dir() or any(entry.name.startswith("vt-") for entry in _LOCKS.iterdir())
                for above in (_LOCKS.parent, _LOCKS) if ours else ():
                    stack.enter_context(lab.ledger.owning("directory-above", str(above)))
                stack.enter_context(lab.ledger.owning("directory", str(_LOCKS / lxc_path)))
                (_LOCKS / lxc_path).mkdir(parents=True)
            yield
        finally:
            with _looked_at_alone():
                stack.close()


@contextmanager
def _looked_at_alone() -> Iterator[None]:
    """No other virtoll's instance comes or goes meanwhile: while the last one goes, the directory is there and empty,
    and whoever came then would take it for somebody else's.
    """
    held = os.open(_LOCKS.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + _LOCK_S
    try:
        while not locks(held):
            if time.monotonic() > deadline:
                what = f"somebody holds the lock on {_LOCKS.parent.parent}, by which virtolls take turns"
                raise PlatformError(what, where="lxc", remedy=f"`fuser {_LOCKS.parent.parent}` says who it is")
            time.sleep(0.01)
        yield
    finally:
        os.close(held)


def _let_lxc_make_groups(groups: Groups) -> None:
    """A cpuset of version 1 starts empty, and LXC fills only the topmost: let its groups inherit ours."""
    if groups.whole.hierarchies.version == 1:
        for group in (groups.whole, groups.payload, groups.helpers):
            (group.directory("cpuset") / "cgroup.clone_children").write_text("1", encoding="utf-8")


def _lxcfs_mount(directory: Path) -> Path:
    return directory / "lxcfs"


@contextmanager
def _lxcfs(lab: Lab, daemons: Cgroup, directory: Path) -> Iterator[Path]:
    """A private lxcfs daemon among the instance's helpers; yields its mount point."""
    mount, log = _lxcfs_mount(directory), directory / "lxcfs.log"
    mount.mkdir()
    argv = [
        "lxcfs",
        "--foreground",
        "--enable-cfs",
        "--enable-loadavg",
        f"--pidfile={directory / 'lxcfs.pid'}",
        str(mount),
    ]
    with log.open("wb") as output:
        process = lab.host.spawn(
            bare(argv),
            stdout=output.fileno(),
            stderr=output.fileno(),
            confinement=Confinement(daemons.procs),
        )
    try:
        deadline = time.monotonic() + _LXCFS_START_S
        while not (mount / "proc/meminfo").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise PlatformError(
                    f"lxcfs did not start:\n{tail(log)}", where="lxc", remedy="run it by hand: " + " ".join(argv)
                )
            time.sleep(0.002)
        yield mount
    finally:
        end_session(process)
