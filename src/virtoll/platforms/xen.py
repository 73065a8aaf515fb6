"""Xen: a domain of its own (domU) beside the one that virtoll runs in (dom0), made and ended by `xl`.

`xen-pv`, `xen-pvh` and `xen-hvm` are this driver and differ in the domain's type alone. The domain is no process of
dom0's, so no control group holds it: Xen limits it, by its memory and by vCPUs that are pinned to as many CPUs, and Xen
tells what it uses (`virtoll.platforms.xenstat`). What dom0 does for it is in the instance's control group: `xl`, which
stays until the domain ends, an HVM's QEMU, and the kernel's threads that carry its disk and its network.

CPUs are told alike by the lab and by Xen only where dom0's vCPU n is pinned to CPU n, which `check` asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from virtoll.agent import Agent, StreamError
from virtoll.errors import AgentError, PlatformError, Problem
from virtoll.features import BHANAGE, EIRAS, SUKARIDHOTO, UNKNOWN, Features, no, partly, yes
from virtoll.hosts import xen
from virtoll.hosts.base import Host
from virtoll.hosts.programs import find
from virtoll.images import disk, loop
from virtoll.images.base import Image
from virtoll.images.kernel import XEN, Devices
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import xenstat
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.booted import Booted, silent
from virtoll.platforms.console import LONGEST_REQUEST_BYTES
from virtoll.platforms.groups import instance_cpus
from virtoll.platforms.requirements import command_missing, other_machine, refuse_kind
from virtoll.platforms.vm import answered, configure, explained
from virtoll.platforms.xen_dom0 import appeared, created, dom0_problem, groups, is_pinned, owned_domain, take_in, wire
from virtoll.platforms.xen_domain import VIF_SCRIPT, Domain, Type, configuration
from virtoll.study.limits import Limits

DISK_LIMIT = "enforced: limits.disk are free on the domain's own disk (ext4, no journal, blkback on a loop device)"
_GUEST_TYPE = "/sys/hypervisor/guest_type"  # inside: Linux, Documentation/ABI/stable/sysfs-hypervisor-xen
_MIB = 1024**2
_NEEDED = {
    "xl": "xen-utils-common",
    "xenstore-read": "xenstore-utils",
    "xenstore-write": "xenstore-utils",
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "modprobe": "kmod",
}
_EMULATORS = ("libexec/xen-qemu-system-i386", "lib/xen-*/bin/qemu-system-i386")  # Debian's, and as Xen builds it
_NOT_LIVE = "not yet run on a live Xen host"
_XL = "xenbits.xen.org/docs/unstable/man/xl.1.html"
_OVERVIEW = "wiki.xenproject.org, Xen Project Software Overview"

# A domain of any type.
DOMAIN: Features = {
    "own-kernel": yes("each domain has its own", f"{SUKARIDHOTO}, II.B"),
    "own-distribution": yes("its disk is its own", f"{BHANAGE}, 2"),
    "changed-kernel": partly("its kernel is its own, though the paper's table has an overlay", f"{BHANAGE}, table 1"),
    "root-inside": yes("of the domain alone", f"{BHANAGE}, 2"),
    "separate-files": yes("libraries and files are its own", f"{EIRAS}, table I"),
    "fault-isolation": yes("no kernel is shared", f"{SUKARIDHOTO}, II.B"),
    "own-network": yes("virtual Ethernet devices", f"{EIRAS}, table I"),
    "shared-base": UNKNOWN,
    "stock-kernel": no("a hypervisor of its own lies below", f"{SUKARIDHOTO}, II.A"),
    "live-migration": yes("xl migrate", "xenbits.xen.org/docs/4.10-testing/features/migration.html"),
    "checkpoint": yes("xl save, xl restore", _XL),
    "own-resource-view": yes("its kernel counts what the domain has", f"{EIRAS}, table I"),
    "resize": partly("up to what it was booted with, and where its guest takes part (mem-set, vcpu-set)", _XL),
    "overcommit": partly("CPUs, which domains share by weight; of memory nothing was found", f"{_XL}, sched-credit"),
}
_NEEDS_EXTENSIONS = no("HVM and PVH need them", _OVERVIEW)


@dataclass(frozen=True)
class XenSettings:
    """``kernel``: the guest's own kernel (a path in dom0; "": the distribution's for virtual machines)."""

    kernel: str = ""


class Xen(Booted):
    """A domain: Xen's block and network devices, and the agent on its console."""

    guest_type: ClassVar[Type]
    kinds: ClassVar[tuple[Kind, ...]] = ("vif",)
    devices: ClassVar[Devices] = XEN
    caveat: ClassVar[str] = f"kept the contract on Xen 4.17 in an emulated computer; {_NOT_LIVE}"
    expected_overhead_s: ClassVar[float] = 15.0
    overhead_bytes: ClassVar[int] = 64 * _MIB
    Settings: ClassVar[type[Any]] = XenSettings

    def check(self, host: Host) -> list[Problem]:
        """Whether this is dom0, with Xen's tools at work, CPUs that it numbers as Xen does, and a kernel for guests."""
        if problems := other_machine(host):
            return problems
        if problem := dom0_problem(host):
            return [problem]
        missing = [command_missing(host, name, package) for name, package in _NEEDED.items() if find(name) is None]
        if missing:
            return missing
        info = host.run(["xl", "info"], check=False)
        if info.returncode != 0:
            told = info.stderr.decode(errors="replace").strip()[:400]
            return [Problem(f"Xen's tools do not answer: {told}", host.where, "as root: service xen start")]
        problems = self._of_machine(host, xen.parse_info(info.text))
        if xenstat.library() is None:
            problems.append(Problem("no libxenstat of this Xen's version", host.where, "apt-get install xen-utils"))
        problem = self.kernel_problem(host)
        return [*problems, problem] if problem else problems

    def _of_machine(self, host: Host, info: dict[str, str]) -> list[Problem]:
        """What Xen cannot do on this machine, or was booted without."""
        problems = []
        wanted = "pv" if self.guest_type == "pv" else "hvm"
        if wanted not in (able := info.get("virt_caps", "").split()):
            remedy = "switch VT-x or AMD-V on in the firmware" if wanted == "hvm" else "a Xen that was built with PV"
            what = f"Xen makes no {wanted.upper()} guests here (virt_caps: {' '.join(able) or 'none'})"
            problems.append(Problem(what, host.where, remedy))
        if self.guest_type == "hvm" and not [path for place in _EMULATORS for path in Path("/usr").glob(place)]:
            problems.append(Problem("no QEMU for HVM guests", host.where, "apt-get install qemu-system-xen"))
        affinity = xen.parse_hard_affinity(host.run(["xl", "vcpu-list", "0"], check=False).text).get(0, {})
        if not is_pinned(affinity, info.get("nr_cpus", "")):
            what = "dom0's CPUs are not Xen's: its vCPUs are not pinned each to the CPU of its number"
            problems.append(Problem(what, host.where, "boot Xen with dom0_vcpus_pin, and without dom0_max_vcpus"))
        return problems

    def untried(self, host: Host) -> str:  # noqa: ARG002
        """See `Platform.untried`."""
        return f"how far the driver works: {self.caveat}"

    def versions(self, host: Host) -> dict[str, str]:
        """Xen's, and the guest's kernel with its initramfs."""
        return {"xen": _xen_version(host), **super().versions(host)}

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """Boot a domain from a copy of the disk; it is up when its agent has answered and its devices are wired."""
        refuse_kind(self, attachment)
        wanted = self._domain(lab, image, limits, attachment, directory)
        with ExitStack() as stack:
            place = stack.enter_context(groups(lab, limits, directory.name, self.overhead_bytes))
            end = stack.enter_context(owned_domain(lab, wanted.name))
            machine, log_fd = stack.enter_context(created(lab, place, wanted, directory))
            domain, console = appeared(lab.host, machine, wanted.name, log_fd)
            agent = answered(machine, console, longest_request_bytes=LONGEST_REQUEST_BYTES)
            stack.callback(agent.close)
            with explained(machine):
                guest_type = self._prove_type(agent)
                threads = take_in(machine, domain, place.backends)
                wire(lab, attachment, domain)
                configure(agent, limits, "eth0", attachment)
            meter = stack.enter_context(xenstat.metered(domain))
            facts = {
                "accelerator": f"xen {self.guest_type}",
                "xen": _xen_version(lab.host),
                "guest_type": guest_type,
                "domain": domain,
                "kernel": wanted.kernel.version,
                "kernel_digest": wanted.kernel.digest,
                "memory_overhead_bytes": self.overhead_bytes,
                "configuration": configuration(wanted).splitlines(),
                "threads_of_dom0": threads,
                "disk_limit": DISK_LIMIT,
            }
            with explained(machine):
                yield Instance(
                    self.name,
                    agent,
                    attachment,
                    Accounting(place.whole.name, directory, meter=meter),
                    limits,
                    facts,
                    machine.is_running,
                    image,
                    hosts_tasks_each=0,
                    end=end,
                )

    def _domain(self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path) -> Domain:
        """What is to be, with its files in ``directory``."""
        base = disk.ext4(lab.host, image, limits.disk_bytes, silent)
        loop.copied(lab.host, base, directory / "disk.ext4")
        script = directory / "vif"
        lab.host.put(script, VIF_SCRIPT, 0o755)
        return Domain(
            type=self.guest_type,
            name=f"virtoll-{lab.run_tag}-{directory.name}",
            kernel=self.kept_kernel(lab.host),
            vcpus=limits.vcpus,
            cpus=instance_cpus(lab, limits),
            memory_bytes=limits.memory_bytes,
            disk=(directory / "disk.ext4").resolve(),
            mac=attachment.mac,
            vif_script=script.resolve(),
        )

    def _prove_type(self, agent: Agent) -> str:
        """What the guest's kernel found itself to be; "" where it does not tell. PlatformError where it is another."""
        try:
            told = agent.get(_GUEST_TYPE).decode(errors="replace").strip()[:20]
        except StreamError:
            raise
        except AgentError:
            return ""
        if told.lower() != self.guest_type:
            raise PlatformError(
                f"the guest runs as {told} though {self.guest_type.upper()} was asked for",
                where=f"{_GUEST_TYPE} inside",
                remedy="look at the instance's monitor.log; is xl a wrapper of somebody's?",
            )
        return told


class XenPv(Xen):
    """The guest's kernel calls the hypervisor for all that only a kernel may do."""

    name = "xen-pv"
    summary = "Xen's paravirtualization, as the papers of its time measured it: no CPU extensions"
    guest_type: ClassVar[Type] = "pv"
    features: ClassVar[Features] = {
        **DOMAIN,
        "other-systems": partly("those that were ported", "wiki.xenproject.org, HVM"),
        "unmodified-guest": no("the kernel is a modified one", f"{SUKARIDHOTO}, II.A"),
        "no-cpu-extensions": yes("the kernel calls the hypervisor in their place", _OVERVIEW),
    }


class XenPvh(Xen):
    """The CPU's extensions under the guest's kernel, and Xen's own devices: no emulated machine."""

    name = "xen-pvh"
    summary = "Xen's type for today's Linux guests: VT-x or AMD-V, and no emulated devices"
    guest_type: ClassVar[Type] = "pvh"
    features: ClassVar[Features] = {
        **DOMAIN,
        "other-systems": partly("those that know its way to boot", "xenbits.xen.org/docs/unstable/misc/pvh.html"),
        "unmodified-guest": partly("Linux since 4.11 knows it", _OVERVIEW),
        "no-cpu-extensions": _NEEDS_EXTENSIONS,
    }


class XenHvm(Xen):
    """A whole PC, which QEMU emulates in dom0; Linux finds Xen's own devices in it and uses these."""

    name = "xen-hvm"
    summary = "Xen's type for any system: VT-x or AMD-V, a PC emulated by QEMU, Xen's disk and network"
    guest_type: ClassVar[Type] = "hvm"
    overhead_bytes: ClassVar[int] = 256 * _MIB
    features: ClassVar[Features] = {
        **DOMAIN,
        "other-systems": yes("unmodified ones", "wiki.xenproject.org, HVM"),
        "unmodified-guest": yes("the guest needs not know", f"{SUKARIDHOTO}, II.A"),
        "no-cpu-extensions": _NEEDS_EXTENSIONS,
    }


def _xen_version(host: Host) -> str:
    return xen.parse_info(host.run(["xl", "info"], check=False).text).get("xen_version", "unknown")
