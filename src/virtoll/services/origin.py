"""What web servers have in common: they hold objects as files and serve them so that a proxy may keep them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from virtoll.agent import StreamError
from virtoll.errors import AgentError, Problem, TrialError
from virtoll.offers import Content, Http, HttpObject, Offer
from virtoll.platforms.base import Instance
from virtoll.services import certificate, daemon, objects
from virtoll.services.base import Service, Visitor
from virtoll.units import within

ROOT = "/srv/virtoll"  # inside: objects lie in its directory o
KEY, CERTIFICATE = f"{daemon.DIRECTORY}/key.pem", f"{daemon.DIRECTORY}/certificate.pem"  # inside, with TLS
CACHE_CONTROL = "public, max-age=31536000"  # a year: a guest's clock that is hours off changes nothing


@dataclass(frozen=True)
class WebServerSettings:
    """Settings of a web server."""

    workers: int = within(1, least=1)  # worker processes; one for each CPU it may use
    tls: bool = False  # serve over TLS 1.3 alone, with a certificate of its own (ECDSA, P-256)


class WebServer(Service):
    """A web server of static objects: the origin behind a proxy, or itself under test."""

    port: ClassVar[int] = 8080
    offered: ClassVar[tuple[type[Offer], ...]] = (Http,)
    holds: ClassVar[tuple[type[Content], ...]] = (HttpObject,)
    Settings: ClassVar[type[WebServerSettings]] = WebServerSettings
    settings: WebServerSettings

    @abstractmethod
    def configuration(self) -> str:
        """The server's whole configuration file."""

    @abstractmethod
    def argv(self, configuration_path: str) -> list[str]:
        """The command that serves in the foreground."""

    def hold(self, instance: Instance, contents: Iterable[Content]) -> None:
        """Make the objects inside; each lies at its path below `ROOT`."""
        objects_wanted = {content for content in contents if isinstance(content, HttpObject)}
        if not objects_wanted:
            instance.agent.put(f"{ROOT}/empty", b"")  # Apache wants the directory
        try:
            for wanted in sorted(objects_wanted, key=lambda each: each.length_bytes):
                instance.agent.fill(f"{ROOT}{wanted.path}", wanted.length_bytes)
        except StreamError:
            raise
        except AgentError as error:
            raise TrialError(
                f"the objects cannot be made: {error.problem.what}",
                where=f"{instance.platform}, {ROOT} inside the instance",
                remedy="give the instance more disk, or serve smaller objects",
            ) from error

    def start(self, instance: Instance, behind: Offer | None) -> Http:  # noqa: ARG002 - stands behind others
        """Start the server; objects may be made before or after."""
        path, address = f"{daemon.DIRECTORY}/{self.name}.conf", instance.attachment.endpoint_address
        instance.agent.put(path, self.configuration().encode())
        digest = ""
        if self.settings.tls:
            own = certificate.made(address)
            instance.agent.put(KEY, own.key, 0o600)
            instance.agent.put(CERTIFICATE, own.certificate)
            digest = own.sha256
        daemon.start(instance, self.name, self.argv(path), self.port)
        return Http(address, self.port, certificate=digest)

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:
        """Fetch the object once; it must be whole and cacheable. Where none is asked for, any answer will do."""
        assert isinstance(offer, Http)
        if not isinstance(content, HttpObject):
            visitor.get(offer, "/")
            return []
        where = f"{self.name}, {offer.url(content.path)}"
        answer = visitor.get(offer, content.path)
        problems = list(objects.problems_of(where, answer, content))
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if answer.status == 200 and headers.get("cache-control") != CACHE_CONTROL:
            problems.append(
                Problem(
                    f"Cache-Control is {headers.get('cache-control', 'missing')!r}; expected {CACHE_CONTROL!r}",
                    where,
                    "another server answers on this address",
                )
            )
        return problems
