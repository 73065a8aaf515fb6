"""Crowds of our viewers, weighed: what the benches of viewers share.

A crowd is one process of the native generator, on one CPU; its CPU time is its own, within the window. A CPU carries as
many viewers as seconds of media they saw for a second of it. Memory is the most that the process of many had, less that
of one, for each of those that are more. Goodput is counted three times over the same window: by the viewers, by the
server, and by a network device; what frames media there is taken off by what the viewers counted (packets, messages).
Counters that are read a moment late are so at both ends: each rate is of the time between its own two readings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from bench._counting import Moment, at, differ_percent, peak_bytes
from virtoll.lab.client import Client
from virtoll.loads.conversation import conversing
from virtoll.loads.viewing import ViewingSettings, order, specification

Window = dict[str, Any]  # what the generator reports of one (rust/load/src/view/mod.rs)
MOST_BYTES = 65_536.0  # of memory, a viewer
MOST_DIFFER_PERCENT = 0.5
MOST_STALLED_PERCENT = 1.0  # who stands still is not carried
FULL = 0.9  # a server that uses so much of its one CPU is the limit
_AHEAD_NS = 5 * 10**9  # until the first joins: the generator is started, and reads what it is to do
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Framing:
    """What is counted besides media: bytes of a packet's heads, and by a window's counts, what else the device and the
    server count.
    """

    head_bytes: int
    on_wire: Callable[[Window], float] = lambda _: 0.0
    by_server: Callable[[Window], float] = lambda _: 0.0


@dataclass(frozen=True)
class Crowd:
    """What a crowd says of its window, the most memory that it had, and what else was counted meanwhile."""

    report: dict[str, Any]
    memory_bytes: int
    counted: Moment

    @property
    def window(self) -> Window:
        """What happened in it."""
        window: Window = self.report["window"]
        return window

    @property
    def failures(self) -> dict[str, int]:
        """Viewers who did not come in, or did not stay, by why."""
        return {**self.report["joins"]["failures"], **self.report["views"]["failures"]}


@dataclass(frozen=True)
class Reading:
    """What a crowd comes to."""

    viewers_per_cpu: float
    bytes_per_viewer: float
    stalled_percent: float
    server_cpus: float
    mbit_per_s: float  # of media, a viewer
    differ_percent: float  # goodput, by the viewers, the server and the network

    @property
    def is_good(self) -> bool:
        """Memory is within its target, the three counts agree, and the pictures move."""
        is_lean = self.bytes_per_viewer <= MOST_BYTES
        return is_lean and self.differ_percent <= MOST_DIFFER_PERCENT and self.stalled_percent <= MOST_STALLED_PERCENT

    def __str__(self) -> str:
        limit = ", the limit" if self.server_cpus >= FULL else ""
        return (
            f"{self.bytes_per_viewer:.0f} bytes a viewer of {self.mbit_per_s:.2f} Mbit/s (target <= {MOST_BYTES:.0f}), "
            f"{self.stalled_percent:.2f} % stalled (target <= {MOST_STALLED_PERCENT:g}), "
            f"the server used {self.server_cpus:.2f} CPU{limit}; viewers, server "
            f"and network count alike within {self.differ_percent:.2f} % (target {MOST_DIFFER_PERCENT:g})"
        )


def watch(client: Client, settings: ViewingSettings, asked: dict[str, Any], count: Callable[[int], Moment]) -> Crowd:
    """A crowd comes, watches for a window, and leaves. ``count`` is given its process."""
    joins_ns = settings.join_ns * (settings.viewers - 1)
    start_ns = time.monotonic_ns() + _AHEAD_NS + joins_ns + settings.settle_ns
    spec = specification(settings, asked, client)
    with conversing(client, ("virtoll-load", "view"), "the viewers", spec) as conversation:
        conversation.write(json.dumps(order(settings, start_ns)).encode() + b"\n")
        try:
            before = at(start_ns, lambda: count(conversation.pid))
            after = at(start_ns + settings.time_limit_ns, lambda: count(conversation.pid))
            memory_bytes = peak_bytes(conversation.pid)
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            conversation.read(_PATIENCE_S)  # TrialError, with its own words
            raise
        report = conversation.read(settings.patience_ns / 1e9 + _PATIENCE_S)
    return Crowd(report, memory_bytes, after.since(before))


def reading(many: Crowd, one: Crowd, viewers: int, framing: Framing) -> Reading:
    """What so many come to, beside one alone."""
    window, counted = many.window, many.counted
    seconds = (window["end_ns"] - window["start_ns"]) / 1e9
    used_ns = window["cpu_user_ns"] + window["cpu_system_ns"]
    viewing_ns = window["stalled_ns"] + window["playing_ns"]
    counted_s = counted.at_ns / 1e9
    media_per_s = (
        window["media_bytes"] / seconds,
        counted.server_bytes / counted_s - framing.by_server(window) / seconds,
        counted.carried(framing.head_bytes) / counted_s - framing.on_wire(window) / seconds,
    )
    return Reading(
        viewers_per_cpu=window["media_ns"] / used_ns if used_ns else float("nan"),
        bytes_per_viewer=(many.memory_bytes - one.memory_bytes) / max(1, viewers - 1),
        stalled_percent=100 * window["stalled_ns"] / max(1, viewing_ns),
        server_cpus=counted.server_cpu_s / counted_s,
        mbit_per_s=window["media_bytes"] * 8e-6 / seconds / viewers,
        differ_percent=differ_percent(media_per_s),
    )


def median(readings: Sequence[Reading]) -> Reading:
    """Of each figure by itself."""
    names = [field.name for field in fields(Reading)]
    return Reading(**{name: statistics.median(getattr(reading, name) for reading in readings) for name in names})


def expect_several(parser: argparse.ArgumentParser, viewers: int) -> None:
    """SystemExit where there is one viewer, or none: memory is told of those that are more than one."""
    if viewers < 2:
        parser.error("--viewers: two at the least, for memory is told of those that are more than one")


def refuse_failures(bench: str, what: str, crowd: Crowd) -> None:
    """SystemExit where viewers failed: figures of fewer than were asked for are of something else."""
    if crowd.failures:
        raise SystemExit(f"bench.{bench}: {what}: viewers failed: {crowd.failures}")
