"""`virtoll keep`: a run made small, of which every figure is what it was."""

from __future__ import annotations

import gzip
import json
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolating
from advice_examples import search_of
from synthetic import DOCKER, NATIVE, Recipe, write_run
from synthetic_programme import Recipe as Programme
from synthetic_programme import write_programme
from test_conference import run_of as conference
from test_knee import TEXT
from undisturbed import undisturbed
from virtoll import cli
from virtoll.analysis import keeping
from virtoll.analysis.keeping import keep
from virtoll.analysis.load import Run, read_run
from virtoll.errors import StoreError
from virtoll.files.confined import whole_lines
from virtoll.record.model import TrialRecord
from virtoll.record.store import RunDirectory
from virtoll.record.tables import packed_tight
from virtoll.report.findings import find
from virtoll.report.tables import trials_csv

SMALL = Recipe(arms=(NATIVE, DOCKER), blocks=2, samples_per_trial=40)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", SMALL)


def figures(directory: Path) -> str:
    """Every metric of every trial, in full precision."""
    return trials_csv(find(directory))


def series(path: Path) -> set[tuple[str, str]]:
    rows = pq.read_table(path).to_pylist()
    return {(row["source"], row["counter"]) for row in rows}


def test_every_figure_is_what_it_was_of_fewer_bytes(run: Path, tmp_path: Path) -> None:
    (next((run / "trials").iterdir()) / "log.txt").write_text("said\n" * 100)
    keep(run, tmp_path / "kept")
    assert figures(tmp_path / "kept") == figures(run)
    assert "cpu_s_per_1000_inside" in figures(run).splitlines()[0]
    assert gzip.decompress((tmp_path / "kept/trials.jsonl.gz").read_bytes()) == (run / "trials.jsonl").read_bytes()
    for name in ("study.json", "plan.json", "environment.json"):
        assert (tmp_path / "kept" / name).read_bytes() == (run / name).read_bytes()
    before, after = (sum(path.stat().st_size for path in each.rglob("*.parquet")) for each in (run, tmp_path / "kept"))
    assert after < before
    assert not list((tmp_path / "kept").rglob("log.txt"))
    trial = next(iter((tmp_path / "kept/trials").iterdir()))
    assert ("generator", "cpu.usage_ns") not in series(trial / "outside.parquet")


def test_windows_in_turn_are_looked_at_from_outside_alone(run: Path, tmp_path: Path) -> None:
    lines = (run / "trials.jsonl").read_text().splitlines()
    turned = []
    for record in map(TrialRecord.model_validate_json, lines):
        measured = record.measured
        assert measured is not None
        (whole,) = measured.windows
        half = whole.duration_ns // 2
        windows = [
            whole.model_copy(
                update={"start_ns": whole.start_ns + at * half, "duration_ns": half, "work": whole.work / 2}
            )
            for at in range(2)
        ]
        turned.append(record.model_copy(update={"measured": measured.model_copy(update={"windows": windows})}))
    (run / "trials.jsonl").write_text("".join(f"{record.model_dump_json()}\n" for record in turned))
    keep(run, tmp_path / "kept")
    assert figures(tmp_path / "kept") == figures(run)
    assert list((tmp_path / "kept").rglob("outside.parquet"))
    assert not list((tmp_path / "kept").rglob("inside.parquet"))


def test_a_conference_keeps_what_is_told_of_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed(monkeypatch)
    run = conference(tmp_path / "run").path
    keep(run, tmp_path / "kept")
    of_both = [find(each).matrix.trials for each in (run, tmp_path / "kept")]
    assert any("switches_per_s_inside" in trial.values for trial in of_both[0])
    assert [trial.values for trial in of_both[0]] == [trial.values for trial in of_both[1]]


MADE: dict[str, Callable[[Path], Path]] = {
    "probes": lambda path: write_programme(path, Programme(blocks=2)),
    "beside neighbours": lambda path: isolating.run_of(path, quick=True),
    "a search": lambda path: search_of(path, TEXT.replace("blocks = 6", "blocks = 2")),
}


@pytest.mark.parametrize("made", MADE)
def test_so_it_is_of_every_kind_of_study(made: str, tmp_path: Path) -> None:
    run = MADE[made](tmp_path / "run")
    keep(run, tmp_path / "kept")
    assert figures(tmp_path / "kept") == figures(run)
    assert all(any(path.iterdir()) for path in (tmp_path / "kept/trials").iterdir())
    kept, whole = (sorted({path.name for path in each.rglob("*.parquet")}) for each in (tmp_path / "kept", run))
    assert set(whole) - set(kept) <= {"inside.parquet", "outside.parquet"}


def test_a_copy_says_what_it_lacks_and_takes_no_more_trials(run: Path, tmp_path: Path) -> None:
    kept = keep(run, tmp_path / "kept")
    assert json.loads((tmp_path / "kept/kept.json").read_text())["left_out"] == kept.left_out
    assert any("kept small" in note for note in read_run(tmp_path / "kept").notes)
    with pytest.raises(StoreError, match="nothing is measured into it"), RunDirectory(tmp_path / "kept").writing():
        pass
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(tmp_path / "kept"), "--dry-run"])
    assert ended.value.code == 4
    keep(tmp_path / "kept", tmp_path / "again")
    assert figures(tmp_path / "again") == figures(run)
    assert not any("kept small" in note for note in read_run(run).notes)


def test_what_was_begun_and_not_sealed_is_not_copied(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Recipe(arms=(NATIVE, DOCKER), blocks=2, samples_per_trial=40, sealed=3))
    (run / "trials/b02-t0004").mkdir(exist_ok=True)
    keep(run, tmp_path / "kept")
    assert len(list((tmp_path / "kept/trials").iterdir())) == 3


def test_it_lands_whole_or_not_at_all(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(StoreError, match="already exists"):
        keep(run, tmp_path / "there")
    table = next(run.rglob("latency.parquet"))
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(StoreError, match="is damaged"):
        keep(run, tmp_path / "kept")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "there"}


def test_a_run_under_way_is_not_kept(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that is sealed after the records were read would be there without its tables."""
    lines = (run / "trials.jsonl").read_bytes().splitlines(keepends=True)

    def read_before_the_last(directory: Path) -> Run:
        (run / "trials.jsonl").write_bytes(b"".join(lines[:-1]))
        found = read_run(directory)
        (run / "trials.jsonl").write_bytes(b"".join(lines))
        return found

    monkeypatch.setattr(keeping, "read_run", read_before_the_last)
    with pytest.raises(StoreError, match="still under way"):
        keep(run, tmp_path / "kept")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-9], lambda data: b"no gzip", lambda data: data + b"more", lambda data: b""]
)
def test_records_that_are_damaged_are_told(harm: Callable[[bytes], bytes], run: Path, tmp_path: Path) -> None:
    keep(run, tmp_path / "kept")
    packed = tmp_path / "kept/trials.jsonl.gz"
    packed.write_bytes(harm(packed.read_bytes()))
    with pytest.raises(StoreError, match=r"trials.jsonl.gz: is damaged"):
        read_run(tmp_path / "kept")


def lines_of(path: Path, packed: bytes, most: int) -> list[bytes]:
    path.write_bytes(packed)
    return list(whole_lines(path, most, most, is_packed=True))


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=20), st.integers(0, 400))
def test_what_is_unpacked_is_bounded_and_no_bytes_break_it(lines: list[bytes], most: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    packed = gzip.compress(data)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "log.gz")
        if len(data) <= most:
            assert lines_of(path, packed, most) == lines
        else:
            with pytest.raises(StoreError, match=r"holds .*more than"):
                lines_of(path, packed, most)
        for odd in (data, packed[:-1], packed + b"x"):
            with pytest.raises((ValueError, StoreError)):
                lines_of(path, odd, most)


def test_a_small_file_of_many_lines_takes_no_memory(tmp_path: Path) -> None:
    """As a list of lines it would take 16 times what it unpacks to, of 522 kB in gzip 9 GB."""
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"\n" * 2**20))
    tracemalloc.start()
    try:
        assert sum(1 for _ in whole_lines(tmp_path / "log.gz", 2**20, 10, is_packed=True)) == 2**20
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_copys_records_are_read_one_by_one(run: Path, tmp_path: Path) -> None:
    keep(run, tmp_path / "kept")
    packed = tmp_path / "kept/trials.jsonl.gz"
    whole = gzip.decompress(packed.read_bytes())
    packed.write_bytes(gzip.compress(whole + b"\n" * 100)[:-4])
    after = whole.count(b"\n") + 1
    with pytest.raises(StoreError, match=f"trials.jsonl.gz:{after}: is damaged"):
        RunDirectory(tmp_path / "kept").records()


def test_a_run_too_long_for_a_copy_is_refused_as_that(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet's log may be longer than a copy's is read: nothing is wrong with the run, and it is not told so."""
    monkeypatch.setattr(keeping, "MOST_PACKED_BYTES", (run / "trials.jsonl").stat().st_size - 1)
    with pytest.raises(StoreError, match="too long to be kept small"):
        keep(run, tmp_path / "kept")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    monkeypatch.setattr(keeping, "MOST_PACKED_BYTES", (run / "trials.jsonl").stat().st_size)
    keep(run, tmp_path / "kept")


def test_a_copy_holds_whole_lines_alone(run: Path, tmp_path: Path) -> None:
    whole = (run / "trials.jsonl").read_bytes()
    (run / "trials.jsonl").write_bytes(whole + whole[:100])
    keep(run, tmp_path / "kept")
    assert gzip.decompress((tmp_path / "kept/trials.jsonl.gz").read_bytes()) == whole
    assert not RunDirectory(tmp_path / "kept").has_torn_line()


def test_what_leads_out_of_a_run_is_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (run / "looks.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(StoreError, match="symbolic link"):
        keep(run, tmp_path / "kept")


def test_the_verb_says_how_large_the_copy_is(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["keep", str(run), str(tmp_path / "kept")])
    assert ended.value.code == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(" MB")
    assert len(said) == 1 + len(json.loads((tmp_path / "kept/kept.json").read_text())["left_out"])


@given(st.lists(st.tuples(INT64, st.text(max_size=3), INT64)))
def test_tables_that_are_packed_tight_hold_the_same(rows: list[tuple[int, str, int]]) -> None:
    times, names, values = zip(*rows, strict=True) if rows else ((), (), ())
    table = pa.table(
        {
            "t_ns": pa.array(times, pa.int64()),
            "source": pa.array(names, pa.string()).dictionary_encode(),
            "value": pa.array(values, pa.int64()),
            "status": pa.array(np.arange(len(rows)) % 600, pa.int16()),
        }
    )
    for each in (table, table.drop_columns(["t_ns", "source"])):
        read = pq.read_table(pa.BufferReader(packed_tight(each)))
        assert read.to_pylist() == each.to_pylist()
        assert read.schema.field("status").type == pa.int16()
