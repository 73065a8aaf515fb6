"""The proofs that an instance's limits bite, by effect. Each is one check in a trial's record; they cost seconds."""

from __future__ import annotations

import errno
import math
import os
import sys
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns

from virtoll.agent import Got, StreamError, StreamTimeoutError
from virtoll.errors import AgentError, HostError
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.tuning import loops_give_way
from virtoll.platforms.base import Instance, is_elsewhere, platforms
from virtoll.probes.base import Place
from virtoll.record.model import NOT_LIMITED, PlannedTrial
from virtoll.study.limits import Limits
from virtoll.trial.notes import Notes
from virtoll.trial.proofs import has_ended
from virtoll.trial.watchdog import danger, look
from virtoll.units import format_bytes

# Of arms, by their labels, with these limits in an image (digest): which of them bite.
Proved = dict[tuple[str, Limits, str], set[str]]

EXCESS = 1.25  # what is this much larger than a limit must not be had
# Half a CPU of room: 300 ms hold only three quota periods, and a period begun early may give its time at once.
_ROOM_CPUS = 0.5
_NEARLY = 0.9  # of a limit: what is refused, or killed, with less was so by something else
_HALF = 0.5  # the same of a disk, of which the instance's own files take a part
_MIB = 1024**2
_CPU, _DISK, _PIDS = "the CPU limit bites", "the disk limit bites", "the limit of processes bites"
_MEMORY = "the memory limit bites"
ORDER = (_CPU, _DISK, _PIDS, _MEMORY)  # in which they are tried: what has no memory left may have ended
ALL = frozenset(ORDER)
_GUESTS_TASKS = "/sys/fs/cgroup/instance/pids.current"  # inside: the group of rust/agent/src/guest.rs
_WRITABLE = "/var/tmp"  # inside: on the instance's own disk, on every platform


def prove_beside(proved: Proved, place: Place, trial: PlannedTrial, notes: Notes) -> None:
    """Before an arm measures anything, and on an instance made for it: a proof leaves its traces in memory.

    While one limit does not bite, each of the arm's trials tries that again, and is invalid.
    """
    known = proved.setdefault(_key(trial, place.instance), set())
    if is_elsewhere(place.instance):
        _of_no_limits(notes)
    elif not known >= ALL:
        with place.another(1) as instance:
            known |= of_limits(notes, instance, known)


def prove_on(proved: Proved, instance: Instance, trial: PlannedTrial, notes: Notes) -> None:
    """When the measuring is over, on an instance that ends with its trial and lives."""
    known = proved.setdefault(_key(trial, instance), set())
    if is_elsewhere(instance):
        _of_no_limits(notes)
    elif not known >= ALL and notes.outcome in (None, "answered"):
        known |= of_limits(notes, instance, known)


def _key(trial: PlannedTrial, instance: Instance) -> tuple[str, Limits, str]:
    return (trial.arm.label, instance.limits, instance.image.digest)


def note_kernel_counts(notes: Notes, instance: Instance) -> None:
    """What the platform's own kernel counts of it, before a proof adds to that: which limits have refused how often."""
    try:
        counts = instance.kernel_counts()
    except HostError as error:
        counts = {"untold": str(error)}
    if counts:
        notes.facts["kernel_counts"] = counts


def _of_no_limits(notes: Notes) -> None:
    """What is not limited from here is not tried either: all of that machine would be taken, which is the user's."""
    for name in ORDER:
        notes.check(name, None, f"not tried: {NOT_LIMITED}")


def of_limits(notes: Notes, instance: Instance, known: Set[str] = frozenset()) -> set[str]:
    """Which limits bite, but for those that are known to: each costs up to seconds to prove."""
    before = len(notes.checks)
    tries = {_CPU: of_cpu_count, _DISK: of_disk_limit, _PIDS: of_pids_limit, _MEMORY: of_memory_limit}
    with notes.phase("prove"):
        for name in (name for name in ORDER if name not in known):
            # Its end would be taken for that of who asked for too much memory.
            if name == _MEMORY and not instance.is_running():
                notes.check(_MEMORY, None, "could not be tried: the instance has ended before")
            else:
                tries[name](notes, instance)
    return {check.name for check in notes.checks[before:] if check.passed}


def of_cpu_count(notes: Notes, instance: Instance) -> None:
    """Busy threads inside, about twice as many as vCPUs, get no more CPU time than the limit while the host has more.

    What others use, or a hypervisor takes, keeps an instance without a limit from more as well.
    """
    vcpus = instance.limits.vcpus
    name = _CPU
    cpus, of_host = os.sched_getaffinity(0), os.cpu_count() or 1
    threads = min(2 * vcpus + 1, of_host)  # more get no more, and are refused where [limits] pids is small
    begun_ns, idle_ns = monotonic_ns(), _idle_ns(cpus)
    before_ns = None if instance.counts_cpu_time else _counted_by_host_ns(instance)
    try:
        burnt = instance.agent.burn(threads, 300)
    except StreamError:
        raise
    except AgentError as error:
        notes.check(name, None, f"could not be tried: {error.problem.what}")
        return
    used_ns, whose = burnt["cpu_ns"], ""
    if not instance.counts_cpu_time:
        after_ns = _counted_by_host_ns(instance)
        if before_ns is None or after_ns is None:
            notes.check(name, None, "neither the instance nor the host tells the CPU time that was used")
            return
        used_ns, whose = after_ns - before_ns, ", as the host counts"
    idle_ns = _idle_ns(cpus) - idle_ns
    # As if all of them had stood idle before it began, and after it ended.
    beside_ns = max(0, monotonic_ns() - begun_ns - burnt["wall_ns"]) * len(cpus)
    got, left = used_ns / burnt["wall_ns"], max(0, idle_ns - beside_ns) / burnt["wall_ns"]
    detail = f"{threads} busy threads got {got:.2f} CPU{whose}"
    if got > vcpus + _ROOM_CPUS:
        notes.check(name, False, detail)
    elif vcpus >= of_host:
        notes.check(name, True, f"{detail}, and the host has no more")
    elif left < _ROOM_CPUS:
        notes.check(name, None, f"{detail}, and {left:.2f} more were to be had: others' work is no limit")
    else:
        notes.check(name, True, detail)


def _idle_ns(cpus: Set[int]) -> int:
    """For how long these CPUs of the host's have stood idle since it began (proc_stat(5): idle and iowait; nice, too,
    where `virtoll tune awake` has loops at work that give way to all else).
    """
    names = {f"cpu{cpu}" for cpu in cpus}
    columns = (2, 4, 5) if loops_give_way(hierarchies()) else (4, 5)
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    ticks = sum(int(line[column]) for line in lines if line[0] in names for column in columns)
    return ticks * 10**9 // os.sysconf("SC_CLK_TCK")


def _counted_by_host_ns(instance: Instance) -> int | None:
    return Cgroup(instance.accounting.cgroup, hierarchies()).cpu_ns()


def of_disk_limit(notes: Notes, instance: Instance) -> None:
    """A file larger than the disk gets no space; it is deleted again."""
    asked = round(instance.limits.disk_bytes * EXCESS)
    name = _DISK
    try:
        got = instance.agent.reserve(_WRITABLE, asked)
    except AgentError as error:
        notes.check(name, None, f"could not be tried: {error.problem.what}")
        return
    had = got.amount // _MIB * _MIB
    refused = had < asked and got.errno in (errno.ENOSPC, errno.EDQUOT)
    detail = f"{format_bytes(asked)} asked for, {format_bytes(had)} got: {_refusal(got)}"
    if refused and had < _HALF * instance.limits.disk_bytes:
        far = f"that is far below the limit of {format_bytes(instance.limits.disk_bytes)}"
        notes.check(name, None, f"{detail}; {far}: it is nearly full, or something else refused (a full disk below?)")
    else:
        notes.check(name, refused, detail)


def of_pids_limit(notes: Notes, instance: Instance) -> None:
    """A quarter more processes than the limit are not to be had; those that were end again."""
    # A guest's kernel counts its own threads too, of which some come and go.
    asked = math.ceil(instance.limits.pids * EXCESS)
    name = _PIDS
    if end := _hosts_own_end(instance, tasks=asked * instance.hosts_tasks_each):
        notes.check(name, None, f"not tried: {end}; give less in [limits] pids")
        return
    held = _tasks(instance)
    try:
        got = instance.agent.processes(asked)
    except AgentError as error:
        if isinstance(error, StreamError) and not isinstance(error, StreamTimeoutError):
            has_ended(instance)  # which may come a moment after its stream's end, and is asked for next
        notes.check(name, None, f"could not be tried: {error.problem.what}")
        return
    detail = f"{asked} processes asked for, {got.amount} got: {_refusal(got)}"
    if got.errno not in (None, errno.EAGAIN):  # for want of anything else: no proof that their number is limited
        notes.check(name, None, detail)
    elif got.errno is not None and held is not None and got.amount + held < _nearly(instance.limits.pids):
        far = f"with {held} that were there, that is far below the limit of {instance.limits.pids}"
        notes.check(name, None, f"{detail}; {far}: something else refused (ulimit -u, kernel.pid_max, a group above?)")
    else:
        notes.check(name, got.amount < asked and got.errno is not None, detail)


def _nearly(pids: int) -> float:
    """How many tasks a limit of processes lets there be at least, of which some come and go."""
    return min(_NEARLY * pids, pids - 16)


def _tasks(instance: Instance) -> int | None:
    """How many processes and threads it has, as its guest's kernel counts them, or the host's; None where neither does
    so one by one (of gVisor's the host has an unknown number for each).
    """
    try:
        return int(instance.agent.get(_GUESTS_TASKS))
    except (AgentError, ValueError):
        each = instance.hosts_tasks_each
        return _payload(instance).tasks() if each == 1 else 0 if each == 0 else None


def _hosts_own_end(instance: Instance, *, memory_bytes: int = 0, tasks: int = 0) -> str:
    """What the host would lack if the instance took so much, in words; "" where it would lack nothing. It would then be
    the host that refuses or kills, anybody it likes, and that would be taken for the limit.
    """
    state = look(instance.accounting.directory)
    there = replace(state, tasks=state.tasks + tasks, disk_free_bytes=sys.maxsize)
    if memory_bytes and instance.accounting.meter is None:  # else all of it was taken from the host when it began
        held_bytes = instance.accounting.huge_bytes or _held_bytes(instance)
        more = max(0, memory_bytes - held_bytes)
        there = replace(there, available_bytes=state.available_bytes - more)
    return f"with that, {lacking}" if (lacking := danger(there)) else ""


def _held_bytes(instance: Instance) -> int:
    layout, accounting = hierarchies(), instance.accounting
    return max(Cgroup(name, layout).held_bytes() for name in {accounting.cgroup, *accounting.parts.values()})


def _refusal(got: Got) -> str:
    return "nothing was refused" if got.errno is None else os.strerror(got.errno)


def of_memory_limit(notes: Notes, instance: Instance) -> None:
    """An allocation above the limit is refused or killed. Comes last: it may take the service with it."""
    asked = round(instance.limits.memory_bytes * EXCESS)
    name = _MEMORY
    if end := _hosts_own_end(instance, memory_bytes=instance.limits.memory_bytes):
        notes.check(name, None, f"not tried: {end}; give less in [limits] memory, or free some")
        return
    kept_bytes = _kept_bytes(instance)
    try:
        outcome = instance.agent.allocate(asked)
    except StreamTimeoutError as error:
        notes.check(name, None, f"{format_bytes(asked)} asked for, and no answer: {error.problem.what}")
        return
    except StreamError as error:
        told = f"when {format_bytes(asked)} were asked for ({error.problem.what})"
        if has_ended(instance):
            notes.check(name, True, f"the instance ended {told}")
        else:
            notes.check(name, None, f"the agent's stream broke {told}, and the instance lives: no proof")
        return
    except AgentError as error:
        notes.check(name, None, f"could not be tried: {error.problem.what}")
        return
    detail = f"{format_bytes(asked)} asked for, {format_bytes(outcome['touched_bytes'])} got: {outcome['ended']}"
    if outcome["ended"] == "refused" and _is_on_hosts_kernel(instance):
        detail += ", which no control group does (vm.overcommit_memory, or ulimit -v?): no proof"
        notes.check(name, None, detail)
        return
    if outcome["ended"] == "killed" and kept_bytes is not None and _is_on_hosts_kernel(instance):
        reached_bytes, limit_bytes = outcome["touched_bytes"] + kept_bytes, instance.limits.memory_bytes
        if reached_bytes < _NEARLY * limit_bytes:
            detail += f"; with {format_bytes(kept_bytes)} that was there, that is far below the limit of"
            detail += f" {format_bytes(limit_bytes)}: something else killed (a group above, earlyoom, systemd-oomd?)"
            notes.check(name, None, detail)
            return
    if outcome["ended"] == "complete" and _swaps(instance):
        detail += "; this kernel limits no swap: boot it with swapaccount=1, or swapoff -a"
    notes.check(name, outcome["ended"] != "complete", detail)


def _kept_bytes(instance: Instance) -> int | None:
    """What of its memory limit it has taken by now for good; None where nobody tells."""
    return _payload(instance).kept_bytes()


def _swaps(instance: Instance) -> bool:
    """Whether what it has may go to swap at its limit: under version 2 of a kernel that does not count swap."""
    payload = _payload(instance)
    if payload.hierarchies.version == 1:
        return False
    there = payload.directory("memory")
    return there.is_dir() and not (there / "memory.swap.max").exists()


def _payload(instance: Instance) -> Cgroup:
    """The group that has its limits."""
    return Cgroup(instance.accounting.parts.get("payload", instance.accounting.cgroup), hierarchies())


def _is_on_hosts_kernel(instance: Instance) -> bool:
    """Whether its processes are the host's own, with no kernel or sentry in between."""
    known = platforms().get(instance.platform)
    own = None if known is None else known.features.get("own-kernel")
    return own is not None and own.answer == "no" and instance.hosts_tasks_each == 1
