"""systemd-nspawn: systemd's containers, without asking systemd (nor machined) for anything: it need not run here.

The agent is the container's first process, on systemd-nspawn's own standard input and output (``--console=pipe``).
systemd-nspawn waits outside, among the helpers. Its locks and the directory of its mounts are in /run: it gets one of
its own, in a mount namespace that ends with the instance, so that nothing is left where it is killed. Root inside has
Docker's capabilities instead of nspawn's longer list, under nspawn's own filter of system calls.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.features import Features, no
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.cgroup import Cgroup, hierarchies, namesakes
from virtoll.images.base import Image
from virtoll.images.layer import DISK_LIMIT, overlay
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import container_network, mounts
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.groups import instance_groups
from virtoll.platforms.inside import (
    PLACES,
    PROC_HIDDEN_DIRECTORIES,
    PROC_HIDDEN_FILES,
    in_proc,
)
from virtoll.platforms.kinds import CONTAINER
from virtoll.platforms.requirements import bare, containers_need, out_of_sight, refuse_kind
from virtoll.platforms.stdio import PATH, SERVE, agent_on_stdio
from virtoll.study.limits import Limits

_SYSTEMDS = (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup/unified"))  # beside version 1; systemd need not run
_RUN = "/run/image"  # the image's own /run, which nspawn covers with a file system in memory
# nspawn refuses a root without /usr, and makes links to it.
_ENTER = f"""
{mounts.FORGET}
forget_others "$2" "$3"; cd "$1"; shift 3
{PLACES}
place run 755
[ -L usr ] || place usr 755
mount -t tmpfs -o mode=755,size=1m run /run
mkdir {_RUN}
mount --bind run {_RUN}
cd /
exec "$@"
"""
# What nspawn keeps besides Docker's (systemd 252: nspawn.c, arg_caps_retain): the way to the host's devices and mounts.
# And mknod: systemd would deny devices by a scope's policy, and there is no scope.
_DROPPED = (
    "audit_control block_suspend dac_read_search ipc_owner lease linux_immutable mac_admin mac_override mknod "
    "net_admin net_broadcast sys_admin sys_boot sys_module sys_nice sys_pacct sys_ptrace sys_rawio sys_resource "
    "sys_time sys_tty_config syslog wake_alarm"
)


class Nspawn(Platform):
    """Containers of systemd-nspawn."""

    name: ClassVar[str] = "nspawn"
    summary: ClassVar[str] = "systemd's own container (machinectl); one program, and systemd itself need not run"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "stack", "shared")
    features: ClassVar[Features] = {
        **CONTAINER,
        "live-migration": no("its documents know of none", "systemd-nspawn(1)"),
        "checkpoint": no("its documents know of none", "systemd-nspawn(1)"),
    }
    runtimes: ClassVar[tuple[str, ...]] = ("systemd-nspawn",)

    def check(self, host: Host) -> list[Problem]:
        """See `Platform.check`."""
        problems = containers_need(host, ("systemd-nspawn", "systemd-container"))
        problems += out_of_sight(self.name, ("/run",), "VIRTOLL_STATE")
        if not problems and hierarchies().version == 1 and not any(path.is_dir() for path in _SYSTEMDS):
            mount = f"mkdir {_SYSTEMDS[0]} && mount -t cgroup -o none,name=systemd cgroup {_SYSTEMDS[0]}"
            problems.append(Problem("systemd-nspawn needs systemd's own cgroup hierarchy", str(_SYSTEMDS[0]), mount))
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
            name = f"vt-{lab.run_tag}-{directory.name}"
            shared = attachment.kind == "shared"
            argv = ["unshare", "--mount", "sh", "-e", "-c", _ENTER, "sh", str(root), *mounts.kept(root)]
            argv += container(root, name, limits, own_network=not shared, kept=_directories(root / "run"))
            argv += [*read_only_cgroups(groups.payload), "--", *SERVE]
            argv = bare(argv, **_environment(groups.whole.hierarchies.version))
            joined = (*groups.payload.procs, *namesakes(groups.payload))
            confinement = Confinement(joined, netns=attachment.netns if shared else None)
            agent, process = stack.enter_context(
                agent_on_stdio(
                    lab.host, argv, log=directory / "nspawn.log", confinement=confinement, platform=self.name
                )
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


def _environment(cgroup_version: int) -> dict[str, str]:
    """What systemd-nspawn has no options for: /tmp is of the layer, and cgroups are of the host's version (it would
    look for a systemd inside, and guess).
    """
    return {"SYSTEMD_NSPAWN_TMPFS_TMP": "0", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1" if cgroup_version == 2 else "0"}


def container(root: Path, name: str, limits: Limits, *, own_network: bool, kept: Sequence[str] = ()) -> list[str]:
    """The command line of systemd-nspawn, for ``root``, up to what it runs inside.

    ``kept``: the directories in the image's /run, which services count on (/run/postgresql).
    """
    argv = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", f"--machine={name}", f"--directory={root}"]
    argv += ["--hostname=instance", "--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=pipe"]
    argv += ["--private-network"] if own_network else []
    argv += [f"--rlimit={name}={soft}:{hard}" for name, (soft, hard) in _resource_limits().items()]
    argv += [f"--bind={_RUN}/{name}:/run/{name}" for name in map(_escaped, kept)]
    argv += [f"--tmpfs=/dev/shm:mode=1777,nosuid,nodev,size={limits.memory_bytes}"]
    argv += [f"--bind-ro=/dev/null:{path}" for path in in_proc(*PROC_HIDDEN_FILES, "sysrq-trigger")]
    argv += [f"--tmpfs={path}:ro,size=4k" for path in in_proc(*PROC_HIDDEN_DIRECTORIES)]
    argv += ["--drop-capability=" + ",".join(f"CAP_{one.upper()}" for one in _DROPPED.split())]
    return [*argv, f"--setenv={PATH}", "--setenv=LANG=C"]


def read_only_cgroups(payload: Cgroup) -> list[str]:
    """What keeps systemd-nspawn from giving root inside a cgroup of his own to write to, as it does for a systemd.

    It mounts nothing where something is mounted that looks as it would (nspawn-cgroup.c): on version 2 the group
    itself, on version 1 the hierarchy of systemd's, which is the only one that it leaves to be written.
    """
    if payload.hierarchies.version == 2:
        return [f"--bind-ro={payload.directory('cpu')}:/sys/fs/cgroup"]
    return ["--tmpfs=/sys/fs/cgroup:mode=755,size=64k", "--tmpfs=/sys/fs/cgroup/systemd:ro,size=4k"]


def _resource_limits() -> dict[str, tuple[str, str]]:
    """Ours, as every other platform inherits them (setrlimit(2)); nspawn would set those that a kernel boots with."""
    return {
        name.removeprefix("RLIMIT_"): (_limit(soft), _limit(hard))
        for name in dir(resource)
        if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # BSD's name for NOFILE
        for soft, hard in [resource.getrlimit(getattr(resource, name))]
    }


def _directories(path: Path) -> list[str]:
    """The names of those in a directory of the image's; none where it is missing, or a link that leads elsewhere."""
    if path.is_symlink() or not path.is_dir():
        return []
    names = {entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)}
    return sorted(names - {"host"})  # nspawn's own


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:")


def _limit(value: int) -> str:
    return "infinity" if value == resource.RLIM_INFINITY else str(value)
