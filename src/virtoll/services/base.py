"""The seam of a service: software that is deployed to be measured, or to stand behind what is measured."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from virtoll.errors import Problem
from virtoll.films import Form
from virtoll.images.base import Image, Wanted
from virtoll.lab.client import Answer
from virtoll.offers import Content, Http, Offer, Port
from virtoll.platforms.base import Instance
from virtoll.registry import Part, implementations


class Visitor(Protocol):
    """Who looks whether a service answers, from where a client stands (`virtoll.lab.client.Client`)."""

    def get(self, offer: Http, path: str) -> Answer:
        """Fetch one object whole. TrialError when no complete answer comes; any status is an answer."""
        ...

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        """Send over the offer's transport, and read so many bytes (one datagram). TrialError when nobody answers."""
        ...


class Service(Part):
    """One service."""

    packages: ClassVar[tuple[str, ...]] = ()  # Debian packages the image needs
    port: ClassVar[int] = 0  # TCP
    offered: ClassVar[tuple[type[Offer], ...]] = ()  # see `offers`
    needs: ClassVar[type[Offer] | None] = None  # what an origin must offer, which it passes on
    holds: ClassVar[tuple[type[Content], ...]] = ()  # what it can be asked to hold, under test or as an origin
    lets_in: ClassVar[str] = ""  # the setting by which it lets more users in, where it has one (`most_users`)
    films: ClassVar[tuple[Form, ...]] = ()  # the containers in which its image has the films that a load asks for

    @property
    def offers(self) -> tuple[type[Offer], ...]:
        """The kinds of what it offers under these settings: a load that takes one of them can drive it."""
        return self.offered

    @property
    def ports(self) -> tuple[Port, ...]:
        """Where users reach it, under these settings."""
        return (Port(self.port),)

    def most_users(self, transport: Literal["tcp", "udp"] = "tcp") -> int | None:  # noqa: ARG002
        """How many users its settings let be connected at once, of whom each takes what comes over ``transport``; None:
        they set no limit. Nobody's knee is beyond it: that would be the settings', and the same on every platform.
        """
        return None

    @property
    def open_files(self) -> int:
        """How many open files it lets itself have under these settings, beyond the soft limit that it is given; 0: it
        takes what it is given. Not every platform lets it have more than the hard limit.
        """
        return 0

    @property
    def image(self) -> Wanted:
        """The root filesystem that it runs in."""
        return Wanted(packages=self.packages)

    def hold(self, instance: Instance, contents: Iterable[Content]) -> None:
        """Make these inside, before or after the start; each is of a kind in ``holds``. Films are there (``films``)."""

    @abstractmethod
    def start(self, instance: Instance, behind: Offer | None) -> Offer:
        """Configure and start it through the instance's agent; return when it accepts connections.

        ``behind``: what an origin offers, where the service needs one. TrialError with the service's own log when it
        does not come up.
        """

    @property
    def files(self) -> Mapping[str, str]:
        """What of this machine's files it is given: absolute paths inside, and the files' own."""
        return {}

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each of ``files`` as it is now, by its place inside."""
        return {inside: hashlib.sha256(Path(own).read_bytes()).hexdigest() for inside, own in self.files.items()}

    def problems(self, origin: Service | None) -> list[Problem]:  # noqa: ARG002
        """What is wrong with its settings beyond their types, or with the origin behind it; empty when nothing is."""
        return []

    def problems_with(self, image: Image) -> list[Problem]:  # noqa: ARG002
        """What keeps it from being started in the image that was built; empty when nothing does."""
        return []

    def await_ready(self, instance: Instance, offer: Offer, visitor: Visitor) -> None:
        """Wait until it serves, where that is later than it listens. TrialError with its log when it never does."""

    def runs(self, instance: Instance) -> dict[str, Any]:  # noqa: ARG002
        """What really runs of it in the instance, where that could be another process on each platform."""
        return {}

    def counted(self, offer: Offer, visitor: Visitor) -> dict[str, int]:  # noqa: ARG002
        """What it has counted by itself since it began, under its own names: noted in the trial's facts before the
        warm-up and after the window. Nothing where it keeps no count. TrialError when it does not tell.
        """
        return {}

    @abstractmethod
    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem] | None:
        """Prove that it answers correctly (for ``content``, where a load asks for one), and as its settings say.

        None where it cannot be asked: that is no proof. TrialError when no answer comes at all.
        """


def hold_on_disk(service: Service, instance: Instance, contents: Iterable[Content]) -> None:
    """`Service.hold`, and what it wrote is on the instance's disk: what its kernel wrote back later, tens of seconds
    after, it would write while somebody is measured, on a guest's quota, and on nobody's for a container. AgentError
    where the disk does not take it.
    """
    contents = list(contents)
    service.hold(instance, contents)
    if contents:
        instance.agent.sync("/")


def services() -> dict[str, type[Service]]:
    """All services by name."""
    return implementations("virtoll.services", Service)
