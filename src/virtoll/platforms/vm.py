"""What every virtual machine monitor shares: its cgroup, its console, its agent's coming up, its guest's network."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from virtoll.agent import Agent, AgentClient, FdStream, GuestSettings, Stream, StreamError, StreamTimeoutError
from virtoll.errors import AgentError, PlatformError, VirtollError
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, owned
from virtoll.hosts.local import end_session
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment
from virtoll.platforms.base import Accounting
from virtoll.platforms.groups import instance_cpus
from virtoll.platforms.logs import bounded, ending
from virtoll.platforms.requirements import bare
from virtoll.study.limits import Limits

HOSTNAME = "instance"  # as containers are called
BOOT_LIMIT_S = 120.0  # from the monitor's start to the agent's first answer
_ENDING_S = 10.0  # between the end of the agent's stream and that of the monitor
_DYING_S = 1.0  # where the stream goes on, and something else has failed
_LAST_LINES = 12
_COMPLAINT = re.compile(r"Kernel panic|BUG:|Oops:|Out of memory")


class Process(Protocol):
    """What is asked of a monitor's process: a child's Popen answers, and so does who watches one that is no child."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """How it has ended; None where it has not, or where nobody can tell."""
        ...

    def poll(self) -> int | None:
        """None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended; subprocess.TimeoutExpired where that takes longer."""
        ...

    def send_signal(self, sig: int) -> None:
        """Nothing where it has ended."""
        ...


@dataclass(frozen=True)
class Machine:
    """A running monitor: one process with all its threads and children in one cgroup."""

    kind: str  # as errors call it: "QEMU", "UML"
    process: Process
    group: Cgroup
    cpus: frozenset[int]  # where the vCPUs run
    directory: Path  # holds console.log (what the guest printed) and monitor.log (what the monitor printed)
    logs: ExitStack  # closed, they hold all that was printed

    def is_running(self) -> bool:
        """Whether the monitor still lives; it ends with its guest."""
        return self.process.poll() is None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Keep the monitor, and so the guest, from running. The guest's clock goes on: it is the host's."""
        try:
            self.process.send_signal(signal.SIGSTOP)
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    @property
    def accounting(self) -> Accounting:
        """Where its cost is booked."""
        return Accounting(self.group.name, self.directory)

    def last_words(self) -> str:
        """What console and monitor said in the end, or that there is nothing."""
        if not self.is_running():
            self.logs.close()
        said = []
        for name, whose in (("console.log", "guest's console"), ("monitor.log", f"{self.kind}'s own output")):
            if lines := telling_lines(ending(self.directory / name)):
                said.append(f"the {whose} ends in:\n" + "\n".join(f"    {line}" for line in lines))
        return "\n".join(said) or f"neither the guest nor {self.kind} printed anything"


def telling_lines(console: str) -> list[str]:
    """The lines around the kernel's complaint, where there is one (its stack trace fills the end), else the last."""
    lines = [line.rstrip() for line in console.splitlines() if line.strip()]
    for position, line in enumerate(lines):
        if _COMPLAINT.search(line):
            return lines[max(0, position - 4) : position + 2]
    return lines[-_LAST_LINES:]


@contextmanager
def started(
    kind: str,
    argv: list[str],
    *,
    lab: Lab,
    limits: Limits,
    attachment: Attachment,
    directory: Path,
    memory_bytes: int,
    pids: int,
    start_on: frozenset[int],
    pass_fds: tuple[int, ...] = (),
    home: str = "",
    temporary: str = "",
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
) -> Iterator[Machine]:
    """Start a monitor in the attachment's namespace and its own cgroup; kill all of it at the end.

    Budget "inclusive": the cgroup has the instance's CPUs and quota. Budget "vcpus": it may use the generator's CPUs
    too, without quota; the monitor then starts on CPUs ``start_on``, and the caller moves those of its threads that
    belong elsewhere (`pin`). ``memory_bytes`` and ``pids`` are the cgroup's limits: the guest's, and what the monitor
    needs besides. The guest may read all of the monitor's memory: of the caller's environment it holds PATH alone, and
    HOME (``home``) and TMPDIR (``temporary``) are the instance's directory where nothing else is said. ``stdout`` is
    where its standard output goes, if not to console.log, which then is the caller's.
    """
    cpus = instance_cpus(lab, limits)
    inclusive = limits.budget == "inclusive"
    with ExitStack() as stack:
        group = stack.enter_context(
            owned(
                lab.ledger,
                f"{lab.cgroup}/{directory.name}",
                cpus=cpus if inclusive else cpus | lab.generator.cpus,
                cpu_quota=float(limits.vcpus) if inclusive else None,
                memory_bytes=memory_bytes,
                pids=pids,
            )
        )
        if not inclusive:
            group.go_first()  # as the generator, or the monitor would wait for it on its CPUs
        logs = stack.enter_context(ExitStack())
        process = lab.host.spawn(
            bare(argv, HOME=home or str(directory), TMPDIR=temporary or str(directory)),
            stdin=stdin,
            stdout=logs.enter_context(bounded(directory / "console.log")) if stdout is None else stdout,
            stderr=logs.enter_context(bounded(directory / "monitor.log")),
            confinement=Confinement(
                cgroup_procs=group.procs,
                netns=attachment.netns,
                cpus=None if inclusive else start_on,
            ),
            pass_fds=pass_fds,
            cwd=directory,
        )
        stack.callback(end, group, process)
        yield Machine(kind, process, group, cpus, directory, logs)


def end(group: Cgroup, process: subprocess.Popen[bytes]) -> None:
    """Kill a monitor and all of its group, and reap it. It first: it may still be on its way into the group, where
    nobody is found yet.
    """
    end_session(process)
    group.kill()


def pin(thread_ids: list[int], cpus: frozenset[int]) -> None:
    """Let these threads run on ``cpus`` only; one that has just ended runs nowhere."""
    for thread_id in thread_ids:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread_id, cpus)


@contextmanager
def explained(machine: Machine) -> Iterator[None]:
    """Turn an error that comes from the guest's death into a PlatformError with its last words."""
    try:
        yield
    except VirtollError as error:
        ended = isinstance(error, StreamError) and not isinstance(error, StreamTimeoutError)
        with contextlib.suppress(subprocess.TimeoutExpired):
            machine.process.wait(_ENDING_S if ended else _DYING_S)
        if machine.is_running():
            raise
        code = machine.process.returncode
        how = "" if code is None else f" ({machine.kind}'s exit code {code})"
        raise PlatformError(
            f"the guest ended{how}; {machine.last_words()}",
            where=str(machine.directory),
            remedy="if the console shows a panic, try another kernel; if the OOM killer ended it, raise limits.memory",
        ) from error


def booted(machine: Machine, connection: socket.socket, *, longest_request_bytes: int | None = None) -> Agent:
    """The agent at the other end of ``connection``, once the guest has booted. See `AgentClient` for the length."""
    fd = connection.detach()
    stream = FdStream(fd, fd, agents_name(machine), holder=machine.process.pid)
    return answered(machine, stream, longest_request_bytes=longest_request_bytes)


def agents_name(machine: Machine) -> str:
    """What errors call its stream."""
    return f"agent in {machine.directory.name}"


def answered(machine: Machine, stream: Stream, *, longest_request_bytes: int | None = None) -> Agent:
    """The agent behind ``stream``, once the guest has booted; the stream is closed where there is none."""
    try:
        with explained(machine):
            return AgentClient(stream, timeout_s=BOOT_LIMIT_S, longest_request_bytes=longest_request_bytes)
    except VirtollError as error:
        stream.close()  # not before: a guest ends with its agent's stream, and would seem to have died by itself
        if not isinstance(error, AgentError):
            raise
        raise PlatformError(
            f"no answer from the agent within {BOOT_LIMIT_S:g} s ({error.problem.what}); {machine.last_words()}",
            where=str(machine.directory),
            remedy="if the boot only needs longer, the machine is overloaded; else try another kernel",
        ) from error


def configure(agent: Agent, limits: Limits, device: str, attachment: Attachment) -> None:
    """Give the guest its name, its limits and its network; PlatformError quotes what went wrong.

    Of open files it has this process's own limits, which an instance inherits on every other platform.
    """
    guest = GuestSettings(
        hostname=HOSTNAME,
        pids=limits.pids,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        device=device,
        address=attachment.address,
        prefix_length=attachment.prefix_length,
        gateway=attachment.gateway or None,
        on_link_gateway=attachment.on_link_gateway,
    )
    try:
        agent.configure(guest)
    except StreamError:
        raise
    except AgentError as error:
        raise PlatformError(
            f"the guest cannot be configured: {error.problem.what}",
            where=error.problem.where,
            remedy="if the device is missing, the guest's kernel has no driver for it (virtio_net; UML: vec0)",
        ) from error
