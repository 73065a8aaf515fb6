"""Was the comparison fair: in what, besides the platform itself, does an arm differ from native?

Each difference between audits (`virtoll.record.model.Audit`) is *explained* (it is what such a platform is), or
*flagged* (it may cost or gain by itself, and can be evened out or measured), by the tables here. A key that one side
does not tell is *untold*: no difference, and no proof of sameness.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from virtoll.record.model import NOT_LIMITED, Arm, Audit, TrialRecord
from virtoll.units import parse_bytes

Kind = Literal["flagged", "explained", "untold"]

# What the keys are called, in the table's order; docs/RUN_DIRECTORY.md says where each is read.
TITLES = {
    "cpus": "CPUs it may use",
    "cpus_online": "CPUs it sees",
    "cpu_quota": "CPU quota",
    "memory_seen": "Memory it sees",
    "memory_limit": "Memory limit",
    "processes_limit": "Limit of processes",
    "disk_limit": "Disk limit",
    "kernel": "Kernel",
    "boot_arguments": "Boot arguments",
    "accelerator": "Accelerator",
    "machine_type": "Machine type",
    "memory_pages": "Pages of its memory",
    "disk_cache": "Disk cache",
    "disk_io": "Disk input and output",
    "network_backend": "Network backend",
    "oci_runtime": "Container runtime",
    "clock_source": "Clock source",
    "libc": "C library",
    "workers": "Workers started",
    "seccomp": "Seccomp",
    "speculation_store_bypass": "Speculative store bypass",
    "speculation_indirect_branch": "Speculative indirect branches",
    "host.seccomp": "Seccomp of its host processes",
    "host.speculation_store_bypass": "Speculative store bypass of its host processes",
    "no_new_privs": "No new privileges",
    "capabilities": "Capabilities",
    "users": "Users",
    "lsm_label": "Security label",
    "open_files": "Open files",
    "page_size": "Page size",
    "huge_pages": "Transparent huge pages",
    "huge_pages_defrag": "Huge pages, defragmentation",
    "congestion_control": "Congestion control",
    "interface": "Interface",
    "mtu": "MTU",
    "queue_length": "Queue length",
    "offloads": "Offloads",
    "root_file_system": "Root file system",
    "temporary_files": "Files in /tmp",
}
_MITIGATION = "mitigation."


@dataclass(frozen=True)
class Rule:
    """Why a difference matters or does not; ``remedy``: how to even it out or measure it, of a flagged one."""

    why: str
    remedy: str = ""

    @property
    def kind(self) -> Kind:
        """A difference that nobody can do anything about needs no flag."""
        return "flagged" if self.remedy else "explained"


# Whatever the arm.
_RULES = {
    "cpus": Rule("it has another number of CPUs", "see that limits.vcpus is in force on each arm"),
    "cpus_online": Rule(
        "a program that counts the machine's CPUs starts another number of threads",
        "set the service's number of workers, or lxcfs = true for LXC",
    ),
    "cpu_quota": Rule("it gets another share of a CPU", "see that limits.vcpus is in force on each arm"),
    "memory_seen": Rule(
        "a program that sizes itself by the machine's memory takes another size",
        "set the service's sizes, or lxcfs = true for LXC",
    ),
    "memory_limit": Rule("it may use another amount of memory", "see that limits.memory is in force on each arm"),
    "processes_limit": Rule("it may start another number of processes", "see that limits.pids is in force on each arm"),
    "disk_limit": Rule("its disk is limited in another way, to the same size"),
    "kernel": Rule("the host ran another kernel", "run all arms again under one kernel"),
    "boot_arguments": Rule("the host was booted otherwise", "run all arms again after one boot"),
    "accelerator": Rule("it is what this platform is measured for"),
    "machine_type": Rule("the computer that its monitor makes, as the arm's settings say"),
    "memory_pages": Rule("what its monitor takes from the host as memory, as the arm's settings say"),
    "disk_cache": Rule("how its disk uses the host's memory, as the arm's settings say"),
    "disk_io": Rule("how its monitor asks for the disk, as the arm's settings say"),
    "network_backend": Rule("who hands its packets on, as the arm's settings say"),
    "oci_runtime": Rule("who makes the container, as the arm's settings say"),
    "clock_source": Rule("reading the clock costs more or less", "set clocksource= in the boot arguments"),
    "libc": Rule("another C library is another program", "give all arms one image"),
    "workers": Rule(
        "the service started another number of workers", "set their number in [service], not by the CPUs it sees"
    ),
    "seccomp": Rule(
        "a filter looks at each system call, and on some kernels slows speculative loads as well",
        'measure a second arm with seccomp = "unconfined" (docker, podman), to see what it costs',
    ),
    "speculation_store_bypass": Rule(
        "a load may not pass an earlier store: seen to cost CPU-bound programs 15 to 100 %",
        'measure a second arm with seccomp = "unconfined" (docker, podman), or boot the host with '
        "spec_store_bypass_disable=prctl",
    ),
    "speculation_indirect_branch": Rule(
        "indirect branches are predicted otherwise", "boot the host with spectre_v2_user=prctl"
    ),
    "host.speculation_store_bypass": Rule(
        "the host slows speculative loads in the processes that carry it",
        "boot the host with spec_store_bypass_disable=prctl",
    ),
    _MITIGATION: Rule(
        "one kernel pays for this mitigation and the other does not",
        "boot both kernels with the same mitigations= (and give the guest the host's CPU model)",
    ),
    "no_new_privs": Rule("it is asked when a program is started, and costs nothing while one runs"),
    "capabilities": Rule("fewer rights cost nothing: the kernel asks for the same bits"),
    "users": Rule("root inside is nobody to the host (a user namespace), as the arm's settings say"),
    "lsm_label": Rule(
        "a security module judges what it opens and sends by another profile", "compare with it off on the host, too"
    ),
    "open_files": Rule(
        "a server sizes its tables by it, and takes fewer connections where it is lower",
        "start virtoll under the least of them (ulimit -n), or have the service set its own",
    ),
    "page_size": Rule("it has other pages", "give the guest a kernel with the host's page size"),
    "huge_pages": Rule(
        "large blocks of memory come in other pages", "boot both kernels with the same transparent_hugepage="
    ),
    "huge_pages_defrag": Rule(
        "a page fault waits, or does not, for a huge page", "set transparent_hugepage/defrag alike on both kernels"
    ),
    "congestion_control": Rule(
        "TCP sends by another rule", "set net.ipv4.tcp_congestion_control alike (a guest's kernel has its own default)"
    ),
    "interface": Rule("another name of the interface, or another kind of device: the network mode's"),
    "mtu": Rule("the same bytes are another number of packets", "give host and instance links one MTU"),
    "queue_length": Rule("another number of packets may wait to be sent", "set txqueuelen alike"),
    "offloads": Rule("other work is left to the device", "set them alike (ethtool -K)"),
    "root_file_system": Rule("files pass through another file system, or with other options", "see its options below"),
    "temporary_files": Rule(
        "what is written in /tmp lies elsewhere: in memory a sync costs nothing, and limits.disk holds nothing",
        "have the service write elsewhere (/var/tmp), or have nothing mounted there",
    ),
}
# What a kernel says of a vulnerability against which it does nothing, which so costs nothing: Linux,
# arch/x86/kernel/cpu/bugs.c. With other words after it ("Vulnerable: Safe RET, no microcode") it does something.
_UNMITIGATED = ("Not affected", "Vulnerable", "Processor vulnerable", "KVM: Vulnerable")
_OTHER_MITIGATION = Rule(
    "each kernel mitigates it in a way of its own, and one may cost more", _RULES[_MITIGATION].remedy
)
# What fs/proc/array.c says where a process pays. All other words ("thread vulnerable", "always enabled") cost nothing.
_PAID = {
    "speculation_store_bypass": "mitigated",
    "host.speculation_store_bypass": "mitigated",
    "speculation_indirect_branch": "disabled",
}
# Of a machine of the user's own, whatever its kernel.
_UNLIMITED = Rule(
    "it has what its machine has, and the others have the study's limit",
    "write in [limits] what that machine has, or give the machine what they say",
)
_EVEN = Rule("nothing is limited there, and its machine has just what the others are limited to")
_HAS = f"{NOT_LIMITED}: the machine has "
_SEEN = ("cpus", "cpus_online", "memory_seen")  # of the machine, where nothing is limited
_SHOWN = {"cpus_online": "cpu_quota", "memory_seen": "memory_limit"}  # what it shows of what native is limited to
_LIMITED_BY = {"cpus_online": "cpus", "memory_seen": "memory_limit"}
_BYTES = ("memory_seen", "memory_limit")
# By platform, as what an instance says of itself does not decide what is forgiven it.
_HAS_OWN_KERNEL = {
    **dict.fromkeys(("native", "docker", "podman", "lxc", "oci", "bubblewrap", "nspawn"), False),
    **dict.fromkeys(("openvz", "openvz-profile", "proxmox-ct"), False),
    **dict.fromkeys(("gvisor", "kvm", "firecracker", "cloud-hypervisor", "qemu-tcg", "ssh", "uml"), True),
    **dict.fromkeys(("proxmox-vm", "xen-hvm", "xen-pv", "xen-pvh"), True),
}
# Platform, setting and the value of it that gives one to a platform that has none.
_MADE_BY_SETTINGS = (("docker", "runtime", "runsc"),)
# Where one side does not tell: what would explain a difference is not known to be there.
_UNTOLD = {"users": Rule("whose its users are is not told", "run both arms again under one version of virtoll")}
# Where the arm has a kernel of its own.
_OWN_KERNEL = {
    "kernel": Rule("a kernel of its own is what such a platform is"),
    "boot_arguments": Rule("a kernel of its own has arguments of its own"),
    "cpus_online": Rule("a kernel of its own has CPUs of its own"),
    "cpu_quota": Rule("a virtual machine is limited by its vCPUs"),
    "memory_seen": Rule("a kernel of its own has memory of its own"),
    "memory_limit": Rule("the host's limit holds what its monitor needs, too"),
    "processes_limit": Rule("its own kernel has the limit, and the host's holds what its monitor needs"),
    "clock_source": Rule("a kernel of its own has the clock that its platform gives it"),
    "capabilities": Rule("root of a kernel of its own, which may know others"),
    "users": Rule("a kernel of its own has users of its own, and may know no user namespaces"),
    "host.seccomp": Rule("the program that runs its kernel has its own system calls filtered"),
    "offloads": Rule("its device is another"),
    "root_file_system": Rule("a kernel of its own has its own way to its files"),
}


@dataclass(frozen=True)
class Difference:
    """One key in which an arm is not as native. ``native`` or ``here`` is None where it is untold: ``why`` says why."""

    key: str
    arm: Arm
    native: str | None
    here: str | None
    kind: Kind
    why: str
    remedy: str = ""


@dataclass(frozen=True)
class Audited:
    """Arms under one set of the service's settings and limits: the baseline's audit, if there is one, comes first."""

    process: str
    levels: str  # of the condition, in words: those that tell it from the others; "" where there are none
    audits: tuple[tuple[Arm, Audit], ...]
    differences: tuple[Difference, ...]

    @property
    def keys(self) -> list[str]:
        """All that any arm tells, in the order of `TITLES`."""
        told = {key for _, audit in self.audits for key in audit.found}
        return [key for key in TITLES if key in told] + sorted(told - TITLES.keys())

    def of_kind(self, kind: Kind) -> list[Difference]:
        """The differences of one kind, key by key."""
        order = {key: at for at, key in enumerate(self.keys)}
        return sorted((one for one in self.differences if one.kind == kind), key=lambda one: order[one.key])


def title(key: str) -> str:
    """What a key is called."""
    if key.startswith(_MITIGATION):
        return f"Mitigation: {key.removeprefix(_MITIGATION).replace('_', ' ')}"
    return TITLES.get(key, key.replace("_", " "))


def audited(records: Iterable[TrialRecord]) -> dict[str, list[Audited]]:
    """What a run's trials tell, by host: what differs between hosts is no difference between arms. Whatever became of a
    trial, its audit is one. The host comes first that tells of most arms.
    """
    told: dict[str, list[tuple[Arm, Audit]]] = {}
    for record in records:
        if record.audit is not None:
            told.setdefault(record.trial.host, []).append((record.trial.arm, record.audit))
    first = sorted(told, key=lambda host: -len({arm.label for arm, _ in told[host]}))
    return {host: judged(told[host]) for host in first}


def judged(audits: Iterable[tuple[Arm, Audit]]) -> list[Audited]:
    """Audits that can be compared, together: each arm's first, as the baseline's."""
    groups: dict[tuple[str, str], dict[str, tuple[Arm, Audit]]] = {}
    for arm, audit in audits:
        levels = json.dumps(audit.condition, sort_keys=True)
        groups.setdefault((audit.process, levels), {}).setdefault(arm.label, (arm, audit))
    seen = [(process, list(by_arm.values())) for (process, _), by_arm in groups.items()]
    return [_judged(process, one, [others for whose, others in seen if whose == process]) for process, one in seen]


def _judged(
    process: str, audits: Sequence[tuple[Arm, Audit]], groups: Sequence[Sequence[tuple[Arm, Audit]]]
) -> Audited:
    ordered = tuple(sorted(audits, key=lambda one: one[0].role != "baseline"))
    first, baseline = ordered[0]
    differences: list[Difference] = []
    if first.role == "baseline":
        differences = [one for arm, audit in ordered[1:] for one in _differences(arm, baseline, audit)]
    conditions = [group[0][1].condition for group in groups]
    telling = [p for p, level in sorted(baseline.condition.items()) if any(c.get(p) != level for c in conditions)]
    levels = ", ".join(f"{path} {baseline.condition[path]}" for path in telling)
    return Audited(process, levels, ordered, tuple(differences))


def _differences(arm: Arm, native: Audit, here: Audit) -> list[Difference]:
    own_kernel = _has_own_kernel(arm, native, here)
    found = []
    for key in sorted(native.found.keys() | here.found.keys()):
        theirs, ours = native.found.get(key), here.found.get(key)
        if _comparable(key, theirs) == _comparable(key, ours) or (key.startswith("host.") and not own_kernel):
            continue  # a container's processes are the host's: what was read from inside holds
        rule = _rule(key, theirs, ours, own_kernel=own_kernel)
        if key in _SEEN and here.found.get("cpu_quota", "").startswith(NOT_LIMITED):
            limit = _SHOWN.get(key, key)
            rule = _EVEN if _has_the_limit(limit, native.found.get(limit), here.found.get(limit)) else _UNLIMITED
        if not own_kernel and _is_shown_its_limit(key, here):
            rule = Rule("it is shown its own limit (lxcfs does that), and native the whole machine")
        if theirs is None or ours is None:
            silent, whose = (native, "native") if theirs is None else (here, arm.label)
            kind: Kind = "explained" if rule.kind == "explained" else "untold"
            why = rule.why if kind == "explained" else f"{whose}: {silent.missing.get(key, 'not read')}"
            found.append(Difference(key, arm, theirs, ours, kind, why))
        else:
            found.append(Difference(key, arm, theirs, ours, rule.kind, rule.why, rule.remedy))
    return found


def _has_own_kernel(arm: Arm, native: Audit, here: Audit) -> bool:
    """Of a third party's platform by its accelerator, which the driver names, or by kernels that both sides tell."""
    if any(arm.platform == whose and arm.settings.get(name) == value for whose, name, value in _MADE_BY_SETTINGS):
        return True
    known = _HAS_OWN_KERNEL.get(arm.platform)
    if known is not None:
        return known
    kernels = {audit.found.get("kernel") for audit in (native, here)}
    return "accelerator" in here.found or (None not in kernels and len(kernels) > 1)


def _comparable(key: str, value: str | None) -> str | int | None:
    """Memory in MiB, whatever unit it is told in: lxcfs shows ``1024 MiB`` of a limit of ``1 GiB``."""
    if key in _BYTES and value is not None:
        try:
            return parse_bytes(value) // 1024**2
        except (ValueError, OverflowError):
            return value
    return value


def _is_shown_its_limit(key: str, here: Audit) -> bool:
    limit = _LIMITED_BY.get(key)
    if limit is None or key not in here.found:
        return False
    return _comparable(key, here.found[key]) == _comparable(limit, here.found.get(limit))


def _has_the_limit(key: str, native: str | None, here: str | None) -> bool:
    """Whether a machine that nothing is limited on has as much as native is limited to."""
    if native is None or here is None or not here.startswith(_HAS):
        return False
    has = here.removeprefix(_HAS)
    return has.removesuffix("s") == native if key == "cpu_quota" else _comparable(key, has) == _comparable(key, native)


def _rule(key: str, native: str | None, here: str | None, *, own_kernel: bool) -> Rule:
    told = native is not None and here is not None
    if told and (here or "").startswith(NOT_LIMITED):
        return _EVEN if _has_the_limit(key, native, here) else _UNLIMITED
    if key.startswith(_MITIGATION):
        return _mitigation_rule(native or "", here or "") if told else _RULES[_MITIGATION]
    if key in _PAID and told and (_PAID[key] in (native or "")) == (_PAID[key] in (here or "")):
        return Rule("told otherwise, and paid for on both sides or on neither")
    if key == "root_file_system" and told and _but_rights(native or "") == _but_rights(here or ""):
        return Rule("other rights (nosuid, nodev, noexec) are asked for when a file is opened or started: no cost")
    if own_kernel and key in _OWN_KERNEL:
        return _OWN_KERNEL[key]
    rules = _RULES if told else _RULES | _UNTOLD
    return rules.get(key, Rule("nobody has said yet what it does", "see what it does before trusting small tolls"))


def _but_rights(mount: str) -> tuple[str, list[str]]:
    """``overlay rw,nodev,relatime`` without what only says who may do what."""
    kind, _, options = mount.partition(" ")
    return kind, [one for one in options.split(",") if one not in ("nosuid", "nodev", "noexec")]


def _mitigation_rule(native: str, here: str) -> Rule:
    """Whether threads share a core is told behind a mitigation, and is none."""
    done = [one.partition("; SMT ")[0] for one in (native, here)]
    unpaid = [one in _UNMITIGATED for one in done]
    if all(unpaid) or done[0] == done[1]:
        return Rule("told otherwise, and paid for alike or on neither side")
    return _RULES[_MITIGATION] if any(unpaid) else _OTHER_MITIGATION
