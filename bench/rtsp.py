"""Viewers over RTSP that one core carries, beside `ffmpeg -c copy` processes: `python -m bench.rtsp [--json FILE]`.

GStreamer's RTSP server sends one live stream (H.264 and AAC, about 0.9 Mbit/s) to all, on CPU 1; the clients are on
CPU 0, both in a network namespace of this process's own, over its loopback: the kernel's work for a packet up to the
socket is the sender's there. A round has, for each transport, our viewers and after them the processes of ffmpeg, in
random order. CPU is the clients' own over a stretch in which all of them watch; viewers per core: what a whole core
would carry at that cost. It is told only of rounds in which all play without a stall or a lost packet; beside it stands
what the server used of its CPU: near 1 it is the server that sets the limit. What ours are weighed by besides:
`bench._viewing`; the server counts what it sent of RTP's payload, times those who watch, and of how many streams it has
had their receivers' reports: over UDP, of all. Printed: the median, and of the ratio to ffmpeg the middle half.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench._counting import TCP, UDP, Moment, cpu_s, device
from bench._figures import keep, paired
from bench._viewing import Crowd, Framing, Reading, expect_several, median, reading, watch
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.lab.client import Client
from virtoll.loads.rtsp_viewers import RtspViewersLoad, RtspViewersSettings
from virtoll.offers import Rtsp

Transport = Literal["tcp", "udp"]
TARGETS: dict[Transport, float] = {"tcp": 3000, "udp": 2000}  # viewers per core
# A packet has a head of RTP; over TCP four bytes before it. The loopback counts no Ethernet, and what viewers send
# besides: their reports, which are less than a thousandth.
FRAMING: dict[Transport, Framing] = {
    "tcp": Framing(TCP, lambda window: 16.0 * window["rtp"]["packets"]),
    "udp": Framing(UDP, lambda window: 12.0 * window["rtp"]["packets"]),
}
OVER_FFMPEG = 10.0
PACKAGES = (
    "ffmpeg", "gir1.2-gst-rtsp-server-1.0", "gstreamer1.0-libav", "gstreamer1.0-plugins-bad",
    "gstreamer1.0-plugins-base", "gstreamer1.0-plugins-good", "gstreamer1.0-plugins-ugly", "python3-gi",
)  # fmt: skip
_PORT = 8554
_WITHIN = "VIRTOLL_BENCH_RTSP"
_STREAMS = 2
_SERVER = """
import json, sys
import gi
gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer
Gst.init(None)
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
server.set_service("8554")
server.set_backlog(4096)
live = GstRtspServer.RTSPMediaFactory()
live.set_shared(True)
live.set_launch("( videotestsrc is-live=true ! video/x-raw,width=320,height=240,framerate=25/1"
    " ! x264enc tune=zerolatency speed-preset=ultrafast bitrate=800 key-int-max=25 ! h264parse"
    " ! rtph264pay name=pay0 pt=96 config-interval=-1"
    " audiotestsrc is-live=true ! avenc_aac bitrate=96000 ! aacparse ! rtpmp4gpay name=pay1 pt=97 )")
server.get_mount_points().add_factory("/live", live)
server.attach(None)
streams = []
def configured(_, media):
    streams[:] = map(media.get_stream, range(media.n_streams()))
live.connect("media-configure", configured)
def told(*_):
    if not sys.stdin.readline():
        return False
    octets = reports = 0
    for stream in streams:
        for source in stream.get_rtpsession().props.sources:
            stats = source.props.stats
            octets += stats.get_uint64("octets-sent")[1] if stats.get_boolean("internal")[1] else 0
            reports += stats.get_boolean("have-rb")[1]
    print(json.dumps({"octets": octets, "reports": reports}), flush=True)
    return True
GLib.io_add_watch(0, GLib.IO_IN | GLib.IO_HUP, told)
GLib.MainLoop().run()
"""


@dataclass(frozen=True)
class Ours:
    """A run of ours: what it comes to, whether all watched well, and how much of what they watch they reported of."""

    reading: Reading
    is_clean: bool
    reported: float  # of all streams that were watched, the share


@dataclass(frozen=True)
class Theirs:
    """A run of ffmpeg."""

    per_core: float  # how many a whole core would carry at their cost
    is_clean: bool


class Server:
    """The server's process, which says what it has counted."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self.pid = process, process.pid

    def told(self) -> dict[str, int]:
        """``octets`` of RTP's payload, each once however many watch; of how many streams' receivers it has
        ``reports``.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said: dict[str, int] = json.loads(self._process.stdout.readline())
        return said


@contextmanager
def served(root: Path) -> Iterator[Server]:
    """The server, until the end of the block."""
    argv = ["taskset", "-c", "1", "chroot", str(root), "python3", "-c", _SERVER]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            for _ in range(300):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", _PORT)) == 0:
                        break
                time.sleep(0.1)
            else:
                raise SystemExit("bench.rtsp: GStreamer's RTSP server does not listen within 30 s")
            yield Server(server)
        finally:
            server.kill()


def crowd(transport: Transport, viewers: int, seconds: int, server: Server) -> tuple[Crowd, int]:
    """Our viewers, on CPU 0; and of how many streams the server had receivers' reports by the window's end."""
    settings = RtspViewersSettings(
        viewers=viewers,
        transport=transport,
        join_ns=10**7,
        time_limit_ns=seconds * 10**9,
    )
    said: list[dict[str, int]] = []

    def count(_: int) -> Moment:
        said.append(server.told())
        return Moment(cpu_s(server.pid), said[-1]["octets"] * viewers, *device(server.pid, "lo", "received"))

    asked = RtspViewersLoad(settings).asked(Rtsp("127.0.0.1", _PORT, path="/live", is_live=True))
    client = Client(LocalHost(), Confinement(cpus=frozenset({0})), Path("/"), 1)
    return watch(client, settings, asked, count), said[-1]["reports"]


def ours(transport: Transport, viewers: int, seconds: int, server: Server) -> Ours:
    """Many of them, and one."""
    (many, reports), (one, _) = (crowd(transport, count, seconds, server) for count in (viewers, 1))
    window, rtp = many.window, many.window["rtp"]
    is_clean = window["stalls"] == rtp["lost"] == rtp["dropped"] == window["starting_ns"] == 0
    weighed = reading(many, one, viewers, FRAMING[transport])
    return Ours(weighed, is_clean and not many.failures, reports / (_STREAMS * viewers))


def theirs(root: Path, transport: Transport, processes: int, seconds: int) -> Theirs:
    """As many processes of ffmpeg, on CPU 0."""
    argv = [
        "taskset",
        "-c",
        "0",
        "chroot",
        str(root),
        "ffmpeg",
        "-v",
        "error",
        "-nostdin",
        "-rtsp_transport",
        transport,
    ]
    argv += ["-i", f"rtsp://127.0.0.1:{_PORT}/live", "-c", "copy", "-f", "null", "-"]
    running = [subprocess.Popen(argv, stderr=subprocess.DEVNULL) for _ in range(processes)]
    try:
        time.sleep(5 + 0.5 * processes)  # until each has found out what streams there are
        before, began_s = [cpu_s(process.pid) for process in running], time.monotonic()
        time.sleep(seconds)
        used_s = sum(cpu_s(process.pid) for process in running) - sum(before)
        took_s = time.monotonic() - began_s
        return Theirs(took_s * processes / used_s, all(process.poll() is None for process in running))
    finally:
        for process in running:
            process.send_signal(signal.SIGKILL)
            process.wait()


def within(root: Path, arguments: argparse.Namespace) -> int:
    """All rounds, in a network namespace of our own; 1 where a target is missed."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    cover(root)
    pairs: dict[Transport, list[tuple[Ours, Theirs]]] = {transport: [] for transport in TARGETS}
    with served(root) as server:
        for _ in range(arguments.rounds):
            for transport in random.sample(list(TARGETS), len(TARGETS)):
                mine = ours(transport, arguments.viewers, arguments.seconds, server)
                other = theirs(root, transport, arguments.processes, arguments.seconds)
                pairs[transport].append((mine, other))
    rows = [row(transport, told, arguments.viewers) for transport, told in pairs.items()]
    for each in rows:
        print(f"{each['told']}  {'reached' if each['reached'] else 'MISSED'}")
    keep(arguments.json, {each["transport"]: each for each in rows})
    return int(not all(each["reached"] for each in rows))


def cover(root: Path) -> None:
    """What is written to the image is gone with this namespace: GStreamer keeps a list of its plugins there."""
    with tempfile.TemporaryDirectory() as there:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", there], check=True)
        for name in ("upper", "work"):
            (Path(there) / name).mkdir()
        options = f"lowerdir={root},upperdir={there}/upper,workdir={there}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "bench-rtsp", root], check=True)
        subprocess.run(["umount", "--lazy", there], check=True)
    for kind, name in (("proc", "proc"), ("devtmpfs", "dev")):
        subprocess.run(["mount", "-t", kind, kind, root / name], check=True)


def row(transport: Transport, pairs: list[tuple[Ours, Theirs]], viewers: int) -> dict[str, Any]:
    """What all rounds of one transport come to, in words too."""
    clean = [(mine, other) for mine, other in pairs if mine.is_clean and other.is_clean]
    told = f"{transport}: {len(clean)} of {len(pairs)} rounds of {viewers} viewers clean"
    if len(clean) < 2:
        cpus = statistics.median(mine.reading.server_cpus for mine, _ in pairs)
        told += f", the server used {cpus:.2f} CPU: nothing to tell"
        return {"transport": transport, "told": told, "reached": False}
    middle = median([mine.reading for mine, _ in clean])
    ratio = paired([(mine.reading.viewers_per_cpu, other.per_core) for mine, other in clean])
    reported = min(mine.reported for mine, _ in clean)
    is_reached = middle.viewers_per_cpu >= TARGETS[transport] and ratio["median"] >= OVER_FFMPEG and middle.is_good
    told += (
        f"; {middle.viewers_per_cpu:.0f} viewers per core (target >= {TARGETS[transport]:.0f}), "
        f"{ratio['median']:.1f} x ffmpeg ({ratio['quartiles'][0]:.1f} to {ratio['quartiles'][1]:.1f}; target >= "
        f"{OVER_FFMPEG:g}), {middle}; receivers' reports of {reported:.0%} of all streams"
    )
    if transport == "udp":
        is_reached, told = is_reached and reported >= 1, f"{told} (target 100%)"
    return {"transport": transport, **asdict(middle), "over_ffmpeg": ratio, "reported": reported, "told": told} | {
        "reached": is_reached
    }


def main() -> int:
    """Build the root filesystem, and go on in namespaces of our own."""
    parser = argparse.ArgumentParser(prog="python -m bench.rtsp", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--viewers", type=int, default=500)
    parser.add_argument("--processes", type=int, default=10, help="of ffmpeg")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--root", type=Path, help="a root filesystem with the packages, instead of one that is built")
    arguments = parser.parse_args()
    expect_several(parser, arguments.viewers)
    root = arguments.root
    if root is None:
        root = rootfs.build(LocalHost(), "bench-rtsp", PACKAGES, lambda line: print(line, file=sys.stderr)).rootfs
    if os.environ.get(_WITHIN):
        return within(root, arguments)
    argv = ["unshare", "-n", "-m", sys.executable, "-m", "bench.rtsp", *sys.argv[1:]]
    return subprocess.run(argv, env=os.environ | {_WITHIN: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
