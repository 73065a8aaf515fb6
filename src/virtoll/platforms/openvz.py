"""OpenVZ 7 and Virtuozzo: a container of the OpenVZ kernel's, made by vzctl(8), on a ploop of its own.

NOT YET RUN ON A LIVE HOST. It was written from vzctl(8), ploop(8), vzlist(8) and the public source of libvzctl, and has
run against a stand-in for those programs (tests/vz_double.py), which is no OpenVZ.

vzctl puts a container into a control group of its own choice (machine.slice/ID), which is where its cost is booked; the
`vzctl exec2` that the agent is reached by stays beside it, and its cost is not in the container's: the record and the
report say so. The container has no distribution's init:
its first process sleeps. Its link is the lab's own veth, moved in, as on every platform; venet0 is left alone.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from virtoll.errors import HostError, PlatformError, Problem
from virtoll.features import BHANAGE, VASCONCELOS, Features, no, yes
from virtoll.hosts import vzctl
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.cgroup import hierarchies, owned
from virtoll.hosts.openvz import Container, clock_of, parse_beancounters, parse_vestat, parse_vzlist, unit
from virtoll.hosts.programs import find
from virtoll.images import ploop
from virtoll.images.base import AGENT, Image
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import veth
from virtoll.platforms.base import Accounting, Instance, Platform
from virtoll.platforms.groups import instance_cpus
from virtoll.platforms.kinds import CONTAINER
from virtoll.platforms.requirements import bare, refuse_kind
from virtoll.platforms.stdio import PATH, agent_on_stdio
from virtoll.record.model import NOT_BOOKED
from virtoll.study.limits import Limits
from virtoll.units import within

PAGE_BYTES = 4096  # of beancounters, on x86 (vzctl(8))
UNTRIED = "its driver is not yet run on a live host: check by hand what it says there"

_BEANCOUNTERS, _VESTAT = Path("/proc/user_beancounters"), Path("/proc/vz/vestat")
_RELEASE = Path("/proc/sys/kernel/osrelease")
_PROGRAMS = ("vzctl", "vzlist", "ploop")
_START_S = 180.0
_ENTER = "/virtoll/enter"
# What lies in the container beside the image's files. vzctl runs a first process, and everything else by a shell. Its
# /dev is devtmpfs, in memory (libvzctl's lib/env.c); the image need not be able to mount anything.
SCRIPTS = {
    "/sbin/init": "#!/bin/sh\nexec sleep 2147483647\n",
    _ENTER: f"""#!/bin/sh -e
[ -d /dev/shm ] || mkdir -m 1777 /dev/shm
exec env -i {PATH} {AGENT} serve
""",
}
_LIMITED = ("physpages", "swappages", "numproc")
# Those that libvzctl still sets on a kernel of Virtuozzo 7's: a sample configuration of the host's may bound them.
_UNLIMITED = ("kmemsize", "lockedpages", "privvmpages", "shmpages", "numfile", "numflock", "numpty", "numsiginfo")
# libvzctl's lib/vzerror.h, in words; of those that are not here vzctl's own words must do.
_EXITS = {
    5: "this is no OpenVZ kernel",
    6: "the kernel refused a resource",
    9: "another vzctl works on the container",
    14: "the container has no configuration",
    31: "the container does not run",
    32: "the container runs already",
    44: "there is such a container already",
    46: "the disk is full",
    47: "nothing in the image that can be started: it needs /bin/sh, and sleep, mkdir, env",
    50: "its disk cannot be mounted",
    152: "its disk cannot be mounted",
}


@dataclass(frozen=True)
class OpenvzSettings:
    """``cpuunits``: the container's weight where others want the same CPU; 1000 is OpenVZ's default."""

    cpuunits: int = within(1000, least=8, most=500_000)


class Openvz(Platform):
    """Containers of OpenVZ 7 and Virtuozzo."""

    name: ClassVar[str] = "openvz"
    summary: ClassVar[str] = "containers of an OpenVZ 7 or Virtuozzo kernel (vzctl); not yet run on a live host"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth",)
    runtimes: ClassVar[tuple[str, ...]] = ("vzctl",)
    caveat: ClassVar[str] = UNTRIED
    expected_overhead_s: ClassVar[float] = 15.0
    features: ClassVar[Features] = {
        **CONTAINER,
        "own-kernel": no("all run under the same", f"{VASCONCELOS}, 2.6"),
        "own-network": yes("interfaces, addresses and routes of its own", f"{VASCONCELOS}, 2.6"),
        "root-inside": yes("root of the container alone; of its kernel he can change nothing", f"{BHANAGE}, 2"),
        "shared-base": no("each has a ploop of its own, copied from one", "docs/METHODOLOGY.md"),
        "stock-kernel": no("a modified kernel", f"{VASCONCELOS}, 2.6"),
        "live-migration": yes(
            "running containers too",
            "docs.virtuozzo.com/virtuozzo_hybrid_server_7_users_guide, Migrating Virtual Machines and Containers",
        ),
        "checkpoint": yes("to a file, and restored on this or another host", f"{VASCONCELOS}, 2.6"),
        "own-resource-view": yes("monitored from inside, where a Linux container could not be", f"{VASCONCELOS}, 4"),
        "resize": yes("limits and weights of each container", f"{VASCONCELOS}, 2.6"),
        "overcommit": yes("limits are apart from guarantees", f"{VASCONCELOS}, 2.6"),
    }
    Settings: ClassVar[type[OpenvzSettings]] = OpenvzSettings
    settings: OpenvzSettings

    def check(self, host: Host) -> list[Problem]:
        """See `Platform.check`."""
        problems = _kernel_problems(host)
        if problems:  # no program helps
            return problems
        missing = [program for program in _PROGRAMS if find(program) is None]
        problems = [Problem(f"{program} is not installed", host.where, f"yum install {program}") for program in missing]
        if os.geteuid() != 0:
            problems.append(Problem("not root", host.where, "run virtoll with sudo"))
        try:
            layout = hierarchies()
        except HostError as error:
            return [*problems, error.problem]
        lacking = sorted({"cpu", "cpuset", "memory", "pids"} - layout.mounts.keys())
        return problems + [Problem(f"no cgroup controller {name!r}", host.where, "mount it") for name in lacking]

    def untried(self, host: Host) -> str:  # noqa: ARG002 - whatever the host
        """See `Platform.untried`."""
        return UNTRIED

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """The ploop that each container's is copied from."""
        ploop.base(host, image, limits.disk_bytes, SCRIPTS, progress)

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """See `Platform.deploy`."""
        refuse_kind(self, attachment)
        host, cpus, container = lab.host, instance_cpus(lab, limits), str(uuid.uuid4())
        with ExitStack() as stack:
            inclusive = limits.budget == "inclusive"
            helpers_cpus = cpus if inclusive else lab.generator.cpus
            helpers = stack.enter_context(
                owned(lab.ledger, f"{lab.cgroup}/{directory.name}/helpers", cpus=helpers_cpus)
            )
            stack.enter_context(lab.ledger.owning("openvz", container))
            base = ploop.base(host, image, limits.disk_bytes, SCRIPTS, lambda _line: None)
            options = limit_options(limits, cpus, self.settings.cpuunits)
            commands = _made(lab, container, base, directory, options)
            listed = _listed(host, container)
            veth.move_to(host, attachment, container)
            argv = ["vzctl", "exec2", container, _ENTER]
            agent, process = stack.enter_context(
                agent_on_stdio(
                    host,
                    bare(argv),
                    log=directory / "vzctl.log",
                    confinement=Confinement(helpers.procs),
                    platform=self.name,
                )
            )
            yield Instance(
                platform=self.name,
                agent=agent,
                attachment=attachment,
                accounting=_accounting(host, container, directory),
                limits=limits,
                facts={
                    "openvz": self.versions(host),
                    "container": asdict(listed),
                    "commands": [*commands, argv],
                    "kernel": _text(host, _RELEASE).strip(),
                    "disk_limit": ploop.DISK_LIMIT,
                    "untried": UNTRIED,
                    NOT_BOOKED: "vzctl exec2",
                },
                is_running=lambda: process.poll() is None,
                image=image,
                kernel_counts=lambda: kernel_counts(host, container),
            )


def limit_options(limits: Limits, cpus: frozenset[int], cpuunits: int) -> list[str]:
    """`vzctl set` options: memory and swap in pages of 4 KiB, CPU in percent of one, what is not limited, unlimited."""
    options = [
        f"--physpages={limits.memory_bytes // PAGE_BYTES}",
        "--swappages=0",
        f"--numproc={limits.pids}",
        f"--cpus={limits.vcpus}",
        f"--cpulimit={100 * limits.vcpus}",
        f"--cpumask={','.join(str(cpu) for cpu in sorted(cpus))}",
        f"--cpuunits={cpuunits}",
    ]
    return options + [f"--{name}=unlimited" for name in _UNLIMITED]


def kernel_counts(host: Host, container: str) -> dict[str, Any]:
    """What the kernel's beancounters and vestat say of a container: those that are limited here, or have refused."""
    counters = parse_beancounters(_text(host, _BEANCOUNTERS)).get(container, {})
    clock = clock_of(_text(host, _RELEASE))
    usage = parse_vestat(_text(host, _VESTAT), clock).get(container)
    told = {
        name: {"unit": unit(name), **asdict(counter)}
        for name, counter in counters.items()
        if counter.failcnt or name in _LIMITED
    }
    return {"beancounters": told, "vestat": None if usage is None else asdict(usage)}


def _made(lab: Lab, container: str, base: Path, directory: Path, options: list[str]) -> list[list[str]]:
    """Create the container below ``directory``, give it its disk and limits, and start it; the commands that did."""
    host = lab.host
    private = directory / "private" / container  # vzctl destroys none whose path does not end in its id
    private.parent.mkdir()
    (directory / "root").mkdir()
    made = _vzctl(
        host,
        "create",
        container,
        "--no-hdd",
        "--layout=ploop",
        f"--private={private}",
        f"--root={directory / 'root'}",
        f"--name=vt-{lab.run_tag}-{directory.name}",
    )
    disk = private / "root.hdd"
    ploop.copied(host, base, disk)
    return [
        made,
        _vzctl(host, "set", container, "--save", "--device-add=hdd", f"--image={disk}", "--mnt=/"),
        _vzctl(host, "set", container, "--save", "--onboot=no", *options),
        _vzctl(host, "start", container),
    ]


def _vzctl(host: Host, *words: str) -> list[str]:
    """Run vzctl; PlatformError with its own words, and its exit code in ours, where it fails."""
    argv = ["vzctl", *words]
    done = host.run(bare(argv), check=False, timeout_s=_START_S)
    if done.returncode != 0:
        said = "\n".join(part.decode(errors="replace").strip() for part in (done.stdout, done.stderr))
        meant = _EXITS.get(done.returncode, "see vzctl(8)")
        raise PlatformError(
            f"vzctl {words[0]} ended with {done.returncode} ({meant}):\n{said.strip()[-2000:]}",
            where="openvz",
            remedy=f"run it by hand: {' '.join(argv)}; /var/log/vzctl.log says more",
        )
    return argv


def _listed(host: Host, container: str) -> Container:
    """The container as vzlist lists it; PlatformError where it does not run. Its own words (hostname) are not asked."""
    argv = ["vzlist", "--all", "--json", "--output=ctid,status,ip,cpulimit,cpuunits", container]
    told = host.run(bare(argv), check=False).text
    for one in parse_vzlist(told):
        if one.id == container and one.status == "running":
            return one
    raise PlatformError(
        f"vzctl has started the container, and vzlist does not list it as running, but says {told[:300]!r}",
        where="openvz",
        remedy=f"run it by hand: {' '.join(argv)}",
    )


def _accounting(host: Host, container: str, directory: Path) -> Accounting:
    """Helpers are in no group of the container's, which vzctl makes and removes: none of its parts (`NOT_BOOKED`)."""
    group = vzctl.control_group(host, container)
    return Accounting(group, directory, {"payload": group})


def _kernel_problems(host: Host) -> list[Problem]:
    """Why this kernel runs no OpenVZ container, or none whose cost we could find."""
    try:
        host.read(_VESTAT)
    except HostError:
        what = f"this kernel is not OpenVZ's: there is no {_VESTAT}"
        remedy = (
            "run virtoll on a host with OpenVZ 7 or Virtuozzo; openvz-profile has its wiring and limits on any kernel"
        )
        return [Problem(what, host.where, remedy)]
    release = _text(host, _RELEASE).strip()
    if clock_of(release) == "cycles":
        what = f"Linux {release[:60]} is OpenVZ 6's or older, whose containers lie in no control group"
        return [Problem(what, host.where, "run virtoll on a host with OpenVZ 7 or Virtuozzo 7")]
    return []


def _text(host: Host, path: Path) -> str:
    return host.read(path).decode(errors="replace")
