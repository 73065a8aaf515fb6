"""What the benches of viewers compute: of counters that are made up, and of what the kernel's own look like."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from bench import rtmp, rtsp, viewers
from bench._counting import ETHERNET, TCP, UDP, Moment, counted, differ_percent, peak_bytes, ticks
from bench._viewing import Crowd, Framing, Reading, median, reading, refuse_failures
from virtoll.services.clips import segments

SECOND = 10**9
DEVICES = """\
Inter-|   Receive                                         |  Transmit
 face |bytes    packets errs drop fifo frame compr. multi.|bytes    packets errs drop fifo colls carrier compr.
    lo:     110       2    0    0    0     0      0      0      110       2    0    0    0     0       0      0
  eth0: 1500066       7    0    0    0     0      0      0     4620      70    0    0    0     0       0      0
"""
GOOD = Reading(6000.0, 20_000.0, 0.0, 0.5, 0.9, 0.01)


def window(**more: Any) -> dict[str, Any]:
    """Ten seconds in which ten viewers watched a megabyte each, for a hundredth of the CPU."""
    told = {"start_ns": 5 * SECOND, "end_ns": 15 * SECOND, "playing_ns": 99 * SECOND, "stalled_ns": SECOND}
    told |= {"media_ns": 100 * SECOND, "media_bytes": 10_000_000, "messages": 1000}
    return told | {"cpu_user_ns": SECOND // 25, "cpu_system_ns": 3 * SECOND // 50} | more


def crowd(memory_bytes: int, counts: Moment, **more: Any) -> Crowd:
    report = {"window": window(**more), "joins": {"failures": {}}, "views": {"failures": {}}}
    return Crowd(report, memory_bytes, counts)


def test_a_device_is_read_in_both_directions() -> None:
    assert counted(DEVICES, "eth0", "received") == (1_500_066, 7)
    assert counted(DEVICES, "eth0", "sent") == (4620, 70)
    assert counted(DEVICES, "lo", "received") == (110, 2)


def test_cpu_time_is_found_whatever_a_process_is_called() -> None:
    assert ticks("17 (a) b (c) S 1 17 17 0 -1 4194560 90 0 0 0 250 33 0 0 20 0 1 0 5 0 0") == 283


def test_what_packets_carry_is_told_without_their_heads() -> None:
    before, after = Moment(1.0, 100.0, 1000, 10, 7 * SECOND), Moment(1.5, 1100.0, 3000, 20, 9 * SECOND)
    added = after.since(before)
    assert added == Moment(0.5, 1000.0, 2000, 10, 2 * SECOND)
    assert added.carried(ETHERNET + TCP) == 2000 - 660
    assert added.carried(UDP) == 2000 - 280


def test_counts_differ_by_the_largest_and_the_smallest() -> None:
    assert differ_percent([1000.0, 1004.0, 1002.0]) == pytest.approx(0.4)
    assert differ_percent([1000.0, 0.0, 1000.0]) == float("inf"), "who counted nothing agrees with nobody"


def test_a_crowd_comes_to_what_its_counters_say() -> None:
    framing = Framing(66, lambda window: 8.0 * window["messages"], lambda window: 4.0 * window["messages"])
    counts = Moment(2.5, 10_004_000.0, 10_028_000 + 66 * 500, 500, 10 * SECOND)
    found = reading(crowd(1_900_000, counts), crowd(1_000_000, Moment(0, 1, 1, 0, SECOND)), 10, framing)
    assert found.viewers_per_cpu == pytest.approx(1000)
    assert found.bytes_per_viewer == 100_000
    assert found.stalled_percent == pytest.approx(1)
    assert found.server_cpus == pytest.approx(0.25)
    assert found.mbit_per_s == pytest.approx(0.8)
    assert found.differ_percent == pytest.approx(0.2), "viewers and server agree; the network counts 20,000 bytes more"
    assert not found.is_good, "of memory a viewer takes more than it may"


def test_counters_that_were_read_late_are_of_their_own_time() -> None:
    late = Moment(2.75, 11_000_000.0, 11_000_000 + 66 * 500, 500, 11 * SECOND)
    found = reading(crowd(1_900_000, late), crowd(1_000_000, late), 10, Framing(66))
    assert found.differ_percent == pytest.approx(0)
    assert found.server_cpus == 0.25


def test_the_middle_is_of_each_figure_by_itself() -> None:
    others = [Reading(5000.0, 30_000.0, 1.0, 0.4, 0.8, 0.02), Reading(7000.0, 10_000.0, 2.0, 0.6, 0.7, 0.6)]
    assert median([GOOD, *others]) == Reading(6000.0, 20_000.0, 1.0, 0.5, 0.8, 0.02)
    assert GOOD.is_good
    assert not replace(GOOD, stalled_percent=1.5).is_good, "pictures stand still"
    assert not others[1].is_good, "the counts differ"


def test_the_servers_limit_is_told() -> None:
    assert "the server used 0.50 CPU;" in str(GOOD)
    assert "the server used 0.95 CPU, the limit;" in str(Reading(6000.0, 20_000.0, 0.0, 0.95, 0.9, 0.01))


def test_viewers_that_fail_end_a_bench() -> None:
    failing = Crowd(
        {"joins": {"failures": {"refused": 3}}, "views": {"failures": {"stalled": 1}}}, 0, Moment(0, 0, 0, 0)
    )
    with pytest.raises(SystemExit, match=r"bench\.rtmp: live: viewers failed: \{'refused': 3, 'stalled': 1\}"):
        refuse_failures("rtmp", "live", failing)


@pytest.mark.parametrize(("per_cpu", "is_reached"), [(5000.0, True), (4999.0, False)])
def test_viewers_over_http_have_a_target_each(per_cpu: float, is_reached: bool) -> None:
    told = {"progressive": [GOOD], "hls": [Reading(per_cpu, 20_000.0, 0.0, 0.5, 0.9, 0.01)]}
    progressive, hls = viewers.summary(told)  # type: ignore[arg-type]
    assert (progressive["reached"], hls["reached"]) == (True, is_reached)
    assert hls["per_cpu"] == [per_cpu, per_cpu]


def test_a_clip_for_each_way_is_of_the_same_media() -> None:
    progressive, hls = (viewers.load_of(way, 1, 1).settings for way in ("progressive", "hls"))
    assert progressive.file.length_bytes == 60 * 900_000 // 8
    assert [piece.end_bytes for piece in segments(hls.clip, hls.clip.bit_rates[-1])][
        -1
    ] == progressive.file.length_bytes


@pytest.mark.parametrize(("theirs", "is_reached"), [(500.0, True), (700.0, False)])
def test_rtmp_is_judged_against_rtmpdump_too(theirs: float, is_reached: bool) -> None:
    (row,) = rtmp.summary({"vod": [rtmp.Reading(GOOD, theirs), rtmp.Reading(GOOD, theirs)]})
    assert row["ratio"] == pytest.approx(6000 / theirs)
    assert row["reached"] is is_reached


def test_nginx_says_what_it_has_sent_by_rtmp() -> None:
    page = "<rtmp><bytes_in>7</bytes_in><bw_out>1</bw_out><bytes_out>123456</bytes_out><server/></rtmp>"
    assert rtmp.said_to_be_sent(page) == 123_456
    with pytest.raises(SystemExit, match="does not say"):
        rtmp.said_to_be_sent("<html>404</html>")


def rounds(reported: float, *clean: bool) -> list[tuple[rtsp.Ours, rtsp.Theirs]]:
    return [(rtsp.Ours(GOOD, is_clean, reported), rtsp.Theirs(300.0, True)) for is_clean in clean]


def test_over_udp_all_have_to_report() -> None:
    assert rtsp.row("udp", rounds(1.0, True, True), 10)["reached"]
    assert not rtsp.row("udp", rounds(0.9, True, True), 10)["reached"]
    assert rtsp.row("tcp", rounds(0.9, True, True), 10)["reached"], "over TCP nothing was asked of reports"


def test_a_process_that_has_ended_has_no_memory_and_not_none_of_it() -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError, match="has ended before its memory was read"):
            peak_bytes(ended.pid)
    assert peak_bytes(os.getpid()) > 0


def test_rounds_that_are_not_clean_tell_nothing() -> None:
    row = rtsp.row("tcp", rounds(1.0, True, False), 10)
    assert not row["reached"]
    assert row["told"] == "tcp: 1 of 2 rounds of 10 viewers clean, the server used 0.50 CPU: nothing to tell"


def test_media_are_framed_as_each_transport_does() -> None:
    told = window(rtp={"packets": 100})
    assert [framing.on_wire(told) for framing in rtsp.FRAMING.values()] == [1600, 1200]
    assert [framing.by_server(told) for framing in rtsp.FRAMING.values()] == [0, 0]


def test_what_is_printed_says_the_targets_and_what_was_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Reading(4999.0, 20_000.0, 0.0, 0.95, 0.9, 0.01)
    monkeypatch.setattr(viewers, "measure", lambda _: {"progressive": [GOOD], "hls": [slow]})
    monkeypatch.setattr(rtmp, "measure", lambda _: {"vod": [rtmp.Reading(GOOD, 500.0)]})
    monkeypatch.setattr("sys.argv", ["bench"])
    assert (viewers.main(), rtmp.main()) == (1, 0)
    progressive, hls, _, vod = capsys.readouterr().out.splitlines()
    assert progressive.startswith(
        "progressive   6000 viewers a core (6000 to 6000 in 1 rounds of 2000; target >= 5000)"
    )
    assert progressive.endswith("within 0.01 % (target 0.5)  reached")
    assert "the server used 0.95 CPU, the limit;" in hls
    assert hls.endswith("MISSED")
    assert "6000 viewers a CPU (target >= 4000), rtmpdump   500, ratio  12.0 (12.0 to 12.0 in 1 rounds" in vod
