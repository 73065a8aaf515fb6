"""Native Linux: the service on the host's own kernel, with nothing around it but the limits every platform has.

A root directory of its own (overlay and chroot: the same files as everywhere), the lab's network namespace, and the
cgroups. One more namespace, of System V IPC: what a service that is killed leaves there (PostgreSQL does) would stay on
the host. No other, no seccomp filter, all capabilities: root inside is root of the host, and nothing keeps him from it.
The origin is deployed by this platform too, and a load's own programs: `Lab.at` their sites.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.features import Features, no, partly, yes
from virtoll.hosts.base import Confinement, Host
from virtoll.images.base import Image
from virtoll.images.layer import DISK_LIMIT, overlay
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.groups import instance_groups
from virtoll.platforms.inside import CHROOT
from virtoll.platforms.kinds import CONTAINER
from virtoll.platforms.requirements import containers_need, refuse_kind
from virtoll.platforms.stdio import PATH, SERVE, agent_on_stdio
from virtoll.study.limits import Limits

_HERE = "docs/METHODOLOGY.md, The same on every arm"


class Native(Platform):
    """The baseline."""

    name: ClassVar[str] = "native"
    summary: ClassVar[str] = "the baseline of every study: the host itself, same limits; root inside is the host's"
    kinds: ClassVar[tuple[Kind, ...]] = ("shared",)
    default_network: ClassVar[str] = "host"
    caveat: ClassVar[str] = "root inside is root of the host, whom nothing keeps from it"
    features: ClassVar[Features] = {
        **CONTAINER,
        "own-distribution": partly("a tree of files to which it is confined (chroot)", _HERE),
        "root-inside": no("root inside is the host's", _HERE),
        "separate-files": no("root inside reaches all of the host's", _HERE),
        "own-network": no("the network of its host", _HERE),
        "stock-kernel": yes("nothing is needed of it", _HERE),
        "unmodified-guest": yes("there is no guest", _HERE),
        "live-migration": no("nothing here moves processes to another host", _HERE),
        "checkpoint": partly("by CRIU, where it can restore what runs", "github.com/checkpoint-restore/criu"),
    }
    wrapped_in: ClassVar[tuple[str, ...]] = ()  # what the agent, and so all inside, is started by

    def check(self, host: Host) -> list[Problem]:
        """See `Platform.check`."""
        return containers_need(host)

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
            lab.host.run(
                ["sh", "-e", "-c", CHROOT, "sh", str(root), str(limits.memory_bytes)],
                confinement=Confinement(netns=attachment.netns),
            )
            argv = [*self.wrapped_in, "unshare", "--ipc", "env", "-i", PATH, "chroot", str(root), *SERVE]
            confinement = Confinement(groups.payload.procs, netns=attachment.netns)
            agent, process = stack.enter_context(
                agent_on_stdio(lab.host, argv, log=directory / "agent.log", confinement=confinement, platform=self.name)
            )
            yield Instance(
                platform=self.name,
                agent=agent,
                attachment=attachment,
                accounting=groups.accounting(directory),
                limits=limits,
                facts={"command": argv, "kernel": os.uname().release, "disk_limit": DISK_LIMIT},
                is_running=lambda: process.poll() is None,
                image=image,
            )
