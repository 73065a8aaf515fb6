"""What runs its guests under KVM. Ready only where a guest has really booted: that /dev/kvm opens proves nothing.

(A tiny real-mode guest proves nothing either: KVM built for paravirtual guests alone, or nested where the outer one
is slow, runs that and then takes minutes over, or dies in, a real kernel.)
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from virtoll.errors import CommandError, HostError, Problem
from virtoll.files import durable
from virtoll.hosts import private
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory, scratch
from virtoll.images.kernel import Kernel, known_kernel
from virtoll.platforms import logs
from virtoll.platforms.booted import Booted, silent

TRIAL_LIMIT_S = 15.0  # a real KVM boots the same guest within one or two seconds
_FAILED_FOR_S = 3600.0  # then it is tried again: what was in the way may have gone (a hypervisor that held VT-x)
TRIED = "virtoll.probe"  # the kernel's argument for a guest that says that it has booted, and reboots
_BOOTED = "virtoll: the guest has booted"  # images/guest_init.sh
_DEVICE, _KERNELS = Path("/dev/kvm"), Path("/sys/class/misc/kvm")
_COUNTS, _PROC = Path("/sys/kernel/debug/kvm"), Path("/proc")
_WHOLE_MACHINE = "pid:[4026531836]"  # include/linux/proc_ns.h: PROC_PID_INIT_INO
_USE_TCG = "use platform qemu-tcg, or a machine with hardware virtualization"

Trial = Callable[[Kernel, Path], list[str]]


class UnderKvm(Booted):
    """Hardware virtualization; never falls back to emulation."""

    @abstractmethod
    def trial(self, kernel: Kernel, directory: Path) -> list[str]:
        """A command that boots ``kernel`` with `TRIED` among its arguments, without disk and network.

        It is run in ``directory``, which is empty and its own; the guest's console is its standard output.
        """

    def counters(self, monitor: int) -> dict[str, Path]:
        """See `exits`."""
        return exits(monitor)

    def tried_as(self) -> str:
        """What of the settings, besides the kernel, makes another guest to try."""
        return ""

    def check(self, host: Host) -> list[Problem]:
        """What can be seen without booting a guest, and the verdict of an earlier boot."""
        if problems := super().check(host):
            return problems
        if problem := device_problem(host):
            return [problem]
        return self._kept(host) or []

    def untried(self, host: Host) -> str:
        """See `Platform.untried`."""
        return "" if self._kept(host) is not None else "whether a guest boots under KVM: nobody has tried yet"

    def _kept(self, host: Host) -> list[Problem] | None:
        """The verdict of an earlier boot with this machine, monitor and kernel, if there was one that still counts."""
        kernel = known_kernel(host, self.own_kernel(), self.devices)
        return None if kernel is None else _remembered(self._verdict_path(host, kernel))

    def try_out(self, host: Host) -> list[Problem]:
        """Whether a guest really boots. The verdict is kept as long as machine, kernel and monitor are the same; a
        failure for an hour.
        """
        kept = self._kept(host)
        if kept is not None:
            return kept
        try:
            kernel = self.kernel(host, silent)
        except HostError as error:
            return [error.problem]
        problem = boot_problem(host, kernel, self.trial)
        verdict = self._verdict_path(host, kernel)
        found = [] if problem is None else [problem]
        private.make(cache_directory(), "kvm")
        durable.replace(verdict, json.dumps([vars(problem) for problem in found]).encode())
        return _remembered(verdict) or []

    def _verdict_path(self, host: Host, kernel: Kernel) -> Path:
        return _verdict_path(host, self.runtimes, kernel, self.tried_as())


def exits(monitor: int) -> dict[str, Path]:
    """See `Accounting.counters`: how often the guest of the process ``monitor`` left its CPUs for the host. Where
    debugfs is not mounted, or numbers processes otherwise, nobody is told.

    (Linux, virt/kvm/kvm_main.c: kvm_create_vm_debugfs names a guest's directory by the thread that made it, by its
    number for the whole machine, and by a descriptor.)
    """
    made, whole = None, False
    with suppress(OSError):
        whole = str((_PROC / "self/ns/pid").readlink()) == _WHOLE_MACHINE
        threads = {thread.name for thread in (_PROC / str(monitor) / "task").iterdir()}
        made = next((guest for guest in _COUNTS.iterdir() if guest.name.partition("-")[0] in threads), None)
    return {"kvm.exits": made / "exits"} if made is not None and whole else {}


def device_problem(host: Host) -> Problem | None:
    """Why /dev/kvm cannot be opened, if it cannot."""
    try:
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        remedy = _missing_device_remedy(Path("/proc/cpuinfo").read_text(), has_kvm=_KERNELS.exists())
        return Problem("there is no /dev/kvm", host.where, remedy)
    except PermissionError:
        return Problem(
            "/dev/kvm may not be opened",
            host.where,
            "run as root; inside a container, pass the device in (--device /dev/kvm)",
        )
    except OSError as error:
        return Problem(f"/dev/kvm cannot be opened: {error.strerror}", host.where, _USE_TCG)
    return None


def _missing_device_remedy(cpuinfo: str, *, has_kvm: bool) -> str:
    """What to do about a missing /dev/kvm follows from what the CPU shows, and from whether the kernel has KVM already:
    then only /dev lacks it.
    """
    if has_kvm:
        return "inside a container, pass the device in (--device /dev/kvm); else mknod -m 660 /dev/kvm c 10 232"
    flags = cpuinfo.split("flags", 1)[-1].split("\n", 1)[0].split()
    if "vmx" in flags or "svm" in flags:
        return f"modprobe {'kvm_intel' if 'vmx' in flags else 'kvm_amd'}"
    if "hypervisor" in flags:
        return f"switch nested virtualization on in the hypervisor of this virtual machine; or {_USE_TCG}"
    return f"switch VT-x or AMD-V on in the firmware; or {_USE_TCG}"


def _verdict_path(host: Host, programs: Sequence[str], kernel: Kernel, tried_as: str) -> Path:
    """Where a trial's outcome is kept: keyed by this boot of this machine, its CPU, monitor, and the guest."""
    facts = (
        Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"),
        platform.release(),
        next(line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "model name" in line),
        # The first line: Firecracker's log follows, with the time of day.
        *(host.run([program, "--version"]).text.partition("\n")[0] for program in programs),
        kernel.digest,
        tried_as,
        repr(TRIAL_LIMIT_S),
    )
    return cache_directory() / "kvm" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json"


def _remembered(verdict: Path) -> list[Problem] | None:
    """What was kept there; None where that is nothing, or a failure of some time ago."""
    try:
        at_s, told = verdict.stat().st_mtime, json.loads(verdict.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if told and abs(time.time() - at_s) >= _FAILED_FOR_S:
        return None
    when = f"tried at {datetime.fromtimestamp(at_s, UTC).astimezone():%H:%M}"
    found = (Problem(**problem) for problem in told)
    return [
        replace(one, what=f"{one.what} ({when})", remedy=f"{one.remedy}; to have it tried again at once: rm {verdict}")
        for one in found
    ]


def boot_problem(host: Host, kernel: Kernel, trial: Trial, limit_s: float = TRIAL_LIMIT_S) -> Problem | None:
    """Boot the real guest kernel under KVM, without disk and network, and tell why that did not work."""
    started = time.monotonic()
    with scratch(host, "kvm") as directory:
        try:
            argv = trial(kernel, directory)
            there = ["sh", "-c", 'cd "$1" && shift && exec "$@" >console.log', "sh", str(directory), *argv]
            done = host.run(there, timeout_s=limit_s, check=False)
            ending = f"{argv[0]} ended with code {done.returncode}"
            detail = done.stderr.decode(errors="replace").strip()
        except CommandError:
            ending, detail = f"no sign of life within {limit_s:g} s", ""
        printed = logs.ending(directory / "console.log")
    if _BOOTED in printed:
        return None
    taken_s = time.monotonic() - started
    last = [line.strip() for line in (printed + "\n" + detail).splitlines() if line.strip()][-3:]
    return Problem(
        f"/dev/kvm is there, but Linux {kernel.version} does not boot under it: {ending} (tried for {taken_s:.1f} s); "
        + (f"last output: {' | '.join(last)}" if last else "the guest printed nothing"),
        host.where,
        f"this KVM cannot run ordinary guests (nested, or built for special guests only): {_USE_TCG}",
    )
