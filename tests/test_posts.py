"""Both sides of a lab whose generator is on another machine, wired upon the two ends of a cable: in a network namespace
and a /run of their own, which end with the program that wires them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import virtoll
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Wanted
from virtoll.run.stage import built

pytestmark = pytest.mark.machine
HERE = Path(__file__).parent

# HERE's and THERE's devices are a0 and b0, or c0, which is on another cable.
_CABLES = """
mount -t tmpfs run /run
mkdir /run/sys
mount -t sysfs sys /run/sys
ip link set lo up
ip link add a0 type veth peer name b0
ip link add c0 type veth peer name d0
for device in a0 b0 c0 d0; do ip link set $device mtu 9000 up; done
exec "$@"
"""
_PROGRAM = r"""
import json, os, signal, subprocess, sys
from pathlib import Path
from patience import wait_for_boots
from virtoll.errors import HostError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab import losses, posts
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import free_tag, wired
from dataclasses import replace
from virtoll.loads.command import CommandLoad, CommandSettings
from virtoll.loads.reading import Reading
from virtoll.offers import Http
from virtoll.post import nics, orders
from virtoll.post.clocks import Reading as Clock
from virtoll.post.orders import Order, Standing, part_of
from virtoll.run.by_generator import Posted, expect_linked
from virtoll.run.posting import Post

wait_for_boots()
near, far, deed = sys.argv[1:]
posts._REACH_S = 480 if far == "b0" else 0  # no clock decides a test
host, post = LocalHost(), Post("there")

class Direct:
    where = "the post here"
    def ask(self, order):
        return orders.unpacked(post.answer(order.model_dump_json().encode()))

def links(netns):
    told = json.loads(host.run(["ip", "-n", netns, "-j", "-d", "link"]).text)
    return {each["ifname"]: [each.get("linkinfo", {}).get("info_kind", ""), each["mtu"]] for each in told}

def wired_whole(posted):
    uplink = posted.uplink()
    cpus, root = cpu_plan(host, 1), Path("/run/sys/class/net")
    queue = root / near / "queues/rx-0/rps_cpus"
    before, found = queue.read_text(), {}
    with ledgers.opened(host, ledgers.state_directory() / "ledger", "run") as ledger:
        with (
            nics.steered(ledger, near, cpus.instance, root),
            wired(host, ledger, tag := free_tag(), cpus, uplink=uplink) as lab,
            posted.stood(lab, uplink) as whole,
        ):
            if deed == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            ask = "import socket; s = socket.create_connection(('198.18.1.2', 80), 30); print(s.recv(9).decode())"
            serve = (
                "import socket; s = socket.create_server(('198.18.1.2', 80)); print('there', flush=True);"
                "c, _ = s.accept(); c.sendall(b'from afar'); c.close()"
            )
            (far_netns,) = [each.name for each in Path("/run/netns").iterdir() if each.name.endswith("-gen")]
            there = Confinement(netns=far_netns)
            if deed == "programs":
                return driven(whole)
            argv = [sys.executable, "-c", serve]
            server = host.spawn(argv, stdout=subprocess.PIPE, confinement=there)
            server.stdout.readline()
            # A native service listens in the SUT's namespace; here the SUT asks.
            said = host.run([sys.executable, "-c", ask], confinement=Confinement(netns=lab.sut.netns)).text
            server.wait()
            found |= {"said": said, "sut": links(lab.sut.netns), "far": links(far_netns)}
            found |= {"losses": losses.losses(whole), "steered": queue.read_text() != before}
            found |= {"generators": len(lab.generators)}
    found["back"] = queue.read_text() == before
    return found

def driven(lab):
    words = ("busybox", "sh", "-c", "busybox cat /tmp/seeded; busybox sleep 1; echo did 7 units on {address}")
    settings = CommandSettings(
        loop="closed", run=words, work=Reading(r"did (\d+) units"), packages=("busybox-static",), warm_up_ns=0,
        seed=("busybox", "sh", "-c", "echo by the first >/tmp/seeded; echo 1 seeded"), seeded=Reading(r"(\d+) seeded"),
    )
    load, offer = CommandLoad(settings), Http("198.18.1.1", 80)
    posted.channel.ask(Order(kind="prepare", loads=[part_of(load)]))
    works = []
    for number in (1, 2):
        directory = lab.directory / f"t{number}"
        directory.mkdir()
        client = replace(lab.far.client(directory, {}), is_seeded=number == 2)
        with client.opened(load, offer) as session:
            works.append(session.measure().window.work)
        said = (directory / "load.txt").read_text()
    return {"works": works, "said": said, "brings": client.brings_programs}

try:
    standing = Direct().ask(Order(kind="look", nic=far)).read(Standing)
    assert not standing.problems, standing.problems
    clock = Clock(0, 0, 1)
    posted = Posted(Direct(), "ssh://root@there", nics.nic(host, near), standing, clock, "")
    expect_linked(posted)
    print(json.dumps(wired_whole(posted)))
except HostError as error:
    print(json.dumps({"refused": str(error)}))
finally:
    post.end()
print(json.dumps(sorted(each.name for each in Path("/run/netns").glob("*")) if Path("/run/netns").exists() else []))
"""


def ran(state: Path, near: str, far: str, deed: str = "") -> tuple[int, Sequence[Any]]:
    """What the program prints, a line each."""
    program = state.parent / "program.py"
    program.write_text(_PROGRAM)
    paths = [str(HERE), str(Path(virtoll.__file__).parent.parent)]
    environment = {**os.environ, "VIRTOLL_STATE": str(state), "PYTHONPATH": ":".join(paths)}
    argv = [sys.executable, str(program), near, far, deed]
    apart = ["unshare", "--net", "--mount", "sh", "-e", "-c", _CABLES, "sh", *argv]
    done = subprocess.run(apart, env=environment, capture_output=True, text=True)
    assert done.stderr == "" or deed, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def left(state: Path) -> list[str]:
    return sorted(path.name for path in state.iterdir() if path.name not in ("ledger", "lock"))


def test_both_sides_stand_upon_one_cable_and_go(tmp_path: Path) -> None:
    code, (found, names) = ran(tmp_path / "state", "a0", "b0")
    assert code == 0
    assert found["said"] == "from afar"
    assert (found["sut"]["gen0"], found["far"]["eth0"]) == (["macvlan", 1500], ["macvlan", 1500]), "as any instance's"
    assert found["generators"] == 0
    assert {
        "sut gen0 rx_errors",
        "generator eth0 rx_errors",
        "nic a0 tx_dropped",
        "generator nic b0 tx_dropped",
    } <= set(found["losses"])
    # What CPUs' queues lost is of the whole machine, and since its boot.
    assert not any(count for name, count in found["losses"].items() if not name.endswith(" backlog")), found["losses"]
    assert not {"sut gen0 rx_dropped", "generator eth0 rx_dropped"} & set(found["losses"]), "broadcasts for nobody"
    assert found["steered"]
    assert found["back"]
    assert names == []
    assert left(tmp_path / "state") == []


def test_a_loads_own_programs_run_there_for_as_long_as_a_service_lives(tmp_path: Path) -> None:
    try:  # while there is a network, for the cables are one without a mirror
        built(LocalHost(), "post-load", Wanted(packages=("busybox-static",)), lambda _line: None)
    except HostError as error:
        pytest.skip(str(error))
    code, (found, names) = ran(tmp_path / "state", "a0", "b0", "programs")
    assert code == 0
    assert found["works"] == [7, 7]
    assert found["brings"]
    assert "did 7 units on 198.18.1.1" in found["said"]
    assert "by the first" in found["said"], "the second session has the root filesystem that the first has seeded"
    assert "1 seeded" not in found["said"]
    assert names == []
    assert left(tmp_path / "state") == []


def test_two_cables_are_no_link(tmp_path: Path) -> None:
    code, (found, names) = ran(tmp_path / "state", "a0", "c0")
    assert code == 0
    assert "nothing comes back over c0" in found["refused"]
    assert names == []
    assert left(tmp_path / "state") == []


def test_what_a_killed_one_left_is_cleaned(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code, _ = ran(state, "a0", "b0", "killed")
    assert code == -9
    assert list((state / "ledger").iterdir())
    code, (found, _) = ran(state, "a0", "b0")
    assert code == 0
    assert found["said"] == "from afar"
    assert left(state) == []
    assert list((state / "ledger").iterdir()) == []
