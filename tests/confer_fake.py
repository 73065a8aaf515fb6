"""In the place of virtoll-confer: reports as it does, of a conference that takes no time.

    python confer_fake.py MANNER   < SPECIFICATION and ORDERS

Manners: *ok*; *refuse*, ends with a message; *silent*, says nothing; *endless*, a line without an end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

SECOND = 10**9
KNEE = 50  # beyond so many participants streams lose 2 % and freeze for 3 % of the time


def histogram(value_ns: int, number: int) -> list[list[int]]:
    return [[value_ns, value_ns + 1000, number]] if number else []


def audio(participants: int, joins: int, length_ns: int) -> dict[str, Any]:
    """What so many hear, of whom ``joins`` came in for this window; nothing where there are none."""
    expected = participants * 50 * length_ns // SECOND
    return {
        "listeners": participants,
        "unheard": 0,
        "no_first_packet": 0,
        "there_ns": participants * length_ns,
        "waiting_ns": 0,
        "packets": expected,
        "bytes": expected * 80,
        "expected": expected,
        "lost": expected // 1000,
        "useless": 0,
        "gaps": participants,
        "silent_ns": participants * length_ns // 50,
        "said": 150,
        "said_late": 0,
        "jitter": histogram(3_000_000, participants),
        "first_packet": histogram(70_000_000, joins),
    }


NO_AUDIO: dict[str, Any] = {key: [] if isinstance(value, list) else 0 for key, value in audio(0, 0, 0).items()}


def report(
    order: dict[str, Any], roles: list[dict[str, Any]], before: int, start_ns: int, knee: int = KNEE
) -> dict[str, Any]:
    """Of one window: all joined, all see what all others send; a millisecond of delay for each participant."""
    participants, length_ns = order["participants"], order["duration_ns"]
    left, present = participants, {}
    for role in roles:
        present[role["name"]] = left if role["count"] is None else min(left, role["count"])
        left -= present[role["name"]]
    joins, is_over = max(0, participants - before), participants > knee
    senders = [role["name"] for role in roles if role["film"] is not None]
    received = {}
    for name in senders:
        streams = present[name] * (participants - 1)
        expected = streams * 40 * length_ns // SECOND
        received[name] = {
            "streams": streams,
            "watched_ns": streams * length_ns,
            "waiting_ns": 0,
            "packets": expected,
            "bytes": expected * 1000,
            "media_bytes": expected * 950,
            "expected": expected,
            "lost_before": expected // (20 if is_over else 1000),
            "repaired": expected // 1000 if not is_over else expected // 20 - expected // 50,
            "lost": expected // 50 if is_over else 0,
            "duplicates": 0,
            "frames": streams * 15 * length_ns // SECOND,
            "key_frames": streams * length_ns // (2 * SECOND),
            "freezes": streams if is_over else 0,
            "frozen_ns": streams * length_ns * 3 // 100 if is_over else 0,
            "key_frames_asked": joins,
            "nacks": expected // 1000,
            "dropped": 0,
            "no_first_packet": 0,
            "no_first_key_frame": 0,
            "jitter": histogram(2_000_000, streams),
            "first_packet": histogram(50_000_000, joins),
            "first_key_frame": histogram(200_000_000, joins),
        }
    sent = {
        name: {
            "streams": present[name],
            "frames": present[name] * 15 * length_ns // SECOND,
            "key_frames": present[name] * length_ns // (2 * SECOND),
            "key_frames_asked": joins,
            "packets": present[name] * 40 * length_ns // SECOND,
            "bytes": present[name] * 38_000 * length_ns // SECOND,
            "nacks": 0,
            "late_frames": 0,
            "rtt": histogram(500_000, present[name]),
        }
        for name in senders
    }
    return {
        "window": {
            "start_ns": start_ns,
            "end_ns": start_ns + length_ns,
            "participants": participants,
            "present_ns": participants * length_ns,
            "joined_at_start": participants,
            "joined_at_end": participants,
            "wakes": 100 * participants,
            "wakes_late": 0,
            "cpu_user_ns": participants * length_ns // 1000,
            "cpu_system_ns": participants * length_ns // 1000,
        },
        "joins": {
            "offered": joins,
            "joined": joins,
            "again": 0,
            "under_way": 0,
            "failures": {},
            "time": histogram(participants * 1_000_000, joins),
            "lateness": histogram(1000, joins),
        },
        "leaves": {"ordered": max(0, before - participants), "failures": {}},
        "sent": sent,
        "received": received,
        "audio": dict(NO_AUDIO),
        "ice_rtt": histogram(participants * 10_000, participants),
    }


def main(manner: str) -> None:
    """Answer each order until there are no more."""
    roles, before = json.loads(sys.stdin.readline())["roles"], 0
    if manner == "refuse":
        sys.exit("virtoll-confer: no film can be read there")
    for line in sys.stdin:
        if manner == "endless":
            sys.stdout.write("1" * 10_000)
        elif manner == "ok":
            order = json.loads(line)
            told = report(order, roles, before, time.monotonic_ns())
            told["order"], told["before"] = order, before  # only the tests look at these
            before = order["participants"]
            print(json.dumps(told))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
