"""Bubblewrap: the namespaces of Flatpak's sandbox, made by one small program (bwrap) and nothing else.

bwrap waits outside, among the helpers; the agent is the first process inside, on bwrap's own standard input and output.
bwrap makes neither layers nor sysfs and knows no limits: the layer is virtoll's as with native, and sysfs is mounted
before, by a shell in a mount namespace that ends with the instance. Root inside has Docker's capabilities; there is no
filter of system calls (bwrap applies one only if it is given one), and whoever is executed gets no more privileges.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.features import Features, no
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.programs import apparmor_strips
from virtoll.images.base import Image
from virtoll.images.config import DEFAULT_PATH
from virtoll.images.layer import DISK_LIMIT, overlay
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import container_network, mounts
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.groups import instance_groups
from virtoll.platforms.inside import (
    CAPABILITIES,
    PLACES,
    PROC_HIDDEN_DIRECTORIES,
    PROC_HIDDEN_FILES,
    PROC_READ_ONLY,
    in_proc,
)
from virtoll.platforms.kinds import CONTAINER
from virtoll.platforms.requirements import bare, containers_need, refuse_kind, too_old
from virtoll.platforms.stdio import SERVE, agent_on_stdio
from virtoll.study.limits import Limits

# sysfs shows the network devices of the namespace that it is mounted in.
_ENTER = f"""
{mounts.FORGET}
forget_others "$2" "$3"; cd "$1"; shift 3
{PLACES}
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
cd /
exec "$@"
"""


class Bubblewrap(Platform):
    """Sandboxes of bwrap."""

    name: ClassVar[str] = "bubblewrap"
    summary: ClassVar[str] = "bare namespaces by one small program, as Flatpak has them; no daemon, no runtime left"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "stack", "shared")
    features: ClassVar[Features] = {
        **CONTAINER,
        "live-migration": no("its documents know of none", "bwrap(1)"),
        "checkpoint": no("its documents know of none", "bwrap(1)"),
    }
    runtimes: ClassVar[tuple[str, ...]] = ("bwrap",)

    def check(self, host: Host) -> list[Problem]:
        """See `Platform.check`."""
        problems = containers_need(host, ("bwrap", "bubblewrap")) + too_old(host, "bwrap", (0, 7))  # --size
        if remedy := apparmor_strips("bwrap"):
            what = "AppArmor leaves root inside no capabilities: no service that changes its user or an owner starts"
            problems.append(Problem(what, host.where, f"{remedy}   # until the next boot"))
        return problems

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """Nothing: the image's directory is the form it takes."""

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """See `Platform.deploy`."""
        refuse_kind(self, attachment)
        with ExitStack() as stack:
            root = stack.enter_context(overlay(lab.host, lab.ledger, image, directory, limits.disk_bytes))
            groups = stack.enter_context(instance_groups(lab, directory.name, limits))
            shared = attachment.kind == "shared"
            argv = ["unshare", "--mount", *([] if shared else ["--net"]), "sh", "-e", "-c", _ENTER, "sh", str(root)]
            argv += mounts.kept(root)
            argv = bare([*argv, *sandbox(root, limits)])
            confinement = Confinement(groups.payload.procs, netns=attachment.netns if shared else None)
            agent, process = stack.enter_context(
                agent_on_stdio(lab.host, argv, log=directory / "bwrap.log", confinement=confinement, platform=self.name)
            )
            groups.helpers.add(process.pid)
            network = stack.enter_context(container_network.attached(lab, attachment, groups, directory))
            yield Instance(
                platform=self.name,
                agent=agent,
                attachment=attachment,
                accounting=groups.accounting(directory),
                limits=limits,
                facts={
                    "command": argv,
                    "kernel": os.uname().release,
                    "disk_limit": DISK_LIMIT,
                    **network.facts,
                },
                is_running=lambda: process.poll() is None and network.lives(),
                image=image,
            )


def sandbox(root: Path, limits: Limits) -> list[str]:
    """The command line of bwrap, for an agent in ``root``. What of /proc is the host's is hidden as Docker hides it."""
    argv = ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--hostname", "instance"]
    argv += ["--bind", str(root), "/", "--dev", "/dev", "--proc", "/proc"]
    argv += ["--perms", "1777", "--size", str(limits.memory_bytes), "--tmpfs", "/dev/shm"]
    for path in in_proc("sys", "sysrq-trigger", *PROC_READ_ONLY):  # bwrap's own choice depends on who starts it
        argv += ["--ro-bind", path, path]
    for path in in_proc(*PROC_HIDDEN_FILES):
        argv += ["--ro-bind", "/dev/null", path]
    for path in in_proc(*PROC_HIDDEN_DIRECTORIES):
        argv += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    argv += ["--cap-drop", "ALL"]
    for name in CAPABILITIES.split():
        argv += ["--cap-add", f"CAP_{name.upper()}"]
    return [*argv, "--clearenv", "--setenv", "PATH", DEFAULT_PATH, "--chdir", "/", "--as-pid-1", *SERVE]
