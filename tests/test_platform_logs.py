"""A log that a stranger fills: what is kept of it, and that nobody who writes or reads waits for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from virtoll.platforms.logs import HEAD_BYTES, TAIL_BYTES, bounded, ending
from virtoll.platforms.stdio import tail


def test_little_is_kept_whole(tmp_path: Path) -> None:
    with bounded(tmp_path / "log") as sink:
        for number in range(3):
            os.write(sink, b"line %d\n" % number)
    assert (tmp_path / "log").read_bytes() == b"line 0\nline 1\nline 2\n"
    assert tail(tmp_path / "log", 2) == "line 1\nline 2"


@pytest.mark.parametrize("printed_bytes", [0, 1, HEAD_BYTES, HEAD_BYTES + 1, HEAD_BYTES + TAIL_BYTES, 10**6])
def test_beginning_and_end_are_kept(tmp_path: Path, printed_bytes: int) -> None:
    text = b"".join(b"%9d\n" % number for number in range(printed_bytes // 10 + 1))[:printed_bytes]
    with bounded(tmp_path / "log") as sink:
        for offset in range(0, len(text), 50_000):
            os.write(sink, text[offset : offset + 50_000])
    kept = (tmp_path / "log").read_bytes()
    assert kept == text[:HEAD_BYTES] + text[HEAD_BYTES:][-TAIL_BYTES:]
    assert ending(tmp_path / "log") == kept[-TAIL_BYTES:].decode()


def test_whoever_still_lives_is_not_waited_for(tmp_path: Path) -> None:
    with bounded(tmp_path / "log") as sink:
        held = os.dup(sink)
        os.write(held, b"said")
    assert (tmp_path / "log").read_bytes() == b"said"
    with pytest.raises(BrokenPipeError):
        os.write(held, b"too late")
    os.close(held)


def test_a_log_of_any_size_is_read_from_its_end(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        log.truncate(2**40)
        log.seek(0, os.SEEK_END)
        log.write(b"\nlast\n")
    assert tail(tmp_path / "log", 1) == "last"
    assert ending(tmp_path / "none") == ""


def test_a_full_disk_stops_nobody_who_prints() -> None:
    with bounded(Path("/dev/full")) as sink:
        os.set_blocking(sink, False)
        left, deadline = 4 * HEAD_BYTES, time.monotonic() + 600
        while left:
            assert time.monotonic() < deadline, f"{left} bytes found no reader"
            try:
                left -= os.write(sink, bytes(min(left, 4096)))
            except BlockingIOError:
                time.sleep(0.001)
