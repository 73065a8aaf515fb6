"""The user's own service: an image as it is, or Debian packages and a command.

The image's entrypoint, command, environment, user and working directory are honoured on every platform alike, and
what really runs is read back and compared with them (`audit`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from virtoll.errors import Problem, TrialError
from virtoll.images import oci
from virtoll.images.base import Wanted
from virtoll.images.config import Process, process
from virtoll.offers import Content, Http, Offer, Port, Tcp, Udp
from virtoll.platforms.base import Instance
from virtoll.services import daemon
from virtoll.services.base import Service, Visitor
from virtoll.study.values import Beside, BesideAfterKind
from virtoll.units import within

_GOOD = 400  # statuses below it
_POLL_S = 0.05
_NO_IMAGE = BesideAfterKind("")


@dataclass(frozen=True, kw_only=True)
class OwnSettings:
    """Settings of a service of one's own. It is ready when its first port listens; ``ready`` names the transport
    ("udp": its first port of that), or an HTTP path that must then answer with a status below 400 ("/health").

    ``files``: absolute paths inside, and files that lie beside the study file.
    """

    ports: tuple[str, ...]
    image: BesideAfterKind = _NO_IMAGE
    packages: tuple[str, ...] = ()
    command: tuple[str, ...] = ()  # in the place of the image's own command; its entrypoint stays
    ready: str = "tcp"
    ready_within_ns: int = within(60 * 10**9, least=10**9)
    files: dict[str, Beside] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


class Own(Service):
    """Whatever listens."""

    name: ClassVar[str] = "own"
    summary: ClassVar[str] = "your own service: an OCI image, a directory, or Debian packages and a command"
    Settings: ClassVar[type[OwnSettings]] = OwnSettings
    settings: OwnSettings

    @property
    def image(self) -> Wanted:
        """As the study says."""
        settings = self.settings
        return Wanted(settings.image) if settings.image else Wanted("", tuple(sorted(settings.packages)))

    @property
    def ports(self) -> tuple[Port, ...]:
        """As the study says; ValueError where one is none."""
        return tuple(Port.parse(port) for port in self.settings.ports)

    @property
    def offers(self) -> tuple[type[Offer], ...]:
        """HTTP where it is asked for a path, else what its first port takes."""
        if self.settings.ready.startswith("/"):
            return (Http,)
        return (Tcp,) if self.ports[0].protocol == "tcp" else (Udp,)

    def problems(self) -> list[Problem]:
        """What is wrong with its settings, all at once."""
        settings, where = self.settings, "[service]"
        problems = [] if settings.ports else [Problem("ports are missing", where, 'ports = ["8080/tcp"]')]
        for port in settings.ports:
            try:
                Port.parse(port)
            except ValueError as error:
                problems.append(Problem(str(error), f"{where} ports"))
        if bool(settings.image) == bool(settings.packages):
            problems.append(Problem("give an image or packages, one of the two", where, 'image = "oci:shop.tar"'))
        if settings.packages and not settings.command:
            problems.append(Problem("packages have no command of their own", where, 'command = ["/usr/sbin/server"]'))
        for inside, path in settings.files.items():
            if not inside.startswith("/"):
                problems.append(Problem(f"{inside!r} is no absolute path inside", f"{where} files"))
            if not Path(path).is_file():
                problems.append(Problem("there is no such file", f"{where} files: {path}", "correct the path"))
        if settings.ready not in ("tcp", "udp") and not settings.ready.startswith("/"):
            what = f"ready = {settings.ready!r} is nothing that can be looked for"
            problems.append(Problem(what, where, 'write "tcp", "udp", or an HTTP path like "/health"'))
        return problems

    def start(self, instance: Instance, behind: Offer | None) -> Offer:  # noqa: ARG002 - it stands alone
        """Lay its files down, start what the image says, and wait until it listens."""
        settings = self.settings
        wanted = process(
            oci.config_of(instance.image), instance.image.rootfs, settings.command or None, settings.env.items()
        )
        for inside, path in settings.files.items():
            instance.agent.put(inside, Path(path).read_bytes())
        first = self.ports[0]
        wait_for = settings.ready if settings.ready in ("tcp", "udp") else first.protocol
        awaited = next((port for port in self.ports if port.protocol == wait_for), first)
        pid = daemon.start(
            instance,
            self.name,
            wanted.argv,
            awaited.number,
            protocol=awaited.protocol,
            deadline_s=settings.ready_within_ns / 1e9,
            env=dict(wanted.env),
            cwd=wanted.working_dir,
            user=f"{wanted.uid}:{wanted.gid}",
        )
        _audit(instance, pid, wanted)
        return self.offers[0](instance.attachment.endpoint_address, first.number)

    def await_ready(self, instance: Instance, offer: Offer, visitor: Visitor) -> None:
        """Wait until its path brings a good status."""
        if not isinstance(offer, Http):
            return
        deadline = time.monotonic() + self.settings.ready_within_ns / 1e9
        while problems := self._verify_path(offer, visitor):
            if time.monotonic() > deadline:
                within_s = self.settings.ready_within_ns / 1e9
                what = f"did not become ready within {within_s:g} s: {problems[0].what} for {self.settings.ready}"
                raise daemon.not_started(instance, self.name, what)
            time.sleep(_POLL_S)

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:  # noqa: ARG002
        """It is there: a connection, or a good status for its path."""
        if isinstance(offer, Http):
            return self._verify_path(offer, visitor)
        if isinstance(offer, Tcp):
            visitor.exchange(offer, b"", 0)  # TrialError where nobody accepts
        return []

    def _verify_path(self, offer: Http, visitor: Visitor) -> list[Problem]:
        answer = visitor.get(offer, self.settings.ready)
        if answer.status < _GOOD:
            return []
        return [Problem(f"status {answer.status}", offer.url(self.settings.ready), "see the trial's log.txt")]


def _audit(instance: Instance, pid: int, wanted: Process) -> None:
    """What really runs is what the image and the study say; it goes into the trial's facts.

    TrialError where it is not: a platform that starts it otherwise would measure another service.
    """
    runs = instance.agent.describe(pid)
    instance.facts["process"] = {
        "argv": list(runs.argv),
        "cwd": runs.cwd,
        "uid": runs.uid,
        "gid": runs.gid,
        "groups": list(runs.groups),
        "environment": runs.environment,
    }
    pairs = {
        "user": (runs.uid, wanted.uid),
        "group": (runs.gid, wanted.gid),
        "working directory": (runs.cwd, wanted.working_dir),
        "environment": (runs.environment, dict(wanted.env)),
    }
    wrong = [f"{what} is {has!r}, not {should!r}" for what, (has, should) in pairs.items() if has not in (None, should)]
    if wrong:
        raise TrialError(
            f"it runs otherwise than it was started: {'; '.join(wrong)}",
            where=f"{instance.platform}, inside the instance",
            remedy="an entrypoint that changes its user or directory must be the command itself: say so in `command`",
        )
