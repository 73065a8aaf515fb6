"""OCI runtimes alone: what Docker and Kubernetes start a container by, without the daemons above it.

The runtime stays in the foreground, as `runc run` does, and the agent is the container's first process: its standard
input and output are the runtime's. The container lies in a group of the runtime's making below the payload's, the
runtime in the helpers'.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.features import Features, partly
from virtoll.hosts.base import Confinement, Host
from virtoll.images.base import Image
from virtoll.images.layer import DISK_LIMIT, overlay
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import bundle, container_network, users
from virtoll.platforms.base import Instance
from virtoll.platforms.groups import instance_groups
from virtoll.platforms.kinds import CONTAINER
from virtoll.platforms.requirements import bare, containers_need, out_of_sight, refuse_kind
from virtoll.platforms.stdio import agent_on_stdio
from virtoll.study.limits import Limits


@dataclass(frozen=True)
class OciSettings:
    """``runtime``: *runc*, the reference (Go), or *crun*, Podman's on Fedora (C). ``user_namespace``: root inside is
    nobody to the host, as in rootless containers and under Docker's userns-remap.
    """

    runtime: Literal["runc", "crun"] = "runc"
    user_namespace: bool = False


class Oci(users.OwnUsers):
    """Containers of runc or crun."""

    name: ClassVar[str] = "oci"
    summary: ClassVar[str] = "a container without an engine: runc or crun alone, as Docker and Kubernetes call them"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "stack", "shared")
    features: ClassVar[Features] = {
        **CONTAINER,
        "live-migration": partly(
            "by CRIU, its memory first while it runs, or last when it is asked for; carried over by hand",
            "runc-checkpoint(8), --pre-dump and --lazy-pages",
        ),
        "checkpoint": partly("by CRIU, where it can restore what runs inside", "runc-checkpoint(8)"),
    }
    Settings: ClassVar[type[OciSettings]] = OciSettings
    settings: OciSettings

    def check(self, host: Host) -> list[Problem]:
        """See `Platform.check`."""
        problems = containers_need(host, (self.settings.runtime, self.settings.runtime))
        if self.settings.user_namespace:
            problems += out_of_sight(self.name, (str(users.ROOT.parent),), "VIRTOLL_STATE")
        return problems + users.problems(host, self.settings.user_namespace)

    def versions(self, host: Host) -> dict[str, str]:
        """The runtime's."""
        runtime = self.settings.runtime
        return {runtime: bundle.runtime_version(host, runtime)}

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
            netns = Path("/run/netns", attachment.netns) if attachment.kind == "shared" else None
            told = bundle.configuration(users.ROOT if mapped else root, groups, limits, netns, user_namespace=mapped)
            bundle.write(host, directory / "bundle", told)
            argv = [self.settings.runtime, f"--root={directory / 'runtime'}", "run"]
            argv += [f"--bundle={directory / 'bundle'}", directory.name]
            hidden = bundle.hidden_from(self.settings.runtime, groups.whole.hierarchies.version)
            if mapped:
                argv = bundle.apart(root, argv, covered=(users.ROOT.parent,), without=hidden, shown=users.ROOT)
            elif hidden:
                argv = bundle.apart(root, argv, without=hidden)
            log, confinement = directory / "oci.log", Confinement(groups.helpers.procs)
            agent, process = stack.enter_context(
                agent_on_stdio(host, bare(argv), log=log, confinement=confinement, platform=self.name)
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
                    "runtime": self.versions(host),
                    "command": argv,
                    "bundle": told,
                    "oci_runtime": self.settings.runtime,
                    "kernel": os.uname().release,
                    "disk_limit": DISK_LIMIT,
                    **network.facts,
                },
                is_running=lambda: process.poll() is None and network.lives(),
                image=image,
            )
