"""The OpenVZ driver against a stand-in for OpenVZ's programs (`vz_double`): no OpenVZ host was at hand.

Here the stand-in's container is a chroot, without namespaces and control groups: nothing of the machine is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import vz_disk
import vz_double
from virtoll.binaries import binary
from virtoll.errors import HostError, PlatformError
from virtoll.hosts import cgroup, ledger, vzctl
from virtoll.hosts.base import Completed, Host
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost
from virtoll.hosts.openvz import parse_status, slice_of
from virtoll.images import ploop
from virtoll.images.base import AGENT, Image
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, network_modes
from virtoll.platforms import openvz, veth
from virtoll.platforms.base import Instance
from virtoll.platforms.openvz import SCRIPTS, UNTRIED, Openvz, OpenvzSettings, kernel_counts, limit_options
from virtoll.record.model import NOT_BOOKED
from virtoll.run import doctor
from virtoll.run.doctor import MachineOffer, PlatformOffer
from virtoll.study.limits import Limits
from virtoll.trial.limits import note_kernel_counts
from virtoll.trial.notes import Notes
from vz_double import VzHost

LIMITS = Limits(vcpus=1, memory_bytes=256 * 1024**2, pids=64, disk_bytes=512 * 1024**2)
ATTACHMENT = Attachment("routed", "veth", "vt-ab12-sut", "198.18.3.10", (), device="vt1")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chroot")
_BUSYBOX = shutil.which("busybox")


@dataclass
class Place:
    """Where the stand-in keeps its containers, and what the driver is given."""

    state: Path
    host: VzHost
    ledger: Ledger
    lab: Lab
    image: Image
    moved: list[tuple[str, str]]

    def calls(self) -> list[list[str]]:
        """What OpenVZ's programs were called with, so far."""
        return vz_double.calls(self.state)

    def containers(self) -> list[str]:
        """Those there are."""
        return [path.stem for path in (self.state / "conf").iterdir()]

    @contextmanager
    def deployed(self, **settings: int) -> Iterator[Instance]:
        """An instance, by the driver."""
        directory = self.lab.directory / "t1"
        directory.mkdir()
        platform = Openvz(OpenvzSettings(**settings))
        with platform.deploy(self.lab, self.image, LIMITS, ATTACHMENT, directory) as instance:
            yield instance


def _image(directory: Path) -> Image:
    """The agent, and what vzctl needs to start it; a link where the host's /sbin/init would be written over."""
    image = Image("tiny", hashlib.sha256(str(directory).encode()).hexdigest(), directory)
    agent = Path(f"{image.rootfs}{AGENT}")
    for path in (agent.parent, *(image.rootfs / name for name in ("bin", "sbin", "dev"))):
        path.mkdir(parents=True)
    shutil.copy(binary("virtoll-agent"), agent)
    assert _BUSYBOX is not None
    shutil.copy(_BUSYBOX, image.rootfs / "bin/busybox")
    for name in ("sh", "sleep", "mkdir", "env", "cat", "echo"):
        (image.rootfs / "bin" / name).symlink_to("busybox")
    (image.rootfs / "sbin/init").symlink_to(directory / "outside")
    return image


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if _BUSYBOX is None:
        pytest.skip("no busybox: the image of these tests is made of it")
    state = tmp_path / "vz"
    programs = vz_double.install(state, namespaces=False)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / "state"))
    moved: list[tuple[str, str]] = []

    @contextmanager
    def no_group(_ledger: Ledger, name: str, **_limits: Any) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(name=name, procs=())

    monkeypatch.setattr(openvz, "owned", no_group)
    monkeypatch.setattr(ploop, "_leave_free", lambda _root, _free_bytes: None)  # it is the host's own disk here
    monkeypatch.setattr(veth, "move_to", lambda _host, attachment, netns: moved.append((attachment.device, netns)))
    host = VzHost(state)
    with ledger.opened(host, tmp_path / "ledger", "t") as kept:
        site = SimpleNamespace(host=host, cpus=frozenset({2}))
        lab = SimpleNamespace(
            host=host,
            ledger=kept,
            run_tag="ab12",
            cgroup="virtoll/ab12",
            sut=site,
            generator=site,
            directory=tmp_path / "lab",
        )
        lab.directory.mkdir()
        yield Place(state, host, kept, cast("Lab", lab), _image(tmp_path / "image"), moved)


@needs_root
def test_a_container_is_made_limited_started_entered_and_destroyed(place: Place) -> None:
    with place.deployed(cpuunits=500) as instance:
        (container,) = place.containers()
        assert instance.is_running()
        assert instance.agent.run(["echo", "inside"]).stdout == b"inside\n"
        assert instance.agent.run(["sh", "-c", "echo >/dev/shm/here"]).returncode == 0
        environment = instance.agent.run(["env"]).stdout.decode().split()
        assert [line.partition("=")[0] for line in environment] == ["PATH"]
        assert place.moved == [("vt1", container)]
        assert instance.accounting.cgroup == f"machine.slice/{container}"
        assert instance.accounting.parts == {"payload": instance.accounting.cgroup}, "helpers lie beside it"
        assert instance.facts[NOT_BOOKED] == "vzctl exec2"
        assert instance.facts["container"]["status"] == "running"
        assert instance.facts["openvz"] == {"vzctl": "vzctl version 7.0.266"}
        assert instance.facts["untried"] == UNTRIED
        listed = json.loads(place.host.run(["prlctl", "list", "-a", "-j"]).text)
        assert [(one["uuid"], one["name"]) for one in listed] == [(f"{{{container}}}", "vt-ab12-t1")]
        known = json.loads((place.state / "conf" / f"{container}.json").read_text())
        assert {name: known["parameters"][name] for name in ("physpages", "swappages", "numproc", "cpus")} == {
            "physpages": "65536",  # 256 MiB of 4 KiB
            "swappages": "0",
            "numproc": "64",
            "cpus": "1",
        }
        assert {name: known["parameters"][name] for name in ("cpulimit", "cpumask", "cpuunits", "onboot")} == {
            "cpulimit": "100",
            "cpumask": "2",
            "cpuunits": "500",
            "onboot": "no",
        }
    assert place.containers() == []
    assert ledger.standing(place.ledger.path.read_text()) == []
    verbs = [call[1] for call in place.calls() if call[0] == "vzctl"]
    assert verbs[:7] == ["status", "create", "set", "set", "start", "exec2", "--version"]
    assert verbs[7:] == ["status", "stop", "status", "destroy"]


@needs_root
def test_no_link_of_the_images_leads_out_of_its_ploop(place: Place, tmp_path: Path) -> None:
    base = ploop.base(place.host, place.image, LIMITS.disk_bytes, SCRIPTS, lambda _line: None)
    assert not (tmp_path / "image/outside").exists()
    packed = place.host.run(["tar", "--extract", "--to-stdout", f"--file={base / 'root.hds'}", "./sbin/init"])
    assert packed.text == SCRIPTS["/sbin/init"].strip()
    assert (place.image.rootfs / "sbin/init").is_symlink(), "and the image is as it was"
    told: list[str] = []
    assert ploop.base(place.host, place.image, LIMITS.disk_bytes, SCRIPTS, told.append) == base
    assert told == [], "made once"


@needs_root
@pytest.mark.parametrize(
    ("verb", "code", "said", "meant"),
    [
        ("create", 46, "Not enough disk space", "the disk is full"),
        ("set", 20, "Invalid parameter", "see vzctl(8)"),
        ("start", 47, "Unable to start init, probably incorrect template", "it needs /bin/sh"),
        ("exec2", 31, "Container is not running", "Container is not running"),
    ],
)
def test_what_fails_is_told_in_vzctls_words_and_nothing_is_left(
    place: Place, verb: str, code: int, said: str, meant: str
) -> None:
    vz_double.fail(place.state, **{verb: (code, said)})
    with pytest.raises(PlatformError) as raised, place.deployed():
        pass
    assert said in raised.value.problem.what
    assert meant in raised.value.problem.what
    assert place.containers() == []
    assert ledger.standing(place.ledger.path.read_text()) == []


@needs_root
def test_one_that_died_under_way_is_cleaned_up_by_the_ledger(place: Place, tmp_path: Path) -> None:
    with place.deployed() as instance:
        (container,) = place.containers()
        left = tmp_path / "left/run.jsonl"
        left.parent.mkdir()
        left.write_text(place.ledger.path.read_text())
        other = json.dumps({"owner": 2**22 + 1, "started": 1})  # of a process that lives no more
        left.write_text("\n".join([other, *left.read_text().splitlines()[1:]]) + "\n")
        assert f"openvz {container}" in ledger.clean(place.host, left.parent)
        assert place.containers() == []
        instance.agent.close()
    assert ledger.standing(place.ledger.path.read_text()) == []


@needs_root
def test_one_that_was_killed_while_it_started_is_unmounted_and_destroyed(place: Place) -> None:
    """Mounted, and not running: vzctl destroys no such container."""
    with place.deployed():
        (container,) = place.containers()
        place.host.run(["vzctl", "stop", container, "--fast"])
        place.host.run(["vzctl", "mount", container])
        assert place.host.run(["vzctl", "status", container]).text.split()[2:] == ["exist", "mounted", "down"]
        with pytest.raises(HostError, match="Container is currently mounted"):
            place.host.run(["vzctl", "destroy", container])
        vzctl.remove(place.host, container)
        assert place.containers() == []
        assert place.host.run(["vzctl", "status", container]).text.split()[2] == "deleted"


@needs_root
def test_one_that_ends_while_it_is_to_be_stopped_is_unmounted_and_destroyed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vzctl stops no container that does not run, and leaves it mounted."""
    run = place.host.run

    def ending(argv: list[str], **options: Any) -> Completed:
        if argv[1] == "stop":
            run(["vzctl", "stop", container, "--fast"])
            run(["vzctl", "mount", container])
        return run(argv, **options)

    with place.deployed():
        (container,) = place.containers()
        monkeypatch.setattr(place.host, "run", ending)
        vzctl.remove(place.host, container)
        assert ["vzctl", "umount", container] in place.calls()
        assert place.containers() == []


def test_a_container_that_is_there_is_nobodys_to_take(place: Place) -> None:
    private, root = place.lab.directory / "p/101", place.lab.directory / "r"
    place.host.run(["vzctl", "create", "101", "--no-hdd", f"--private={private}", f"--root={root}", "--name=theirs"])
    root.mkdir()
    with pytest.raises(HostError, match="exists already"), place.ledger.owning("openvz", "101"):
        pass
    assert place.containers() == ["101"]
    vzctl.remove(place.host, "101")
    vzctl.remove(place.host, "101")  # what is gone is no error
    assert place.containers() == []


def test_a_ploop_is_taken_down_once(place: Place) -> None:
    disk, mounted = place.lab.directory / "disk", place.lab.directory / "mounted"
    for path in (disk, mounted):
        path.mkdir()
    place.host.run(["ploop", "init", "-s", "1024K", "-t", "ext4", str(disk / "root.hds")])
    descriptor = str(disk / ploop.DESCRIPTOR)
    place.host.run(["ploop", "mount", "-m", str(mounted), descriptor])
    for _ in range(2):
        vzctl.unmount_disk(place.host, descriptor)
    vzctl.unmount_disk(place.host, str(disk / "gone.xml"))
    assert [call[1] for call in place.calls()] == ["init", "mount", "umount", "umount"]


def test_limits_are_in_openvzs_units() -> None:
    told = limit_options(replace(LIMITS, vcpus=2), frozenset({3, 1}), 1000)
    assert told[:7] == [
        "--physpages=65536",
        "--swappages=0",
        "--numproc=64",
        "--cpus=2",
        "--cpulimit=200",
        "--cpumask=1,3",
        "--cpuunits=1000",
    ]
    assert {option.partition("=")[2] for option in told[7:]} == {"unlimited"}


_GIB, _MIB = 1024**3, 1024**2


@pytest.mark.parametrize(
    ("used", "free"),
    [
        (5 * _MIB, 256 * _MIB),
        (154 * _MIB, 200 * _MIB),
        (300 * _MIB, 256 * _MIB),
        (0, _GIB),
        (_GIB, 4 * _GIB),
        (0, 40 * _GIB),
    ],
)
def test_what_is_asked_for_is_free_on_the_ext4_that_ploop_makes(tmp_path: Path, used: int, free: int) -> None:
    size = ploop.size_kib(used, free)
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate((size - 2 * 1024) * 1024)  # its partition
    subprocess.run([*vz_disk.MAKE, str(image)], check=True)
    told = subprocess.run(["dumpe2fs", "-h", str(image)], check=True, capture_output=True, text=True).stdout
    (blocks,) = re.findall(r"^Free blocks: +(\d+)$", told, re.MULTILINE)
    left = int(blocks) * 4096 - used - 16 * 1024**2  # which ext4 keeps for itself once it is mounted
    assert free <= left <= 1.02 * free + 50 * _MIB


def test_what_is_free_beyond_the_limit_is_given_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "virtoll").mkdir()
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_blocks=500, f_bfree=310, f_frsize=4096))
    ploop._leave_free(tmp_path, 200 * 4096)
    assert (tmp_path / "virtoll/unused").stat().st_size == 100 * 4096
    with pytest.raises(HostError, match="4096 B less are free on a new ploop"):
        ploop._leave_free(tmp_path, 301 * 4096)


def test_a_ploop_that_would_be_too_small_is_refused_with_what_would_do() -> None:
    with pytest.raises(HostError, match="at least 256 MiB") as raised:
        ploop.size_kib(0, 64 * _MIB)
    (least,) = re.findall(r"(\d+) MiB", raised.value.problem.remedy)
    assert ploop.size_kib(0, int(least) * _MIB) >= 256 * 1024


class _Files(LocalHost):
    """This machine, with some files of another's."""

    def __init__(self, files: dict[str, str]) -> None:
        super().__init__()
        self.files = files

    def read(self, path: Path) -> bytes:
        if (text := self.files.get(str(path))) is None:
            raise HostError(f"cannot read {path}: No such file or directory")
        return text.encode()


FIXTURES = Path(__file__).parent / "fixtures/openvz"
KERNEL = {
    "/proc/vz/vestat": (FIXTURES / "vestat").read_text(),
    "/proc/user_beancounters": (FIXTURES / "user_beancounters").read_text(),
    "/proc/sys/kernel/osrelease": "3.10.0-1160.90.1.vz7.200.7\n",
}


def test_a_machine_that_is_no_openvz_host_is_told_so_with_a_remedy() -> None:
    (problem,) = Openvz().check(LocalHost())
    assert "is not OpenVZ's: there is no /proc/vz/vestat" in problem.what
    assert "OpenVZ 7" in problem.remedy


def test_openvz_6_is_told_from_7(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = Openvz().check(_Files({**KERNEL, "/proc/sys/kernel/osrelease": "2.6.32-042stab145.3\n"}))
    assert "in no control group" in problem.what
    monkeypatch.setattr("shutil.which", lambda _name, path=None: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(openvz, "hierarchies", lambda: cgroup.Hierarchies(1, {"cpu": Path("/c"), "memory": Path("/m")}))
    problems = Openvz().check(_Files(KERNEL))
    assert [problem.what.split()[0] for problem in problems] == ["vzctl", "vzlist", "ploop", "not", "no", "no"]


def test_whoever_looks_is_told_that_it_has_not_run_on_a_live_host() -> None:
    assert "not yet run on a live host" in Openvz.summary
    assert Openvz().untried(LocalHost()) == UNTRIED
    shown = Console(file=io.StringIO(), width=120, record=True)
    offer = PlatformOffer(dict.fromkeys(network_modes(), "ready"), (), Openvz.caveat)
    doctor.show(MachineOffer({"openvz": offer}), shown)
    assert "openvz: its driver is not yet run on a live host" in shown.export_text()


def test_what_limits_have_refused_goes_into_the_record(tmp_path: Path) -> None:
    told = kernel_counts(_Files(KERNEL), "101")
    assert told["beancounters"]["numproc"] == {
        "unit": "things",
        "held": 21,
        "maxheld": 64,
        "barrier": 64,
        "limit": 64,
        "failcnt": 3,
    }
    assert set(told["beancounters"]) == {"numproc", "physpages", "swappages"}
    assert told["vestat"]["used"] == 10_211_000_000
    assert told["vestat"]["clock"] == "nanoseconds"
    assert kernel_counts(_Files(KERNEL), "nobody") == {"beancounters": {}, "vestat": None}
    for files, kept in ((KERNEL, told), ({}, None)):
        notes = Notes(tmp_path, lambda _phase: None)
        host: Host = _Files(files)
        ours = SimpleNamespace(
            kernel_counts=cast("Callable[[], dict[str, Any]]", lambda host=host: kernel_counts(host, "101"))
        )
        note_kernel_counts(notes, cast("Instance", ours))
        assert notes.facts["kernel_counts"] == kept if kept else "cannot read" in notes.facts["kernel_counts"]["untold"]


@pytest.mark.parametrize(
    ("line", "states"),
    [
        ("VEID 101 exist mounted running\n", {"exist", "mounted", "running"}),
        ("VEID 101 exist unmounted down suspended", {"exist", "unmounted", "down", "suspended"}),
        ("CTID 7 deleted unmounted down\n", {"deleted", "unmounted", "down"}),
    ],
)
def test_a_status_is_read(line: str, states: set[str]) -> None:
    assert parse_status(line) == states


@given(st.text() | st.lists(st.sampled_from(["VEID", "101", "exist", "deleted", "running", "\n"])).map(" ".join))
def test_any_status_is_read_or_refused(text: str) -> None:
    try:
        states = parse_status(text)
    except HostError as error:
        assert error.problem.remedy  # noqa: PT017 - either outcome will do
    else:
        assert states & {"exist", "deleted"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "machine.slice"),
        ('VE_ROOT=/vz/root/$VEID\nVE_CGROUP_SLICE="vz.slice"\n', "vz.slice"),
        ("#VE_CGROUP_SLICE=vz.slice\n", "machine.slice"),
        ("VE_CGROUP_SLICE=../../etc\n", "machine.slice"),
        ("VE_CGROUP_SLICE=a.slice\n VE_CGROUP_SLICE=b.slice \n", "b.slice"),
    ],
)
def test_the_slice_is_that_of_the_configuration(text: str, name: str) -> None:
    assert slice_of(text) == name


@given(st.text())
def test_any_configuration_names_a_group(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", slice_of(f"VE_CGROUP_SLICE={text}"))
