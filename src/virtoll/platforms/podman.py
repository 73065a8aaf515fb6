"""Podman as root: an engine without a daemon. `podman run` stays, with conmon beside it, and hands the agent's standard
input and output on; nobody talks there while a trial is measured.

Podman, conmon and the OCI runtime are in the helpers' group, the container in one of the runtime's making below the
payload's. The root filesystem is virtoll's, as LXC's is (`--rootfs`): what Podman keeps (images, locks, state) is
written to the instance's own directory, or to memory that ends with it. The user's containers are never touched, and
what this machine has Podman do otherwise (containers.conf, mounts, hooks, a filter of its own) is not measured: it gets
settings of its own.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.features import Features, partly
from virtoll.hosts.base import Confinement, Host
from virtoll.images import shifted
from virtoll.images.base import Image
from virtoll.images.layer import DISK_LIMIT, overlay
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import bundle, container_network, users
from virtoll.platforms.base import Instance
from virtoll.platforms.groups import Groups, instance_groups
from virtoll.platforms.inside import PROC_UNLISTED
from virtoll.platforms.kinds import CONTAINER
from virtoll.platforms.requirements import bare, containers_need, out_of_sight, refuse_kind, too_old
from virtoll.platforms.stdio import SERVE, agent_on_stdio
from virtoll.study.limits import Limits

# What Podman knows of the machine's containers, and the locks that all of them share: its own ones lie here in memory.
COVERED = ("/run", "/dev/shm")
# Podman's own defaults, whatever this machine's files say; podman(1), containers.conf(5).
_DEFAULTS = {"CONTAINERS_CONF": "/dev/null", "CONTAINERS_REGISTRIES_CONF": "/dev/null"}
_STORAGE = '[storage]\ndriver = "vfs"\nrunroot = "/run/podman"\ngraphroot = "/run/podman"\n'  # all must be told
# As it comes; /etc/containers/seccomp.json would go before it. Where it is missing, Podman's own is built in.
_FILTER = Path("/usr/share/containers/seccomp.json")
_MOST_PROCESSES = 32_768  # default_ulimits in containers.conf(5), as Debian has it
_UNLIMITED = 2**64  # RLIM_INFINITY is -1 in Python
_NONE = ("--network=none",)
_MAPPING = tuple(f"--{of}map=0:{shifted.FIRST}:{shifted.COUNT}" for of in ("uid", "gid"))
# In the host's network Podman would show the host's /etc/resolv.conf; without a network it shows the image's.
_NETWORK = {"veth": _NONE, "stack": _NONE, "shared": ("--network=host", "--dns=none")}


@dataclass(frozen=True)
class PodmanSettings:
    """``runtime``: *crun*, as Debian and Fedora have it, or *runc*. ``seccomp``: Podman's *default* filter of system
    calls, or none (*unconfined*). ``user_namespace``: root inside is nobody to the host, as in a rootless container;
    Podman itself stays root's.
    """

    runtime: Literal["crun", "runc"] = "crun"
    seccomp: Literal["default", "unconfined"] = "default"
    user_namespace: bool = False


class Podman(users.OwnUsers):
    """Containers of Podman."""

    name: ClassVar[str] = "podman"
    summary: ClassVar[str] = "Docker's containers without its daemon, as Red Hat ships them; here as root"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "stack", "shared")
    features: ClassVar[Features] = {
        **CONTAINER,
        "live-migration": partly(
            "by CRIU; it stands still while its state is carried over", "podman.io/docs/checkpoint"
        ),
        "checkpoint": partly("by CRIU, as root", "podman.io/docs/checkpoint"),
    }
    Settings: ClassVar[type[PodmanSettings]] = PodmanSettings
    settings: PodmanSettings

    def check(self, host: Host) -> list[Problem]:
        """See `Platform.check`."""
        runtime = self.settings.runtime
        problems = containers_need(host, ("podman", "podman"), ("conmon", "conmon"), (runtime, runtime))
        problems += out_of_sight(self.name, COVERED, "VIRTOLL_STATE")
        problems += users.problems(host, self.settings.user_namespace)
        return problems + too_old(host, "podman", (4, 0), env=_DEFAULTS)  # --network-config-dir; Ubuntu 22.04 has 3.4

    def versions(self, host: Host) -> dict[str, str]:
        """Podman's, and those of what it starts."""
        runtime = self.settings.runtime
        told = {name: bundle.version(host, name, env=_DEFAULTS) for name in ("podman", "conmon")}
        return {**told, runtime: bundle.runtime_version(host, runtime)}

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """See `Platform.deploy`."""
        refuse_kind(self, attachment)
        host = lab.host
        with ExitStack() as stack:
            mapped = self.settings.user_namespace
            lower = users.owned(host, image, mapped)
            root = stack.enter_context(overlay(host, lab.ledger, lower, directory, limits.disk_bytes))
            groups = stack.enter_context(instance_groups(lab, directory.name, limits))
            shown = str(users.ROOT if mapped else root)
            command = [*self._podman(directory), *self._run(groups, limits, attachment), shown, *SERVE]
            hidden = bundle.hidden_from(self.settings.runtime, groups.whole.hierarchies.version)
            variables = _settings(host, directory)
            # Where the kernel ends who takes too much memory, conmon makes a file "oom" in its working directory.
            there = ["env", f"--chdir={directory / 'podman'}", *command]
            argv = bundle.apart(root, there, covered=COVERED, without=hidden, shown=users.ROOT if mapped else None)
            netns = attachment.netns if attachment.kind == "shared" else None
            agent, process = stack.enter_context(
                agent_on_stdio(
                    host,
                    bare(argv, **variables),
                    log=directory / "podman.log",
                    confinement=Confinement(groups.helpers.procs, netns=netns),
                    platform=self.name,
                )
            )
            stack.callback(bundle.end, groups, process)
            network = stack.enter_context(container_network.attached(lab, attachment, groups, directory))
            yield Instance(
                platform=self.name,
                agent=agent,
                attachment=attachment,
                accounting=groups.accounting(directory),
                limits=limits,
                facts={
                    "podman": self.versions(host),
                    "command": command,
                    "settings": variables,
                    "oci_runtime": self.settings.runtime,
                    "kernel": os.uname().release,
                    "disk_limit": DISK_LIMIT,
                    **network.facts,
                },
                is_running=lambda: process.poll() is None and network.lives(),
                image=image,
            )

    def _podman(self, directory: Path) -> list[str]:
        """Podman, with all that it keeps below ``directory``."""
        own = directory / "podman"
        return [
            "podman",
            f"--root={own / 'storage'}",
            "--runroot=/run/podman",  # it takes no longer path than 50 characters
            "--tmpdir=/run/libpod",
            f"--network-config-dir={own / 'networks'}",
            "--storage-driver=vfs",  # it holds no image
            f"--hooks-dir={own / 'hooks'}",  # there are none
            "--default-mounts-file=/dev/null",
            "--cgroup-manager=cgroupfs",
            "--events-backend=none",
            f"--runtime={self.settings.runtime}",
        ]

    def _run(self, groups: Groups, limits: Limits, attachment: Attachment) -> list[str]:
        """`podman run` with the limits. The CPU quota is the group's, as on every platform."""
        return [
            "run",
            "--interactive",
            *_NETWORK[attachment.kind],
            "--hostname=instance",
            "--no-hosts",
            "--http-proxy=false",
            "--systemd=false",
            "--sdnotify=ignore",
            "--log-driver=none",
            *_own_limits(),  # by itself Podman asks for more than root may have where he has no CAP_SYS_RESOURCE
            "--cgroups=no-conmon",
            f"--cgroup-parent=/{groups.payload.name}",
            f"--cpuset-cpus={','.join(str(cpu) for cpu in sorted(groups.cpus))}",
            f"--memory={limits.memory_bytes}b",
            f"--memory-swap={limits.memory_bytes}b",
            f"--pids-limit={limits.pids}",
            f"--shm-size={limits.memory_bytes}b",
            *(_MAPPING if self.settings.user_namespace else ()),
            *_filter(self.settings.seccomp),
            "--security-opt=label=disable",  # Podman gives --rootfs no label that SELinux would let the container read
            f"--security-opt=mask={':'.join(f'/proc/{name}' for name in PROC_UNLISTED)}",
            "--rootfs",
        ]


def _settings(host: Host, directory: Path) -> dict[str, str]:
    """The variables that have Podman read the files that are made here, and nobody else's."""
    storage = directory / "podman/storage.conf"
    host.put(storage, _STORAGE.encode())
    (directory / "podman/hooks").mkdir()  # Podman refuses one that is not there
    return {**_DEFAULTS, "CONTAINERS_STORAGE_CONF": str(storage)}


def _filter(seccomp: str) -> list[str]:
    if seccomp == "unconfined":
        return ["--security-opt=seccomp=unconfined"]
    return [f"--security-opt=seccomp={_FILTER}"] if _FILTER.is_file() else []


def _own_limits() -> list[str]:
    """This process's own limits, which an instance inherits on every other platform.

    Of processes no more than Podman's default, which it puts in force before.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = (min(limit % _UNLIMITED, _MOST_PROCESSES) for limit in resource.getrlimit(resource.RLIMIT_NPROC))
    return [f"--ulimit={name}={':'.join(map(str, of))}" for name, of in (("nofile", files), ("nproc", processes))]
