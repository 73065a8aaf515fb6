"""What every platform must do, of the driver of Proxmox VE's containers above a stand-in for its programs: no host was
at hand.

The stand-in's container is one of unshare(1) in a control group of Linux, of either version, on ext4 with a journal
(`proxmox_double`), and privileged. So this shows what the driver does about an instance, and nothing of Proxmox itself.
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
import proxmox_double
from contract import LIMITS, Place
from patience import PATIENT
from virtoll.hosts import ledger as ledgers
from virtoll.hosts import proxmox
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.lab.wiring import free_tag
from virtoll.platforms import proxmox_host
from virtoll.platforms.base import Instance
from virtoll.platforms.proxmox_ct import ProxmoxCt, ProxmoxCtSettings
from virtoll.study.limits import Budget

pytestmark = pytest.mark.machine

SMALL = replace(LIMITS, disk_bytes=128 * 1024**2)
PRIVILEGED = ProxmoxCtSettings(unprivileged=False)


@dataclass(frozen=True)
class SmallPlace(Place):
    """Whose instances have a small disk."""

    @contextmanager
    def deployed(self, network: str = "", budget: Budget = "inclusive", slot: int = 0) -> Iterator[Instance]:
        limits = replace(SMALL, budget=budget)
        with contract.deployed(self.lab, self.image, self.platform, network, limits, slot=slot) as instance:
            yield instance


@contextmanager
def proxmox_host_here(state: Path) -> Iterator[None]:
    """This machine, as if it were a Proxmox VE host, whichever version its control groups are of."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", f"{state / 'bin'}:{os.environ['PATH']}")
        patched.setattr(proxmox, "CLUSTER", state / "pve")
        patched.setattr(proxmox, "CONTAINERS", state / "lxc")
        patched.setattr(proxmox_host, "hierarchies", lambda: replace(hierarchies(), version=2))
        patched.setattr(proxmox_host, "processes", lambda _where, group: Cgroup(group, hierarchies()).pids())
        patched.setattr(proxmox_host, "_kinds", {})
        patched.setattr(proxmox_host, "_versions", {})
        yield


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the stand-in keeps all that is Proxmox's."""
    made = tmp_path_factory.mktemp("proxmox") / "state"
    proxmox_double.install(made, namespaces=True)
    with proxmox_host_here(made):
        yield made


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The contract's, in an entry of its own: what tests change in a template must not stay in a cache."""
    return apart(tmp_path_factory.mktemp("image"))


def apart(entry: Path) -> Image:
    """The contract's image, whose derived forms go to ``entry``."""
    shared = contract.image()
    (entry / "rootfs").symlink_to(shared.rootfs)
    return replace(shared, directory=entry)


@pytest.fixture(scope="module")
def place(lab: Lab, image: Image, state: Path) -> Place:
    assert ProxmoxCt(PRIVILEGED).check(lab.host) == []
    assert (state / "bin/pct").exists()
    return SmallPlace(lab, image, ProxmoxCt(PRIVILEGED))


def test_it_answers_its_limits_hold_and_its_cost_is_booked(place: Place) -> None:
    before = leaks.snapshot()
    with place.deployed() as instance:
        contract.answers(instance)
        contract.files_of_any_size_pass(instance)
        contract.is_accounted_for(instance)
        contract.cpu_limit_holds(instance)
        contract.disk_limit_holds(instance)
        contract.pids_limit_holds(instance)
        contract.memory_limit_holds(instance)
        assert instance.facts["disk_limit"].startswith("enforced: limits.disk are free on the container's volume (ext4")
        assert "helpers" not in instance.accounting.parts, "pct exec waits beside the container's group"
    contract.nothing_left(place.lab, before)


@pytest.mark.parametrize("mode", contract.possible(ProxmoxCt()))
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
import contract, test_platform_proxmox_ct_deployed as t
from virtoll.hosts.ledger import opened
from virtoll.hosts.local import LocalHost
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired

host, platform = LocalHost(), t.ProxmoxCt(t.PRIVILEGED)
with (
    t.proxmox_host_here(Path(sys.argv[2])),
    opened(host, Path(sys.argv[1]), "killed") as ledger,
    wired(host, ledger, sys.argv[3], cpu_plan(host, 1)) as lab,
    t.SmallPlace(lab, t.apart(Path(sys.argv[4])), platform).deployed(),
):
    print("up", flush=True)
    time.sleep(600)
"""


def test_clean_removes_what_a_killed_virtoll_left(state: Path, tmp_path: Path) -> None:
    contract.image()
    tag, entry = free_tag(), tmp_path / "image"
    entry.mkdir()
    before = leaks.snapshot()
    command = [sys.executable, "-c", _HOLD, str(tmp_path / "ledger"), str(state), tag, str(entry)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"up\n"
        victim.kill()
    (number,) = [path.stem for path in (state / "run").glob("*.json")]
    removed = ledgers.clean(LocalHost(), tmp_path / "ledger")
    assert [one for one in removed if one.startswith(f"proxmox-ct {number}/")]
    assert [*(state / "pve/lxc").iterdir()] == []
    leaks.assert_nothing_left(before, tag)
