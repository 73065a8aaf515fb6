"""gVisor: a container whose system calls are answered by a kernel of its own, the Sentry, a program of the host's.

`runsc run` stays in the foreground, the agent is the container's first process, and its standard input and output are
runsc's. All of it (the Sentry, the gofer that opens files for it, runsc itself) is in the payload's group, as
Kubernetes has it: what the Sentry needs is taken from the instance's own CPUs and memory.

- **Network.** The Sentry has a TCP/IP stack of its own. It takes addresses and routes over from the link that it finds
  in its network namespace when it starts, and removes them there: each instance has a namespace, wired before.
- **Processes.** One inside is some processes and threads outside, by a number that nobody promises: inside they are
  limited by RLIMIT_NPROC, which the Sentry holds each of the users to, root too. The host's limit bounds the Sentry.
- **CPU time.** The Sentry looks every 10 ms who is at work, and who waits for a CPU is, too: what it tells inside is
  more than was used, and /proc/stat holds zeros. Neither is taken: the host's account is.
- **Memory.** The host's limit holds the Sentry with all inside: who takes more is not killed alone, the instance ends.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

from virtoll.errors import CommandError, HostError, Problem
from virtoll.features import UNKNOWN, Features, partly, yes
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.ledger import scratch
from virtoll.hosts.programs import Stamp, stamp
from virtoll.images import go
from virtoll.images.base import GO, GoProgram, Image
from virtoll.images.layer import DISK_LIMIT, overlay
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import bundle, veth
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.booted import silent
from virtoll.platforms.groups import Groups, instance_groups
from virtoll.platforms.kinds import CONTAINER
from virtoll.platforms.requirements import bare, containers_need, refuse_kind
from virtoll.platforms.stdio import agent_on_stdio
from virtoll.platforms.under_kvm import TRIAL_LIMIT_S, device_problem
from virtoll.study.limits import Limits

_MOUNTS = ("proc", "tmpfs", "sysfs", "devpts")  # what the Sentry has of its own
# What runsc of 2022 tells the machine's own network by: a file here, which since Linux 6.9 each namespace has.
COVERED = ("/proc/sys/net",)
# What stands on the host for each process inside: the Sentry's threads, and traced stubs (seen: 482 for 63 idle ones).
HOSTS_TASKS_EACH = 8
_SHA256 = "896d4b0a742508aaf411edcff3d5ba0ff396f6387c95347feb1cd2ba97fafb38"
_DOCS = "gvisor.dev/docs/"
_USE_PTRACE = 'set system_calls = "ptrace"'
_BUILD_ONE = f'set runsc = "built", or {_USE_PTRACE}'
# Whoever ends this ends all that runsc has started: the Sentry has a session of its own.
_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass(frozen=True)
class GvisorSettings:
    """``system_calls``: how the Sentry is told of them; runsc calls it its platform. *systrap* (seccomp) is gVisor's
    default since 2023; *ptrace* was it before, and is what Debian 12's runsc has; *kvm* needs a /dev/kvm under which
    the Sentry runs, which is tried before a run begins. ``runsc``: the one that is *installed*; or one of 2026, *built*
    from Go modules of locked versions (once, in some minutes).
    """

    system_calls: Literal["ptrace", "systrap", "kvm"] = "ptrace"
    runsc: Literal["installed", "built"] = "installed"


class Gvisor(Platform):
    """Containers of gVisor's runsc."""

    name: ClassVar[str] = "gvisor"
    summary: ClassVar[str] = "a container that shares no kernel: its system calls are answered by a program (runsc)"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth",)
    features: ClassVar[Features] = {
        **CONTAINER,
        "own-kernel": yes("system calls are answered by one of its own, a program of the host's", _DOCS),
        "changed-kernel": partly("its kernel is a program of its own, which can be built with changes", _DOCS),
        "fault-isolation": partly("what breaks its kernel ends with it; the host's still answers that program", _DOCS),
        "unmodified-guest": partly("of programs that ask for system calls it has", f"{_DOCS}compatibility"),
        "live-migration": UNKNOWN,
        "checkpoint": yes("runsc checkpoint, runsc restore", "gvisor.dev/docs/user_guide/checkpoint_restore"),
        "own-resource-view": UNKNOWN,
    }
    Settings: ClassVar[type[GvisorSettings]] = GvisorSettings
    settings: GvisorSettings

    def check(self, host: Host) -> list[Problem]:
        """See `Platform.check`."""
        is_built, wanted = self.settings.runsc == "built", self.settings.system_calls
        problems = containers_need(host, *(() if is_built else (("runsc", "runsc"),)))
        if is_built and platform.machine() != "x86_64":
            problems.append(Problem(f"runsc is built for x86-64 only, this is {platform.machine()}", host.where))
        if not is_built and not any("runsc" in problem.what for problem in problems):
            offered = platforms_offered(host.run(["runsc", "help", "platforms"], check=False).text)
            if wanted not in offered:
                what = f"this runsc has no platform {wanted}, but {', '.join(offered) or 'none'}"
                problems.append(Problem(what, host.where, _BUILD_ONE))
        if wanted == "kvm" and (problem := device_problem(host)):
            problems.append(replace(problem, remedy=f"{problem.remedy}; or {_USE_PTRACE}"))
        return problems

    def untried(self, host: Host) -> str:  # noqa: ARG002
        """See `Platform.untried`."""
        if self.settings.system_calls == "kvm":
            return "whether the Sentry runs under this KVM"
        return "" if self._is_there() else "whether a runsc can be built"

    def announced(self) -> str:
        """What is fetched, and takes minutes."""
        return "" if self._is_there() else f"runsc is {_module()}, whose modules are fetched: once, some minutes"

    def _is_there(self) -> bool:
        return self.settings.runsc == "installed" or go.place(program()).exists()

    def try_out(self, host: Host) -> list[Problem]:
        """Whether runsc can be built, and a program runs under KVM: where that is made for special guests only, or is
        nested, the Sentry hangs.
        """
        try:
            self._make(host, silent)
            bundle.version(host, self._runsc)  # where nothing may be executed, it is refused
        except HostError as error:
            return [error.problem]
        problem = trial_problem(host, self._runsc) if self.settings.system_calls == "kvm" else None
        return [problem] if problem else []

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:  # noqa: ARG002
        """runsc, where it is to be built. The image's directory is the form it takes."""
        self._make(host, progress)

    def _make(self, host: Host, progress: Callable[[str], None]) -> None:
        if self.settings.runsc == "built":
            go.built(host, program(), progress)

    @property
    def _accelerator(self) -> str:
        """As `is_under_kvm` asks: nobody counts for the Sentry how often it leaves its CPUs for the host."""
        return "kvm, by runsc" if self.settings.system_calls == "kvm" else self.settings.system_calls

    @property
    def _runsc(self) -> str:
        return str(go.place(program())) if self.settings.runsc == "built" else "runsc"

    def versions(self, host: Host) -> dict[str, str]:
        """runsc's: of one that is installed and of one that is built, a run may have both."""
        if self.settings.runsc == "built":
            return {"runsc (built)": f"{_module()} by Go {GO[0]}"}
        return {"runsc": bundle.version(host, "runsc")}

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """See `Platform.deploy`."""
        refuse_kind(self, attachment)
        host = lab.host
        with ExitStack() as stack:
            root = stack.enter_context(overlay(host, lab.ledger, image, directory, limits.disk_bytes))
            netns = stack.enter_context(_namespace(lab, directory.name))
            groups = stack.enter_context(
                instance_groups(lab, directory.name, limits, payload_pids=host_processes(limits))
            )
            veth.move_to(host, attachment, netns)
            told = configuration(root, groups, limits, Path("/run/netns", netns))
            bundle.write(host, directory / "bundle", told)
            argv = bundle.apart(root, self._run(host, directory, netns), covered=COVERED)
            log, confinement = directory / "runsc.log", Confinement(groups.payload.procs)
            agent, process = stack.enter_context(
                agent_on_stdio(host, bare(argv), log=log, confinement=confinement, platform=self.name)
            )
            stack.callback(bundle.end, groups, process)
            yield Instance(
                platform=self.name,
                agent=agent,
                attachment=attachment,
                accounting=groups.accounting(directory, apart=False),
                limits=limits,
                facts={
                    "runtime": self.versions(host),
                    "accelerator": self._accelerator,
                    "command": argv,
                    "bundle": told,
                    "disk_limit": DISK_LIMIT,
                },
                is_running=lambda: process.poll() is None,
                image=image,
                counts_cpu_time=False,
                hosts_tasks_each=HOSTS_TASKS_EACH,
            )

    def _run(self, host: Host, directory: Path, name: str) -> list[str]:
        """`runsc run`, in a network namespace without a name and without devices, which it never uses: the Sentry is
        commanded on an abstract socket of the network that runsc was started in, called after the container. In the
        machine's own any user could connect to it (runsc hangs up on all but root) or take its name beforehand.
        """
        argv = [
            "unshare",
            "--net",
            self._runsc,
            f"--root={directory / 'runtime'}",
            f"--platform={self.settings.system_calls}",
        ]
        argv += ["--network=sandbox", "--ignore-cgroups", "--log=/dev/null", *on_its_disk(host, self._runsc)]
        return [*argv, "run", f"--bundle={directory / 'bundle'}", name]


@cache
def program() -> GoProgram:
    """The runsc that is built."""
    here = files("virtoll.platforms")
    modules, sums = ((here / f"runsc.{kind}").read_text(encoding="utf-8") for kind in ("mod", "sum"))
    return GoProgram("gvisor.dev/gvisor/runsc", "runsc", *GO, modules, sums, _SHA256)


def _module() -> str:
    """Of what version of gVisor it is."""
    (line,) = (line for line in program().modules.splitlines() if "gvisor.dev/gvisor " in line)
    return f"built of {line.partition('//')[0].strip()}"


def trial_problem(host: Host, runsc: str, limit_s: float = TRIAL_LIMIT_S) -> Problem | None:
    """Run a program that does nothing under KVM, and tell why that did not work."""
    with scratch(host, "runsc") as directory:
        argv = [*_APART, "env", f"TMPDIR={directory}", runsc, f"--root={directory}", "--platform=kvm"]
        argv += ["--network=none", "--ignore-cgroups", "do", "true"]
        try:
            done = host.run(argv, timeout_s=limit_s, check=False)
        except CommandError:
            ending = f"it had not ended after {limit_s:g} s"
        else:
            if done.returncode == 0:
                return None
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            ending = ": ".join([f"it ended with code {done.returncode}", *said])
    return Problem(
        f"/dev/kvm is there, but runsc runs nothing under it: {ending[:400]}",
        host.where,
        f"this KVM cannot run gVisor's kernel (nested, or built for special guests only): {_USE_PTRACE}",
    )


def platforms_offered(told: str) -> list[str]:
    """The names in what `runsc help platforms` prints."""
    return sorted(set(re.findall(r"\b(?:kvm|ptrace|systrap)\b", told)))


_flags: dict[tuple[str, Stamp | None], str] = {}  # what each program tells of them


def platform_by_itself(host: Host) -> str:
    """The way of taking system calls that the installed runsc has where it is told none; "" where it does not say."""
    found = re.search(r"^ *-platform string\n.*\(default \"?(\w{1,30})\"?\)$", _flags_told(host, "runsc"), re.MULTILINE)
    return found[1] if found else ""


def on_its_disk(host: Host, runsc: str = "runsc") -> list[str]:
    """What has files lie on the instance's disk, as on all platforms. A runsc of 2023 or later keeps what is written in
    memory by itself, from where no sync takes it anywhere (gvisor.dev/docs/user_guide/filesystem, Overlay).
    """
    return ["--overlay2=none"] if re.search(r"^ *-overlay2\b", _flags_told(host, runsc), re.MULTILINE) else []


def _flags_told(host: Host, runsc: str) -> str:
    key = (runsc, stamp(runsc))
    if key not in _flags:
        done = host.run([runsc, "flags"], check=False)
        _flags[key] = (done.stdout + done.stderr).decode(errors="replace")
    return _flags[key]


def configuration(root: Path, groups: Groups, limits: Limits, netns: Path) -> dict[str, Any]:
    """The bundle: as any container's, with what the Sentry has, and without what the host's groups do."""
    told = bundle.configuration(root, groups, limits, netns)
    told["process"]["rlimits"].append({"type": "RLIMIT_NPROC", "soft": limits.pids, "hard": limits.pids})
    told["mounts"] = [mount for mount in told["mounts"] if mount["type"] in _MOUNTS]
    for key in ("cgroupsPath", "resources"):
        del told["linux"][key]
    return told


def host_processes(limits: Limits) -> int:
    """Enough for the Sentry's threads, and for what stands for each process inside (`HOSTS_TASKS_EACH`) at work."""
    return 32 * limits.pids + 1000


@contextmanager
def _namespace(lab: Lab, instance: str) -> Iterator[str]:
    """A network namespace by its name, for one instance."""
    name = f"vt-{lab.run_tag}-{instance}"
    with lab.ledger.owning("netns", name):
        lab.host.run(["sh", "-e", "-c", ': >"$1"; unshare --net="$1" true', "sh", f"/run/netns/{name}"])
        yield name
