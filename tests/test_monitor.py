"""The monitor: the files of both cgroup generations, a known cost seen from outside, two clocks made one."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.agent import AgentClient, ClockOffset, PipeStream, Samples, Source
from virtoll.binaries import binary
from virtoll.catalogue import catalogue
from virtoll.errors import AgentError
from virtoll.fakes import FAKE_IMAGE
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, Hierarchies, owned
from virtoll.hosts.local import end_session
from virtoll.lab.base import SUT_GENERATOR_SIDE_ADDRESS, Lab
from virtoll.monitor import Monitor, Row, cgroup_sources, host_sources, inside_sources, monitor, network_source
from virtoll.monitor.monitor import ClockReading, _looks, _on_our_clock, _rows
from virtoll.monitor.sources import MOST_COUNTERS
from virtoll.networks.base import Attachment
from virtoll.platforms.base import Accounting, Instance
from virtoll.study.file import read_study
from virtoll.study.limits import Limits
from virtoll.trial.treatment import Driven, treatment_of, treatments

FIXTURES = Path(__file__).parent / "fixtures" / "cgroup"
CGROUP_COUNTERS = {
    "cpu.usage_ns": 5_000_000_000,
    "cpu.user_ns": 3_000_000_000,
    "cpu.system_ns": 2_000_000_000,
    "memory.usage_bytes": 104_857_600,
    "memory.resident_bytes": 50_331_648,
    "memory.cache_bytes": 44_040_192,
    "io.read_bytes": 4_198_400,
    "io.write_bytes": 8_192,
    "pids.current": 7,
    "context_switches": 0,  # of the threads that live; the fixtures list none
    "cpu.wait_ns": 0,
}
PRESSURE_COUNTERS = {
    "psi.cpu.some_us": 150,
    "psi.cpu.full_us": 100,
    "psi.memory.some_us": 20,
    "psi.memory.full_us": 10,
    "psi.io.some_us": 2_000,
    "psi.io.full_us": 1_000,
}

# Ticks that a ring has room for in the tests below, inside and outside.
_ROOM_INSIDE, _ROOM_OUTSIDE = 2 * 1024**2 // 23, 8 * 1024**2 // 5


@contextmanager
def agent(confinement: Confinement | None, lab: Lab | None = None) -> Iterator[AgentClient]:
    argv = [str(binary("virtoll-agent")), "serve"]
    if lab is None:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    else:
        process = lab.host.spawn(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, confinement=confinement)
    try:
        client = AgentClient(PipeStream(process))
        yield client
        client.close()
        process.wait(timeout=600)
    finally:
        end_session(process)


def fixture_hierarchies(version: int) -> Hierarchies:
    if version == 1:
        controllers = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer", "blkio")
        return Hierarchies(1, {name: FIXTURES / "v1" / name for name in controllers})
    return Hierarchies(2, dict.fromkeys(("cpu", "cpuset", "memory", "pids", "io"), FIXTURES / "v2"))


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_of_either_generation_gives_the_same_counters(version: int) -> None:
    sources = cgroup_sources("instance", "virtoll/ab12/i", fixture_hierarchies(version))
    with agent(None) as client:
        client.start_sampling(sources, 10)
        samples = client.collect()
    expected = CGROUP_COUNTERS | (PRESSURE_COUNTERS if version == 2 else {})
    assert {name: values[0] for name, values in samples.counters.items()} == {
        f"instance.{name}": value for name, value in expected.items()
    }
    assert samples.unreadable == {}


def test_a_machine_without_a_controller_does_without_its_counters() -> None:
    mounts = {"cpuacct": Path("/c"), "memory": Path("/m")}
    sources = cgroup_sources("payload", "a/b", Hierarchies(1, mounts))
    assert {str(Path(source.path).parent) for source in sources if source.kind != "threads"} == {"/c/a/b", "/m/a/b"}


def test_host_and_inside_are_readable_here() -> None:
    with agent(None) as client:
        client.start_sampling([*host_sources(), *inside_sources()], 10)
        samples = client.collect()
    pressure = {name for name in samples.unreadable if ".psi." in name}  # not every kernel has it
    assert set(samples.unreadable) == pressure
    for source in ("host", "inside"):
        for counter in ("cpu.usage_ns", "cpu.steal_ns", "memory.available_bytes", "io.read_bytes", "context_switches"):
            assert samples.counters[f"{source}.{counter}"][0] is not None
    assert samples.counters["inside.net.rx_bytes"][0] is not None
    assert samples.counters["monitor.memory.rss_bytes"][0]


@given(
    offset=st.integers(-(10**15), 10**15),
    drift_ppm=st.integers(-2000, 2000),
    start=st.integers(0, 10**15),
    ticks=st.lists(st.integers(0, 10**11), min_size=1, max_size=5),
)
def test_a_drifting_clock_is_moved_onto_ours(offset: int, drift_ppm: int, start: int, ticks: list[int]) -> None:
    def theirs(ours_ns: int) -> int:
        return ours_ns + offset + (ours_ns - start) * drift_ppm // 10**6

    def reading(at_ns: int) -> ClockReading:
        return ClockReading(at_ns, ClockOffset(theirs(at_ns) - at_ns, 1000))

    ours = [start + tick for tick in ticks]
    moved = _on_our_clock([theirs(t_ns) for t_ns in ours], reading(start), reading(start + 10**11))
    assert all(abs(found - true) <= 3 for found, true in zip(moved, ours, strict=True))


@pytest.mark.parametrize(
    ("rate_hz", "lasts_s", "inside", "outside"),
    [
        (10, 0.0, (10, 900), (10, 1350)),
        (10, 30.0, (10, 900), (10, 1350)),
        (10, 1800.0, (10, 1800), (10, 2700)),  # outside a turn's marks are rows, too
        (100, 1800.0, (_ROOM_INSIDE / 1800, 1800), (100, 1800)),  # there is no room inside for more at this rate
        (100, -1800.0, (100, _ROOM_INSIDE / 100), (100, 1800)),  # nor for what may be over sooner
        (10, -(10**6), (10, _ROOM_INSIDE / 10), (10, _ROOM_OUTSIDE / 10)),
        (200, 0.0, (200, _ROOM_INSIDE / 200), (200, 900)),  # nor for a quarter of an hour, which nobody asked for
        (10, 10**6, (_ROOM_INSIDE / 10**6, 10**6), (_ROOM_OUTSIDE / 1.5e6, 1.5e6)),
    ],
)
def test_there_is_room_for_all_of_a_long_trial(
    monkeypatch: pytest.MonkeyPatch,
    rate_hz: float,
    lasts_s: float,
    inside: tuple[float, float],
    outside: tuple[float, float],
) -> None:
    """Samples that no longer fit are dropped, and void the trial when all of it is over. (Below 0 it is a search, or a
    probe, of which nobody knows how long it will take.)
    """
    kept: list[tuple[float, float]] = []

    class Keeping:
        def start_sampling(self, _sources: Sequence[Source], rate_hz: float, *, keep_s: float = 900.0) -> None:
            kept.append((rate_hz, keep_s))

    monkeypatch.setattr(monitor, "outside_sources", lambda *_: [network_source("instance", ())])
    watching = Monitor(cast(Any, SimpleNamespace(generator=SimpleNamespace(cpus=frozenset({3})))))
    watching._host_agent = cast(Any, Keeping())
    accounting = Accounting("", Path("/nonexistent"))
    instance = SimpleNamespace(agent=Keeping(), counts_cpu_time=True, accounting=accounting)
    clock, for_sure = ClockReading(0, ClockOffset(0, 0)), lasts_s > 0
    watching.start(cast(Any, instance), clock, rate_hz, lasts_s=abs(lasts_s), for_sure=for_sure)
    assert kept == [pytest.approx(inside), pytest.approx(outside)]
    assert (watching._metered.rate_hz, watching._metered.keep_s) == kept[1], "meters look when the sampler does"
    assert watching._metered.cpus == frozenset({3}), "meters are asked from the generator's CPUs"


def test_at_a_high_rate_samples_are_kept_for_as_long_as_there_is_room() -> None:
    """On cgroup v2 there were too many of them for 15 minutes at 100 a second, and no trial could begin."""
    layout = fixture_hierarchies(2)
    groups = [source for name in "abcdef" for source in cgroup_sources(name, "virtoll/ab12/i", layout)]
    watched = [*groups, *host_sources()]
    rate_hz, kept_s = _looks(watched, 100.0, 0.0, 8 * 1024**2)
    assert rate_hz == 100
    assert 500 < kept_s < 900
    with agent(None) as client:
        client.start_sampling(watched, 100.0, keep_s=kept_s)
        client.collect()
        with pytest.raises(AgentError, match="do not fit"):
            client.start_sampling(watched, 100.0, keep_s=900.0)


def test_no_source_has_more_counters_than_are_reckoned_with() -> None:
    everything = [*host_sources(), *inside_sources()]
    for version in (1, 2):
        everything += cgroup_sources(f"v{version}", "virtoll/ab12/i", fixture_hierarchies(version))
    with agent(None) as client:
        for each in everything:
            client.start_sampling([each], 10)
            assert len(client.collect().counters) <= MOST_COUNTERS[each.kind], each


def test_missing_values_have_no_row() -> None:
    samples = Samples([1, 2], {"instance.cpu.usage_ns": [5, None], "host.psi.io.full_us": [None, 7]}, 0)
    assert _rows(samples, [10, 20]) == [(10, "instance", "cpu.usage_ns", 5), (20, "host", "psi.io.full_us", 7)]


@contextmanager
def instance_in(lab: Lab, cgroup: Cgroup) -> Iterator[Instance]:
    """An instance that is no more than a cgroup with an agent in it."""
    with agent(Confinement(cgroup.procs), lab) as client:
        attachment = Attachment("host", "shared", lab.sut.netns, "", ())
        yield Instance(
            "test",
            client,
            attachment,
            Accounting(cgroup.name, Path("/nowhere")),
            Limits(),
            {},
            lambda: True,
            FAKE_IMAGE,
        )


def growth(rows: list[Row], source: str, counter: str) -> int:
    values = [value for _, row_source, row_counter, value in rows if (row_source, row_counter) == (source, counter)]
    return values[-1] - values[0]


# 100 datagrams of 1000 bytes to nobody.
_SEND = [
    "python3",
    "-c",
    f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(100):
    s.sendto(bytes(1000), ("{SUT_GENERATOR_SIDE_ADDRESS}", 9))
""",
]


@pytest.mark.parametrize("name", ["siege", "viewers", "conference", "meeting"])
def test_a_study_is_watched_for_as_long_as_it_lasts(name: str) -> None:
    """Siege's longest windows are of 15 minutes."""
    text = (files("virtoll.studies") / f"{name}.toml").read_text(encoding="utf-8")
    for each in treatments(read_study(text, f"{name}.toml", catalogue())):
        assert isinstance(each.work, Driven)
        settings = each.work.load.settings
        windows = len(each.work.load.levels) or 1
        lasts_ns = windows * settings.time_limit_ns if each.knee is None else 2 * each.knee.window_ns
        assert each.watched_s >= lasts_ns / 1e9 + 60


def test_a_probe_may_take_longer_than_it_says() -> None:
    text = (files("virtoll.studies") / "micro.toml").read_text(encoding="utf-8")
    study = read_study(text, "micro.toml", catalogue())
    assert study.programme
    for case in study.programme:
        if not case.instrument:
            assert treatment_of(study, case.condition).watched_s >= 2 * case.expected_s


@pytest.mark.machine
def test_a_known_cost_is_seen_from_outside(lab: Lab) -> None:
    with (
        owned(lab.ledger, f"{lab.cgroup}/watched") as cgroup,
        instance_in(lab, cgroup) as instance,
        agent(Confinement(cgroup.procs), lab) as burner,
        Monitor.on_host(lab) as monitor,
    ):
        started_ns = time.monotonic_ns()
        # No tick but the first comes in time: those of a machine that stands still meanwhile would cost the instance
        # more than what it is to be seen to cost.
        monitor.start(instance, monitor.read_clock(instance), 0.001)
        monitor.mark()  # what is burnt before a first row would be in none
        cost = burner.burn(1, 200)
        lab.host.run(_SEND, confinement=Confinement(netns=lab.generator.netns))
        for _ in range(10):
            instance.agent.sample_now()
        monitor.mark()
        watched = monitor.collect()
        ended_ns = time.monotonic_ns()
    booked_ns = growth(watched.outside, "instance", "cpu.usage_ns")
    assert cost["cpu_ns"] * 0.95 <= booked_ns <= cost["cpu_ns"] + 40_000_000
    assert growth(watched.outside, "host", "context_switches") > growth(watched.outside, "instance", "context_switches")
    assert growth(watched.outside, "instance", "context_switches") >= 4  # the agents' own samplings
    assert 100_000 <= growth(watched.outside, "instance", "net.rx_bytes") < 150_000
    assert watched.inside is not None
    times = {row[0] for row in watched.inside}
    # One kernel, one clock: inside times are ours, but for what its reading may be off by.
    assert started_ns - 10**9 < min(times) <= max(times) < ended_ns + 10**9
    assert {row[1] for row in watched.outside} == {"instance", "generator", "host", "monitor"}
    assert {row[1] for row in watched.inside} == {"inside"}
    untold = {name: why for name, why in watched.unreadable.items() if "only where a throttle is set" not in why}
    assert all("origin" in name for name in untold if ".psi." not in name)


@pytest.mark.machine
def test_what_was_used_between_two_marks_is_in_no_other_interval(lab: Lab) -> None:
    with (
        owned(lab.ledger, f"{lab.cgroup}/watched") as cgroup,
        instance_in(lab, cgroup) as instance,
        agent(Confinement(cgroup.procs), lab) as burner,
        Monitor.on_host(lab) as monitor,
    ):
        # No tick but the first comes in time.
        monitor.start(instance, monitor.read_clock(instance), 0.001, inside=False)
        used_ns = []
        for length_ms in (50, 200):
            monitor.mark()
            used_ns.append(burner.burn(1, length_ms)["cpu_ns"])
            monitor.mark()
        watched = monitor.collect()
    usage = [
        value for *_, source, counter, value in watched.outside if f"{source}.{counter}" == "instance.cpu.usage_ns"
    ]
    assert len(usage) == 1 + 4
    for seen_ns, ns in zip((usage[2] - usage[1], usage[4] - usage[3]), used_ns, strict=True):
        assert ns * 0.95 <= seen_ns <= ns + 20_000_000
    assert usage[3] - usage[2] < 20_000_000


@pytest.mark.machine
def test_the_next_trial_is_watched_whatever_became_of_the_last(lab: Lab) -> None:
    with owned(lab.ledger, f"{lab.cgroup}/watched") as cgroup, Monitor.on_host(lab) as monitor:
        with instance_in(lab, cgroup) as instance:
            monitor.start(instance, monitor.read_clock(instance), 20)  # the load fails, nobody collects
        with instance_in(lab, cgroup) as instance:
            monitor.start(instance, monitor.read_clock(instance), 20)
            assert monitor._process is not None
            monitor._process.kill()
            with pytest.raises(AgentError, match="the monitor's agent on the host"):
                monitor.collect()
        with instance_in(lab, cgroup) as instance:
            monitor.start(instance, monitor.read_clock(instance), 20)
            cgroup.kill()
            with pytest.raises(AgentError):
                monitor.collect()
        with instance_in(lab, cgroup) as instance:
            monitor.start(instance, monitor.read_clock(instance), 20)
            assert monitor.collect().outside
