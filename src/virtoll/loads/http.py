"""HTTP by the native generator: closed and open loop, over a proxy or directly."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from virtoll.lab.client import Client, target_of
from virtoll.loads.base import Session
from virtoll.loads.native import NativeLoad, NativeSession, NativeSettings
from virtoll.offers import Asked, Http, HttpObject, Offer


@dataclass(frozen=True)
class HttpSettings(NativeSettings, Asked):
    """Settings of HTTP. Closed loop asks until ``requests`` or ``time_limit``, whichever is first."""

    requests: int = 0  # closed loop; 0: time alone is the bound
    keep_alive: bool = True

    @property
    def most_requests(self) -> int:
        """As it is set."""
        return self.requests

    def timed(self, duration_ns: int) -> HttpSettings:
        """The same, ended by this time alone."""
        return replace(self, time_limit_ns=duration_ns, requests=0)


class HttpLoad(NativeLoad):
    """HTTP/1.1 GETs of one object, each answer's status and length checked."""

    name: ClassVar[str] = "http"
    summary: ClassVar[str] = "the usual choice: closed loop, or open loop at a rate (latency without omission)"
    takes: ClassVar[tuple[type[Offer], ...]] = (Http,)
    own: ClassVar[str] = "path"
    Settings: ClassVar[type[HttpSettings]] = HttpSettings
    settings: HttpSettings

    @property
    def unit(self) -> str:
        """A request."""
        return "request"

    @property
    def content(self) -> HttpObject | None:
        """The object asked for."""
        return self.settings.content

    def session(self, client: Client, offer: Offer) -> AbstractContextManager[Session]:
        """The generator's process; each window has connections of its own."""
        assert isinstance(offer, Http)
        return closing(HttpSession(self, client, offer))


@dataclass(frozen=True)
class HttpSession(NativeSession):
    """The native generator at one HTTP server or proxy."""

    verb: ClassVar[str] = "http"
    offer: Http

    def asked(self, settings: HttpSettings) -> dict[str, Any]:
        """One object."""
        return asked(settings, self.offer)


def asked(settings: HttpSettings, offer: Http) -> dict[str, Any]:
    """One object, and what a correct answer looks like (rust/load/src/spec.rs)."""
    return {
        "target": target_of(offer, settings.target),
        "keep_alive": settings.keep_alive,
        "expect": {"status": 200, "length_bytes": settings.length_bytes},
    }
