"""A run directory from elsewhere: nothing outside of it is read or written on its word, and no text of it is markup."""

from __future__ import annotations

import json
import math
import os
import tracemalloc
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiet import Quiet
from synthetic import DOCKER, NATIVE, Recipe, measured_elsewhere, write_run
from test_exit_codes import code_of
from test_run import IDS, TOLLS, new_run
from virtoll.analysis import load
from virtoll.analysis.load import read_run
from virtoll.analysis.rules import rule_of
from virtoll.catalogue import catalogue
from virtoll.errors import StoreError, StudyError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.files import confined
from virtoll.record.store import RunDirectory
from virtoll.report.build import build_report
from virtoll.report.findings import find
from virtoll.run.conduct import run_study
from virtoll.run.execute import execute
from virtoll.run.request import Request
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.plan import make_plan

pytestmark = pytest.mark.usefixtures("undrawn")  # what is refused is refused before a figure is drawn

SMALL = Recipe(arms=(NATIVE, DOCKER), blocks=2, samples_per_trial=20)
BAD_IDS = ["../../../etc", "/etc/passwd", "..", ".", "", "a/b", "a\0b", "a b", "b01-t0001\n", "x" * 300]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "r", SMALL)


def changed(path: Path, change: Callable[[Any], None]) -> None:
    """Change the first JSON document of a file."""
    first, newline, rest = path.read_text().partition("\n") if path.suffix == ".jsonl" else (path.read_text(), "", "")
    document = json.loads(first)
    change(document)
    path.write_text(json.dumps(document) + newline + rest)


@pytest.mark.parametrize("name", BAD_IDS)
@pytest.mark.parametrize("file", ["plan.json", "trials.jsonl"])
def test_a_trial_is_called_by_one_plain_word(run: Path, file: str, name: str) -> None:
    def rename(document: Any) -> None:
        (document["trials"][0] if file == "plan.json" else document["trial"])["id"] = name

    changed(run / file, rename)
    with pytest.raises(StoreError, match=rf"{file}(.|\n)*is damaged"):
        build_report(run)
    if file == "plan.json":
        with pytest.raises(StoreError, match="is damaged"):
            RunDirectory(run).pending()


@pytest.mark.parametrize("name", [*BAD_IDS[:7], "..\\"])
def test_no_name_leads_out(tmp_path: Path, name: str) -> None:
    if name == "..\\":
        assert confined.inside(tmp_path, name) == tmp_path / name
        return
    with pytest.raises(StoreError, match="not a name of a file"):
        confined.inside(tmp_path, "trials", name)


@pytest.mark.parametrize(
    "name",
    ["study.json", "plan.json", "environment.json", "trials.jsonl", "trials", "trials/ID", "trials/ID/latency.parquet"],
)
def test_no_link_is_followed_when_reading(run: Path, tmp_path: Path, name: str) -> None:
    trial = read_run(run).records[0].trial.id
    path = run / name.replace("ID", trial)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        build_report(run)


@pytest.mark.parametrize(
    "name", ["report", "report/figures", "report/tables", "report/index.html", "report/tables/tolls.md"]
)
def test_no_link_is_followed_when_writing(run: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    if "." in name:
        victim.write_text("precious")
    else:
        victim.mkdir()
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(victim)
    with pytest.raises(StoreError, match="symbolic link"):
        build_report(run)
    assert victim.read_text() == "precious" if "." in name else list(victim.iterdir()) == []


def test_a_file_with_another_name_elsewhere_is_not_written_to(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (run / "report").mkdir()
    os.link(victim, run / "report/index.html")
    build_report(run)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["trials.jsonl", "trials", "trials/ID"])
def test_no_link_is_followed_when_a_run_is_gone_on_with(tmp_path: Path, name: str) -> None:
    store = new_run(tmp_path / "r")
    victim = tmp_path / "victim"
    path = store.path / name.replace("ID", IDS[0])
    if path.exists():
        path.rename(victim)
    elif name == "trials/ID":
        victim.mkdir()
    before = victim.read_bytes() if victim.is_file() else sorted(victim.iterdir())
    path.symlink_to(victim)
    with pytest.raises(StoreError, match="symbolic link"), store.writing():
        execute(store, FakeExperiment(TOLLS), Quiet())
    assert before == (victim.read_bytes() if victim.is_file() else sorted(victim.iterdir()))


@pytest.mark.parametrize("name", ["study.json", "trials.jsonl", "trials/ID/latency.parquet"])
def test_a_pipe_is_not_waited_for(run: Path, name: str) -> None:
    path = run / name.replace("ID", read_run(run).records[0].trial.id)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="not a plain file"):
        build_report(run)


def test_a_file_without_end_is_not_read_to_it(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 1 << 40)
    with pytest.raises(StoreError, match="holds more than"):
        confined.read_bounded(tmp_path / "a", 1000)
    os.truncate(tmp_path / "a", 1000)
    assert len(confined.read_bounded(tmp_path / "a", 1000)) == 1000


def test_a_table_without_end_is_not_read_to_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MOST_ROWS", 3)
    with pytest.raises(StoreError, match="rows, and no trial has"):
        build_report(run)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("latency", {"lower_ns": [0], "upper_ns": [1]}),
        ("latency", {"lower_ns": [0], "upper_ns": [1], "count": ["many"]}),
        ("latency", {"lower_ns": [0], "upper_ns": [1], "count": [1.5]}),
        ("outside", {"t_ns": [0], "source": [1], "counter": ["a"], "value": [1]}),
        ("outside", {"t_ns": [0, None], "source": ["a", "b"], "counter": ["a", "b"], "value": [1, 2]}),
        ("outside", {"t_ns": [0, 1], "source": ["a", None], "counter": ["a", "b"], "value": [1, 2]}),
    ],
)
def test_a_table_of_another_form_is_told(run: Path, name: str, table: dict[str, Any]) -> None:
    path = run / "trials" / read_run(run).records[0].trial.id / f"{name}.parquet"
    pq.write_table(pa.table(table), path)
    with pytest.raises(StoreError, match=rf"{name}.parquet: is damaged: (it has no )?column"):
        build_report(run)


def test_a_code_that_stands_for_no_name_is_told(run: Path) -> None:
    """Of a hundred rows that all have the first of three names; pyarrow itself reads the fourth of them, and says so
    nowhere.
    """
    path = run / "trials" / read_run(run).records[0].trial.id / "outside.parquet"
    same = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array(["a", "b", "c"]))
    table = pa.table({"t_ns": range(100), "source": same, "counter": same, "value": range(100)})
    whole = pa.schema([field.with_nullable(False) for field in table.schema])
    pq.write_table(table.cast(whole), path, compression="none", use_dictionary=["source", "counter"])
    codes, beyond = b"\x02\xc8\x01\x00", b"\x02\xc8\x01\x03"  # two bits a code, a run of a hundred, the code
    held = path.read_bytes()
    assert held.count(codes) == 2
    path.write_bytes(held.replace(codes, beyond, 1))
    assert pq.read_table(path).num_rows == 100
    with pytest.raises(StoreError, match=r"outside.parquet: is damaged: column source holds a code that stands for"):
        build_report(run)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_text_is_not_read_as_often_as_it_stands_in_a_file(run: Path, kind: pa.DataType) -> None:
    """A thousand bytes may be terabytes: a name of a megabyte, in as many rows as there may be."""
    found = read_run(run)
    trial = found.records[0].trial.id
    path = run / "trials" / trial / "outside.parquet"
    before = found.samples(trial, "outside")
    table = pq.read_table(path)
    for name in ("source", "counter"):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(kind))
    pq.write_table(table, path, store_schema=kind == pa.large_string())
    after = found.samples(trial, "outside")
    assert {key: each.value.tolist() for key, each in after.items()} == {k: s.value.tolist() for k, s in before.items()}
    long = pa.array(["x" * 2**18] * table.num_rows, kind)
    table = table.set_column(table.column_names.index("source"), "source", long)
    pq.write_table(table, path, compression="zstd", store_schema=kind == pa.large_string())
    assert path.stat().st_size < 2**14
    read = found.table(trial, "outside")
    assert read is not None
    assert read.nbytes < 2**20 < table["source"].nbytes


@pytest.mark.parametrize("value", ["x" * 100, [1] * 100, b"x" * 100])
def test_a_column_of_another_kind_is_not_read(run: Path, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_run(run)
    trial = found.records[0].trial.id
    path = run / "trials" / trial / "outside.parquet"
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: pytest.fail("it was read"))
    pq.write_table(pa.table({"t_ns": [1], "source": ["a"], "counter": ["a"], "value": [value]}), path)
    with pytest.raises(StoreError, match="column value holds"):
        found.table(trial, "outside")
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 2, names=["value", "value"]), path)
    with pytest.raises(StoreError, match="columns of the same name"):
        found.table(trial, "outside")


@pytest.mark.parametrize("name", ["../../../etc/secret", "/etc/secret", "", None, 7, ["x"], {"a": 1}])
def test_claims_are_those_of_this_virtoll(run: Path, name: object) -> None:
    changed(run / "study.json", lambda study: study.update(claims=[name]))
    with pytest.raises(StoreError, match="no claims called"):
        build_report(run)


def test_what_makes_no_sense_is_told_as_such(run: Path) -> None:
    changed(run / "study.json", lambda study: study.update(base={key: {"deep": []} for key in study["base"]}))
    changed(run / "study.json", lambda study: study.update(claims=7, programme=[7], factors=[[]]))
    with pytest.raises(StoreError, match="makes no sense to the analysis: TypeError"):
        build_report(run)


# -- markup -----------------------------------------------------------------------------------------------

EVIL = "</script></title></style></svg>\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}"


class Elements(HTMLParser):
    """Every element and attribute of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[tuple[str, str]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen |= {(tag, ""), *((tag, name) for name, _ in attrs)}


def poisoned(value: Any, key: str = "") -> Any:
    """A record with EVIL in each of its texts that is free, keys of free-form tables included."""
    if isinstance(value, dict):
        free = key in ("facts", "believes", "notes", "comparable")
        return {(k + EVIL if free else k): poisoned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(each, key) for each in value]
    fixed = (
        "id",
        "started_at",
        "status",
        "role",
        "loop",
        "platform",
        "network",
        "created_at",
        "name",
        "deployment",
        "host",
    )
    return value + EVIL if isinstance(value, str) and key not in fixed else value


@pytest.mark.drawn
def test_no_text_of_a_record_becomes_markup(tmp_path: Path) -> None:
    spoilt = Recipe(arms=(NATIVE, DOCKER), blocks=3, samples_per_trial=20, spoilt={"b02-t0003": "failed"})
    plain = build_report(write_run(tmp_path / "plain", spoilt)).read_text("utf-8")
    run = write_run(tmp_path / "evil", spoilt)
    for file in ("plan.json", "environment.json", "trials.jsonl"):
        lines = (run / file).read_text().splitlines() if file.endswith("l") else [(run / file).read_text()]
        (run / file).write_text("".join(json.dumps(poisoned(json.loads(line))) + "\n" for line in lines))
    study = json.loads((run / "study.json").read_text())
    (run / "study.json").write_text(json.dumps(study | {"title": EVIL, "question": EVIL, "command": EVIL}))
    page = build_report(run).read_text("utf-8")
    assert page.count("&lt;script&gt;alert(1)") > 20, "the texts are on the page, as texts"
    assert "49" not in page[page.index("<h1>") : page.index("</h1>")]
    in_lines = {("tspan", ""), ("tspan", "x"), ("tspan", "dy")}  # of a long name on an axis
    assert Elements(page).seen <= Elements(plain).seen | in_lines | {("small", ""), ("aside", ""), ("aside", "class")}
    for figure in (run / "report/figures").glob("*.svg"):
        assert not {"script", "img"} & {tag for tag, _ in Elements(figure.read_text("utf-8")).seen}


def test_files_of_the_report_are_called_by_plain_words(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", SMALL)
    build_report(run)
    from virtoll.report.tables import Cell, Table, file_name

    assert file_name("../../etc/x_y.z") == "------etc-x-y-z"
    with pytest.raises(StoreError, match="not a name"):
        Table("../out", "", ("a",), ((Cell("b"),),)).write(tmp_path)


def test_what_is_left_of_a_run_is_no_order_to_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run printed a plan's labels and levels as they were."""

    def poison(plan: Any) -> None:
        plan["trials"][0]["arm"]["label"] = "docker\x1b[2J"
        plan["trials"][1]["condition"] = {"service.word": "\x1b]0;mine\x07\r"}

    run = new_run(tmp_path / "r").path
    changed(run / "plan.json", poison)
    assert run_study(Request(str(run), dry_run=True)) == 0
    shown = capsys.readouterr().out
    assert "docker\ufffd[2J" in shown
    assert not {"\x1b", "\x07", "\r"} & set(shown)


@pytest.mark.parametrize(
    ("verb", "of"),
    [
        ("export", {"started_at": "yesterday"}),
        ("export", {"started_at": "2026-01-01T00:00:00"}),
        ("export", {"trial": {"arm": {"label": "of no plan"}}}),
        ("keep", {"trial": {"condition": {"server": "web"}}}),
    ],
)
def test_what_is_exported_and_kept_is_told_as_damaged_too(
    verb: str, of: Any, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both verbs ended with a traceback."""

    def merge(into: Any, values: Any) -> None:
        for key, value in values.items():
            merge(into[key], value) if isinstance(value, dict) and key in into else into.update({key: value})

    changed(run / "trials.jsonl", lambda record: merge(record, of))
    changed(run / "study.json", lambda study: study.update(servers={"web": {"service": "nginx"}}))
    assert code_of(verb, str(run), *([str(tmp_path / "kept")] * (verb == "keep"))) == 4
    assert "makes no sense to the analysis" in capsys.readouterr().err


# -- the study, and what a word means ---------------------------------------------------------------------

PROXY = (Path(__file__).parent.parent / "src/virtoll/studies/proxy.toml").read_text()


@pytest.mark.parametrize(
    "change",
    [
        lambda study: study.update(name="../../../etc/cron.d/x"),
        lambda study: study.update(name=7),
        lambda study: study.pop("arms"),
        lambda study: study.update(arms=[7]),
        lambda study: study.update(arms=[{"arm": {}, "optional": False, "line": 1}]),
        lambda study: study.update(factors=7),
        lambda study: study.update(unheard_of=7),
        lambda study: study.update(programme=[{"probe": "x"}]),
    ],
)
def test_a_study_that_is_none_is_not_gone_on_with(tmp_path: Path, change: Callable[[Any], None]) -> None:
    study = read_study(PROXY, "proxy.toml", catalogue())
    plan = make_plan(study, [study.arms[0].arm], {"native": 1.0})
    run = RunDirectory.create(tmp_path / "r", document.as_json(study), plan, fake_environment())
    changed(run.path / "study.json", change)
    with pytest.raises(StoreError, match=r"study.json(.|\n)*is damaged"):
        document.of(run.study, run.path / "study.json", catalogue())


@pytest.mark.parametrize("here", ["file", "run"])
def test_a_name_that_means_two_things_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str) -> None:
    monkeypatch.chdir(tmp_path)
    if here == "file":
        Path("proxy").write_text(PROXY.replace('"proxy"', '"mine"', 1))
    else:
        new_run(Path("proxy"))
    for dry_run in (True, False):
        with pytest.raises(StudyError) as refused:
            run_study(Request("proxy", dry_run=dry_run))
        assert "ready-made study, and a " in str(refused.value)
        assert "write ./proxy" in str(refused.value)


def test_each_of_both_can_be_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    new_run(Path("proxy"))
    assert run_study(Request("./proxy", dry_run=True)) == 0
    assert "4 trials are left" in capsys.readouterr().out


@pytest.mark.parametrize(
    "word", ["claims/proxy-2014", "../studies/proxy", "./proxy", "{tmp}/proxy", "studies/../proxy"]
)
def test_a_path_is_no_ready_made_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "proxy.toml").write_text(PROXY)
    with pytest.raises(StudyError, match="no such study"):
        run_study(Request(word.format(tmp=tmp_path), dry_run=True))


def test_a_plain_directory_of_a_studys_name_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("proxy").mkdir()
    with pytest.raises(StudyError, match="one block gives no interval"):
        run_study(Request("proxy", blocks=1, dry_run=True))


def test_a_hosts_name_is_a_plain_word_and_leads_nowhere(run: Path) -> None:
    plan = json.loads((run / "plan.json").read_text())
    for name in ("../elsewhere", "/etc", "<b>", "x" * 65, ".hidden"):
        plan["trials"][0]["host"] = name
        (run / "plan.json").write_text(json.dumps(plan))
        with pytest.raises(StoreError, match=r"plan.json: is damaged: trials.0.host"):
            _ = RunDirectory(run).plan
    with pytest.raises(StoreError, match="is not a name of a file in a run directory"):
        RunDirectory(run).environment_of("..")


def test_a_plan_of_endless_blocks_takes_no_memory(run: Path) -> None:
    """For a run of hosts a name was kept for each of as many blocks as the plan said that there are."""
    measured_elsewhere(run, {})
    changed(run / "plan.json", lambda plan: plan.update(blocks=10**7))
    plan = RunDirectory(run).plan
    tracemalloc.start()
    try:
        rule_of(plan)
        assert tracemalloc.get_traced_memory()[1] < 10 * 10**6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("study", "told"),
    [([], "list where a table is"), ({"schema_version": 99}, "schema 99"), ("study", "str where a table is")],
)
def test_a_study_that_is_none_of_ours_is_refused(study: object, told: str, tmp_path: Path) -> None:
    """It gave a report."""
    run = write_run(tmp_path / "run", Recipe(blocks=2, arms=(NATIVE, DOCKER), bulk=False))
    (run / "study.json").write_text(json.dumps(study), encoding="utf-8")
    with pytest.raises(StoreError, match=told):
        find(run)


def test_brackets_without_end_are_no_study(run: Path) -> None:
    """Who went on with such a run was shown a RecursionError."""
    deep = "[" * 100_000
    (run / "study.json").write_text(f'{{"name": {deep}{deep.replace("[", "]")}}}', encoding="utf-8")
    with pytest.raises(StoreError, match="is damaged: maximum recursion"):
        _ = RunDirectory(run).study


@pytest.mark.parametrize("wrong", [{"duration_ns": -5}, {"work": -1.0}, {"work": math.nan}])
def test_a_window_that_cannot_have_been_is_refused(wrong: dict[str, float], tmp_path: Path) -> None:
    """It was averaged with the others."""
    run = write_run(tmp_path / "run", Recipe(blocks=2, arms=(NATIVE, DOCKER), bulk=False))
    first, *rest = (run / "trials.jsonl").read_text("utf-8").splitlines()
    record = json.loads(first)
    record["measured"]["windows"][0] |= wrong
    (run / "trials.jsonl").write_text("\n".join([json.dumps(record), *rest]) + "\n", encoding="utf-8")
    with pytest.raises(StoreError):
        find(run)
