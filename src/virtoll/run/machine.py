"""`virtoll doctor --machine`: what this machine's own settings and neighbours do to measurements, and what mends it.

One small function a check: from a root directory (/proc and /sys below it) and what was measured here to a finding.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from virtoll.hosts import tuning
from virtoll.hosts.changes import chosen
from virtoll.run import trying
from virtoll.run.looking import Seen, look
from virtoll.run.trying import Clock, Sums, Touch, Wake
from virtoll.run.unstyled import plain

Verdict = Literal["good", "noisy", "unknown"]
_CPUS = tuning.CPUS
_GOOD_CLOCKS = (
    "tsc",
    "kvm-clock",
    "arch_sys_counter",
    "hyperv_clocksource_tsc_page",
    "xen",
    "timebase",
    "riscv_clocksource",
)
# From where on a check says that figures will scatter. Chosen so that a quiet machine passes, and no more.
_STOLEN = 0.005
_BUSY = 0.05
_ONES = 0.5  # of one CPU: it may be one of the instance's, of however many
_WAITED = 0.05
_SPREAD = 0.02
_WAKE_NS = 10_000
_SLEW_PPM = 100
_NO_SLEEP = 0.5  # the CPUs' share from which on one that is woken may not have slept


@dataclass(frozen=True)
class Measured:
    """What was tried here; None where it could not be, or nobody tried."""

    seen: Seen
    sums: Sums | None = None
    wake: Wake | None = None
    touch: Touch | None = None
    clock: Clock | None = None


@dataclass(frozen=True)
class Finding:
    """One check: its ``state`` here, its ``effect`` as measured here, and a command that mends it.

    ``missing`` says what could not be read or measured, and why; then state or effect is "".
    """

    name: str
    verdict: Verdict
    state: str
    effect: str = ""
    remedy: str = ""
    missing: str = ""


def _governor(root: Path, measured: Measured) -> Finding:
    names = sorted({chosen(path) or "?" for path in tuning.governors(root)})
    effect = _speed(measured.sums)
    if not names:
        missing = "no cpufreq in /sys: the hypervisor or the firmware sets the frequency, and does not tell"
        return Finding("governor", "unknown", "", effect, missing=missing)
    is_good = set(names) <= set(tuning.STEADY_GOVERNORS)
    remedy = "" if is_good else "virtoll tune governor"
    state = ", ".join(f"{name} (the clock is pinned)" if name == tuning.PINNED else name for name in names)
    return Finding("governor", "good" if is_good else "noisy", state, effect, remedy)


def _turbo(root: Path, measured: Measured) -> Finding:
    effect = _scatter(measured.sums)
    for file, off in (("intel_pstate/no_turbo", "1"), ("cpufreq/boost", "0")):
        if (word := chosen(root / _CPUS / file)) is not None:
            if word == off:
                return Finding("turbo", "good", "off", effect)
            return Finding("turbo", "noisy", "on", effect, "virtoll tune turbo")
    return Finding(
        "turbo", "unknown", "", effect, missing="no switch in /sys: the hypervisor or the firmware decides it"
    )


def _smt(root: Path, measured: Measured) -> Finding:
    del measured
    active, control = chosen(root / _CPUS / "smt/active"), chosen(root / _CPUS / "smt/control")
    if active is None:
        return Finding(
            "SMT", "unknown", "", missing="/sys/devices/system/cpu/smt is not there (kernel, or architecture)"
        )
    if active == "0":
        state = "off" if control in ("off", "forceoff") else "none seen; a hypervisor may hide it"
        return Finding("SMT", "good", state)
    missing = "effect not measured: it is what the other thread of a core does"
    return Finding("SMT", "noisy", "on", "", "echo off > /sys/devices/system/cpu/smt/control", missing)


def _numa(root: Path, measured: Measured) -> Finding:
    del measured
    nodes = chosen(root / "sys/devices/system/node/online")
    if nodes is None:
        return Finding("NUMA", "unknown", "", missing="no /sys/devices/system/node: a kernel without NUMA, so one node")
    if nodes == "0":
        return Finding("NUMA", "good", "one node")
    moves = chosen(root / "proc/sys/kernel/numa_balancing") not in (None, "0")
    state = f"nodes {nodes}" + (", and the kernel moves pages between them" if moves else "")
    remedy = "sysctl kernel.numa_balancing=0" if moves else "numactl --cpunodebind=0 --membind=0 virtoll run ..."
    missing = "effect not measured: it depends on where a service's memory lies"
    return Finding("NUMA", "noisy", state, "", remedy, missing)


def _steal(root: Path, measured: Measured) -> Finding:
    del root
    seen = measured.seen
    if seen.stolen is None:
        return Finding("steal", "unknown", "", missing="/proc/stat does not tell")
    effect = f"{seen.stolen:.1%} of the CPUs' time over {seen.seconds:.0f} s"
    if seen.stolen > _STOLEN:
        remedy = "no command here: `virtoll run STUDY --budget 30m` averages over it; dedicated CPUs end it"
        return Finding("steal", "noisy", "the hypervisor takes CPU time", effect, remedy)
    return Finding("steal", "good", "none to speak of", effect)


def _load(root: Path, measured: Measured) -> Finding:
    del root
    seen = measured.seen
    if seen.busy is None:
        return Finding("other load", "unknown", "", missing="/proc/stat does not tell")
    effect = f"{seen.busy:.1%} of the CPUs' time over {seen.seconds:.0f} s"
    if seen.busy <= _BUSY and seen.most <= _ONES:
        return Finding("other load", "good", "next to none", effect)
    pid = seen.heaviest[0].rpartition(" (")[2].partition(")")[0] if seen.heaviest else ""
    state = "; ".join(seen.heaviest) or "many small ones, or in the kernel"
    remedy = f"ps -o user,etime,args -p {pid}   # and end it, if nobody needs it" if pid else "top"
    return Finding("other load", "noisy", state, effect, remedy)


def _pressure(root: Path, measured: Measured) -> Finding:
    del root
    seen = measured.seen
    if not seen.waited:
        missing = "no /proc/pressure: a kernel without PSI, or booted without psi=1"
        return Finding("PSI", "unknown", "", missing=missing)
    worst = max(seen.waited, key=lambda resource: seen.waited[resource])
    effect = ", ".join(f"{name} {share:.1%}" for name, share in seen.waited.items()) + f" of {seen.seconds:.0f} s"
    if seen.waited[worst] > _WAITED:
        return Finding("PSI", "noisy", f"somebody waits for {worst}", effect, f"cat /proc/pressure/{worst}; top")
    return Finding("PSI", "good", "nobody waits", effect)


def _huge_pages(root: Path, measured: Measured) -> Finding:
    word = chosen(root / tuning.THP)
    effect = missing = ""
    if measured.touch is None:
        missing = "effect not measured: this kernel gives no huge pages on demand"
    else:
        huge, small = measured.touch.huge_s * 1e3, measured.touch.small_s * 1e3
        effect = f"first touch of 32 MiB: {huge:.1f} ms with them, {small:.1f} ms without"
    if word is None:
        return Finding("THP", "unknown", "", effect, missing="this kernel has no transparent huge pages")
    is_good = word in ("madvise", "never")
    return Finding("THP", "good" if is_good else "noisy", word, effect, "" if is_good else "virtoll tune thp", missing)


def _congestion(root: Path, measured: Measured) -> Finding:
    del measured
    word = tuning.congestion(root)
    if word is None:
        return Finding("TCP", "unknown", "", missing=f"/{tuning.CONGESTION} is not there")
    is_good = word in tuning.STEADY_CONGESTION
    missing = "" if is_good else "effect not measured: it hangs on how services and users wait for each other"
    remedy = "" if is_good else "virtoll tune congestion"
    return Finding("TCP", "good" if is_good else "noisy", f"congestion control {word}", "", remedy, missing)


def _swap(root: Path, measured: Measured) -> Finding:
    try:
        devices = (root / "proc/swaps").read_text(encoding="utf-8").splitlines()[1:]
    except OSError:
        return Finding("swap", "unknown", "", missing="no /proc/swaps: a kernel without swap, or a container")
    if not devices:
        return Finding("swap", "good", "none")
    used_kib = sum(int(line.split()[3]) for line in devices)
    moved = measured.seen.swapped_pages
    effect = "" if moved is None else f"{moved} pages moved in {measured.seen.seconds:.0f} s"
    missing = "/proc/vmstat does not tell what is moved" if moved is None else ""
    state = f"{len(devices)} in use, holding {used_kib // 1024} MiB" if used_kib else f"{len(devices)}, empty"
    is_good = not used_kib and not moved
    return Finding("swap", "good" if is_good else "noisy", state, effect, "" if is_good else "swapoff -a", missing)


def _time_sync(root: Path, measured: Measured) -> Finding:
    del root
    clock = measured.clock
    if clock is None or clock.is_synchronised is None:
        return Finding("time sync", "unknown", "", missing="adjtimex(2) does not tell here")
    effect = f"the clock goes {clock.slew_ppm:+.1f} ppm against its oscillator: so wrong is every interval"
    state = "the clock is set by another" if clock.is_synchronised else "nobody sets the clock"
    if abs(clock.slew_ppm) > _SLEW_PPM:
        return Finding("time sync", "noisy", state, effect, "chronyc waitsync 30 0 0 1   # until it has settled")
    return Finding("time sync", "good", state, effect)


def _clock_source(root: Path, measured: Measured) -> Finding:
    place = "sys/devices/system/clocksource/clocksource0"
    word = chosen(root / place / "current_clocksource")
    effect = (
        "" if measured.clock is None else f"a reading takes {measured.clock.reading_ns:.0f} ns, Python's part included"
    )
    if word is None:
        return Finding("clock source", "unknown", "", effect, missing=f"no /{place}")
    if word in _GOOD_CLOCKS:
        return Finding("clock source", "good", word, effect)
    offered = (chosen(root / place / "available_clocksource") or "").split()
    better = next((name for name in _GOOD_CLOCKS if name in offered), "")
    remedy = f"echo {better} > /{place}/current_clocksource" if better else "no command: the kernel offers no other"
    return Finding("clock source", "noisy", word, effect, remedy)


def _idle(root: Path, measured: Measured) -> Finding:
    states = sorted((root / _CPUS / "cpu0/cpuidle").glob("state[0-9]*"))
    told = [
        f"{chosen(one / 'name')} ({chosen(one / 'latency')} us)" for one in states if chosen(one / "disable") != "1"
    ]
    state = ", ".join(told)
    missing = "" if told else "no cpuidle in /sys: the hypervisor or the processor decides how deep a CPU sleeps"
    wake = measured.wake
    if wake is None:
        lacks = "effect not measured: there is only one CPU"
        return Finding("idle states", "unknown", state, missing="; ".join(filter(None, (missing, lacks))))
    costs = wake.asleep_ns - wake.awake_ns
    if costs < 0 or (measured.seen.busy or 0) > _NO_SLEEP:
        lacks = "effect not measured: the CPUs were busy meanwhile"
        return Finding("idle states", "unknown", state, missing="; ".join(filter(None, (missing, lacks))))
    effect = (
        f"waking a CPU costs {costs / 1e3:.1f} us (there and back {wake.asleep_ns / 1e3:.1f} us, one in a hundred "
        f"{wake.asleep_p99_ns / 1e3:.1f} us; {wake.awake_ns / 1e3:.1f} us when it never slept)"
    )
    if costs > _WAKE_NS:
        return Finding("idle states", "noisy", state, effect, "virtoll tune idle awake", missing)
    return Finding("idle states", "good", state, effect, missing=missing)


def _speed(sums: Sums | None) -> str:
    if sums is None:
        return ""
    return f"after a rest the first of {len(sums.cpu_s)} equal sums takes {sums.first - 1:+.1%} CPU time"


def _scatter(sums: Sums | None) -> str:
    return "" if sums is None else f"CPU time of {len(sums.cpu_s)} equal sums scatters by {sums.cpu_spread:.1%}"


def _in_all(root: Path, measured: Measured) -> Finding:
    """What all of it together does to a fixed amount of work."""
    del root
    sums = measured.sums
    if sums is None:
        return Finding("fixed work", "unknown", "", missing="not measured")
    state = f"{len(sums.wall_s)} equal sums take {min(sums.wall_s) * 1e3:.1f} to {max(sums.wall_s) * 1e3:.1f} ms"
    effect = f"scatter {sums.spread:.1%}; somebody else had the CPU for {sums.waited:.1%} of it"
    if sums.spread > _SPREAD:
        return Finding("fixed work", "noisy", state, effect, "mend what is noisy below, then look again")
    return Finding("fixed work", "good", state, effect)


CHECKS: tuple[Callable[[Path, Measured], Finding], ...] = (
    _in_all,
    _steal,
    _load,
    _pressure,
    _idle,
    _governor,
    _turbo,
    _smt,
    _numa,
    _huge_pages,
    _congestion,
    _swap,
    _clock_source,
    _time_sync,
)


def examine(root: Path, measured: Measured) -> list[Finding]:
    """Every check."""
    return [check(root, measured) for check in CHECKS]


def measure(root: Path = Path("/")) -> Measured:
    """Watch this machine for two seconds, and try it for two more; changes nothing. Nobody else may measure here."""
    cpus = sorted(os.sched_getaffinity(0))
    before = trying.clocks()
    seen = look(root, ours=frozenset(one.pid for one in tuning.keepers(tuning.directory())))
    slew = trying.slew_ppm(before, trying.clocks())
    return Measured(
        seen=seen,
        sums=trying.sums(cpus[-1]),
        wake=trying.wake(cpus[0], cpus[-1]) if len(cpus) > 1 else None,
        touch=_touch(),
        clock=Clock(trying.reading_ns(), trying.synchronised(), slew),
    )


def _touch() -> Touch | None:
    try:
        return trying.touch()
    except OSError:  # EINVAL: a kernel without huge pages takes no advice on them
        return None


_SHOWN: dict[Verdict, str] = {"good": "[green]good[/]", "noisy": "[yellow]noisy[/]", "unknown": "[dim]not known[/]"}


def show(findings: list[Finding], tuned: dict[str, str], console: Console) -> None:
    """Print a line a check, with what it does and what mends it below."""
    table = Table(title="what this machine does to measurements", title_justify="left", box=None, show_header=False)
    for _ in range(3):
        table.add_column()
    for one in findings:
        table.add_row(plain(one.name), _SHOWN[one.verdict], plain(one.state or one.missing))
        below = [one.effect, one.missing if one.state else "", f"-> {one.remedy}" if one.remedy else ""]
        for line in filter(None, below):
            table.add_row("", "", plain(line, "dim"))
    console.print(table)
    if tuned:
        console.print(plain(f"\nthe machine is tuned: {'; '.join(tuned.values())} (`virtoll untune` undoes it)"))


def as_json(findings: list[Finding], tuned: dict[str, str]) -> dict[str, Any]:
    """The same for programs; docs/JSON.md has the keys."""
    return {"tuned": tuned, "checks": [asdict(one) for one in findings]}
