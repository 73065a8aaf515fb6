"""The proof that nothing was left behind: what it sees, and what it takes for somebody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import contract
import leaks
from leaks import Snapshot, differences
from virtoll.lab.base import Lab

_TRACKED = """\
ipv4     2 tcp      6 431999 ESTABLISHED src=198.18.1.2 dst=198.18.3.10 sport=40000 dport=80 src=198.18.3.10 \
dst=198.18.1.2 sport=80 dport=40000 [ASSURED] mark=0 zone=0 use=2
ipv4     2 udp      17 29 src=10.0.0.7 dst=10.0.0.1 sport=1198 dport=53 [UNREPLIED] src=10.0.0.1 dst=10.0.0.7 \
sport=53 dport=1198 mark=0 zone=0 use=2
"""


def machine(**kinds: set[str]) -> Snapshot:
    """A machine on which there is nothing but this."""
    others = ("network namespaces", "mounts", "directories", "processes", "tracked connections")
    nothing: Snapshot = {kind: frozenset() for kind in (*leaks._KEPT, *others)}
    return nothing | {kind.replace("_", " "): frozenset(things) for kind, things in kinds.items()}


def test_what_came_is_told() -> None:
    rule = "inet6 32765:\tfrom fd00::/8 lookup 7"
    assert differences(machine(), machine(rules={rule})) == [f"left behind: rules: {rule}"]


@pytest.mark.parametrize("kind", leaks._KEPT)
def test_so_is_what_is_missing(kind: str) -> None:
    assert differences(machine(**{kind: {"x = 1"}}), machine()) == [f"gone: {kind}: x = 1"]


def test_a_setting_that_was_changed_is_told_twice() -> None:
    found = differences(machine(settings={"net/a = 1"}), machine(settings={"net/a = 2"}))
    assert found == ["left behind: settings: net/a = 2", "gone: settings: net/a = 1"]


def test_a_setting_that_came_with_a_module_is_nobody_s() -> None:
    assert differences(machine(settings={"net/a = 1"}), machine(settings={"net/a = 1", "net/b = 1"})) == []


def test_whose_a_tracked_connection_is_cannot_be_told_among_several_labs() -> None:
    after = machine(tracked_connections={"udp src=198.18.1.2"})
    assert differences(machine(), after) == ["left behind: tracked connections: udp src=198.18.1.2"]
    assert differences(machine(), after, tag="ab12") == []


def test_of_a_lab_is_what_bears_its_tag_and_what_no_lab_may_do() -> None:
    """Not another test's mount, lock or setting, which were taken for it."""
    before = machine(settings={"net/a = 1"}, rules={"inet 7"})
    after = machine(
        mounts={"/tmp/small-disk (tmpfs)", "/run/netns (tmpfs)", "/run/netns/vt-ab12-sut (nsfs)"},
        directories={"/run/lxc/lock", "/var/lib/lxc/vt-cd34-instance", "/var/lib/lxc/vt-ab12-instance"},
        settings={"net/a = 2"},
        processes={"77 sleep 1000"},
        rules={"inet 8"},
    )
    assert sorted(differences(before, after, tag="ab12")) == [
        "gone: rules: inet 7",
        "left behind: directories: /var/lib/lxc/vt-ab12-instance",
        "left behind: mounts: /run/netns/vt-ab12-sut (nsfs)",
        "left behind: processes: 77 sleep 1000",
        "left behind: rules: inet 8",
    ]


def test_the_contract_takes_for_its_own_what_bears_no_labs_tag_and_is_nobody_elses() -> None:
    lab = cast(Lab, SimpleNamespace(run_tag="ab12", cgroup="virtoll/ab12"))
    before = machine(rules={"inet 7"}, network_namespaces={"vt-ab12-sut"})
    connection, rules = {"udp src=198.18.1.2"}, {"inet6 8"}
    for namespaces, told in (({"vt-ab12-sut"}, True), ({"vt-ab12-sut", "vt-cd34-sut"}, False)):
        after = machine(rules=rules, tracked_connections=connection, network_namespaces=namespaces)
        found = contract._left(lab, before, after)
        assert [line for line in found if "rules" in line] == ["left behind: rules: inet6 8", "gone: rules: inet 7"]
        assert any("tracked connections" in line for line in found) == told


def test_rules_of_both_families_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"inet": ["0:\tfrom all lookup local"], "inet6": ["0:\tfrom all lookup local", "7:\tfrom all lookup 7"]}
    monkeypatch.setattr(leaks, "_output", lambda *argv: said[argv[2]])
    assert list(leaks._rules()) == [
        "inet 0:\tfrom all lookup local",
        "inet6 0:\tfrom all lookup local",
        "inet6 7:\tfrom all lookup 7",
    ]


def test_only_a_lab_s_connections_are_ours_and_by_what_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _path: _TRACKED)
    assert list(leaks._tracked()) == [
        "tcp src=198.18.1.2 dst=198.18.3.10 sport=40000 dport=80 src=198.18.3.10 dst=198.18.1.2 sport=80 dport=40000"
    ]


def test_where_the_kernel_does_not_tell_nothing_is_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> str:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "read_text", refused)
    assert list(leaks._tracked()) == []


def test_settings_of_connection_tracking_are_seen_and_its_count_is_not() -> None:
    directory = Path("/proc/sys/net/netfilter")
    known = {path.name for path in directory.iterdir() if path.is_file()} if directory.is_dir() else set()
    seen = {leaks._setting(told).rpartition("/")[2] for told in leaks._settings() if told.startswith("net/netfilter/")}
    assert seen == known - {"nf_conntrack_count"}


_IN_A_NAMESPACE = """
import subprocess, sys
sys.path.insert(0, {tests!r})
import leaks

before = leaks.snapshot()
for command in {commands!r}:
    subprocess.run(["sh", "-c", command], check=True)
print("\\n".join(leaks.differences(before, leaks.snapshot())))
"""


@pytest.mark.machine
def test_a_rule_and_a_setting_left_in_a_namespace_are_told() -> None:
    """In one of its own: on the machine's they would be what they are to find."""
    commands = ["ip rule add from 192.0.2.1 table 7", "ip -6 rule add from 2001:db8::1 table 7"]
    wanted = {"left behind: rules: inet 32765:\tfrom 192.0.2.1 lookup 7"}
    if Path("/proc/net/if_inet6").exists():
        wanted.add("left behind: rules: inet6 32765:\tfrom 2001:db8::1 lookup 7")
    else:
        del commands[1]
    if Path("/proc/sys/net/netfilter/nf_conntrack_udp_timeout").exists():
        commands.append("echo 7 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
        wanted.add("left behind: settings: net/netfilter/nf_conntrack_udp_timeout = 7")
    script = _IN_A_NAMESPACE.format(tests=str(Path(__file__).parent), commands=commands)
    told = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert wanted <= set(told.splitlines())
