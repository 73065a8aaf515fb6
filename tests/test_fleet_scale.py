"""A fleet of many hosts: nothing is done by the square of their number, and nothing that is told is without bounds.

Operations are counted, and no clock is asked. Hosts are those of the bench (`bench.growing.hosts.MadeUp`).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import queue
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench.growing import hosts as bench_hosts
from bench.growing.hosts import MadeUp, coordinate, sizes_of
from bench.growing.workers import Pair, Took, growth
from virtoll.analysis import hosts as analysis_hosts
from virtoll.analysis.estimates import over_conditions
from virtoll.analysis.hosts import by_host
from virtoll.analysis.keeping import keep
from virtoll.analysis.load import Run, read_run
from virtoll.analysis.measuring import _without_trials, measure
from virtoll.errors import HostError, StoreError
from virtoll.files.confined import whole_lines
from virtoll.plain import listed
from virtoll.record import store
from virtoll.record.comparable import alike, differences
from virtoll.record.model import PlannedTrial, TrialRecord
from virtoll.record.store import RunDirectory
from virtoll.report import history_page, page
from virtoll.report.change_forms import as_json, remarks
from virtoll.report.changes import Compared
from virtoll.report.findings import Findings, find
from virtoll.report.running import RunningTable
from virtoll.report.sections import steadiness
from virtoll.report.sections.hosts import Hosts
from virtoll.report.tables import trials_csv
from virtoll.run import cluster, fleet, over_hosts
from virtoll.run.cluster import DaskCluster
from virtoll.run.fleet import Answer, Fleet
from virtoll.run.hosting import Order, Ready, Refusal
from virtoll.run.progress import LiveProgress

TRIALS = 6  # of each of the bench's hosts
FEW, MANY = 7, 14


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Run directories of a few hosts and of more."""
    directory = tmp_path_factory.mktemp("fleets")
    for hosts in (FEW, MANY):
        coordinate(hosts, directory / str(hosts))
    return {hosts: directory / str(hosts) for hosts in (FEW, MANY)}


@pytest.fixture(scope="module")
def many(fleets: Mapping[int, Path]) -> Findings:
    return find(fleets[MANY])


class Counted:
    """How often a function is called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.times = function, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.times += 1
        return self.function(*arguments, **options)

    def __get__(self, of: object, _kind: object) -> Any:
        return partial(self, of)


# -- the coordinator --------------------------------------------------------------------------------------


def test_a_host_is_given_four_orders_and_one_for_each_trial(tmp_path: Path) -> None:
    found = {hosts: coordinate(hosts, tmp_path / f"{hosts}") for hosts in (2, 4)}
    assert {hosts: cost.orders for hosts, cost in found.items()} == {2: 2 * (4 + TRIALS), 4: 4 * (4 + TRIALS)}
    assert found[4].orders_bytes < 2.1 * found[2].orders_bytes
    kept = {hosts: sizes_of(tmp_path / f"{hosts}") for hosts in found}
    for name in ("plan.json", "trials.jsonl", "environments"):
        assert 0 < kept[4][name] < 2.1 * kept[2][name], name
    records = RunDirectory(tmp_path / "4").records()
    assert Counter(record.status for record in records) == {"valid": 4 * TRIALS}


def test_a_disk_is_waited_for_as_seldom_as_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To sync takes longer than all else: of a trial its place, its files, their names, and its record, once each."""
    dirty: dict[str, int] = {}
    waits: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "write", "rename", "mkdir")}

    def path_of(descriptor: int) -> str:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())

    def changed(name: str, where: Callable[..., str]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            dirty[where(*arguments)] = 1
            return real[name](*arguments, **options)

        return call

    def fsync(descriptor: int) -> None:
        if dirty.pop(path_of(descriptor), 0) and "/trials/" in path_of(descriptor):
            waits.append(path_of(descriptor))
        real["fsync"](descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "write", changed("write", lambda descriptor, *_: path_of(descriptor)))
    monkeypatch.setattr(os, "rename", changed("rename", lambda _, path: str(Path(path).parent)))
    monkeypatch.setattr(os, "mkdir", changed("mkdir", lambda path, *_: str(Path(path).parent)))
    coordinate(2, tmp_path / "run")
    files = 3  # of each trial: latency, outside, inside
    assert len(waits) == 2 * TRIALS * (files + 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "a", 1.0]),
    lambda each: st.lists(each, max_size=2) | st.dictionaries(st.sampled_from("ab"), each, max_size=2),
    max_leaves=6,
)
COMPARABLE = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(COMPARABLE, COMPARABLE)
def test_environments_are_alike_where_nothing_differs(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (alike(one) == alike(other)) == (not differences(one, other))
    assert hash(alike(one)) == hash(alike(json.loads(json.dumps(one))))


def some_fleet(made: Any) -> Fleet:
    return Fleet(made, "run", lambda _text: None)


def ready_of(made: MadeUp, host: str, agent: str = "") -> Ready:
    found = Ready.model_validate_json(made._prepare(host, cast(Order, None)))
    comparable = {**found.environment.comparable, **({"agent": agent} if agent else {})}
    return found.model_copy(update={"environment": found.environment.model_copy(update={"comparable": comparable})})


def test_hosts_are_compared_once_each_and_not_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeUp(60)
    ready = {host: ready_of(made, host, "another" if host.endswith(("03", "27")) else "") for host in made.hosts}
    seen, told = Counted(alike), Counted(differences)
    monkeypatch.setattr(fleet, "alike", seen)
    monkeypatch.setattr(fleet, "differences", told)
    there = some_fleet(made)
    agreed = there.agreed(ready)
    assert set(there.refused) == {"node00003", "node00027"}
    assert list(agreed) == [host for host in made.hosts if host not in there.refused] == there.hosts
    assert (seen.times, told.times) == (60, 2)
    assert "agent: was" in there.refused["node00027"]


def test_an_order_for_all_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Counted(fleet._packed)
    monkeypatch.setattr(fleet, "_packed", packed)
    there = some_fleet(MadeUp(50))
    there.look(bench_hosts.study(), "fleet.toml")
    assert packed.times == 1


class Busy(MadeUp):
    """Hosts of which the first is at work for another run, and says so at each order, when its turn is over."""

    def __init__(self, hosts: int) -> None:
        super().__init__(hosts)
        self.asked: list[str] = []

    def ask(self, host: str, order: bytes) -> None:
        if host == self.hosts[0]:
            self.asked.append(Order.model_validate_json(order).kind)
        super().ask(host, order)

    def next(self) -> Answer:
        said = super().next()
        busy = Refusal(refused="busy").model_dump_json().encode()
        return Answer(said.host, busy if said.host == self.hosts[0] else said.data)


def test_a_host_that_is_at_work_for_another_run_is_waited_for_once() -> None:
    """It has said that it does not take part. Told to end, it answered when the other run's next turn was over."""
    made = Busy(3)
    there = some_fleet(made)
    there.look(bench_hosts.study(), "fleet.toml")
    assert there.refused == {made.hosts[0]: "busy"}
    assert there.hosts == list(made.hosts[1:])
    assert made.asked == ["look"]


class Once(list[PlannedTrial]):
    """Trials that are gone through, so and so often."""

    times = 0

    def __iter__(self) -> Iterator[PlannedTrial]:
        self.times += 1
        return super().__iter__()


class Lost(MadeUp):
    """Hosts that are lost at their first trial."""

    def next(self) -> Answer:
        host, data = self._waiting[0]
        if Order.model_validate_json(data).kind == "perform":
            self._waiting.popleft()
            return Answer(host, lost="its worker was lost")
        return super().next()


@pytest.mark.parametrize("hosts", [3, 12])
def test_of_many_lost_hosts_the_log_is_not_read_for_each(
    hosts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is pending is gone through once, whoever measures it."""
    reads, seen = Counted(RunDirectory._each), []

    def pending(self: RunDirectory) -> list[PlannedTrial]:
        seen.append(Once(real(self)))
        return seen[-1]

    real = RunDirectory.pending
    monkeypatch.setattr(RunDirectory, "_each", reads)
    monkeypatch.setattr(RunDirectory, "pending", pending)
    monkeypatch.setattr(bench_hosts, "MadeUp", Lost)
    coordinate(hosts, tmp_path / "run")
    assert reads.times == 4, "when it begins, for what was killed, for what is pending, and for what is left"
    assert seen[0].times == 1
    monkeypatch.undo()
    assert Counter(record.reason.partition(": ")[0] for record in RunDirectory(tmp_path / "run").records()) == {
        "interrupted": hosts
    }


def test_what_is_told_of_many_hosts_is_short(tmp_path: Path) -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"h{number}" for number in range(100)], 3) == "h0, h1 and 98 more"
    lost = {f"h{number}": "its worker was lost" for number in range(100)}
    assert over_hosts._why_lost(lost).endswith("; and 92 hosts more")
    assert over_hosts._why_lost({"h1": "x"}) == "; h1: x"
    said: list[str] = []
    there = Fleet(MadeUp(200), "run", said.append)
    there.look(bench_hosts.study(), "fleet.toml")
    with pytest.raises(HostError, match=r"none of gone000, .* and 293 more is there"):
        there.keep_only({f"gone{number:03d}" for number in range(300)})
    assert max(map(len, said)) < 200
    refusing = SimpleNamespace(hosts=[f"bad name {number}" for number in range(100)])
    with pytest.raises(HostError) as error:
        some_fleet(refusing)._expect_some("nobody")
    assert str(error.value).count("\n") < 30
    assert "and 80 more" in str(error.value)


# -- who has left, of Dask's workers ----------------------------------------------------------------------


class FakeClient:
    """What is asked of a scheduler."""

    def __init__(self, there: Sequence[str]) -> None:
        self.status, self.there, self.asked = "running", there, 0

    def nthreads(self, workers: Sequence[str] | None = None) -> dict[str, int]:
        self.asked += 1
        return {where: 1 for where in self.there if workers is None or where in workers}


def orders(client: FakeClient, hosts: int) -> DaskCluster:
    made = object.__new__(DaskCluster)
    made.__dict__.update(
        _client=client,
        _address="tls://here",
        _hosts={f"h{number}": f"tls://{number}" for number in range(hosts)},
        _at_work={f"h{number}": SimpleNamespace(key=number) for number in range(hosts)},
        _gone=deque(),
    )
    return made


def test_who_has_left_is_asked_once_of_all_that_are_at_work() -> None:
    client = FakeClient([f"tls://{number}" for number in range(40)])
    assert orders(client, 40)._look() == []
    assert client.asked == 1


def test_of_many_that_have_left_none_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(["tls://3"])
    made = orders(client, 40)
    monkeypatch.setattr(cluster, "_LOOK_S", 0.0)
    made.__dict__["_inbox"] = queue.SimpleQueue()
    lost = [made.next() for _ in range(39)]
    assert client.asked == 1
    assert {answer.lost for answer in lost} == {"its worker has left"}
    assert list(made._at_work) == ["h3"]


def test_without_a_scheduler_all_at_work_are_lost_at_once() -> None:
    client = FakeClient([])
    client.status = "closed"
    made = orders(client, 40)
    assert len(made._look()) == 40
    assert client.asked == 0


# -- the store --------------------------------------------------------------------------------------------


def test_a_log_is_read_line_by_line_and_each_line_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\n" * 100 + b"torn")
    assert Counter(whole_lines(log, 10_000, 10)) == {b"one": 100, b"two": 100}
    with pytest.raises(StoreError, match="holds more than"):
        list(whole_lines(log, 100, 10))
    log.write_bytes(b"one\n" + b"x" * 1000)
    with pytest.raises(StoreError, match="in a line more than"):
        list(whole_lines(log, 10_000, 10))
    log.write_bytes(b"")
    assert list(whole_lines(log, 10, 10)) == []


def test_a_log_longer_than_any_one_document_is_read(
    fleets: Mapping[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand hosts' trials are more than fits what one JSON file may hold."""
    directory = RunDirectory(fleets[FEW])
    before = directory.records()
    monkeypatch.setattr(store, "MOST_BYTES", (directory.path / "trials.jsonl").stat().st_size - 1)
    assert directory.records() == before
    assert not directory.has_torn_line()
    assert not directory.pending()
    with directory.writing():
        pass


def test_no_record_is_sealed_that_is_too_long_to_be_read(
    fleets: Mapping[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One such line, and nothing of all that was sealed could be read any more."""
    run = tmp_path / "run"
    (run / "trials").mkdir(parents=True)
    (run / "plan.json").write_bytes((fleets[FEW] / "plan.json").read_bytes())
    (run / "trials.jsonl").touch()
    record, another, *_ = RunDirectory(fleets[FEW]).records()
    directory = RunDirectory(run)
    monkeypatch.setattr(store, "MOST_LINE_BYTES", len(record.model_dump_json().encode()))
    directory.seal(record)
    with pytest.raises(ValueError, match=r"a record of .* B"):
        directory.seal(another.model_copy(update={"facts": {"said": "x" * 10_000}}))
    assert directory.records() == [record]


def test_a_torn_line_is_cut_off_and_nothing_else(fleets: Mapping[int, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("plan.json", "trials.jsonl"):
        (run / name).write_bytes((fleets[FEW] / name).read_bytes())
    whole = (run / "trials.jsonl").read_bytes()
    (run / "trials.jsonl").write_bytes(whole + whole[:100])
    directory = RunDirectory(run)
    assert directory.has_torn_line()
    with directory.writing():
        assert (run / "trials.jsonl").read_bytes() == whole
    (run / "trials.jsonl").write_bytes(whole[:100])
    with directory.writing():
        assert (run / "trials.jsonl").read_bytes() == b""


def test_what_was_left_unsealed_is_found_by_one_reading(
    fleets: Mapping[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, reads = RunDirectory(fleets[FEW]), Counted(RunDirectory._each)
    monkeypatch.setattr(RunDirectory, "_each", reads)
    assert directory.unsealed() == []
    assert reads.times == 1


def test_what_is_left_is_told_without_all_records_at_once(
    fleets: Mapping[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, alive, most = RunDirectory(fleets[FEW]), [0], [0]
    real = RunDirectory._each

    def each(self: RunDirectory) -> Iterator[TrialRecord]:
        for record in real(self):
            alive[0] += 1
            most[0] = max(most[0], alive[0])
            weakref.finalize(record, lambda: alive.__setitem__(0, alive[0] - 1))
            yield record

    monkeypatch.setattr(RunDirectory, "_each", each)
    assert directory.pending() == []
    assert most[0] <= 3 < FEW * TRIALS


def test_a_copy_that_is_kept_small_has_each_hosts_environment(fleets: Mapping[int, Path], tmp_path: Path) -> None:
    run, kept = fleets[FEW], tmp_path / "kept"
    keep(run, kept)
    names = [path.relative_to(run) for path in run.glob("hosts/*/environment.json")]
    assert len(names) == FEW
    assert all((kept / name).read_bytes() == (run / name).read_bytes() for name in names)
    keep(kept, tmp_path / "again")
    assert len(list((tmp_path / "again").glob("hosts/*/environment.json"))) == FEW


# -- the analysis -----------------------------------------------------------------------------------------


@given(st.data())
def test_hosts_that_lack_nothing_are_summed_up_together_as_each_by_itself(data: st.DataObject) -> None:
    hosts = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
    values = st.floats(-2, 2) | st.just(float("nan"))
    width = data.draw(st.integers(1, 3))
    logs = np.array([data.draw(st.lists(values, min_size=width, max_size=width)) for _ in hosts])
    found, held = by_host(hosts, logs), np.isfinite(logs).any(axis=0)
    for host in dict.fromkeys(hosts):
        mine = logs[[each == host for each in hosts]]
        alone = over_conditions(mine)
        if alone is None or not np.isfinite(mine).any(axis=0)[held].all():
            assert host not in found
            continue
        assert (found[host].n, found[host].freedom) == (alone.n, alone.freedom)
        assert found[host].mean == pytest.approx(alone.mean, abs=1e-12)
        assert found[host].error == pytest.approx(alone.error, abs=1e-12, nan_ok=True)


def test_hosts_that_lack_nothing_are_not_gone_through_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    each = Counted(over_conditions)
    monkeypatch.setattr(analysis_hosts, "over_conditions", each)
    hosts = [f"h{number // 2}" for number in range(400)]
    logs = np.random.default_rng(1).normal(size=(400, 2))
    assert len(by_host(hosts, logs)) == 200
    assert each.times == 0
    logs[7, 0] = np.nan
    assert len(by_host(hosts, logs)) == 200
    assert each.times == 1, "the one that lacks something"


@given(st.integers(2, 100_000))
def test_the_draws_of_many_hosts_take_no_more_memory_at_a_time(hosts: int) -> None:
    shares = analysis_hosts._shares(hosts)
    assert sum(shares) == analysis_hosts._DRAWS
    assert max(shares) * hosts <= analysis_hosts._AT_ONCE


def test_what_goes_with_each_share_of_trials_does_not_grow_with_them(fleets: Mapping[int, Path]) -> None:
    few, more = (_without_trials(read_run(fleets[hosts])) for hosts in (FEW, MANY))
    size = {len(pickle.dumps(run)) for run in (few, more)}
    assert max(size) - min(size) < 100, "of numbers' lengths"
    run: Run = read_run(fleets[FEW])
    for record in run.records[:TRIALS]:
        whole, bare = measure(run, record), measure(few, record)
        assert (whole.values, whole.missing) == (bare.values, bare.missing)


def test_a_trials_counterpart_is_not_looked_for_among_all(many: Findings) -> None:
    matrix = many.matrix
    arm, condition, native = matrix.arms[-1], matrix.conditions[0], matrix.arms[0]
    pairs = [matrix.pair(number, arm, condition, native) for number in range(len(matrix.blocks))]
    gone_through: list[int] = []

    class Walked(dict[Any, Any]):
        def items(self) -> Any:
            gone_through.append(1)
            return super().items()

    inner = {key: Walked(cells) for key, cells in matrix._across.items()}
    with mock.patch.dict(matrix.__dict__, {"_across": inner}):
        again = [matrix.pair(number, arm, condition, native) for number in range(len(matrix.blocks))]
        cells = [matrix.cell(block, arm, condition) for block in matrix.blocks]
    assert not gone_through
    assert again == pairs
    assert all(pair is not None and pair[0] is cell for pair, cell in zip(pairs, cells, strict=True))
    assert all(
        pair is not None and pair[0].record.trial.block == pair[1].record.trial.block == block
        for pair, block in zip(pairs, matrix.blocks, strict=True)
    )


def test_the_running_table_is_not_made_for_each_trial(
    fleets: Mapping[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, directory = Counted(RunningTable.rows), RunDirectory(fleets[FEW])
    monkeypatch.setattr(RunningTable, "rows", rows)
    live = LiveProgress(Console(file=io.StringIO(), width=120))
    live.planned(directory.plan, [])
    records = directory.records()
    for number in range(2000):
        live.trial_sealed(records[number % len(records)])
    assert 400 < rows.times < 900, "each of the first, then one of so many"
    live.__exit__(None, None, None)
    assert sum(row.valid for row in live._rows) == 2000, "the last table has all"


# -- the report -------------------------------------------------------------------------------------------


def test_a_host_is_a_column_where_there_are_few_and_of_many_there_are_quarters(
    many: Findings, fleets: Mapping[int, Path]
) -> None:
    (short,), (long,) = Hosts().tables(find(fleets[FEW])), Hosts().tables(many)
    assert short.heads == ("Arm", *(f"node{number:05d}" for number in range(1, FEW + 1)), "Hosts apart", "p")
    assert long.heads[1:7] == ("Hosts", "Least", "Lower quarter", "Middle", "Upper quarter", "Most")
    each, _ = many.by_host(many.headline.name, many.matrix.arms[-1])
    ratios = sorted(np.exp(summary.mean) for summary in each.values())
    cells = [cell.text for cell in long.rows[0]]
    assert cells[1] == str(MANY)
    assert cells[2].startswith(f"{ratios[0]:.3f} (node")
    assert float(cells[4]) == pytest.approx(np.median(ratios), abs=0.001)
    assert cells[6].startswith(f"{ratios[-1]:.3f} (node")


def test_how_far_hosts_lie_apart_is_told_once(many: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Findings(many.run, many.matrix, many.margin, many.papers)
    tested = Counted(analysis_hosts._no_difference)
    monkeypatch.setattr(analysis_hosts, "_no_difference", tested)
    section = Hosts()
    for _ in range(3):
        section.answer(fresh)
        section.tables(fresh)
    assert tested.times == 2, "of the floor and of docker"


def test_a_figure_shows_no_more_points_than_a_page_bears() -> None:
    rows = [{"x": number, "value": 1.0} for number in range(50_000)]
    shown, told = steadiness._few(rows)
    assert len(shown) == 2000
    assert (shown[0]["x"], shown[-1]["x"]) == (0, 49_999)
    assert "2,000 of 50,000 are drawn" in told
    assert steadiness._few(rows[:2000]) == (rows[:2000], "")


def test_the_page_tells_of_many_machines_by_what_they_have() -> None:
    hosts = {f"h{number:04d}": {"machine": {"cpu_model": f"model {number % 3}"}} for number in range(3000)}
    rows = dict(page._compared({"agent": "aa", "hosts": hosts}))
    assert rows["agent"] == "aa"
    assert rows["cpu model"].startswith("model 0 (h0000, h0003, ")
    assert "and 993 more); model 1 (h0001, " in rows["cpu model"]
    assert len(rows) == 2
    each_its_own = {f"h{number:04d}": {"machine": {"microcode": str(number)}} for number in range(3000)}
    assert page._compared({"hosts": each_its_own})[0][1].endswith("; and 2,992 other values")
    assert page._compared({"machine": {"cpus": 2}}) == [("cpus", "2")]
    assert page._few(["a"] * 20) == ["a"] * 20
    assert page._few(["a"] * 30)[20:] == ["10 more, all in environment.json"]


def test_what_differs_between_two_fleets_is_told_in_few_words(many: Findings) -> None:
    environment = tuple(f"hosts.node{number:05d}: was None, is {{}}" for number in range(3000))
    compared = Compared(many, many, 0.05, None, (), (), (), (), environment, (), (), ())
    (told,) = remarks(compared)
    assert "hosts.node00000, hosts.node00001, " in told
    assert told.endswith(" and 2,993 more")
    assert len(told) < 400
    assert as_json(compared)["environment"] == list(environment)


def test_where_the_environment_of_fleets_changed_is_told_in_few_words() -> None:
    lines = [
        "hosts: was None, is " + "{...}" * 10_000,
        *(f"hosts.node{number:05d}: was a, is b" for number in range(3000)),
    ]
    run = SimpleNamespace(directory=Path("run"))
    series: Any = SimpleNamespace(moves=lambda: [(run, 2, lines)], configured=lambda: [(run, lines)])
    for table in history_page._moves(series):
        told = table.rows[0][-1].text
        assert "hosts.node00000: was a, is b; " in told
        assert told.endswith("; and 2,951 more")
        assert len(told) < 3000
    series.moves = lambda: [(run, 2, lines[1:51])]
    assert next(history_page._moves(series)).rows[0][-1].text == "; ".join(lines[1:51])


def test_every_trials_host_is_in_its_table_which_a_page_holds_where_it_is_short(
    many: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = trials_csv(many)
    heads, first, *_ = (line.split(",") for line in told.splitlines())
    assert first[heads.index("host")] == many.matrix.trials[0].record.trial.host
    assert "CSV, inside this page" in page.render_page(many, [], {}, told)
    monkeypatch.setattr(page, "_MOST_WITHIN", len(told) - 1)
    short = page.render_page(many, [], {}, told)
    assert "CSV, beside this page" in short
    assert 'href="tables/trials.csv"' in short


# -- the bench --------------------------------------------------------------------------------------------


def test_the_engines_overhead_is_by_pairs_and_its_verdict_by_one_worker() -> None:
    from bench import fleet as bench_fleet

    def took(wall_ms: float) -> Took:
        return Took(wall_ms, {"coordinator": 5.0, "scheduler": 3.0, "workers": 6.0})

    pairs = [
        Pair(workers, [took(3.0), took(4.0)], [took(33.0 / workers), took(44.0 / workers)]) for workers in (1, 2, 4)
    ]
    assert pairs[0].over_ms() == [30.0, 40.0]
    assert bench_fleet.engine(pairs)[1]
    slow = [Pair(1, [took(3.0)], [took(60.0)])]
    told, is_reached = bench_fleet.engine(slow)
    assert not is_reached
    assert "57.0 (57.0 to 57.0) ms" in told
    assert growth(pairs).panels[1].most == 0
