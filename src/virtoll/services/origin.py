"""What web servers have in common: they hold objects as files and serve them so that a proxy may keep them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from virtoll.agent import StreamError
from virtoll.errors import AgentError, Problem, TrialError
from virtoll.offers import Clip, Content, Http, HttpObject, Offer
from virtoll.platforms.base import Instance
from virtoll.services import certificate, clips, daemon, objects
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
    holds: ClassVar[tuple[type[Content], ...]] = (HttpObject, Clip)
    Settings: ClassVar[type[WebServerSettings]] = WebServerSettings
    settings: WebServerSettings

    @abstractmethod
    def configuration(self) -> str:
        """The server's whole configuration file."""

    @abstractmethod
    def argv(self, configuration_path: str) -> list[str]:
        """The command that serves in the foreground."""

    def hold(self, instance: Instance, contents: Iterable[Content]) -> None:
        """Make the objects, and the files of clips, inside; each lies at its path below `ROOT`."""
        contents = set(contents)
        pieces = {(each.path, 0, each.length_bytes) for each in contents if isinstance(each, HttpObject)}
        held = [each for each in contents if isinstance(each, Clip)]
        for cut in (piece for clip in held for rate in clip.bit_rates for piece in clips.segments(clip, rate)):
            pieces.add((cut.path, cut.begin_bytes, cut.end_bytes - cut.begin_bytes))
        if not pieces:
            instance.agent.put(f"{ROOT}/empty", b"")  # Apache wants the directory
        try:
            for path, begin_bytes, length_bytes in sorted(pieces, key=lambda each: each[1:]):
                instance.agent.fill(f"{ROOT}{path}", length_bytes, begin_bytes)
            for path, text in (listed for clip in held for listed in clips.manifests(clip)):
                instance.agent.put(f"{ROOT}{path}", text.encode())
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
        """Fetch the object once; it must be whole and cacheable. Of a clip, its manifests and the first segment of each
        quality. Where nothing is asked for, any answer will do."""
        assert isinstance(offer, Http)
        if isinstance(content, Clip):
            return list(self._problems_of_clip(offer, visitor, content))
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

    def _problems_of_clip(self, offer: Http, visitor: Visitor, clip: Clip) -> Iterator[Problem]:
        for path, text in clips.manifests(clip):
            where = f"{self.name}, {offer.url(path)}"
            yield from clips.problems_of_manifest(where, visitor.get(offer, path), text)
        for rate in clip.bit_rates:
            first = clips.segments(clip, rate)[0]
            where = f"{self.name}, {offer.url(first.path)}"
            yield from clips.problems_of_segment(where, visitor.get(offer, first.path), first)
