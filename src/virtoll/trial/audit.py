"""What really holds for an instance, read when its service runs and before anything is measured.

From inside by the agent's own verbs: files of /proc and /sys, and the dynamic loader's own --version; no shell. From
outside by the instance's control groups and its processes in the host's /proc. What cannot be read is missing, with
the reason. What an instance says is a stranger's: it is bounded, in length and in time, and only ever shown and
compared as text.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from virtoll.agent import Agent, StreamError, StreamTimeoutError
from virtoll.errors import AgentError
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.lab.base import GENERATOR_ADDRESS
from virtoll.platforms.base import Instance, is_elsewhere
from virtoll.record.model import NOT_LIMITED, Audit, PlannedTrial
from virtoll.trial import procfiles
from virtoll.trial.notes import Notes
from virtoll.trial.procfiles import UntoldError

VULNERABILITIES = "/sys/devices/system/cpu/vulnerabilities"
AGENT = "agent"
# Facts that a platform's driver names, where it has such a thing.
_OF_THE_DRIVER = (
    "accelerator",
    "machine_type",
    "memory_pages",
    "disk_cache",
    "disk_io",
    "network_backend",
    "oci_runtime",
)
_AUDIT_S = 10.0  # for all keys; what was not read by then is missing
_KEY_S = 3.0  # for one key's answers, so that one slow file does not cost all the others
_MOST_PROCESSES = 64  # that are looked for in one service's tree
_MOST_CHARS = 4096  # of one value: what is longer is missing, since a part of it would compare as the whole
_MOST_REASON_CHARS = 400
_MOST_FILE_CHARS = 64 * 1024
_MOST_TABLE_CHARS = 1024**2  # of a process's maps and mounts, which have as many lines as it likes


def first(audited: set[str], trial: PlannedTrial, instance: Instance, notes: Notes) -> None:
    """Note the audit of an arm's first deployment in a run; where service or limits vary, of each such setting's."""
    if instance.services:
        process, pid = next(iter(instance.services.items()))
    else:
        process, pid = AGENT, 0
    condition = Audit.levels(trial.condition)
    key = f"{trial.arm.label} {process} {condition}"
    if key in audited:
        return
    with notes.phase("audit"):
        found, missing = _read(instance, pid)
        notes.audit = Audit(process=process, condition=condition, found=found, missing=missing)
    audited.add(key)


def _read(instance: Instance, pid: int) -> tuple[dict[str, str], dict[str, str]]:
    """All keys: what was found, and why the others were not. StreamError when the agent is lost.

    The host's own come first: a slow instance does not keep them from us.
    """
    deadline = time.monotonic() + _AUDIT_S
    towards = instance.attachment.generator_address if is_elsewhere(instance) else GENERATOR_ADDRESS
    inside = _Inside(instance.agent, f"/proc/{pid or 'self'}", pid, towards)
    outside = _elsewhere(instance) if is_elsewhere(instance) else _Outside(instance).readings()
    readings: dict[str, Callable[[], str]] = {
        **{key: partial(_told, instance, key) for key in _OF_THE_DRIVER},
        **outside,
        **inside.readings(),
    }
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    for key, read in readings.items():
        try:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise UntoldError(f"not read: the audit's {_AUDIT_S:g} s were over")
            with instance.agent.within(min(left_s, _KEY_S)):
                found[key] = _value(read())
        except AgentError as error:
            if isinstance(error, StreamError) and not isinstance(error, StreamTimeoutError):
                raise  # it has ended; after a time-out it is good, as the client passes over a late answer
            missing[key] = error.problem.what.removeprefix("get: ")[:_MOST_REASON_CHARS]
        except (UntoldError, OSError, ValueError) as error:
            missing[key] = str(error)[:_MOST_REASON_CHARS]
    return found, missing


def _value(text: str) -> str:
    """As it is kept: on one line, and whole."""
    if not (value := " ".join(text.split())):
        raise UntoldError("it is empty")
    if len(value) > _MOST_CHARS:
        raise UntoldError(f"it is longer than {_MOST_CHARS} characters")
    return value


def _mib(bytes_: int) -> str:
    """Memory is told in one unit, so that what is seen can be compared with the limit."""
    return f"{bytes_ // 1024**2} MiB"


def _told(instance: Instance, fact: str) -> str:
    """A fact that the platform's driver names."""
    told = instance.facts.get(fact)
    if told is None:
        raise UntoldError(f"{instance.platform} names none")
    return str(told)


@dataclass
class _Inside:
    """What the agent can read. ``own``: the directory in /proc of the service's process, whose number is ``pid``;
    ``towards``: where the instance sees the generator.
    """

    agent: Agent
    own: str
    pid: int
    towards: str
    _texts: dict[str, str | AgentError] = field(default_factory=dict)  # each file is asked for once, read or not
    _told: Mapping[str, object] | AgentError | None = None

    def readings(self) -> dict[str, Callable[[], str]]:
        """By key, who reads it."""
        sysctl, block = "/proc/sys/net/ipv4", "/sys/kernel/mm/transparent_hugepage"
        return {
            "cpus": lambda: self._fact("cpus"),
            "cpus_online": lambda: self._fact("cpus_online"),
            "memory_seen": lambda: _mib(int(self._fact("memory_bytes"))),
            "kernel": lambda: self._fact("kernel"),
            "boot_arguments": lambda: self._text("/proc/cmdline"),
            "clock_source": lambda: self._fact("clocksource"),
            "libc": self._libc,
            "workers": self._workers,
            "seccomp": lambda: procfiles.seccomp(self._status),
            "no_new_privs": lambda: procfiles.keyed(self._status, "NoNewPrivs"),
            "speculation_store_bypass": lambda: procfiles.keyed(self._status, "Speculation_Store_Bypass"),
            "speculation_indirect_branch": lambda: procfiles.keyed(self._status, "SpeculationIndirectBranch"),
            "capabilities": lambda: procfiles.keyed(self._status, "CapEff"),
            "users": lambda: procfiles.users(self._text(f"{self.own}/uid_map")),
            "lsm_label": self._label,
            "open_files": lambda: procfiles.open_files(self._text(f"{self.own}/limits")),
            "page_size": lambda: procfiles.page_size(self.agent.get("/proc/self/auxv")),
            "huge_pages": lambda: procfiles.chosen(self._text(f"{block}/enabled")),
            "huge_pages_defrag": lambda: procfiles.chosen(self._text(f"{block}/defrag")),
            "congestion_control": lambda: self._text(f"{sysctl}/tcp_congestion_control"),
            "interface": lambda: self._interface,
            "mtu": lambda: self._text(f"/sys/class/net/{self._interface}/mtu"),
            "queue_length": lambda: self._text(f"/sys/class/net/{self._interface}/tx_queue_len"),
            "offloads": self._offloads,
            "root_file_system": lambda: procfiles.root_mount(self._mounts),
            "temporary_files": lambda: procfiles.temporary_files(self._mounts),
            **{f"mitigation.{name}": self._mitigation(name) for name in _vulnerabilities()},
        }

    def _fact(self, name: str) -> str:
        if self._told is None:
            try:
                self._told = self.agent.facts()
            except AgentError as error:
                self._told = error
        if isinstance(self._told, AgentError):
            raise self._told
        told = self._told.get(name)
        if told is None:
            raise UntoldError("the instance does not tell")
        return str(told)

    def _text(self, path: str, most_chars: int = _MOST_FILE_CHARS) -> str:
        if path not in self._texts:
            try:
                self._texts[path] = self.agent.get(path).decode("utf-8", errors="replace")
            except AgentError as error:
                self._texts[path] = error
        told = self._texts[path]
        if isinstance(told, AgentError):
            raise told
        if len(told) > most_chars:
            raise UntoldError(f"{path} is longer than {most_chars} characters")
        return told

    @property
    def _status(self) -> str:
        return self._text(f"{self.own}/status")

    @property
    def _mounts(self) -> str:
        return self._text(f"{self.own}/mountinfo", _MOST_TABLE_CHARS)

    def _mitigation(self, name: str) -> Callable[[], str]:
        return lambda: self._text(f"{VULNERABILITIES}/{name}")

    @property
    def _interface(self) -> str:
        return procfiles.interface_towards(self._text("/proc/net/route"), self.towards)

    def _label(self) -> str:
        try:
            return self._text(f"{self.own}/attr/current").rstrip("\0")
        except AgentError as error:
            if f"os error {errno.EINVAL}" in error.problem.what:  # kernel: security_getprocattr of no module
                raise UntoldError("no security module gives processes a label here") from None
            raise

    def _offloads(self) -> str:
        try:
            return procfiles.virtio_offloads(self._text(f"/sys/class/net/{self._interface}/device/features"))
        except StreamError:
            raise
        except AgentError:
            what = f"/sys tells them of virtio devices alone, and {self._interface} is none"
            raise UntoldError(f"{what}; `ethtool -k` does") from None

    def _libc(self) -> str:
        """By what the dynamic loader that the process has mapped says of itself: glibc's (2.33), and musl's."""
        loader = procfiles.loader(self._text(f"{self.own}/maps", _MOST_TABLE_CHARS))
        if loader is None:
            return "none: the program is static"
        done = self.agent.run([loader, "--version"], timeout_s=_KEY_S)
        return procfiles.libc((done.stdout or done.stderr).decode("utf-8", errors="replace"), loader)

    def _workers(self) -> str:
        """The service's process and all below it, with their threads."""
        if not self.pid:
            raise UntoldError("no service was started")
        pids = list(self._tree())
        threads = sum(int(procfiles.keyed(self._text(f"/proc/{pid}/status"), "Threads")) for pid in pids)
        return f"{len(pids)} process{'es' * (len(pids) > 1)}, {threads} thread{'s' * (threads > 1)}"

    def _tree(self) -> Iterator[int]:
        """Children of each process's first thread, which is the one that forks in every server that we know."""
        waiting, seen = [self.pid], 0
        while waiting:
            pid = waiting.pop()
            yield pid
            seen += 1
            if seen + len(waiting) > _MOST_PROCESSES:
                raise UntoldError(f"more than {_MOST_PROCESSES} processes")
            waiting += [int(word) for word in self._text(f"/proc/{pid}/task/{pid}/children").split()]


_OF_GROUPS = ("cpu_quota", "memory_limit", "processes_limit", "host.seccomp", "host.speculation_store_bypass")


def _in_no_group() -> str:
    raise UntoldError("the guest is in no control group of the host's: its hypervisor limits it")


@dataclass
class _Outside:
    """What the host sees of it."""

    instance: Instance

    def readings(self) -> dict[str, Callable[[], str]]:
        """By key, who reads it."""
        disk = {"disk_limit": lambda: _told(self.instance, "disk_limit")}
        if self.instance.accounting.meter is not None:
            return {**dict.fromkeys(_OF_GROUPS, _in_no_group), **disk}
        return {
            **disk,
            "cpu_quota": self._quota,
            "memory_limit": self._memory,
            "processes_limit": self._processes,
            "host.seccomp": lambda: self._of_all(procfiles.seccomp),
            "host.speculation_store_bypass": lambda: self._of_all(
                lambda status: procfiles.keyed(status, "Speculation_Store_Bypass")
            ),
        }

    @cached_property
    def _groups(self) -> list[Cgroup]:
        """The group of all, and the payload's below it where there is one: the narrower limit is in force."""
        layout = hierarchies()
        accounting = self.instance.accounting
        names = [accounting.cgroup, accounting.parts.get("payload", "")]
        return [Cgroup(name, layout) for name in names if name]

    def _quota(self) -> str:
        quotas = [quota for group in self._groups if (quota := group.quota_cpus()) is not None]
        return f"{min(quotas):g} CPU" if quotas else "none"

    def _memory(self) -> str:
        limits = [limit for group in self._groups if (limit := group.limit_bytes()) is not None]
        return _mib(min(limits) + self.instance.accounting.huge_bytes) if limits else "none"

    def _processes(self) -> str:
        limits = [int(text) for group in self._groups if (text := _most_processes(group)) != "max"]
        return str(min(limits)) if limits else "none"

    def _of_all(self, told: Callable[[str], str]) -> str:
        """What the host's /proc/PID/status says of the processes that carry the instance, each answer once."""
        answers: dict[str, None] = {}
        for pid in self._groups[-1].pids():
            try:
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            if "\nVmSize:" not in status:
                continue  # a thread of the kernel's (vhost's, before Linux 6.4), which asks for nothing
            answers[told(status)] = None
        if not answers:
            raise UntoldError("no process is in its control group")
        return "; ".join(sorted(answers))


def _most_processes(group: Cgroup) -> str:
    return (group.directory("pids") / "pids.max").read_text(encoding="utf-8").strip()


def _elsewhere(instance: Instance) -> dict[str, Callable[[], str]]:
    """Of a machine of the user's own: that nothing of it is limited from here, and what there is of it instead."""

    def unseen() -> str:
        raise UntoldError("nothing of it is seen from outside")

    def found(key: str, told: Callable[[int], str]) -> Callable[[], str]:
        there = instance.facts.get("machine", {}).get(key)
        return lambda: NOT_LIMITED if there is None else f"{NOT_LIMITED}: {told(there)}"

    return {
        "cpu_quota": found("cpus", lambda cpus: f"the machine has {cpus} CPU{'s' * (cpus > 1)}"),
        "memory_limit": found("memory_bytes", lambda bytes_: f"the machine has {_mib(bytes_)}"),
        "processes_limit": found("processes", lambda most: f"the machine allows {most}"),
        "disk_limit": found("disk_free_bytes", lambda bytes_: f"{_mib(bytes_)} are free"),
        "host.seccomp": unseen,
        "host.speculation_store_bypass": unseen,
    }


def _vulnerabilities() -> list[str]:
    """Those that the host's kernel knows: the agent reads files, and lists no directory."""
    return sorted(path.name for path in Path(VULNERABILITIES).glob("*"))
