"""What instances used, as Zabbix's sender takes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from synthetic import ARMS, Recipe, write_run
from virtoll import cli
from virtoll.analysis.load import read_run
from virtoll.record.model import BESIDE
from virtoll.record.tables import samples_table
from virtoll.report import zabbix

SECOND = 10**9
LINE = re.compile(r'"([0-9A-Za-z_. -]+)" (\S+) (\d+) (\d{1,9}) (\S+)')  # zabbix_sender(1), --with-timestamps, --with-ns


def written(directory: Path) -> Path:
    return write_run(directory / "run", Recipe(arms=ARMS, blocks=2, bulk=False))


def sampled(
    run: Path,
    side: str,
    counters: Mapping[tuple[str, str], Callable[[float], float]],
    at_s: list[float],
    *,
    number: int = 0,
    since_ns: int | None = None,
) -> None:
    """Samples of a trial (the first), so long after it began, or after a time of the monotonic clock."""
    record = read_run(run).records[number]
    begun_ns = min(phase.start_ns for phase in record.phases) if since_ns is None else since_ns
    rows = [
        (begun_ns + round(t * SECOND), source, counter, round(value(t)))
        for (source, counter), value in counters.items()
        for t in at_s
    ]
    directory = run / "trials" / record.trial.id
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(samples_table(rows), directory / f"{side}.parquet")


def told(run: Path) -> list[tuple[str, str, float, float]]:
    """Host, key, seconds since the first trial began, value."""
    began = datetime.fromisoformat(read_run(run).records[0].started_at).timestamp()
    found = [LINE.fullmatch(line) for line in zabbix.lines(read_run(run))]
    assert all(found), "each is a line of the sender's"
    return [(one[1], one[2], int(one[3]) + int(one[4]) / 1e9 - began, float(one[5])) for one in found if one]


def test_traffic_is_nobodys_where_others_share_the_links(tmp_path: Path) -> None:
    """Three servers of 100 Mbit/s each were told at 300."""
    run = written(tmp_path)
    counters = {("instance", "net.tx_bytes"): lambda t: t * 1e6, ("instance", "cpu.usage_ns"): lambda t: t * 1e9}
    sampled(run, "outside", counters, [at / 10 for at in range(31)])
    assert {key for _, key, _, _ in told(run)} == {"virtoll.net.out[host]", "virtoll.cpu.util[host]"}
    lines = run / "trials.jsonl"
    beside = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    for record in beside:
        record["trial"]["condition"] |= {BESIDE: "others"}
    lines.write_text("".join(json.dumps(record) + "\n" for record in beside), encoding="utf-8")
    assert {key for _, key, _, _ in told(run)} == {"virtoll.cpu.util[host]"}


def test_each_view_is_told_second_by_second(tmp_path: Path) -> None:
    run = written(tmp_path)
    at_s = [at / 10 for at in range(31)]
    sampled(
        run,
        "outside",
        {
            ("instance", "cpu.usage_ns"): lambda t: 7e12 + t * 0.25e9,
            ("instance", "memory.usage_bytes"): lambda t: 123_456_789 + t,
            ("instance", "net.tx_bytes"): lambda t: t * 1e6,
        },
        at_s,
    )
    inside = {("inside", "cpu.usage_ns"): lambda t: t * 1.5e9, ("inside", "memory.total_bytes"): lambda _t: 2**34}
    sampled(run, "inside", {**inside, ("inside", "memory.available_bytes"): lambda _t: 2**33}, at_s)
    values = told(run)
    by_key = {key: [(round(at, 3), value) for _, name, at, value in values if name == key] for key in zabbix.KEYS}
    assert by_key == {
        "virtoll.cpu.util[host]": [(1, 25), (2, 25), (3, 25)],
        "virtoll.cpu.util[inside]": [(1, 150), (2, 150), (3, 150)],
        "virtoll.memory.used[host]": [(1, 123_456_790), (2, 123_456_791), (3, 123_456_792)],
        "virtoll.memory.used[inside]": [(1, 2**33), (2, 2**33), (3, 2**33)],
        "virtoll.net.in[host]": [],  # it was not sampled
        "virtoll.net.out[host]": [(1, 8e6), (2, 8e6), (3, 8e6)],
    }
    assert {host for host, *_ in values} == {zabbix.hosts(read_run(run))[read_run(run).records[0].trial.arm.label, ""]}


def test_nothing_reaches_over_what_was_not_seen(tmp_path: Path) -> None:
    """An arm in rotation is looked at in its own turns."""
    run = written(tmp_path)
    turns = [*(at / 10 for at in range(5)), *(60 + at / 10 for at in range(5)), 90.0]
    used = {("instance", "cpu.usage_ns"): lambda t: (t if t < 50 else t - 50) * 1e9}
    sampled(run, "outside", used, turns)
    assert [(round(at, 3), value) for _, _, at, value in told(run)] == [(0.4, 100), (60.4, 100)]


def test_looking_once_a_second_is_looking_all_the_time(tmp_path: Path) -> None:
    """`monitor.rate` may be 1 /s; an instance's clock is a little slow, and samples come some microseconds late."""
    run = written(tmp_path)
    at_s = [at * 1.00005 + 20e-6 * (at % 3) for at in range(1, 12)]
    used = {("instance", "cpu.usage_ns"): lambda t: t * 0.5e9, ("instance", "memory.usage_bytes"): lambda _t: 5}
    sampled(run, "outside", used, [*at_s, 31.0, 32.0])
    values = told(run)
    for key, value in (("virtoll.cpu.util[host]", 50), ("virtoll.memory.used[host]", 5)):
        mine = {round(at): each for _, name, at, each in values if name == key}
        assert mine == dict.fromkeys([*range(2, 12), 32], pytest.approx(value, rel=1e-3))


def test_arms_of_a_turn_are_told_at_their_own_times(tmp_path: Path) -> None:
    """All trials of a turn begin at once; the first phase of each but one waits until those before it are deployed."""
    run, other = written(tmp_path), 30.0
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    for at, record in enumerate(lines[:2]):
        record["trial"]["turn"] = "b01-r0001"
        for phase, begun_s in zip(record["phases"], (other * at, other * at + 5), strict=True):
            phase["start_ns"] = 10**12 + round(begun_s * SECOND)
    (run / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lines))
    at_once: dict[tuple[str, str], Callable[[float], float]] = {("instance", "memory.usage_bytes"): lambda _t: 5}
    for number in (0, 1):
        sampled(run, "outside", at_once, [100.0, 101.0], number=number, since_ns=10**12)
    assert [round(at, 3) for _, _, at, _ in told(run)] == [101, 101]


def test_hosts_have_names_that_zabbix_takes_and_each_its_own(tmp_path: Path) -> None:
    text = "native+host (again)", "native-host again", "lxc+routed"
    arms = tuple(ARMS[0].model_copy(update={"label": label}) for label in text)
    run = read_run(write_run(tmp_path / "run", Recipe(arms=arms, truth=dict.fromkeys(text, 1.0), blocks=2, bulk=False)))
    named = zabbix.hosts(run)
    assert named["lxc+routed", ""] == "lxc-routed"
    assert {named[text[0], ""], named[text[1], ""]} == {"native-host again", "native-host again_"}


def test_what_several_machines_measured_at_the_same_time_is_told_of_each(tmp_path: Path) -> None:
    """Of one host's name a chart would leap between the two from one second to the next."""
    run = written(tmp_path)

    def on(trial: dict[str, Any]) -> dict[str, Any]:
        return trial | {"host": f"node{trial['block']}"}

    plan = json.loads((run / "plan.json").read_text())
    plan["trials"] = [on(trial) for trial in plan["trials"]]
    (run / "plan.json").write_text(json.dumps(plan))
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    sealed = [record | {"trial": on(record["trial"])} for record in lines]
    (run / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in sealed))
    held: dict[tuple[str, str], Callable[[float], float]] = {("instance", "memory.usage_bytes"): lambda _t: 5}
    for number, record in enumerate(sealed):
        if record["trial"]["arm"]["label"] == "native+host":
            sampled(run, "outside", held, [0.0, 1.0], number=number)
    assert {host for host, *_ in told(run)} == {"native-host node1", "native-host node2"}
    assert "docker-routed node2" in zabbix.hosts(read_run(run)).values()


def test_the_verb_prints_lines_and_says_how_to_send_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path)
    sampled(run, "outside", {("instance", "memory.usage_bytes"): lambda _t: 5}, [0.0, 1.0])
    with pytest.raises(SystemExit) as end:
        cli.main(["export", str(run)])
    assert end.value.code == 0
    out, err = capsys.readouterr()
    assert [LINE.fullmatch(line)[2] for line in out.splitlines()] == ["virtoll.memory.used[host]"]  # type: ignore[index]
    assert "1 values; `zabbix_sender -z SERVER -T -N -i FILE` sends them" in err
    assert '"native-host"' in err
