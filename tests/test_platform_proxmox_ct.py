"""The driver of Proxmox VE's containers against a stand-in for its programs (`proxmox_double`): no host was at hand.

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
from rich.console import Console

import proxmox_double
from virtoll.binaries import binary
from virtoll.errors import CommandError, HostError, PlatformError
from virtoll.hosts import ledger, proxmox
from virtoll.hosts.base import Completed
from virtoll.hosts.cgroup import Hierarchies
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost
from virtoll.images import disk, inside
from virtoll.images import proxmox as volumes
from virtoll.images.base import AGENT, Image
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, network_modes
from virtoll.platforms import proxmox_ct, proxmox_host, veth
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.proxmox_ct import SCRIPTS, ProxmoxCt, ProxmoxCtSettings, create_options, raw_lines
from virtoll.platforms.proxmox_host import UNTRIED
from virtoll.probes import idle
from virtoll.record.model import NOT_BOOKED
from virtoll.run import doctor
from virtoll.run.doctor import MachineOffer, PlatformOffer
from virtoll.study.limits import Limits

LIMITS = Limits(vcpus=1, memory_bytes=256 * 1024**2, pids=64, disk_bytes=512 * 1024**2)
ATTACHMENT = Attachment("routed", "veth", "vt-ab12-sut", "198.18.3.10", (), device="vt1")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chroot")
_BUSYBOX = shutil.which("busybox")
_MIB, _GIB = 1024**2, 1024**3
_V2 = Hierarchies(2, dict.fromkeys(("cpu", "cpuset", "memory", "pids"), Path("/c")))


@dataclass
class Place:
    """Where the stand-in keeps its containers, and what the driver is given."""

    state: Path
    host: LocalHost
    ledger: Ledger
    lab: Lab
    image: Image
    moved: list[tuple[str, int]]

    def calls(self, program: str = "pct") -> list[list[str]]:
        """What a program was called with, so far."""
        return [call[1:] for call in proxmox_double.calls(self.state) if call[0] == program]

    def containers(self) -> list[str]:
        """Those there are."""
        return [path.stem for path in (self.state / "pve/lxc").iterdir()]

    def configuration(self, number: str) -> Path:
        """Where what it is to be is kept."""
        return self.state / "pve/lxc" / f"{number}.conf"

    @contextmanager
    def deployed(self, **settings: Any) -> Iterator[Instance]:
        """An instance, by the driver."""
        directory = self.lab.directory / "t1"
        directory.mkdir()
        platform = ProxmoxCt(ProxmoxCtSettings(**settings))
        with platform.deploy(self.lab, self.image, LIMITS, ATTACHMENT, directory) as instance:
            yield instance

    def nothing_is_left(self) -> None:
        """Neither of Proxmox's nor in the ledger."""
        assert self.containers() == []
        assert [*(self.state / "volumes").iterdir()] == []
        assert ledger.standing(self.ledger.path.read_text()) == []


def _image(directory: Path) -> Image:
    """The agent, and what is needed to start it; links where the template's own files come."""
    image = Image("tiny", hashlib.sha256(str(directory).encode()).hexdigest(), directory)
    agent = Path(f"{image.rootfs}{AGENT}")
    for path in (agent.parent, *(image.rootfs / name for name in ("bin", "usr/bin", "dev"))):
        path.mkdir(parents=True)
    shutil.copy(binary("virtoll-agent"), agent)
    assert _BUSYBOX is not None
    shutil.copy(_BUSYBOX, image.rootfs / "bin/busybox")
    for name in ("sh", "sleep", "env", "cat", "echo"):
        (image.rootfs / "bin" / name).symlink_to("busybox")
    for place in (*SCRIPTS, "/virtoll/unused"):
        Path(f"{image.rootfs}{place}").symlink_to(directory / "outside")
    return image


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Proxmox VE host."""
    made = tmp_path / "proxmox"
    programs = proxmox_double.install(made, namespaces=False)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(proxmox, "CLUSTER", made / "pve")
    monkeypatch.setattr(proxmox, "CONTAINERS", made / "lxc")
    monkeypatch.setattr(proxmox_host, "hierarchies", lambda: _V2)
    for kept in ("_kinds", "_versions"):
        monkeypatch.setattr(proxmox_host, kept, {})
    return made


@pytest.fixture
def place(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if _BUSYBOX is None:
        pytest.skip("no busybox: the image of these tests is made of it")
    moved: list[tuple[str, int]] = []

    @contextmanager
    def no_group(_ledger: Ledger, name: str, **_limits: Any) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(name=name, procs=())

    monkeypatch.setattr(proxmox_ct, "owned", no_group)
    monkeypatch.setattr(proxmox_host, "processes", lambda _where, group: [proxmox_double.init_of(state, group)])
    monkeypatch.setattr(volumes, "leave_free", lambda *_told, **_options: "ext4")  # it is the host's own disk here
    monkeypatch.setattr(veth, "move_in", lambda _host, attachment, pid: moved.append((attachment.device, pid)))
    host = LocalHost()
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
    with place.deployed(cpuunits=50) as instance:
        (number,) = place.containers()
        assert 900_000_000 <= int(number) <= 999_999_999
        assert instance.is_running()
        assert instance.agent.run(["echo", "inside"]).stdout == b"inside\n"
        environment = instance.agent.run(["env"]).stdout.decode().split()
        assert [line.partition("=")[0] for line in environment] == ["PATH"]
        assert [device for device, _pid in place.moved] == ["vt1"]
        assert instance.accounting.cgroup == f"lxc/{number}"
        assert instance.accounting.parts == {"payload": instance.accounting.cgroup}, "helpers lie beside it"
        assert instance.accounting.is_disk_elsewhere
        assert "pct exec" in instance.facts[NOT_BOOKED]
        assert instance.facts["proxmox"] == "8.4.1"
        assert instance.facts["untried"] == UNTRIED
        assert instance.facts["storage"] == "lvmthin"
        lines = place.configuration(number).read_text().splitlines()
        assert instance.facts["configuration"] == lines
        known = dict(line.split(": ", 1) for line in lines[1:])
        assert lines[0] == "#virtoll, run ab12: t1"
        assert {name: known[name] for name in ("memory", "swap", "cores", "cpulimit", "cpuunits", "unprivileged")} == {
            "memory": "256",
            "swap": "0",
            "cores": "1",
            "cpulimit": "1",
            "cpuunits": "50",
            "unprivileged": "1",
        }
        assert {name: known[name] for name in ("lxc.cgroup2.cpuset.cpus", "lxc.cgroup2.pids.max", "hostname")} == {
            "lxc.cgroup2.cpuset.cpus": "2",
            "lxc.cgroup2.pids.max": "64",
            "hostname": "instance",
        }
        assert not [line for line in lines if re.match(r"net\d", line)], "no device of Proxmox's own"
        assert re.fullmatch(r"virtoll-[0-9a-f]{16}", known["tags"])
    place.nothing_is_left()
    verbs = [call[0] for call in place.calls()]
    assert verbs == ["create", "start", "exec", "status", "stop", "destroy"]


@needs_root
def test_nothing_of_the_images_is_where_the_templates_own_files_come(place: Place, tmp_path: Path) -> None:
    packed = volumes.template(place.host, place.image, SCRIPTS, lambda _line: None)
    listed = place.host.run(["tar", "--list", "--verbose", "--numeric-owner", "--file", str(packed)]).text.splitlines()
    of_ours = {line.split()[-1]: line.split()[:2] for line in listed if "./virtoll/" in line and " -> " not in line}
    assert of_ours["./virtoll/init"] == of_ours["./virtoll/enter"] == ["-rwxr-xr-x", "0/0"]
    assert not [line for line in listed if "outside" in line]
    assert {"./proc", "./sys"} <= {line.split()[-1].rstrip("/") for line in listed}
    told: list[str] = []
    assert volumes.template(place.host, place.image, SCRIPTS, told.append) == packed
    assert told == [], "made once"
    assert {path.name for path in packed.parent.iterdir()} >= {packed.name}
    assert not [path for path in packed.parent.iterdir() if "scripts" in path.name]
    assert not (tmp_path / "image/outside").exists()


@needs_root
@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("create", "unable to create CT 105 - no space left on volume group"),
        ("start", "startup for container '105' failed"),
        ("exec", "container '105' not running!"),
    ],
)
def test_what_fails_is_told_in_proxmoxs_words_and_nothing_is_left(place: Place, verb: str, said: str) -> None:
    proxmox_double.tell(place.state, fails={verb: (255, said)})
    with pytest.raises(PlatformError) as raised, place.deployed():
        pass
    assert said in raised.value.problem.what
    assert raised.value.problem.remedy
    place.nothing_is_left()


@needs_root
def test_one_that_died_under_way_is_cleaned_up_by_the_ledger(place: Place, tmp_path: Path) -> None:
    with place.deployed() as instance:
        (number,) = place.containers()
        left = tmp_path / "left/run.jsonl"
        left.parent.mkdir()
        other = json.dumps({"owner": 2**22 + 1, "started": 1})  # of a process that lives no more
        left.write_text("\n".join([other, *place.ledger.path.read_text().splitlines()[1:]]) + "\n")
        (removed,) = ledger.clean(place.host, left.parent)
        assert removed.startswith(f"proxmox-ct {number}/virtoll-")
        assert place.containers() == []
        instance.agent.close()
    place.nothing_is_left()


@needs_root
def test_one_that_was_killed_while_pct_made_it_is_destroyed_with_its_disk(place: Place) -> None:
    """Proxmox has kept nothing of it but a lock, and no configuration names its disk."""
    proxmox_double.tell(place.state, fails={"killed": [0, ""]})
    with pytest.raises(PlatformError, match="pct create ended with -9"), place.deployed():
        pass
    assert [call[0] for call in place.calls()] == ["create", "unlock", "status", "destroy"]
    place.nothing_is_left()


GUEST = proxmox.Guest(912_345_678, "virtoll-0123456789abcdef")


def _conf(state: Path, text: str, directory: str = "nodes/pve1/lxc") -> Path:
    path = state / "pve" / directory / f"{GUEST.number}.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "tags: theirs\nhostname: instance\n",
        "hostname: instance\nmemory: 512\n",
        "tags: virtoll-0123456789abcdee\nlock: create\n",
        "lock: create\nrootfs: local-lvm:vm-1-disk-0\n",
        "hostname: theirs\n[snap]\ntags: virtoll-0123456789abcdef\n",
        "#tags: virtoll-0123456789abcdef\nhostname: theirs\n",
    ],
)
def test_a_number_that_became_somebody_elses_is_left_alone(state: Path, text: str) -> None:
    path = _conf(state, text)
    proxmox.remove_container(LocalHost(), GUEST.name)
    assert path.read_text() == text
    assert not (state / "calls").exists(), "nobody has asked Proxmox for anything"


@pytest.mark.parametrize("directory", ["nodes/pve1/qemu-server", "nodes/other/lxc", "nodes/other/qemu-server"])
def test_a_number_that_anybody_has_in_the_cluster_is_nobodys_to_take(
    state: Path, directory: str, tmp_path: Path
) -> None:
    assert not proxmox.is_there(LocalHost(), GUEST.name)
    _conf(state, "hostname: theirs\n", directory)
    assert proxmox.is_there(LocalHost(), GUEST.name)
    with ledger.opened(LocalHost(), tmp_path / "ledger", "t") as kept:
        with pytest.raises(HostError, match="exists already"), kept.owning("proxmox-ct", GUEST.name):
            pass
        assert ledger.standing(kept.path.read_text()) == []


@pytest.mark.parametrize("tags", [GUEST.tag, f"mine;{GUEST.tag}", f"{GUEST.tag},other"])
@pytest.mark.parametrize("lock", ["", "lock: destroyed\n", "lock: mounted\n"])
def test_one_of_ours_is_destroyed_whatever_pct_was_at(state: Path, tags: str, lock: str) -> None:
    _conf(state, f"{lock}rootfs: local-lvm:x\ntags: {tags}\n")
    proxmox.remove_container(LocalHost(), GUEST.name)
    assert not proxmox.is_there(LocalHost(), GUEST.name)
    verbs = [call[1] for call in proxmox_double.calls(state)]
    assert verbs == ([*(["unlock"] if lock else []), "status", "destroy"])
    proxmox.remove_container(LocalHost(), GUEST.name)  # what is gone is no error


@pytest.mark.parametrize("text", ["", "lock: create\n", "lock: destroyed\n"])
def test_one_that_is_half_made_or_half_destroyed_is_known_by_its_number(state: Path, text: str) -> None:
    _conf(state, text)
    (state / f"volumes/vm-{GUEST.number}-disk-0").mkdir()
    proxmox.remove_container(LocalHost(), GUEST.name)
    assert not proxmox.is_there(LocalHost(), GUEST.name)
    assert [*(state / "volumes").iterdir()] == []


def test_one_that_others_back_up_meanwhile_is_left_to_the_next_clean(state: Path) -> None:
    _conf(state, f"lock: backup\ntags: {GUEST.tag}\n")
    with pytest.raises(CommandError, match=r"CT is locked \(backup\)"):
        proxmox.remove_container(LocalHost(), GUEST.name)
    assert proxmox.is_there(LocalHost(), GUEST.name)


def test_one_that_was_moved_to_another_node_is_told_and_not_forgotten(state: Path) -> None:
    _conf(state, f"tags: {GUEST.tag}\n", "nodes/other/lxc")
    with pytest.raises(CommandError, match="does not exist"):
        proxmox.remove_container(LocalHost(), GUEST.name)


def test_a_disk_that_a_killed_pct_left_mounted_is_unmounted(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _conf(state, f"tags: {GUEST.tag}\n")
    root = f"{state}/lxc/{GUEST.number}/rootfs"
    host, done = LocalHost(), []
    run = host.run

    def unmounting(argv: list[str], **options: Any) -> Completed:
        done.append(argv)
        return run(["true"] if argv[0] == "umount" else argv, **options)

    monkeypatch.setattr(host, "run", unmounting)
    mounted = [f"22 1 253:1 / {root} rw - ext4 /dev/x rw\n".encode(), b""]
    monkeypatch.setattr(proxmox, "mount_points", lambda _data: {root} if mounted.pop(0) else set())
    proxmox.remove_container(host, GUEST.name)
    assert ["umount", "--recursive", "--", root] in done
    assert [argv[0] for argv in done[-2:]] == ["umount", "pct"], "before the disk goes"


def test_without_the_clusters_files_nothing_counts_as_gone(state: Path) -> None:
    """No file tells of any guest then, and what stands in the ledger must go on standing there."""
    (state / "pve/.members").unlink()
    for ask in (proxmox.is_there, proxmox.remove_container):
        with pytest.raises(HostError, match="cluster file system is not mounted") as raised:
            ask(LocalHost(), GUEST.name)
        assert "pve-cluster" in raised.value.problem.remedy


@pytest.mark.parametrize(
    "said",
    [
        "can't lock file '/run/lock/lxc/pve-config-105.lock' - got timeout",
        "unable to destroy CT 105 - container is running",
    ],
)
def test_what_a_pct_that_lives_on_is_still_at_is_waited_for(
    state: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """Its work is done by a process beside it, which is not killed with it: one `virtoll clean` was not enough."""
    _conf(state, f"tags: {GUEST.tag}\n")
    monkeypatch.setattr(proxmox, "_POLL_S", 0.01)
    host = LocalHost()
    refused: list[list[str]] = []
    run = host.run

    def busy_at_first(argv: list[str], **options: Any) -> Completed:
        if argv[1] == "destroy" and len(refused) < 2:
            refused.append(argv)
            raise CommandError(f"exit 255 from: pct destroy\n{said}", where="localhost")
        return run(argv, **options)

    monkeypatch.setattr(host, "run", busy_at_first)
    proxmox.remove_container(host, GUEST.name)
    assert not proxmox.is_there(host, GUEST.name)
    assert len(refused) == 2


@pytest.mark.parametrize("made", [f"rootfs: local-lvm:vm-{GUEST.number}-disk-0\ntags: {GUEST.tag}\n", ""])
def test_one_that_was_just_being_made_by_a_pct_that_lives_is_removed(
    state: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    """`pct unlock` waits for it, and then finds no lock, or no container: `virtoll clean` ended with Proxmox's words,
    and the container that had become whole stayed.
    """
    monkeypatch.setattr(proxmox, "_POLL_S", 0.01)
    _conf(state, "lock: create\n")
    (state / f"volumes/vm-{GUEST.number}-disk-0").mkdir()
    proxmox_double.tell(state, meanwhile=made)
    proxmox.remove_container(LocalHost(), GUEST.name)
    assert not proxmox.is_there(LocalHost(), GUEST.name)
    assert [*(state / "volumes").iterdir()] == []


@pytest.mark.parametrize(
    ("directory", "key", "remove"),
    [("lxc", "rootfs", proxmox.remove_container), ("qemu-server", "virtio0", proxmox.remove_machine)],
)
def test_a_storage_that_is_out_of_reach_and_not_ours_keeps_none_from_being_destroyed(
    state: Path, directory: str, key: str, remove: Callable[[LocalHost, str], None]
) -> None:
    """Whose disk has a name needs no look at all storages: Proxmox gives up at the first that does not answer."""
    proxmox_double.tell(state, stores={**proxmox_double.STORES, "nas": {"content": ["images"], "active": False}})
    _conf(state, f"{key}: local-lvm:vm-{GUEST.number}-disk-0\ntags: {GUEST.tag}\n", f"nodes/pve1/{directory}")
    (state / f"volumes/vm-{GUEST.number}-disk-0").mkdir()
    remove(LocalHost(), GUEST.name)
    assert not proxmox.is_there(LocalHost(), GUEST.name)
    assert [*(state / "volumes").iterdir()] == []


@pytest.mark.parametrize(
    ("directory", "remove"), [("lxc", proxmox.remove_container), ("qemu-server", proxmox.remove_machine)]
)
def test_the_hosts_own_jobs_stay_as_they_were_written(
    state: Path, directory: str, remove: Callable[[LocalHost, str], None]
) -> None:
    """No job names a guest of ours; with --purge Proxmox wrote them anew after each trial, without their comments."""
    jobs = state / "pve/jobs.cfg"
    jobs.write_text("# not on Sundays: the NAS is off\nvzdump: nightly\n\tall 1\n")
    before = jobs.read_text()
    _conf(state, f"tags: {GUEST.tag}\n", f"nodes/pve1/{directory}")
    remove(LocalHost(), GUEST.name)
    assert not proxmox.is_there(LocalHost(), GUEST.name)
    assert jobs.read_text() == before


def test_one_that_does_not_stop_is_told(state: Path) -> None:
    _conf(state, f"tags: {GUEST.tag}\n")
    (state / f"run/{GUEST.number}.json").write_text(json.dumps({"init": os.getpid(), "entered": []}))
    proxmox_double.tell(state, fails={"stop": (255, "container did not stop")})
    with pytest.raises(HostError, match="pct stop ended with 255: container did not stop") as raised:
        proxmox.remove_container(LocalHost(), GUEST.name)
    assert f"pct stop {GUEST.number}" in raised.value.problem.remedy


@needs_root
def test_nothing_is_asked_of_proxmox_while_a_deployment_is_timed(place: Place) -> None:
    """Each of its programs takes a second to begin: what a deployment took was told with that."""
    platform = ProxmoxCt()
    platform.prepare(place.host, place.image, LIMITS, lambda _line: None)
    platform.versions(place.host)
    before = len(proxmox_double.calls(place.state))
    with place.deployed():
        asked = proxmox_double.calls(place.state)[before:]
    assert [call[:2] for call in asked] == [["pct", "create"], ["pct", "start"], ["pct", "exec"]]


@needs_root
def test_an_images_files_are_not_counted_while_a_deployment_is_timed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each deployment looked at every file of the image, as on no other platform."""
    ProxmoxCt().prepare(place.host, place.image, LIMITS, lambda _line: None)
    monkeypatch.setattr(disk, "content", lambda root: pytest.fail(f"{root} is counted"))
    with place.deployed() as instance:
        assert instance.is_running()


def test_numbers_and_tags_are_nobody_elses() -> None:
    drawn = {proxmox.drawn() for _ in range(200)}
    assert len({one.number for one in drawn}) == len({one.tag for one in drawn}) == 200
    assert all(proxmox.parse_name(one.name) == one for one in drawn)


def test_limits_are_in_proxmoxs_units() -> None:
    limits = replace(LIMITS, vcpus=2, memory_bytes=256 * _MIB + 1)
    told = create_options(limits, ProxmoxCtSettings(storage="s", unprivileged=False), 1025)
    options = dict(zip(told[::2], told[1::2], strict=True))
    size = options.pop("--rootfs")
    assert size.startswith("s:")
    assert int(float(size.removeprefix("s:")) * 1024) == 1025, "as pct reads it, in whole MiB"
    assert options == {
        "--arch": "amd64",
        "--ostype": "unmanaged",
        "--hostname": "instance",
        "--unprivileged": "0",
        "--cores": "2",
        "--cpulimit": "2",
        "--cpuunits": "100",
        "--memory": "256",
        "--swap": "0",
        "--onboot": "0",
        "--console": "0",
        "--tty": "0",
    }
    assert raw_lines(limits, frozenset({3, 1}))[:2] == ["lxc.cgroup2.cpuset.cpus: 1,3", "lxc.cgroup2.pids.max: 64"]
    assert all(re.fullmatch(r"lxc\.[a-z0-9.]+: .+", line) for line in raw_lines(limits, frozenset({1})))


@pytest.mark.parametrize("mib", [1, 300, 1023, 1025, 4097, 65_535, 1_000_001])
def test_a_disks_size_comes_to_pct_as_it_was_told(mib: int) -> None:
    told = create_options(LIMITS, ProxmoxCtSettings(), mib)[1].partition(":")[2]
    assert re.fullmatch(r"\d+(\.\d+)?", told)
    assert int(float(told) * 1024) == mib


@pytest.mark.parametrize(
    ("used", "free"),
    [(5 * _MIB, 256 * _MIB), (154 * _MIB, 200 * _MIB), (0, 8 * _MIB), (0, _GIB), (_GIB, 4 * _GIB), (0, 40 * _GIB)],
)
def test_what_is_asked_for_is_free_on_the_ext4_that_proxmox_makes(tmp_path: Path, used: int, free: int) -> None:
    size = volumes.size_mib(used, free, is_ext4=True)
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(size * _MIB)
    made = ["mkfs.ext4", "-q", "-F", "-O", "mmp", "-E", "root_owner=100000:100000", str(image)]
    subprocess.run(made, check=True)
    told = subprocess.run(["dumpe2fs", "-h", str(image)], check=True, capture_output=True, text=True).stdout
    blocks, reserved = (
        int(re.findall(rf"^{name} blocks?(?: count)?: +(\d+)$", told, re.MULTILINE)[0]) for name in ("Free", "Reserved")
    )
    (block_bytes,) = (int(text) for text in re.findall(r"^Block size: +(\d+)$", told, re.MULTILINE))
    left = (blocks - reserved) * block_bytes - used - 16 * _MIB  # which ext4 keeps for itself once it is mounted
    assert free <= left <= 1.15 * free + 160 * _MIB


def _stat_of(monkeypatch: pytest.MonkeyPatch, kind: str, **numbers: int) -> LocalHost:
    host = LocalHost()
    told = SimpleNamespace(**{"f_blocks": 500, "f_bfree": 330, "f_bavail": 310, "f_frsize": 4096, **numbers})
    monkeypatch.setattr(os, "statvfs", lambda _path: told)
    monkeypatch.setattr(host, "run", lambda _argv, **_options: SimpleNamespace(text=kind))
    return host


@pytest.mark.parametrize(("kind", "is_hosts_root", "blocks"), [("ext2/ext3", False, 110), ("ext2/ext3", True, 120)])
def test_what_is_free_beyond_the_limit_is_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_hosts_root: bool, blocks: int
) -> None:
    """What ext4 keeps in any case is not in f_bavail (Linux, ext4_statfs): it was taken off once more, and an
    unprivileged container had up to 16 MiB more than limits.disk.
    """
    (tmp_path / "virtoll").mkdir()
    host = _stat_of(monkeypatch, kind)
    asked = (500 * 4096, 200 * 4096)
    assert volumes.leave_free(host, tmp_path, *asked, is_hosts_root=is_hosts_root) == "ext4"
    given = tmp_path / "virtoll/unused"
    assert (given.stat().st_size, given.stat().st_mode & 0o777) == (blocks * 4096, 0o600)


def test_of_a_quota_what_is_beyond_is_written_and_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "virtoll").mkdir()
    host = _stat_of(monkeypatch, "zfs")
    assert volumes.leave_free(host, tmp_path, 500 * 4096, 200 * 4096, is_hosts_root=False) == "zfs"
    data = (tmp_path / "virtoll/unused").read_bytes()
    assert len(data) == 110 * 4096
    assert len(set(data)) == 256


def test_what_zfs_has_not_told_of_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statvfs tells of the last transaction (dsl_dataset_space: ds_referenced_bytes), up to 5 s ago: where the
    image was unpacked since, it was taken for free, given away, and missing in the container's limits.disk.
    """
    (tmp_path / "virtoll").mkdir()
    host = _stat_of(monkeypatch, "zfs")
    asked: list[list[str]] = []

    def run(argv: list[str], **_options: Any) -> SimpleNamespace:
        asked.append(argv)
        if argv == ["zpool", "sync"]:
            _stat_of(monkeypatch, "zfs", f_bfree=230, f_bavail=210)
        return SimpleNamespace(text="zfs")

    monkeypatch.setattr(host, "run", run)
    volumes.leave_free(host, tmp_path, 500 * 4096, 200 * 4096, is_hosts_root=False)
    assert (tmp_path / "virtoll/unused").stat().st_size == 10 * 4096
    assert [argv[0] for argv in asked] == ["stat", "zpool"]


def test_a_disk_that_is_too_small_or_has_no_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = _stat_of(monkeypatch, "ext2/ext3")
    with pytest.raises(HostError, match=r"4096 B less are free on the container's volume"):
        volumes.leave_free(host, tmp_path, 500 * 4096, 311 * 4096, is_hosts_root=False)
    host = _stat_of(monkeypatch, "btrfs", f_blocks=10**9, f_bavail=10**8)
    with pytest.raises(HostError, match="nothing would limit it"):
        volumes.leave_free(host, tmp_path, 500 * 4096, 200 * 4096, is_hosts_root=False)
    assert [*tmp_path.iterdir()] == []


def test_the_hosts_own_disk_is_never_filled_for_a_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that is just being started has the host's root: on a host with a disk no larger than the volume, all
    of it but limits.disk was given away.
    """
    (tmp_path / "root").symlink_to("/")
    host = _stat_of(monkeypatch, "ext2/ext3")

    def written(*_told: object) -> Path:
        raise AssertionError("the host's own disk was written to")

    monkeypatch.setattr(inside, "directory", written)
    with pytest.raises(HostError, match="has not yet changed to its own disk") as raised:
        volumes.leave_free(host, tmp_path / "root", 500 * 4096, 200 * 4096, is_hosts_root=False)
    assert "lxc-monitord" in raised.value.problem.remedy


def test_no_link_of_a_containers_is_followed_where_room_is_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    root = tmp_path / "root"
    (root / "virtoll").mkdir(parents=True)
    (root / "virtoll/unused").symlink_to(outside)
    host = _stat_of(monkeypatch, "ext2/ext3")
    with pytest.raises(OSError, match="File exists"):
        volumes.leave_free(host, root, 500 * 4096, 200 * 4096, is_hosts_root=False)
    assert outside.read_text() == "theirs"


def _told(**settings: Any) -> str:
    return "\n".join(str(problem) for problem in ProxmoxCt(ProxmoxCtSettings(**settings)).check(LocalHost()))


@needs_root
def test_a_host_with_all_is_ready(state: Path) -> None:
    del state
    assert _told() == _told(storage="local-zfs") == ""
    assert ProxmoxCt().versions(LocalHost()) == {"pve-manager": "8.4.1", "lxc-start": "6.0.0"}


def test_a_machine_that_is_no_proxmox_host_is_told_so_with_a_remedy() -> None:
    (problem,) = ProxmoxCt().check(LocalHost())
    assert problem.what == "this is no Proxmox VE host: there is no pct"
    assert "on the host itself" in problem.remedy


@needs_root
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"storage": "local"}, "there is no storage local that may hold rootdir"),
        ({"storage": "nowhere"}, "there is no storage nowhere that may hold rootdir"),
        ({"storage": "btr"}, "storage btr is btrfs: its containers' disks have no size"),
    ],
)
def test_a_storage_that_holds_no_containers_disk_is_told(state: Path, settings: dict[str, str], told: str) -> None:
    del state
    assert told in _told(**settings)


@needs_root
def test_what_a_host_lacks_is_told(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = {**proxmox_double.STORES, "local-lvm": {**proxmox_double.STORES["local-lvm"], "active": False}}
    proxmox_double.tell(state, stores=stores)
    assert "storage local-lvm is not active" in _told()
    (state / "pve/.members").write_text(json.dumps({"nodename": "pve1", "cluster": {"nodes": 3, "quorate": 0}}))
    assert "the cluster has no quorum" in _told(storage="local-zfs")
    for version, said in (
        ("pve-manager/6.4-15/af7986e6 (running kernel: 5.4)", "this is 6.4-15"),
        ("", "does not tell"),
    ):
        proxmox_double.tell(state, version=version)
        assert said in _told()
    proxmox_double.tell(state, version=proxmox_double.VERSION)
    monkeypatch.setattr(proxmox_host, "hierarchies", lambda: replace(_V2, version=1))
    assert "control groups of version 2" in _told()
    (state / "pve/.members").unlink()
    assert "systemctl start pve-cluster" in _told()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "not root" in _told()


def test_disks_that_do_not_fit_are_told(state: Path) -> None:
    stores = {"local-lvm": {**proxmox_double.STORES["local-lvm"], "available": 1_000_000}}
    proxmox_double.tell(state, stores=stores)
    assert ProxmoxCt().lacks(LocalHost(), LIMITS) == []
    (problem,) = ProxmoxCt().lacks(LocalHost(), LIMITS, 2)
    assert "1024000000 B left, and 2 of limits.disk are 1073741824 B" in problem.what


def test_whoever_looks_is_told_that_it_has_not_run_on_a_live_host() -> None:
    assert "not yet run on a live host" in ProxmoxCt.summary
    assert ProxmoxCt().untried(LocalHost()) == UNTRIED
    shown = Console(file=io.StringIO(), width=120, record=True)
    offer = PlatformOffer(dict.fromkeys(network_modes(), "ready"), (), ProxmoxCt.caveat)
    doctor.show(MachineOffer({"proxmox-ct": offer}), shown)
    assert "proxmox-ct: its driver is not yet run on a live host" in shown.export_text()


def test_a_container_whose_cost_would_be_looked_for_in_vain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        proxmox_host, "Cgroup", lambda name, _layout: SimpleNamespace(pids=lambda: [7] if "1" in name else [])
    )
    assert proxmox_host.processes("proxmox-ct", "lxc/105") == [7]
    with pytest.raises(PlatformError, match="nobody is in control group lxc/900"):
        proxmox_host.processes("proxmox-ct", "lxc/900")


def test_what_an_idle_one_takes_of_a_storage_is_not_told(tmp_path: Path) -> None:
    """Its directory holds a log, and the volume is elsewhere: the log's size was told as the disk that it takes."""
    assert idle._disk(LocalHost(), Accounting("g", tmp_path, is_disk_elsewhere=True)) == {}
    assert idle._disk(LocalHost(), Accounting("g", tmp_path)).keys() == {"disk_mib"}
