"""The fairness audit on real instances; and Docker's daemons with and without a userland proxy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import contract
from contract import Place
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.lab.base import Lab
from virtoll.platforms.base import Platform
from virtoll.platforms.bubblewrap import Bubblewrap
from virtoll.platforms.docker import Docker, DockerSettings
from virtoll.platforms.gvisor import Gvisor
from virtoll.platforms.lxc import Lxc
from virtoll.platforms.native import Native
from virtoll.platforms.nspawn import Nspawn
from virtoll.platforms.oci import Oci
from virtoll.platforms.openvz_profile import OpenvzProfile
from virtoll.platforms.podman import Podman
from virtoll.platforms.qemu_tcg import QemuTcg
from virtoll.platforms.uml import Uml
from virtoll.record.model import Arm, Audit, PlannedTrial
from virtoll.trial import audit
from virtoll.trial.notes import Notes

pytestmark = pytest.mark.machine

PLATFORMS: dict[str, Platform] = {
    "native": Native(),
    "docker": Docker(),
    "docker-unconfined": Docker(DockerSettings(seccomp="unconfined")),
    "lxc": Lxc(),
    "bubblewrap": Bubblewrap(),
    "nspawn": Nspawn(),
    "openvz-profile": OpenvzProfile(),
    "oci": Oci(),
    "podman": Podman(),
    "gvisor": Gvisor(),
    "uml": Uml(),
    "qemu-tcg": QemuTcg(),
}
# What a kernel may be built without, or a device does not have: everything else must be told.
MAY_BE_UNTOLD = {
    "accelerator",
    "clock_source",
    "disk_cache",
    "disk_io",
    "host.speculation_store_bypass",
    "huge_pages",
    "huge_pages_defrag",
    "lsm_label",
    "machine_type",
    "memory_pages",
    "network_backend",
    "oci_runtime",
    "offloads",
    "seccomp",
    "speculation_indirect_branch",
    "speculation_store_bypass",
}
SENTRY_LACKS = {"mtu", "no_new_privs", "open_files", "queue_length", "workers"}  # these files of /proc and /sys
SERVICE = ["sh", "-c", "sleep 1000 & sleep 1000 & echo; wait"]
SAID = "/tmp/sleepers.log"


@pytest.fixture(scope="module", params=PLATFORMS)
def place(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Place]:
    platform = PLATFORMS[request.param]
    contract.skip_unless_ready(platform)
    image = contract.image()
    with platform.session(lab, image):
        yield Place(lab, image, platform)


def until(condition: Callable[[], bool], within_s: float = 600.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def audited(place: Place, directory: Path) -> Audit:
    arm = Arm(label="x", platform=place.platform.name, network=place.platform.default_network)
    trial = PlannedTrial(id="b01-t0001", block=1, position=1, arm=arm, condition={})
    with place.deployed() as instance:
        instance.services["sleepers"] = instance.agent.spawn(SERVICE, log=SAID)
        until(lambda: instance.agent.tail(SAID, 10) != b"")
        notes = Notes(directory, lambda _phase: None)
        audit.first(set(), trial, instance, notes)
    assert notes.audit is not None
    (phase,) = notes.phases
    print(f"{place.platform.name}: {phase.duration_ns / 1e6:.0f} ms", notes.audit.model_dump_json(indent=1))
    return notes.audit


def test_what_holds_is_told_on_every_platform(place: Place, tmp_path: Path) -> None:
    told = audited(place, tmp_path)
    untold = {key for key in told.missing if not key.startswith("mitigation.")}
    is_sentry = place.platform.name == "gvisor"
    assert untold <= MAY_BE_UNTOLD | (SENTRY_LACKS if is_sentry else set())
    assert told.found["cpus"] == "1"
    assert told.found["temporary_files"] == "the root file system"
    if is_sentry:
        assert told.found["accelerator"] == "ptrace"
        assert told.found["kernel"] != os.uname().release
    else:
        assert told.found["workers"] == "3 processes, 3 threads"
        assert told.found["mtu"] == "1500"
    if isinstance(place.platform, Docker):
        assert told.found["seccomp"] == ("filter" if place.platform.settings.seccomp == "default" else "off")
    if place.platform.name in ("native", "bubblewrap"):
        assert told.found["seccomp"] == "off"
    if place.platform.name == "nspawn":
        assert told.found["seccomp"] == "filter"
    if place.platform.name == "qemu-tcg":
        assert told.found["accelerator"] == "tcg"
        assert (told.found["machine_type"], told.found["disk_io"]) == ("pc", "threads")
        assert told.found["offloads"]


def test_arms_with_and_without_a_userland_proxy_live_in_one_lab(lab: Lab) -> None:
    image = contract.image()
    platforms = [Docker(), Docker(DockerSettings(userland_proxy=False))]
    with ExitStack() as sessions:
        for platform in platforms:
            contract.skip_unless_ready(platform)
            sessions.enter_context(platform.session(lab, image))
        for platform in [*platforms, *platforms]:
            with contract.deployed(lab, image, platform, "published") as instance:
                contract.is_reached(lab, instance)
                helpers = Cgroup(instance.accounting.parts["helpers"], hierarchies()).pids()
                names = {Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() for pid in helpers}
                proxies = {"docker-proxy"} if platform.settings.userland_proxy else set()
                assert names == {"containerd-shim", *proxies}
                assert ("--userland-proxy=false" in instance.facts["dockerd"]) != platform.settings.userland_proxy
