"""Slices on each platform: near reaches its own far over its own channel, at its rate; and each has its own limits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import contract
import leaks
import sliced
from patience import PATIENT
from sliced import PLATFORMS, RATE_BIT_PER_S, arm
from virtoll.agent import ExecResult
from virtoll.catalogue import catalogue
from virtoll.errors import HostError, StudyError
from virtoll.hosts.base import Completed, Confinement
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.ledger import clean, opened
from virtoll.hosts.local import LocalHost
from virtoll.images.base import AGENT
from virtoll.lab import slices as slicing
from virtoll.lab.base import CpuPlan, Lab
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.slices import Channel, Slices, channels, first_free_slot
from virtoll.lab.wiring import free_tag, wired
from virtoll.platforms.base import platforms
from virtoll.platforms.groups import instance_cpus
from virtoll.probes import fork_bomb
from virtoll.probes.base import Place, ProbeResult, Slice, probes
from virtoll.probes.fork_bomb import ForkBomb, ForkBombSettings
from virtoll.run.readiness import Readiness
from virtoll.run.stage import Stage
from virtoll.study.file import read_study
from virtoll.study.limits import Limits
from virtoll.trial.deployer import Deployer, slices_problem

PORT = 5210
S = 10**9
SHORT = ForkBombSettings(time_ns=2 * S)


@pytest.fixture(scope="module", params=PLATFORMS)
def place(request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with sliced.place(lab, request.param, tmp_path_factory.mktemp("slices")) as place:
        yield place


@pytest.fixture
def slices(place: Place) -> list[Slice]:
    return list(place.slices)


def test_each_slice_has_slots_addresses_and_a_device_of_its_own() -> None:
    wanted = channels(Slices(count=slicing._MOST))
    told_apart = [{each.near_address, each.far_address, each.device, each.mac(1), each.mac(2)} for each in wanted]
    assert len(set.union(*told_apart)) == 5 * len(wanted)
    assert wanted[0].near_slot == 0
    assert [first_free_slot(Slices(count=count)) for count in (0, 1, 2)] == [1, 2, 4]
    assert max(each.far_slot for each in wanted) < first_free_slot(Slices(count=len(wanted)))


def test_the_mode_of_slices_is_routed_or_what_native_has() -> None:
    assert [slices_problem(arm(platform)) for platform in PLATFORMS] == [""] * len(PLATFORMS)
    assert "slices of lxc are attached in mode 'routed', not 'bridge'" in slices_problem(arm("lxc", "bridge"))
    assert "not 'host'" in slices_problem(arm("docker", "host"))


def test_a_kernel_that_cannot_shape_is_told() -> None:
    class NoTbf(LocalHost):
        def run(self, argv, **_):  # type: ignore[no-untyped-def]
            return Completed(tuple(argv), 1, b"", b"Error: Specified qdisc kind is unknown.\n")

    assert slicing.check(NoTbf(), Slices(count=0)) == slicing.check(NoTbf(), Slices(1, None)) == []
    (problem,) = slicing.check(NoTbf(), Slices(count=2))
    assert "sch_tbf" in problem.remedy


_STUDY = """\
name = "small"
blocks = 2
noise_floor = false
[slices]
count = 1
[[probes]]
name = "{probe}"
[[arms]]
platform = "native"
[[arms]]
platform = "lxc"
network = "{network}"
"""


def _told(host: LocalHost, text: str) -> list[str]:
    with pytest.raises(StudyError) as caught:
        Stage(read_study(text, "my.toml", catalogue()), host).offered("my.toml")
    return [str(problem) for problem in caught.value.problems]


def test_a_study_says_beforehand_what_its_slices_lack(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    monkeypatch.setattr(probes()["clock"], "slices", 2)
    few, mode = _told(host, _STUDY.format(probe="clock", network="bridge"))
    assert few.startswith("my.toml:7: probe clock: it needs 2 slices, and the study deploys 1")
    assert mode.startswith("my.toml:11: lxc+bridge: slices of lxc are attached in mode 'routed', not 'bridge'")


def test_an_optional_arm_that_cannot_be_sliced_is_skipped(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--platforms all` gives a study such arms."""
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    text = _STUDY.format(probe="clock", network="bridge") + "optional = true\n"
    arms, skipped = Stage(read_study(text, "my.toml", catalogue()), host).offered("my.toml")
    assert [arm.platform for arm in arms] == ["native"]
    assert "slices of lxc are attached in mode 'routed', not 'bridge'" in skipped[0].reason


def test_a_service_has_no_slices(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    service = '[service]\nname = "nginx"\n[load]\nname = "http"'
    text = _STUDY.format(probe="clock", network="routed").replace('[[probes]]\nname = "clock"', service)
    told = _told(host, text)
    assert any("slices are for a programme of probes" in problem for problem in told), told


class _Machine(LocalHost):
    """A machine that does not tell which CPUs are of one core."""

    def read(self, path: Path) -> bytes:
        raise HostError("no topology here")


def test_far_instances_have_cpus_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    assert cpu_plan(_Machine(), 1, 1) == cpu_plan(_Machine(), 1)
    assert cpu_plan(_Machine(), 1, 3) == CpuPlan(frozenset({3}), frozenset({0, 1, 2}), frozenset({0, 1, 2}))
    assert cpu_plan(_Machine(), 2, 2) == CpuPlan(frozenset({2, 3}), frozenset({0, 1}), frozenset({0, 1}))
    with pytest.raises(HostError, match=r"4 CPU\(s\) for 3 vCPU\(s\) and an instance of 2 vCPUs on the other node"):
        cpu_plan(_Machine(), 3, 2)


@pytest.fixture
def bare(host: LocalHost, tmp_path: Path) -> Iterator[Lab]:
    """A lab of its own: in the module's a platform's slices may stand, where a worker has had its tests before."""
    with opened(host, tmp_path, "test") as ledger, wired(host, ledger, free_tag(), cpu_plan(host, 1)) as lab:
        yield lab


@pytest.mark.machine
def test_a_channel_may_be_as_fast_as_its_link_and_goes_with_its_block(bare: Lab) -> None:
    before = _nodes(bare)
    for shared in (True, False):
        with slicing.channelled(bare, channels(Slices(count=2, rate_bit_per_s=None)), shared=shared):
            assert "tbf" not in _nodes(bare)
            assert _nodes(bare).count("chan1") > before.count("chan1")
            assert "net.ipv4.ip_forward = 1\nnet.ipv4.ip_forward = 1" in _nodes(bare)
        assert _nodes(bare) == before


@pytest.mark.machine
def test_half_made_channels_go_too(bare: Lab) -> None:
    before = _nodes(bare)
    broken = [Channel(0, RATE_BIT_PER_S), Channel(0, RATE_BIT_PER_S)]  # the second finds the first in its place
    with pytest.raises(HostError, match="File exists"), slicing.channelled(bare, broken, shared=False):
        pass
    assert _nodes(bare) == before


@pytest.mark.machine
def test_each_end_of_a_channel_receives_on_no_more_cpus_than_its_instance_has(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SimpleNamespace(attachment=SimpleNamespace(kind="shared"))
    monkeypatch.setattr(Deployer, "deployed", lambda *_, **__: nullcontext(first))
    cpus = frozenset(sorted(os.sched_getaffinity(0))[:2])
    trial: Any = SimpleNamespace(id="t")
    with opened(host, tmp_path, "test") as ledger, wired(host, ledger, free_tag(), CpuPlan(cpus, cpus, cpus)) as lab:
        made = Deployer(lab, cast(Any, None), cast(Any, None))
        with made.sliced(trial, cast(Any, first), Limits(vcpus=1), Slices(count=1)):
            for site in (lab.sut, lab.generator):
                show = ["ip", "netns", "exec", site.netns, "cat", "/sys/class/net/chan0/queues/rx-0/rps_cpus"]
                own = instance_cpus(lab.at(site), Limits(vcpus=1))
                assert int(host.run(show).text.replace(",", ""), 16) == sum(1 << cpu for cpu in own)


def _nodes(lab: Lab) -> str:
    """Links, addresses, routes, rules, neighbours, queues and forwarding of both nodes. (Neighbours come in the order
    of the kernel's table, which all namespaces share: it is another once the table has grown.)
    """
    commands = ("link", "addr", "route show table all", "rule")
    show = "".join(f"ip -brief {command}; " for command in commands) + "ip -brief neigh | sort; tc qdisc"
    nodes = (lab.sut.netns, lab.generator.netns)
    told = [lab.host.run(["sh", "-c", show], confinement=Confinement(netns=netns)).text for netns in nodes]
    sysctl = ["sysctl", "net.ipv4.ip_forward"]
    return "\n".join([*told, *(lab.host.run(sysctl, confinement=Confinement(netns=netns)).text for netns in nodes)])


@pytest.mark.machine
def test_near_reaches_its_own_far_over_its_own_channel_alone(lab: Lab, slices: list[Slice]) -> None:
    for one in slices:
        with _peer(one):
            before = _passed(lab)
            done = _probe(one, "round-trip", "--windows", "1", "--work", "20")
            assert done.returncode == 0, done
            after = _passed(lab)
        ways = range(len(slices))
        assert [min(after[at][way] - before[at][way] for way in (0, 1)) > 10 for at in ways] == [
            at == one.index for at in ways
        ]
        assert [after[at] == before[at] for at in ways] == [at != one.index for at in ways]


@pytest.mark.machine
def test_near_does_not_reach_the_far_of_another_slice(lab: Lab, slices: list[Slice]) -> None:
    first, second = slices
    if first.near.attachment.kind == "shared":
        pytest.skip("on native all of a node's slices are one network stack")
    with _peer(second), _peer(first):
        before = _passed(lab)
        for near, far in ((first.near, second.far_address), (second.near, first.far_address)):
            words = [AGENT, "probe", "round-trip", "--peer", f"{far}:{PORT}", "--patience-ns", "500000000", "--json"]
            assert near.agent.run(words).returncode != 0
        assert _passed(lab) == before


@pytest.mark.machine
def test_each_channel_has_its_rate_to_itself(lab: Lab, slices: list[Slice]) -> None:
    """That it comes near its rate is for an idle machine; that it has all of it, and no more, is so on each.

    How much the channel has carried since before the probe began tells that: a receiver that stood still reads at once
    what has come meanwhile, and seems to be faster than the channel.
    """
    sliced.assert_shaped(lab)
    first, second = slices
    with _peer(first), _peer(second):
        before = _carried_bytes(lab)
        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(_bulk_took_s, slices))
        after = _carried_bytes(lab)
    ways = [(at, way) for at in range(2) for way in (0, 1)]
    carried = {(at, way): after[at][way] - before[at][way] for at, way in ways}
    assert all(0 < carried[at, way] * 8 < 1.05 * RATE_BIT_PER_S * together[at] for at, way in ways), (carried, together)


@pytest.mark.machine
def test_an_instance_cannot_write_what_its_node_was_given_to_steer(slices: list[Slice]) -> None:
    for one in slices:
        for instance in (one.near, one.far):
            if instance.platform == "native":
                assert instance.agent.run(["test", "-w", "/sys"]).returncode == 1


@pytest.mark.machine
def test_each_slice_comes_to_its_own_limit_of_processes_and_lives_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork bomb in each. It comes last: who is bombed may be slow for a while, and nothing may end on the machine."""
    monkeypatch.setattr(fork_bomb, "_PATIENCE_S", contract.HANGING_S)
    monkeypatch.setattr(fork_bomb, "_REPORT_S", contract.HANGING_S / 2)
    is_machine = "payload" not in place.instance.accounting.parts
    result = at_rest(place, ForkBombSettings(time_ns=5 * S) if is_machine else SHORT)
    (window,) = result.windows
    limit = place.instance.limits.pids
    for at in (1, 2):
        assert 0.3 * limit < window.values[f"processes_slice{at}"] <= limit, (window.values, result.notes)
        assert {f"slice{at}"} <= {source for _, source, _, _ in result.series}
    assert window.values["fairness"] > 0.9
    assert "answered_s" in window.values
    together, *others = result.checks  # a busy machine may not start them at one time
    assert together.name == "the bombs began together"
    assert [check.passed for check in others] == [None if is_machine else True] * 2 + [True] * 2, others
    for one in place.slices:
        assert one.near.is_running()
        assert one.far.is_running()
        assert b"aggress" not in _command_lines(one, is_machine=is_machine)


def at_rest(place: Place, settings: ForkBombSettings) -> ProbeResult:
    """A bomb that had time enough to come to rest: a starved guest begins four processes a second.

    For nothing else is there a second chance: who was silent beside a bomb fails the test.
    """
    result = ForkBomb(settings).run(place)
    while _is_restless(result) and settings.time_ns < 100 * S:
        settings = replace(settings, time_ns=3 * settings.time_ns)
        result = ForkBomb(settings).run(place)
    return result


def _is_restless(result: ProbeResult) -> bool:
    (window,) = result.windows
    return "settled_s" not in window.values and "answered_s" in window.values


def _command_lines(one: Slice, *, is_machine: bool) -> bytes:
    """What runs in a slice: by its guest's word, or by the host's, which sees in /proc what others run beside it."""
    if is_machine:
        return one.near.agent.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout
    told = b""
    for pid in Cgroup(one.near.accounting.cgroup, hierarchies()).pids():
        with suppress(OSError):  # it has just ended
            told += Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"/virtoll/agent" in told
    return told


_HOLD = f"""{PATIENT}
import sys, time
from pathlib import Path
import sliced
from virtoll.hosts import interrupts
from virtoll.hosts.ledger import opened
from virtoll.hosts.local import LocalHost
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired

interrupts.install()
print("begun", flush=True)
host = LocalHost()
with opened(host, Path(sys.argv[1]), "run") as ledger, wired(host, ledger, sys.argv[2], cpu_plan(host, 1)) as lab:
    while True:
        with sliced.place(lab, sys.argv[3], Path(sys.argv[1])):
            print("deployed", flush=True)
"""


@pytest.mark.machine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("after_s", [0.1, 0.4, 0.8, 1.4])
@pytest.mark.parametrize("platform", ["native", "lxc"])
def test_nothing_is_left_by_an_end_at_any_moment(
    host: LocalHost, tmp_path: Path, platform: str, number: signal.Signals, after_s: float
) -> None:
    """By a Ctrl-C at once, by a kill -9 after `clean`: at a moment of making slices, of having them, of ending them."""
    contract.skip_unless_ready(platforms()[platform]())
    contract.image()
    tag = free_tag()
    before = leaks.snapshot()
    command = [sys.executable, "-c", _HOLD, str(tmp_path), tag, platform]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
    ) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"begun\n"
        time.sleep(after_s)
        victim.send_signal(number)
        victim.wait(contract.HANGING_S)
    if number == signal.SIGKILL:
        clean(host, tmp_path)
    deadline = time.monotonic() + leaks.SOON_S
    while left := [line for line in leaks.differences(before, leaks.snapshot()) if tag in line or "processes:" in line]:
        assert time.monotonic() < deadline, "\n".join(left)
        time.sleep(0.1)


@contextmanager
def _peer(one: Slice) -> Iterator[None]:
    """The responder in the slice's far, which listens; on native, where all fars are one network stack, each has a port
    of its own.
    """
    pid = one.far.agent.spawn([AGENT, "peer", "--port", str(PORT + one.index)], log="/tmp/peer.log")
    try:
        while not one.far.agent.listening(PORT + one.index):
            assert one.far.agent.alive(pid), one.far.agent.get("/tmp/peer.log")
            time.sleep(0.01)
        yield
    finally:
        one.far.agent.kill(pid)


def _probe(one: Slice, name: str, *settings: str) -> ExecResult:
    target = f"{one.far_address}:{PORT + one.index}"
    words = [AGENT, "probe", name, "--peer", target, "--patience-ns", "120000000000", *settings, "--json"]
    script = 'for _ in $(seq 100); do "$@" && exit; sleep 0.1; done; exit 1'  # a peer gives up who is slow to greet it
    return one.near.agent.run(["sh", "-c", script, "sh", *words])


def _bulk_took_s(one: Slice) -> float:
    """As much as goes through in some seconds; how long that was, with all that came before and after it."""
    begun_s = time.monotonic()
    done = _probe(one, "bulk", "--windows", "1", "--time-ns", "2000000000")
    took_s = time.monotonic() - begun_s
    assert done.returncode == 0, done
    (window,) = json.loads(done.stdout.splitlines()[-1])["windows"]
    assert window["work"] > 0
    return took_s


def _passed(lab: Lab) -> list[tuple[int, int]]:
    """Packets that each channel has carried to node A and from it."""
    return _counted(lab, 1)


def _carried_bytes(lab: Lab) -> list[tuple[int, int]]:
    """Likewise."""
    return _counted(lab, 0)


def _counted(lab: Lab, column: int) -> list[tuple[int, int]]:
    text = lab.host.run(["cat", "/proc/net/dev"], confinement=Confinement(netns=lab.sut.netns)).text
    rows = {line.split(":")[0].strip(): line.split(":")[1].split() for line in text.splitlines()[2:]}
    return [(int(rows[f"chan{at}"][column]), int(rows[f"chan{at}"][8 + column])) for at in range(2)]
