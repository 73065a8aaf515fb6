"""The seam of a platform, and what an instance is to the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from virtoll.agent import Agent
from virtoll.errors import PlatformError, Problem
from virtoll.features import Features
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode, common_kind
from virtoll.registry import Part, implementations
from virtoll.study.limits import Limits


@dataclass(frozen=True)
class Used:
    """CPU time since an instance began, and memory that it holds now."""

    cpu_ns: int
    memory_bytes: int


class Meter(Protocol):
    """Tells what an instance uses where no control group does: a hypervisor's guest is no process of this kernel's."""

    def used(self) -> Used | None:
        """Now; None where it cannot be told. Asked by several threads, some ten times a second."""
        ...


@dataclass(frozen=True)
class Accounting:
    """Where *all* of an instance's host-side cost is booked.

    ``cgroup`` (relative to each controller's root) holds everything: guest or container and every helper. Parts of
    interest are named in ``parts`` as sub-groups (``payload``, ``helpers``) where the platform separates them.
    ``shared`` are the groups of daemons that it has in common with the other instances of the run, outside of it.
    What it writes to the host's disks lies below ``directory``. ``counters`` are what the host's kernel counts of it
    besides, by the counter's name: a file each that holds one number. ``huge_bytes`` of its memory are huge pages,
    which it holds all the time and no group books. ``is_disk_elsewhere``: what it writes lies on a volume of the
    platform's own, which nobody here can measure. Where there is a ``meter`` the guest itself is in no group:
    ``cgroup`` holds the helpers alone, and what the instance costs is both together.
    """

    cgroup: str
    directory: Path
    parts: dict[str, str] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    meter: Meter | None = None
    counters: Mapping[str, Path] = field(default_factory=dict)
    huge_bytes: int = 0
    is_disk_elsewhere: bool = False


class Unseen(Accounting):
    """Of an instance on a machine of its own: whoever asks where its cost is booked gets a PlatformError."""

    def __init__(self, where: str) -> None:
        object.__setattr__(self, "where", where)

    def __getattr__(self, name: str) -> Any:
        """None of the fields is there."""
        if name in ("cgroup", "directory", "parts"):
            what = "nothing of it is seen from outside: it is on a machine of its own"
            raise PlatformError(what, where=self.where, remedy="leave this measurement out for this arm")
        raise AttributeError(name)


@dataclass
class Instance:
    """A guest of any kind, running, with an agent inside."""

    platform: str
    agent: Agent
    attachment: Attachment
    accounting: Accounting
    limits: Limits  # the study's; those of a machine elsewhere are its own (`is_elsewhere`)
    facts: dict[str, Any]  # what ran: versions, accelerator, kernel, command line; goes into the trial's record
    is_running: Callable[[], bool]
    image: Image  # what its root filesystem was made from
    # Keeps it from running while others are measured, where it is no idler by itself: a guest under TCG is not.
    stopped: Callable[[], AbstractContextManager[None]] = nullcontext
    counts_cpu_time: bool = True  # whether what its kernel tells inside of CPU time that was used is true
    # How many of the host's tasks stand for a process inside: itself, as of UML's too; none of a virtual machine's.
    hosts_tasks_each: int = 1
    services: dict[str, int] = field(default_factory=dict)  # started in it, by name: their process ids inside
    # What the platform's own kernel counts of it, beside its control groups, since it began: goes into the record of
    # each trial. HostError where it cannot be read.
    kernel_counts: Callable[[], dict[str, Any]] = dict
    end: Callable[[], None] | None = None  # where the death of all in its control group would not end it

    def kill(self) -> None:
        """Kill all that it is, from outside."""
        if self.end is not None:
            self.end()
        else:
            Cgroup(self.accounting.cgroup, hierarchies()).kill()


def is_elsewhere(instance: Instance) -> bool:
    """Whether it is on a machine of the user's own: neither limited from here nor seen from outside."""
    return isinstance(instance.accounting, Unseen)


@dataclass(frozen=True)
class Options:
    """A platform's own settings from the study file, checked against the fields of its ``Settings``."""


class Platform(Part):
    """One platform. Its ``Settings`` are an arm's further keys in the study file."""

    kinds: ClassVar[tuple[Kind, ...]] = ()
    default_network: ClassVar[str] = "routed"
    overhead_bytes: ClassVar[int] = 0  # memory that it may take besides the instance's limit
    most_vcpus: ClassVar[int | None] = None  # where the platform itself has a limit
    is_elsewhere: ClassVar[bool] = False  # on a machine of the user's own: its limits are audited, and not set
    runtimes: ClassVar[tuple[str, ...]] = ()  # programs whose version matters; each knows --version
    caveat: ClassVar[str] = ""  # what is to be known before its figures are believed; `virtoll doctor` says it
    expected_overhead_s: ClassVar[float] = 1.5  # a trial's wall time beside its window; only for estimates
    features: ClassVar[Features] = {}  # what it supports, by the words of `virtoll.features.FEATURES`
    variants: ClassVar[Mapping[str, Features]] = {}  # what, where a setting has this value
    Settings: ClassVar[type[Any]] = Options

    @property
    def attached_as(self) -> tuple[Kind, ...]:
        """Those of `kinds` that it takes with its settings."""
        return self.kinds

    def kind_in(self, mode: type[NetworkMode]) -> Kind | Problem:
        """The kind of attachment for it in a network mode, or why the pair is impossible."""
        kinds = self.attached_as
        return common_kind(self.name if kinds == self.kinds else f"{self.name} with these settings", kinds, mode)

    @abstractmethod
    def check(self, host: Host) -> list[Problem]:
        """What is missing on this host, why, and the remedy; empty when ready. Leaves no trace on the host."""

    def lacks(self, host: Host, limits: Limits, instances: int = 1) -> list[Problem]:  # noqa: ARG002
        """What so many instances of these limits would not find on this host now; empty when they would find all."""
        return []

    @property
    def is_pooled(self) -> bool:
        """Whether an instance's memory is of a pool that nobody else takes of, and none of what is free."""
        return False

    def untried(self, host: Host) -> str:  # noqa: ARG002
        """What `check` cannot tell before it was tried; "" where it has told all. Leaves no trace on the host."""
        return ""

    def try_out(self, host: Host) -> list[Problem]:  # noqa: ARG002
        """What only a trial shows, where `check` has found nothing. It may fetch, boot and fill the cache.

        Asked only by who has the machine to itself (`virtoll.hosts.lock`).
        """
        return []

    def announced(self) -> str:
        """What leaves this machine for its sake, and where to: said before a run begins. "" where nothing does."""
        return ""

    @abstractmethod
    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """Make (or find in the cache) what instances of these limits start from, outside any measured time."""

    def versions(self, host: Host) -> dict[str, str]:
        """What makes instances, and its version: a run is not gone on with when one has changed."""
        return {program: host.run([program, "--version"]).text.partition("\n")[0] for program in self.runtimes}

    def session(self, lab: Lab, image: Image) -> AbstractContextManager[None]:  # noqa: ARG002
        """Hold what deployments of an image share during one run (Docker's private daemon). Nothing by default.

        A run that compares two images begins one for each, in one lab.
        """
        return nullcontext()

    @abstractmethod
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> AbstractContextManager[Instance]:
        """Start a fresh instance in ``directory`` (empty, its own) and end it, with all it left, at the end.

        PlatformError says why it did not come up. Never a silent fallback.
        """


def expected_overheads_s() -> dict[str, float]:
    """What a trial takes beside its window, by platform: only for estimates."""
    return {name: cls.expected_overhead_s for name, cls in platforms().items()}


def platforms() -> dict[str, type[Platform]]:
    """All platforms by name."""
    return implementations("virtoll.platforms", Platform)
