"""What counters say of a stretch of time, read where it begins and where it ends: the kernel's, and a server's own."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

T = TypeVar("T")
LATE_MS = 5.0  # a reading that comes later than this is told: what is compared to it was read earlier
# Bytes before what TCP (with its time stamps) or UDP carries. A device counts a packet with the head that it sends; the
# loopback takes Ethernet's off before it counts. What the kernel cuts late (GSO) is one packet, with one head.
ETHERNET, TCP, UDP = 14, 20 + 32, 20 + 8


@dataclass(frozen=True)
class Moment:
    """What the counters say at one moment: each only grows."""

    server_cpu_s: float
    server_bytes: float  # sent, by the server's own count
    wire_bytes: int  # by a device's, towards the clients
    wire_packets: int
    at_ns: int = field(default_factory=time.monotonic_ns)  # when they were read

    def since(self, before: Moment) -> Moment:
        """What has been added, and in which time: ``at_ns``."""
        return Moment(
            self.server_cpu_s - before.server_cpu_s,
            self.server_bytes - before.server_bytes,
            self.wire_bytes - before.wire_bytes,
            self.wire_packets - before.wire_packets,
            self.at_ns - before.at_ns,
        )

    def carried(self, head_bytes: int) -> int:
        """Bytes without the heads of packets."""
        return self.wire_bytes - self.wire_packets * head_bytes


def at(when_ns: int, read: Callable[[], T]) -> T:
    """What ``read`` gives at a time by CLOCK_MONOTONIC; a reading that is late is told on standard error."""
    time.sleep(max(0, when_ns - time.monotonic_ns()) / 1e9)
    told = read()
    late_ms = (time.monotonic_ns() - when_ns) / 1e6
    if late_ms > LATE_MS:
        print(f"counters were read {late_ms:.1f} ms late", file=sys.stderr)
    return told


def differ_percent(counts: Sequence[float]) -> float:
    """The largest over the smallest, less one; infinite where one of them counted nothing."""
    return 100 * (max(counts) / min(counts) - 1) if min(counts) > 0 else float("inf")


def processes(pid: int) -> list[int]:
    """A process, and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split())]


def cpu_s(pid: int) -> float:
    """CPU time so far of a process and its children."""
    stats = [Path(f"/proc/{one}/stat").read_text(encoding="utf-8") for one in processes(pid)]
    return sum(ticks(stat) for stat in stats) / os.sysconf("SC_CLK_TCK")


def ticks(stat: str) -> int:
    """CPU time in /proc/PID/stat, user and system."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def written_bytes(pid: int) -> int:
    """What a process and its children have written so far, by sendfile too, to files and sockets."""
    told = [Path(f"/proc/{one}/io").read_text(encoding="ascii") for one in processes(pid)]
    return sum(int(line.split()[1]) for text in told for line in text.splitlines() if line.startswith("wchar:"))


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had so far. ProcessLookupError where it has ended, and was not waited for."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+)", status)
    if found is None:
        raise ProcessLookupError(f"process {pid} has ended before its memory was read")
    return int(found[1]) * 1024


def device(pid: int, name: str, way: Literal["received", "sent"]) -> tuple[int, int]:
    """Bytes and packets so far of a device where the process is."""
    return counted(Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii"), name, way)


def counted(text: str, name: str, way: Literal["received", "sent"]) -> tuple[int, int]:
    """The same of the text of /proc/net/dev."""
    lines = (line.partition(":") for line in text.splitlines())
    fields = next(rest.split() for device, _, rest in lines if device.strip() == name)
    first = 0 if way == "received" else 8
    return int(fields[first]), int(fields[first + 1])
