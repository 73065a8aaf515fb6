"""What an agent inside an instance can be asked, and what it answers. docs/PROTOCOL.md is the protocol beneath."""

from __future__ import annotations

from collections.abc import Sequence
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

    def receive_line(self, timeout_s: float) -> bytes:
        """The next line without its newline. StreamTimeoutError, or StreamError at the end of the stream."""
        ...

    def close(self) -> None:
        """End the stream; the agent then kills what it started and exits."""
        ...


Kind = Literal[
    "integer", "keyed", "psi", "stat", "meminfo", "netdev", "pidstat", "diskstats", "blkio", "io_stat", "threads"
]


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

    def facts(self) -> dict[str, Any]:
        """What the instance believes about itself.

        ``cpus`` (those in the affinity mask: what `nproc` prints), ``memory_bytes`` (MemTotal), ``kernel``,
        ``cpus_online`` (what programs count that do not ask for their affinity), ``cpu_model``, ``clocksource``,
        ``hostname``, ``pid1``, ``machine``, ``kernel_version``.
        """
        ...

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> ExecResult:
        """Run a command inside to its end (no check of its exit code)."""
        ...

    def spawn(self, argv: Sequence[str], *, user: str = "", log: str = "") -> int:
        """Start a background command; its process id inside. stdout and stderr go to file ``log``."""
        ...

    def alive(self, pid: int) -> bool:
        """Whether a spawned command still runs."""
        ...

    def kill(self, pid: int) -> None:
        """SIGKILL a spawned command and reap it."""
        ...

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file whole; parents are made."""
        ...

    def get(self, path: str) -> bytes:
        """Read a file (at most 1 MiB)."""
        ...

    def burn(self, threads: int, duration_ms: int) -> dict[str, int]:
        """Busy-loop and report {"wall_ns", "cpu_ns"}: the CPU limit proved by effect."""
        ...

    def allocate(self, bytes_: int) -> dict[str, Any]:
        """Touch memory in a child, up to ``bytes_``: {"touched_bytes", "ended"}: the memory limit proved by effect.

        ``ended``: *complete* (all was touched), *killed* (by the kernel, for want of memory), *refused* (mmap failed).
        """
        ...

    def clock(self) -> ClockOffset:
        """The agent's clock against ours."""
        ...

    def start_sampling(self, sources: Sequence[Source], rate_hz: float, *, keep_s: float = 900.0) -> None:
        """Begin to sample, keeping the last ``keep_s`` seconds; nobody talks on the channel until collect."""
        ...

    def collect(self) -> Samples:
        """End sampling and fetch the samples."""
        ...

    def power_off(self) -> None:
        """Switch a virtual machine off (sync, then reboot(2)); the stream ends with it."""
        ...

    def close(self) -> None:
        """End the agent."""
        ...
