"""The lab: who may use which CPU, the wiring, the shaped line, and what is left after a kill -9."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

import contract
import leaks
import standin
from patience import PATIENT
from virtoll.errors import HostError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.base import Completed, Confinement
from virtoll.hosts.cgroup import Cgroup, Hierarchies, hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Images
from virtoll.lab import requirements, shaping
from virtoll.lab.base import GENERATOR_ADDRESS, ORIGIN_ADDRESS, SUT_GENERATOR_SIDE_ADDRESS, CpuPlan, Lab, Site
from virtoll.lab.cpus import cpu_plan, parse_cpu_list
from virtoll.lab.losses import losses, parse
from virtoll.lab.shaping import LinkShape, shaped
from virtoll.lab.wiring import cpu_mask, free_tag, generator_confinement, wired
from virtoll.monitor.monitor import Monitor
from virtoll.platforms.groups import instance_cpus
from virtoll.record.model import Arm, PlannedTrial
from virtoll.study.limits import Limits
from virtoll.trial.deployer import Deployer
from virtoll.trial.notes import Notes


class _Machine(LocalHost):
    """A machine with two hardware threads a core, or one."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def read(self, path: Path) -> bytes:
        if path == Path("/proc/self/status"):  # with those that are not there, as a VMware guest shows them
            return b"Name:\tvirtoll\nCpus_allowed_list:\t0-127\nMems_allowed_list:\t0\n"
        if self.threads == 1 or path.name != "thread_siblings_list":
            raise HostError("no topology here")
        first = int(path.parts[-3].removeprefix("cpu")) // 2 * 2
        return f"{first},{first + 1}\n".encode()


@pytest.mark.parametrize(
    ("allowed", "threads", "vcpus", "plan"),
    [
        ("0-1", 1, 1, ({1}, {0}, {0})),
        ("0-1", 2, 1, ({0}, {1}, {1})),  # one core: its two threads have to do
        ("0-3", 1, 1, ({3}, {0, 1}, {2})),
        ("0-3", 1, 2, ({2, 3}, {0}, {1})),
        ("0-3", 2, 1, ({2}, {0}, {1})),  # CPU 3 stays idle: it shares the instance's core
        ("0-7", 2, 4, ({4, 5, 6, 7}, {0, 1}, {2, 3})),
        ("0-7", 2, 1, ({6}, {0, 1, 2, 3}, {4, 5})),  # no core serves generator and origin
        ("1-4", 2, 1, ({4}, {2, 3}, {1})),  # of two cores one thread each may be used
        ("1-6", 2, 1, ({6}, {1, 2, 3}, {4, 5})),  # as CPU 0 is left to interrupts
        ("1-5", 2, 2, ({4, 5}, {2, 3}, {1})),
        ("2,5,9", 1, 1, ({9}, {2}, {5})),
        ("0,2", 2, 1, ({2}, {0}, {0})),  # SMT is off
    ],
)
def test_the_instance_has_its_cores_for_itself(
    monkeypatch: pytest.MonkeyPatch, allowed: str, threads: int, vcpus: int, plan: tuple[set[int], ...]
) -> None:
    """And nobody has CPUs that are not there, though the process might run on them if they were.

    Where a core of one thread came first, generator and origin had a thread each of the next one; or the origin had
    that one alone, though more whole cores were there to be shared out.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: parse_cpu_list(allowed))
    assert cpu_plan(_Machine(threads), vcpus) == CpuPlan(*map(frozenset, plan))


class _TwoSockets(LocalHost):
    """Its CPUs are numbered by turns, as many servers' are, and its cores have two threads: 0 and 8, 2 and 10, ..."""

    def read(self, path: Path) -> bytes:
        cpu = int(path.parts[-3].removeprefix("cpu")) % 8
        return f"{cpu % 2}\n".encode() if path.name == "physical_package_id" else f"{cpu},{cpu + 8}\n".encode()


def test_an_instance_computes_on_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second core was the other socket's: each line of memory that both write to went from socket to socket."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    plan = cpu_plan(_TwoSockets(), 4)
    assert plan.instance == {5, 7, 13, 15}
    assert plan.generator == {0, 2, 4, 8, 10, 12}
    assert plan.origin == {1, 3, 6, 9, 11, 14}


@pytest.mark.parametrize(("machine", "cpus"), [(_TwoSockets(), 16), (_Machine(2), 8), (_Machine(1), 4)])
def test_an_instance_of_few_vcpus_has_the_same_cpus_whatever_else_is_asked_for(
    machine: LocalHost, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where limits.vcpus is a factor, the lesser levels had CPUs by their numbers: 4 of 12 lay on both sockets, 2 of 4
    on a core each or on one, as the firmware numbers them.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cpus)))
    monkeypatch.setattr("virtoll.lab.cpus._known", {})
    for most in range(1, cpus - 1):
        plan = cpu_plan(machine, most)
        site = Site(machine, "", "", plan.instance)
        lab = Lab(cast(Any, None), "ab12", site, site, site, "virtoll/ab12", Path("none"))
        for vcpus in range(1, most + 1):
            assert instance_cpus(lab, Limits(vcpus=vcpus)) == cpu_plan(machine, vcpus).instance, (most, vcpus)


def test_too_few_cpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    with pytest.raises(HostError, match=r"2 CPU\(s\) for 2 vCPU\(s\)"):
        cpu_plan(_Machine(1), 2)


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-2,5\n") == {0, 1, 2, 5}


def test_tc_commands() -> None:
    assert shaping.qdisc_commands(LinkShape(), "eth0") == []
    both = LinkShape(rate_bit_per_s=36_000_000, delay_ns=2_500_000, loss_percent=0.5)
    assert shaping.qdisc_commands(both, "eth0") == [
        "qdisc add dev eth0 root handle 1: netem limit 100000 delay 2500us loss 0.5%",
        "qdisc add dev eth0 parent 1:1 handle 2: tbf rate 36000000bit burst 65536 limit 225000",
    ]
    (slow,) = shaping.qdisc_commands(LinkShape(rate_bit_per_s=100_000), "eth0")
    assert slow.endswith("burst 3028 limit 3028"), "two frames fit"
    _, below = shaping.qdisc_commands(LinkShape(rate_bit_per_s=1_000_000, loss_percent=1), "eth0")
    assert below.endswith("tbf rate 1000000bit burst 65536 limit 131072"), "a packet of 64 KiB passes whole"
    (alone,) = shaping.qdisc_commands(LinkShape(rate_bit_per_s=36_000_000), "eth0")
    assert alone.endswith("root handle 1: tbf rate 36000000bit burst 18000 limit 225000")


def test_a_kernel_without_netem_is_told() -> None:
    class NoNetem(LocalHost):
        def run(self, argv, **_):  # type: ignore[no-untyped-def]
            return Completed(tuple(argv), 1, b"", b"Error: Specified qdisc kind is unknown.\n")

    assert shaping.check(NoNetem(), LinkShape()) == []
    (problem,) = shaping.check(NoNetem(), LinkShape(delay_ns=1))
    assert "qdisc kind is unknown" in problem.what
    assert "netem" in problem.remedy


@pytest.mark.machine
def test_the_three_namespaces_are_in_a_row(lab: Lab) -> None:
    with standin.serving(lab, lab.origin.netns, ORIGIN_ADDRESS, 80):
        seen, _, _ = standin.ask(lab, lab.generator.netns, ORIGIN_ADDRESS, 80)
    assert seen == GENERATOR_ADDRESS
    links = lab.host.run(["ip", "-brief", "link"]).text
    assert not any(name in links for name in ("gen0", "org0", "vt0", "vt1"))
    for netns in (lab.generator.netns, lab.sut.netns, lab.origin.netns):
        assert lab.host.run(["ip", "-n", netns, "-6", "addr"]).text == ""


@pytest.mark.machine
def test_the_origin_sends_without_pacing_and_the_instance_as_the_machine_does(lab: Lab) -> None:
    """With BBR the lab's own origin held back the end of an answer in every fourth window, for up to 0.13 s."""
    show = ["cat", "/proc/sys/net/ipv4/tcp_congestion_control"]
    machines = lab.host.run(["unshare", "--net", *show]).text.strip()
    sites = (lab.generator, lab.sut, lab.origin)
    found = [lab.host.run(["ip", "netns", "exec", site.netns, *show]).text.strip() for site in sites]
    assert found == [machines, machines, "reno"]


@pytest.mark.machine
@pytest.mark.parametrize("name", ["generator", "monitor"])
def test_a_generator_goes_before_the_origin_on_the_cpu_that_they_share(lab: Lab, name: str) -> None:
    """Answers waited for the origin's turn to end, and the p99 was the lab's own. The monitor's agent goes first too:
    among commands, which on version 2 weigh as the origin does, its samples would wait for the generator's turn.
    """
    assert contract.goes_first(f"{lab.cgroup}/{name}")
    assert not contract.goes_first(lab.cgroup)


@pytest.mark.machine
def test_the_monitors_agent_is_in_its_place(lab: Lab) -> None:
    monitor = Monitor(lab)
    try:
        with monitor._host_agent_in_use():
            (pid,) = Cgroup(f"{lab.cgroup}/monitor", hierarchies()).pids()
            assert os.sched_getaffinity(pid) == lab.generator.cpus
    finally:
        monitor._end_host_agent()


def test_a_generator_starts_in_its_place(lab: Lab) -> None:
    place = generator_confinement(lab)
    show = "grep Cpus_allowed_list /proc/self/status; cat /proc/self/cgroup; readlink /proc/self/ns/net"
    shown = lab.host.run(["sh", "-c", show], confinement=place).text
    cpus = parse_cpu_list(shown.splitlines()[0].split()[1])
    assert cpus == lab.generator.cpus
    assert f"{lab.cgroup}/generator" in shown
    assert str(Path("/run/netns", lab.generator.netns).stat().st_ino) in shown


@pytest.mark.machine
def test_the_sut_receives_on_the_instances_cpus_and_the_users_on_theirs(lab: Lab) -> None:
    before = _steered()
    with standin.serving(lab, lab.sut.netns, "0.0.0.0", 81, body_bytes=20_000_000):
        standin.ask(lab, lab.generator.netns, SUT_GENERATOR_SIDE_ADDRESS, 81)
    received = {cpu: count - before[cpu] for cpu, count in _steered().items()}
    assert sum(received[cpu] for cpu in lab.sut.cpus) > 10  # acknowledgements, at least
    assert sum(received[cpu] for cpu in lab.generator.cpus) > 10  # data


@pytest.mark.machine
def test_the_sut_receives_on_no_more_cpus_than_the_instance_has_that_stands_there(
    host: LocalHost, ledger: ledgers.Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where limits.vcpus is a factor, what came for the lesser levels was worked on by the greatest level's CPUs: of
    some flows beside the instance's quota, and booked to nobody.
    """
    instance = SimpleNamespace(facts={}, agent=SimpleNamespace(facts=dict))
    monkeypatch.setattr(Deployer, "_open_session", lambda *_: None)
    monkeypatch.setattr(Deployer, "deployed", lambda *_: nullcontext(instance))
    trial = PlannedTrial(
        id="t", block=1, position=1, arm=Arm(label="x", platform="native", network="host"), condition={}
    )
    cpus = frozenset(sorted(os.sched_getaffinity(0))[:2])
    with wired(host, ledger, free_tag(), CpuPlan(cpus, cpus, cpus), 2) as lab, ExitStack() as stack:
        for vcpus in (1, 2, 1):
            limits = Limits(vcpus=vcpus)
            Deployer(lab, Images(cast(Any, None)), stack).first(
                stack, trial, limits, (), Notes(tmp_path, lambda _phase: None)
            )
            assert _receives_on(lab, "gen0", "gen2", "org0") == [instance_cpus(lab, limits)] * 3


def _receives_on(lab: Lab, *devices: str) -> list[frozenset[int]]:
    """The CPUs that what comes over these devices of the SUT's is steered to."""
    show = ["cat", *(f"/sys/class/net/{device}/queues/rx-0/rps_cpus" for device in devices)]
    masks = lab.host.run(["ip", "netns", "exec", lab.sut.netns, *show]).text.replace(",", "").split()
    return [frozenset(cpu for cpu in range(4 * len(mask)) if int(mask, 16) >> cpu & 1) for mask in masks]


def _steered() -> dict[int, int]:
    """Packets that each CPU was sent by receive packet steering (the tenth column), since boot."""
    return {int(row[12], 16) if len(row) > 12 else cpu: int(row[9], 16) for cpu, row in enumerate(_softnet())}


def _dropped() -> int:
    """Packets that a CPU had no room for in its queue (the second column), since boot."""
    return sum(int(row[1], 16) for row in _softnet())


def _softnet() -> list[list[str]]:
    return [line.split() for line in Path("/proc/net/softnet_stat").read_text().splitlines()]


@pytest.mark.machine
def test_this_machine_has_what_a_lab_needs(host: LocalHost) -> None:
    assert requirements.check(host) == []


def test_cpu_masks() -> None:
    assert cpu_mask(frozenset({0, 3})) == "00000009"
    assert cpu_mask(frozenset({1, 32, 64})) == "00000001,00000001,00000002"


@pytest.mark.machine
def test_a_rate_is_kept_in_both_directions_and_taken_off_again(lab: Lab) -> None:
    shape = LinkShape(rate_bit_per_s=40_000_000)
    if problems := shaping.check(lab.host, shape):
        pytest.skip(str(problems[0]))
    sent_bytes = 2_000_000
    ways = (
        (lab.origin.netns, ORIGIN_ADDRESS, lab.generator.netns),
        (lab.generator.netns, GENERATOR_ADDRESS, lab.origin.netns),
    )
    with shaped(lab, shape):
        for server, address, client in ways:
            with standin.serving(lab, server, address, 80, body_bytes=sent_bytes):
                _, length, seconds = standin.ask(lab, client, address, 80)
            # At least as slow as the rate demands (less the bucket that starts full); a busy machine is slower still.
            assert seconds > 0.8 * (length - 65_536) * 8 / 40_000_000
    assert "tbf" not in lab.host.run(["tc", "-n", lab.sut.netns, "qdisc"]).text
    assert "tbf" not in lab.host.run(["tc", "-n", lab.generator.netns, "qdisc"]).text


@pytest.mark.machine
def test_what_the_kernel_cannot_shape_leaves_no_half_shape(lab: Lab) -> None:
    shape = LinkShape(delay_ns=20_000_000)
    if not shaping.check(lab.host, shape):
        with standin.serving(lab, lab.origin.netns, ORIGIN_ADDRESS, 80), shaped(lab, shape):
            assert standin.ask(lab, lab.generator.netns, ORIGIN_ADDRESS, 80)[2] >= 0.02
        return
    with pytest.raises(HostError, match="cannot shape the link"), shaped(lab, shape):
        pass
    assert "netem" not in lab.host.run(["tc", "-n", lab.generator.netns, "qdisc"]).text


def test_losses_are_read_from_what_the_kernel_prints() -> None:
    text = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compr
    lo:   10164     158    0    9    0     0          0         0    10164     158    0    0    0     0       0      0
  gen0:     876      12    1    2    0     0          0         0      446       5    3    4    0     0       0      0
entries  clashres found insert insert_failed drop early_drop
00000010  00000000 00000000 00000000 0000000a 00000001 00000002
00000010  00000000 00000000 00000000 00000001 00000000 00000000
"""
    assert parse(text) == {
        "gen0 rx_errors": 1,
        "gen0 rx_dropped": 2,
        "gen0 tx_errors": 3,
        "gen0 tx_dropped": 4,
        "conntrack insert_failed": 11,
        "conntrack drop": 1,
        "conntrack early_drop": 2,
    }


_STRANGE_FRAME = """
import socket
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
    wire.bind(("eth0", 0))
    wire.send(bytes.fromhex("027674000201" "027674000202" "88b5") + bytes(50))
"""


@pytest.mark.machine
def test_a_lost_packet_is_seen_and_ordinary_traffic_is_no_loss(lab: Lab) -> None:
    dropped = -1
    while _dropped() != dropped:  # by a CPU that had no room: on a busy machine that is a loss, and told as one
        dropped, before = _dropped(), losses(lab)
        with standin.serving(lab, lab.origin.netns, ORIGIN_ADDRESS, 80, body_bytes=1_000_000):
            standin.ask(lab, lab.generator.netns, ORIGIN_ADDRESS, 80)
        after = losses(lab)
    assert after == before
    # A frame of the experimental type 88b5, which nothing in the SUT takes.
    lab.host.run([sys.executable, "-c", _STRANGE_FRAME], confinement=Confinement(netns=lab.origin.netns))
    deadline = time.monotonic() + 600
    while (now := losses(lab)) == before and time.monotonic() < deadline:  # another CPU may take it, later
        time.sleep(0.01)
    assert now == before | {"sut org0 rx_dropped": before["sut org0 rx_dropped"] + 1}


_HOLDER = f"""{PATIENT}
import sys
from pathlib import Path
from virtoll.hosts import ledger
from virtoll.hosts.cgroup import owned
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import generator_confinement, wired
from virtoll.networks.base import network_modes
from virtoll.offers import Port
host = LocalHost()
print("begun", flush=True)
with ledger.opened(host, Path(sys.argv[1]), "run") as led, wired(host, led, sys.argv[2], cpu_plan(host, 1), 2) as lab:
    host.spawn(["sleep", "1000"], confinement=generator_confinement(lab))
    host.spawn(["sleep", "1000"], confinement=Confinement(netns=lab.origin.netns))
    while True:
        attached = network_modes()["nat"]().attach(lab, "veth", (Port(80), Port(80, "udp", 90)))
        with attached, owned(led, lab.cgroup + "/i", cpu_quota=1.0) as group:
            host.spawn(["sh", "-c", "sleep 1000 & sleep 1000"], confinement=Confinement(group.procs, lab.sut.netns))
            print("deployed", flush=True)
"""


@pytest.mark.machine
@pytest.mark.parametrize("after_ms", [None, *range(0, 300, 50)])
def test_after_kill_9_clean_restores_the_machine(host: LocalHost, tmp_path: Path, after_ms: int | None) -> None:
    """Killed once an instance is deployed (None), or somewhere in wiring, deploying and undeploying."""
    before = leaks.snapshot()
    tag = free_tag()
    argv = [sys.executable, "-c", _HOLDER, str(tmp_path / "ledger"), tag]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        if after_ms is None:
            assert process.stdout.readline() == "deployed\n"
        else:
            time.sleep((after_ms + random.uniform(0, 50)) / 1000)
        os.kill(process.pid, signal.SIGKILL)
    ledgers.clean(host, tmp_path / "ledger")
    leaks.assert_nothing_left(before, tag)


@pytest.mark.machine
def test_ctrl_c_leaves_nothing_either(tmp_path: Path) -> None:
    before = leaks.snapshot()
    tag = free_tag()
    argv = [sys.executable, "-c", _HOLDER, str(tmp_path / "ledger"), tag]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "deployed\n":
            pass
        time.sleep(random.uniform(0, 0.1))
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        process.wait(600)
    assert list((tmp_path / "ledger").iterdir()) == []
    leaks.assert_nothing_left(before, tag)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"cgroup.procs": "1\n20\n", "cgroup.type": "domain\n", "cgroup.subtree_control": "\n"}, True),
        ({"cgroup.procs": "1\n20\n", "cgroup.subtree_control": "\n"}, False),  # the machine's own top, which may
        ({"cgroup.procs": "", "cgroup.type": "domain\n", "cgroup.subtree_control": "\n"}, False),
        (
            {"cgroup.procs": "1\n", "cgroup.type": "domain\n", "cgroup.subtree_control": "cpu cpuset memory pids\n"},
            False,
        ),
    ],
)
def test_a_container_whose_own_group_holds_its_processes_is_told_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], told: bool
) -> None:
    """`docker run --privileged` on a host with version 2: it was called ready, and no lab could be made there."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    layout = Hierarchies(2, dict.fromkeys(("cpu", "cpuset", "memory", "pids"), tmp_path))
    monkeypatch.setattr(requirements, "hierarchies", lambda: layout)
    found = [one for one in requirements.check(LocalHost()) if "controllers" in one.what]
    assert [one.where for one in found] == ([str(tmp_path)] if told else [])
    assert all("--cgroupns=host" in one.remedy for one in found)


@pytest.mark.parametrize(
    ("version", "files", "told"),
    [
        (2, {"cpu.max": "150000 100000\n"}, "1.5 CPUs together, of the 4"),
        (2, {"cpu.max": "300000 100000\n"}, "3 CPUs together, of the 4"),
        (2, {"cpu.max": "400000 100000\n"}, ""),
        (2, {"cpu.max": "max 100000\n"}, ""),
        (2, {}, ""),  # the machine's own top has no such file
        (1, {"cpu.cfs_quota_us": "250000\n", "cpu.cfs_period_us": "100000\n"}, "2.5 CPUs together, of the 4"),
        (1, {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, ""),
        (1, {}, ""),  # a kernel without quotas
    ],
)
def test_a_quota_on_all_that_virtoll_starts_is_told_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: Literal[1, 2], files: dict[str, str], told: str
) -> None:
    """`docker run --cpus 1.5`: instance and generator stood still for parts of each 100 ms, and all trials were valid.

    The limit of CPUs was "proved" by that quota, too: busy threads got no more, though CPUs stood idle beside them.
    """
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    layout = Hierarchies(version, dict.fromkeys(("cpu", "cpuset", "memory", "pids"), tmp_path))
    monkeypatch.setattr(requirements, "hierarchies", lambda: layout)
    monkeypatch.setattr("virtoll.lab.requirements.os.sched_getaffinity", lambda _pid: {0, 1, 4, 5})
    found = [one for one in requirements.check(LocalHost()) if "quota" in one.what]
    assert [told in one.what for one in found] == ([True] if told else [])
    for one in found:
        assert one.where.startswith(str(tmp_path))
        assert "--cpuset-cpus" in one.remedy
        fits = {"1.5": "give", "2.5": "taskset -c 0,1 virtoll", "3": "taskset -c 0,1,4 virtoll"}
        assert one.remedy.startswith(fits[told.partition(" ")[0]])


@pytest.mark.parametrize(
    ("effective", "told", "remedy"),
    [
        ("0-7\n", "", ""),
        ("0-1,4-5\n", "", ""),
        ("0-1,6-7\n", "CPUs 4, 5 are", "taskset -c 0,1 virtoll"),
        ("2-3\n", "CPUs 0, 1, 4, 5 are", "begin virtoll outside of it"),
        ("\n", "CPUs 0, 1, 4, 5 are", "begin virtoll outside of it"),
        (None, "", ""),  # a kernel before 5.0
    ],
)
def test_cpus_of_a_partition_that_no_group_of_virtolls_gets_are_told_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effective: str | None, told: str, remedy: str
) -> None:
    """virtoll in a partition of version 2: `taskset: failed to set affinity: Invalid argument` failed each trial."""
    if effective is not None:
        (tmp_path / "cpuset.cpus.effective").write_text(effective)
    layout = Hierarchies(2, dict.fromkeys(("cpu", "cpuset", "memory", "pids"), tmp_path))
    monkeypatch.setattr(requirements, "hierarchies", lambda: layout)
    monkeypatch.setattr("virtoll.lab.requirements.os.sched_getaffinity", lambda _pid: {0, 1, 4, 5})
    found = [one for one in requirements.check(LocalHost()) if "partition" in one.what]
    assert [(one.what.startswith(told), one.remedy.startswith(remedy)) for one in found] == [(True, True)] * bool(told)


class Isolated(LocalHost):
    """This machine, with some of its CPUs kept from the kernel's own work."""

    def __init__(self, isolated: str, nohz_full: str) -> None:
        super().__init__()
        self.files = {"isolated": isolated, "nohz_full": nohz_full}

    def read(self, path: Path) -> bytes:
        return self.files[path.name].encode() if path.name in self.files else super().read(path)


@pytest.mark.parametrize(
    ("isolated", "nohz_full", "told"),
    [
        ("\n", "(null)\n", []),
        ("\n", "2-3\n", ["2", "3"]),
        ("1\n", "3,5\n", ["1", "3"]),
        ("4-7\n", "\n", []),
    ],
)
def test_cpus_that_no_packets_are_steered_to_are_told_beforehand(
    isolated: str, nohz_full: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtoll.lab.requirements.os.sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    found = [one for one in requirements.check(Isolated(isolated, nohz_full)) if "isolated" in one.what]
    assert [one.what.split(" are ")[0] for one in found] == ([f"CPUs {', '.join(told)}"] if told else [])
    if told:
        left = ",".join(str(cpu) for cpu in range(4) if str(cpu) not in told)
        assert found[0].remedy.startswith(f"taskset -c {left} virtoll")
