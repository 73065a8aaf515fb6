"""Viewers by RTMP of the native generator against rtmpdump, on the same nginx: `python -m bench.rtmp [--json FILE]`.

The lab of a study, with nginx-rtmp (of an image, as in studies) on CPU 1, the clients on CPU 0, a veth link between
them, and a film of a minute at 0.9 Mbit/s: on demand, paced, and live, where a publisher of ours sends it on CPU 0 too,
weighed by itself. One round runs, in each cell, many viewers of ours, one of ours, and as many processes of rtmpdump
as were asked for, in random order. A CPU carries as many viewers as seconds of media came for a second of it: of ours
within the window, of rtmpdump from start to end, by the bytes that it tells. What ours are weighed by besides:
`bench._viewing`; the server's own count of what it sent is nginx-rtmp's. Judged are the medians over the rounds.
"""

from __future__ import annotations

import argparse
import random
import re
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench._counting import ETHERNET, TCP, Moment, cpu_s, device
from bench._figures import keep
from bench._viewing import Crowd, Framing, expect_several, median, reading, refuse_failures, watch
from bench._viewing import Reading as OfACrowd
from virtoll import films
from virtoll.errors import TrialError
from virtoll.hosts.base import Confinement
from virtoll.hosts.ledger import opened, state_directory
from virtoll.hosts.local import LocalHost, end_session
from virtoll.images import rootfs
from virtoll.lab.base import SUT_GENERATOR_SIDE_ADDRESS, CpuPlan
from virtoll.lab.client import Client
from virtoll.lab.wiring import wired
from virtoll.loads.publishing import publishing
from virtoll.loads.rtmp_viewers import RtmpViewersLoad, RtmpViewersSettings
from virtoll.offers import Film, Rtmp

_CPUS = CpuPlan(instance=frozenset({1}), generator=frozenset({0}), origin=frozenset({0}))
_PACKAGES = ("libnginx-mod-rtmp", "nginx", "rtmpdump")
_FILM = Film(60 * 10**9, 900_000)
_MARK = "benchbenchbench0"
_WORK = "/mnt"  # inside: the lab's directory
# In a mount namespace of its own, which goes with the command: the directory at _WORK, and the image's root, which may
# have no devices.
_ENTER = [
    "unshare",
    "--mount",
    "--",
    "sh",
    "-e",
    "-c",
    'exec 3> /dev/null; mount --bind "$1" "$2$3"; root=$2; shift 3; exec chroot "$root" "$@"',
]
_NGINX = """load_module /usr/lib/nginx/modules/ngx_rtmp_module.so; user root; worker_processes 1; daemon off;
pid {0}/pid; error_log {0}/error.log crit; worker_rlimit_nofile 65536; events {{ worker_connections 16384; }}
rtmp {{ server {{ listen {1}:{2}; access_log off; application live {{ live on; }} application vod {{ play {0}; }} }} }}
http {{ access_log off; client_body_temp_path {0}/a; proxy_temp_path {0}/a; fastcgi_temp_path {0}/a;
  uwsgi_temp_path {0}/a; scgi_temp_path {0}/a; server {{ listen unix:{0}/stat; location / {{ rtmp_stat global; }} }} }}
"""
_RTMPDUMP = """i=0; while [ $i -lt {count} ]; do
  timeout -s INT {seconds} rtmpdump {live} -b 10000 -m 20 -r {url} -y film -o - \\
    < {work}/nginx.conf >&3 2> {work}/dump.$i &
  i=$((i + 1)); done; wait"""
PER_CPU, OVER_RTMPDUMP = 4000.0, 10.0
# Each message of media has a head of 8 bytes (its message's type 1); what goes on in a further chunk has one.
_FRAMING = Framing(ETHERNET + TCP, *[lambda window: 8.0 * window["messages"]] * 2)


@dataclass(frozen=True)
class Place:
    """nginx-rtmp in a lab, and where its clients stand."""

    client: Client
    root: Path  # the image's
    server: int  # nginx's process

    def count(self, pid: int) -> Moment:
        """What nginx says, and the device of the viewers whose process it is."""
        return Moment(cpu_s(self.server), _sent_bytes(self.client.directory), *device(pid, "eth0", "received"))

    def offer(self, cell: str) -> Rtmp:
        """An application."""
        return Rtmp(SUT_GENERATOR_SIDE_ADDRESS, 1935, cell, "film", is_live=cell == "live")

    def inside(self, *argv: str) -> list[str]:
        """A command in the image."""
        return [*_ENTER, "sh", str(self.client.directory), str(self.root), _WORK, *argv]


@dataclass(frozen=True)
class Reading:
    """One run of many viewers of ours, one of ours, and rtmpdump's."""

    ours: OfACrowd
    theirs_per_cpu: float

    @property
    def ratio(self) -> float:
        """Ours over theirs."""
        return self.ours.viewers_per_cpu / self.theirs_per_cpu


@contextmanager
def serving() -> Iterator[Place]:
    """nginx-rtmp."""
    host = LocalHost()

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    image = rootfs.build(host, "bench-rtmp", _PACKAGES, say)
    film = films.made(host, _FILM, say) / "film.flv"
    tag = f"{time.monotonic_ns() & 0xFFFF:04x}"
    with opened(host, state_directory() / "ledgers", "bench-rtmp") as ledger, wired(host, ledger, tag, _CPUS) as lab:
        client = Client(host, Confinement(netns=lab.generator.netns, cpus=lab.generator.cpus), lab.directory, 1)
        place = Place(client, image.rootfs, 0)
        host.put(lab.directory / "film.flv", film.read_bytes())
        configuration = _NGINX.format(_WORK, SUT_GENERATOR_SIDE_ADDRESS, place.offer("vod").port)
        host.put(lab.directory / "nginx.conf", configuration.encode())
        nginx = host.spawn(
            place.inside("nginx", "-e", f"{_WORK}/error.log", "-p", _WORK, "-c", f"{_WORK}/nginx.conf"),
            confinement=Confinement(netns=lab.sut.netns, cpus=lab.sut.cpus),
        )
        try:
            _wait(place)
            yield replace(place, server=nginx.pid)
        finally:
            end_session(nginx)


def _sent_bytes(directory: Path) -> float:
    """What nginx says that it has sent by RTMP."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(str(directory / "stat"))
        asked.sendall(b"GET / HTTP/1.0\r\n\r\n")
        said = b"".join(iter(lambda: asked.recv(65536), b""))
    return said_to_be_sent(said.decode())


def said_to_be_sent(page: str) -> float:
    """The same of its page: the first is of all together."""
    found = re.search(r"<bytes_out>(\d+)</bytes_out>", page)
    if found is None:
        raise SystemExit(f"bench.rtmp: nginx does not say what it has sent: {page[:200]}")
    return float(found[1])


def _wait(place: Place) -> None:
    """Until it accepts connections."""
    for _ in range(200):
        with suppress(TrialError):
            if place.client.exchange(place.offer("vod"), b"\x03" + bytes(1536), 1):
                return
        time.sleep(0.05)
    raise SystemExit(f"bench.rtmp: nginx does not answer; see {place.client.directory}/error.log")


def load_of(viewers: int, seconds: int) -> RtmpViewersLoad:
    """Ours. A hundred join in a second: what comes first is a buffer full, and nginx lets 511 wait to be accepted."""
    settings = RtmpViewersSettings(
        viewers=viewers,
        clip_ns=_FILM.duration_ns,
        bitrate_bit_per_s=_FILM.bit_rate,
        join_ns=10**7,
        settle_ns=5 * 10**9,
        time_limit_ns=seconds * 10**9,
    )
    return RtmpViewersLoad(settings)


def ours(place: Place, cell: str, viewers: int, seconds: int) -> Crowd:
    """A crowd of ours."""
    load = load_of(viewers, seconds)
    asked = load.asked(place.offer(cell))
    asked["media"]["rtmp"] |= {"mark": _MARK} if cell == "live" else {}
    crowd = watch(place.client, load.settings, asked, place.count)
    refuse_failures("rtmp", cell, crowd)
    return crowd


def theirs(place: Place, cell: str, count: int, seconds: int) -> float:
    """How many processes of rtmpdump one CPU would carry."""
    offer = place.offer(cell)
    url, live = f"rtmp://{offer.address}:{offer.port}/{cell}", "--live" if cell == "live" else ""
    script = _RTMPDUMP.format(count=count, seconds=seconds, url=url, live=live, work=_WORK)
    command = place.inside("sh", "-c", f"{script}; times")
    done = place.client.host.run(command, timeout_s=300, confinement=place.client.confinement)
    used = re.findall(r"(\d+)m([\d.]+)s", done.text)[-2:]  # of its children, user and system
    cpu_s = sum(60 * int(minutes) + float(rest) for minutes, rest in used)
    media_s = 0.0
    for number in range(count):
        said = (place.client.directory / f"dump.{number}").read_text(errors="replace")
        came = [float(kb) * 8000 / _FILM.bit_rate for kb in re.findall(r"([\d.]+) kB / ", said)]
        if not came or came[-1] < seconds / 2:
            raise SystemExit(f"bench.rtmp: {cell}: rtmpdump got {came[-1:]} in {seconds} s: {said[-300:]}")
        media_s += came[-1]
    return media_s / cpu_s


def measure_once(place: Place, cell: str, options: argparse.Namespace, order: random.Random) -> Reading:
    """A round in one cell."""
    crowds: dict[str, Crowd] = {}
    per_cpu = 0.0
    for what in order.sample(("many", "one", "theirs"), 3):
        if what == "theirs":
            per_cpu = theirs(place, cell, options.processes, options.seconds)
        else:
            crowds[what] = ours(place, cell, options.viewers if what == "many" else 1, options.seconds)
    return Reading(reading(crowds["many"], crowds["one"], options.viewers, _FRAMING), per_cpu)


def measure(options: argparse.Namespace) -> dict[str, list[Reading]]:
    """All readings, by cell."""
    order = random.Random(options.seed)
    readings: dict[str, list[Reading]] = {"vod": [], "live": []}
    with serving() as place:
        for number in range(1, options.rounds + 1):
            readings["vod"].append(measure_once(place, "vod", options, order))
            with publishing(place.client, place.offer("live"), _FILM, _MARK) as publisher:
                readings["live"].append(measure_once(place, "live", options, order))
                published = publisher.report()
                if published.late > published.messages // 100:
                    print(f"round {number}: {published.late} of {published.messages} were sent late", file=sys.stderr)
            print(f"round {number} of {options.rounds}", file=sys.stderr)
    return readings


def summary(readings: dict[str, list[Reading]]) -> list[dict[str, Any]]:
    """One row for each cell: the medians, and whether they are good enough."""
    rows = []
    for cell, told in readings.items():
        middle, ratios = median([reading.ours for reading in told]), [reading.ratio for reading in told]
        ratio, per_cpu = statistics.median(ratios), middle.viewers_per_cpu
        row = {"cell": cell, **asdict(middle), "ratio": ratio, "ratios": [min(ratios), max(ratios)]}
        row |= {"rounds": len(told), "theirs_per_cpu": statistics.median(each.theirs_per_cpu for each in told)}
        is_reached = per_cpu >= PER_CPU and ratio >= OVER_RTMPDUMP and middle.is_good
        rows.append({**row, "told": str(middle), "reached": is_reached})
    return rows


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.rtmp", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=20, help="length of one run")
    parser.add_argument("--viewers", type=int, default=1000, help="of ours, at once")
    parser.add_argument("--processes", type=int, default=50, help="of rtmpdump, at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    expect_several(parser, options.viewers)
    rows = summary(measure(options))
    print(f"{options.viewers} viewers, {options.processes} processes of rtmpdump")
    for row in rows:
        print(
            f"{row['cell']:5}{row['viewers_per_cpu']:7.0f} viewers a CPU (target >= {PER_CPU:.0f}), rtmpdump"
            f"{row['theirs_per_cpu']:6.0f}, ratio{row['ratio']:6.1f} ({row['ratios'][0]:.1f} to {row['ratios'][1]:.1f}"
            f" in {row['rounds']} rounds; target >= {OVER_RTMPDUMP:g}), {row['told']}"
            f"  {'reached' if row['reached'] else 'MISSED'}"
        )
    keep(options.json, {"rounds": options.rounds, "viewers": options.viewers, "rows": rows})
    return 0 if all(row["reached"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
