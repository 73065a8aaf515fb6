"""What Proxmox VE's programs and files say, from fixtures of the documented formats; no host was at hand."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fuzzing
import proxmox_double
from virtoll.errors import HostError
from virtoll.hosts import proxmox
from virtoll.hosts.proxmox import Storage

CT = """\
#virtoll, run ab12%3A t1
#hostname: theirs
arch: amd64
cpulimit: 2
hostname: instance
memory: 256
rootfs: local-lvm:vm-912345678-disk-0,size=700M
tags: mine;virtoll-0123456789abcdef
lxc.cgroup2.cpuset.cpus: 2,3
lxc.cgroup2.pids.max = 64
lxc.mount.entry: shm dev/shm tmpfs mode=1777,size=268435456,create=dir 0 0

[pve:pending]
hostname: later
[before]
hostname: earlier
"""
STATUS = """\
cpus: 1
disk: 312057856
maxmem: 268435456
name: instance
pid: 4711
status: running
tags: virtoll-0123456789abcdef
type: lxc
uptime: 3
vmid: 912345678
nics:
\ttap105i0:
\t\tnetin: 5
"""
STORES = """\
Name             Type     Status     Total (KiB)      Used (KiB) Available (KiB)        %
local             dir     active        98497780        13401304        80046928   13.61%
local-lvm     lvmthin     active       137498624               0       137498624    0.00%
nas               nfs   inactive               0               0               0    0.00%
off               dir   disabled               0               0               0      N/A
"""


def test_what_a_guest_is_now_is_read_and_not_what_it_was_or_will_be() -> None:
    told = proxmox.parse_configuration(CT)
    assert told["hostname"] == "instance"
    assert told["tags"] == "mine;virtoll-0123456789abcdef"
    assert (told["lxc.cgroup2.cpuset.cpus"], told["lxc.cgroup2.pids.max"]) == ("2,3", "64")
    assert told["lxc.mount.entry"].endswith("create=dir 0 0")
    assert proxmox.parse_configuration("") == {}


def test_a_status_is_read_by_name() -> None:
    told = proxmox.parse_status(STATUS)
    assert (told["pid"], told["status"], told["nics"]) == ("4711", "running", "")
    assert "netin" not in told


def test_stores_are_read_in_bytes() -> None:
    assert proxmox.parse_storages(STORES) == {
        "local": Storage("dir", is_active=True, available_bytes=80_046_928 * 1024),
        "local-lvm": Storage("lvmthin", is_active=True, available_bytes=137_498_624 * 1024),
        "nas": Storage("nfs", is_active=False, available_bytes=0),
        "off": Storage("dir", is_active=False, available_bytes=0),
    }


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("pve-manager/8.4.1/2a5fa54a8503f96d (running kernel: 6.8.12-10-pve)", ((8, 4), "8.4.1")),
        ("pve-manager/7.4-17/513c62be (running kernel: 5.15.131-2-pve)", ((7, 4), "7.4-17")),
        ("pve-manager/9.0.0~11/c474e5a0b4bd391d (running kernel: 6.14.8-2-pve)", ((9, 0), "9.0.0~11")),
    ],
)
def test_versions_are_read(text: str, version: tuple[tuple[int, int], str]) -> None:
    assert proxmox.parse_version(text) == version


@pytest.mark.parametrize("text", ["", "proxmox-ve: 8.4.0", "pve-manager/x"])
def test_another_programs_answer_is_no_version(text: str) -> None:
    with pytest.raises(HostError, match="does not tell Proxmox VE's version"):
        proxmox.parse_version(text)


def test_a_quorum_is_missing_only_where_the_cluster_says_so() -> None:
    alone = {"nodename": "pve1", "version": 0}
    cluster = {**alone, "cluster": {"name": "c", "version": 3, "nodes": 3, "quorate": 1}, "nodelist": {}}
    assert proxmox.has_quorum(json.dumps(alone))
    assert proxmox.has_quorum(json.dumps(cluster))
    assert proxmox.has_quorum("{")
    cluster["cluster"] = {"nodes": 3, "quorate": 0}
    assert not proxmox.has_quorum(json.dumps(cluster))


@pytest.mark.parametrize("name", ["", "105/virtoll-0123456789abcdef", "912345678", "912345678/virtoll-x", "../../x"])
def test_no_other_name_of_a_ledgers_is_taken_for_a_guests(name: str) -> None:
    with pytest.raises(HostError, match="names no guest"):
        proxmox.parse_name(name)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pct", "create", "912345678", "/x.tar", "--nosuch", "1"], "Unknown option: nosuch"),
        (["pct", "create", "912345678", "/x.tar", "--memory", "1G"], "400 Parameter verification failed"),
        (["pct", "start", "99"], "does not look like a valid VM ID"),
        (["pct", "enter", "912345678"], "unknown command 'pct enter'"),
        (["qm", "status", "912345678"], "does not exist"),
        (["qm", "create", "912345678", "--affinity", "all"], "400 Parameter verification failed"),
        (["pvesm", "status", "--storage", "nowhere", "--content", "images"], "storage 'nowhere' does not exist"),
    ],
)
def test_the_stand_in_refuses_what_proxmox_does(tmp_path: Path, words: list[str], said: str) -> None:
    programs = proxmox_double.install(tmp_path / "p", namespaces=False)
    done = subprocess.run([str(programs / words[0]), *words[1:]], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert said in done.stderr


_WORDS = [
    "tags:",
    "lock:",
    "create",
    "[x]",
    "#",
    "pid:",
    "status:",
    "running",
    "local",
    "dir",
    "active",
    "9" * 30,
    "\n",
]
_TEXTS = st.text() | st.lists(st.sampled_from([*_WORDS, *fuzzing.ODD])).map(" ".join)


@fuzzing.fuzzed(300)
@given(_TEXTS)
def test_any_text_is_read(text: str) -> None:
    for told in (proxmox.parse_configuration(text), proxmox.parse_status(text)):
        assert all(isinstance(value, str) and "\n" not in name for name, value in told.items())
    assert all(store.available_bytes >= 0 for store in proxmox.parse_storages(text).values())
    try:
        proxmox.parse_version(text)
    except HostError as error:
        assert error.problem.remedy  # noqa: PT017 - either outcome will do


@fuzzing.fuzzed(300)
@given(_TEXTS)
def test_no_text_without_our_tag_is_ours_but_a_lock_alone(text: str) -> None:
    told = proxmox.parse_configuration(text)
    assert proxmox.is_ours(told, "virtoll-0123456789abcdef") == (told.keys() <= {"lock"})


@fuzzing.fuzzed(200)
@given(fuzzing.JSON.map(json.dumps) | st.text())
def test_any_members_tell_of_a_quorum_or_not(text: str) -> None:
    assert proxmox.has_quorum(text) in (True, False)
