"""The user's own service: an image as it is, or Debian packages and a command.

The image's entrypoint, command, environment, user and working directory are honoured on every platform alike, and
what really runs is read back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from virtoll.errors import HostError, Problem, TrialError
from virtoll.images import inside, oci
from virtoll.images.base import Image, Wanted
from virtoll.images.config import process
from virtoll.offers import Content, Http, Offer, Port, Tcp, Udp, merged
from virtoll.platforms.base import Instance
from virtoll.services import daemon
from virtoll.services.base import Service, Visitor
from virtoll.study.values import Beside, BesideAfterKind
from virtoll.units import within

_GOOD = 400  # statuses below it
_NO_IMAGE = BesideAfterKind("")


@dataclass(frozen=True, kw_only=True)
class OwnSettings:
    """Settings of a service of one's own. It is ready when its first port listens; ``ready`` names the transport
    ("udp": its first port of that), or an HTTP path that must then answer with a status below 400 ("/health").

    ``files``: absolute paths inside, and files that lie beside the study file. Inside they are root's, all may read
    them, and all may execute what is executable here.
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
    def files(self) -> Mapping[str, str]:
        """As the study says."""
        return self.settings.files

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

    def problems(self, origin: Service | None) -> list[Problem]:  # noqa: ARG002
        """What is wrong with its settings, all at once."""
        settings, where = self.settings, "[service]"
        problems = [] if settings.ports else [Problem("ports are missing", where, 'ports = ["8080/tcp"]')]
        ports: list[Port] = []
        for text in settings.ports:
            try:
                port = Port.parse(text)
            except ValueError as error:
                problems.append(Problem(str(error), f"{where} ports"))
                continue
            if len(merged([*ports, port])) != len(merged(ports)) + 1:
                problems.append(Problem(f"{port} is named twice, or part of another", f"{where} ports", "leave it out"))
            ports.append(port)
        if bool(settings.image) == bool(settings.packages):
            problems.append(Problem("give an image or packages, one of the two", where, 'image = "oci:shop.tar"'))
        if not settings.command and (settings.packages or settings.image.startswith("dir:")):
            without = "packages have" if settings.packages else "a directory has"
            problems.append(Problem(f"{without} no command to start", where, 'command = ["/usr/sbin/server"]'))
        for there, path in settings.files.items():
            if not there.startswith("/") or there.endswith("/"):
                what = f"{there!r} is no absolute path of a file inside"
                problems.append(Problem(what, f"{where} files", '"/etc/shop.toml" = "shop.toml"'))
            if not Path(path).is_file():
                problems.append(Problem("there is no such file", f"{where} files: {path}", "correct the path"))
        return problems + self._problems_of_ready(ports)

    def _problems_of_ready(self, ports: Sequence[Port]) -> list[Problem]:
        """Of what is looked for, and where: ``ports`` are those that are some."""
        ready, where = self.settings.ready, "[service]"
        if ready not in ("tcp", "udp") and not ready.startswith("/"):
            what = f"ready = {ready!r} is nothing that can be looked for"
            return [Problem(what, where, 'write "tcp", "udp", or an HTTP path like "/health"')]
        if ready.startswith("/") and ports and ports[0].protocol != "tcp":
            what = f"ready = {ready!r} asks over HTTP, and the first port is {ports[0]}"
            return [Problem(what, where, "name a port of tcp first")]
        if ready == "udp" and ports and all(port.protocol != "udp" for port in ports):
            return [Problem("ready = 'udp', and no port is one of udp", where, 'write ports = ["53/udp"]')]
        return []

    def problems_with(self, image: Image) -> list[Problem]:
        """Whether there is something to start, somebody to start it as, and a program of that name."""
        settings = self.settings
        try:
            wanted = process(oci.config_of(image), image.rootfs, settings.command or None, settings.env.items())
        except HostError as error:
            return [Problem(error.problem.what, "[service]", error.problem.remedy)]
        name, path = wanted.argv[0], dict(wanted.env)["PATH"]
        if name in settings.files or inside.program(image.rootfs, name, path, wanted.working_dir):
            return []
        where = "" if "/" in name else f" in PATH {path}"
        remedy = "correct the image's entrypoint, or command = [...] in the study file"
        return [Problem(f"the image has no program {name}{where}", "[service]", remedy)]

    def start(self, instance: Instance, behind: Offer | None) -> Offer:  # noqa: ARG002 - it stands alone
        """Lay its files down, start what the image says, and wait until it listens."""
        settings = self.settings
        config = oci.config_of(instance.image)
        wanted = process(config, instance.image.rootfs, settings.command or None, settings.env.items())
        for there, path in settings.files.items():
            instance.agent.put(there, Path(path).read_bytes(), 0o755 if Path(path).stat().st_mode & 0o111 else 0o644)
        first = self.ports[0]
        wait_for = settings.ready if settings.ready in ("tcp", "udp") else first.protocol
        awaited = next((port for port in self.ports if port.protocol == wait_for), first)
        daemon.start(
            instance,
            self.name,
            wanted.argv,
            awaited.number,
            protocol=awaited.protocol,
            deadline_s=settings.ready_within_ns / 1e9,
            env=dict(wanted.env),
            cwd=wanted.working_dir,
            user=config.runs_as,  # as the image has it: a name has further groups, which numbers have not
        )
        return self.offers[0](instance.attachment.endpoint_address, first.number)

    def runs(self, instance: Instance) -> dict[str, Any]:
        """By the kernel's word. It is no matter of what was asked for: many an entrypoint ends as another program and
        another user than it began.
        """
        found = instance.agent.describe(instance.services[self.name])
        return {
            "argv": list(found.argv),
            "cwd": found.cwd,
            "uid": found.uid,
            "gid": found.gid,
            "groups": list(found.groups),
            "environment": found.environment,
        }

    def await_ready(self, instance: Instance, offer: Offer, visitor: Visitor) -> None:
        """Wait until its path brings a good status."""
        if not isinstance(offer, Http):
            return

        def missing() -> str:
            said = self._not_ready(offer, visitor)
            return f"{said} for {self.settings.ready}" if said else ""

        daemon.await_ready(instance, self.name, self.settings.ready_within_ns / 1e9, missing)

    def verify(
        self,
        offer: Offer,
        visitor: Visitor,
        content: Content | None,  # noqa: ARG002
    ) -> list[Problem] | None:
        """It is there: a connection, or a good status for its path. Over UDP nobody knows what to ask it: None."""
        if isinstance(offer, Http):
            return self._verify_path(offer, visitor)
        if isinstance(offer, Tcp):
            visitor.exchange(offer, b"", 0)  # TrialError where nobody accepts
            return []
        return None

    def _not_ready(self, offer: Http, visitor: Visitor) -> str:
        """What stands in the way; "" where nothing does. A server that listens may not answer yet."""
        try:
            problems = self._verify_path(offer, visitor)
        except TrialError as error:
            return error.problem.what
        return problems[0].what if problems else ""

    def _verify_path(self, offer: Http, visitor: Visitor) -> list[Problem]:
        answer = visitor.get(offer, self.settings.ready)
        if answer.status < _GOOD:
            return []
        return [Problem(f"status {answer.status}", offer.url(self.settings.ready), "see the trial's log.txt")]
