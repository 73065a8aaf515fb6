"""Viewers over HTTP: progressive download, HLS and DASH."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from virtoll.errors import Problem, TrialError
from virtoll.hosts.base import Host
from virtoll.lab.client import target_of
from virtoll.loads.viewing import ViewingLoad, ViewingSettings
from virtoll.offers import Clip, Content, Http, HttpObject, Offer
from virtoll.units import url_path, within

# In a manifest (a playlist has those of a quality, an MPD all): the generator reads those of a mebibyte
# (rust/load/src/view/playlist.rs).
_MOST_SEGMENTS = 10_000


@dataclass(frozen=True)
class ViewersSettings(ViewingSettings):
    """Settings of viewers over HTTP. ``delivery`` *progressive*: one file; *hls*: playlists and segments; *dash*: an
    MPD and the same segments.
    """

    delivery: Literal["progressive", "hls", "dash"] = "progressive"
    segment_ns: int = within(4 * 10**9, least=10**8)  # HLS, DASH
    qualities: int = within(1, least=1, most=10)  # HLS, DASH: each has half the bit rate of the next
    # HLS, DASH; adaptive: the best whose bit rate is below 0.8 of the throughput of the segment before
    quality: Literal["adaptive", "highest", "lowest"] = "adaptive"
    # "/film.mp4", "/live/index.m3u8", "/film.mpd": the user's own, of that bit rate; "": the clip
    path: str = url_path()

    @property
    def clip(self) -> Clip:
        """What HLS and DASH serve."""
        rates = [round(self.bitrate_bit_per_s / 2**below) for below in reversed(range(self.qualities))]
        return Clip(self.clip_ns, self.segment_ns, tuple(rates))

    @property
    def file(self) -> HttpObject:
        """What is downloaded progressively."""
        return HttpObject(round(self.bitrate_bit_per_s) * self.clip_ns // (8 * 10**9))


class ViewersLoad(ViewingLoad):
    """Viewers over HTTP."""

    name: ClassVar[str] = "viewers"
    summary: ClassVar[str] = "viewers of a stream (HTTP progressive, HLS, DASH): start-up, stalls; every byte checked"
    takes: ClassVar[tuple[type[Offer], ...]] = (Http,)
    own: ClassVar[str] = "path"
    Settings: ClassVar[type[ViewersSettings]] = ViewersSettings
    settings: ViewersSettings

    @property
    def content(self) -> Content | None:
        """The clip; nothing of ours for a path of the user's."""
        if self.settings.path:
            return None
        return self.settings.file if self.settings.delivery == "progressive" else self.settings.clip

    @property
    def piece_ns(self) -> int:
        """See `ViewingLoad.piece_ns`: a segment counts when all of it is there."""
        return super().piece_ns if self.settings.delivery == "progressive" else self.settings.segment_ns

    def check(self, host: Host) -> list[Problem]:
        """See `ViewingLoad.check`; and that a manifest can hold the clip."""
        problems, settings = super().check(host), self.settings
        clip = settings.clip
        listed = -(-clip.duration_ns // clip.segment_ns) * (settings.qualities if settings.delivery == "dash" else 1)
        if settings.delivery != "progressive" and not settings.path and listed > _MOST_SEGMENTS:
            what = f"{clip} lists {listed:,} of them in one manifest, which can hold {_MOST_SEGMENTS:,}"
            remedy = "ask for a shorter clip, for longer segments, or, of DASH, for fewer qualities"
            problems.append(Problem(what, "[load] clip, segment, qualities", remedy))
        return problems

    def asked(self, offer: Offer) -> dict[str, Any]:
        """The manifest, or the file. TrialError where it is spoken over TLS."""
        assert isinstance(offer, Http)
        if offer.certificate:
            where = f"{offer.kind} at {offer.address}:{offer.port}"
            raise TrialError("viewers speak plain HTTP", where=where, remedy="[service] tls = false")
        settings, is_ours = self.settings, not self.settings.path
        media: dict[str, Any]
        if settings.delivery != "progressive":
            clip = settings.clip
            path = settings.path or (clip.path if settings.delivery == "hls" else clip.mpd_path)
            media = {settings.delivery: {"quality": settings.quality, "text": is_ours}}
        else:
            path = settings.path or settings.file.path
            length_bytes = settings.file.length_bytes if is_ours else None
            bit_rate = round(settings.bitrate_bit_per_s)
            media = {"file": {"bit_per_s": bit_rate, "length_bytes": length_bytes, "text": is_ours}}
        return {"target": target_of(offer, path), "media": media}
