"""What an idle instance costs the host: memory, the kernel's memory for it, disk, and CPU time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.images.base import AGENT
from virtoll.platforms.base import Accounting, Instance, Used
from virtoll.probes.base import Place, Probe, ProbeError, ProbeResult, Timed
from virtoll.probes.footprint import MIB, Footprint, cpu_ns, footprint, kernel_bytes
from virtoll.record.model import Check, Quantity, Window
from virtoll.study.limits import Limits
from virtoll.units import within

# What there is to say where a quantity is missing.
_UNTOLD = {
    "kernel_mib": "the kernel does not tell its memory by group",
    "disk_mib": "its disk is a volume of the platform's own, and nobody here tells what it takes there",
}


@dataclass(frozen=True)
class IdleSettings(Timed):
    """``settle``: how long the fresh instance is left alone before the first window."""

    time_ns: int = within(1_000_000_000, least=1_000_000)
    settle_ns: int = within(2_000_000_000, least=0)


class Idle(Probe):
    """Looks at a further, fresh instance: the deployment's own has been worked in, and a guest gives nothing back."""

    name: ClassVar[str] = "idle"
    summary: ClassVar[str] = "many instances that mostly wait: what an idle one takes of the host"
    quantities: ClassVar[Mapping[str, Quantity]] = {
        "pss_mib": Quantity("Memory of an idle instance (PSS)", "MiB", "less"),
        "private_mib": Quantity("Memory that one more instance takes", "MiB", "less"),
        "page_tables_mib": Quantity("Page tables of an idle instance", "MiB", "less"),
        "kernel_mib": Quantity("Kernel memory of an idle instance", "MiB", "less"),
        "processes": Quantity("Host processes of an idle instance", "processes", None),
        "disk_mib": Quantity("Disk that an idle instance takes", "MiB", "less"),
        "cpu_percent": Quantity("CPU of an idle instance", "% of a CPU", "less"),
    }
    headline: ClassVar[str] = "pss_mib"
    Settings: ClassVar[type[IdleSettings]] = IdleSettings
    settings: IdleSettings

    def check(self, limits: Limits) -> list[Problem]:  # noqa: ARG002
        """An idle instance has no units of work."""
        if self.settings.work is None:
            return []
        return [Problem("an idle instance does no work", f"probe {self.name}, work", "write a time in its place")]

    def run(self, place: Place) -> ProbeResult:
        """Deploy one more, leave it alone, look at it from the host; nobody talks to it in between."""
        with place.another(1) as instance:
            instance.agent.sync("/")
            time.sleep(self.settings.settle_ns / 1e9)
            windows = [self._window(place.client.host, instance) for _ in range(self.settings.windows)]
            return ProbeResult(
                instrument="the host's /proc and cgroups",
                windows=windows,
                facts=_facts(instance.accounting),
                checks=[_answers(instance)],
                notes=[note for name, note in _UNTOLD.items() if name not in windows[0].values],
            )

    def _window(self, host: Host, instance: Instance) -> Window:
        """CPU time over the window, and what is held at its end."""
        group = Cgroup(instance.accounting.cgroup, hierarchies())
        start_ns, before = time.monotonic_ns(), _metered(instance)
        used_ns = cpu_ns(group) + before.cpu_ns
        time.sleep(self.settings.time_ns / 1e9)
        duration_ns, after = time.monotonic_ns() - start_ns, _metered(instance)
        used_ns = cpu_ns(group) + after.cpu_ns - used_ns
        kernel = kernel_bytes(group)
        values = {
            **_held(footprint(group), after.memory_bytes),
            **_disk(host, instance.accounting),
            "cpu_percent": 100 * used_ns / duration_ns,
            **({} if kernel is None else {"kernel_mib": kernel / MIB}),
        }
        return Window(start_ns=start_ns, duration_ns=duration_ns, work=1, values=values)


def _metered(instance: Instance) -> Used:
    """What a hypervisor's guest, or one in huge pages, uses besides its control group; nothing where all of an instance
    is in the group. ProbeError where it cannot be told.
    """
    if instance.accounting.meter is None:
        return Used(0, instance.accounting.huge_bytes)
    used = instance.accounting.meter.used()
    if used is None:
        raise ProbeError(
            "the hypervisor does not tell what the instance uses", kind="system", where=f"platform {instance.platform}"
        )
    return used


def _disk(host: Host, accounting: Accounting) -> dict[str, float]:
    return {} if accounting.is_disk_elsewhere else {"disk_mib": disk_bytes(host, accounting) / MIB}


def disk_bytes(host: Host, accounting: Accounting) -> int:
    """Blocks that the instance's files really take; what they only stand upon (the image) is everybody's."""
    command = ["du", "--summarize", "--one-file-system", "--block-size=1", str(accounting.directory)]
    return int(host.run(command).text.split()[0])


def _held(found: Footprint, guest_bytes: int) -> dict[str, float]:
    """``guest_bytes``: of a guest whose memory is no process's, and that shares none of it."""
    return {
        "pss_mib": (found.pss_bytes + guest_bytes) / MIB,
        "private_mib": (found.private_bytes + guest_bytes) / MIB,
        "page_tables_mib": found.page_tables_bytes / MIB,
        "processes": float(found.processes),
    }


def _facts(accounting: Accounting) -> dict[str, Any]:
    """The parts that the sums are made of, and the daemons beside them that all instances of the run share."""
    parts = {name: asdict(footprint(Cgroup(group, hierarchies()))) for name, group in accounting.parts.items()}
    shared = {group.rpartition("/")[2]: asdict(footprint(Cgroup(group, hierarchies()))) for group in accounting.shared}
    return {"instances_alive": 2, "parts": parts, "shared_daemons": shared}


def _answers(instance: Instance) -> Check:
    done = instance.agent.run([AGENT, "--version"])
    return Check(name="the idle instance answers", passed=done.returncode == 0, detail="asked after the last window")
