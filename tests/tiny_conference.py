"""What conference servers that are deployed have in common: room enough, and participants who send next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import contract
from virtoll.lab.client import Client
from virtoll.loads.base import Measurement
from virtoll.loads.conference import JOIN
from virtoll.loads.participants import ParticipantsLoad, ParticipantsSettings
from virtoll.offers import Offer
from virtoll.record.model import Window
from windows import longer

SECOND = 10**9
LIMITS = replace(contract.LIMITS, memory_bytes=512 * 1024**2, pids=256)
SETTINGS = ParticipantsSettings(
    desktop_bitrate_bit_per_s=30_000,
    desktop_size="320x180",
    desktop_frames_per_s=5,
    webcam_bitrate_bit_per_s=30_000,
    webcam_size="160x90",
    webcam_frames_per_s=5,
    patience_ns=600 * SECOND,
    settle_ns=SECOND,
    time_limit_ns=2 * SECOND,
)


def measured(
    load: ParticipantsLoad,
    client: Client,
    offer: Offer,
    holds: Callable[[Window], bool],
    meanwhile: Callable[[], object] = lambda: None,
) -> Window:
    """The first window in which all had come in, and of which it holds: where somebody stood still until one ended, who
    was about to come in is told as unfinished, and all come in anew, with more time. Nothing else may go wrong.
    ``meanwhile``: what is done when it is over and all are still there.
    """

    def measure(length_ns: int) -> Measurement:
        settings = replace(load.settings, settle_ns=length_ns // 2, time_limit_ns=length_ns)
        with ParticipantsLoad(settings).session(client, offer) as session:
            measurement = session.measure()
            meanwhile()
        assert measurement.window.events[JOIN].failures.keys() <= {"unfinished"}
        return measurement

    def is_whole(window: Window) -> bool:
        return window.events[JOIN].failures == {} and holds(window)

    window = longer(measure, is_whole, 2).window
    assert window.events[JOIN].failures == {}
    return window
