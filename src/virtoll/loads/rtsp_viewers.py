"""Viewers over RTSP (RFC 2326): media by RTP, over the connection itself or as datagrams, as a server sends them; of a
live film that nobody else publishes the publisher too.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from virtoll.errors import Problem, TrialError
from virtoll.hosts.base import Host
from virtoll.lab.client import Client
from virtoll.loads.base import Session
from virtoll.loads.publishing import LiveSession, publishing
from virtoll.loads.viewing import AGED, ViewingLoad, ViewingSession, ViewingSettings, watching
from virtoll.offers import Content, Offer, Rtsp
from virtoll.record.model import DROPPED, Quantity
from virtoll.units import url_path, within

_QUANTITIES = {
    "loss_percent": Quantity("Packets lost", "%", "less"),
    "duplicates_percent": Quantity("Packets that came twice", "%", "less"),
    "reordered_percent": Quantity("Packets out of order", "%", "less"),
    "jitter_ms": Quantity("Interarrival jitter, mean of viewers", "ms", "less"),
    "jitter_worst_ms": Quantity("Interarrival jitter, worst viewer", "ms", "less"),
}
_COUNTS = ("expected", "lost", "duplicates", "reordered", "late", "strays", "sender_reports", "receiver_reports")


@dataclass(frozen=True)
class RtspViewersSettings(ViewingSettings):
    """Settings of viewers over RTSP. The server sets the pace: whatever a player keeps ahead delays its start. Of what
    is there only while somebody publishes it, the load publishes the film itself, over TCP.
    """

    transport: Literal["tcp", "udp"] = "udp"  # of the media; tcp: interleaved in the connection of RTSP
    path: str = url_path()  # "/film": the user's own, which is as long as the server says; "": the film
    startup_ns: int = within(500_000_000, least=1)
    resume_ns: int = within(500_000_000, least=1)


class RtspViewersLoad(ViewingLoad):
    """Viewers over RTSP."""

    name: ClassVar[str] = "rtsp-viewers"
    summary: ClassVar[str] = "viewers over RTSP (RTP by TCP or UDP): start-up, stalls, loss, reordering, jitter"
    takes: ClassVar[tuple[type[Offer], ...]] = (Rtsp,)
    own: ClassVar[str] = "path"
    publishes_where: ClassVar[str] = "published"
    Settings: ClassVar[type[RtspViewersSettings]] = RtspViewersSettings
    settings: RtspViewersSettings

    @property
    def quantities(self) -> dict[str, Quantity]:
        """How well they watched, and what became of the packets; of what the load publishes itself, how old it was when
        it came.
        """
        return super().quantities | _QUANTITIES | AGED

    @property
    def content(self) -> Content | None:
        """The film; nothing of ours for a path of the user's."""
        return None if self.settings.path else self.settings.film

    @property
    def files_each(self) -> int:
        """Its connection; over UDP a socket for each track's media, and one for its reports: a film of ours has two
        tracks, of a path of the user's they are not known, and one is counted.
        """
        if self.settings.transport != "udp":
            return 1
        return 3 if self.settings.path else 5

    def check(self, host: Host) -> list[Problem]:
        """See `ViewingLoad.check`; and that the server is left to set the pace."""
        problems = super().check(host)
        if not self.settings.paced:
            what = "an RTSP server sets the pace, and cannot be read faster"
            problems.append(Problem(what, "[load] paced", "leave it out"))
        return problems

    def asked(self, offer: Offer) -> dict[str, Any]:
        """The presentation. TrialError where it is not delivered by the transport that is wanted."""
        assert isinstance(offer, Rtsp)
        settings, where = self.settings, f"{offer.kind} at {offer.address}:{offer.port}"
        if settings.transport not in offer.transports:
            has = " and ".join(offer.transports)
            what = f"it does not deliver media over {settings.transport}, but over {has}"
            raise TrialError(what, where=where, remedy=f'[load] transport = "{offer.transports[0]}"')
        path = settings.path or offer.path_of(settings.film)
        address = f"{offer.address}:{offer.port}"
        ends = not (offer.is_live or settings.path)
        media = {
            "transport": settings.transport,
            "length_ns": settings.clip_ns if ends else None,
            "live": offer.is_live,
            "mark": None,
        }
        return {"target": {"address": address, "url": f"rtsp://{address}{path}"}, "media": {"rtsp": media}}

    @contextmanager
    def session(self, client: Client, offer: Offer) -> Iterator[Session]:
        """For as long as it is open, a film is published that is not there else. HostError where it was not made."""
        assert isinstance(offer, Rtsp)
        asked, film = self.asked(offer), self.settings.film
        if self.settings.path or not offer.publish_path:
            with watching(ViewingSession(self, client, asked)) as session:
                yield session
            return
        media = {**asked["media"]["rtsp"], "mark": secrets.token_hex(8)}  # no other publisher's
        with publishing(client, offer, film, media["mark"]) as publisher:
            live = LiveSession(self, client, {**asked, "media": {"rtsp": media}}, publisher=publisher)
            with watching(live):
                yield live

    def told(self, window: dict[str, Any]) -> tuple[dict[str, float], dict[str, int]]:
        """What became of the packets (rust/generator/src/reception.rs). Shares are of those that were sent, as
        their numbers tell; there are none, where none came. Jitter: as RFC 3550 (A.8) defines it.
        """
        rtp = window["rtp"]
        counts = {"packets": rtp["packets"], **{name: rtp[name] for name in _COUNTS}, DROPPED: rtp["dropped"]}
        values = {}
        if rtp["expected"]:
            shares = {"loss": "lost", "duplicates": "duplicates", "reordered": "reordered"}
            values = {f"{key}_percent": 100 * rtp[name] / rtp["expected"] for key, name in shares.items()}
        if rtp["jitters"]:
            values["jitter_ms"] = rtp["jitter_sum_ns"] / rtp["jitters"] / 1e6
            values["jitter_worst_ms"] = rtp["jitter_worst_ns"] / 1e6
        return values, counts
