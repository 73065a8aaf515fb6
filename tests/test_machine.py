"""What a machine does to measurements: each check on small trees of files, and the trials on this machine."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from test_tuning import made
from virtoll.hosts.tuning import CONGESTION, CPUS, THP
from virtoll.run import machine, trying
from virtoll.run.looking import Glance, Seen, between, glance, look, spent_of
from virtoll.run.machine import Finding, Measured
from virtoll.run.trying import Clock, Sums, Touch, Wake

QUIET = Measured(
    seen=Seen(2.0, stolen=0.0, busy=0.01, waited={"cpu": 0.0, "memory": 0.0, "io": 0.01}, swapped_pages=0),
    sums=Sums(wall_s=(0.02,) * 20, cpu_s=(0.02,) * 20),
    wake=Wake(asleep_ns=9_000, asleep_p99_ns=12_000, awake_ns=4_000),
    touch=Touch(huge_s=0.003, small_s=0.009),
    clock=Clock(reading_ns=50, is_synchronised=True, slew_ppm=0.4),
)
CLOCKS = "sys/devices/system/clocksource/clocksource0"
GOOD = {
    f"{CPUS}/cpu0/cpufreq/scaling_governor": "performance\n",
    f"{CPUS}/intel_pstate/no_turbo": "1\n",
    f"{CPUS}/smt/active": "0\n",
    f"{CPUS}/smt/control": "off\n",
    f"{CPUS}/cpu0/cpuidle/state0/name": "POLL\n",
    f"{CPUS}/cpu0/cpuidle/state0/latency": "0\n",
    "sys/devices/system/node/online": "0\n",
    THP: "always [madvise] never\n",
    CONGESTION: "cubic\n",
    "proc/swaps": "Filename Type Size Used Priority\n",
    f"{CLOCKS}/current_clocksource": "tsc\n",
    f"{CLOCKS}/available_clocksource": "tsc hpet\n",
}


def found(root: Path, measured: Measured = QUIET) -> dict[str, Finding]:
    return {one.name: one for one in machine.examine(root, measured)}


def test_a_quiet_machine_is_good_in_all(tmp_path: Path) -> None:
    all_of_it = found(made(tmp_path, GOOD))
    assert {one.verdict for one in all_of_it.values()} == {"good"}
    assert not any(one.remedy or one.missing for one in all_of_it.values())
    assert all(one.state for one in all_of_it.values())
    assert "waking a CPU costs 5.0 us" in all_of_it["idle states"].effect
    assert all_of_it["THP"].effect == "first touch of 32 MiB: 3.0 ms with them, 9.0 ms without"


def test_a_cpu_that_is_switched_off_has_no_governor(tmp_path: Path) -> None:
    off = {f"{CPUS}/cpu1/online": "0\n", f"{CPUS}/cpu1/cpufreq/scaling_governor": ""}
    assert found(made(tmp_path, {**GOOD, **off}))["governor"].verdict == "good"


def test_a_clock_that_is_pinned_is_not_noisy(tmp_path: Path) -> None:
    one = found(made(tmp_path, {**GOOD, f"{CPUS}/cpu1/cpufreq/scaling_governor": "userspace\n"}))["governor"]
    assert (one.verdict, one.state, one.remedy) == ("good", "performance, userspace (the clock is pinned)", "")


NOISY: list[tuple[str, dict[str, str], str, str]] = [
    ("governor", {f"{CPUS}/cpu1/cpufreq/scaling_governor": "powersave\n"}, "performance, powersave", "tune governor"),
    ("turbo", {f"{CPUS}/intel_pstate/no_turbo": "0\n"}, "on", "virtoll tune turbo"),
    ("SMT", {f"{CPUS}/smt/active": "1\n"}, "on", "echo off > /sys/devices/system/cpu/smt/control"),
    ("NUMA", {"sys/devices/system/node/online": "0-1\n"}, "nodes 0-1", "numactl --cpunodebind=0"),
    (
        "NUMA",
        {"sys/devices/system/node/online": "0-1\n", "proc/sys/kernel/numa_balancing": "1\n"},
        "the kernel moves pages",
        "sysctl kernel.numa_balancing=0",
    ),
    ("THP", {THP: "[always] madvise never\n"}, "always", "virtoll tune thp"),
    ("TCP", {CONGESTION: "bbr\n"}, "congestion control bbr", "virtoll tune congestion"),
    ("swap", {"proc/swaps": "Filename\n/dev/sdb partition 1000000 20480 -2\n"}, "1 in use, holding 20 MiB", "swapoff"),
    ("clock source", {f"{CLOCKS}/current_clocksource": "hpet\n"}, "hpet", "echo tsc > /sys/devices/system/clocksource"),
]


@pytest.mark.parametrize(("name", "files", "state", "remedy"), NOISY)
def test_a_setting_that_is_not_right_is_told_with_its_remedy(
    tmp_path: Path, name: str, files: dict[str, str], state: str, remedy: str
) -> None:
    one = found(made(tmp_path, {**GOOD, **files}))[name]
    assert one.verdict == "noisy"
    assert state in one.state
    assert remedy in one.remedy


MEASURED: list[tuple[str, Measured, str, str]] = [
    ("steal", replace(QUIET, seen=replace(QUIET.seen, stolen=0.031)), "3.1% of the CPUs' time over 2 s", "--budget"),
    (
        "other load",
        replace(QUIET, seen=replace(QUIET.seen, busy=0.4, heaviest=("cc1 (3) (77): 80% of a CPU",))),
        "40.0% of the CPUs' time over 2 s",
        "-p 77 ",
    ),
    (
        "other load",  # of 128 CPUs six are at work
        replace(QUIET, seen=replace(QUIET.seen, busy=0.047, heaviest=("cc1 (77): 100% of a CPU",), most=1.0)),
        "4.7% of the CPUs' time over 2 s",
        "-p 77 ",
    ),
    ("PSI", replace(QUIET, seen=replace(QUIET.seen, waited={"cpu": 0.0, "io": 0.3})), "io 30.0%", "pressure/io"),
    ("fixed work", replace(QUIET, sums=Sums((0.02, 0.04), (0.02, 0.02))), "had the CPU for 33.3%", "noisy below"),
    ("idle states", replace(QUIET, wake=Wake(64_000, 99_000, 4_000)), "waking a CPU costs 60.0 us", "tune idle awake"),
    ("time sync", replace(QUIET, clock=Clock(50, True, -480.0)), "-480.0 ppm", "chronyc waitsync"),
]


@pytest.mark.parametrize(("name", "measured", "effect", "remedy"), MEASURED)
def test_an_effect_that_is_seen_is_told_with_its_remedy(
    tmp_path: Path, name: str, measured: Measured, effect: str, remedy: str
) -> None:
    one = found(made(tmp_path, GOOD), measured)[name]
    assert one.verdict == "noisy"
    assert effect in one.effect
    assert remedy in one.remedy


def test_what_cannot_be_read_is_missing_with_its_reason(tmp_path: Path) -> None:
    blind = found(tmp_path, Measured(seen=Seen(2.0, stolen=None, busy=None)))
    assert {one.verdict for one in blind.values()} == {"unknown"}
    assert all(one.missing and not one.state and not one.effect for one in blind.values())


def test_where_no_cpu_slept_waking_one_was_not_measured(tmp_path: Path) -> None:
    busy = replace(QUIET, seen=replace(QUIET.seen, busy=0.9))
    for measured in (busy, replace(QUIET, wake=Wake(9_000, 12_000, 700_000))):
        one = found(made(tmp_path, GOOD), measured)["idle states"]
        assert (one.verdict, one.effect) == ("unknown", "")
        assert "the CPUs were busy meanwhile" in one.missing


def test_programs_and_people_are_told_the_same(tmp_path: Path) -> None:
    findings = machine.examine(made(tmp_path, {**GOOD, THP: "[always] madvise never\n"}), QUIET)
    told = json.loads(json.dumps(machine.as_json(findings, {"turbo": "turbo off"})))
    assert told["tuned"] == {"turbo": "turbo off"}
    assert told["checks"][0].keys() == {"name", "verdict", "state", "effect", "remedy", "missing"}
    screen = Console(file=io.StringIO(), width=200)
    machine.show(findings, {"turbo": "turbo off"}, screen)
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert all(one[key] in shown for one in told["checks"] for key in ("name", "state", "effect", "remedy", "missing"))
    assert "the machine is tuned: turbo off" in shown


# -- the look ---------------------------------------------------------------------------------------------


def test_a_glance_reads_counters(tmp_path: Path) -> None:
    root = made(
        tmp_path,
        {
            "proc/stat": "cpu  10 1 5 100 4 0 3 7 0 0\ncpu0 10 1 5 100 4 0 3 7 0 0\n",
            "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=55\nfull avg10=0.00 total=44\n",
            "proc/vmstat": "pswpin 3\npswpout 4\npgfault 9\n",
            "proc/77/stat": "77 (a ) (b)) S 1 77 77 0 -1 4194560 1 2 3 4 30 12 0 0 20 0 1 0 900 1 1\n",
            "proc/78/stat": "\n",
        },
    )
    seen = glance(root)
    assert seen.cpu is not None
    assert (seen.cpu["idle"], seen.cpu["steal"]) == (100, 7)
    assert seen.pressure_us == {"io": 55}
    assert seen.swapped_pages == 7
    assert seen.processes == {77: ("a ) (b)", 42)}


def test_between_two_glances_our_own_keepers_are_nobodys_load() -> None:
    ticks = {"user": 0, "nice": 0, "system": 0, "idle": 0, "iowait": 0, "irq": 0, "softirq": 0, "steal": 0}
    before = Glance(0, ticks, {"cpu": 100}, 5, {1: ("loop", 50), 2: ("cc1", 10)})
    now = {**ticks, "user": 150, "idle": 200, "iowait": 30, "steal": 20}
    after = Glance(2 * 10**9, now, {"cpu": 200_100}, 9, {1: ("loop", 150), 2: ("cc1", 54), 3: ("new", 6)})
    seen = between(before, after, ours=frozenset({1}))
    assert seen.seconds == 2
    assert seen.stolen == pytest.approx(0.05)
    assert seen.busy == pytest.approx((150 - 100) / 400)
    assert seen.heaviest == ("cc1 (2): 22% of a CPU",)
    assert seen.most == pytest.approx(0.22, abs=0.005)
    assert seen.waited == {"cpu": pytest.approx(0.1)}
    assert seen.swapped_pages == 4


def test_nothing_to_be_read_is_nothing_seen(tmp_path: Path) -> None:
    seen = look(tmp_path, for_s=0)
    assert (seen.stolen, seen.busy, seen.heaviest, seen.swapped_pages) == (None, None, (), None)
    assert seen.waited == {}


# -- trials on this machine -------------------------------------------------------------------------------


def test_bytes_go_to_and_fro_between_two_cpus_and_nobody_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[int] = []
    fork = os.fork

    def noted() -> int:
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", noted)
    cpus = sorted(os.sched_getaffinity(0))
    wake = trying.wake(cpus[0], cpus[-1])
    assert 0 < wake.asleep_ns <= wake.asleep_p99_ns
    assert wake.awake_ns > 0
    assert set(os.sched_getaffinity(0)) == set(cpus)
    assert len(children) == 2
    assert not any(Path("/proc", str(child)).exists() for child in children)


def test_equal_sums_and_what_they_tell() -> None:
    done = trying.sums(min(os.sched_getaffinity(0)))
    assert len(done.wall_s) == len(done.cpu_s) == 20
    assert 0 <= done.waited < 1
    slow_start = Sums(wall_s=(3.0, 2.0, 2.0), cpu_s=(1.5, 1.0, 1.0))
    assert slow_start.first == pytest.approx(1.5)
    assert slow_start.waited == pytest.approx(0.5)
    assert slow_start.spread == pytest.approx(0.2474, abs=1e-4)


def test_the_clock_is_read() -> None:
    before = trying.clocks()
    assert trying.reading_ns() > 0
    assert trying.synchronised() in (True, False, None)
    assert abs(trying.slew_ppm(before, trying.clocks())) < 1e5
    assert trying.slew_ppm((0, 0), (1_000_100, 1_000_000)) == pytest.approx(100)


def test_memory_is_touched() -> None:
    try:
        touched = trying.touch()
    except OSError:
        pytest.skip("this kernel takes no advice on huge pages")
    assert touched.huge_s > 0
    assert touched.small_s > 0


def test_every_remedy_names_a_knob_that_there_is(tmp_path: Path) -> None:
    from virtoll.cli.parser import TUNABLE

    bad = [found(made(tmp_path / str(n), {**GOOD, **files}))[name] for n, (name, files, _, _) in enumerate(NOISY)]
    bad += [found(made(tmp_path / "all", GOOD), measured)[name] for name, measured, _, _ in MEASURED]
    asked = {
        word for one in bad for words in re.findall(r"virtoll tune ([a-z ]+)", one.remedy) for word in words.split()
    }
    assert asked == TUNABLE.keys()


def test_what_is_told_of_some_cpus_is_not_told_of_all(tmp_path: Path) -> None:
    """lxcfs numbers a container's CPUs anew: of 2 to 5 it told 2 and 3, which are others."""
    (tmp_path / "proc").mkdir()
    lines = [f"cpu{number} {100 * number} 0 0 900 0 0 0 0 0 0" for number in range(4)]
    (tmp_path / "proc/stat").write_text("\n".join(["cpu 600 0 0 3600 0 0 0 0 0 0", *lines]) + "\n")
    assert spent_of({2, 3, 4, 5}, tmp_path) is None
    found = spent_of({2, 3}, tmp_path)
    assert found is not None
    assert found["user"] == pytest.approx(500 / os.sysconf("SC_CLK_TCK"))
