"""One study over many hosts: from the command line to the report, on loopback, with fakes for labs."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dask
import distributed
import pytest

from on_fakes import on_fakes
from virtoll import cli
from virtoll.cli import common
from virtoll.errors import DiskError, PlatformError, StoreError
from virtoll.fakes import fake_environment
from virtoll.files import durable
from virtoll.hosts.ledger import state_directory
from virtoll.hosts.lock import exclusive
from virtoll.record.model import Arm, PlannedTrial, SkippedArm, TrialRecord
from virtoll.record.store import INTERRUPTED, RunDirectory
from virtoll.report.contents import method
from virtoll.report.findings import find
from virtoll.report.method import log_scale
from virtoll.report.promises import promise
from virtoll.report.words import replicates_of
from virtoll.run import alone, cluster, environment, groups, hosting, over_hosts
from virtoll.run.fleet import Answer, Fleet
from virtoll.run.handed import Handed, packed, unpacked
from virtoll.run.hosting import Offer, Order
from virtoll.run.request import Request
from virtoll.run.trusted import settle
from yard import PATIENCE_S, SMALL, Yard, environment_here

pytestmark = pytest.mark.usefixtures("undrawn")

settle()


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    made = Yard(tmp_path, monkeypatch)
    monkeypatch.setattr(environment, "describe", lambda *_, **__: environment_here.found)
    try:
        yield made
    finally:
        made.end()


def once(host: str, do: Any, *, at: int = 2) -> Any:
    """For `Yard.before`: do it in the ``at``-th trial of a host, once."""
    seen: Counter[str] = Counter()

    def before(trial: PlannedTrial) -> None:
        seen[trial.host] += 1
        if trial.host == host and seen[host] == at:
            do()

    return before


def small(yard: Yard, blocks: int = 3) -> Path:
    path = yard.directory / "small.toml"
    path.write_text(SMALL.replace("blocks = 3", f"blocks = {blocks}"))
    return path


def by_status(records: list[TrialRecord]) -> dict[str, int]:
    return dict(Counter(record.status for record in records))


def told(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    return " ".join(f"{said.out} {said.err}".split())


# -- the whole way ----------------------------------------------------------------------------------------


def test_every_host_runs_whole_blocks_and_the_record_names_it(yard: Yard, capsys: Any) -> None:
    yard.start("node1", "node2", "node3")
    assert yard.run() == 0
    directory = yard.run_directory
    records = directory.records()
    assert by_status(records) == {"valid": 3 * 9}
    hosts = directory.plan.hosts
    assert Counter(hosts.values()) == {"node1": 3, "node2": 3, "node3": 3}
    assert {record.trial.block: record.trial.host for record in records} == hosts
    for host in ("node1", "node2", "node3"):
        assert directory.environment_of(host).comparable["machine"] == {"cpu_model": "fake"}
        mine = [record.trial for record in records if record.trial.host == host]
        assert [trial.id for trial in mine] == [t.id for t in directory.plan.trials if t.host == host], "in its order"
    assert all((yard.out / "trials" / record.trial.id / "latency.parquet").is_file() for record in records)
    assert "3 hosts, 3 blocks each: node1, node2, node3" in told(capsys)
    assert not list(state_directory().glob("fleet-*")), "what was handed back is gone from the hosts"


def test_one_host_is_a_fleet_too(yard: Yard, capsys: Any) -> None:
    yard.spread = 0.2
    yard.start("node1")
    assert yard.run() == 0
    said = told(capsys)
    assert "more blocks on each host, in a new run" in said
    assert "more in this one" not in said, "it cannot be extended"
    assert by_status(yard.run_directory.records()) == {"valid": 9}


@pytest.mark.parametrize("hosts", [("node1",), ("node1", "node2")])
def test_where_the_scatter_comes_from_is_told_of_one_host(yard: Yard, hosts: tuple[str, ...]) -> None:
    """Of one it said that what lies between the hosts is told by itself, and nothing is."""
    yard.start(*hosts)
    assert yard.run(text=SMALL.replace("seed = 4", 'seed = 4\ndesign = "rotation"')) == 0
    told = " ".join(method(find(yard.out)))
    assert ("**Scatter has two parts**" in told) is (len(hosts) == 1)
    assert ("hosts of a fleet measured it, and what lies between them is told by itself" in told) is (len(hosts) > 1)


def test_arms_in_rotation_go_turn_by_turn(yard: Yard) -> None:
    yard.start("node1", "node2")
    assert yard.run(text=SMALL.replace("seed = 4", 'seed = 4\ndesign = "rotation"')) == 0
    assert by_status(yard.run_directory.records()) == {"valid": 18}


def test_a_trial_that_fails_is_sealed_as_on_one_machine(yard: Yard, capsys: Any) -> None:
    yard.start("node1", "node2")
    yard.fail = {"b01-t0001": PlatformError("it never boots"), "b02-t0004": "limits in force"}
    assert yard.run() == 1
    found = {record.trial.id: record for record in yard.run_directory.records()}
    assert by_status(list(found.values())) == {"valid": 16, "failed": 1, "invalid": 1}
    assert found["b01-t0001"].reason == "it never boots"
    assert found["b01-t0001"].trial.host == "node1"
    assert len(found) == 18, "a trial that failed by itself is not tried again"


def test_a_host_whose_disk_is_full_measures_no_more_and_its_trials_come_again(yard: Yard, capsys: Any) -> None:
    """Each trial that it had left failed within milliseconds, for good."""
    yard.start("node1", "node2")
    yard.fail = {"b01-t0002": DiskError("cannot write the ledger: No space left on device")}
    assert yard.run() == 1
    assert "cannot write the ledger: No space left on device" in told(capsys)
    found = {record.trial.id: record for record in yard.run_directory.records()}
    assert found["b01-t0002"].reason.startswith(INTERRUPTED)
    assert by_status([record for record in found.values() if record.trial.host == "node1"]) == {"valid": 1, "failed": 1}
    assert by_status([record for record in found.values() if record.trial.host == "node2"]) == {"valid": 9}
    yard.fail = {}
    assert yard.go_on() == 0
    assert by_status(yard.run_directory.records()) == {"valid": 18, "failed": 1}


def test_a_slow_host_holds_nobody_up(yard: Yard) -> None:
    others_are_done = threading.Event()

    def before(trial: PlannedTrial) -> None:
        if trial.host == "node2" and trial.block == 6 and trial.position == 18:
            others_are_done.set()
        if trial.host == "node1":
            assert others_are_done.wait(PATIENCE_S)

    yard.start("node1", "node2")
    yard.before = before
    assert yard.run() == 0
    assert by_status(yard.run_directory.records()) == {"valid": 18}


def test_clocks_apart_change_nothing_and_are_told(yard: Yard, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(hosting, "time", SimpleNamespace(time=lambda: time.time() - 7200))
    yard.start("node1")
    assert yard.run() == 0
    apart_s = yard.run_directory.environment.notes["time of day apart, s"]["node1"]
    assert 7190 < apart_s <= 7200
    assert "node1: its time of day is 7,2" in told(capsys)


def test_dask_is_loaded_for_a_cluster_alone() -> None:
    code = "import sys, virtoll.run.measuring, virtoll.run.over_hosts; print('dask' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("words", [("run", "proxy", "--cluster"), ("worker",), ("scheduler",)], ids=" ".join)
def test_without_dask_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    on_fakes(monkeypatch, {})
    monkeypatch.setitem(sys.modules, "distributed", None)
    for name in ("cluster", "worker", "trusted"):
        monkeypatch.delitem(sys.modules, f"virtoll.run.{name}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main([*words, "tcp://127.0.0.1:1"])
    assert end.value.code == 3
    assert "several hosts need Dask, which is not installed here (distributed)" in told(capsys)


# -- what the report says ---------------------------------------------------------------------------------


def test_hosts_that_differ_are_told_apart_and_those_that_do_not_are_not(yard: Yard, capsys: Any) -> None:
    yard.tolls = {"node1": {"native": 1.0, "docker": 1.25}, "node2": {"native": 2.0, "docker": 3.2}}
    yard.start("node1", "node2")
    assert yard.run(text=SMALL.replace("blocks = 3", "blocks = 5")) == 0
    said = told(capsys)
    assert "The hosts differ by more than chance" in said
    assert "docker+routed: 0.6" in said
    findings = find(yard.out)
    (toll,) = findings.answering()
    assert toll.ratio is not None
    assert toll.ratio.value == pytest.approx(1 / math.sqrt(1.25 * 1.6), rel=0.02), "hosts weigh the same"
    assert "by blocks within hosts" in toll.ratio.method
    assert toll.ratio.n == 10
    page = (yard.out / "report" / "index.html").read_text().replace("\u00a0", " ")
    assert "How far do the hosts differ?" in page
    assert "Hosts are a blocking factor" in page
    assert "of another host they say nothing" in page


def test_hosts_of_different_speed_and_equal_toll_are_one(yard: Yard, capsys: Any) -> None:
    yard.tolls = {"node1": {"native": 1.0, "docker": 1.25}, "node2": {"native": 3.0, "docker": 3.75}}
    yard.start("node1", "node2")
    assert yard.run(text=SMALL.replace("blocks = 3", "blocks = 5")) == 0
    assert "hosts differ" not in told(capsys)
    (toll,) = find(yard.out).answering()
    assert toll.ratio is not None
    assert toll.ratio.value == pytest.approx(0.8, rel=0.02)


def test_from_five_hosts_on_the_host_is_what_is_counted(yard: Yard) -> None:
    names = [f"node{number}" for number in range(1, 6)]
    yard.tolls = {name: {"native": 1.0, "docker": 1.2 + 0.05 * at} for at, name in enumerate(names)}
    yard.start(*names)
    assert yard.run(text=SMALL.replace("blocks = 3", "blocks = 2")) == 0
    findings = find(yard.out)
    (toll,) = findings.answering()
    assert toll.ratio is not None
    assert (toll.ratio.n, toll.verdict.kind) == (5, "costs")
    assert "t interval by hosts" in toll.ratio.method
    assert "over the hosts that hold valid values (n: at most 5 hosts)" in log_scale(findings)
    assert replicates_of(findings, [4, 5]) == "4 to 5 of 5 hosts"


@pytest.mark.parametrize(
    ("names", "notes", "promised"),
    [
        (("node1",), {"calibration": None, "not_calibrated": "there was none"}, "**No calibration of node1 (there was"),
        (("node1",), {"calibration": {"alarms": 3}}, "`virtoll calibrate --quick` on node1 measures it"),
        (("node1", "node2"), {"calibration": {"alarms": 3}}, "**A calibration is of one machine**: "),
    ],
)
def test_a_calibration_is_that_of_the_host_which_measures(
    yard: Yard, names: tuple[str, ...], notes: dict[str, Any], promised: str
) -> None:
    """Where a host was calibrated its run's report said that "this machine" was not, and how to do it here."""
    for name in names:
        here = fake_environment(machine={"cpu_model": "fake"})
        yard.environments[name] = here.model_copy(update={"notes": {**here.notes, **notes}})
    yard.start(*names)
    assert yard.run() == 0
    assert promised in promise(find(yard.out))


def test_other_verbs_read_it_as_any_run(yard: Yard, capsys: Any) -> None:
    yard.start("node1", "node2")
    for out in ("before", "after"):
        assert yard.virtoll("run", str(small(yard)), "--out", str(yard.directory / out)) == 0
    before, after = (str(yard.directory / out) for out in ("before", "after"))
    capsys.readouterr()
    for words in (("compare", before, after), ("advise", before), ("history", str(yard.directory)), ("report", after)):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        assert end.value.code == 0, told(capsys)
    said = told(capsys)
    assert "no change shown" in said or "no difference shown" in said


def test_how_many_users_a_host_carries_is_not_told_of_several(yard: Yard, capsys: Any) -> None:
    yard.start("node1", "node2")
    assert yard.run() == 0
    with pytest.raises(SystemExit) as end:
        cli.main(["plan", str(yard.out), "--users", "100", "--host-cpus", "4", "--host-memory", "8GiB"])
    assert end.value.code == 2
    assert "several hosts measured it" in told(capsys)


# -- who does not take part -------------------------------------------------------------------------------


def test_a_host_with_another_image_or_agent_is_left_out_with_a_sentence(yard: Yard, capsys: Any) -> None:
    yard.environments = {
        "node1": fake_environment(images={"instance": "aa"}, agent="11", machine={"cpu_model": "old"}),
        "node2": fake_environment(images={"instance": "bb"}, agent="22", machine={"cpu_model": "new"}),
        "node3": fake_environment(images={"instance": "aa"}, agent="11", machine={"cpu_model": "new"}),
    }
    yard.start("node1", "node2", "node3")
    assert yard.run() == 0
    directory = yard.run_directory
    assert set(directory.plan.hosts.values()) == {"node1", "node3"}
    said = told(capsys)
    assert "node2 does not take part: it would measure something else than node1" in said
    assert "agent: was 11, is 22" in said
    assert "images.instance: was aa, is bb" in said
    comparable = directory.environment.comparable
    assert comparable["images"] == {"instance": "aa"}, "what all have alike"
    assert comparable["hosts"]["node3"] == {"machine": {"cpu_model": "new"}}, "and what each has of its own"
    assert "node2" in directory.environment.notes["refused hosts"]
    assert yard.hosting("node2").run is None, "it is free again"


def test_a_host_of_another_version_is_left_out(yard: Yard, capsys: Any) -> None:
    offer = hosting.Offer(virtoll="0.0.1", wall_s=time.time(), arms=[], skipped=[])
    yard.instead["node2", "look"] = offer.model_dump_json().encode()
    yard.start("node1", "node2")
    assert yard.run() == 0
    assert "node2 does not take part: its virtoll is 0.0.1, and this one is" in told(capsys)


def test_a_host_where_another_virtoll_is_at_work_is_left_out(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(hosting, "alone", alone.alone)  # the lock that a local run takes
    yard.start("node1")
    with exclusive(state_directory()):
        assert yard.run() == 3
    said = told(capsys)
    assert "no host can measure this node1: " in said
    assert "another virtoll is at work here (process" in said
    assert not yard.out.exists()
    assert yard.run() == 0, "and the lock was given up"
    with exclusive(state_directory()):
        pass


def test_two_studies_never_measure_on_one_host_at_once(yard: Yard) -> None:
    answers = []
    other = Order(run="another", kind="look", study={}, file="other.toml")
    yard.before = once("node1", lambda: answers.append(yard.hosting("node1").answer(other.model_dump_json().encode())))
    yard.start("node1")
    assert yard.run() == 0
    assert b"another study is at work here" in answers[0]
    assert by_status(yard.run_directory.records()) == {"valid": 9}, "and the one that was there is not disturbed"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--decide", "5%"], "--decide: that is for a run on one machine"),
        (["--precision", "2%"], "--precision: that is for a run on one machine"),
        (["--budget", "1h"], "--budget: that is for a run on one machine"),
    ],
)
def test_what_many_hosts_cannot_do_is_refused(yard: Yard, capsys: Any, options: list[str], said: str) -> None:
    assert yard.run(*options) == 2
    assert said in told(capsys)


@pytest.mark.parametrize("study", ["isolation", "streaming-together"])
def test_instances_beside_each_other_are_of_one_machine(yard: Yard, capsys: Any, study: str) -> None:
    assert yard.virtoll("run", study, "--quick", "--out", str(yard.out)) == 2
    assert f"{study} sets instances beside each other" in told(capsys)


ELSEWHERE = SMALL + '[[arms]]\nplatform = "ssh"\ndestination = "root@192.0.2.7"\n'


def test_a_machine_elsewhere_is_not_loaded_by_several_hosts_at_a_time(yard: Yard, capsys: Any) -> None:
    yard.start("node1", "node2")
    assert yard.run(text=ELSEWHERE) == 2
    assert re.search("ssh.direct.*: it is one machine, and 2 hosts would load it at a time, at the same", told(capsys))
    assert not yard.out.exists()
    assert yard.run() == 0, "they are free again"


def test_a_machine_elsewhere_that_is_optional_is_left_out_by_several_hosts_and_measured_by_one(yard: Yard) -> None:
    yard.tolls = {"node1": {"native": 1.0, "docker": 1.25, "ssh": 1.1}}
    yard.start("node1", "node2")
    assert yard.run(text=f"{ELSEWHERE}optional = true\n") == 0
    assert {trial.arm.platform for trial in yard.run_directory.plan.trials} == {"native", "docker"}
    (left,) = yard.run_directory.environment.skipped
    assert (left.arm.platform, "2 hosts would load it" in left.reason) == ("ssh", True)


def test_one_host_of_a_fleet_measures_a_machine_elsewhere_and_says_so_before(yard: Yard, capsys: Any) -> None:
    yard.tolls = {"node1": {"native": 1.0, "docker": 1.25, "ssh": 1.1}}
    yard.start("node1")
    yard.before = once("node1", lambda: yard.kill("node1"))
    assert yard.run(text=ELSEWHERE) == 1
    said = "root@192.0.2.7: commands, the image and the load go to this machine, and to nobody else.*make ready"
    assert re.search(said, told(capsys))
    yard.start("node1")
    assert yard.go_on() == 0
    assert re.search(said, told(capsys))
    assert {trial.arm.platform for trial in yard.run_directory.plan.trials} == {"native", "docker", "ssh"}


def test_a_dry_run_shows_what_each_host_does_and_asks_nobody(yard: Yard, capsys: Any) -> None:
    yard.start("node1")
    assert yard.run("--dry-run") == 0
    assert "9 trials" in told(capsys)
    assert not yard.performed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("proxy", "--tls", "x"), "--tls: certificates are for a scheduler -> name it: --cluster"),
        (("web", "--target", "http://127.0.0.1/", "--cluster", "tcp://127.0.0.1:1"), "--cluster is for arms"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(common, "require_root", lambda: None)
    with pytest.raises(SystemExit) as end:
        cli.main(["run", *words])
    assert end.value.code == 2
    assert said in told(capsys)


def test_without_workers_it_says_how_to_start_them(yard: Yard, capsys: Any) -> None:
    assert yard.run() == 3
    assert f"no host waits at this scheduler -> on each: virtoll worker {yard.address}" in told(capsys)


# -- who is lost ------------------------------------------------------------------------------------------


def test_a_worker_that_dies_loses_its_trial_alone_and_comes_again(yard: Yard, capsys: Any) -> None:
    yard.start("node1", "node2", "node3")
    yard.before = once("node2", lambda: yard.kill("node2"))
    assert yard.run() == 1
    records = yard.run_directory.records()
    (lost,) = [record for record in records if record.status != "valid"]
    assert (lost.trial.host, lost.status) == ("node2", "failed")
    assert lost.reason == "interrupted: node2: its worker was lost"
    assert Counter(record.trial.host for record in records) == {"node1": 9, "node2": 2, "node3": 9}
    assert "8 trials left; node2: its worker was lost" in told(capsys)

    done = [record.trial.id for record in records]
    yard.performed.clear()
    yard.start("node2")
    assert yard.go_on() == 0
    assert not set(done) & set(yard.performed), "nothing sealed is measured again"
    assert f"{lost.trial.id}r" in yard.performed
    records = yard.run_directory.records()
    assert by_status(records) == {"valid": 27, "failed": 1}
    assert Counter(record.sitting for record in records) == {1: 20, 2: 8}, "of the run, whatever a host counts"


def test_a_lost_scheduler_loses_nothing_sealed_and_another_goes_on(yard: Yard, capsys: Any) -> None:
    yard.start("node1", "node2")
    yard.before = once("node1", yard.lose_scheduler, at=3)
    assert yard.run() == 1
    records = yard.run_directory.records()
    assert {record.reason.partition(": ")[0] for record in records if record.status == "failed"} == {"interrupted"}
    assert "is gone" in told(capsys)
    done = {record.trial.id for record in records}
    performed = list(yard.performed)
    assert set(performed) <= done, "nothing was measured that nobody knows of"

    yard.performed.clear()
    yard.start_scheduler()
    yard.start("node1", "node2")
    assert yard.go_on() == 0
    assert not set(yard.performed) & done
    assert by_status(yard.run_directory.records())["valid"] == 18


def test_an_order_that_no_scheduler_carries_any_more_is_lost(yard: Yard) -> None:
    yard.start("node1")
    orders = cluster.DaskCluster(yard.address, yard.tls, "run")
    yard.lose_scheduler()
    while orders._client.status == "running":
        time.sleep(0.01)
    orders.ask("node1", b"{}")
    said = orders.next()
    assert (said.host, said.lost) == ("node1", f"the scheduler at {orders._address} is gone")
    orders.close()


def test_a_scheduler_that_ends_loses_its_workers_first_and_is_told_all_the_same(yard: Yard) -> None:
    """Its last words were that of a lost worker, where that one came before the connection was cut."""
    yard.start("node1")
    orders = cluster.DaskCluster(yard.address, yard.tls, "run")
    killed = distributed.KilledWorker("order", cast(Any, None), 0)
    last = SimpleNamespace(status="error", exception=lambda **_: killed)
    came = cluster._Came("node1", last)
    assert orders._answered(came).lost == "its worker was lost"
    yard.lose_scheduler()
    assert orders._answered(came).lost == f"the scheduler at {orders._address} is gone"
    orders.close()


def test_an_interrupted_run_leaves_no_host_at_work(yard: Yard, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    answered, real = [], cluster.DaskCluster.next

    def next_or_interrupt(self: cluster.DaskCluster) -> Any:
        answered.append(1)
        if len(answered) == 9:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(cluster.DaskCluster, "next", next_or_interrupt)
    yard.start("node1", "node2")
    assert yard.run() == 130
    how = f"--cluster {yard.address} --tls {shlex.quote(str(yard.tls))}"
    assert f"interrupted; `virtoll run {yard.out} {how}` goes on" in told(capsys)
    failed = [record for record in yard.run_directory.records() if record.status == "failed"]
    assert {record.reason for record in failed} == {"interrupted: by the user"}
    deadline = time.monotonic() + PATIENCE_S
    while any(yard.hosting(name).run for name in ("node1", "node2")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    monkeypatch.setattr(cluster.DaskCluster, "next", real)
    assert yard.go_on() == 0
    assert by_status(yard.run_directory.records())["valid"] == 18


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            Request("proxy", cluster="tls://h:1", tls=Path("/our own/tls")),
            ["--cluster", "tls://h:1", "--tls", "/our own/tls"],
        ),
        (Request("proxy", host="ssh://root@[2001:db8::7]:22"), ["--host", "ssh://root@[2001:db8::7]:22"]),
    ],
    ids=["--cluster", "--host"],
)
def test_the_command_by_which_a_run_goes_on_is_read_by_a_shell_as_it_is_meant(
    request_: Request, words: list[str]
) -> None:
    """A directory of certificates with a space in its name was two words, and an IPv6 address a pattern of files."""
    done = subprocess.run(["sh", "-c", f"printf '%s\\n'{over_hosts._how(request_)}"], capture_output=True, text=True)
    assert done.stdout.splitlines() == words


def test_a_run_goes_on_without_the_host_that_is_not_there(yard: Yard, capsys: Any) -> None:
    yard.start("node1", "node2")
    yard.before = once("node2", lambda: yard.kill("node2"))
    assert yard.run() == 1
    yard.start("node3")
    assert yard.go_on() == 3
    assert "none of node2 is there" in told(capsys)


def test_a_host_that_is_not_as_it_was_does_not_go_on(yard: Yard, capsys: Any) -> None:
    yard.start("node1", "node2")
    yard.before = once("node2", lambda: yard.kill("node2"))
    assert yard.run() == 1
    yard.environments["node2"] = fake_environment(machine={"cpu_model": "another"})
    yard.start("node2")
    assert yard.go_on() == 3
    assert "machine.cpu_model: was fake, is another" in told(capsys)


def test_a_host_whose_memory_does_not_hold_a_turn_any_more_does_not_go_on(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    yard.start("node1", "node2")
    yard.before = once("node2", lambda: yard.kill("node2"))
    assert yard.run(text=SMALL.replace("seed = 4", 'seed = 4\ndesign = "rotation"')) == 1
    yard.performed.clear()
    monkeypatch.setattr(groups, "free_bytes", lambda *_: 2**30)
    yard.start("node2")
    assert yard.go_on() == 1
    said = told(capsys)
    assert "9 trials left; node2: 3 arms side by side, and one more to prove the limits, may take 2 GiB" in said
    assert yard.performed == [], "what would fail for want of memory is left for another day"
    monkeypatch.setattr(groups, "free_bytes", lambda *_: 2**40)
    assert yard.go_on() == 0


def test_a_run_of_hosts_goes_on_by_hosts_and_one_of_this_machine_here(yard: Yard, capsys: Any) -> None:
    yard.start("node1")
    assert yard.run() == 0
    with pytest.raises(SystemExit) as end:
        cli.main(["run", str(yard.out)])
    assert end.value.code == 2
    assert "this run is measured by node1" in told(capsys)
    for blocks in ("9", "2"):  # it has three
        assert yard.go_on("--blocks", blocks) == 2
        assert "--blocks: a run of several hosts is not extended -> leave it out" in (said := told(capsys))
        assert "ask for more" not in said
    assert yard.go_on("--budget", "1m") == 2
    assert "--budget: that is for a run on one machine" in told(capsys)
    assert yard.go_on() == 0, "all is done: its report is built again"


# -- what is not to be trusted ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "which end within their heading"),
        (b"\xff" * 100, "a heading of 18,446,744,073,709,551,615 B"),
        ("text", "a str, and no bytes"),
        (b"\0" * 7 + b"\2{}", "no heading of trials"),
    ],
    ids=["nothing", "bytes", "text", "no heading"],
)
def test_garbage_is_no_trial_and_its_host_is_not_asked_again(
    yard: Yard, capsys: Any, answer: object, said: str
) -> None:
    yard.instead["node2", "perform"] = answer
    yard.start("node1", "node2")
    assert yard.run() == 1
    records = yard.run_directory.records()
    (bad,) = [record for record in records if record.status != "valid"]
    assert bad.trial.host == "node2"
    assert bad.reason.startswith("node2: what its host handed back cannot be read")
    assert said in bad.reason
    assert by_status(records) == {"valid": 9, "failed": 1}
    assert "8 trials left; node2: what its host" in told(capsys)


def test_a_host_whose_tables_are_garbage_keeps_no_others_from_being_reported(yard: Yard) -> None:
    real, turn = yard.hosting("node2").answer, []

    def answer(data: bytes) -> bytes:
        said, order = real(data), Order.model_validate_json(data)
        if order.kind != "perform":
            return said
        turn.extend(order.trials)
        (handed,) = unpacked(said, order.trials)
        return packed([Handed(handed.record, {**handed.files, "latency.parquet": b"garbage"})])

    yard.hostings["node2"].answer = answer  # type: ignore[method-assign]
    yard.start("node1", "node2")
    assert yard.run() == 1
    assert len(turn) == 1, "and it is not asked again"
    records = yard.run_directory.records()
    (bad,) = [record for record in records if record.status != "valid"]
    assert "node2: what its host handed back cannot be read: it is a damaged latency.parquet" in bad.reason
    assert by_status(records) == {"valid": 9, "failed": 1}
    assert find(yard.out).answering()


def offered(yard: Yard, host: str, change: Callable[[Offer], Offer]) -> None:
    """What a host says that it offers is changed."""
    real = yard.hosting(host).answer

    def answer(data: bytes) -> bytes:
        said = real(data)
        if Order.model_validate_json(data).kind != "look":
            return said
        return change(Offer.model_validate_json(said)).model_dump_json().encode()

    yard.hostings[host].answer = answer  # type: ignore[method-assign]


def test_an_arm_that_the_study_does_not_name_is_not_measured(yard: Yard) -> None:
    strange = Arm(label="nobody's", platform="nobody's", network="none")
    told = SkippedArm(arm=strange.model_copy(update={"label": "another"}), reason="it is not there")
    for host in ("node1", "node2"):
        offered(yard, host, lambda offer: offer.model_copy(update={"arms": [*offer.arms, strange], "skipped": [told]}))
    yard.start("node1", "node2")
    assert yard.run() == 0
    directory = yard.run_directory
    assert {trial.arm.platform for trial in directory.plan.trials} == {"native", "docker"}
    assert directory.environment.skipped == []


def test_a_host_that_offers_another_arm_by_the_name_of_the_studys_is_left_out(yard: Yard, capsys: Any) -> None:
    def change(offer: Offer) -> Offer:
        arms = [arm.model_copy(update={"network": "nat"} if arm.platform == "docker" else {}) for arm in offer.arms]
        return offer.model_copy(update={"arms": arms})

    offered(yard, "node1", change)
    yard.start("node1", "node2")
    assert yard.run() == 0
    assert set(yard.run_directory.plan.hosts.values()) == {"node2"}
    assert "node1 does not take part: it does not offer docker+routed" in told(capsys)


def test_an_optional_arm_is_not_measured_where_a_host_does_not_name_it(yard: Yard, capsys: Any) -> None:
    offered(yard, "node2", lambda offer: offer.model_copy(update={"arms": offer.arms[:2]}))
    yard.start("node1", "node2")
    assert yard.run(text=SMALL.replace('platform = "docker"', 'platform = "docker"\noptional = true')) == 0
    assert {trial.arm.platform for trial in yard.run_directory.plan.trials} == {"native"}
    assert "not measured: docker+routed: node2: it does not say why" in told(capsys)


def test_a_refusal_is_kept_in_bounds_and_without_orders_to_a_terminal(yard: Yard, capsys: Any) -> None:
    """One host's words must not grow a run past what can be read again."""
    yard.instead["node2", "perform"] = hosting.Refusal(refused="\x1b[2J" + "x" * 1_000_000).model_dump_json().encode()
    yard.start("node1", "node2")
    assert yard.run() == 1
    (bad,) = [record for record in yard.run_directory.records() if record.status != "valid"]
    assert bad.reason.startswith("interrupted: node2: \ufffd[2Jxxx")
    assert len(bad.reason) < 3000
    assert "\x1b" not in "".join(capsys.readouterr())


def test_what_a_host_says_first_is_printed_without_orders_to_a_terminal(yard: Yard, capsys: Any) -> None:
    yard.instead["node2", "look"] = hosting.Refusal(refused="\x1b]0;mine\x07").model_dump_json().encode()
    yard.start("node1", "node2")
    assert yard.run() == 0
    said = capsys.readouterr()
    assert "node2 does not take part: \ufffd]0;mine\ufffd" in said.out + said.err
    assert "\x1b" not in said.out + said.err


def test_an_interrupt_between_a_seal_and_its_notice_seals_nothing_twice(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sealed = RunDirectory.seal, list[str]()

    def seal(self: RunDirectory, *records: TrialRecord) -> list[TrialRecord]:
        kept = real(self, *records)
        if self.path == yard.out:  # and no host's own
            sealed.extend(record.trial.id for record in records)
            if len(sealed) == 3:
                raise KeyboardInterrupt
        return kept

    monkeypatch.setattr(RunDirectory, "seal", seal)
    yard.start("node1", "node2")
    assert yard.run() == 130
    monkeypatch.setattr(RunDirectory, "seal", real)
    ids = [record.trial.id for record in yard.run_directory.records()]
    assert len(ids) == len(set(ids))
    assert yard.go_on() == 0
    assert by_status(yard.run_directory.records())["valid"] == 18


def test_an_interrupt_while_a_turn_is_sealed_takes_effect_when_all_of_it_is(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of it came again alone, and were compared with what had been measured beside them another day."""
    real, sealed = RunDirectory.seal, Counter[str]()

    def seal(self: RunDirectory, *records: TrialRecord) -> list[TrialRecord]:
        if self.path == yard.out:  # and no host's own
            sealed.update(record.trial.turn for record in records)
            if len(sealed) == 2:
                os.kill(os.getpid(), signal.SIGINT)
        return real(self, *records)

    monkeypatch.setattr(RunDirectory, "seal", seal)
    yard.start("node1")
    assert yard.run(text=SMALL.replace("seed = 4", 'seed = 4\ndesign = "rotation"')) == 130
    assert sorted(sealed.values()) == [3, 3]
    assert by_status(yard.run_directory.records()) == {"valid": 6}
    assert yard.go_on() == 0
    assert by_status(yard.run_directory.records()) == {"valid": 9}


def test_a_turn_whose_files_cannot_all_be_kept_comes_again_whole(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept of it before the disk was full was sealed as valid, and the others came again alone."""
    real, kept = RunDirectory.write_together, Counter[str]()

    def write_together(self: RunDirectory, trial: PlannedTrial, files: Any) -> None:
        kept[trial.turn] += 1
        if len(kept) == 2 and kept[trial.turn] == 2:
            raise StoreError("No space left on device")
        real(self, trial, files)

    monkeypatch.setattr(RunDirectory, "write_together", write_together)
    yard.start("node1")
    assert yard.run(text=SMALL.replace("seed = 4", 'seed = 4\ndesign = "rotation"')) == 4
    found = {turn: Counter[str]() for turn in kept}
    for record in yard.run_directory.records():
        found[record.trial.turn][record.status] += 1
    assert list(found.values()) == [{"valid": 3}, {"failed": 3}]
    monkeypatch.setattr(RunDirectory, "write_together", real)
    assert yard.go_on() == 0
    assert by_status(yard.run_directory.records()) == {"valid": 9, "failed": 3}


def test_a_trial_is_there_for_good_before_its_host_is_asked(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real = [], durable.sync

    def sync(path: Path) -> None:
        synced.append((path.name, len(list(path.iterdir())) if path.is_dir() else 0))
        real(path)

    monkeypatch.setattr(durable, "sync", sync)
    yard.before = lambda trial: synced.append((trial.id, 0))
    yard.start("node1")
    assert yard.run() == 0
    at = [name for name, _ in synced]
    for number, record in enumerate(yard.run_directory.records(), 1):
        assert ("trials", number) in synced[: at.index(record.trial.id)]


def test_a_worker_that_leaves_with_its_answer_holds_nobody_up(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it did is done, as the scheduler knows, and its bytes never come."""
    monkeypatch.setattr(cluster, "_LOOK_S", 0.1)
    never: futures.Future[bytes] = futures.Future()
    monkeypatch.setattr(cluster.DaskCluster, "_fetched", lambda *_: never)
    yard.start("node1", "node2")
    orders = cluster.DaskCluster(yard.address, yard.tls, "run")
    monkeypatch.setattr(orders._client, "nbytes", lambda *_, **__: {})
    yard.hosting("node1")
    yard.kill("node1")
    done = SimpleNamespace(status="finished", key="an order")
    assert orders._answered(cluster._Came("node1", done)) == Answer("node1", lost="its worker has left with its answer")
    orders.close()


def test_an_answer_is_fetched_once_however_long_it_takes(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_LOOK_S", 0.01)
    yard.start("node1")
    orders = cluster.DaskCluster(yard.address, yard.tls, "run")
    fetched, real = [], yard.scheduler.handlers["gather"]

    async def slowly(*words: Any, **options: Any) -> Any:
        fetched.append(1)
        await asyncio.sleep(0.3)
        return await real(*words, **options)

    monkeypatch.setitem(yard.scheduler.handlers, "gather", slowly)
    orders.ask("node1", Order(run="run", kind="end").model_dump_json().encode())
    said = orders.next()
    assert isinstance(said.data, bytes)
    assert b"no run is under way here" in said.data
    assert len(fetched) == 1
    orders.close()


def test_an_order_that_was_never_given_is_lost_though_the_scheduler_is_back(yard: Yard) -> None:
    yard.start("node1")
    orders = cluster.DaskCluster(yard.address, yard.tls, "run")
    orders._at_work["node1"] = None  # as where the connection was gone when it was to be given
    (gone,) = orders._look()
    assert gone.host == "node1"
    assert gone.lost
    orders.close()


def test_what_a_host_could_not_undo_at_the_end_is_told(yard: Yard, capsys: Any) -> None:
    left = hosting.Refusal(refused="not all was undone: a mount is busy")
    yard.instead["node2", "end"] = left.model_dump_json().encode()
    yard.start("node1", "node2")
    assert yard.run() == 0
    assert "warning: node2: not all was undone: a mount is busy" in told(capsys)


def test_a_host_whose_answer_cannot_be_read_is_free_again(yard: Yard) -> None:
    real = yard.hosting("node2").answer

    def answer(data: bytes) -> bytes:
        said = real(data)
        return b"nonsense" if Order.model_validate_json(data).kind == "look" else said

    yard.hostings["node2"].answer = answer  # type: ignore[method-assign]
    yard.start("node1", "node2")
    assert yard.run() == 0
    assert yard.hosting("node2").run is None


def test_groups_are_those_of_the_host_with_least_memory() -> None:
    def ready(free_bytes: int, *groups: list[str]) -> hosting.Ready:
        return hosting.Ready(environment=fake_environment(), groups=list(groups), free_bytes=free_bytes)

    study = SimpleNamespace(blocks=1)
    seen: list[Any] = []

    def plan(_study: Any, _arms: Any, _overhead: Any, *, groups: Any) -> Any:
        seen.append(groups)
        return SimpleNamespace(trials=[], model_copy=lambda **_: None, estimate_s=1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(over_hosts, "make_plan", plan)
        patch.setattr(dataclasses, "replace", lambda each, **_: each)
        two = {"a": ready(1630, ["q", "f"], ["d", "l"]), "b": ready(1380, ["q", "d"], ["f", "l"])}
        over_hosts.planned(cast(Any, study), [], two)
    assert seen == [[["q", "d"], ["f", "l"]]]


@pytest.mark.parametrize(
    ("design", "divided"),
    [
        ("blocks", [["docker+routed"], ["native+routed (again)"]]),
        ("rotation", [["docker+routed"]]),
        ("rotation", [["docker+routed"], ["docker+routed"]]),
        ("rotation", [["nobody's"]]),
        ("rotation", [[], []]),
    ],
)
def test_a_host_whose_groups_are_none_is_left_out(
    yard: Yard, capsys: Any, design: str, divided: list[list[str]]
) -> None:
    """Planned by it, the run of all hosts ended with a traceback, or without some of its arms."""
    real = yard.hosting("node1").answer

    def answer(data: bytes) -> bytes:
        said = real(data)
        if Order.model_validate_json(data).kind != "prepare":
            return said
        ready = hosting.Ready.model_validate_json(said)
        return ready.model_copy(update={"groups": divided, "free_bytes": 1}).model_dump_json().encode()

    yard.hostings["node1"].answer = answer  # type: ignore[method-assign]
    yard.start("node1", "node2")
    text = SMALL if design == "blocks" else SMALL.replace("seed = 4", 'seed = 4\ndesign = "rotation"')
    assert yard.run(text=text) == 0
    assert set(yard.run_directory.plan.hosts.values()) == {"node2"}
    assert yard.hosting("node1").run is None
    assert "node1 does not take part: its answer makes no sense" in told(capsys)


def test_a_host_that_divides_each_arm_of_a_rotation_into_a_group_takes_part() -> None:
    roles = {"native": "baseline", "native again": "floor", "docker": "treatment", "lxc": "treatment"}
    arms = [Arm(label=label, platform="native", network="none", role=cast(Any, role)) for label, role in roles.items()]
    groups = [["docker", "native again"], ["lxc"]]
    ready = {"a": hosting.Ready(environment=fake_environment(), groups=groups, free_bytes=1)}
    fleet = Fleet(cast(Any, SimpleNamespace(hosts=("a",))), "run", print)
    assert fleet.divided(ready, arms, "rotation") == ready


def test_too_much_is_not_even_fetched(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "MOST_BYTES", 2_000_000)
    yard.instead["node2", "perform"] = b"x" * 3_000_000
    yard.start("node1", "node2")
    assert yard.run() == 1
    (bad,) = [record for record in yard.run_directory.records() if record.status != "valid"]
    assert "its answer is 3,000,0" in bad.reason


@pytest.mark.parametrize("kind", ["look", "prepare"])
def test_a_host_that_says_nonsense_first_does_not_take_part(yard: Yard, capsys: Any, kind: str) -> None:
    yard.instead["node2", kind] = b"[" * 100_000
    yard.start("node1", "node2")
    assert yard.run() == 0
    assert "node2 does not take part: its answer cannot be read" in told(capsys)


def test_a_plain_dask_scheduler_is_refused(yard: Yard, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.start("node1")
    monkeypatch.setattr(cluster, "settle", lambda: None)
    with dask.config.set({"distributed.scheduler.allowed-failures": 3}):  # of this process, and so of the scheduler
        assert yard.run() == 3
    assert "it could have a trial measured twice -> start it by `virtoll scheduler`" in told(capsys)
