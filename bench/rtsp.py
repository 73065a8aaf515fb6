"""Viewers over RTSP that one core carries, beside `ffmpeg -c copy` processes: `python -m bench.rtsp [--json FILE]`.

GStreamer's RTSP server sends one live stream (H.264 and AAC, about 0.9 Mbit/s) to all, on CPU 1; the clients are on
CPU 0, both in a network namespace of this process's own, over its loopback: the kernel's work for a packet up to the
socket is the sender's there. A round has, for each transport, our viewers and after them the processes of ffmpeg, in
random order. CPU is the clients' own over a stretch in which all of them watch; viewers per core: what a whole core
would carry at that cost. It is told only of rounds in which all play without a stall or a lost packet; beside it stands
what the server used of its CPU: near 100 % it is the server that sets the limit. Printed: the median, and of the ratio
to ffmpeg the middle half.
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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench._figures import keep, paired
from virtoll.binaries import binary
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.lab.client import Client
from virtoll.loads.rtsp_viewers import RtspViewersLoad, RtspViewersSettings
from virtoll.loads.viewing import order, specification
from virtoll.offers import Rtsp

Transport = Literal["tcp", "udp"]
TARGETS: dict[Transport, float] = {"tcp": 3000, "udp": 2000}  # viewers per core
OVER_FFMPEG = 10.0
PACKAGES = (
    "ffmpeg", "gir1.2-gst-rtsp-server-1.0", "gstreamer1.0-libav", "gstreamer1.0-plugins-bad",
    "gstreamer1.0-plugins-base", "gstreamer1.0-plugins-good", "gstreamer1.0-plugins-ugly", "python3-gi",
)  # fmt: skip
_PORT = 8554
_WITHIN = "VIRTOLL_BENCH_RTSP"
_SERVER = """
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
GLib.MainLoop().run()
"""


@dataclass(frozen=True)
class Reading:
    """One run: what one viewer's second took of a core, whether all watched well, and what the server used."""

    cpu_s: float
    is_clean: bool
    server_share: float
    mbit_per_s: float = 0.0

    @property
    def viewers_per_core(self) -> float:
        """How many a whole core would carry at that cost."""
        return 1 / self.cpu_s


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(root: Path) -> Iterator[int]:
    """The server, until the end of the block; its process."""
    argv = ["taskset", "-c", "1", "chroot", str(root), "python3", "-c", _SERVER]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(300):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", _PORT)) == 0:
                        break
                time.sleep(0.1)
            else:
                raise SystemExit("bench.rtsp: GStreamer's RTSP server does not listen within 30 s")
            yield server.pid
        finally:
            server.kill()


def ours(transport: Transport, viewers: int, seconds: int, server: int) -> Reading:
    """Our viewers, on CPU 0."""
    settings = RtspViewersSettings(
        viewers=viewers,
        transport=transport,
        join_ns=10**7,
        time_limit_ns=seconds * 10**9,
    )
    load = RtspViewersLoad(settings)
    client = Client(LocalHost(), Confinement(cpus=frozenset({0})), Path("/"), 1)
    offer = Rtsp("127.0.0.1", _PORT, path="/live", is_live=True)
    lines = (specification(settings, load.asked(offer), client), order(settings))
    spec = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    before_s, begin_s = cpu_s(server), time.monotonic()
    done = subprocess.run(["taskset", "-c", "0", binary("virtoll-load"), "view"], input=spec, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"bench.rtsp: {done.stderr.decode()}")
    share = (cpu_s(server) - before_s) / (time.monotonic() - begin_s)
    report: dict[str, Any] = json.loads(done.stdout)
    window, rtp = report["window"], report["window"]["rtp"]
    failed = report["joins"]["failures"] | report["views"]["failures"]
    is_clean = not failed and window["stalls"] == rtp["lost"] == rtp["dropped"] == window["starting_ns"] == 0
    used_s = (window["cpu_user_ns"] + window["cpu_system_ns"]) / 1e9
    return Reading(
        cpu_s=used_s / seconds / viewers,
        is_clean=is_clean,
        server_share=share,
        mbit_per_s=window["media_bytes"] * 8 / 1e6 / seconds / viewers,
    )


def theirs(root: Path, transport: Transport, processes: int, seconds: int, server: int) -> Reading:
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
        before, began_s, server_s = [cpu_s(process.pid) for process in running], time.monotonic(), cpu_s(server)
        time.sleep(seconds)
        used_s = sum(cpu_s(process.pid) for process in running) - sum(before)
        took_s = time.monotonic() - began_s
        is_clean = all(process.poll() is None for process in running)
        return Reading(used_s / took_s / processes, is_clean, (cpu_s(server) - server_s) / took_s)
    finally:
        for process in running:
            process.send_signal(signal.SIGKILL)
            process.wait()


def within(root: Path, arguments: argparse.Namespace) -> int:
    """All rounds, in a network namespace of our own; 1 where a target is missed."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for kind, name in (("proc", "proc"), ("devtmpfs", "dev")):
        subprocess.run(["mount", "-t", kind, kind, root / name], check=True)
    readings: dict[Transport, list[tuple[Reading, Reading]]] = {transport: [] for transport in TARGETS}
    with served(root) as server:
        for _ in range(arguments.rounds):
            for transport in random.sample(list(TARGETS), len(TARGETS)):
                mine = ours(transport, arguments.viewers, arguments.seconds, server)
                other = theirs(root, transport, arguments.processes, arguments.seconds, server)
                readings[transport].append((mine, other))
    document, missed = {}, False
    for transport, pairs in readings.items():
        clean = [(mine, other) for mine, other in pairs if mine.is_clean and other.is_clean]
        server_share = statistics.median(mine.server_share for mine, _ in pairs)
        told = f"{transport}: {len(clean)} of {len(pairs)} rounds clean, server {server_share:.0%} of its CPU"
        if len(clean) < 2:
            print(f"{told}: nothing to tell")
            missed = True
            continue
        per_core = statistics.median(mine.viewers_per_core for mine, _ in clean)
        ratio = paired([(mine.viewers_per_core, other.viewers_per_core) for mine, other in clean])
        rate = statistics.median(mine.mbit_per_s for mine, _ in clean)
        print(
            f"{told}; {arguments.viewers} viewers of {rate:.2f} Mbit/s: {per_core:.0f} viewers per core "
            f"(target {TARGETS[transport]:.0f}), {ratio['median']:.1f} x ffmpeg "
            f"({ratio['quartiles'][0]:.1f} to {ratio['quartiles'][1]:.1f}; target {OVER_FFMPEG:g})"
        )
        missed |= per_core < TARGETS[transport] or ratio["median"] < OVER_FFMPEG
        document[transport] = {"viewers_per_core": per_core, "over_ffmpeg": ratio, "mbit_per_s": rate}
    keep(arguments.json, document)
    return int(missed)


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
    root = arguments.root
    if root is None:
        root = rootfs.build(LocalHost(), "bench-rtsp", PACKAGES, lambda line: print(line, file=sys.stderr)).rootfs
    if os.environ.get(_WITHIN):
        return within(root, arguments)
    argv = ["unshare", "-n", "-m", sys.executable, "-m", "bench.rtsp", *sys.argv[1:]]
    return subprocess.run(argv, env=os.environ | {_WITHIN: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
