"""What every platform must do, of the OpenVZ driver above a stand-in for OpenVZ's programs: no OpenVZ host was at hand.

The stand-in's container is one of unshare(1) in a control group of Linux, on ext4 with a journal (`vz_double`). So this
shows what the driver does about an instance, and nothing of what OpenVZ's kernel does inside.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import contract
import leaks
import vz_double
from contract import LIMITS, Place
from patience import PATIENT
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.lab.wiring import free_tag
from virtoll.platforms.base import Instance
from virtoll.platforms.openvz import Openvz
from virtoll.study.limits import Budget
from vz_double import VzHost

pytestmark = pytest.mark.machine

SMALL = replace(LIMITS, disk_bytes=128 * 1024**2)  # a ploop is copied whole for each instance


@dataclass(frozen=True)
class SmallPlace(Place):
    """Whose instances have a small disk."""

    @contextmanager
    def deployed(self, network: str = "", budget: Budget = "inclusive", slot: int = 0) -> Iterator[Instance]:
        limits = replace(SMALL, budget=budget)
        with contract.deployed(self.lab, self.image, self.platform, network, limits, slot=slot) as instance:
            yield instance


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VzHost]:
    """This machine, as if it were an OpenVZ host."""
    state = tmp_path_factory.mktemp("vz") / "state"
    programs = vz_double.install(state, namespaces=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        yield VzHost(state)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The contract's, in an entry of its own: what the stand-in calls a ploop must not stay in a cache."""
    return apart(tmp_path_factory.mktemp("image"))


def apart(entry: Path) -> Image:
    """The contract's image, whose derived forms go to ``entry``."""
    shared = contract.image()
    (entry / "rootfs").symlink_to(shared.rootfs)
    return replace(shared, directory=entry)


@pytest.fixture(scope="module")
def place(lab: Lab, image: Image) -> Place:
    assert Openvz().check(lab.host) == []
    return SmallPlace(lab, image, Openvz())


def test_it_answers_its_limits_hold_and_its_kernel_tells_what_they_refused(place: Place) -> None:
    before = leaks.snapshot()
    with place.deployed() as instance:
        contract.answers(instance)
        contract.files_of_any_size_pass(instance)
        contract.is_accounted_for(instance)
        contract.cpu_limit_holds(instance)
        contract.disk_limit_holds(instance)
        assert instance.kernel_counts()["beancounters"]["numproc"]["failcnt"] == 0
        contract.pids_limit_holds(instance)
        used_ns = Cgroup(instance.accounting.cgroup, hierarchies()).cpu_ns()
        told = instance.kernel_counts()
        assert told["beancounters"]["numproc"]["failcnt"] > 0
        assert told["beancounters"]["physpages"]["limit"] * 4096 == SMALL.memory_bytes
        assert told["vestat"]["used"] >= (used_ns or 0) > 0
        contract.memory_limit_holds(instance)
        assert "helpers" not in instance.accounting.parts, "vzctl exec2 waits beside the container's group"
    contract.nothing_left(place.lab, before)


@pytest.mark.parametrize("mode", contract.possible(Openvz()))
def test_it_is_reached(place: Place, mode: str) -> None:
    contract.skip_unless_there(mode, "veth")
    with place.deployed(mode) as instance:
        contract.is_reached(place.lab, instance)


def test_instances_live_side_by_side(place: Place) -> None:
    contract.live_side_by_side(place, "routed")


def test_one_that_dies_is_noticed_and_the_next_starts_from_the_image(place: Place) -> None:
    with place.deployed() as instance:
        instance.agent.put("/etc/left", b"behind")
        for pid in Cgroup(instance.accounting.parts["payload"], hierarchies()).pids():
            with suppress(ProcessLookupError):  # it ended with another of them
                os.kill(pid, signal.SIGKILL)
        contract.has_ended(instance)
    with place.deployed() as instance:
        assert instance.agent.run(["test", "-e", "/etc/left"]).returncode == 1
    assert not (place.image.rootfs / "etc/left").exists()


_HOLD = f"""{PATIENT}
import sys, time
from pathlib import Path
import contract, test_platform_openvz_deployed as t
from virtoll.hosts.ledger import opened
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired

host, platform = t.VzHost(Path(sys.argv[2])), t.Openvz()
with opened(host, Path(sys.argv[1]), "killed") as ledger, wired(host, ledger, sys.argv[3], cpu_plan(host, 1)) as lab:
    with t.SmallPlace(lab, t.apart(Path(sys.argv[4])), platform).deployed():
        print("up", flush=True)
        time.sleep(600)
"""


def test_clean_removes_what_a_killed_virtoll_left(host: VzHost, tmp_path: Path) -> None:
    contract.image()
    tag, entry = free_tag(), tmp_path / "image"
    entry.mkdir()
    before = leaks.snapshot()
    command = [sys.executable, "-c", _HOLD, str(tmp_path / "ledger"), str(host.state), tag, str(entry)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"up\n"
        victim.kill()
    (container,) = [path.stem for path in (host.state / "run").glob("*.json")]
    assert f"openvz {container}" in ledgers.clean(host, tmp_path / "ledger")
    assert [*(host.state / "conf").iterdir()] == []
    leaks.assert_nothing_left(before, tag)
