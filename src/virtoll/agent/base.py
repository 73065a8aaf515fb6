"""What an agent inside an instance can be asked, and what it answers. docs/PROTOCOL.md is the protocol beneath."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from virtoll.errors import AgentError


class StreamError(AgentError):
    """The stream to the agent broke or ended."""


class StreamTimeoutError(StreamError):
    """Nothing came over the stream in time."""


class Stream(Protocol):
    """A two-way byte stream to the agent: exec's stdio, virtio-serial, a console. Never the measured network."""

    def send(self, data: bytes) -> None:
        """Write all of ``data``."""
        ...

    def has_room(self) -> bool:
        """Whether it takes data now. A line that nobody has opened yet is full once it holds what its buffer does."""
        ...

    def receive_line(self, timeout_s: float) -> bytes:
        """The next line without its newline. StreamTimeoutError, or StreamError at the end of the stream."""
        ...

    def close(self) -> None:
        """End the stream; the agent then kills what it started and exits."""
        ...


Kind = Literal[
    "integer", "keyed", "psi", "stat", "meminfo", "netdev", "pidstat", "diskstats", "blkio", "io_stat", "threads"
]

Transport = Literal["tcp", "udp"]


@dataclass(frozen=True)
class Source:
    """A file the sampler reads on each tick, and how its counters are found in it.

    ``kind`` is one of `Kind` (docs/PROTOCOL.md says what each reads). Counters are reported as
    ``<name>.<counter>``, the one counter of an *integer* as ``<name>``. ``only`` names the network interfaces that
    count (*netdev*); without it all do but the loopback.
    """

    name: str
    kind: Kind
    path: str
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExecResult:
    """A command that ran inside to its end."""

    returncode: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Process:
    """What really runs as a process; None where the instance's root may not look."""

    argv: tuple[str, ...]
    exe: str | None
    cwd: str | None
    uid: int
    gid: int
    groups: tuple[int, ...]  # supplementary
    environment: dict[str, str] | None


@dataclass(frozen=True)
class Got:
    """How much of something limited there was: bytes of disk, or processes. ``errno`` (errno(3)) is what refused more;
    None where all was had that was asked for."""

    amount: int
    errno: int | None


@dataclass(frozen=True)
class GuestSettings:
    """What a virtual machine gives itself: name, limits of processes and open files, its device's IPv4 address and
    default route."""

    hostname: str
    pids: int
    open_files: tuple[int, int]  # of each process: soft and hard
    device: str
    address: str
    prefix_length: int
    gateway: str | None = None
    on_link_gateway: bool = False  # the gateway is on the device's link, whatever the prefix says


@dataclass(frozen=True)
class ClockOffset:
    """Agent clock minus controller clock (both CLOCK_MONOTONIC), taken from the fastest of several exchanges."""

    offset_ns: int
    round_trip_ns: int


@dataclass(frozen=True)
class Samples:
    """What the sampler saw: ``times_ns`` (agent's clock), and per counter one value per time (None: unreadable)."""

    times_ns: list[int]
    counters: dict[str, list[int | None]]
    late_ticks: int  # ticks that were missed because the one before came late
    dropped: int = 0  # oldest ticks that the ring had no more room for
    unreadable: dict[str, str] = field(default_factory=dict)  # sources that gave nothing: name -> path and reason


class Agent(Protocol):
    """The operations. AgentError says which failed, where, and the agent's own words."""

    def within(self, timeout_s: float) -> AbstractContextManager[None]:
        """All answers to what is asked in the block must have come ``timeout_s`` after it began: StreamTimeoutError.

        A shorter wait stays as it is. The stream is good afterwards: a late answer is passed over.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """What the instance believes about itself.

        ``cpus`` (those in the affinity mask: what `nproc` prints), ``memory_bytes`` (MemTotal), ``kernel``,
        ``cpus_online`` (what programs count that do not ask for their affinity), ``cpu_model``, ``clocksource``,
        ``hostname``, ``pid1``, ``machine``, ``kernel_version``.
        """
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
    ) -> ExecResult:
        """Run a command inside to its end (no check of its exit code).

        ``env`` is all of its environment (None: the agent's own), to which HOME is added where that lacks it. ``cwd``:
        "" for the agent's own. ``user`` as OCI's config.User: *user*, *uid*, *user:group*, *uid:gid*, by the image's
        own /etc/passwd and /etc/group; "" for the agent's own. AgentError says which of program, directory or user
        there is not.
        """
        ...

    def spawn(
        self,
        argv: Sequence[str],
        *,
        log: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
    ) -> int:
        """Start a background command; its process id inside. stdout and stderr go to file ``log``.

        ``env``, ``cwd`` and ``user`` as `run` has them.
        """
        ...

    def alive(self, pid: int) -> bool:
        """Whether a spawned command still runs."""
        ...

    def returncode(self, pid: int) -> int | None:
        """How a spawned command ended: its exit code, or minus the signal that ended it; None while it runs."""
        ...

    def kill(self, pid: int, grace_s: float = 0.0) -> None:
        """SIGKILL a spawned command and reap it; it is told first (SIGTERM), and has ``grace_s`` to end by itself."""
        ...

    def describe(self, pid: int) -> Process:
        """What really runs as process ``pid`` of the instance, whoever started it."""
        ...

    def listening(self, port: int, protocol: Transport = "tcp") -> bool:
        """Whether a socket listens on ``port`` in the instance's network namespace and takes IPv4.

        On any address of IPv4, or of IPv6 on ``::`` or a mapped address.
        """
        ...

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file whole; parents are made."""
        ...

    def get(self, path: str) -> bytes:
        """Read a file (at most 1 MiB)."""
        ...

    def tail(self, path: str, most_bytes: int) -> bytes:
        """The end of a file, of ``most_bytes`` at most (and 1 MiB)."""
        ...

    def fill(self, path: str, length_bytes: int, begin_bytes: int = 0) -> None:
        """Make a file of this length inside: a piece of the text of `virtoll.services.objects`, from a byte on."""
        ...

    def sync(self, path: str) -> None:
        """Have what was written to the file system of ``path`` on its disk (syncfs(2))."""
        ...

    def burn(self, threads: int, duration_ms: int) -> dict[str, int]:
        """Busy-loop and report {"wall_ns", "cpu_ns"}: the CPU limit proved by effect."""
        ...

    def allocate(self, bytes_: int) -> dict[str, Any]:
        """Touch memory in a child, up to ``bytes_``: {"touched_bytes", "ended"}: the memory limit proved by effect.

        ``ended``: *complete* (all was touched), *killed* (by the kernel, for want of memory), *refused* (mmap failed).
        """
        ...

    def reserve(self, directory: str, bytes_: int) -> Got:
        """Try to have a file of ``bytes_`` in ``directory``: the disk limit proved by effect. Nothing is left of it."""
        ...

    def processes(self, count: int) -> Got:
        """Try to have ``count`` processes at one time: their limit proved by effect. All have ended when it answers."""
        ...

    def clock(self) -> ClockOffset:
        """The agent's clock against ours."""
        ...

    def start_sampling(self, sources: Sequence[Source], rate_hz: float, *, keep_s: float = 900.0) -> None:
        """Begin to sample, keeping the last ``keep_s`` seconds; nobody talks on the channel until collect."""
        ...

    def sample_now(self) -> None:
        """One more sample at once, beside the regular ones; the one exception to the silence of `start_sampling`."""
        ...

    def collect(self) -> Samples:
        """End sampling and fetch the samples."""
        ...

    def configure(self, guest: GuestSettings) -> None:
        """Give a virtual machine its name, its limits and its network; refused in anything else."""
        ...

    def power_off(self) -> None:
        """Switch a virtual machine off (sync, then reboot(2)); the stream ends with it."""
        ...

    def close(self) -> None:
        """End the agent."""
        ...
