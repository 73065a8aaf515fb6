"""What the bench of participants computes of reports that are made up; and that Pion's client is locked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench import _pion, confer
from bench.confer import Cell, Round, Run

SECOND = 10**9
CELL = Cell(publishers=2, receivers=50)
MANY = Run(
    joined=50,
    joined_s=3.0,
    streams=100,
    packets=60_000,
    bytes=62_500_000,
    lost=0,
    cpu_s=0.5,
    seconds=10.0,
    memory_bytes=20_000_000,
    server_cpus=0.95,
)
ONE = replace(MANY, joined=1, streams=2, memory_bytes=400_000)
PION = replace(MANY, cpu_s=1.25, memory_bytes=0)


def of_role(**more: int) -> dict[str, int]:
    return {"streams": 0, "packets": 0, "bytes": 0, "lost": 0, "waiting_ns": 0, "nacks": 7} | more


def test_what_ours_reports_is_read() -> None:
    report: dict[str, Any] = {
        "window": {
            "start_ns": 3 * SECOND,
            "end_ns": 13 * SECOND,
            "participants": 50,
            "joined_at_end": 49,
            "cpu_user_ns": SECOND,
            "cpu_system_ns": SECOND // 2,
        },
        "joins": {"time": [[10**6, 2 * 10**6, 40], [10**8, 2 * 10**8, 9]], "failures": {"ice failed": 2}},
        "received": {"watcher": of_role(), "other": of_role(streams=98, packets=1000, bytes=9000, lost=3)},
    }
    run = confer.of_ours(report, 20 * 10**6, 5, 0.25)
    assert (run.streams, run.packets, run.bytes, run.lost, run.joined) == (98, 1000, 9000, 3, 49)
    assert (run.cpu_s, run.seconds, run.memory_bytes, run.server_cpus) == (1.5, 10, 5, 0.25)
    assert run.joined_s == pytest.approx(49 * 0.02 + 0.2), "the last may have been the slowest"
    assert (run.failures, run.waited) == (2, False)
    assert not run.is_whole(CELL)
    report["received"]["other"]["waiting_ns"] = 1
    assert confer.of_ours(report, 20 * 10**6, 5, 0.25).waited


def test_what_pions_client_reports_is_read() -> None:
    report: dict[str, Any] = {
        "joined": 50,
        "joined_ns": 3 * SECOND,
        "streams": 100,
        "packets": 60_000,
        "bytes": 62_500_000,
    }
    report |= {"lost": 0, "cpu_ns": 5 * SECOND // 4, "failures": []}
    run = confer.of_pion(report, 10.0, 0.95)
    assert run == PION
    assert run.is_whole(CELL)
    assert run.packets_per_cpu_s == 48_000


def test_a_cell_comes_to_what_its_rounds_say() -> None:
    row = confer.row(CELL, [Round(MANY, ONE, PION)] * 2)
    assert row["packets_per_cpu_s"] == 120_000
    assert row["us_per_packet"] == pytest.approx(8.333, abs=0.001)
    assert row["receivers_per_cpu"] == 2000
    assert row["mbit_per_cpu_s"] == pytest.approx(1000)
    assert row["bytes_per_stream"] == 200_000
    assert row["over_pion"] == pytest.approx(2.5)
    assert row["reached"]
    assert "50 who watch 2: 2 of 2 rounds whole, Janus used 0.95 CPU, the limit:" in row["told"]
    assert "LiveKit's load tester: 42" in row["told"]


def test_who_was_not_all_there_tells_nothing() -> None:
    lacking = [Round(replace(MANY, joined=49), ONE, PION), Round(MANY, ONE, replace(PION, streams=99))]
    lacking.append(Round(MANY, replace(ONE, streams=1), PION))
    lacking += [Round(replace(MANY, packets=0), ONE, PION), Round(replace(MANY, waited=True), ONE, PION)]
    lacking += [Round(replace(MANY, lost=30_000), ONE, PION), Round(MANY, ONE, replace(PION, lost=30_000))]
    row = confer.row(CELL, lacking)
    assert not row["reached"]
    assert row["told"].endswith("0 of 7 rounds whole, Janus used 0.95 CPU, the limit: nothing to tell")


def test_most_rounds_are_to_be_whole() -> None:
    whole, lacking = Round(MANY, ONE, PION), Round(replace(MANY, joined=49), ONE, PION)
    assert confer.row(CELL, [whole] * 3 + [lacking] * 2)["reached"]
    assert not confer.row(CELL, [whole] * 2 + [lacking] * 3)["reached"]
    assert not confer.row(CELL, [whole])["reached"]


def test_without_pions_client_its_target_is_not_reached_and_the_others_are_told() -> None:
    row = confer.row(CELL, [Round(MANY, ONE, None)])
    assert "Pion's client was not measured" in row["told"]
    assert (row["reached"], row["packets_per_cpu_s"]) == (False, 120_000)


@pytest.mark.parametrize(
    ("cell", "key", "value"),
    [
        (CELL, "packets_per_cpu_s", 79_999.0),
        (CELL, "bytes_per_stream", 300_001.0),
        (CELL, "over_pion", 1.9),
        (Cell(publishers=1, receivers=50), "receivers_per_cpu", 999.0),
    ],
)
def test_each_target_can_be_missed(cell: Cell, key: str, value: float) -> None:
    found = {"packets_per_cpu_s": 80_000.0, "receivers_per_cpu": 1000.0, "bytes_per_stream": 300_000.0}
    found["over_pion"] = 2.0
    assert confer.is_reached(cell, found)
    assert not confer.is_reached(cell, {**found, key: value})


def test_a_rate_is_to_be_reached_where_it_is_meant() -> None:
    alone, together = (confer.row(cell, [Round(MANY, ONE, PION)] * 2) for cell in (Cell(1, 50), CELL))
    assert not alone["reached"], "of one stream each there are fifty"
    assert "120000 packets/s a core (target >= 80000), 2000 streams of 0.5 Mbit/s a core, " in together["told"]


def test_a_hundred_are_to_be_in_within_ten_seconds() -> None:
    runs = [replace(MANY, joined=100, joined_s=seconds) for seconds in (1.5, 2.5)]
    assert confer.joining(runs, 100) == {
        "joined": 100,
        "joined_s": 2.5,
        "told": "100 of 100 participants were in after 2.5 s (target: 100 in less than 10 s; the slowest of 2 rounds)",
        "reached": True,
    }
    assert not confer.joining([replace(runs[0], joined=99)], 100)["reached"]
    assert not confer.joining([replace(runs[0], joined_s=10.0)], 100)["reached"]
    assert not confer.joining([replace(runs[0], joined=10)], 10)["reached"], "ten are no hundred"
    again = confer.joining([replace(runs[0], failures=3)], 100)
    assert (again["reached"], "; 3 joins failed)" in again["told"]) == (False, True)


def test_pions_client_is_built_by_its_lock_from_a_source_of_ours() -> None:
    program = _pion.program()
    assert (program.package, len(program.sha256)) == (".", 64)
    assert "github.com/pion/webrtc/v4 v4." in program.modules
    assert all(len(line.split()) == 3 for line in program.sums.splitlines())
    assert program.source.startswith("//")
    assert "package main" in program.source


def test_what_is_printed_is_what_rows_say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hundred = replace(MANY, joined=100)
    monkeypatch.setattr(confer, "measure", lambda *_: ({CELL: [Round(MANY, ONE, PION)] * 2}, [hundred]))
    monkeypatch.setattr("sys.argv", ["bench"])
    assert confer.main() == 0
    told = [confer.row(CELL, [Round(MANY, ONE, PION)] * 2), confer.joining([hundred], 100)]
    assert capsys.readouterr().out == "".join(f"{each['told']}  reached\n" for each in told)
