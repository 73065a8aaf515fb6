"""Any machine that the user reaches by ssh: a VMware guest, a cloud instance, a Proxmox VM, a board.

What virtoll knows of it is what it tells: it is neither made nor limited here, nor seen from outside. The same root
filesystem is brought there, and the service runs in it as on native: a chroot over an overlay, with a System V IPC
namespace of its own; here in a mount and a process namespace besides, so that mounts and processes end with the agent,
whatever becomes of the connection. The agent, which is in that root filesystem, is spoken to through ssh.
"""

from __future__ import annotations

import hashlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from virtoll.agent import Agent, PipeStream, StreamError
from virtoll.errors import HostError, PlatformError, Problem
from virtoll.features import FEATURES, Features, Support, no, partly, yes
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.local import end_session
from virtoll.hosts.programs import find
from virtoll.hosts.ssh import EMPTY, LOST, MADE, Ssh, as_error, flaw, is_safe, meaning, named, script
from virtoll.images import disk
from virtoll.images.base import Image
from virtoll.images.forms import tar_stream
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms.base import Instance, Platform, Unseen
from virtoll.platforms.inside import CHROOT
from virtoll.platforms.logs import bounded, ending
from virtoll.platforms.requirements import command_missing, refuse_kind
from virtoll.platforms.ssh_machine import Machine, look
from virtoll.platforms.stdio import PATH, SERVE, agent_on_stdio
from virtoll.record.model import NOT_LIMITED
from virtoll.study.limits import Limits
from virtoll.units import format_bytes

_BRING_S = 3600.0  # for an image over a slow line; a dead one is noticed by OpenSSH
_SPARE_BYTES = 64 * 1024**2  # beyond what the image takes, for what the service writes
# Somebody else may have made it since it was looked at, in a directory that is everybody's.
_OWN = """
umask 077
[ -d "$1" ] || { mkdir -p -m 700 "$1"; : >"$1/$3"; }
[ -O "$1" ] && [ ! -L "$1" ] || { echo "$1 is somebody else's" >&2; exit 1; }
mkdir -m 700 "$2"
"""
_HAS = 'if [ -d "$1" ]; then echo virtoll yes; else echo virtoll no; fi'
# GNU's tar keeps attributes (a program's capabilities) where it is told to; others do, or do not know them.
_UNPACK = """
umask 077
mkdir -m 700 "$1"
case $(tar --version 2>/dev/null) in
    *GNU*) exec tar --extract --preserve-permissions --numeric-owner --xattrs --xattrs-include='*' -C "$1" -f - ;;
    *) exec tar -x -p -C "$1" -f - ;;
esac
"""
# What is there under its name is whole, whenever that machine loses its power.
_KEEP = """
mkdir -p -m 700 "${2%/*}"
[ -e "$2" ] || { sync; mv "$1" "$2"; sync; }
"""
# $1: the image, $2: the instance's directory, $3: bytes of shared memory. Its mounts are seen by nobody else.
_START = f"""
umask 022
mkdir -m 700 "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" virtoll "$2/root"
set -- "$2/root" "$3"
{CHROOT}
exec env -i {PATH} chroot "$1" {" ".join(SERVE)}
"""
_DOCS = "docs/SSH.md"
_LAST_WORDS_S = 2.0  # for ssh to end, and to say why


@dataclass(frozen=True)
class SshSettings:
    """``destination`` as ssh(1) has it. ``address``: where the generator reaches the machine, if not at the host that
    the destination leads to. ``keep``: leave the image there, in ``directory``, for the next run.
    """

    destination: str = ""
    address: str = ""
    directory: str = "/var/lib/virtoll-remote"
    keep: bool = False


class SshMachine(Platform):
    """A chroot on a machine of the user's own."""

    name: ClassVar[str] = "ssh"
    summary: ClassVar[str] = "any machine that you reach by ssh; its limits are audited, not set"
    kinds: ClassVar[tuple[Kind, ...]] = ("remote",)
    default_network: ClassVar[str] = "direct"
    is_elsewhere: ClassVar[bool] = True
    expected_overhead_s: ClassVar[float] = 5.0
    Settings: ClassVar[type[SshSettings]] = SshSettings
    settings: SshSettings
    features: ClassVar[Features] = {
        **{word: Support("unknown", "as the machine is, which virtoll does not know", "") for word in FEATURES},
        "own-kernel": yes("the machine's own", _DOCS),
        "own-distribution": partly("a tree of files to which it is confined (chroot)", _DOCS),
        "root-inside": no("root inside is the machine's", _DOCS),
        "separate-files": no("root inside reaches all of the machine's", _DOCS),
        "own-network": no("the network of its machine", _DOCS),
    }

    # -- before a run -------------------------------------------------------------------------------------

    def check(self, host: Host) -> list[Problem]:
        """Whether ssh is here, and the settings name a machine that can be looked for. Asks nobody else."""
        settings, named_in = self.settings, '[[arms]] platform = "ssh"'
        if why := flaw(settings.destination):
            return [Problem(why, named_in, 'write destination = "root@192.0.2.7", as you would call ssh')]
        if not is_safe(f"{settings.directory}/any"):
            what = f"{settings.directory[:80]!r} is no directory that virtoll could make and remove"
            return [Problem(what, named_in, 'write its whole path: directory = "/var/lib/virtoll-remote"')]
        if find("ssh") is None:
            return [command_missing(host, "ssh", "openssh-client")]
        try:
            self._address(host)
        except HostError as error:
            return [error.problem]
        return []

    def untried(self, host: Host) -> str:  # noqa: ARG002
        """It is another machine."""
        return f"whether {self.settings.destination} lets us in, and what is there"

    def try_out(self, host: Host) -> list[Problem]:
        """Log in, and look."""
        try:
            machine = self._look(host)
        except HostError as error:
            return [error.problem]
        return self._problems(machine)

    def announced(self) -> str:
        """Whom the load will reach, and what is brought there."""
        settings = self.settings
        kept = "kept there" if settings.keep else "removed at the end"
        where = f" (at {settings.address})" if settings.address else ""
        return (
            f"{settings.destination}{where}: commands, the image and the load go to this machine, and to nobody else; "
            f"what is made there, in {settings.directory}, is {kept}. Load only a machine that is yours, or whose "
            "owner knows."
        )

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """Nothing here: it is brought there in the run's session, where the ledger knows of it."""

    def versions(self, host: Host) -> dict[str, str]:
        """The client, and the machine's kernel and size: another one would be another machine."""
        client = host.run(["ssh", "-V"], check=False).stderr.decode(errors="replace").strip()[:80]
        machine = self._look(host)
        told = f"{machine.system} {machine.kernel} {machine.machine}, {machine.cpus} CPUs, {machine.memory_bytes} B"
        return {"ssh": client, f"ssh {self.settings.destination}": told}

    def _look(self, host: Host) -> Machine:
        return look(Ssh(host, self.settings.destination), self.settings.directory)

    def _problems(self, machine: Machine) -> list[Problem]:
        settings = self.settings
        return machine.problems(f"ssh {settings.destination}", settings.directory, kept=settings.keep)

    def _address(self, host: Host) -> str:
        """The IPv4 address that the generator is to reach. HostError where the name leads to none."""
        name = self.settings.address or Ssh(host, self.settings.destination).configured("hostname")
        try:
            return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError, IndexError) as error:
            raise HostError(
                f"no IPv4 address of {name[:80] or 'the machine'!r} is known: {error}",
                where=f"ssh {self.settings.destination}",
                remedy='write where the load is to go: address = "192.0.2.7"',
            ) from error

    # -- in a run -----------------------------------------------------------------------------------------

    @contextmanager
    def session(self, lab: Lab, image: Image) -> Iterator[None]:
        """One connection, a directory there that is in the ledger, and the image in it, or kept beside it."""
        ssh, place = self._shared(lab), self._place(lab)
        with ExitStack() as stack:
            stack.enter_context(ssh.connected())
            machine = look(ssh, self.settings.directory)
            if problems := self._problems(machine):
                raise as_error(problems[0])
            stack.enter_context(lab.ledger.owning("ssh-directory", named(ssh.destination, place)))
            ssh.run(script(_OWN, self.settings.directory, place, MADE))
            if not self._is_there(ssh, self._image(lab, image)):
                self._bring(lab, ssh, image, machine)
            yield

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """See `Platform.deploy`. What an earlier one could not remove, for the connection was lost, goes first."""
        refuse_kind(self, attachment)
        ssh, there, log = self._shared(lab), f"{self._place(lab)}/instance", directory / "agent.log"
        with ExitStack() as stack:
            ssh.run(script(EMPTY, there))
            machine = look(ssh, self.settings.directory)
            attachment = attachment.at(self._address(lab.host), machine.seen_from)
            # Where it fails it is noticed: by the next deployment, or by the session's end, which does the same.
            stack.callback(_emptied_if_it_can_be, ssh, there)
            start = script(_START, self._image(lab, image), there, str(limits.memory_bytes))
            argv = ssh.argv(["unshare", "-m", "-i", "-p", "-f", *start])
            agent, process = self._agent(stack, lab, ssh, argv, log)
            yield Instance(
                platform=self.name,
                agent=agent,
                attachment=attachment,
                accounting=Unseen(f"ssh {ssh.destination}"),
                limits=limits,
                facts={
                    "command": argv,
                    "kernel": machine.kernel,
                    "limits": NOT_LIMITED,
                    "machine": machine.found,
                    "address": attachment.endpoint_address,
                },
                is_running=lambda: process.poll() is None,
                image=image,
            )

    def _agent(
        self, stack: ExitStack, lab: Lab, ssh: Ssh, argv: list[str], log: Path
    ) -> tuple[Agent, subprocess.Popen[bytes]]:
        """Start it, and greet it, for as long as ``stack`` is open."""
        here = Confinement(cpus=lab.generator.cpus)
        try:
            return stack.enter_context(
                agent_on_stdio(
                    lab.host,
                    argv,
                    log=log,
                    confinement=here,
                    platform=self.name,
                    streamed=lambda process: SshStream(process, ssh.destination, log),
                )
            )
        except PlatformError as error:
            remedy = f"mend what it says on that machine; by hand: ssh {ssh.destination}"
            raise PlatformError(error.problem.what, where=f"ssh {ssh.destination}", remedy=remedy) from error

    def _bring(self, lab: Lab, ssh: Ssh, image: Image, machine: Machine) -> None:
        """The image, as a stream of tar's. HostError where it does not fit, or does not come through."""
        takes = disk.content(image.rootfs).bytes
        if machine.disk_free_bytes is not None and machine.disk_free_bytes < takes + _SPARE_BYTES:
            has = format_bytes(machine.disk_free_bytes)
            what = f"the image takes {format_bytes(takes)}, and {has} are free at {self.settings.directory}"
            raise HostError(what, where=f"ssh {ssh.destination}", remedy="make room there, or name another `directory`")
        there, log = f"{self._place(lab)}/image", lab.directory / f"image-{self._tag}.log"
        with tar_stream(lab.host, image) as archive, ExitStack() as stack:
            stderr = stack.enter_context(bounded(log))
            process = lab.host.spawn(ssh.argv(script(_UNPACK, there)), stdin=archive.fileno(), stderr=stderr)
            stack.callback(end_session, process)
            try:
                code = process.wait(_BRING_S)
            except subprocess.TimeoutExpired:
                code = None
            stack.close()
            self._expect_brought(ssh, code, ending(log))
        if self.settings.keep:
            ssh.run(script(_KEEP, there, self._image(lab, image)), timeout_s=_BRING_S)

    def _expect_brought(self, ssh: Ssh, code: int | None, said: str) -> None:
        where = f"ssh {ssh.destination}"
        if code == LOST:
            raise as_error(meaning(ssh.destination, said))
        if code is None:
            raise HostError(f"the image was not there after {_BRING_S:g} s", where=where, remedy="set keep = true")
        if code != 0:
            what = f"the image could not be unpacked there: {' '.join(said.split())[-300:] or f'exit {code}'}"
            raise HostError(what, where=where, remedy="make room there, or name another `directory`")

    def _shared(self, lab: Lab) -> Ssh:
        return Ssh(lab.host, self.settings.destination, lab.directory / f"ssh-{self._tag}")

    @property
    def _tag(self) -> str:
        """Tells arms apart that are on one machine."""
        return hashlib.sha256(repr(self.settings).encode()).hexdigest()[:8]

    def _place(self, lab: Lab) -> str:
        """The directory there of this lab's instances."""
        return f"{self.settings.directory}/run-{lab.run_tag}-{self._tag}"

    def _image(self, lab: Lab, image: Image) -> str:
        """Where the image lies there."""
        kept = f"{self.settings.directory}/images/{image.built}"
        return kept if self.settings.keep else f"{self._place(lab)}/image"

    def _is_there(self, ssh: Ssh, path: str) -> bool:
        return "virtoll yes" in ssh.run(script(_HAS, path)).text.splitlines()


class SshStream(PipeStream):
    """The agent's stream through ssh. What broke it is told in OpenSSH's words, which are in ``log``."""

    def __init__(self, process: subprocess.Popen[bytes], destination: str, log: Path) -> None:
        super().__init__(process, f"the agent on {destination}")
        self._process, self._destination, self._log = process, destination, log

    def _error(self, what: str, remedy: str) -> StreamError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_S)
        if self._process.returncode != LOST:
            return super()._error(what, remedy)
        deadline = time.monotonic() + _LAST_WORDS_S
        while not (said := ending(self._log)) and time.monotonic() < deadline:
            time.sleep(0.01)
        problem = meaning(self._destination, said)
        return StreamError(f"{what}: {problem.what}", where=self.where, remedy=problem.remedy)


def _emptied_if_it_can_be(ssh: Ssh, directory: str) -> None:
    with suppress(HostError):
        ssh.run(script(EMPTY, directory))
