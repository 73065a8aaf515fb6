"""The proofs of the limits, with the real agent on this machine or one that answers from a script."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from virtoll.agent import ClockOffset, Got, StreamError, StreamTimeoutError
from virtoll.binaries import binary
from virtoll.errors import AgentError, Problem
from virtoll.fakes import FAKE_IMAGE
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, Hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import Site
from virtoll.monitor import Watched
from virtoll.monitor.meters import Row
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.gvisor import HOSTS_TASKS_EACH
from virtoll.platforms.stdio import agent_on_stdio
from virtoll.record.model import ALL_THERE, Arm, Events, Measured, PlannedTrial, Window, all_events
from virtoll.study.limits import Limits
from virtoll.trial import limits, proofs
from virtoll.trial.notes import Notes
from virtoll.trial.watchdog import State

MIB = 1024**2


class Gets:
    """Answers each question for disk or processes with what it was given; an exception is raised. ``held``: the tasks
    that a guest's kernel counts in it.
    """

    def __init__(self, answer: Got | AgentError, held: bytes = b"") -> None:
        self.answer = answer
        self.held = held
        self.asked: list[int] = []

    def get(self, path: str) -> bytes:
        assert path == "/sys/fs/cgroup/instance/pids.current"
        if not self.held:
            raise AgentError("no such file", where="agent")
        return self.held

    def processes(self, count: int) -> Got:
        self.asked.append(count)
        if isinstance(self.answer, AgentError):
            raise self.answer
        return self.answer

    def reserve(self, _directory: str, bytes_: int) -> Got:
        return self.processes(bytes_)


def instance(agent: Any, disk_bytes: int = MIB, pids: int = 1, *, lives: bool = True) -> Instance:
    """An instance of which only the agent, the limits, and whether it lives are looked at."""
    return Instance(
        "fake",
        agent,
        cast(Any, None),
        Accounting("none", Path("/")),
        Limits(disk_bytes=disk_bytes, pids=pids),
        {},
        lambda: lives,
        FAKE_IMAGE,
    )


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the host has left in place of this machine: plenty of all, until a test says otherwise."""
    has = {"available_bytes": 2**40, "total_bytes": 2**40, "tasks": 1, "most_tasks": 10**6, "disk_free_bytes": 2**40}
    monkeypatch.setattr(limits, "look", lambda _directory: State(**cast(Any, has)))
    monkeypatch.setattr(limits, "_held_bytes", lambda _instance: 0)
    return has


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path, lambda _phase: None)


def outcome(notes: Notes) -> tuple[bool | None, str]:
    (check,) = notes.checks
    return check.passed, check.detail


@pytest.mark.parametrize(
    ("answer", "passed", "detail"),
    [
        (Got(2 * MIB, errno.ENOSPC), True, "5 MiB asked for, 2 MiB got: No space left on device"),
        (Got(4 * MIB, errno.EDQUOT), True, "5 MiB asked for, 4 MiB got: Disk quota exceeded"),
        (Got(MIB, errno.ENOSPC), None, "5 MiB asked for, 1 MiB got: No space left on device; that is far below the"),
        (Got(5 * MIB, None), False, "5 MiB asked for, 5 MiB got: nothing was refused"),
        (Got(5 * MIB, errno.ENOSPC), False, "5 MiB asked for, 5 MiB got: No space left on device"),
        (Got(0, errno.EROFS), False, "5 MiB asked for, 0 B got: Read-only file system"),
        (AgentError("reserve: cannot make a file", where="agent"), None, "could not be tried: reserve: "),
    ],
)
def test_the_disk_limit(notes: Notes, answer: Got | AgentError, passed: bool | None, detail: str) -> None:
    agent = Gets(answer)
    limits.of_disk_limit(notes, instance(agent, disk_bytes=4 * MIB))
    assert outcome(notes)[0] is passed
    assert outcome(notes)[1].startswith(detail)
    assert agent.asked == [5 * MIB]


@pytest.mark.parametrize(
    ("answer", "passed", "detail"),
    [
        (Got(6, errno.EAGAIN), True, "10 processes asked for, 6 got: Resource temporarily unavailable"),
        (Got(6, errno.ENOMEM), None, "10 processes asked for, 6 got: Cannot allocate memory"),
        (Got(10, None), False, "10 processes asked for, 10 got: nothing was refused"),
        (AgentError("processes: the stream ended", where="agent"), None, "could not be tried: processes: "),
    ],
)
def test_the_limit_of_processes(notes: Notes, answer: Got | AgentError, passed: bool | None, detail: str) -> None:
    agent = Gets(answer)
    limits.of_pids_limit(notes, instance(agent, pids=8))
    assert outcome(notes)[0] is passed
    assert outcome(notes)[1].startswith(detail)
    assert agent.asked == [10]


@pytest.mark.parametrize(
    ("got", "held", "passed"),
    [
        (10, b"", None),  # by a ulimit, or what else the host has
        (3600, b"", None),
        (3700, b"", True),  # some come and go
        (2090, b"2006\n", True),  # a service has the others
        (2090, b"no number", None),
    ],
)
def test_a_refusal_long_before_the_limit_of_processes_is_somebody_elses(
    notes: Notes, got: int, held: bytes, passed: bool | None
) -> None:
    limits.of_pids_limit(notes, instance(Gets(Got(got, errno.EAGAIN), held), pids=4096))
    assert outcome(notes)[0] is passed
    assert ("something else" in outcome(notes)[1]) is (passed is None)


@pytest.mark.parametrize(("each", "passed"), [(1, True), (HOSTS_TASKS_EACH, True), (0, None)])
def test_what_a_service_has_counts_as_the_host_sees_it(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, each: int, passed: bool | None
) -> None:
    """Of a container its own tasks; of gVisor nobody knows how many; of a virtual machine's the host sees none."""
    monkeypatch.setattr(Cgroup, "tasks", lambda _: 300)
    limits.of_pids_limit(notes, replace(instance(Gets(Got(200, errno.EAGAIN)), pids=512), hosts_tasks_each=each))
    assert outcome(notes)[0] is passed


class Allocates:
    """Answers `allocate` with what it was given; an exception is raised."""

    def __init__(self, answer: dict[str, Any] | AgentError) -> None:
        self.answer = answer

    def allocate(self, _bytes: int) -> dict[str, Any]:
        if isinstance(self.answer, AgentError):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        ({"touched_bytes": MIB, "ended": "killed"}, True),
        ({"touched_bytes": MIB, "ended": "refused"}, True),
        ({"touched_bytes": 5 * MIB, "ended": "complete"}, False),
        (StreamTimeoutError("no answer within 120 s", where="agent"), None),
        (AgentError("cannot fork", where="agent"), None),
    ],
)
def test_the_memory_limit(notes: Notes, answer: dict[str, Any] | AgentError, passed: bool | None) -> None:
    limits.of_memory_limit(notes, instance(Allocates(answer)))
    assert outcome(notes)[0] is passed


@pytest.mark.parametrize(
    ("platform", "passed"), [("docker", None), ("native", None), ("uml", True), ("qemu-tcg", True)]
)
def test_on_the_hosts_kernel_a_refusal_is_not_that_of_a_control_group(
    notes: Notes, platform: str, passed: bool | None
) -> None:
    """That kills; who refuses is the host (vm.overcommit_memory), or a limit of the process. A guest's kernel may."""
    one = replace(instance(Allocates({"touched_bytes": MIB, "ended": "refused"})), platform=platform)
    limits.of_memory_limit(notes, one)
    assert outcome(notes)[0] is passed


@pytest.mark.parametrize(
    ("platform", "had_mib", "passed"),
    [
        ("native", (300, 10), None),  # a container that virtoll is in has 350 MiB in all; or earlyoom came before
        ("native", (480, 10), True),
        ("native", (200, 290), True),  # a service has the rest
        ("native", (300, None), True),  # nobody tells what that has
        ("uml", (300, 10), True),  # of a guest nobody knows what its kernel has taken
    ],
)
def test_an_end_long_before_the_memory_limit_is_somebody_elses(
    notes: Notes,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    had_mib: tuple[int, int | None],
    passed: bool | None,
) -> None:
    """Of 512 MiB. It was told that the memory limit bites, in a valid trial, whoever had killed."""
    touched_mib, kept_mib = had_mib
    monkeypatch.setattr(Cgroup, "kept_bytes", lambda _: None if kept_mib is None else kept_mib * MIB)
    killed = Allocates({"touched_bytes": touched_mib * MIB, "ended": "killed"})
    limits.of_memory_limit(notes, replace(instance(killed), platform=platform))
    assert outcome(notes)[0] is passed
    assert ("something else killed" in outcome(notes)[1]) is (passed is None)


@pytest.mark.parametrize(
    ("version", "file", "told"), [(2, "memory.max", True), (2, "memory.swap.max", False), (1, "memory.max", False)]
)
def test_where_the_kernel_limits_no_swap_that_is_told_of_a_memory_limit_that_does_not_bite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: Literal[1, 2], file: str, told: bool
) -> None:
    """Before Linux 6.1 that is as its distribution has it: each trial was invalid, and nobody said why."""
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / file).touch()
    monkeypatch.setattr(limits, "hierarchies", lambda: Hierarchies(version, {"memory": tmp_path}))
    notes = Notes(tmp_path, lambda _phase: None)
    limits.of_memory_limit(notes, instance(Allocates({"touched_bytes": 640 * MIB, "ended": "complete"})))
    assert outcome(notes)[0] is False
    assert ("swapaccount=1" in outcome(notes)[1]) is told


def test_a_host_that_would_end_first_proves_no_limit_and_is_not_driven_to_it(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, host: dict[str, int]
) -> None:
    """An instance of 512 MiB on a host that has 300 left: its own killer would end who asks, whatever the limit."""
    host |= {"total_bytes": 2**31, "available_bytes": 300 * MIB, "tasks": 900, "most_tasks": 1000, "disk_free_bytes": 0}
    killed = Allocates({"touched_bytes": 290 * MIB, "ended": "killed"})
    limits.of_memory_limit(notes, instance(killed))
    refused = Gets(Got(95, errno.EAGAIN))
    limits.of_pids_limit(notes, instance(refused, pids=100))
    assert [check.passed for check in notes.checks] == [None, None]
    for check, word in zip(notes.checks, ("memory", "tasks"), strict=True):
        assert check.detail.startswith("not tried: with that, the host ")
        assert word in check.detail
    assert refused.asked == []
    monkeypatch.setattr(limits, "_held_bytes", lambda _instance: 500 * MIB)  # nearly all that it may: a guest's own
    host["tasks"] = 1
    notes.checks.clear()
    limits.of_memory_limit(notes, instance(killed))
    limits.of_pids_limit(notes, instance(refused, pids=100))
    assert [check.passed for check in notes.checks] == [True, True]


def test_a_guests_processes_are_none_of_the_hosts(notes: Notes, host: dict[str, int]) -> None:
    """25,000 processes in a virtual machine take none of the 32,768 that the host has; those in a container do. Of
    gVisor's 4,096 each takes several."""
    host |= {"tasks": 300, "most_tasks": 32768}
    for each, pids, asked in ((0, 25000, [31250]), (1, 25000, []), (1, 4096, [5120]), (HOSTS_TASKS_EACH, 4096, [])):
        agent = Gets(Got(pids - 10, errno.EAGAIN))
        limits.of_pids_limit(notes, replace(instance(agent, pids=pids), hosts_tasks_each=each))
        assert agent.asked == asked
    assert [check.passed for check in notes.checks] == [True, None, True, None]


def test_a_large_host_whose_memory_is_huge_pages_has_enough_for_a_small_instance(
    notes: Notes, host: dict[str, int]
) -> None:
    host |= {"total_bytes": 2**40, "available_bytes": 40 * 2**30}
    limits.of_memory_limit(notes, instance(Allocates({"touched_bytes": MIB, "ended": "killed"})))
    assert outcome(notes)[0] is True


@pytest.mark.parametrize(("lives", "passed"), [(False, True), (True, None)])
def test_a_broken_stream_proves_the_memory_limit_only_with_the_instances_end(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, lives: bool, passed: bool | None
) -> None:
    monkeypatch.setattr(proofs, "_END_S", 0.0)
    broken = Allocates(StreamError("the stream has ended", where="agent"))
    limits.of_memory_limit(notes, instance(broken, lives=lives))
    assert outcome(notes)[0] is passed


@pytest.mark.parametrize("passed", [True, False, None])
def test_a_limit_that_was_tried_and_did_not_bite_is_tried_again_alone(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, passed: bool | None
) -> None:
    """A machine at work proves no CPU limit, and each trial filled disk and memory again for that."""
    for name in ("of_cpu_count", "of_disk_limit", "of_memory_limit"):
        monkeypatch.setattr(limits, name, lambda notes, _, name=name: notes.check(NAMES[name], True, ""))
    monkeypatch.setattr(limits, "of_pids_limit", lambda notes, _: notes.check(NAMES["of_pids_limit"], passed, ""))
    proved: limits.Proved = {}
    there, planned = instance(None), PlannedTrial(id="b01-t0001", block=1, position=1, arm=ARM, condition={})
    for _ in range(2):
        limits.prove_on(proved, there, planned, notes)
    again = [] if passed else ["the limit of processes bites"]
    assert [check.name for check in notes.checks] == [*limits.ORDER, *again]


NAMES = dict(zip(("of_cpu_count", "of_disk_limit", "of_pids_limit", "of_memory_limit"), limits.ORDER, strict=True))
ARM = Arm(label="native+host", platform="native", network="host")


@pytest.mark.parametrize(("ns", "passed"), [(600, True), (800, False)])
def test_a_limit_of_all_cpus_is_kept_by_the_machine(notes: Notes, idle: Idle, ns: int, passed: bool) -> None:
    idle(0.0, 2)
    of_both = replace(instance(Burns({"cpu_ns": ns, "wall_ns": 300})), limits=Limits(vcpus=2))
    limits.of_cpu_count(notes, of_both)
    assert outcome(notes)[0] is passed


def test_the_end_of_an_instance_is_no_proof_of_a_limit_that_was_tried_later(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("of_cpu_count", "of_disk_limit"):
        monkeypatch.setattr(limits, name, lambda notes, _: notes.check("one", True, ""))
    ended = Gets(StreamError("the stream has ended", where="agent"))
    assert limits.of_limits(notes, instance(ended, lives=False)) == {"one"}
    assert [check.passed for check in notes.checks[-2:]] == [None, None]
    assert notes.checks[-1].detail == "could not be tried: the instance has ended before"


class Burns:
    """Answers `burn` with what it was given; an exception is raised."""

    def __init__(self, answer: dict[str, int] | AgentError) -> None:
        self.answer = answer
        self.threads = 0

    def burn(self, threads: int, _duration_ms: int) -> dict[str, int]:
        self.threads = threads
        if isinstance(self.answer, AgentError):
            raise self.answer
        return self.answer


Idle = Callable[..., None]


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Idle:
    """Has the host have so many CPUs, of which so many are idle from when an instance is asked to burn for 300 ns until
    its answer is there, which takes so much longer.
    """

    def is_idle(left: float, cpus: int = 4, beside_ns: int = 0) -> None:
        counted_ns = iter((1000, 1000 + round(300 * left)))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cpus)))
        monkeypatch.setattr(os, "cpu_count", lambda: cpus)
        monkeypatch.setattr(limits, "_idle_ns", lambda _cpus: next(counted_ns))
        monkeypatch.setattr(limits, "monotonic_ns", iter([0, 300 + beside_ns]).__next__)

    is_idle(2.0)
    return is_idle


@pytest.mark.parametrize(
    ("answer", "left", "passed"),
    [
        ({"cpu_ns": 310, "wall_ns": 300}, 0.9, True),
        ({"cpu_ns": 600, "wall_ns": 300}, 0.0, False),
        ({"cpu_ns": 600, "wall_ns": 300}, 2.0, False),
        ({"cpu_ns": 444, "wall_ns": 300}, 0.0, None),  # all of two CPUs but what was stolen, or others used
        ({"cpu_ns": 300, "wall_ns": 300}, 0.3, None),
        (AgentError("burn: no thread can be made", where="agent"), 0.9, None),
    ],
)
def test_the_cpu_limit(
    notes: Notes, idle: Idle, answer: dict[str, int] | AgentError, left: float, passed: bool | None
) -> None:
    """Where nobody is kept from anything by others: else an instance without a limit gets no more, either."""
    idle(left, 2)
    limits.of_cpu_count(notes, instance(Burns(answer)))
    assert outcome(notes)[0] is passed


def test_what_stands_idle_before_and_after_an_instance_burns_is_no_room(notes: Notes, idle: Idle) -> None:
    """34 CPUs, of which others use 18 and an instance without a limit the rest; 12 ms of 312 are the answer's way."""
    idle(0.64, 34, beside_ns=12)
    limits.of_cpu_count(notes, replace(instance(Burns({"cpu_ns": 4800, "wall_ns": 300})), limits=Limits(vcpus=16)))
    assert outcome(notes)[0] is None


@pytest.mark.parametrize(("ns", "passed"), [(300, None), (900, False)])
def test_a_limit_of_all_cpus_that_virtoll_may_use_is_not_the_machines(
    notes: Notes, idle: Idle, monkeypatch: pytest.MonkeyPatch, ns: int, passed: bool | None
) -> None:
    """By `taskset -c 0 virtoll ...`: one thread was tried, which cannot exceed one CPU, and passed for a proof."""
    idle(0.0, 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    agent = Burns({"cpu_ns": ns, "wall_ns": 300})
    limits.of_cpu_count(notes, instance(agent))
    assert (outcome(notes)[0], agent.threads) == (passed, 3)


@pytest.mark.parametrize(("group", "idle_ticks"), [("", 90), ("0", 90), ("1", 590)])
def test_what_loops_that_give_way_take_is_to_be_had(
    group: str, idle_ticks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that `virtoll tune awake` keeps awake nothing is idle, and no limit was ever proved; nor was any
    where its loops were on some CPUs alone. ``group``: whether theirs is idle, where there is one.
    """
    if group:
        (tmp_path / "virtoll-awake-12ab").mkdir()
        (tmp_path / "virtoll-awake-12ab/cpu.idle").write_text(f"{group}\n")
    real = Path.read_text

    def read_text(path: Path, *given: Any, **named: Any) -> str:
        return "cpu0 7 500 7 80 10 0 0\n" if str(path) == "/proc/stat" else real(path, *given, **named)

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(limits, "hierarchies", lambda: Hierarchies(1, {"cpu": tmp_path}))
    assert limits._idle_ns({0}) == idle_ticks * 10**9 // os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("cpus", "threads"), [(2, 2), (3, 3), (64, 3)])
def test_twice_the_cpu_limit_is_asked_for_as_far_as_the_host_has_it(
    notes: Notes, idle: Idle, cpus: int, threads: int
) -> None:
    """Of a single thread more, a hypervisor that takes 3 % of 64 CPUs leaves 16 vCPUs without a limit at 16.5."""
    idle(cpus - 1, cpus)
    agent = Burns({"cpu_ns": 300, "wall_ns": 300})
    limits.of_cpu_count(notes, instance(agent))
    assert agent.threads == threads
    assert outcome(notes) == (True, f"{threads} busy threads got 1.00 CPU")


def test_who_stands_idle_is_counted_by_the_host() -> None:
    before_ns = limits._idle_ns(os.sched_getaffinity(0))
    assert before_ns > 0
    assert limits._idle_ns(os.sched_getaffinity(0)) >= before_ns
    assert limits._idle_ns(set()) == 0


@pytest.mark.parametrize(
    ("counted", "passed"), [((1000, 1310), True), ((1000, 1600), False), ((None, 1600), None), ((1000, None), None)]
)
def test_the_cpu_limit_of_a_kernel_that_does_not_count_is_as_the_host_counts(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, idle: Idle, counted: tuple[int | None, ...], passed: bool | None
) -> None:
    idle(1.0, 2)
    told = iter(counted)
    monkeypatch.setattr(limits, "_counted_by_host_ns", lambda _: next(told))
    limits.of_cpu_count(notes, replace(instance(Burns({"cpu_ns": 600, "wall_ns": 300})), counts_cpu_time=False))
    assert outcome(notes)[0] is passed


ROW = (0, "instance", "cpu.usage_ns", 1)


@pytest.mark.parametrize(
    ("outside", "inside", "dropped", "passed"),
    [
        ([ROW], [ROW], 0, True),
        ([ROW], None, 0, True),  # nobody was asked to look inside
        ([ROW], [ROW], 1, False),
        ([ROW], [], 0, False),
        ([], [ROW], 0, False),
        ([], None, 0, False),
    ],
)
def test_watching_without_a_sample_is_no_watching(
    notes: Notes, outside: list[Row], inside: list[Row] | None, dropped: int, passed: bool
) -> None:
    still = ClockOffset(0, 0)
    proofs.of_watching(notes, Watched(outside, inside, still, still, 10**9, 0, dropped, {}))
    assert outcome(notes)[0] is passed


def test_of_an_instance_that_answers_no_more_it_is_not_said_that_nobody_looked_inside(notes: Notes) -> None:
    """Samples were asked for, and went with the victim: "none asked for inside" stood in its record."""
    proofs.of_watching(notes, Watched([ROW], None, ClockOffset(0, 0), None, 10**9, 0, 0, {}))
    assert outcome(notes)[1] == "1 values outside, none inside, 0 ticks late, 0 dropped"


def test_the_clock_of_an_instance_that_answers_no_more_is_not_known(notes: Notes) -> None:
    proofs.of_clock(notes, Watched([ROW], None, ClockOffset(0, 0), None, 10**9, 0, 0, {}))
    assert outcome(notes)[0] is None


def watched(**cpus: float) -> Watched:
    """One second in which each source used so many CPUs."""
    still = ClockOffset(0, 0)
    rows = [(t, name, "cpu.usage_ns", round(t * used)) for name, used in cpus.items() for t in (0, 10**9)]
    return Watched(rows, [], still, still, 10**9, 0, 0, {})


@pytest.mark.parametrize(
    ("seen", "origin_cpus", "told"),
    [
        (watched(generator=0.5, origin=0.4), {1}, [(False, "origin and generator used 90% of 1 CPU")]),
        (watched(generator=0.5, origin=0.2), {1}, [(True, "origin and generator used 70% of 1 CPU")]),
        (watched(generator=0.5, origin=0.4), {2}, [(True, "origin used 40% of 1 CPU")]),
        (watched(generator=0.5), {1}, [(None, "origin: the host's accounting could not be read")]),
        (watched(origin=0.5), {1}, [(None, "generator: the host's accounting could not be read")]),
    ],
)
def test_an_origin_that_was_the_limit_is_told(
    notes: Notes, seen: Watched, origin_cpus: set[int], told: list[tuple[bool | None, str]]
) -> None:
    proofs.of_origin(notes, seen, site(*origin_cpus), site(1), [window(0, 10**9)])
    assert [(check.passed, check.detail) for check in notes.checks] == told


def site(*cpus: int) -> Site:
    return Site(LocalHost(), "n", "198.18.2.2", frozenset(cpus))


def window(start_ns: int, end_ns: int) -> Window:
    return Window(start_ns=start_ns, duration_ns=end_ns - start_ns, work=1)


def busy_until(end_s: float, watched_s: int, source: str) -> Watched:
    """A source that used one CPU until then, and none after; a sample a second."""
    still = ClockOffset(0, 0)
    rows = [(s * 10**9, source, "cpu.usage_ns", round(min(s, end_s) * 10**9)) for s in range(watched_s + 1)]
    return Watched(rows, [], still, still, watched_s * 10**9, 0, 0, {})


def test_what_is_watched_after_the_window_dilutes_no_proof(notes: Notes) -> None:
    """Ten seconds at the limit, and five of drain or of a neighbour's teardown: 100 %, not 67 %."""
    proofs.of_origin(notes, busy_until(10, 15, "origin"), site(2), site(1), [window(0, 10 * 10**9)])
    assert outcome(notes) == (False, "origin used 100% of 1 CPU")
    seen = busy_until(10, 15, "instance")
    seen.outside[:] = [(t_ns, source, counter, 2 * used) for t_ns, source, counter, used in seen.outside]  # two CPUs
    proofs.of_cpu_limit(notes, instance(None), seen, [window(0, 10 * 10**9)])
    assert (notes.checks[1].passed, notes.checks[1].detail) == (False, "2.00 of 1 CPU used")


@pytest.mark.parametrize(("busy", "told"), [(1.9, (False, "1.90 of 1 CPU used")), (1.08, (True, "1.08 of 1 CPU used"))])
def test_what_was_asked_for_little_dilutes_no_proof_of_the_limit(
    notes: Notes, busy: float, told: tuple[bool, str]
) -> None:
    """A search: nine windows of a few users, and one at the knee, at either end of which a quota's period was cut."""
    still = ClockOffset(0, 0)
    used_s = [0.2 * min(t_s, 9) + busy * max(0, t_s - 9) for t_s in range(11)]
    rows = [(t_s * 10**9, "instance", "cpu.usage_ns", round(each * 10**9)) for t_s, each in enumerate(used_s)]
    seen = Watched(rows, [], still, still, 10 * 10**9, 0, 0, {})
    windows = [
        window(t_s * 10**9, (t_s + 1) * 10**9).model_copy(update={"at": 9.0 if t_s == 9 else 1.0}) for t_s in range(10)
    ]
    proofs.of_cpu_limit(notes, instance(None), seen, windows)
    assert outcome(notes) == told


def test_what_one_intensity_took_and_nobody_saw_proves_nothing(notes: Notes) -> None:
    few = [window(t_s * 10**9, (t_s + 1) * 10**9).model_copy(update={"at": 1.0}) for t_s in range(10)]
    many = window(10 * 10**9, 10_400_000_000).model_copy(update={"at": 9.0})
    proofs.of_cpu_limit(notes, instance(None), busy_until(1, 10, "instance"), [*few, many])
    assert outcome(notes) == (None, "0.10 of 1 CPU used; at 9: samples cover only 0% of the window")


def test_a_lead_in_dilutes_no_proof_but_the_instances_own_that_is_known_whole() -> None:
    """15 s in which the measured load alone leads in, and 10 s in which all are at work."""
    still, end_ns = ClockOffset(0, 0), 25 * 10**9
    rows = [
        (t_s * 10**9, name, "cpu.usage_ns", round((0.1 * min(t_s, 15) + 1.9 * max(0, t_s - 15)) * 10**9))
        for name in ("generator", "instance")
        for t_s in range(26)
    ]
    seen = Watched(rows, [], still, still, end_ns, 0, 0, {})
    led = window(15 * 10**9, end_ns).model_copy(update={"asked_ns": 0, "served": 1.0})
    assert proofs.cpus_used(seen, "generator", [led]) == pytest.approx(1.9)
    assert proofs.cpus_used(seen, "instance", [led]) == pytest.approx((1.5 + 19) / 25)


def test_the_windows_ends_lie_between_samples(notes: Notes) -> None:
    proofs.of_origin(notes, busy_until(2, 4, "origin"), site(2), site(1), [window(500_000_000, 3_500_000_000)])
    assert outcome(notes) == (True, "origin used 50% of 1 CPU")


@pytest.mark.parametrize(
    ("during", "told"),
    [
        (window(0, 5 * 10**9), "samples cover only 80% of the window"),
        (window(6 * 10**9, 7 * 10**9), "samples cover only 0% of the window"),
        (window(10**9, 10**9), "the window has no length: all requests were sent at once"),
    ],
)
def test_samples_that_do_not_hold_the_window_prove_nothing(notes: Notes, during: Window, told: str) -> None:
    proofs.of_cpu_limit(notes, instance(None), busy_until(2, 4, "instance"), [during])
    assert outcome(notes) == (None, told)


def test_no_limits_on_this_machine_are_told(notes: Notes, tmp_path: Path) -> None:
    """The real agent, where nothing is refused: it gets all it asks for, and leaves nothing behind."""
    before = set(Path("/var/tmp").glob(".virtoll-reserve*"))
    argv = [str(binary("virtoll-agent")), "serve"]
    here = agent_on_stdio(LocalHost(), argv, log=tmp_path / "log", confinement=Confinement(), platform="here")
    with here as (agent, process):
        there = instance(agent, disk_bytes=4 * MIB, pids=20)
        limits.of_disk_limit(notes, there)
        limits.of_pids_limit(notes, there)
        limits.of_cpu_count(notes, there)
        assert Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text() == ""
    assert not notes.checks[-1].passed, "others may use the CPUs: then it is not told"
    assert [(check.passed, check.detail) for check in notes.checks[:-1]] == [
        (False, "5 MiB asked for, 5 MiB got: nothing was refused"),
        (False, "25 processes asked for, 25 got: nothing was refused"),
    ]
    assert set(Path("/var/tmp").glob(".virtoll-reserve*")) <= before


# -- of answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problems", "passed", "told"),
    [
        ([], True, "as it should"),
        ([Problem("status 500"), Problem("no body")], False, "status 500; no body"),
        (None, None, "not asked: there is no question that any such service answers"),
    ],
)
def test_what_was_not_asked_did_not_answer_correctly(
    notes: Notes, problems: list[Problem] | None, passed: bool | None, told: str
) -> None:
    proofs.of_answers(notes, "before", problems)
    assert outcome(notes) == (passed, told)


# -- of what was asked ------------------------------------------------------------------------------------


def driven(work: float, loop: Literal["closed", "open"], **told: Any) -> Measured:
    """What a load made of a second."""
    during = Window(start_ns=0, duration_ns=10**9, work=work, **told)
    return Measured(name="own", instrument="bench", unit="visit", loop=loop, windows=[during])


@pytest.mark.parametrize(
    ("work", "passed", "told"),
    [(1, None, "1 done; the load does not tell"), (0, False, "0 done; the load does not tell")],
)
def test_work_is_no_proof_of_answers_where_nobody_tells_what_failed(
    notes: Notes, work: float, passed: bool | None, told: str
) -> None:
    proofs.of_requests(notes, driven(work, "closed"))
    assert outcome(notes)[0] is passed
    assert outcome(notes)[1].startswith(told)


@pytest.mark.parametrize(("failed", "passed"), [(0, True), (1, True), (2, False)])
def test_where_it_is_told_one_of_a_hundred_may_fail(notes: Notes, failed: int, passed: bool) -> None:
    events = Events(
        intended=100, offered=100, completed=100 - failed, failures={"unspecified": failed}, censored=failed
    )
    proofs.of_requests(notes, driven(100 - failed, "closed", events={"visit": events}))
    assert outcome(notes)[0] is passed


@pytest.mark.parametrize(
    ("early", "failed", "passed"), [(100, 1, True), (100, 2, False), (1, 1, False), (400, 4, True)]
)
def test_of_what_was_sent_in_the_lead_in_as_many_may_fail(notes: Notes, early: int, failed: int, passed: bool) -> None:
    events = Events(
        intended=100,
        offered=100,
        completed=99,
        failures={"timeout": 1},
        censored=1,
        early=early,
        early_failures={"timeout": failed},
    )
    both = [events, events.model_copy(update={"early": 0, "early_failures": {}})]
    assert (all_events(both).early, all_events(both).early_failures) == (early, {"timeout": failed})
    proofs.of_requests(notes, driven(99, "closed", events={"visit": events}))
    assert outcome(notes)[0] is passed
    assert outcome(notes)[1].endswith(f"; of {early} that were sent before it {failed} timeout")


@pytest.mark.parametrize(
    ("failures", "passed"), [({}, True), ({"timeout": 90}, True), ({"content": 1}, True), ({"reset": 2}, False)]
)
def test_views_may_end_of_waiting_and_of_nothing_else(
    notes: Notes, failures: dict[str, int], passed: bool | None
) -> None:
    begun = Events(intended=100, offered=100, completed=100, failures={}, censored=0)
    views = begun.model_copy(update={"failures": failures})
    proofs.of_requests(notes, driven(100, "open", events={"visit": begun, "view": views}))
    assert [(check.name, check.passed) for check in notes.checks] == [
        ("visits were answered", True),
        ("views went on", passed),
    ]


@pytest.mark.parametrize(("lost", "passed"), [(0, True), (1, True), (2, False)])
def test_participants_who_were_in_stay(notes: Notes, lost: int, passed: bool) -> None:
    """All had joined well, and a server that then threw them out had a valid trial, or left `--target` with 0."""
    joins = Events(intended=100, offered=100, completed=100, failures={}, censored=0)
    stays = joins.model_copy(update={"failures": {"connection lost": lost}, "completed": 100 - lost, "censored": lost})
    proofs.of_requests(notes, driven(100, "open", events={"visit": joins, "stay": stays}))
    assert [(check.name, check.passed) for check in notes.checks] == [
        ("visits were answered", True),
        ("participants stayed", passed),
    ]
    assert notes.checks[1].detail == f"of 100 who were in: {f'{lost} connection lost' if lost else 'none was lost'}"


@pytest.mark.parametrize(
    ("values", "stalls", "held"),
    [
        ({"stalled_percent": 0.0, "watching_percent": 100.0}, 0, True),
        ({"stalled_percent": 100.0}, 0, False),  # all hung in one that began before
        ({"stalled_percent": 0.0, "watching_percent": 97.0}, 0, False),
        ({"waiting_percent": 1.0}, 0, False),
        ({"jitter_ms": 3.0}, 0, False),
        ({"stalled_percent": 0.0}, 1, False),
    ],
)
def test_who_reads_too_late_proves_nothing_of_what_is_worse_for_it(
    notes: Notes, values: dict[str, float], stalls: int, held: bool
) -> None:
    counts = {"wakes": 100, "wakes_late": 2, "stalls": stalls}
    measured = driven(100, "open", values=values, counts=counts)
    proofs.of_generator(notes, measured, 1)
    assert {check.name: check.passed for check in notes.checks}["the generator read in time"] is held
    assert not proofs.read_too_late(measured.window.model_copy(update={"counts": counts | {"wakes_late": 1}}))


def test_views_that_broke_off_as_the_generator_read_too_late_do_not_blame_the_service_alone(notes: Notes) -> None:
    """Live media that were left out meanwhile are a leap of their timestamps to who comes to read after seconds."""
    begun = Events(intended=100, offered=100, completed=98, failures={"timestamps": 2}, censored=0)
    counts = {"wakes": 100, "wakes_late": 2, "stalls": 0}
    measured = driven(
        100, "open", values={"stalled_percent": 0.0}, counts=counts, events={"visit": begun, "view": begun}
    )
    proofs.of_generator(notes, measured, 1)
    assert {check.name: check.passed for check in notes.checks}["the generator read in time"] is False
    timeless = begun.model_copy(update={"failures": {"timeout": 2}})
    patient = measured.window.model_copy(update={"events": {"view": timeless}})
    assert not proofs.read_too_late(patient)


@pytest.mark.parametrize(("wakes", "sends"), [((100, 2), (10_000, 0)), ((10_000, 0), (100, 2))])
def test_who_reads_and_who_publishes_are_judged_each_by_itself(
    notes: Notes, wakes: tuple[int, int], sends: tuple[int, int]
) -> None:
    """One sends for each frame, the other looks up now and then: one in time must not hide that the other was late."""
    counts = {"wakes": wakes[0], "wakes_late": wakes[1], "sends": sends[0], "sends_late": sends[1], "stalls": 0}
    measured = driven(100, "open", values={"media_age_ms": 20.0}, counts=counts)
    proofs.of_generator(notes, measured, 1)
    check = {check.name: check for check in notes.checks}["the generator read in time"]
    assert check.passed is False
    assert check.detail.endswith(f"0 stalls; {sends[1]} of {sends[0]} times something was sent as late")
    does = "read" if wakes[1] else "sent"
    assert proofs.read_too_late(measured.window) == f"2 of 100 times it {does} more than 10 ms late"


def test_what_is_asked_in_rounds_is_proved_of_rounds(notes: Notes) -> None:
    events = Events(intended=10, offered=10, completed=10, failures={}, censored=0, late=0)
    measured = driven(160, "open", events={"round": events}, cpu_ns=1).model_copy(update={"request": "round"})
    proofs.of_generator(notes, measured, 1)
    proofs.of_requests(notes, measured)
    assert {check.passed for check in notes.checks} == {True}
    assert notes.checks[0].detail == "10 of 10 rounds sent"
    assert (notes.checks[-1].name, notes.checks[-1].detail) == (
        "rounds were answered",
        "10 of 10 completed; none failed",
    )


def test_a_schedule_that_nobody_tells_is_not_known_to_have_been_kept(notes: Notes) -> None:
    proofs.of_generator(notes, driven(100, "open", cpu_ns=1), 1)
    assert [(check.name, check.passed) for check in notes.checks] == [
        ("offered load met intended", None),
        ("the generator kept its schedule", None),
        ("the generator had headroom", True),
    ]


@pytest.mark.parametrize(
    ("cpu_span_ns", "told"),
    [(None, "used 90% of 1 CPU"), (10**9, "used 90% of 1 CPU"), (2 * 10**9, "used at most 90% of 1 CPU")],
)
def test_all_of_a_programs_cpu_time_may_have_been_used_within_its_window(
    notes: Notes, cpu_span_ns: int | None, told: str
) -> None:
    """45 % over its two seconds prove no headroom in the one of them that was measured."""
    proofs.of_generator(notes, driven(1, "closed", cpu_ns=9 * 10**8, cpu_span_ns=cpu_span_ns), 1)
    assert outcome(notes) == (False, told)


@pytest.mark.parametrize(
    ("cpu_s", "generator_cpus", "held", "told"),
    [
        (1.0, 2, True, "used 50% of 2 CPU"),
        (1.0, 1, False, "used 100% of 1 CPU"),
        (0.7, None, True, "used 70% of 1 CPU"),
        (1.0, None, None, "used 100% of 1 CPU, and whether it could use more is not known"),
    ],
)
def test_headroom_is_proved_within_one_cpu_where_nobody_knows_whether_more_can_be_used(
    notes: Notes, cpu_s: float, generator_cpus: int | None, held: bool | None, told: str
) -> None:
    proofs.of_generator(notes, driven(1, "closed", cpu_ns=round(cpu_s * 10**9)), generator_cpus)
    assert outcome(notes) == (held, told)


@pytest.mark.parametrize(
    ("loop", "share", "busy", "held"),
    [
        ("closed", 0.9, 0.99, True),  # the instance had no more to give, and so set the pace
        ("closed", 0.9, 0.9, False),
        ("closed", 0.97, 1.0, False),  # both were at their ends
        ("closed", 0.9, "not sampled", False),
        ("open", 0.9, 1.0, False),  # a schedule is kept, or is not
    ],
)
def test_a_generator_with_little_left_may_drive_one_that_has_nothing_left(
    notes: Notes, loop: Literal["open", "closed"], share: float, busy: float | str, held: bool
) -> None:
    proofs.of_generator(notes, driven(1, loop, cpu_ns=round(share * 10**9)), 1, busy)
    assert [check.passed for check in notes.checks if check.name == "the generator had headroom"] == [held]


@pytest.mark.parametrize(("starting_ms", "held"), [(200, True), (201, False)])
def test_a_closed_loop_whose_users_are_still_to_come_is_lighter_than_the_one_asked_for(
    notes: Notes, starting_ms: int, held: bool
) -> None:
    counts = {"starting_ms": starting_ms, "there_ms": 10_000}
    measured = driven(1, "closed", cpu_ns=1, counts=counts)
    proofs.of_generator(notes, measured, 1)
    check = next(check for check in notes.checks if check.name == ALL_THERE)
    assert check.passed is held
    assert check.detail.startswith(f"for {starting_ms} of 10,000 ms users had no answer yet")
    assert ("a longer [rotation] lead_in" in check.detail) is not held
    assert proofs.some_were_not_there(measured.window) is not held


# -- of life ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "passed", "told"),
    [
        (None, True, "asked after the window"),
        (3, False, "it ended with code 3; see the trial's log.txt"),
        (-9, False, "it ended by signal 9 (Killed); see the trial's log.txt"),
    ],
)
def test_a_service_that_was_ready_and_died_makes_the_trial_invalid(
    tmp_path: Path, code: int | None, passed: bool, told: str
) -> None:
    """Also one that nobody can ask over its protocol."""
    agent = SimpleNamespace(returncode={7: code}.__getitem__)
    instance: Any = SimpleNamespace(platform="fake", is_running=lambda: True, agent=agent, services={"own": 7})
    notes = Notes(tmp_path, lambda _name: None)
    proofs.of_life(notes, instance, "own")
    assert [(check.name, check.passed) for check in notes.checks] == [
        ("the instance lived to the end", True),
        ("own lived to the end", passed),
    ]
    assert notes.checks[-1].detail == told


def test_a_probes_own_server_has_ended_and_that_is_no_failure(tmp_path: Path) -> None:
    agent = SimpleNamespace(returncode={7: -9}.__getitem__)
    instance: Any = SimpleNamespace(platform="fake", is_running=lambda: True, agent=agent, services={"peer": 7})
    notes = Notes(tmp_path, lambda _name: None)
    assert proofs.of_life(notes, instance)
    assert [(check.name, check.passed) for check in notes.checks] == [("the instance lived to the end", True)]


def test_an_instance_that_died_is_asked_for_nothing_more(tmp_path: Path) -> None:
    instance: Any = SimpleNamespace(platform="fake", is_running=lambda: False, agent=None, services={"own": 7})
    notes = Notes(tmp_path, lambda _name: None)
    proofs.of_life(notes, instance, "own")
    assert [(check.name, check.passed) for check in notes.checks] == [("the instance lived to the end", False)]


# -- of what really runs ----------------------------------------------------------------------------------

RUNS = {"argv": ["shop"], "cwd": "/srv", "uid": 1500, "groups": [], "environment": {"A": "1", "B": "2"}}


@pytest.mark.parametrize(
    ("other", "passed", "told"),
    [
        ({}, True, "argv, user, groups, directory and environment, as far as they can be seen"),
        ({"cwd": None, "environment": None}, True, "argv, user, groups, directory and environment, as far as"),
        ({"uid": 0}, False, "uid is 0, not 1500"),
        ({"argv": ["shop", "-x"], "groups": [6]}, False, "argv is ['shop', '-x'], not ['shop']; groups is [6], not []"),
        ({"environment": {"A": "1", "C": "3"}}, False, "environment differs in B, C"),
    ],
)
def test_a_service_runs_as_it_does_on_the_other_arms(
    tmp_path: Path, other: dict[str, Any], passed: bool, told: str
) -> None:
    notes = Notes(tmp_path, lambda _name: None)
    proofs.of_process(notes, RUNS | other, "native+host", RUNS)
    (check,) = notes.checks
    assert (check.name, check.passed) == ("it runs as on native+host", passed)
    assert check.detail.startswith(told)


def test_a_file_that_changed_in_the_middle_of_a_run_is_told(notes: Notes) -> None:
    proofs.of_files(notes, {}, {"/etc/a": "1"})
    assert notes.checks == []
    proofs.of_files(notes, {"/etc/a": "1", "/etc/b": "2"}, {"/etc/a": "0 or 1", "/etc/b": "2"})
    assert outcome(notes) == (True, "2 compared")
    proofs.of_files(notes, {"/etc/a": "1", "/etc/b": "3"}, {"/etc/a": "1 or 2", "/etc/b": "2"})
    assert (notes.checks[1].passed, notes.checks[1].detail) == (False, "changed since the run began: /etc/b")
