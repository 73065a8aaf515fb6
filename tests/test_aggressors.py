"""Aggressors: what their logs say, what is refused, and real bombs in real instances, of which nothing is left."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import contract
from contract import deployed, nothing_left
from leaks import snapshot
from network_place import own_ports
from virtoll.agent.base import StreamError
from virtoll.aggressors import base
from virtoll.aggressors.base import Aggressor, AggressorError, Place, aggressors
from virtoll.aggressors.cache import Cache, CacheCaps
from virtoll.aggressors.cpu import Cpu
from virtoll.aggressors.disk import Disk, DiskCaps
from virtoll.aggressors.fork import Fork, ForkCaps
from virtoll.aggressors.memory import Memory, MemoryCaps
from virtoll.aggressors.net_receive import NetReceive, ReceiveCaps
from virtoll.aggressors.net_send import FloodCaps, NetSend
from virtoll.aggressors.polite import Polite, PoliteCaps
from virtoll.aggressors.result import AggressorResult, parse
from virtoll.aggressors.running import Running
from virtoll.aggressors.timer import Timer, TimerCaps
from virtoll.binaries import binary
from virtoll.errors import AgentError, HostError
from virtoll.fakes import FAKE_IMAGE
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import Lab
from virtoll.lab.client import Client
from virtoll.networks.base import Attachment
from virtoll.platforms.base import Accounting, Instance, Platform
from virtoll.platforms.lxc import Lxc
from virtoll.platforms.native import Native
from virtoll.platforms.stdio import agent_on_stdio
from virtoll.study.limits import Limits

FIXTURES = Path(__file__).parent / "fixtures" / "aggressors"
MIB = 1024**2
FOR_LONG_NS = 900 * 10**9  # longer than whoever waits for what it does
BRIEFLY_NS = 200 * 10**6
PATIENCE_S = 600.0


_HELD = ExitStack()  # until this process ends
PORT = _HELD.enter_context(own_ports())


@pytest.fixture(autouse=True)
def has_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr("virtoll.aggressors.running._GRACE_S", PATIENCE_S)


# Within caps so small that none is a bomb where nothing limits this test.
TAME: list[Aggressor] = [
    Cache(CacheCaps(threads=1, block_bytes=MIB)),
    Disk(DiskCaps(most_bytes=2 * MIB)),
    Fork(ForkCaps(most_processes=8)),
    Memory(MemoryCaps(most_bytes=4 * MIB)),
    NetReceive(ReceiveCaps(port=PORT, rate_bit_per_s=10**6)),
    NetSend(FloodCaps(rate_bit_per_s=10**6)),
    Polite(),
    Timer(TimerCaps(threads=2)),
]


def fixture(name: str, aggressor: str) -> AggressorResult:
    return parse(aggressor, (FIXTURES / f"{name}.log").read_bytes())


def test_a_log_with_a_report() -> None:
    result = fixture("fork_at_its_limit", "fork")
    assert (result.ended, result.reason, result.began(Fork.counts[0])) == ("time", "", True)
    assert (result.processes_peak, result.counts["forks"]) == (59, 58)
    assert result.settings["most-processes"] == 1000
    assert result.start_ns is not None
    assert result.end_ns is not None
    times_ns = [t_ns for t_ns, _ in result.series]
    assert times_ns == sorted(times_ns)
    assert result.start_ns <= times_ns[0] <= times_ns[-1] <= result.end_ns
    assert set(result.series[-1][1]) == {*Fork.counts, "processes", "restarts"}
    assert result.series[-1][1]["processes"] == 59


def test_a_log_of_one_that_was_killed_and_began_again() -> None:
    result = fixture("memory_killed", "memory")
    assert result.restarts == len(result.killed_by) > 0
    assert set(result.killed_by) == {9}
    assert result.counts["touched_bytes"] > 64 * MIB > result.counts["held_bytes"]


def test_a_log_that_ends_in_the_middle_of_a_line() -> None:
    result = fixture("timer_killed", "timer")
    assert (result.ended, result.end_ns, result.processes_peak) == ("killed", None, None)
    assert result.began(Timer.counts[0])
    assert result.counts == {key: result.series[-1][1][key] for key in Timer.counts}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("fork_refused", "the first process cannot be made: Resource temporarily"), ("misused", "there is no --most")],
)
def test_a_log_of_one_that_was_refused(name: str, reason: str) -> None:
    result = fixture(name, "fork")
    assert (result.ended, result.began(Fork.counts[0])) == ("refused", False)
    assert reason in result.reason


def test_an_empty_log() -> None:
    assert parse("cpu", b"") == AggressorResult("cpu", "refused", "it ended before it said anything")


REPORT: dict[str, Any] = {
    "aggressor": "cpu", "ended": "time", "refused": None, "restarts": 0, "killed_by": [], "counts": {"cpu_ns": 1},
    "processes_peak": 1, "settings": {}, "start_ns": 1, "end_ns": 2,
}  # fmt: skip
LINE = {"t_ns": 1, "processes": 1, "restarts": 0, "counts": {"cpu_ns": 1}}


def log_of(told: Mapping[str, Any], **other: Any) -> bytes:
    """A log of one line, in which something is otherwise; without it where it is ``...``."""
    return json.dumps({key: value for key, value in {**told, **other}.items() if value is not ...}).encode() + b"\n"


WRONG = [
    *(log_of(REPORT, **{key: value}) for key in REPORT if key != "aggressor" for value in (-1, [None], 1.5)),
    *(log_of(REPORT, **{key: ...}) for key in ("ended", "counts", "settings", "start_ns", "end_ns", "killed_by")),
    *(log_of(LINE, **{key: value}) for key in LINE for value in (-1, "x", 2**63, None)),
    log_of(REPORT, ended="killed"),
    log_of(REPORT, counts={"cpu_ns": 2**63}),
    log_of(REPORT, settings={"a": {"b": 1}}),
    log_of(LINE, counts=...),
]


@pytest.mark.parametrize("log", WRONG)
def test_a_log_that_is_none_says_so(log: bytes) -> None:
    with pytest.raises(AgentError, match="not an answer"):
        parse("cpu", log)


def test_what_a_log_test_starts_from_is_one() -> None:
    assert parse("cpu", log_of(LINE) + log_of(REPORT)).ended == "time"
    assert parse("cpu", b"[" * 100_000).ended == "refused"
    assert len(parse("cpu", b"x" * 100_000).reason) < 5_000
    assert parse("cpu", log_of(LINE)).reason == "it was gone, and had written no report"


@pytest.mark.parametrize("log", [log_of(REPORT, counts=None), log_of(LINE, t_ns="now")])
def test_a_log_that_is_none_is_the_reason_and_no_silence(
    place: Place, monkeypatch: pytest.MonkeyPatch, log: bytes
) -> None:
    running = Polite().start(place, FOR_LONG_NS)
    monkeypatch.setattr(place.neighbour.agent, "get", lambda _path: log)
    result = running.stop(PATIENCE_S)
    assert (result.ended, result.stopped_by) == ("killed", "host")
    assert "not an answer" in result.reason
    assert not place.neighbour.agent.alive(running.pid)


def test_an_error_of_our_own_is_passed_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Polite().start(place, FOR_LONG_NS)

    def broken(_path: str) -> bytes:
        raise OSError("no memory")

    monkeypatch.setattr(place.neighbour.agent, "get", broken)
    with pytest.raises(OSError, match="no memory"):
        running.stop(PATIENCE_S)
    assert not place.neighbour.agent.alive(running.pid)


def test_a_floods_log_that_is_none_is_its_reason(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    running = NetReceive(ReceiveCaps(port=PORT, rate_bit_per_s=10**6)).start(place, FOR_LONG_NS)
    assert running.flood is not None
    running.flood._log = place.client.directory / "another.log"
    running.flood._log.write_bytes(log_of(REPORT, counts=None))
    result = running.stop(PATIENCE_S)
    assert result.stopped_by == "agent"
    assert result.flood is not None
    assert "not an answer" in result.flood.reason


def test_they_are_found_by_their_names() -> None:
    found = aggressors()
    assert list(found) == ["cache", "cpu", "disk", "fork", "memory", "net-receive", "net-send", "polite", "timer"]
    for cls in found.values():
        assert cls.summary
        assert cls.counts
        assert cls().check(Limits()) == []  # the default caps fit the default limits


@pytest.mark.parametrize(
    ("aggressor", "expected"),
    [
        (Cache(CacheCaps(threads=8)), "it holds 512 MiB, and [limits] memory leaves 256 MiB"),
        (Disk(DiskCaps(most_bytes=1024 * MIB)), "choose at most 768 MiB"),
        (Polite(PoliteCaps(held_bytes=1024 * MIB)), "it holds 1 GiB"),
        (Timer(TimerCaps(threads=500)), "500 threads are more than [limits] pids leaves (496)"),
    ],
)
def test_what_does_not_fit_is_refused_beforehand(aggressor: Aggressor, expected: str) -> None:
    assert any(expected in str(problem) for problem in aggressor.check(Limits()))


@pytest.mark.parametrize("aggressor", [Cpu(), Cache(CacheCaps(block_bytes=MIB))], ids=["cpu", "cache"])
def test_a_thread_for_each_cpu_is_refused_where_processes_are_too_few(aggressor: Aggressor) -> None:
    """Of 64 CPUs and 64 processes some 50 had a thread, and what that took of others was told as of all of them."""
    (problem,) = aggressor.check(Limits(vcpus=64, pids=64))
    assert "64 threads are more than [limits] pids leaves (48)" in str(problem)
    assert aggressor.check(Limits(vcpus=64, pids=80)) == []


@contextmanager
def here(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """This machine as neighbour and client."""
    host, agent_path = LocalHost(), str(binary("virtoll-agent"))
    monkeypatch.setattr(base, "AGENT", agent_path)
    monkeypatch.setattr("virtoll.aggressors.running.DIRECTORY", str(directory))
    serve = agent_on_stdio(
        host, [agent_path, "serve"], log=directory / "agent.log", confinement=Confinement(), platform="native"
    )
    with serve as (agent, process):
        attachment = Attachment("host", "shared", "", "127.0.0.1", ())
        accounting = Accounting("", directory)
        neighbour = Instance(
            "native", agent, attachment, accounting, Limits(), {}, lambda: process.poll() is None, FAKE_IMAGE
        )
        yield Place(neighbour, Client(host, Confinement(), directory, cpus=1), target_address="127.0.0.1")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with here(tmp_path, monkeypatch) as place:
        yield place


def test_caps_follow_the_neighbours_limits(place: Place) -> None:
    assert Fork().caps(place) == {"most_processes": 2048}
    assert Memory().caps(place) == {"most_bytes": 1024 * MIB}
    place.neighbour.limits = Limits(pids=10_000)
    assert Fork().caps(place) == {"most_processes": 4096}
    for aggressor in TAME:
        command = aggressor.command(place, BRIEFLY_NS)
        told = {word for field in fields(aggressor.settings) for word in [f"--{field.name.replace('_', '-')}"]}
        assert command[1:5] == ["aggress", aggressor.name, "--duration-ns", str(BRIEFLY_NS)]
        assert {*command, *aggressor.flood(place, BRIEFLY_NS), "--port"} >= told


def test_a_long_series_has_no_more_lines_than_can_be_read() -> None:
    assert base.arguments("cpu", 3600 * 10**9, {})[5] == "900000000"
    assert base.arguments("cpu", 10**9, {})[5] == "100000000"


@pytest.mark.parametrize("aggressor", TAME, ids=lambda aggressor: aggressor.name)
def test_each_does_what_it_says_and_ends_by_itself(aggressor: Aggressor, place: Place) -> None:
    result = ended_by_itself(aggressor, place, BRIEFLY_NS)
    assert (result.flood is not None) == (aggressor.name == "net-receive")


def ended_by_itself(aggressor: Aggressor, place: Place, duration_ns: int) -> AggressorResult:
    """What it did in its time. Where that was over before it got a CPU, or its flood was there, it gets more."""
    while True:
        with aggressor.start(place, duration_ns) as running:
            ended(running.neighbour, running.pid)
            result = running.stop(PATIENCE_S)
        assert (result.ended, result.stopped_by, result.reason) == ("time", "itself", "")
        assert set(result.counts) == set(aggressor.counts)
        if result.counts[aggressor.counts[0]] > 0:
            return result
        duration_ns *= 4
        assert duration_ns < PATIENCE_S * 10**9, result


def ended(instance: Instance, pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while instance.agent.alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("aggressor", TAME, ids=lambda aggressor: aggressor.name)
def test_each_is_stopped_in_the_middle(aggressor: Aggressor, place: Place) -> None:
    running = aggressor.start(place, FOR_LONG_NS)
    until(running, lambda now: now[aggressor.counts[0]] > 0)  # it does what it is for
    result = running.stop(PATIENCE_S)
    assert (result.ended, result.stopped_by) == ("told", "agent")
    assert result.began(aggressor.counts[0])
    assert running.stop() is result
    assert not place.neighbour.agent.alive(running.pid)
    if result.flood is not None:
        assert result.flood.aggressor == "net-send"
        assert (result.flood.ended, result.flood.stopped_by) == ("told", "host")
        assert result.flood.counts["packets"] > 0


def until(running: Running, is_wanted: Callable[[Mapping[str, int]], bool]) -> None:
    """Come back when the last line of an aggressor's series is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while not ((series := series_of(running)) and is_wanted(series[-1][1])):
        assert time.monotonic() < deadline, series[-1:]
        time.sleep(0.02)


def series_of(running: Running) -> Sequence[tuple[int, Mapping[str, int]]]:
    """What an aggressor has told so far."""
    return parse(running.name, running.neighbour.agent.get(running.log)).series


def test_an_agent_that_does_not_answer_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Polite().start(place, BRIEFLY_NS)
    asked, over = threading.Event(), threading.Event()

    def silent(_pid: int) -> bool:
        asked.set()
        over.wait()
        raise AgentError("too late")

    with monkeypatch.context() as patch:
        patch.setattr(place.neighbour.agent, "alive", silent)
        result = running.stop(0.01)
        assert asked.wait(PATIENCE_S)
    over.set()
    assert (result.stopped_by, result.ended) == ("host", "killed")
    assert "did not answer within 0.01 s" in result.reason


def test_a_neighbour_that_has_died_is_told(place: Place) -> None:
    running = Polite().start(place, BRIEFLY_NS)
    place.neighbour.agent.close()
    result = running.stop()
    assert result.stopped_by == "host"
    assert "alive" in result.reason


def test_one_that_cannot_start_says_why(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.neighbour.attachment = replace(place.neighbour.attachment, kind="veth", mode="nat", address="10.0.0.2")
    with pytest.raises(AggressorError, match="network mode 'nat' does not bring 5209/udp"):
        NetReceive().start(place, BRIEFLY_NS)
    monkeypatch.setattr(base, "AGENT", "/nowhere")
    with pytest.raises(AggressorError, match="cannot start"):
        Polite().start(place, BRIEFLY_NS)
    place.neighbour.agent.close()
    with pytest.raises(StreamError):
        Polite().start(place, BRIEFLY_NS)


def test_no_flood_no_aggressor(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one inside does not stay when its other half cannot be started."""
    spawned: list[int] = []
    spawn = place.neighbour.agent.spawn

    def noted(*args: Any, **kwargs: Any) -> int:
        spawned.append(spawn(*args, **kwargs))
        return spawned[-1]

    monkeypatch.setattr(place.neighbour.agent, "spawn", noted)
    monkeypatch.setattr("virtoll.aggressors.running.binary", lambda name: Path("/nowhere"))
    with pytest.raises(HostError, match="/nowhere"):
        NetReceive(ReceiveCaps(port=PORT)).start(place, FOR_LONG_NS)
    assert not place.neighbour.agent.alive(spawned[0])


# Real bombs, each in an instance with limits in force. A victim beside it must live, and so must the host.

LIMITS = Limits(vcpus=1, memory_bytes=128 * MIB, pids=80)
PLATFORMS: dict[str, Platform] = {"native": Native(), "lxc": Lxc()}


@pytest.fixture(scope="module", params=PLATFORMS)
def bombed(request: pytest.FixtureRequest, lab: Lab) -> Iterator[contract.Place]:
    platform = PLATFORMS[request.param]
    contract.skip_unless_ready(platform)
    image = contract.image()
    with platform.session(lab, image):
        yield contract.Place(lab, image, platform)


@contextmanager
def neighbours(where: contract.Place, directory: Path) -> Iterator[tuple[Instance, Place]]:
    """A victim in slot 0, and a neighbour in slot 1 as a place for aggressors."""
    lab = where.lab
    client = Client(lab.host, Confinement(netns=lab.generator.netns, cpus=lab.generator.cpus), directory, cpus=1)
    before = snapshot()
    with (
        deployed(lab, where.image, where.platform, limits=LIMITS) as victim,
        deployed(lab, where.image, where.platform, limits=LIMITS, slot=1) as neighbour,
    ):
        yield victim, Place(neighbour, client)
    nothing_left(lab, before)


def processes(instance: Instance) -> int:
    """How many processes the host counts in an instance's cgroup."""
    return len(Cgroup(instance.accounting.cgroup, hierarchies()).pids())


def held_bytes(instance: Instance) -> int:
    """How much memory the host has booked for an instance."""
    group = Cgroup(instance.accounting.cgroup, hierarchies()).directory("memory")
    file = "memory.current" if hierarchies().version == 2 else "memory.usage_in_bytes"
    return int((group / file).read_text())


@pytest.mark.machine
@pytest.mark.parametrize("aggressor", [Fork(), Memory()], ids=lambda aggressor: aggressor.name)
def test_a_bomb_stays_within_its_instance(aggressor: Aggressor, bombed: contract.Place, tmp_path: Path) -> None:
    with neighbours(bombed, tmp_path) as (victim, place):
        at_rest = processes(place.neighbour)
        running = aggressor.start(place, FOR_LONG_NS)
        most, most_bytes = 0, 0

        def is_at_its_limit(now: Mapping[str, int]) -> bool:
            nonlocal most, most_bytes
            most = max(most, processes(place.neighbour))
            most_bytes = max(most_bytes, held_bytes(place.neighbour))
            if aggressor.name == "fork":
                return now["refused"] > 0 and most > LIMITS.pids * 3 // 4
            return now["restarts"] > 0 and now["touched_bytes"] > LIMITS.memory_bytes

        until(running, is_at_its_limit)
        contract.answers(victim)
        result = running.stop(PATIENCE_S)
        assert (result.stopped_by, result.ended) == ("agent", "told"), result.reason
        settled = time.monotonic() + PATIENCE_S
        while processes(place.neighbour) > at_rest:
            assert time.monotonic() < settled
            time.sleep(0.02)
        contract.answers(place.neighbour)  # and it can go on
    if aggressor.name == "fork":
        assert result.counts["refused"] > 0  # the instance's limit held, before the cap did
        assert most <= LIMITS.pids + at_rest
        assert result.series[-1][1]["processes"] <= LIMITS.pids
    else:
        assert result.restarts > 0  # killed for it, and begun again
        assert result.counts["touched_bytes"] > LIMITS.memory_bytes
        assert max(now["held_bytes"] for _, now in result.series) <= LIMITS.memory_bytes
        assert most_bytes < 2 * LIMITS.memory_bytes


@pytest.mark.machine
def test_an_end_in_the_middle_of_a_bomb_leaves_nothing(bombed: contract.Place, tmp_path: Path) -> None:
    """As when a study is interrupted: nobody stops the aggressor, the deployment alone ends."""
    with neighbours(bombed, tmp_path) as (_, place):
        Fork().start(place, FOR_LONG_NS)
        deadline = time.monotonic() + PATIENCE_S
        while processes(place.neighbour) < LIMITS.pids // 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.machine
def test_a_flood_reaches_the_neighbour_and_leaves_it(bombed: contract.Place, tmp_path: Path) -> None:
    with neighbours(bombed, tmp_path) as (_, place):
        for aggressor in (NetReceive(), NetSend(FloodCaps(rate_bit_per_s=10**8))):
            result = ended_by_itself(aggressor, place, 10**9)
            assert result.counts.get("refused", 0) == 0


@pytest.mark.machine
def test_what_has_no_room_for_a_process_is_refused(bombed: contract.Place, tmp_path: Path) -> None:
    """The fork bomb of another leaves no room: a reason, and no zero."""
    with neighbours(bombed, tmp_path) as (_, place):
        bomb = Fork().start(place, FOR_LONG_NS)
        deadline = time.monotonic() + PATIENCE_S
        while processes(place.neighbour) < LIMITS.pids:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "Resource temporarily unavailable" in why_not(Polite(), place)
        assert bomb.stop(PATIENCE_S).stopped_by == "agent"


def why_not(aggressor: Aggressor, place: Place) -> str:
    """Why it cannot start: the agent cannot make its supervisor, or that one no process."""
    try:
        result = aggressor.start(place, BRIEFLY_NS).stop(PATIENCE_S)
    except AggressorError as error:
        return str(error)
    assert not result.began(aggressor.counts[0])
    return result.reason
