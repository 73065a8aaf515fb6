"""The seam of a service: software that is deployed to be measured, or to stand behind what is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from virtoll.errors import Problem
from virtoll.platforms.base import Instance
from virtoll.registry import implementations


@dataclass(frozen=True)
class Endpoint:
    """Where a started service answers, and how a client asks it for an object.

    ``proxy``: the client sends absolute URLs to ``address:port``; ``upstream`` is then host:port of the origin.
    """

    address: str
    port: int
    proxy: bool = False
    upstream: str = ""  # "198.18.2.2:8080"

    def url(self, path: str) -> str:
        """The URL of an object as a user would name it (the origin's, behind a proxy)."""
        return f"http://{self.upstream or f'{self.address}:{self.port}'}{path}"


@dataclass(frozen=True)
class Answer:
    """What one plain GET of one object brought; the evidence of a verification."""

    status: int
    length_bytes: int
    sha256: str
    headers: dict[str, str]


# Fetches one object as a client in the generator namespace would: (endpoint, path) -> Answer.
Fetch = Callable[[Endpoint, str], Answer]


class Service(ABC):
    """One service. ``Settings`` is a frozen dataclass of what a study file may set for it."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()  # Debian packages the image needs
    port: ClassVar[int] = 0
    needs_origin: ClassVar[bool] = False  # it only passes on what an origin holds
    holds_objects: ClassVar[bool] = False  # it can be asked for objects by length: under test, or as an origin
    Settings: ClassVar[type[Any]]

    def __init__(self, settings: Any = None) -> None:
        self.settings = self.Settings() if settings is None else settings

    @abstractmethod
    def start(self, instance: Instance, upstream: Endpoint | None) -> Endpoint:
        """Configure and start it through the instance's agent; return when it accepts connections.

        TrialError with the service's own log when it does not.
        """

    def objects(self, instance: Instance, lengths_bytes: Iterable[int]) -> None:  # noqa: B027 - most hold none
        """Make the objects of these lengths inside, where the service holds any."""

    @abstractmethod
    def verify(self, endpoint: Endpoint, fetch: Fetch, path: str, length_bytes: int, sha256: str) -> list[Problem]:
        """Prove that it answers correctly for one object: status, length, digest, and what it should add."""


def services() -> dict[str, type[Service]]:
    """All services by name."""
    return implementations("virtoll.services", Service)
