"""How many instances live on the host at once, and what each of them takes of its memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from virtoll.errors import AgentError, DiskError, HostError, PlatformError
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import Cgroup, hierarchies, left_bytes
from virtoll.hosts.interrupts import is_being_tidied_up_after
from virtoll.hosts.meminfo import meminfo_bytes
from virtoll.images.base import AGENT
from virtoll.lab.base import SLOTS, NoRoomError
from virtoll.platforms.base import Instance
from virtoll.probes.base import Place, Probe, ProbeError, ProbeResult
from virtoll.probes.footprint import MIB, footprint
from virtoll.record.model import Check, Quantity, Window
from virtoll.units import format_bytes, format_duration, within

_LEAST_FLOOR_BYTES = 1024**3
_STILL = 0.1  # of what the instances took: so much may others have taken meanwhile before it is told


@dataclass(frozen=True)
class DensitySettings:
    """When to stop: ``most`` instances, the first counted; memory at the ``floor``; the ``deadline``.

    ``floor``: of the host's MemAvailable, or of what a container's limit leaves; none (the default): 1 GiB or a tenth
    of the machine, whichever is more.
    ``settle``: how long an instance is left alone before the host's memory is read.
    """

    most: int = within(8, least=2, most=SLOTS)
    floor_bytes: int | None = None
    deadline_ns: int = within(600_000_000_000, least=1)
    settle_ns: int = within(500_000_000, least=0)

    @property
    def expected_s(self) -> float:
        """About how long it takes: some seconds for each, a virtual machine's boot included."""
        return min(self.deadline_ns / 1e9, self.most * (4 + self.settle_ns / 1e9))


@dataclass(frozen=True)
class _Stop:
    """Why no further instance was made."""

    by: Literal["failure", "floor", "most", "deadline"]
    detail: str

    @property
    def is_full(self) -> bool:
        """Whether the host could carry no more; otherwise it is not known how many it could."""
        return self.by in ("failure", "floor")


@dataclass
class _Crowd:
    """The instances that live, the deployment's own first; deployments and memory of the further ones."""

    instances: list[Instance]
    available_bytes: list[int]  # the host's, before the first further one and after each
    deploy_s: list[float] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)  # by number from 1, when one more was made: that is how it stops

    def look(self) -> None:
        """See who has ended."""
        self.ended = [number for number, each in enumerate(self.instances, 1) if not each.is_running()]

    @property
    def living(self) -> dict[int, Instance]:
        """Those that did not end, by number."""
        return {number: each for number, each in enumerate(self.instances, 1) if number not in self.ended}

    @property
    def dearest_bytes(self) -> int | None:
        """The most that any of them took."""
        steps = zip(self.available_bytes, self.available_bytes[1:], strict=False)
        return max((before - after for before, after in steps), default=None)


class Density(Probe):
    """Deploys further instances like this one, idle, until the host is full or enough of them live."""

    name: ClassVar[str] = "density"
    summary: ClassVar[str] = "packing a host: how many idle instances fit, and the memory that each takes"
    quantities: ClassVar[Mapping[str, Quantity]] = {
        "instances": Quantity("Instances that lived at once", "instances", None),
        "instances_that_fit": Quantity("Instances that fit the host", "instances", "more"),
        "host_memory_mib_per_instance": Quantity("Host's memory for each instance", "MiB", "less"),
        "pss_mib_per_instance": Quantity("Memory (PSS) of each instance", "MiB", "less"),
        "deploy_s_median": Quantity("Deploying one more", "s", "less"),
    }
    headline: ClassVar[str] = "pss_mib_per_instance"
    fills_host: ClassVar[bool] = True
    Settings: ClassVar[type[DensitySettings]] = DensitySettings
    settings: DensitySettings

    def run(self, place: Place) -> ProbeResult:
        """Fill the host, look, and end them all, whatever happens."""
        if place.instance.accounting.meter is not None:
            raise ProbeError(
                "the host's kernel does not count the memory that instances take: their hypervisor gives it",
                kind="system",
                where=f"platform {place.instance.platform}",
                remedy="leave this platform out of the probe",
            )
        if place.instance.accounting.huge_bytes:
            raise ProbeError(
                "its memory is of huge pages, and so many fit as were reserved for",
                kind="system",
                where=f"platform {place.instance.platform}",
                remedy="leave huge_pages out, or this arm out of the probe",
            )
        host = place.client.host
        start_ns = time.monotonic_ns()
        with ExitStack() as stack:
            crowd = _Crowd([place.instance], [_available_bytes(host)])
            stop = self._fill(place, crowd, stack, start_ns)
            duration_ns = time.monotonic_ns() - start_ns
            values = _values(crowd, stop)
            check = _all_answer(crowd.living)
        time.sleep(self.settings.settle_ns / 1e9)
        after_bytes = _available_bytes(host)
        return ProbeResult(
            instrument="the host's /proc/meminfo",
            windows=[Window(start_ns=start_ns, duration_ns=duration_ns, work=len(crowd.instances), values=values)],
            facts={**_facts(crowd, stop, self._floor_bytes(host)), "available_after_bytes": after_bytes},
            checks=[check],
            notes=_notes(crowd, stop, after_bytes),
        )

    def _fill(self, place: Place, crowd: _Crowd, stack: ExitStack, start_ns: int) -> _Stop:
        host = place.client.host
        while (stop := self._enough(crowd, place.instance, host, start_ns)) is None:
            number = len(crowd.instances)
            began_ns = time.monotonic_ns()
            try:
                instance = stack.enter_context(place.another(number))
            except NoRoomError as error:
                return _Stop("most", error.problem.what)
            except (PlatformError, HostError, AgentError) as error:
                if is_being_tidied_up_after() or isinstance(error, DiskError):
                    raise
                crowd.look()
                others = f"; {crowd.ended} ended" if crowd.ended else ""
                return _Stop("failure", f"instance {number + 1} did not come up: {error}{others}")
            deploy_s = (time.monotonic_ns() - began_ns) / 1e9
            time.sleep(self.settings.settle_ns / 1e9)
            crowd.look()
            if crowd.ended or not instance.is_running():
                return _Stop("failure", f"with instance {number + 1} there, {crowd.ended or 'it'} ended")
            crowd.instances.append(instance)
            crowd.deploy_s.append(deploy_s)
            crowd.available_bytes.append(_available_bytes(host))
        return stop

    def _enough(self, crowd: _Crowd, like: Instance, host: Host, start_ns: int) -> _Stop | None:
        """Why there should be no further one. It is taken to need what the dearest did; the first, all its limit."""
        if len(crowd.instances) >= self.settings.most:
            return _Stop("most", f"stopped at the {self.settings.most} that were asked for")
        if time.monotonic_ns() - start_ns > self.settings.deadline_ns:
            return _Stop("deadline", f"stopped after {format_duration(self.settings.deadline_ns)}")
        need = crowd.dearest_bytes
        need = like.limits.memory_bytes if need is None else need
        left, floor = crowd.available_bytes[-1], self._floor_bytes(host)
        if room := left_bytes(hierarchies()):
            left = min(left, room[0])
        if left - need < floor:
            return _Stop(
                "floor",
                f"{format_bytes(left)} are left, one more takes up to {format_bytes(need)}, "
                f"and {format_bytes(floor)} are to stay",
            )
        return None

    def _floor_bytes(self, host: Host) -> int:
        if self.settings.floor_bytes is not None:
            return self.settings.floor_bytes
        total = meminfo_bytes(_meminfo(host), "MemTotal")
        if room := left_bytes(hierarchies()):
            total = min(total, room[1])
        return max(_LEAST_FLOOR_BYTES, total // 10)


def _values(crowd: _Crowd, stop: _Stop) -> dict[str, float]:
    """What is seen while all live; a number that only says "at least", or was reckoned, is not called what fits."""
    values = {"instances": float(len(crowd.instances))}
    if stop.is_full and not _untried(crowd, stop):
        values["instances_that_fit"] = float(len(crowd.instances))
    if crowd.deploy_s:
        taken = crowd.available_bytes[0] - crowd.available_bytes[-1]
        values["host_memory_mib_per_instance"] = taken / len(crowd.deploy_s) / MIB
        values["deploy_s_median"] = statistics.median(crowd.deploy_s)
    if further := [each for number, each in crowd.living.items() if number > 1]:
        values["pss_mib_per_instance"] = statistics.fmean(_pss_bytes(each) for each in further) / MIB
    return values


def _untried(crowd: _Crowd, stop: _Stop) -> bool:
    """Whether the first further instance was not made, because its whole memory limit might not have had room."""
    return stop.by == "floor" and not crowd.deploy_s


def _pss_bytes(instance: Instance) -> int:
    return footprint(Cgroup(instance.accounting.cgroup, hierarchies())).pss_bytes


def _notes(crowd: _Crowd, stop: _Stop, after_bytes: int) -> list[str]:
    """What a reader must know: that the host was not full, and how much of its memory went or came for others."""
    notes = [] if stop.is_full else [f"the host was not full ({stop.detail}): it carries at least so many"]
    if _untried(crowd, stop):
        notes.append(f"no further instance was tried ({stop.detail}): how many fit is not known")
    moved = abs(after_bytes - crowd.available_bytes[0])
    taken = crowd.available_bytes[0] - crowd.available_bytes[-1]
    if crowd.deploy_s and moved > taken * _STILL:
        notes.append(
            f"the host's memory moved by {format_bytes(moved)} for other reasons; the instances took "
            f"{taken / MIB:.0f} MiB by this reckoning: measure on a quiet machine, or more instances"
        )
    return notes


def _facts(crowd: _Crowd, stop: _Stop, floor_bytes: int) -> dict[str, Any]:
    return {
        "stopped_by": stop.by,
        "stopped": stop.detail,
        "floor_bytes": floor_bytes,
        "available_bytes": crowd.available_bytes,
        "deploy_s": crowd.deploy_s,
    }


def _all_answer(living: Mapping[int, Instance]) -> Check:
    """Each is asked once more while all of them live, but for who ended when one more was made."""
    silent = [number for number, instance in living.items() if not _answers(instance)]
    detail = f"no answer from {silent}" if silent else f"{len(living)} asked"
    return Check(name="every instance answered at the end", passed=not silent, detail=detail)


def _answers(instance: Instance) -> bool:
    try:
        return instance.agent.run([AGENT, "--version"]).returncode == 0
    except AgentError:
        return False


def _available_bytes(host: Host) -> int:
    """What could be had without swapping, page cache that can go included."""
    return meminfo_bytes(_meminfo(host), "MemAvailable")


def _meminfo(host: Host) -> str:
    return host.read(Path("/proc/meminfo")).decode()
