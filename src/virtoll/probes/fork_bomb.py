"""Fork bombs in two slices at once: how many processes each comes to, and who answers when they are over."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from virtoll.agent import StreamError
from virtoll.aggressors.base import AggressorError
from virtoll.aggressors.base import Place as Neighbourhood
from virtoll.aggressors.fork import MOST_PROCESSES, Fork, ForkCaps
from virtoll.aggressors.result import AggressorResult
from virtoll.aggressors.running import Running
from virtoll.errors import AgentError, Problem, VirtollError
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.images.base import AGENT
from virtoll.platforms.base import Instance
from virtoll.probes.base import Place, Probe, ProbeError, ProbeResult, Slice
from virtoll.record.model import Check, Quantity, Window
from virtoll.study.limits import Limits
from virtoll.units import format_duration, within

_INTERVAL_S = 0.05  # between two counts from outside
_BAND, _BAND_PROCESSES = 0.1, 3.0  # of the equilibrium: nearer than either, a slice has settled
_LEAST_COUNTS = 3  # that make an equilibrium
_SUPERVISOR = 1  # process, which is none of the bomb's
_PATIENCE_S = 30.0  # for an answer when the bombs are over; whoever gives none is killed
_REPORT_S = 5.0  # of that, for a bomb to report by itself
_HASTE_S = 2.0  # for an answer where the probe is given up
_TOGETHER = 0.1  # of their time: no further apart may the bombs begin
_AGAIN_S = 0.005

Row = tuple[int, str, str, int]


@dataclass(frozen=True)
class ForkBombSettings:
    """The bombs go on for ``time``. ``most_processes``: no bomb has more, even where no limit is in force (none: four
    times its slice's limit, and 4096 at most). It lies past the limit, which is what is to hold them."""

    time_ns: int = within(10 * 10**9, least=10**9)
    most_processes: int | None = within(None, least=2, most=MOST_PROCESSES)

    @property
    def expected_s(self) -> float:
        """About how long it takes: the bombs' time, and some seconds until all is tidy."""
        return self.time_ns / 1e9 + 4


@dataclass(frozen=True)
class _Bombed:
    """What became of the bomb in one slice. Times are the host's CLOCK_MONOTONIC."""

    name: str  # "slice1"
    result: AggressorResult
    inside: Sequence[tuple[int, int]]  # (t_ns, processes): the bomb's own counts
    outside: Sequence[tuple[int, int]]  # the host's, of processes beyond those before; empty where those are others
    over_ns: int | None = None  # when its time was over, of which the bomb itself knows; None: it did not tell

    @property
    def rows(self) -> list[Row]:
        """Both series."""
        return [
            (t_ns, self.name, counter, count)
            for counter, series in (("processes", self.inside), ("processes_outside", self.outside))
            for t_ns, count in series
        ]

    @property
    def counts(self) -> Sequence[tuple[int, int]]:
        """The better series: the host's where it sees them, for a bomb in a container leaves its counter no CPU."""
        return self.outside or self.inside

    def equilibrium(self, since_ns: int, until_ns: int) -> float | None:
        """The median over this time; None where too little was counted in it."""
        counts = [count for t_ns, count in self.counts if since_ns <= t_ns <= until_ns]
        return statistics.median(counts) if len(counts) >= _LEAST_COUNTS else None

    def settled_ns(self, level: float, until_ns: int) -> int:
        """When it was last away from ``level``."""
        near = max(_BAND * level, _BAND_PROCESSES)
        return max((t_ns for t_ns, count in self.counts if t_ns <= until_ns and abs(count - level) > near), default=0)

    def outside_peak(self) -> int | None:
        """The most processes that the host saw."""
        return max((count for _, count in self.outside), default=None)


class ForkBomb(Probe):
    """The aggressor *fork* in the near instances of two slices, started together."""

    name: ClassVar[str] = "fork-bomb"
    summary: ClassVar[str] = "two tenants run wild: a fork bomb in each of two slices, and who still answers"
    quantities: ClassVar[Mapping[str, Quantity]] = {
        "processes_slice1": Quantity("Processes of the bomb in slice 1", "processes", None),
        "processes_slice2": Quantity("Processes of the bomb in slice 2", "processes", None),
        "fairness": Quantity("Fairness of the slices' processes", "of 1", "more"),
        "settled_s": Quantity("Until both slices settle", "s", None),
        "answered_s": Quantity("Until host and slices answer again", "s", "less"),
    }
    headline: ClassVar[str] = "fairness"
    slices: ClassVar[int] = 2
    Settings: ClassVar[type[ForkBombSettings]] = ForkBombSettings
    settings: ForkBombSettings

    def check(self, limits: Limits) -> list[Problem]:
        """The cap lies past the limit: else it holds both bombs alike, whatever the platform's limit does."""
        most = self._fork.most_processes(limits)
        if most > limits.pids:
            return []
        what = f"a bomb of {most} processes at most does not come to a limit of {limits.pids}"
        remedy = "leave most_processes out, or write more than the limit"
        if limits.pids >= MOST_PROCESSES:
            remedy = f"write less than {MOST_PROCESSES} in [limits] pids"
        return [Problem(what, f"probe {self.name}", remedy)]

    @property
    def _fork(self) -> Fork:
        return Fork(ForkCaps(self.settings.most_processes))

    def run(self, place: Place) -> ProbeResult:
        """Let them go off, watch from outside, end them for certain, ask everybody, read what they counted."""
        bombed = list(place.slices[: self.slices])
        with ExitStack() as stack:
            offsets_ns = [one.near.agent.clock().offset_ns for one in bombed]
            counts = [stack.enter_context(_Outside(one.near)) for one in bombed]
            start_ns = time.monotonic_ns()
            running = self._started(stack, place, bombed)  # their agents may hardly come to answer
            time.sleep(max(0.0, (start_ns + self.settings.time_ns - time.monotonic_ns()) / 1e9))
            end_ns = time.monotonic_ns()
            answered_s = _answered_s(place, bombed)
            results = [_ended(each, _PATIENCE_S, _REPORT_S) for each in running]
        told = [
            _Bombed(
                f"slice{one.index + 1}",
                result,
                _on_our_clock(result, offset_ns),
                count.seen,
                None if result.start_ns is None else result.start_ns - offset_ns + self.settings.time_ns,
            )
            for one, result, offset_ns, count in zip(bombed, results, offsets_ns, counts, strict=True)
        ]
        _refuse_what_never_was(told)
        forks = sum(result.counts.get("forks", 0) for result in results)
        values, notes = _values(told, answered_s, start_ns, end_ns)
        return ProbeResult(
            instrument="virtoll-agent aggress fork",
            windows=[Window(start_ns=start_ns, duration_ns=end_ns - start_ns, work=forks, values=values)],
            facts={"answered_s": answered_s, **{each.name: _facts(each) for each in told}},
            checks=[
                self._together(told),
                *(_host_agrees(each) for each in told),
                *(_lasted(each, (start_ns + end_ns) // 2, end_ns) for each in told),
            ],
            notes=notes,
            series=[row for each in told for row in each.rows],
        )

    def _started(self, stack: ExitStack, place: Place, bombed: Sequence[Slice]) -> list[Running]:
        """The bombs, all at one time: one that has gone off leaves little room for the agent of the next."""
        fork, time_ns = self._fork, self.settings.time_ns
        with ThreadPoolExecutor(len(bombed)) as pool:
            starts = [pool.submit(fork.start, Neighbourhood(one.near, place.client), time_ns) for one in bombed]
        for start in starts:
            if start.exception() is None:
                stack.callback(_ended, start.result(), _HASTE_S, 0.0)
        try:
            return [start.result() for start in starts]
        except AggressorError as error:
            problem = error.problem
            raise ProbeError(problem.what, kind="refused", where=problem.where, remedy=problem.remedy) from error

    def _together(self, told: Sequence[_Bombed]) -> Check:
        starts_ns = [t_ns for each in told for t_ns, _ in each.inside[:1]]
        apart_ns = max(starts_ns, default=0) - min(starts_ns, default=0)
        near = len(starts_ns) == len(told) and apart_ns <= _TOGETHER * self.settings.time_ns
        return Check(name="the bombs began together", passed=near, detail=f"{format_duration(apart_ns)} apart")


def _values(
    told: Sequence[_Bombed], answered_s: Mapping[str, float | None], start_ns: int, end_ns: int
) -> tuple[dict[str, float], list[str]]:
    """The quantities that can be told, and why the others cannot. The second half of the time is the equilibrium."""
    half_ns = (start_ns + end_ns) // 2
    levels = {each.name: each.equilibrium(half_ns, end_ns) for each in told}
    known = {name: level for name, level in levels.items() if level is not None}
    values = {f"processes_{name}": level for name, level in known.items()}
    notes = [f"{name}: too little is known of its processes" for name in levels if name not in known]
    if not notes:
        values["fairness"] = jain(list(known.values()))
        settled_ns = max(each.settled_ns(known[each.name], end_ns) for each in told)
        if settled_ns < half_ns:
            values["settled_s"] = max(0, settled_ns - start_ns) / 1e9
        else:
            notes.append("no equilibrium in the first half of the time: the processes are those of the second")
    answers = [seconds for seconds in answered_s.values() if seconds is not None]
    if len(answers) == len(answered_s):
        values["answered_s"] = max(0.0, max(answers) - _late_s(told, end_ns))
    silent = [who for who, seconds in answered_s.items() if seconds is None]
    return values, notes + [f"{who} gave no answer within {_PATIENCE_S:g} s" for who in silent]


def _late_s(told: Sequence[_Bombed], end_ns: int) -> float:
    """How long after the end of the time the last bomb goes on: it began so late, for want of room beside the first."""
    over_ns = [each.over_ns for each in told if each.over_ns is not None]
    return max(0, max(over_ns, default=end_ns) - end_ns) / 1e9


def _on_our_clock(result: AggressorResult, offset_ns: int) -> list[tuple[int, int]]:
    return [(t_ns - offset_ns, now["processes"]) for t_ns, now in result.series]


def jain(shares: Sequence[float]) -> float:
    """Fairness of shares: 1 where all are equal, 1/n where one has all.

    R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness, DEC-TR-301, 1984: (sum x)^2 / (n sum x^2).
    """
    squares = sum(share**2 for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


class _Outside:
    """Counts the processes of a bomb in an instance from the host, in a thread, for the length of the block: those
    beyond what was there before, less the bomb's supervisor.

    Of a virtual machine it sees none: those are its guest's kernel's. So are gVisor's, for each of which the host has
    several tasks.
    """

    def __init__(self, instance: Instance) -> None:
        payload = instance.accounting.parts.get("payload") if instance.hosts_tasks_each == 1 else None
        self._file = Cgroup(payload, hierarchies()).directory("pids") / "pids.current" if payload else None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)
        self.seen: list[tuple[int, int]] = []

    def __enter__(self) -> _Outside:
        self._before = _read(self._file)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        while self._before is not None and not self._over.wait(_INTERVAL_S):
            count = _read(self._file)
            if count is None:
                return
            self.seen.append((time.monotonic_ns(), max(0, count - self._before - _SUPERVISOR)))


def _read(file: Path | None) -> int | None:
    try:
        return int(file.read_text(encoding="utf-8")) if file is not None else None
    except OSError:
        return None  # the group has gone with its instance


def _answered_s(place: Place, bombed: Sequence[Slice]) -> dict[str, float | None]:
    """By who was asked at one time, after how long they ran a program; None for those who did not in time.

    A near instance that is silent is killed: its agent is of no more use, and its bomb may still be there.
    """
    host = place.client.host
    asked: dict[str, Callable[[], object]] = {"host": lambda: host.run(["true"], timeout_s=_PATIENCE_S)}
    for one in bombed:
        for end, instance in (("near", one.near), ("far", one.far)):
            asked[f"{end} {one.index + 1}"] = lambda instance=instance: _runs(instance)  # type: ignore[misc]
    answers: dict[str, float | None] = dict.fromkeys(asked)
    start = time.monotonic()

    def ask(who: str) -> None:
        with suppress(VirtollError):
            asked[who]()
            answers[who] = time.monotonic() - start

    threads = [threading.Thread(target=ask, args=(who,), daemon=True) for who in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, start + _PATIENCE_S - time.monotonic()))
    answered = dict(answers)
    for one in bombed:
        if answered[f"near {one.index + 1}"] is None:
            one.near.kill()
    return answered


def _runs(instance: Instance) -> None:
    """Run a program inside, as soon as there is room for one."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            instance.agent.run([AGENT, "--version"], timeout_s=_PATIENCE_S)
            return
        except StreamError:
            raise
        except AgentError:  # no room for a process yet
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def _ended(running: Running, patience_s: float, report_s: float) -> AggressorResult:
    """What the bomb did; where its agent does not answer, all of the instance is killed."""
    deadline = time.monotonic() + report_s
    with suppress(AgentError):
        while running.result is None and time.monotonic() < deadline and running.neighbour.agent.alive(running.pid):
            time.sleep(_AGAIN_S)
    result = running.stop(patience_s)
    if result.stopped_by == "host":
        running.neighbour.kill()
    return result


def _refuse_what_never_was(told: Sequence[_Bombed]) -> None:
    for each in told:
        if not each.result.began(Fork.counts[0]):
            raise ProbeError(
                f"the bomb did not go off: {each.result.reason}",
                kind="refused",
                where=f"probe fork-bomb, {each.name}",
                remedy="if the agent knows no aggressors, rebuild it and the image: `make`",
            )


def _lasted(each: _Bombed, half_ns: int, end_ns: int) -> Check:
    """Whether a bomb was there to the end: of one that was not, there is no equilibrium, and no fairness."""
    name, result = f"the bomb in {each.name} lasted its time", each.result
    counts = [count for t_ns, count in each.inside if half_ns <= t_ns <= end_ns]
    if result.stopped_by == "host":
        return Check(name=name, passed=None, detail=f"not known: {result.reason}")
    if result.ended == "refused" or (result.ended == "killed" and result.stopped_by == "itself"):
        return Check(name=name, passed=False, detail=f"it ended before: {result.reason}")
    if len(counts) >= _LEAST_COUNTS and not any(counts):
        return Check(name=name, passed=False, detail="it had no process in the second half of it")
    return Check(name=name, passed=True, detail=f"begun again {result.restarts} times")


def _facts(each: _Bombed) -> dict[str, Any]:
    result = each.result
    return {
        "most_processes": result.settings.get("most-processes"),
        "peak": result.processes_peak,
        "peak_outside": each.outside_peak(),
        "counts": dict(result.counts),
        "restarts": result.restarts,
        "ended": result.ended,
        "stopped_by": result.stopped_by,
    }


def _host_agrees(each: _Bombed) -> Check:
    """The bomb counts itself; a container's processes are the host's, which counts them too."""
    name, seen, peak = f"the host counts as many in {each.name}", each.outside_peak(), each.result.processes_peak
    if seen is None:
        return Check(name=name, passed=None, detail="a guest's processes are its own kernel's: only itself counts them")
    if peak is None:
        return Check(name=name, passed=None, detail=f"{seen} at most; the bomb was killed before it reported")
    # A process that was starved before it counted its child is behind.
    fewer = peak - seen
    return Check(name=name, passed=fewer <= max(_BAND * peak, _BAND_PROCESSES), detail=f"{seen}, the bomb {peak}")
