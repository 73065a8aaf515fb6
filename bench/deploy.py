"""What deploying through virtoll adds to the runtime's own commands: `python -m bench.deploy [--json FILE]`.

One round deploys and removes each kind of instance once through virtoll (lab wired; from the instance's directory
and cgroups to an agent that answers, and back to nothing) and once by the runtime's own tools with the same image,
limits and network: `docker run -d` and `docker rm -f` on the same private dockerd, `lxc-start` and `lxc-stop -k` with
LXC's own overlay. Order within a round is random; differences are taken within a round. Printed: the median and the
middle half of the differences, and the median of each.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench._figures import keep
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import hierarchies
from virtoll.hosts.ledger import opened, state_directory
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired
from virtoll.networks.base import common_kind, network_modes
from virtoll.offers import Port
from virtoll.platforms import dockerd
from virtoll.platforms.base import Platform
from virtoll.platforms.docker import Docker
from virtoll.platforms.lxc import Lxc
from virtoll.study.limits import Limits

_LIMITS = Limits(vcpus=1, memory_bytes=256 * 1024**2, pids=128)
_PORT = 8080
_TARGET_MS = 25.0


@dataclass(frozen=True)
class Arm:
    """A platform in a network mode, and the runtime's own way to the same instance and back."""

    name: str
    platform: Platform
    network: str
    by_hand: Callable[[], None]


def _by_virtoll(lab: Lab, image: Image, arm: Arm) -> None:
    mode = network_modes()[arm.network]
    kind = common_kind(arm.platform.name, arm.platform.kinds, mode)
    assert isinstance(kind, str)
    directory = lab.directory / f"bench-{secrets.token_hex(3)}"
    with ExitStack() as stack:
        stack.enter_context(lab.ledger.owning("directory", str(directory)))
        directory.mkdir()
        attachment = stack.enter_context(mode().attach(lab, kind, (Port(_PORT),)))
        stack.enter_context(arm.platform.deploy(lab, image, _LIMITS, attachment, directory))


def _docker_run(lab: Lab, daemon: dockerd.Daemon, tag: str, *network: str) -> None:
    docker = ["docker", f"--host=unix://{daemon.engine.path}"]
    limits = [f"--memory={_LIMITS.memory_bytes}", f"--memory-swap={_LIMITS.memory_bytes}", "--cpus=1"]
    limits += [f"--pids-limit={_LIMITS.pids}", f"--cpuset-cpus={min(lab.sut.cpus)}", "--log-driver=none"]
    limits += [f"--cgroup-parent=/{lab.cgroup}"]  # the same competitors for the CPU as virtoll's own
    started = lab.host.run([*docker, "run", "-d", "-i", *limits, *network, tag, "/virtoll/agent", "serve"])
    lab.host.run([*docker, "rm", "-f", started.text])


def _lxc_start(lab: Lab, image: Image) -> None:
    directory = lab.directory / f"hand-{secrets.token_hex(3)}"
    (directory / "upper").mkdir(parents=True)
    config = f"""
lxc.include = /usr/share/lxc/config/common.conf
lxc.rootfs.path = overlay:{image.rootfs}:{directory}/upper
lxc.init.cmd = /usr/bin/sleep 1000
lxc.apparmor.profile = unconfined
lxc.net.0.type = none
lxc.cgroup.dir = {lab.cgroup}
lxc.cgroup.cpuset.cpus = {min(lab.sut.cpus)}
lxc.cgroup.cpu.cfs_quota_us = 100000
lxc.cgroup.memory.limit_in_bytes = {_LIMITS.memory_bytes}
lxc.cgroup.pids.max = {_LIMITS.pids}
lxc.cgroup2.cpuset.cpus = {min(lab.sut.cpus)}
lxc.cgroup2.memory.max = {_LIMITS.memory_bytes}
"""
    (directory / "config").write_text(config)
    name = ["-P", str(directory), "-n", directory.name]
    there = Confinement(netns=lab.sut.netns)  # LXC's command socket is abstract, hence of one network namespace
    lab.host.run(["lxc-start", *name, "-f", str(directory / "config")], confinement=there)
    lab.host.run(["lxc-stop", *name, "-k"], confinement=there)
    shutil.rmtree(directory)


@contextmanager
def _arms(lab: Lab, image: Image) -> Iterator[list[Arm]]:
    with dockerd.running(lab) as daemon:
        tag = daemon.import_image(image)
        docker, lxc = Docker(), Lxc()
        if hierarchies().version == 1:  # LXC fills only the topmost of its cpusets
            (hierarchies().directory("cpuset", lab.cgroup) / "cgroup.clone_children").write_text("1")
        publish = f"--publish=198.18.1.1:{_PORT}:{_PORT}"
        yield [
            Arm("docker+host", docker, "host", lambda: _docker_run(lab, daemon, tag, "--network=host")),
            Arm("docker+published", docker, "published", lambda: _docker_run(lab, daemon, tag, publish)),
            Arm("lxc+host", lxc, "host", lambda: _lxc_start(lab, image)),
        ]


def _milliseconds(action: Callable[[], None]) -> float:
    start_ns = time.monotonic_ns()
    action()
    return (time.monotonic_ns() - start_ns) / 1e6


def measure(rounds: int, seed: int) -> dict[str, list[tuple[float, float]]]:
    """Per arm and round: milliseconds through virtoll, and by hand. The first round warms up and is not kept."""
    host, order = LocalHost(), random.Random(seed)
    image = rootfs.build(host, "proxy", ("nginx", "squid"), lambda line: print(line, file=sys.stderr))
    taken: dict[str, list[tuple[float, float]]] = {}
    tag = f"{os.getpid() & 0xFFFF:04x}"
    with (
        opened(host, state_directory() / "ledgers", f"bench-{tag}") as ledger,
        wired(host, ledger, tag, cpu_plan(host, 1)) as lab,
        _arms(lab, image) as arms,
    ):
        for number in range(rounds + 1):
            for arm in order.sample(arms, len(arms)):
                ways: dict[str, Callable[[], None]] = {
                    "virtoll": partial(_by_virtoll, lab, image, arm),
                    "hand": arm.by_hand,
                }
                took = {}
                for way in order.sample(list(ways), 2):
                    with _rules(lab) if way == "hand" and arm.network == "published" else nullcontext():
                        took[way] = _milliseconds(ways[way])
                if number:
                    taken.setdefault(arm.name, []).append((took["virtoll"], took["hand"]))
    return taken


@contextmanager
def _rules(lab: Lab) -> Iterator[None]:
    """Docker's firewall rules, which its own commands find in place."""
    with dockerd.running(lab) as daemon, daemon.publishing():
        yield


def summary(taken: dict[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """One row an arm: the median difference, its middle half, the medians, whether the target is reached."""
    rows = []
    for name, pairs in taken.items():
        differences = [ours - theirs for ours, theirs in pairs]
        low, median, high = statistics.quantiles(differences, n=4, method="inclusive")
        rows.append(
            {
                "arm": name,
                "difference_ms": median,
                "quartiles_ms": [low, high],
                "virtoll_ms": statistics.median(ours for ours, _ in pairs),
                "by_hand_ms": statistics.median(theirs for _, theirs in pairs),
                "reached": median <= _TARGET_MS,
            }
        )
    return rows


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.deploy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    rows = summary(measure(options.rounds, options.seed))
    print(f"deploy and remove, target: at most {_TARGET_MS:g} ms more than by hand")
    print(f"{'arm':20}{'difference ms':>14}  {'middle half':20}{'virtoll ms':>11}{'by hand ms':>11}")
    for row in rows:
        spread = f"{row['quartiles_ms'][0]:+.0f} to {row['quartiles_ms'][1]:+.0f}"
        figures = f"{row['virtoll_ms']:11.0f}{row['by_hand_ms']:11.0f}  {'reached' if row['reached'] else 'MISSED'}"
        print(f"{row['arm']:20}{row['difference_ms']:+14.0f}  {spread:20}{figures}")
    keep(options.json, {"rounds": options.rounds, "seed": options.seed, "rows": rows})
    return 0 if all(row["reached"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
