"""A publisher of a live stream beside its viewers, by RTMP or RTSP: the native generator's (rust/load/src/publish)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from virtoll import films
from virtoll.lab.client import Client
from virtoll.loads.base import Measurement
from virtoll.loads.conversation import Conversation, conversing
from virtoll.loads.viewing import ViewingSession, ViewingSettings
from virtoll.offers import Film, Rtmp, Rtsp
from virtoll.record.model import SENDS, SENDS_LATE

_PATIENCE_NS = 20 * 10**9  # for a server that takes no stream, or nothing of one
_REST_NS = 10**9
_SPARE_S = 30.0  # for the publisher itself to answer


@dataclass(frozen=True)
class Published:
    """What was published in a stretch of time; times are CLOCK_MONOTONIC of the client's host."""

    start_ns: int
    end_ns: int
    published: int  # streams, at its end
    messages: int  # audio and video
    late: int  # of those, sent more than `virtoll.record.model.LATE_NS` late by the publisher's own fault
    latest_ns: int
    late_at_ns: list[int]  # when they were due, the first thousands
    body_bytes: int
    failures: dict[str, int]  # by kind: the connections that broke, each made anew a second later
    cpu_user_ns: int
    cpu_system_ns: int

    def cpu_ns_of(self, duration_ns: int) -> int:
        """CPU time that it used in a part of the stretch: what it does is the same at all times."""
        return round((self.cpu_user_ns + self.cpu_system_ns) * duration_ns / (self.end_ns - self.start_ns))

    def messages_of(self, duration_ns: int) -> int:
        """Messages that it sent in a part of the stretch, as `cpu_ns_of`."""
        return round(self.messages * duration_ns / (self.end_ns - self.start_ns))

    def late_within(self, start_ns: int, duration_ns: int) -> int:
        """Messages that were due then and sent late; and all of which it is not told when they were due."""
        told = sum(start_ns <= at_ns < start_ns + duration_ns for at_ns in self.late_at_ns)
        return told + self.late - len(self.late_at_ns)


class Publisher:
    """One that publishes. `report` says what it did since the last report."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def report(self) -> Published:
        """TrialError with its own words where it has ended, or does not answer."""
        return Published(**self._conversation.ask(b"", _SPARE_S))


@contextmanager
def publishing(client: Client, offer: Rtmp | Rtsp, film: Film, mark: str) -> Iterator[Publisher]:
    """Publish a film round and round, at its own pace, where the client stands, as ``offer`` has it published.

    ``mark``: 16 letters, by which viewers know when a key frame was sent. HostError where the film was not made,
    TrialError where the server does not take it.
    """
    spec = {
        "address": f"{offer.address}:{offer.port}",
        "streams": _streams(offer, film),
        "film": str(films.file(film, "flv")),
        "mark": mark,
        "patience_ns": _PATIENCE_NS,
        "rest_ns": _REST_NS,
    }
    with conversing(client, ("virtoll-load", "publish"), "the publisher", spec) as conversation:
        conversation.read(_PATIENCE_NS / 1e9 + _SPARE_S)
        yield Publisher(conversation)


def _streams(offer: Rtmp | Rtsp, film: Film) -> dict[str, Any]:
    address = f"{offer.address}:{offer.port}"
    if isinstance(offer, Rtsp):
        return {"rtsp": {"urls": [f"rtsp://{address}{offer.publish_path_of(film)}"]}}
    application = offer.application
    names = [offer.stream_of(film)]
    return {"rtmp": {"url": f"rtmp://{address}/{application}", "application": application, "names": names}}


@dataclass(frozen=True)
class LiveSession(ViewingSession):
    """A crowd of viewers, and a process of the generator that publishes to them all the time."""

    publisher: Publisher = field(kw_only=True)

    def _drive(self, settings: ViewingSettings, start_ns: int | None = None, *, churns: bool = False) -> Measurement:
        self.publisher.report()
        measurement = super()._drive(settings, start_ns, churns=churns)
        return _with(measurement, self.publisher.report())


def _with(measurement: Measurement, published: Published) -> Measurement:
    """The publisher is a part of the generator: its CPU time is the window's, and where it was late, viewers that
    stall tell nothing of the service. It sends far more often than viewers look up: each is told by itself, or
    the one that keeps its times would hide the other. What it published, and how often it failed, is of all that was
    driven: from the first join on, of a crowd that had gathered before from its window's order on.
    """
    window = measurement.window
    counts = {
        **window.counts,
        "published": published.messages,
        "publish_failures": sum(published.failures.values()),
        SENDS: published.messages_of(window.duration_ns),
        SENDS_LATE: published.late_within(window.start_ns, window.duration_ns),
    }
    cpu_ns = (window.cpu_ns or 0) + published.cpu_ns_of(window.duration_ns)
    return replace(measurement, window=window.model_copy(update={"counts": counts, "cpu_ns": cpu_ns}))
