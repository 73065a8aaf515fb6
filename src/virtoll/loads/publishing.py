"""A publisher of live streams beside its viewers: the native generator's (rust/load/src/publish)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from virtoll.lab.client import Client
from virtoll.loads.conversation import Conversation, conversing
from virtoll.offers import Rtmp

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
def publishing(client: Client, offer: Rtmp, stream: str, film: Path, mark: str) -> Iterator[Publisher]:
    """Publish a film (FLV, on the client's host) round and round, at its own pace, where the client stands.

    ``mark``: 16 letters, by which viewers know when a key frame was sent. TrialError where the server does not take it.
    """
    spec = {
        "address": f"{offer.address}:{offer.port}",
        "url": f"rtmp://{offer.address}:{offer.port}/{offer.application}",
        "application": offer.application,
        "streams": [stream],
        "film": str(film),
        "mark": mark,
        "patience_ns": _PATIENCE_NS,
        "rest_ns": _REST_NS,
    }
    with conversing(client, "publish", spec, "the publisher") as conversation:
        conversation.read(_PATIENCE_NS / 1e9 + _SPARE_S)
        yield Publisher(conversation)
