"""What conference servers that are deployed have in common: room enough, and participants who send next to nothing."""

from __future__ import annotations

from dataclasses import replace

import contract
from virtoll.loads.participants import ParticipantsSettings

SECOND = 10**9
LIMITS = replace(contract.LIMITS, memory_bytes=512 * 1024**2, pids=256)
SETTINGS = ParticipantsSettings(
    desktop_bitrate_bit_per_s=30_000,
    desktop_size="320x180",
    desktop_frames_per_s=5,
    webcam_bitrate_bit_per_s=30_000,
    webcam_size="160x90",
    webcam_frames_per_s=5,
    patience_ns=60 * SECOND,
    settle_ns=SECOND,
    time_limit_ns=2 * SECOND,
)
