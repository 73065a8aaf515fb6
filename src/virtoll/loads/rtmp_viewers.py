"""Viewers by RTMP, on demand and live; of a live film the publisher too."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from virtoll.errors import TrialError
from virtoll.lab.client import Client
from virtoll.loads.base import Session
from virtoll.loads.publishing import LiveSession, publishing
from virtoll.loads.viewing import AGED, ViewingLoad, ViewingSession, ViewingSettings, watching
from virtoll.offers import Content, Offer, Rtmp
from virtoll.record.model import Quantity
from virtoll.units import within


@dataclass(frozen=True)
class RtmpViewersSettings(ViewingSettings):
    """Settings of viewers by RTMP. Of what an application offers live, the load publishes the film itself."""

    stream: str = ""  # the user's own, which somebody publishes where it is live; "": the film
    # Between two frames at most, and missing at the end of what is on demand at most: else the view has failed.
    gap_ns: int = within(250 * 10**6, least=10**6)


class RtmpViewersLoad(ViewingLoad):
    """Viewers by RTMP."""

    name: ClassVar[str] = "rtmp-viewers"
    summary: ClassVar[str] = "viewers of an RTMP stream, on demand or live: start-up, stalls, age; timestamps checked"
    takes: ClassVar[tuple[type[Offer], ...]] = (Rtmp,)
    own: ClassVar[str] = "stream"
    publishes_where: ClassVar[str] = "live"
    Settings: ClassVar[type[RtmpViewersSettings]] = RtmpViewersSettings
    settings: RtmpViewersSettings

    @property
    def quantities(self) -> dict[str, Quantity]:
        """How well they watched; of what the load publishes itself, how old it was when it came."""
        return super().quantities | AGED

    @property
    def content(self) -> Content | None:
        """The film; nothing of ours for a stream of the user's."""
        return None if self.settings.stream else self.settings.film

    def asked(self, offer: Offer) -> dict[str, Any]:
        """The stream. TrialError where what is live is to be watched faster than it comes."""
        assert isinstance(offer, Rtmp)
        settings = self.settings
        if offer.is_live and not settings.paced:
            where = f"{offer.kind} at {offer.address}:{offer.port}"
            raise TrialError("what is live is watched as it comes", where=where, remedy="[load] paced = true")
        media = {
            "application": offer.application,
            "stream": settings.stream or offer.stream_of(settings.film),
            "live": offer.is_live,
            "duration_ns": None if settings.stream or offer.is_live else settings.film.duration_ns,
            "gap_ns": settings.gap_ns,
            "mark": None,
        }
        address = f"{offer.address}:{offer.port}"
        return {
            "target": {"address": address, "url": f"rtmp://{address}/{offer.application}"},
            "media": {"rtmp": media},
        }

    @contextmanager
    def session(self, client: Client, offer: Offer) -> Iterator[Session]:
        """For as long as it is open, a live film is published. HostError where the film was not made."""
        assert isinstance(offer, Rtmp)
        asked, film = self.asked(offer), self.settings.film
        if self.settings.stream or not offer.is_live:
            with watching(ViewingSession(self, client, asked)) as session:
                yield session
            return
        media = {**asked["media"]["rtmp"], "mark": secrets.token_hex(8)}  # no other publisher's
        with publishing(client, offer, film, media["mark"]) as publisher:
            live = LiveSession(self, client, {**asked, "media": {"rtmp": media}}, publisher=publisher)
            with watching(live):
                yield live
