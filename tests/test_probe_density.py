"""The probes that look at instances from the host: boot, idle, density; on fakes, and on what this machine offers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import contract
import leaks
from virtoll.agent import Agent, ClockOffset
from virtoll.errors import AgentError, DiskError, HostError, PlatformError
from virtoll.fakes import FAKE_IMAGE
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Hierarchies, owned
from virtoll.lab.base import SLOTS, Lab
from virtoll.lab.client import Client
from virtoll.lab.wiring import generator_confinement
from virtoll.platforms.base import Accounting, Instance, Platform
from virtoll.platforms.docker import Docker
from virtoll.platforms.lxc import Lxc
from virtoll.platforms.native import Native
from virtoll.platforms.qemu_tcg import QemuTcg
from virtoll.platforms.uml import Uml
from virtoll.probes import boot, density, footprint
from virtoll.probes.base import Place, ProbeError, ProbeResult, probes
from virtoll.probes.boot import Boot, BootSettings
from virtoll.probes.density import Density, DensitySettings
from virtoll.probes.footprint import MIB
from virtoll.probes.idle import Idle, IdleSettings
from virtoll.record.model import Phase
from virtoll.services import daemon
from virtoll.services.nginx import Nginx
from virtoll.study.limits import Limits
from virtoll.trial.notes import Notes

GIB = 1024**3


# --- what a group of processes takes

_GREEDY = """
import os, sys, time
held = b"x" * (32 << 20)
if os.fork() == 0:
    time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.machine
def test_memory_that_processes_share_is_divided_among_them(lab: Lab) -> None:
    with owned(lab.ledger, f"{lab.cgroup}/greedy") as group:
        before_ns = footprint.cpu_ns(group)
        argv = [sys.executable, "-c", _GREEDY]
        with lab.host.spawn(argv, stdout=subprocess.PIPE, confinement=Confinement(group.procs)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            found = footprint.footprint(group)
            kernel = footprint.kernel_bytes(group)
            used_ns = footprint.cpu_ns(group) - before_ns
            group.kill()
    assert found.processes == 2
    assert 32 * MIB <= found.pss_bytes < 60 * MIB
    assert found.private_bytes < 32 * MIB  # the large block is both's
    assert found.page_tables_bytes >= 2 * 32 * MIB // 4096 * 8  # each has entries for it
    assert kernel is None or kernel > 0
    assert used_ns > 0


def test_an_address_space_counts_once() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert footprint.with_own_memory([os.getpid(), os.getpid(), child.pid]) == [os.getpid(), child.pid]
        finally:
            child.kill()
    assert footprint.with_own_memory([os.getpid(), child.pid]) == [os.getpid()]  # it has ended


def test_one_that_ends_hides_none_of_those_that_come_after_it() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            pids = [ended.pid, os.getpid(), child.pid, ended.pid, os.getpid()]
            assert footprint.with_own_memory(pids) == [os.getpid(), child.pid]
        finally:
            child.kill()


def test_a_machine_that_cannot_tell_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(ProbeError, match="its number on vax is not known") as raised:
        footprint.with_own_memory([1, 2])
    assert raised.value.kind == "system"


# --- density, on a host and instances that only pretend


class _FakeHost:
    """A host whose MemAvailable is what the test says next; the last stays."""

    def __init__(self, available_gib: list[float]) -> None:
        self._left = [round(value * GIB) for value in available_gib]

    def read(self, path: Path) -> bytes:
        assert path == Path("/proc/meminfo")
        available = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {available // 1024} kB\n".encode()


class _FakeAgent:
    def __init__(self, silent: bool = False) -> None:
        self.silent = silent

    def run(self, _argv: list[str]) -> Any:
        if self.silent:
            raise AgentError("gone")
        return subprocess.CompletedProcess([], 0)


def _fake_instance(agent: Any = None, is_running: Callable[[], bool] = lambda: True) -> Instance:
    accounting = Accounting("virtoll/no-such-group", Path("/nowhere"))
    limits = Limits(memory_bytes=GIB)
    return Instance(
        "fake", cast(Any, agent or _FakeAgent()), cast(Any, None), accounting, limits, {}, is_running, FAKE_IMAGE
    )


class _Makes:
    """Further instances, made and ended; ``fails`` says with which number, and how, it ends, and ``kills`` which other
    one (0: the deployment's own) a number ends by its coming.
    """

    def __init__(self, fails: dict[int, BaseException] | None = None, kills: dict[int, int] | None = None) -> None:
        self.alive: set[int] = set()
        self.made = 0
        self._agents = [_FakeAgent() for _ in range(SLOTS)]
        self._fails = fails or {}
        self._kills = kills or {}

    def instance(self, number: int) -> Instance:
        """It runs until its agent falls silent."""
        agent = self._agents[number]
        return _fake_instance(agent, lambda: not agent.silent)

    @contextmanager
    def __call__(self, number: int) -> Iterator[Instance]:
        if number in self._kills:
            self._agents[self._kills[number]].silent = True
        if number in self._fails:
            raise self._fails[number]
        self.alive.add(number)
        self.made += 1
        try:
            yield self.instance(number)
        finally:
            self.alive.discard(number)


def _filled(
    available_gib: list[float], makes: _Makes, instance: Instance | None = None, **settings: int
) -> ProbeResult:
    client = Client(cast(Any, _FakeHost(available_gib)), Confinement(), Path("/nowhere"), 1)
    place = Place(instance or makes.instance(0), client, [], makes)
    result = Density(DensitySettings(settle_ns=0, **settings)).run(place)
    assert makes.alive == set()
    return result


def test_what_was_asked_for_is_at_least() -> None:
    makes = _Makes()
    result = _filled([12, 12, 11.75, 11.5, 11.5, 12], makes, most=3, floor_bytes=GIB)
    (window,) = result.windows
    assert window.values["instances"] == 3
    assert "instances_that_fit" not in window.values
    assert result.facts["stopped_by"] == "most"
    assert "at least" in result.notes[0]
    assert makes.made == 2


def test_memory_of_each_is_the_difference_of_the_host_over_the_further_ones() -> None:
    result = _filled([12, 11.75, 11.5, 12], _Makes(), most=3, floor_bytes=GIB)
    assert result.windows[0].values["host_memory_mib_per_instance"] == 256
    assert len(result.notes) == 1
    noisy = _filled([12, 11.75, 11.5, 11.8], _Makes(), most=3, floor_bytes=GIB)
    assert "for other reasons" in noisy.notes[1]


def test_it_stops_before_the_floor() -> None:
    """4 GiB left, each takes 1: with 1.5 to stay, three more fit but the next would not leave enough."""
    result = _filled([4, 3, 2, 2], _Makes(), most=100, floor_bytes=3 * GIB // 2)
    assert result.windows[0].values["instances_that_fit"] == 3
    assert result.facts["stopped_by"] == "floor"
    assert "not full" not in str(result.notes)


def test_a_containers_limit_is_not_filled_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel ends whoever is largest in a container that is full: virtoll itself, where instances are small."""
    for name, text in {"max": f"{3 * GIB}\n", "current": f"{GIB // 4}\n", "stat": "file 0\nshmem 0\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(density, "hierarchies", lambda: Hierarchies(2, {"memory": tmp_path}))
    result = _filled([12, 11, 11], _Makes(), most=100, floor_bytes=5 * GIB // 2)
    assert result.facts["stopped_by"] == "floor"
    assert result.facts["stopped"].startswith("2816 MiB are left, one more takes up to 1 GiB")
    told = _filled([12, 11, 11], _Makes(), most=2)
    assert told.facts["floor_bytes"] == GIB, "a tenth of what there is, or 1 GiB"
    assert told.windows[0].values["host_memory_mib_per_instance"] == 1024, "as on any host"


def test_the_floor_is_a_tenth_of_a_large_machine() -> None:
    result = _filled([2.5], _Makes(), most=100)
    assert result.facts["floor_bytes"] == 16 * GIB // 10
    assert result.facts["stopped_by"] == "floor"


def test_what_the_memory_limit_alone_forbids_is_not_what_fits() -> None:
    """2.5 GiB are left, 1.6 to stay, and the limit is 1: whether one more had taken so much was not tried."""
    makes = _Makes()
    result = _filled([2.5], makes, most=100)
    assert makes.made == 0
    assert result.windows[0].values == {"instances": 1}  # nothing is known of further ones
    assert "no further instance was tried" in result.notes[0]


def test_one_that_does_not_come_up_was_tried() -> None:
    result = _filled([12], _Makes({1: PlatformError("no")}), most=100, floor_bytes=GIB)
    assert result.windows[0].values == {"instances": 1, "instances_that_fit": 1}
    assert result.notes == []


def test_the_one_that_fails_is_the_end_and_tells_why() -> None:
    result = _filled([12], _Makes({3: PlatformError("no more loop devices")}), most=100, floor_bytes=GIB)
    assert result.windows[0].values["instances_that_fit"] == 3
    assert result.facts["stopped_by"] == "failure"
    assert "instance 4 did not come up: no more loop devices" in result.facts["stopped"]


def test_a_full_disk_of_virtolls_own_is_no_full_host() -> None:
    """As many were told to fit as had come up when the ledger could not be written any more."""
    with pytest.raises(DiskError):
        _filled([12], _Makes({3: DiskError("cannot write the ledger")}), most=100, floor_bytes=GIB)


def test_a_lab_without_an_address_for_one_more_is_no_full_host() -> None:
    """Slices have some of them: a host that could carry more was told to be full with as many as were left."""
    nowhere = cast(Any, None)
    with pytest.raises(HostError) as raised:
        Lab(nowhere, "cafe", nowhere, nowhere, nowhere, "virtoll/cafe", Path("/nowhere"), slot=SLOTS)
    result = _filled([12], _Makes({3: raised.value}), most=100, floor_bytes=GIB)
    assert result.windows[0].values["instances"] == 3
    assert "instances_that_fit" not in result.windows[0].values
    assert "the host was not full (no room for instance number 253" in result.notes[0]


def test_one_that_kills_another_does_not_count() -> None:
    answers = iter([True, False])
    first = _fake_instance(is_running=lambda: next(answers))
    result = _filled([12], _Makes(), first, most=100, floor_bytes=GIB)
    assert result.windows[0].values["instances_that_fit"] == 2
    assert result.facts["stopped"] == "with instance 3 there, [1] ended"


@pytest.mark.parametrize(
    ("makes", "fit", "stopped"),
    [
        (_Makes(kills={2: 0}), 2, "with instance 3 there, [1] ended"),
        (_Makes(kills={3: 1}), 3, "with instance 4 there, [2] ended"),
        (_Makes({3: PlatformError("no memory")}, {3: 1}), 3, "instance 4 did not come up: no memory; [2] ended"),
    ],
    ids=["the deployment's own", "a further one", "a further one, in vain"],
)
def test_who_was_ended_by_the_last_one_is_asked_nothing_and_takes_no_memory(
    makes: _Makes, fit: int, stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is how filling a host ends, and no failed check; and nobody's memory is 0."""
    monkeypatch.setattr(density, "_pss_bytes", lambda instance: 64 * MIB if instance.is_running() else 0)
    result = _filled([12], makes, most=100, floor_bytes=GIB)
    assert result.windows[0].values["instances_that_fit"] == fit
    assert result.windows[0].values["pss_mib_per_instance"] == 64
    assert [(check.passed, check.detail) for check in result.checks] == [(True, f"{fit - 1} asked")]
    assert result.facts["stopped"] == stopped


def test_where_none_of_the_further_ones_lives_their_memory_is_not_known() -> None:
    result = _filled([12, 11.75, 12], _Makes(kills={2: 1}), most=100, floor_bytes=GIB)
    assert result.windows[0].values["instances_that_fit"] == 2
    assert "pss_mib_per_instance" not in result.windows[0].values
    assert result.checks[0].passed


def test_time_is_limited() -> None:
    result = _filled([12], _Makes(), most=100, floor_bytes=GIB, deadline_ns=1)
    assert result.facts["stopped_by"] == "deadline"
    assert "instances_that_fit" not in result.windows[0].values


def test_one_that_lives_but_does_not_answer_makes_the_trial_invalid() -> None:
    result = _filled([12], _Makes(), _fake_instance(_FakeAgent(silent=True)), most=2, floor_bytes=GIB)
    assert [(check.passed, check.detail) for check in result.checks] == [(False, "no answer from [1]")]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a fault of ours")])
def test_whatever_else_happens_ends_them_all_and_is_not_called_full(error: BaseException) -> None:
    makes = _Makes({2: error})
    with pytest.raises(type(error)):
        _filled([12], makes, most=100, floor_bytes=GIB)
    assert makes.alive == set()


def test_no_more_are_asked_for_than_a_lab_has_room_for() -> None:
    bounds = {field.name: field.metadata for field in DensitySettings.__dataclass_fields__.values()}
    assert bounds["most"]["most"] == SLOTS


def test_an_idle_instance_does_no_work_and_its_amount_is_refused() -> None:
    """Each of work = [100, 1000] was a case, and both were one."""
    (problem,) = Idle(IdleSettings(work=100)).check(Limits())
    assert "work" in problem.what
    assert Idle(IDLE).check(Limits()) == []


# --- boot, as arithmetic


def test_a_guests_kernel_begins_where_its_clock_is_zero() -> None:
    deploy = Phase(name="deploy", start_ns=10_000_000_000, duration_ns=3_000_000_000)
    kernel = boot._Kernel(start_ns=11_000_000_000, blur_ns=1000)
    assert boot._kernel_values(deploy, kernel) == {"before_kernel_s": 1.0, "kernel_s": 2.0}
    assert boot._plausible(deploy, kernel).passed
    early = boot._Kernel(start_ns=9_000_000_000, blur_ns=1000)
    assert boot._plausible(deploy, early).passed is False


def test_the_last_deployment_is_this_ones() -> None:
    phases = [Phase(name=name, start_ns=n, duration_ns=1) for n, name in enumerate(["deploy", "teardown", "deploy"])]
    assert boot._deploy_phase(phases).start_ns == 2


@pytest.mark.parametrize(("offset_ns", "own"), [(20_000, False), (-5_000_000_000_000, True)])
def test_who_has_the_hosts_clock_has_its_kernel(offset_ns: int, own: bool) -> None:
    class Clock:
        def clock(self) -> ClockOffset:
            return ClockOffset(offset_ns, 30_000)

    place = Place(_fake_instance(Clock()), cast(Any, None), [], _Makes())
    assert (boot._kernel(place) is not None) is own


# --- the three of them, really

PLATFORMS: dict[str, Platform] = {
    "native": Native(),
    "docker": Docker(),
    "lxc": Lxc(),
    "uml": Uml(),
    "qemu-tcg": QemuTcg(),
}
BOOT = BootSettings(deadline_ns=600_000_000_000)
IDLE = IdleSettings(windows=1, time_ns=100_000_000, settle_ns=0)
DENSITY = DensitySettings(most=3, floor_bytes=1, settle_ns=0)


def _place(lab: Lab, platform: Platform, stack: ExitStack, tmp_path: Path) -> Place:
    contract.skip_unless_ready(platform)
    image = contract.image()
    platform.prepare(lab.host, image, contract.LIMITS, lambda _line: None)
    stack.enter_context(platform.session(lab, image))
    notes = Notes(tmp_path, lambda _phase: None)
    with notes.phase("deploy"):
        instance = stack.enter_context(contract.deployed(lab, image, platform))

    def another(number: int) -> AbstractContextManager[Instance]:
        return contract.deployed(lab, image, platform, slot=number)

    return Place(instance, Client(lab.host, generator_confinement(lab), tmp_path, 1), notes.phases, another)


@pytest.mark.machine
@pytest.mark.parametrize("name", PLATFORMS)
def test_boot_idle_and_density(name: str, lab: Lab, tmp_path: Path) -> None:
    before = leaks.snapshot()
    with ExitStack() as stack:
        place = _place(lab, PLATFORMS[name], stack, tmp_path)
        _booted(Boot(BOOT).run(place), own_kernel=name in ("uml", "qemu-tcg"))
        if name != "qemu-tcg":  # seconds to boot one more
            _looked_at(Idle(IDLE).run(place), name)
        filled = Density(DENSITY).run(place)
        assert filled.windows[0].values["instances"] == 3, filled.facts
        assert all(check.passed for check in filled.checks)
        assert len(filled.facts["deploy_s"]) == 2
        assert filled.windows[0].values["pss_mib_per_instance"] > 0.1
        contract.answers(place.instance)
    contract.nothing_left(lab, before)


def _booted(result: ProbeResult, own_kernel: bool) -> None:
    (window,) = result.windows
    values = window.values
    assert all(check.passed for check in result.checks), result.checks
    assert values["start_to_service_s"] == values["start_to_agent_s"] + values["service_s"]
    assert ("kernel_s" in values) is own_kernel
    if own_kernel:
        assert values["before_kernel_s"] + values["kernel_s"] == pytest.approx(values["start_to_agent_s"])
    # One that is there at the first question, as on a machine that stalls, is told to be a bound.
    assert (result.facts["attempts"] > 1) == (result.notes == [])


def _looked_at(result: ProbeResult, name: str) -> None:
    (window,) = result.windows
    values = window.values
    assert all(check.passed for check in result.checks), result.checks
    assert set(values) <= set(Idle.quantities)
    assert 0 < values["private_mib"] <= values["pss_mib"]
    assert values["processes"] >= (3 if name == "uml" else 1)  # the kernel, its disk's helper, the agent
    assert values["disk_mib"] > 0
    assert ("dockerd" in result.facts["shared_daemons"]) is (name == "docker")
    if name == "uml":  # the guest's memory alone
        assert values["pss_mib"] > 8  # what they have in common is shared out between all that run here


@pytest.mark.machine
def test_a_service_that_does_not_come_is_told_with_its_log(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tail_of_whole(agent: Agent, log: str) -> str:
        """When nginx has said why, however late."""
        deadline = time.monotonic() + 600
        while b"nonsense" not in agent.get(log) and time.monotonic() < deadline:
            time.sleep(0.02)
        return log_tail(agent, log)

    log_tail = daemon.log_tail
    monkeypatch.setattr(daemon, "log_tail", tail_of_whole)
    monkeypatch.setattr(Nginx, "configuration", lambda _self: "nonsense;")
    before = leaks.snapshot()
    with ExitStack() as stack:
        place = _place(lab, PLATFORMS["native"], stack, tmp_path)
        with pytest.raises(ProbeError, match=r'(?s)did not answer.*unknown directive "nonsense"') as raised:
            Boot(BootSettings(deadline_ns=1_000_000_000)).run(place)
        assert raised.value.kind == "peer"
        contract.answers(place.instance)
    contract.nothing_left(lab, before)


@pytest.mark.machine
def test_an_interrupt_in_the_middle_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    before = leaks.snapshot()
    with ExitStack() as stack:
        place = _place(lab, PLATFORMS["lxc"], stack, tmp_path)

        def another(number: int) -> AbstractContextManager[Instance]:
            if number == 2:
                raise KeyboardInterrupt
            return place.another(number)

        with pytest.raises(KeyboardInterrupt):
            Density(DENSITY).run(replace(place, another=another))
        contract.answers(place.instance)
    contract.nothing_left(lab, before)


def test_the_probes_are_found_and_name_what_stands_for_them() -> None:
    for name in ("boot", "idle", "density"):
        probe = probes()[name]
        assert probe.headline in probe.quantities
        assert probe.summary


def test_a_process_may_call_itself_anything(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_bytes(b"Name:\t\xff\xfe\nVmRSS:\t     12 kB\n")
    assert footprint._fields(status) == {"VmRSS": 12 * 1024}
