"""The machine and everything whose version matters, read and never changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from virtoll import __version__, binaries
from virtoll.catalogue import plugins
from virtoll.errors import HostError
from virtoll.hosts import tuning
from virtoll.hosts.cgroup import hierarchies
from virtoll.hosts.meminfo import meminfo_bytes
from virtoll.images import rootfs
from virtoll.images.base import Images
from virtoll.lab.cpus import parse_cpu_list
from virtoll.plain import cpu_list
from virtoll.record.calibration import machine_of
from virtoll.record.comparable import INSTALLED, MEASURED_BY, booted_anew, differences
from virtoll.record.model import Arm, Environment, SkippedArm
from virtoll.run import calibrations

if TYPE_CHECKING:
    from virtoll.run.stage import Stage

_MEMINFO = Path("/proc/meminfo")
_VULNERABILITIES = Path("/sys/devices/system/cpu/vulnerabilities")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_EVENT_SOURCES = Path("/sys/bus/event_source/devices")
_TURBO_OFF = Path("/sys/devices/system/cpu/intel_pstate/no_turbo")
# A machine is busy where other work leaves a trial too few CPUs: a program that runs all the time, where there are one
# or two; on more, so large a part of them. What is below is daemons, and what still echoes of virtoll's own making of
# images: the load average decays over a minute.
_BUSY, _BUSY_PART = 0.8, 0.4
_MEASURING = (
    *("agent", "aggressors", "hosts", "images", "instruments", "lab", "loads", "monitor", "networks", "platforms"),
    *("post", "probes", "services", "study", "trial"),
    # In which lab and order, what is sealed as valid, and what shows that the generator's machine was its own.
    *("run/by_generator.py", "run/execute.py", "run/handed.py", "run/hosting.py", "run/laboratory.py"),
    *("run/looking.py", "run/posting.py", "run/stage.py"),
    *("record/knee.py", "record/objective.py"),  # what a search asks for next
    *("record/model.py", "record/tables.py"),  # the bounds of proofs, and what of a measurement is kept
    *("encoded.py", "films.py", "footage.py", "h264.py", "offers.py", "units.py", "voice.py"),  # what is sent
)


def describe(
    images: Images,
    runtimes: Mapping[str, str],
    skipped: Sequence[SkippedArm],
    plugins: Mapping[str, str],
    files: Mapping[str, str],
    *,
    generators: Iterable[str],
    tools: Mapping[str, str],
    media: Mapping[str, str],
    is_lab: bool = True,
) -> Environment:
    """This machine as a run records it.

    ``runtimes``: the versions of what makes instances; ``plugins``: what third parties have registered, and where it
    comes from; ``files``: digests of what of this machine's a service is given;
    ``generators``: the binaries that load is made with, besides the one that waits for each service; ``tools``: digests
    of this machine's own programs that do the same; ``media``: digests of what they send, or are served; ``is_lab``:
    the generator is here, too.
    """
    contents = {role: rootfs.manifest(image) for role, image in images.by_role.items()}
    installed = {role: content["versions"] for role, content in contents.items() if content["versions"]}
    here = machine()
    comparable = {
        "machine": here,
        "tuned": tuning.in_force(tuning.directory()),
        "images": {role: image.digest for role, image in images.by_role.items()},
        "packages": {
            role: {package: content["versions"][package] for package in content["packages"]}
            for role, content in contents.items()
            if content["packages"]
        },
        INSTALLED: {role: _in_a_line(versions) for role, versions in installed.items()},
        "runtimes": dict(runtimes),
        "plugins": dict(plugins),
        "files": dict(files),
        "agent": binaries.digest("virtoll-agent"),
        "load generators": {
            **{name: binaries.digest(name) for name in sorted({"virtoll-load", *generators})},
            **tools,
        },
        **({"media": dict(media)} if media else {}),
    }
    notes = {
        "load_average": os.getloadavg()[0],
        "memory_available_bytes": meminfo_bytes(_MEMINFO.read_text(), "MemAvailable"),
        "frequency_governor": _text(_GOVERNOR),
        "turbo_off": _text(_TURBO_OFF),
        "uptime_s": float(Path("/proc/uptime").read_text().split()[0]),
        INSTALLED: installed,
        MEASURED_BY: {"code": _code(), "cpus": sorted(os.sched_getaffinity(0))},
    }
    notes |= calibrations.noted(machine_of(comparable, notes))
    return Environment(
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        virtoll=__version__,
        comparable=comparable,
        notes=notes,
        skipped=list(skipped),
        warnings=warnings(is_lab=is_lab),
    )


def of_stage(stage: Stage, arms: Sequence[Arm], images: Images, skipped: Sequence[SkippedArm]) -> Environment:
    """This machine, as a study's stage has made it ready for these arms."""
    generators, tools, media = stage.generators, stage.tools, stage.media
    found = (stage.runtimes(arms), skipped, plugins(), stage.files)
    is_lab = stage.posted is None
    here = describe(images, *found, generators=generators, tools=tools, media=media, is_lab=is_lab)
    return here if stage.posted is None else stage.posted.told_in(here)


def _in_a_line(versions: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()
    return f"{len(versions)} packages, sha256 {digest}"


@cache
def _code() -> str:
    """sha256 of the part of virtoll that measures; what reads results may change under a run."""
    top, digest = Path(__file__).parent.parent, hashlib.sha256()
    places = [top / place for place in _MEASURING]
    for path in sorted(path for place in places for path in (place, *place.rglob("*"))):
        if not path.is_file() or path.suffix == ".pyc":
            continue
        digest.update(f"{path.relative_to(top)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def machine() -> dict[str, Any]:
    """The machine as a run records it."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    release = os.uname()
    return {
        "kernel": f"{release.release} {release.version}",
        "architecture": release.machine,
        "distribution": _distribution(),
        "cpu_model": _cpuinfo_field(cpuinfo, "model name"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": meminfo_bytes(_MEMINFO.read_text(), "MemTotal"),
        "microcode": _cpuinfo_field(cpuinfo, "microcode"),
        "hypervisor": " hypervisor " in cpuinfo,
        "cgroup_version": hierarchies().version,
        "mitigations": {path.name: _text(path) for path in sorted(_VULNERABILITIES.glob("*"))},
    }


_EMULATED = "QEMU TCG CPU"  # -cpu max; what other models are called does not tell


def warnings(*, is_lab: bool = True) -> list[str]:
    """What will make this machine's figures noisy, each with its remedy. ``is_lab``: all of a lab is on it."""
    found = []
    # A loop of ours counts, and gives way; who holds idle states sleeps.
    load = os.getloadavg()[0] - len(tuning.Awake().cpus(tuning.directory()))
    whole = os.cpu_count() or 1  # what the load is of, whatever of it is ours
    if load > max(_BUSY, _BUSY_PART * whole):
        found.append(
            f"the machine is busy (load average {load:.1f} over the last minute, on {whole} "
            f"CPU{'s' * (whole > 1)}): end other work for narrower intervals"
        )
    cpuinfo = Path("/proc/cpuinfo").read_text()
    if _EMULATED in (_cpuinfo_field(cpuinfo, "model name") or ""):
        found.append(
            "this machine's processor is emulated (QEMU's TCG): what is seen here works or not, and no figure says "
            "what anything costs; measure on a machine of its own"
        )
    elif " hypervisor " in cpuinfo:
        found.append(
            "this machine is itself a virtual machine: neighbours add noise, and nested platforms look worse than on "
            "bare metal; trust ratios within a block, not absolute values"
        )
    governor = _text(_GOVERNOR)
    if governor not in (None, *tuning.STEADY_GOVERNORS):
        found.append(f"the CPU frequency governor is {governor!r}: `virtoll tune governor` steadies it")
    if partly := tuning.Awake().partly(tuning.directory()):
        found.append(
            f"`virtoll tune awake` has {partly}: figures hang on who computes where; `virtoll untune awake` ends them, "
            "and `virtoll tune awake` begins anew"
        )
    congestion = tuning.congestion()
    if congestion not in (None, *tuning.STEADY_CONGESTION):
        found.append(
            f"TCP's congestion control is {congestion!r}, which may have single requests wait for a tenth of a second, "
            "and which guests with kernels of their own do not have: `virtoll tune congestion` steadies it"
        )
    if len(kinds := _kinds_of_cpus()) > 1:
        most = max(kinds.values(), key=lambda cpus: (len(cpus), -min(cpus)))
        told = "; ".join(f"{kind}: {cpu_list(cpus)}" for kind, cpus in kinds.items())
        found.append(
            f"this machine's CPUs are of different kinds ({told}): the last ones are the instance's, and figures are "
            f"of those, or of a mixture; `taskset -c {cpu_list(most)} virtoll ...` keeps all to one kind"
        )
    cpus = len(os.sched_getaffinity(0))
    if cpus < 4 and is_lab:
        found.append(f"only {cpus} CPUs: load generator and origin share what the instance does not use")
    return found


def _kinds_of_cpus() -> dict[str, list[int]]:
    """The CPUs that we may use, by kind, where Linux counts each kind's events apart: cpu_core and cpu_atom of Intel's
    hybrid processors (tools/perf/Documentation/intel-hybrid.txt).
    """
    ours, found = os.sched_getaffinity(0), {}
    for path in sorted(_EVENT_SOURCES.glob("cpu_*/cpus")):
        if told := _text(path):
            found[path.parent.name] = sorted(ours & parse_cpu_list(told))
    return {kind: cpus for kind, cpus in found.items() if cpus}


def require_same(before: Environment, now: Environment) -> None:
    """HostError when a run begun in ``before`` must not go on in ``now``: its trials could not be compared."""
    changed = differences(before.comparable, booted_anew(before.comparable, now.comparable))
    begun_by, goes_on_by = (each.notes.get(MEASURED_BY) for each in (before, now))
    if isinstance(begun_by, dict) and isinstance(goes_on_by, dict):  # runs from before 2026-11-27 do not tell
        changed += differences(begun_by, goes_on_by)
    if changed:
        raise HostError(
            "the machine, or virtoll, is not the one this run was begun with:\n  " + "\n  ".join(changed),
            where="environment.json",
            remedy="begin a new run; the old one's report stays valid for what it holds",
        )


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _cpuinfo_field(cpuinfo: str, name: str) -> str | None:
    match = re.search(rf"^{re.escape(name)}\s*: (.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else None


def _distribution() -> str | None:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', _text(Path("/etc/os-release")) or "", re.MULTILINE)
    return match[1] if match else None
