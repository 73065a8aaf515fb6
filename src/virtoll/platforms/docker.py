"""Docker: containers of a private dockerd (`virtoll.platforms.dockerd`) in the lab's SUT namespace.

The container's main process is the agent; its standard input and output come through the daemon's attach stream, and
nobody talks there while a trial is measured. The container lies in the payload cgroup, its shim and port proxies in the
helpers'. dockerd and containerd themselves, which do nothing while a container runs, are on the generator's CPUs.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from virtoll.agent import AgentClient
from virtoll.errors import AgentError, HostError, PlatformError, Problem
from virtoll.features import UNKNOWN, Features, partly
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory, state_directory
from virtoll.images.base import Image
from virtoll.images.layer import DISK_LIMIT
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import bundle, container_network, docker_runtime
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.dockerd import COVERED, MOST_SOCKET_BYTES, XTABLES, Daemon, Setting, running
from virtoll.platforms.groups import Groups, instance_groups
from virtoll.platforms.gvisor import HOSTS_TASKS_EACH, Gvisor, host_processes, platform_by_itself
from virtoll.platforms.inside import MASKED, PROC_UNLISTED, in_proc
from virtoll.platforms.kinds import CONTAINER
from virtoll.platforms.requirements import containers_need, out_of_sight, refuse_kind
from virtoll.platforms.stdio import SERVE
from virtoll.study.limits import Limits

_NETWORK = {"veth": "none", "stack": "none", "shared": "host", "published": "bridge"}
_COMMANDS = (
    ("dockerd", "docker.io"),
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("docker-proxy", "docker.io"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
)

# File systems, as stat(1) calls them, on which the storage driver does not start (moby: graphdriver/overlay2, Init).
_REFUSED = ("ecryptfs", "nfs", "overlayfs", "zfs")

_CHECKPOINT = "docs.docker.com/reference/cli/docker/checkpoint"
_ENDED = "the container has ended at once"


@dataclass(frozen=True)
class DockerSettings:
    """``seccomp``: Docker's *default* filter of system calls, or none (*unconfined*). ``userland_proxy``: whether the
    daemon starts a docker-proxy for each published port, as it does by default; in other network modes there is none.
    ``runtime``: what makes the container, a program in the PATH by the name that Docker is told of it: *runc*, Docker's
    own, *crun*, *runsc* (gVisor, of the network mode *published* alone), or another that takes runc's commands.
    """

    seccomp: Literal["default", "unconfined"] = "default"
    userland_proxy: bool = True
    runtime: str = docker_runtime.USUAL


class Docker(Platform):
    """Containers of the Docker Engine."""

    name: ClassVar[str] = "docker"
    summary: ClassVar[str] = "what most deploy today: a Docker Engine container (runc; crun or runsc by a setting)"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "published", "stack", "shared")
    runtimes: ClassVar[tuple[str, ...]] = ("dockerd", "containerd", "runc")
    features: ClassVar[Features] = {
        **CONTAINER,
        "live-migration": partly("a checkpoint can be carried over; Docker calls it experimental", _CHECKPOINT),
        "checkpoint": partly("by CRIU; Docker calls it experimental", _CHECKPOINT),
    }
    variants: ClassVar[Mapping[str, Features]] = {docker_runtime.SENTRY: {**Gvisor.features, "checkpoint": UNKNOWN}}
    Settings: ClassVar[type[DockerSettings]] = DockerSettings
    settings: DockerSettings

    @property
    def attached_as(self) -> tuple[Kind, ...]:
        """A Sentry's network is there before it starts, and of Docker's networks that is Docker's own."""
        return ("published",) if self._is_sentry else self.kinds

    @property
    def _is_sentry(self) -> bool:
        return self.settings.runtime == docker_runtime.SENTRY

    @property
    def _daemons(self) -> Setting:
        return Setting(self.settings.userland_proxy, self.settings.runtime)

    def check(self, host: Host) -> list[Problem]:
        """See `Platform.check`."""
        problems = containers_need(host, *_COMMANDS)
        if problem := docker_runtime.problem(host, self.settings.runtime):
            problems.append(problem)
        if self._is_sentry and self.settings.seccomp != "default":
            what = 'seccomp = "unconfined" changes nothing with runtime = "runsc"'
            problems.append(Problem(what, self.name, "leave it out: the Sentry has a filter of its own, not Docker's"))
        if not XTABLES.is_file():
            problems.append(Problem("iptables on nf_tables is not installed", str(XTABLES), "apt-get install iptables"))
        problems += out_of_sight(self.name, COVERED, "VIRTOLL_STATE", "VIRTOLL_CACHE")
        return problems + _disk_problems(host) + _socket_problems(self._daemons)

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """Nothing: the session's daemon imports the image and keeps it."""

    def versions(self, host: Host) -> dict[str, str]:
        """Docker's, and that of a runtime which is not its own."""
        own, runtime = super().versions(host), self.settings.runtime
        return own if runtime in own else {**own, runtime: bundle.runtime_version(host, runtime)}

    @contextmanager
    def session(self, lab: Lab, image: Image) -> Iterator[None]:
        """A private dockerd with the image in it; one of its own for arms without a userland proxy, or runc."""
        with running(lab, self._daemons) as daemon:
            daemon.import_image(image)
            yield

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """See `Platform.deploy`."""
        refuse_kind(self, attachment)
        with ExitStack() as stack:
            daemon = stack.enter_context(running(lab, self._daemons))
            daemon.ensure()
            tag = daemon.import_image(image)
            processes = host_processes(limits) if self._is_sentry else limits.pids
            groups = stack.enter_context(instance_groups(lab, directory.name, limits, payload_pids=processes))
            specification = self._specification(tag, groups, limits, attachment)
            rules = stack.enter_context(ExitStack())  # of the firewall: withdrawn when the container uses none
            with ThreadPoolExecutor() as beside:  # who waits for the kernel and a disk need not wait for each other
                made = beside.submit(daemon.make_disk, directory, limits.disk_bytes)
                if attachment.kind == "published":
                    in_place = beside.submit(rules.enter_context, daemon.publishing())
                container = stack.enter_context(_container(daemon, specification, rules))
                made.result()
                daemon.limit_disk(container, directory, limits.disk_bytes)
                if attachment.kind == "published":
                    in_place.result()
            agent = stack.enter_context(_agent(daemon, container))
            pid = _init_pid(daemon, container)
            for helper in _helpers(pid, daemon):
                groups.helpers.add(helper)
            network = stack.enter_context(container_network.attached(lab, attachment, groups, directory))
            yield Instance(
                platform=self.name,
                agent=agent,
                attachment=attachment,
                accounting=groups.accounting(directory, shared=(daemon.cgroup,), apart=not self._is_sentry),
                limits=limits,
                facts={
                    "docker": daemon.versions,
                    "dockerd": daemon.command,
                    "oci_runtime": self.settings.runtime,
                    **self._system_calls(lab.host),
                    "container": specification,
                    "kernel": os.uname().release,
                    "disk_limit": DISK_LIMIT,
                    **network.facts,
                },
                is_running=lambda: daemon.is_alive() and pid in groups.payload.pids() and network.lives(),
                image=image,
                counts_cpu_time=not self._is_sentry,
                hosts_tasks_each=HOSTS_TASKS_EACH if self._is_sentry else 1,
            )

    def _system_calls(self, host: Host) -> dict[str, str]:
        """How a Sentry is told of them, which is its own choice here, where it says so."""
        return {"accelerator": told} if self._is_sentry and (told := platform_by_itself(host)) else {}

    def _specification(self, tag: str, groups: Groups, limits: Limits, attachment: Attachment) -> dict[str, Any]:
        """The container as the API's create call takes it. The CPU quota is the group's, as on every platform."""
        published = _published(attachment)
        return {
            "Image": tag,
            "Cmd": SERVE,
            "Hostname": "instance",
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "ExposedPorts": {port: {} for port in published},
            "HostConfig": {
                "NetworkMode": _NETWORK[attachment.kind],
                "PortBindings": published,
                "Dns": ["127.0.0.1"],
                "CgroupParent": f"/{groups.payload.name}",
                "CpusetCpus": ",".join(str(cpu) for cpu in sorted(groups.cpus)),
                "Memory": limits.memory_bytes,
                "MemorySwap": limits.memory_bytes,
                **self._own_limits(limits),
                "ShmSize": limits.memory_bytes,
                "LogConfig": {"Type": "none"},
                "SecurityOpt": ["seccomp=unconfined"] if self.settings.seccomp == "unconfined" else [],
                **_masked(),
                **({} if self.settings.runtime == docker_runtime.USUAL else {"Runtime": self.settings.runtime}),
            },
        }

    def _own_limits(self, limits: Limits) -> dict[str, Any]:
        """Of open files this process's own, as every other platform has them: containerd, in Go, raises those that it
        inherits. Of processes that of the container's group; a Sentry's many threads are there, and it counts inside.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        told = [{"Name": "nofile", "Soft": soft, "Hard": hard}]
        if self._is_sentry:
            return {"Ulimits": [*told, {"Name": "nproc", "Soft": limits.pids, "Hard": limits.pids}]}
        return {"Ulimits": told, "PidsLimit": limits.pids}


def _disk_problems(host: Host) -> list[Problem]:
    """Why dockerd would not start with its data where virtoll's cache is. Leaves no trace."""
    try:
        cache = cache_directory()
    except HostError as error:
        return [error.problem]
    places = (cache / "docker", cache, *cache.absolute().parents)
    place = next(path for path in places if os.path.isdir(path))  # noqa: PTH112 (which bears one that is root's alone)
    kind = host.run(["stat", "--file-system", "--format=%T", str(place)], check=False).text
    if kind not in _REFUSED:
        return []
    remedy = "let VIRTOLL_CACHE name a directory on ext4, XFS or btrfs (in a container: a volume), or leave docker out"
    return [Problem(f"Docker's overlay2 does not work on {kind}, where its images would lie", str(place), remedy)]


def _socket_problems(daemons: Setting) -> list[Problem]:
    """Why dockerd could not listen where virtoll's state is."""
    try:
        state = state_directory()
    except HostError:
        return []  # told already
    too_long = len(os.fsencode(state / "lab-ab12" / daemons.socket)) - MOST_SOCKET_BYTES
    if too_long <= 0:
        return []
    what = f"the path of Docker's socket would be longer than the {MOST_SOCKET_BYTES} bytes that one may have"
    return [Problem(what, "VIRTOLL_STATE", f"let it name a directory whose path is {too_long} bytes shorter")]


def _masked() -> dict[str, list[str]]:
    """Docker's own list of what is hidden, and what it lacks, where this kernel has that."""
    return {"MaskedPaths": [*MASKED]} if in_proc(*PROC_UNLISTED) else {}


def _published(attachment: Attachment) -> dict[str, list[dict[str, str]]]:
    """The container's ports as the API binds them: each of a range by itself, as `docker run -p` hands them on."""
    if attachment.kind != "published":
        return {}
    return {
        f"{number}/{port.protocol}": [{"HostIp": attachment.endpoint_address, "HostPort": str(number)}]
        for port in attachment.ports
        for number in port.numbers
    }


@contextmanager
def _container(daemon: Daemon, specification: dict[str, Any], rules: ExitStack) -> Iterator[str]:
    """A created container's id; it is removed, running or not, at the end, and ``rules`` are closed meanwhile."""
    container = daemon.engine.call("POST", "/containers/create", specification)["Id"]
    try:
        yield container
    finally:
        # A daemon that was killed cannot remove it: the container dies with the instance's cgroup, and what is
        # left in the data root is removed when the next daemon starts.
        if daemon.is_alive():
            if specification["ExposedPorts"]:
                _end(daemon, container)
            with ThreadPoolExecutor() as beside:
                withdrawn = beside.submit(rules.close)
                daemon.engine.call("DELETE", f"/containers/{container}", force=1, v=1)
                withdrawn.result()


def _end(daemon: Daemon, container: str) -> None:
    """Kill it; when this returns, the daemon has taken its network and its ports' rules away, but not its files."""
    with suppress(PlatformError):  # it has ended by itself, or was never started
        daemon.engine.call("POST", f"/containers/{container}/kill")
    # Killed, it is no longer called running, but the daemon has it locked until its network is gone (moby: Cleanup).
    daemon.engine.call("GET", f"/containers/{container}/json")


@contextmanager
def _agent(daemon: Daemon, container: str) -> Iterator[AgentClient]:
    """Start the container and greet its agent."""
    stream = daemon.engine.attach(container)
    try:
        daemon.engine.call("POST", f"/containers/{container}/start")
        try:
            agent = AgentClient(stream)
        except AgentError as error:
            state = daemon.engine.call("GET", f"/containers/{container}/json")["State"]
            raise PlatformError(
                f"no agent answers: {error.problem.what}; docker says {state}", where="docker"
            ) from error
        yield agent
    finally:
        stream.close()


def _init_pid(daemon: Daemon, container: str) -> int:
    pid: int = daemon.engine.call("GET", f"/containers/{container}/json")["State"]["Pid"]
    if not pid:
        raise PlatformError(_ENDED, where="docker")
    return pid


def _helpers(init_pid: int, daemon: Daemon) -> list[int]:
    """The host's processes that serve one container: its shim, and the proxies of its published ports."""
    try:
        status = Path(f"/proc/{init_pid}/status").read_text(encoding="utf-8")
    except OSError as error:
        raise PlatformError(_ENDED, where="docker") from error
    shim = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
    return [shim, *daemon.named("docker-proxy")]
