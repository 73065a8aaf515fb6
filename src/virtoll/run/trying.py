"""Short trials of what a machine's settings do: well below a second each, each on CPUs that are named.

Figures are of Python and a pipe: for before and after on one machine, not for comparing machines.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_WAKES = 200
_REST_S = 0.001  # before each: long enough for a CPU to sleep
_SUMS = 20
_SUM_OF = 400_000
_TOUCHED_BYTES = 32 << 20
_READINGS = 20_000
_LOOKS_AT_BOTH = 32


@dataclass(frozen=True)
class Wake:
    """Nanoseconds from a byte sent to the other CPU until its answer; medians, and the 99th percentile."""

    asleep_ns: float  # the other one sleeps, and must be woken
    asleep_p99_ns: float
    awake_ns: float  # the other one looks for it all the time


@dataclass(frozen=True)
class Sums:
    """Equal amounts of arithmetic on one CPU after a rest, in the order they were done: seconds of each."""

    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]

    @property
    def spread(self) -> float:
        """Standard deviation over mean of the wall times."""
        return statistics.stdev(self.wall_s) / statistics.fmean(self.wall_s)

    @property
    def cpu_spread(self) -> float:
        """The same of the CPU times: what clocks, caches and a core's other thread do, without who else had the CPU."""
        return statistics.stdev(self.cpu_s) / statistics.fmean(self.cpu_s)

    @property
    def first(self) -> float:
        """What the first one's CPU time was, over the median: a CPU that must gather speed is slower after a rest."""
        return self.cpu_s[0] / statistics.median(self.cpu_s)

    @property
    def waited(self) -> float:
        """The share of the time in which somebody else (another process, or the hypervisor) had the CPU."""
        return max(1 - sum(self.cpu_s) / sum(self.wall_s), 0.0)


@dataclass(frozen=True)
class Touch:
    """Seconds that the first touch of 32 MiB took, page by page."""

    huge_s: float
    small_s: float


@dataclass(frozen=True)
class Clock:
    """What the kernel says of the time, and what was seen of its clocks."""

    reading_ns: float  # a call of clock_gettime, Python's part included
    is_synchronised: bool | None
    slew_ppm: float  # how much faster the monotonic clock went than the oscillator


@contextmanager
def _on(cpu: int) -> Iterator[None]:
    """Stay on one CPU for the length of the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def wake(here: int, there: int) -> Wake:
    """Bytes to and fro between CPUs ``here`` and ``there``. Takes half a second."""
    asleep = _to_and_fro(here, there, stays_awake=False)
    awake = _to_and_fro(here, there, stays_awake=True)
    return Wake(statistics.median(asleep), sorted(asleep)[-max(len(asleep) // 100, 1)], statistics.median(awake))


def _to_and_fro(here: int, there: int, *, stays_awake: bool) -> list[int]:
    """Nanoseconds of each. The one who asks looks for the answer all the time: only the other one may sleep."""
    asks, answers = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _echo(asks, answers, there, stays_awake=stays_awake)
    try:
        os.close(asks[0])
        os.close(answers[1])
        os.set_blocking(answers[0], False)
        with _on(here):
            return [_asked(asks[1], answers[0]) for _ in range(_WAKES)]
    finally:
        os.close(asks[1])  # which ends the child
        os.close(answers[0])
        os.waitpid(child, 0)


def _asked(to: int, answer: int) -> int:
    time.sleep(_REST_S)
    begun = time.perf_counter_ns()
    os.write(to, b"?")
    while _read(answer) is None:
        pass
    return time.perf_counter_ns() - begun


def _echo(asks: tuple[int, int], answers: tuple[int, int], cpu: int, *, stays_awake: bool) -> None:
    """Answer until nobody can ask any more; never returns."""
    try:
        os.close(asks[1])
        os.close(answers[0])
        os.sched_setaffinity(0, {cpu})
        os.set_blocking(asks[0], not stays_awake)
        while (asked := _read(asks[0])) != b"":
            if asked is not None:
                os.write(answers[1], asked)
    finally:
        os._exit(0)


def _read(descriptor: int) -> bytes | None:
    """A byte, b"" at the end, None where there is none yet."""
    try:
        return os.read(descriptor, 1)
    except BlockingIOError:
        return None


def sums(cpu: int) -> Sums:
    """Twenty equal amounts of arithmetic after a rest. Takes half a second."""
    time.sleep(0.2)
    with _on(cpu):
        pairs = [_timed(lambda: sum(range(_SUM_OF))) for _ in range(_SUMS)]
    return Sums(tuple(wall for wall, _ in pairs), tuple(cpu for _, cpu in pairs))


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return time.perf_counter() - wall, time.thread_time() - cpu


def touch() -> Touch:
    """The first touch of memory, with huge pages and without; the better of three each."""
    return Touch(
        min(_touched(mmap.MADV_HUGEPAGE) for _ in range(3)), min(_touched(mmap.MADV_NOHUGEPAGE) for _ in range(3))
    )


def _touched(advice: int) -> float:
    pages = _TOUCHED_BYTES // mmap.PAGESIZE
    with mmap.mmap(-1, _TOUCHED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(advice)
        ones = b"\1" * pages

        def write() -> None:
            memory[:: mmap.PAGESIZE] = ones

        return _timed(write)[0]


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>, as far as it is read; the rest is room for the kernel to write to."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


_UNSYNCHRONISED = 0x0040  # STA_UNSYNC


def synchronised() -> bool | None:
    """Whether somebody sets the clock by another (adjtimex(2)); None where the kernel does not say."""
    timex = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        return None
    return not timex.status & _UNSYNCHRONISED


def clocks() -> tuple[int, int]:
    """The monotonic clock and the oscillator behind it at one moment, in nanoseconds.

    Whoever loses the CPU between the two readings reads two moments: told is the closest of some tries.
    """

    def both() -> tuple[int, int, int]:
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        slewed = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        return after - before, slewed, (before + after) // 2

    _, slewed, raw = min(both() for _ in range(_LOOKS_AT_BOTH))
    return slewed, raw


def slew_ppm(before: tuple[int, int], after: tuple[int, int]) -> float:
    """How much faster the one went than the other, in millionths."""
    slewed, raw = after[0] - before[0], after[1] - before[1]
    return (slewed / raw - 1) * 1e6


def reading_ns() -> float:
    """What a look at the clock costs; the best of five."""

    def read() -> None:
        for _ in range(_READINGS):
            time.perf_counter_ns()

    return min(_timed(read)[0] for _ in range(5)) / _READINGS * 1e9
