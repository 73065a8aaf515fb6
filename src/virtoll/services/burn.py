"""A server whose requests cost what they are told to: what `virtoll calibrate` deploys (rust/agent/src/burn.rs)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.images.base import AGENT
from virtoll.offers import Content, Http, HttpObject, Offer
from virtoll.platforms.base import Instance
from virtoll.services import daemon, objects
from virtoll.services.base import Service, Visitor
from virtoll.units import within


@dataclass(frozen=True)
class BurnSettings:
    """Each request does ``passes`` of work, some 40 us each, and burns ``extra`` of CPU time."""

    passes: int = within(1, most=10**9)
    extra_ns: int = within(0, most=10**9)


class Burn(Service):
    """Our own, part of the agent's binary: its image needs no package."""

    name: ClassVar[str] = "burn"
    summary: ClassVar[str] = "`virtoll calibrate`'s own: requests that cost as much CPU time as they are told to"
    port: ClassVar[int] = 8080
    offered: ClassVar[tuple[type[Offer], ...]] = (Http,)
    holds: ClassVar[tuple[type[Content], ...]] = (HttpObject,)  # it makes them as they are asked for
    Settings: ClassVar[type[BurnSettings]] = BurnSettings
    settings: BurnSettings

    def start(self, instance: Instance, behind: Offer | None) -> Http:  # noqa: ARG002 - it stands alone
        """Start it."""
        passes, extra_ns = self.settings.passes, self.settings.extra_ns
        argv = [AGENT, "burn", "--port", str(self.port), "--passes", str(passes), "--extra-ns", str(extra_ns)]
        daemon.start(instance, self.name, argv, self.port)
        return Http(instance.attachment.endpoint_address, self.port)

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:
        """Fetch the object once; it must be whole."""
        assert isinstance(offer, Http)
        wanted = content if isinstance(content, HttpObject) else HttpObject(1)
        where = f"burn, {offer.url(wanted.path)}"
        return list(objects.problems_of(where, visitor.get(offer, wanted.path), wanted))
