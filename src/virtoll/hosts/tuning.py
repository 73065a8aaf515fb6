"""What can be tuned on a machine, so that it scatters less; done when asked for, and undone.

Each knob has a ledger of its own below ``tuned/`` of the state directory, which outlives the command: what is changed
is written down before it is changed. `virtoll untune` and `virtoll clean` undo what stands there; a run does not.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from virtoll.errors import HostError, Problem
from virtoll.hosts import cgroup
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.changes import Keeper, Setting, chosen
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost, end_session
from virtoll.plain import cpu_list

_ROOT = Path("/")
_SAYS_S = 30.0  # a keeper has nothing to do but to begin
CPUS = "sys/devices/system/cpu"
THP = "sys/kernel/mm/transparent_hugepage/enabled"
LATENCY = "dev/cpu_dma_latency"
CONGESTION = "proc/sys/net/ipv4/tcp_congestion_control"
STEADY_CONGESTION = ("cubic", "reno")  # what they send waits for acknowledgements alone
PINNED = "userspace"  # the governor under which a clock is what the user has set it to
STEADY_GOVERNORS = ("performance", PINNED)  # clocks do not follow the load
_GROUP_IDLE = (5, 15)  # the first kernel whose control groups have cpu.idle


@dataclass(frozen=True)
class State:
    """How a knob stands: what is ``now``; what would be done (``""``: nothing has to be); what keeps it from that."""

    now: str
    would: str = ""
    problem: Problem | None = None


@dataclass(frozen=True)
class Knob(ABC):
    """One thing that can be tuned. ``root``: where /sys, /proc and /dev are found."""

    root: Path = _ROOT
    name: ClassVar[str]
    summary: ClassVar[str]
    tuned: ClassVar[str]  # how reports call a machine that is tuned so

    @abstractmethod
    def state(self) -> State:
        """Look, and change nothing."""

    @abstractmethod
    def apply(self, host: Host, ledger: Ledger) -> None:
        """Do it, each change being in the ledger first. HostError where the machine does not let us."""

    def undo(self, host: Host, where: Path) -> list[str]:
        """Undo what this knob's ledger in ``where`` says; one line for each thing in it."""
        return ledgers.clean(host, where, self.name)

    def standing(self, where: Path) -> list[Setting | Keeper]:
        """What was changed and not undone, in order; nothing for who may not see."""
        try:
            text = (where / f"{self.name}.jsonl").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        kinds: dict[str, type[Setting | Keeper]] = {"setting": Setting, "process": Keeper}
        return [kinds[one.kind].named(one.name) for one in reversed(ledgers.standing(text)) if one.kind in kinds]

    def is_in_force(self, where: Path) -> bool:
        """Whether virtoll has tuned it and it all still holds; not after a reboot, or where the command was killed."""
        changes = [one for one in self.standing(where) if self._is_to_hold(one)]
        return bool(changes) and all(one.holds() for one in changes) and self._is_whole(changes)

    def told(self, where: Path) -> str:
        """How reports call the machine, as it is tuned now; "" where it is not."""
        return self.tuned if self.is_in_force(where) else ""

    def _is_to_hold(self, change: Setting | Keeper) -> bool:
        """Whether it must hold for the knob to be in force."""
        del change
        return True

    @abstractmethod
    def _is_whole(self, changes: list[Setting | Keeper]) -> bool:
        """Whether nothing is left to be done beside these."""


class SettingsKnob(Knob):
    """A knob of files that hold one word each."""

    @abstractmethod
    def wanted(self) -> Iterator[tuple[Path, str]]:
        """The files that are here, and the word that each is to hold."""

    @abstractmethod
    def refusal(self) -> Problem | None:
        """What keeps the files from being set so."""

    def changes(self) -> list[Setting]:
        """What differs from what is wanted."""
        found = ((path, chosen(path) or "", word) for path, word in self.wanted())
        return [Setting(path, now, word) for path, now, word in found if now and now != word]

    def state(self) -> State:
        """What the files hold, and which would be changed."""
        unread = [path for path, _ in self.wanted() if len((chosen(path) or "").split()) != 1]
        if unread:
            return State("", problem=Problem("holds no word that could be put back", str(unread[0])))
        now = ", ".join(sorted({chosen(path) or "" for path, _ in self.wanted()}))
        changes = self.changes()
        if (not now or changes) and (problem := self.refusal()):
            return State(now, problem=problem)
        more = f", and {len(changes) - 1} more like it" if len(changes) > 1 else ""
        return State(now, f"set {changes[0].told}{more}" if changes else "")

    def _is_to_hold(self, change: Setting | Keeper) -> bool:
        """A CPU's that was switched off later (SMT) tells nothing, and is nothing to whoever runs on the others."""
        return isinstance(change, Setting) and chosen(change.path) is not None

    def _is_whole(self, changes: list[Setting | Keeper]) -> bool:
        del changes
        return not self.changes()

    def apply(self, host: Host, ledger: Ledger) -> None:
        """Set each file."""
        del host  # files of the machine that this code runs on
        for change in self.changes():
            ledger.keep("setting", change.name)
            change.apply()


def governors(root: Path) -> list[Path]:
    """The files of the CPUs that are online: that of one that is not (SMT is off) can be neither read nor set."""
    files = sorted((root / CPUS).glob("cpu[0-9]*/cpufreq/scaling_governor"))
    return [path for path in files if chosen(path.parents[1] / "online") != "0"]


_AMD = "amd-pstate-epp"  # Linux, drivers/cpufreq/amd-pstate.c: amd_pstate_epp_update_limit


class Governor(SettingsKnob):
    """The frequency governor of every CPU."""

    name = "governor"
    summary = "frequency governor performance, unless clocks are pinned (userspace): they do not follow the load"
    tuned = "frequency governor performance"

    def wanted(self) -> Iterator[tuple[Path, str]]:
        """Every CPU's; that of a pinned clock as it is: put back later it would not bring the frequency back, for it
        keeps the one that it finds (Linux, drivers/cpufreq/cpufreq_userspace.c: cpufreq_userspace_policy_start).

        With amd-pstate the energy preference, too, and before: the governor performance sets it, and no other does it
        back. It is put back after the governor: under performance it cannot be.
        """
        for path in governors(self.root):
            preference = path.with_name("energy_performance_preference")
            is_led = chosen(path.with_name("scaling_driver")) == _AMD and chosen(path) not in STEADY_GOVERNORS
            if is_led and chosen(preference):  # one that has no name cannot be read, nor put back
                yield preference, "performance"
        for path in governors(self.root):
            now = chosen(path) or ""
            yield path, now if now in STEADY_GOVERNORS else STEADY_GOVERNORS[0]

    def refusal(self) -> Problem | None:
        """No frequency driver, or one without that governor."""
        paths = governors(self.root)
        if not paths:
            return Problem("no cpufreq here: the hypervisor or the firmware sets the frequency, and does not tell")
        offered = paths[0].with_name("scaling_available_governors")
        if offered.exists() and "performance" not in (chosen(offered) or "").split():
            return Problem(f"the kernel offers only: {chosen(offered)}", str(offered), "modprobe cpufreq_performance")
        return None


class Turbo(SettingsKnob):
    """Clocks above the nominal one."""

    name = "turbo"
    summary = "turbo off: clocks do not follow temperature and how many CPUs are at work"
    tuned = "turbo off"

    def wanted(self) -> Iterator[tuple[Path, str]]:
        """Intel's own switch, or the common one."""
        for file, word in (("intel_pstate/no_turbo", "1"), ("cpufreq/boost", "0")):
            if chosen(self.root / CPUS / file) is not None:  # intel_pstate's cannot be read where it is switched off
                yield self.root / CPUS / file, word
                return

    def refusal(self) -> Problem | None:
        """No switch."""
        return None if any(self.wanted()) else Problem("no switch here: the hypervisor or the firmware decides it")


class Choice(SettingsKnob):
    """A knob of one file, which stays as it is where it holds a word that will do."""

    file: ClassVar[str]
    will_do: ClassVar[Sequence[str]]  # the first is what it is set to otherwise

    @property
    def path(self) -> Path:
        """Where it is, if it is there."""
        return self.root / self.file

    def wanted(self) -> Iterator[tuple[Path, str]]:
        """The word that it holds, or the first that will do."""
        if self.path.exists():
            now = chosen(self.path) or ""
            yield self.path, now if now in self.will_do else self.will_do[0]


class HugePages(Choice):
    """Transparent huge pages for all who did not ask for them."""

    name = "thp"
    summary = "transparent huge pages for those that ask (madvise): no stalls while they are made"
    tuned = "transparent huge pages for those that ask"
    file = THP
    will_do = ("madvise", "never")

    def refusal(self) -> Problem | None:
        """No switch."""
        return None if self.path.exists() else Problem("this kernel has no transparent huge pages")


def congestion(root: Path = _ROOT) -> str | None:
    """TCP's congestion control, as network namespaces that are made now (labs, containers) have it. None: nobody tells.

    They have the machine's first namespace's, wherever they are made (Linux, net/ipv4/tcp_ipv4.c: tcp_sk_init), and
    virtoll may be in a container, which has one of its own.
    """
    own = chosen(root / CONGESTION)
    if own is None or root != _ROOT:
        return own
    try:
        return LocalHost().run(["unshare", "--net", "cat", str(root / CONGESTION)]).text
    except HostError:  # nobody but root makes any
        return own


class Congestion(Choice):
    """TCP's congestion control, which namespaces that are made from then on, and containers in them, have too."""

    name = "congestion"
    summary = "TCP sends as fast as it may (cubic): one that paces (bbr) has single requests wait for 0.1 s"
    tuned = "TCP congestion control cubic"
    file = CONGESTION
    will_do = STEADY_CONGESTION

    def refusal(self) -> Problem | None:
        """No such file, or no cubic."""
        if not self.path.exists():
            return Problem("is not there", str(self.path))
        offered = self.path.with_name("tcp_available_congestion_control")
        if "cubic" not in (chosen(offered) or "cubic").split():
            return Problem(f"the kernel offers only: {chosen(offered)}", str(offered), "modprobe tcp_cubic")
        return None

    def state(self) -> State:
        """See `SettingsKnob.state`; and what only the machine's first namespace can be told."""
        state = super().state()
        return replace(state, problem=state.problem or (None if state.would else self._beyond()))

    def apply(self, host: Host, ledger: Ledger) -> None:
        """Set it, and see that it is of what is made from then on."""
        super().apply(host, ledger)
        if problem := self._beyond():
            raise HostError(problem.what, where=problem.where, remedy=problem.remedy)

    def _is_whole(self, changes: list[Setting | Keeper]) -> bool:
        return super()._is_whole(changes) and self._beyond() is None

    def _beyond(self) -> Problem | None:
        given = congestion(self.root)
        if given is None or given in self.will_do:
            return None
        what = f"network namespaces that are made here have {given!r}, which is the machine's, and this is a container"
        remedy = "outside of it, on the machine itself: sysctl net.ipv4.tcp_congestion_control=cubic"
        return Problem(what, str(self.path), remedy)


class Idle(Knob):
    """How deep a CPU may sleep."""

    name = "idle"
    summary = "no idle state that takes time to leave: /dev/cpu_dma_latency held at 0 us"
    tuned = "no idle state that takes time to leave"
    # The request stands as long as the file is open. Nothing is asked for before the ledger knows of us.
    _SCRIPT = 'exec 3>"$1" && echo ready && read go && printf "\\0\\0\\0\\0" >&3 && echo done && exec sleep infinity'

    def state(self) -> State:
        """Whether there is such a file."""
        path = self.root / LATENCY
        if not path.exists():
            what = "is not there: this kernel manages no idle states, or a container hides it"
            return State("", problem=Problem(what, str(path)))
        return State("not held", f"hold {path} at 0 us by a process")

    def apply(self, host: Host, ledger: Ledger) -> None:
        """Hold it."""
        argv = ["sh", "-c", self._SCRIPT, "sh", str(self.root / LATENCY)]
        _start(host, ledger, argv, "keeps CPUs from deep idle states")

    def _is_whole(self, changes: list[Setting | Keeper]) -> bool:
        return len(changes) == 1


class Awake(Knob):
    """A CPU that never sleeps need not be woken."""

    name = "awake"
    summary = "a loop on every CPU that gives way to all else (SCHED_IDLE): a virtual CPU need not be woken"
    tuned = "a loop at SCHED_IDLE on every CPU, which never sleeps"
    _SCRIPT = "echo ready && read go && echo done && exec >&- 2>&- && while :; do :; done"

    def state(self) -> State:
        """Whether a loop would give way here."""
        cpus = os.sched_getaffinity(0)
        release = re.match(r"(\d+)\.(\d+)", chosen(self.root / "proc/sys/kernel/osrelease") or "")
        now = "CPUs sleep when there is nothing to do"
        if release is None or (int(release[1]), int(release[2])) < _GROUP_IDLE:
            what = "before Linux 5.15 a control group cannot be idle, and the loops would not give way"
            return State(now, problem=Problem(what, remedy="`virtoll tune idle`, or a newer kernel"))
        if chosen(self.root / CPUS / "smt/active") == "1":
            what = "two CPUs are threads of one core here, and a loop on one takes from the other"
            return State(now, problem=Problem(what, "SMT", "`virtoll tune idle`; or `echo off` to smt/control before"))
        return State(now, f"start {len(cpus)} loops at SCHED_IDLE, one on each of CPUs {cpu_list(cpus)}")

    def apply(self, host: Host, ledger: Ledger) -> None:
        """Start the loops, in a group of their own: in their session's they would weigh as much as a service does.

        (Each session (autogroup) and each service's group has its share of a CPU, whatever the policy of who is in
        it. And below virtoll's own group the loops would weigh as much as all of virtoll. They are one level deeper:
        from a root of whose children none hands a controller on systemd takes it back, and cpu.idle with it.)
        """
        name = f"{_AWAKE}{secrets.token_hex(2)}"
        ledger.keep("cgroup", name)
        loops = cgroup.make(cgroup.hierarchies(), f"{name}/loops")
        is_idle = Setting(loops.directory("cpu").parent / "cpu.idle", "0", "1")
        ledger.keep("setting", is_idle.name)
        is_idle.apply()
        for cpu in sorted(os.sched_getaffinity(0)):
            there = Confinement(cgroup_procs=loops.procs, cpus=frozenset({cpu}))
            argv = [
                "nice",
                "-n",
                "19",
                "chrt",
                "--idle",
                "0",
                "sh",
                "-c",
                self._SCRIPT,
            ]  # nice: /proc/stat tells it apart
            _start(host, ledger, argv, _keeps_awake(cpu), there)

    def _is_whole(self, changes: list[Setting | Keeper]) -> bool:
        kept = {change.purpose for change in changes if isinstance(change, Keeper)}
        return kept >= {_keeps_awake(cpu) for cpu in os.sched_getaffinity(0)}

    def told(self, where: Path) -> str:
        """See `Knob.told`; a machine on which some loops are at work is another one, too."""
        return super().told(where) or self.partly(where)

    def partly(self, where: Path) -> str:
        """The loops that are at work, in words, where they are not on every CPU, or do not give way; else ""."""
        cpus = self.cpus(where)
        if not cpus or self.is_in_force(where):
            return ""
        give_way = all(one.holds() for one in self.standing(where) if isinstance(one, Setting))
        told = cpu_list(cpus)
        return f"loops at SCHED_IDLE on CPUs {told} only" if give_way else f"loops on CPUs {told} that do not give way"

    def cpus(self, where: Path) -> set[int]:
        """Those on which loops are at work, be they all that there are to be or not."""
        loops = (one for one in self.standing(where) if isinstance(one, Keeper) and one.holds())
        return {int(found[1]) for one in loops if (found := re.search(r"CPU (\d+)", one.purpose))}


_AWAKE = "virtoll-awake-"


def groups_awake(layout: cgroup.Hierarchies) -> list[str]:
    """The control groups of the loops that keep CPUs awake."""
    return sorted({path.name for root in set(layout.mounts.values()) for path in root.glob(f"{_AWAKE}*")})


def loops_give_way(layout: cgroup.Hierarchies) -> bool:
    """Whether such loops are there, on whichever CPUs, and give way to all else: their groups are idle themselves."""
    groups = groups_awake(layout)
    return bool(groups) and all(chosen(layout.directory("cpu", name) / "cpu.idle") == "1" for name in groups)


def _keeps_awake(cpu: int) -> str:
    return f"keeps CPU {cpu} awake"


def _start(host: Host, ledger: Ledger, argv: list[str], purpose: str, there: Confinement | None = None) -> None:
    """Start a keeper, which does nothing but wait until it is in the ledger, and ends where we die before that."""
    child = host.spawn(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        confinement=there,
        cwd=_ROOT,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        _expect(child.stdout.fileno(), b"ready\n", purpose)
        ledger.keep("process", Keeper.of(child.pid, purpose).name)
        with suppress(BrokenPipeError):  # it has ended: what it said of that comes next
            child.stdin.write(b"go\n")
            child.stdin.flush()
        _expect(child.stdout.fileno(), b"done\n", purpose)
    except BaseException:
        end_session(child)
        raise
    finally:
        with suppress(OSError):
            child.stdin.close()
        child.stdout.close()


def _expect(descriptor: int, wanted: bytes, purpose: str) -> None:
    """HostError where its next line is another, or it ends, or says nothing for `_SAYS_S`."""
    said, silent = b"", ""
    while not said.endswith(b"\n") and not silent:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(_SAYS_S * 1000):
            silent = f"said nothing for {_SAYS_S:g} s"
        elif more := os.read(descriptor, 1):
            said += more
        else:
            silent = "ended without a word"
    if said != wanted:
        told = said.decode(errors="replace").strip() or silent
        raise HostError(told, where=f"the process that {purpose}", remedy="run it as root; not in a container")


KNOBS: tuple[type[Knob], ...] = (Governor, Turbo, HugePages, Congestion, Idle, Awake)


def directory() -> Path:
    """Where the knobs' ledgers lie."""
    return ledgers.state_directory() / "tuned"


def in_force(where: Path, root: Path = _ROOT) -> dict[str, str]:
    """How this machine is tuned now: by knob, in words. ``where``: the ledgers' directory."""
    return {knob.name: told for knob in KNOBS if (told := knob(root).told(where))}


def keepers(where: Path) -> list[Keeper]:
    """The processes that a tuned machine has at work."""
    changed = [one for knob in KNOBS for one in knob().standing(where)]
    return [one for one in changed if isinstance(one, Keeper) and one.holds()]
