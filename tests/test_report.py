"""The report: one offline page that says what the analysis found, and files for papers."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from altair.utils.schemapi import debug_mode

from synthetic import AGAIN, ARMS, DOCKER, KVM, LXC, NATIVE, UML, Recipe, write_run
from virtoll.analysis.estimates import Estimate, mean
from virtoll.analysis.metrics import METRICS
from virtoll.errors import StoreError
from virtoll.platforms.base import platforms
from virtoll.record.model import GENERATOR_HEADROOM, Arm, Check, TrialRecord, Window
from virtoll.report import page as page_module
from virtoll.report.advice import Known, advise
from virtoll.report.advising import as_text
from virtoll.report.answer import answer
from virtoll.report.build import build_report
from virtoll.report.contents import figures, tables
from virtoll.report.drawing import NARROW, WIDE, Layout
from virtoll.report.findings import find
from virtoll.report.numbers import interval, number, plus_minus, significant
from virtoll.report.palette import pairs, styles
from virtoll.report.render import specification, svg
from virtoll.report.reservations import _unsteady, reservations
from virtoll.report.running import RunningTable
from virtoll.report.sections.tolls import Tolls, _words
from virtoll.report.sections.values import absolute
from virtoll.report.tables import Cell, Table, trials_csv

pytestmark = pytest.mark.usefixtures("helped")

GOLDEN = Path(__file__).parent / "golden" / "report"
SPOILT = {"b01-t003": "failed", "b02-t040": "invalid"}


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("report") / "run", Recipe(blocks=4, spoilt=SPOILT))


@pytest.fixture(scope="module")
def page(run_directory: Path, helped: None) -> str:
    return build_report(run_directory).read_text("utf-8")


class Links(html.parser.HTMLParser):
    """Collects what a page would fetch, its ids, and the ids it points to."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "srcset", "data", "poster") or (name in ("href", "xlink:href") and tag != "a"):
                self.fetched.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and tag == "a" and (value or "").startswith("#"):
                self.targets.append((value or "")[1:])


def test_page_is_one_offline_file(page: str) -> None:
    links = Links()
    links.feed(page)
    assert [address for address in links.fetched if not address.startswith(("data:", "#"))] == []
    assert "<script" not in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#|data:)", page)
    assert set(links.targets) <= set(links.ids)


def test_no_id_is_twice_on_the_page(page: str) -> None:
    """Figures are rendered by several processes, each of which numbers its own."""
    links = Links()
    links.feed(page)
    assert len(links.ids) == len(set(links.ids))
    assert "absolute-1-1" in links.ids
    referred = set(re.findall(r"url\(#([^)]+)\)", page))
    assert referred <= set(links.ids)


def test_a_figure_is_the_same_whatever_was_rendered_before(run_directory: Path) -> None:
    figure = next(figure for figure in figures(find(run_directory)) if figure.name == "absolute")
    chart = specification(figure.draw(WIDE))
    assert "clip-path" in svg(chart, "a")
    assert svg(chart, "a") == svg(chart, "a")


def test_a_level_of_none_has_its_place(tmp_path: Path) -> None:
    """It was on no step of the axis."""
    factors: dict[str, list[Any]] = {"link.rate_bit_per_s": [None, 10**9], "load.object_bytes": [10_000]}
    run = write_run(tmp_path / "run", Recipe(arms=(NATIVE, DOCKER), blocks=2, factors=factors, bulk=False))
    (drawn,) = (figure for figure in figures(find(run)) if figure.name == "absolute")
    chart = drawn.draw(WIDE).to_dict()
    (domain,) = {tuple(layer["encoding"]["x"]["scale"]["domain"]) for layer in chart["layer"]}
    head, *lines = chart["data"]["values"].splitlines()
    at = {line.split(",")[head.split(",").index("x")] for line in lines}
    assert at == set(domain) == {"rate none", "rate 1 Gbit/s"}


def test_page_answers_first(page: str, run_directory: Path) -> None:
    body = re.sub(r"<[^>]+>", "", page[page.index("<main>") :]).replace("\u00a0", " ")
    (sentence,) = answer(find(run_directory))
    assert sentence in body
    assert body.index(sentence) < body.index("How much is that")
    assert "closed loop" in sentence
    assert "kvm+routed was not measured" in sentence


def test_page_shows_what_does_not_count(page: str) -> None:
    assert "the guest never answered within 60 s" in page
    assert "the generator was the limit" in page
    assert "no /dev/kvm on this machine" in page


def test_fast_trials_that_the_generator_was_too_slow_for_are_told_on_top(tmp_path: Path) -> None:
    """They are invalid, and those that are left of their arms are the slow ones: no fair sample."""
    run = write_run(tmp_path / "run", Recipe(blocks=2, arms=(NATIVE, DOCKER), factors={"load.connections": [1]}))
    assert reservations(find(run)) == []
    lines = (run / "trials.jsonl").read_text("utf-8").splitlines()
    record = TrialRecord.model_validate_json(lines[0])
    check = Check(name=GENERATOR_HEADROOM, passed=False, detail="used 95% of 1 CPU")
    lines[0] = record.model_copy(update={"status": "invalid", "checks": [check]}).model_dump_json()
    (run / "trials.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (told,) = reservations(find(run))
    assert told.startswith(
        f"the generator had no headroom in 1 trial, the fastest of {record.trial.arm.label}: what is"
    )


def test_a_closed_loop_that_leaves_its_service_idle_is_told_to_be_no_capacity(tmp_path: Path) -> None:
    arms, factors = (NATIVE, DOCKER), {"load.connections": [1, 100]}
    run = write_run(tmp_path / "run", Recipe(blocks=2, arms=arms, factors=factors))
    found = find(run)
    for (*_, condition), cell in found.matrix.cells.items():
        busy = 0.44 if condition.get("load.connections") == 1 else 0.93
        cell.values |= {"rate_per_s": 5000.0, "cpu_s_per_1000": busy / 5}
    (told,) = reservations(found)
    assert told.startswith("native used 44% under 1 connection of its CPU: ")


@pytest.mark.parametrize(("rates", "told"), [((900, 880, 500, 460), ["fell by 49%"]), ((900, 450, 870, 905), [])])
def test_a_service_that_is_not_steady_within_its_trials_is_told(rates: tuple[int, ...], told: list[str]) -> None:
    windows = [Window(start_ns=n, duration_ns=10**9, work=rate) for n, rate in enumerate(rates)]
    trials = [SimpleNamespace(record=SimpleNamespace(measured=SimpleNamespace(windows=windows))) for _ in range(3)]
    matrix = SimpleNamespace(
        conditions=[None], searched=frozenset(), baseline=NATIVE, across=lambda *_: dict(enumerate(trials))
    )
    found = SimpleNamespace(is_load=True, is_search=False, loops=("closed",), matrix=matrix)
    said = _unsteady(cast(Any, found))
    assert [word for word in told if word in said[0]] == told if told else said == []


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ([{"cpus": 0.05, "bound": 0.15}] * 4, ""),
        (
            [{"cpus": 1.538, "bound": 0.15}, {"cpus": 0.2, "bound": 0.15}, {"cpus": 0.0, "bound": 0.15}, None],
            "1.54 2 3",
        ),
        ([None, "much", {"cpus": "9"}, {"cpus": None, "bound": 0.1}], ""),
    ],
)
def test_what_other_work_took_beside_trials_is_told(tmp_path: Path, facts: list[Any], told: str) -> None:
    """Whatever the load was when the run began; a run from elsewhere may hold anything."""
    found = find(write_run(tmp_path / "run", Recipe(blocks=2, arms=(NATIVE, DOCKER))))
    records = [record for record in found.run.records if record.status == "valid"]
    for record, fact in zip(records, [*facts, *[None] * len(records)], strict=False):
        record.facts.update({} if fact is None else {"others": fact})
    said = [words for words in reservations(found) if words.startswith("other work took")]
    if not told:
        assert said == []
        return
    most, took, known = told.split()
    assert said[0].startswith(f"other work took up to {most} of the instance's CPUs, in {took} of {known} trials:")


def test_page_follows_light_and_dark(page: str, run_directory: Path) -> None:
    drawn = page[page.index("<main>") :]
    for light, _ in pairs(styles(find(run_directory).matrix.arms)):
        assert f'"{light}"' not in drawn


def test_labels_from_a_study_cannot_become_markup(tmp_path: Path) -> None:
    evil = Arm(label="<b>evil</b>&co", platform="lxc", network="routed")
    recipe = Recipe(arms=(NATIVE, evil), truth={NATIVE.label: 1.0, evil.label: 0.9}, blocks=2)
    page = build_report(write_run(tmp_path / "r", recipe)).read_text("utf-8")
    assert "<b>evil" not in page


def test_files_for_papers(page: str, run_directory: Path) -> None:
    assert page
    report = run_directory / "report"
    names = {path.stem for path in (report / "figures").iterdir()}
    assert names == {"tolls", "absolute", "latency", "cpu", "memory", "deployment", "steadiness"}
    for name in names:
        assert (report / "figures" / f"{name}.svg").read_text().startswith("<svg")
        assert (report / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (report / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert {path.suffix for path in (report / "tables").iterdir()} == {".md", ".csv", ".tex"}
    rows = list(csv.DictReader((report / "tables" / "trials.csv").open()))
    assert len(rows) == 4 * 4 * len(ARMS)
    assert sum(row["status"] == "valid" for row in rows) == len(rows) - 2
    assert all(row["rate_per_s"] == "" for row in rows if row["status"] == "failed")  # missing, never 0


def test_charts_are_valid_vega_lite(run_directory: Path) -> None:
    with debug_mode(True):
        for figure in figures(find(run_directory)):
            for layout in (WIDE, NARROW):
                assert figure.draw(layout).to_dict(validate=True)["$schema"].startswith("https://vega.github.io/schema")


def test_report_of_a_run_that_has_just_begun(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2, sealed=0))
    assert "no answer yet" in answer(find(directory))[0]
    assert "planned trials are not there yet" in build_report(directory).read_text("utf-8")


def test_a_page_tells_packages_that_were_asked_for_and_of_all_others_a_digest(tmp_path: Path) -> None:
    """An image has a hundred; environment.json has them all."""
    directory = write_run(tmp_path / "r", Recipe(blocks=2, sealed=0))
    path = directory / "environment.json"
    told = json.loads(path.read_text("utf-8"))
    told["comparable"] |= {"packages": {"instance": {"squid": "5.7-2"}}, "installed": {"instance": "110 packages, sha"}}
    told["notes"] |= {"installed": {"instance": {"squid": "5.7-2", "libssl3": "3.0.15"}}}
    path.write_text(json.dumps(told), "utf-8")
    page = build_report(directory).read_text("utf-8")
    assert "packages › instance › squid" in page
    assert "110 packages, sha" in page
    assert "libssl3" not in page


def test_blocks_that_were_not_measured_are_not_counted(tmp_path: Path) -> None:
    arms = (NATIVE, AGAIN, DOCKER)
    run = write_run(tmp_path / "run", Recipe(arms=arms, blocks=20, sealed=3 * 4 * 3))  # three of twenty
    page = build_report(run).read_text("utf-8").replace("\xa0", " ")
    assert "95 % interval over 3 of 20 blocks" in page
    assert "n: at most 3 of 20 blocks; degrees of freedom: n − 1" in page
    assert "3 of 20, in random order" in page
    assert not re.search(r"(?<!of )20 blocks", page)


def test_a_grey_band_is_said_to_be_held_against_a_shorter_interval_than_the_bar(run_directory: Path) -> None:
    (tolls,) = (figure for figure in figures(find(run_directory)) if figure.name == "tolls")
    assert "no difference is shown where the 90 % interval lies in it, which is shorter than the bar" in tolls.caption


def test_report_of_one_block_and_of_a_run_without_native(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", Recipe(blocks=2, sealed=len(ARMS) * 4))
    assert "cannot tell yet" in answer(find(one))[0]
    build_report(one)
    bare = write_run(tmp_path / "bare", Recipe(arms=(LXC, UML), blocks=2))
    assert "no native arm" in answer(find(bare))[0]
    build_report(bare)


@pytest.mark.parametrize("arms", [(NATIVE,), (NATIVE, AGAIN)], ids=len)
def test_a_run_of_native_alone_is_told_to_have_nothing_to_compare(tmp_path: Path, arms: tuple[Arm, ...]) -> None:
    """All of its trials are valid, and no more of them would give an answer: it was told to have none yet."""
    alone = find(write_run(tmp_path / "alone", Recipe(arms=arms, blocks=2, bulk=False)))
    (told,) = answer(alone)
    assert told.startswith("There is no answer: the run has no arm but native, and nothing to compare with it; kvm")
    assert told.endswith(" was not measured.")


def test_report_of_a_run_where_everything_failed(tmp_path: Path) -> None:
    ids = [f"b{1 + i // 28:02d}-t{i + 1:03d}" for i in range(56)]
    directory = write_run(tmp_path / "r", Recipe(blocks=2, spoilt=dict.fromkeys(ids, "failed")))
    assert "no answer yet" in answer(find(directory))[0]
    assert "56 of 56" in build_report(directory).read_text("utf-8")


def test_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2, bulk=False))
    (directory / "report").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        build_report(directory)


def test_tables_match_golden_files(run_directory: Path) -> None:
    """What the made-up run's tables looked like when somebody last looked. Delete a file to have it written anew."""
    found = find(run_directory)
    made = {table.name: table for table in tables(found)}
    missing = []
    for name in ("tolls", "tolls-by-condition", "total-time-s", "paper-proxy-table-ii", "paper-proxy-statements"):
        for suffix, text in (("md", made[name].markdown()), ("tex", made[name].latex())):
            golden = GOLDEN / f"{name}.{suffix}"
            if not golden.is_file():
                golden.parent.mkdir(parents=True, exist_ok=True)
                golden.write_text(text, encoding="utf-8")
                missing.append(golden.name)
            assert text == golden.read_text("utf-8")
    assert not missing, "these were missing and have been written: look at them, then run again"


def test_a_mean_over_the_trials_without_failures_alone_is_not_told(tmp_path: Path) -> None:
    """One of four has its longest among the failed: that cell says so, and the median of all four is a mean."""
    directory = write_run(tmp_path / "run", Recipe(arms=(NATIVE, LXC), blocks=4, factors={}))
    lines = (directory / "trials.jsonl").read_text().splitlines(keepends=True)
    records = [TrialRecord.model_validate_json(line) for line in lines]
    spoilt = next(number for number, record in enumerate(records) if record.trial.arm.label == LXC.label)
    measured = records[spoilt].measured
    assert measured is not None
    assert measured.events is not None
    offered = measured.events.offered + 1
    failed = measured.events.model_copy(update={"failures": {"reset": 1}, "censored": 1, "offered": offered})
    window = measured.window.model_copy(update={"events": {"request": failed}})
    changed = measured.model_copy(update={"windows": [window]})
    lines[spoilt] = records[spoilt].model_copy(update={"measured": changed}).model_dump_json() + "\n"
    (directory / "trials.jsonl").write_text("".join(lines))
    findings = find(directory)
    cells = {name: absolute(findings, f"latency_{name}_ms") for name in ("max", "p50")}
    longest, median = ({h: c.text for h, c in zip(t.heads, t.rows[0], strict=True)} for t in cells.values() if t)
    assert longest[LXC.label] == "in 1 of 4 it lies among what failed"
    assert "±" in longest[NATIVE.label]
    assert "±" in median[LXC.label]


def test_a_loads_own_tables_name_its_loop(run_directory: Path) -> None:
    findings = find(run_directory)
    captions = {name: table.caption for name in METRICS if (table := absolute(findings, name)) is not None}
    assert captions["rate_per_s"].startswith("Throughput [req/s], closed loop: mean")
    of_the_loop = {name for name, caption in captions.items() if ", closed loop: " in caption}
    assert of_the_loop == {name for name in captions if name.startswith(("rate_per_s", "total_time_s", "latency_"))}


def test_the_headline_of_an_open_loop_is_what_most_trials_have(tmp_path: Path) -> None:
    """One trial with a 99th percentile makes no answer."""
    directory = write_run(tmp_path / "run", Recipe(arms=(NATIVE, AGAIN, LXC), blocks=4, factors={}))
    log = directory / "trials.jsonl"
    log.write_text(log.read_text().replace('"loop":"closed"', '"loop":"open"'))
    findings = find(directory)
    assert findings.headline.name == "latency_p99_ms"
    for kept, headline in ((LXC.label, "latency_p90_ms"), (NATIVE.label, "latency_p90_ms")):
        findings = find(directory)
        for trial in findings.matrix.trials:
            if trial.record.trial.arm.label != kept:
                trial.missing["latency_p99_ms"] = "too few requests"
                del trial.values["latency_p99_ms"]
        assert findings.headline.name == headline
        assert "no answer yet" not in answer(findings)


def test_table_forms_escape_what_they_must() -> None:
    table = Table("t", "50 % & more", ("a|b", "c"), ((Cell("x_1"), Cell("1 ± 2", "", "a, b")),))
    assert r"a\|b" in table.markdown()
    assert r"50 \% \& more" in table.latex()
    assert r"x\_1" in table.latex()
    assert list(csv.reader(io.StringIO(table.csv())))[1] == ["x_1", "1 ± 2 (a, b)"]


def test_latex_prints_the_signs_that_a_table_has() -> None:
    """An objective "latency_p99 < 20 ms" came out as "¡ 20 ms", and a loss of "−20 %" ended the document."""
    table = Table("t", "p99 < 20 ms", ("a|b", "rate > 5"), ((Cell("−20 %"), Cell("Emulation∇")),))
    told = table.latex()
    assert r"p99 \textless{} 20 ms" in told
    assert r"a\textbar{}b & rate \textgreater{} 5 \\" in told
    assert r"$-$20 \% & Emulation$\nabla$ \\" in told
    assert told.isascii()


def test_numbers_show_two_digits_of_their_uncertainty() -> None:
    assert number(1234.56, 41.2) == "1,235"
    assert number(0.01234, 0.00031) == "0.01234"
    assert number(97.41, 0.03) == "97.410"
    assert number(0.00102, 0.000003) == "0.0010200"  # CPU seconds of 1,000 commands
    assert number(0.000003, 0.000003) == "0.0000030"
    assert plus_minus(None) == interval(None) == "—"


def test_an_interval_is_told_from_what_it_is_held_against() -> None:
    def told(value: float, low: float, high: float, at: float | None = None, unit: str = "ms") -> str:
        return interval(Estimate(value, low, high, 0.95, unit, 5, ""), at)

    assert told(20.5, 20.004, 21.0) == "20.50 [20.00, 21.00]"
    assert told(20.5, 20.004, 21.0, 20) == "20.500 [20.004, 21.000]"
    assert told(1600, 1030, 3300, 1020) == "1,600 [1,030, 3,300]"  # and not 1,000, which would be below it
    assert told(0.5, 0.1, 2e6, 1, "requests/s") == "0.5 [0.1, 2,000,000]"
    assert told(0.5, 0.1, 1.004, unit="ratio") == "0.5 [0.1, 1.004]"
    assert told(1.0, -1e-12, 5.0, 0.0) == "1 [>-0.001, 5]"


@pytest.mark.parametrize("value", [0.1, 1.4814814814814814, 123.45679012345678])
def test_what_adding_up_equal_values_rounds_is_no_uncertainty(value: float) -> None:
    """Three deployments whose median latency lies in one bucket of their histograms: 0.100000000 ± 0.000000000."""
    told = {plus_minus(mean([value] * n, "ms")) for n in range(2, 12)}
    assert told == {f"{number(value)} ± 0"}
    assert {interval(mean([value] * n, "ms")).partition(" ")[0] for n in range(2, 12)} == {number(value)}


def test_running_table_follows_the_records(run_directory: Path) -> None:
    findings = find(run_directory)
    rows = {row.arm.label: row for row in RunningTable(findings.run.records).rows()}
    assert next(iter(rows)) == NATIVE.label
    assert rows[NATIVE.label].against_native is None
    assert sum(row.spoilt for row in rows.values()) == 2
    toll = findings.tolls("rate_per_s").total(DOCKER)
    assert toll is not None
    assert rows[DOCKER.label].against_native is not None
    assert rows[DOCKER.label].against_native.value == pytest.approx(toll.ratio.value)  # type: ignore[union-attr]
    assert RunningTable().rows() == []


def test_the_running_table_is_the_same_record_by_record(run_directory: Path) -> None:
    records = find(run_directory).run.records
    growing = RunningTable()
    for count, record in enumerate(records, 1):
        growing.add(record)
        assert growing.rows() == RunningTable(records[:count]).rows()


def test_the_running_table_tells_no_rate_that_a_schedule_set(run_directory: Path) -> None:
    """In open loop all arms do what they are asked, however late: "x 1.00 [1.00, 1.00]" of native's."""
    records = []
    for record in find(run_directory).run.records:
        measured = None if record.measured is None else record.measured.model_copy(update={"loop": "open"})
        records.append(record.model_copy(update={"measured": measured}))
    rows = RunningTable(records).rows()
    assert {(row.value, row.against_native) for row in rows} == {(None, None)}
    assert all(row.valid for row in rows)


def test_arms_look_alike_in_every_run() -> None:
    alone, among = styles((NATIVE, UML)), styles(ARMS)
    assert alone[UML.label] == among[UML.label]
    assert len({(style.light, style.shape) for style in among.values()}) == len(ARMS)
    unknown = styles((NATIVE, Arm(label="new+routed", platform="new", network="routed")))
    assert unknown["new+routed"].light not in {style.light for style in among.values()}


def every_platform() -> list[Arm]:
    """An arm of each that virtoll has, as `--platforms all` makes them."""
    further = [name for name in platforms() if name not in ("native", "docker", "lxc", "uml", "kvm")]
    added = [Arm(label=name, platform=name, network="routed") for name in further]
    return [NATIVE, AGAIN, DOCKER, LXC, UML, KVM, *added]


def test_each_of_virtolls_platforms_has_a_look_of_its_own_whoever_else_is_in_the_run() -> None:
    arms = every_platform()
    among = styles(arms)
    assert len({style.light for style in among.values()}) == len(arms)
    for arm in arms:
        if arm.role == "treatment":
            assert styles((NATIVE, arm))[arm.label] == among[arm.label]
    foreign = styles((*arms, Arm(label="new+routed", platform="new", network="routed")))
    assert {label: look for label, look in foreign.items() if label in among} == among


def test_a_report_of_every_platform_answers_in_few_words_and_each_arm_has_a_line(tmp_path: Path) -> None:
    arms = [arm for arm in every_platform() if arm.platform != "kvm"]
    truth = {arm.label: 0.97 - 0.002 * number for number, arm in enumerate(arms)}
    factors = {"load.object_bytes": [10_000]}
    run = write_run(tmp_path / "r", Recipe(arms=arms, truth=truth, factors=factors, blocks=3, noise=0.2, bulk=False))
    found = find(run)
    (told,) = answer(found)
    assert told.count("(the most, ") == 1, "of the one that needs most"
    assert all(arm.label in told for arm in arms if arm.role == "treatment")
    (drawn,) = (figure for figure in figures(found) if figure.name == "absolute")
    assert drawn.question == "How much is that?"
    lines = [layer["encoding"]["y"] for layer in specification(drawn.draw(WIDE))["layer"]]
    labels = {arm.label for arm in arms if arm.role != "floor"}
    assert all(y["field"] == "arm" and {*y["scale"]["domain"]} == labels for y in lines)


@pytest.mark.parametrize(
    ("truth", "panels"),
    [
        ({UML.label: 0.25}, 1),
        ({UML.label: 1.9}, 1),
        ({UML.label: 0.25, DOCKER.label: 0.98}, 2),
        ({UML.label: 1.9, DOCKER.label: 0.98}, 2),
        ({UML.label: 0.7, DOCKER.label: 0.98}, 1),
    ],
    ids=str,
)
def test_every_arm_of_the_tolls_is_on_its_axis(tmp_path: Path, truth: dict[str, float], panels: int) -> None:
    """A mark off the axis is drawn all the same, beside the plot: among the labels."""
    arms = [NATIVE, AGAIN, *(arm for arm in (DOCKER, UML) if arm.label in truth)]
    recipe = Recipe(arms=arms, truth={NATIVE.label: 1.0, AGAIN.label: 1.0, **truth}, blocks=3, bulk=False)
    (figure,) = Tolls().figures(find(write_run(tmp_path / "run", recipe)))
    chart = specification(figure.draw(WIDE))
    drawn = chart.get("vconcat", [chart])
    assert len(drawn) == panels
    for layer in (layer for panel in drawn for layer in panel["layer"] if layer["mark"]["type"] == "point"):
        low, high = layer["encoding"]["x"]["scale"]["domain"]
        values = [float(row["value"]) for row in csv.DictReader(io.StringIO(layer["data"]["values"]))]
        assert low < min(values) <= max(values) < high
    is_far = truth[UML.label] != 0.7
    assert ("logarithmic scale" in figure.caption.lower()) is is_far


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (0.925, 0.997, "96.0 % [92.5, 99.7]"),
        (0.921, 1.0046, "96.0 % [92.1, 100.5]"),
        (0.94, 0.98, "96 % [94, 98]"),
        (0.96, 0.9998, "96.00 % [96.00, 99.98]"),
    ],
)
def test_a_share_beside_its_bar_says_which_side_of_native_it_ends_at(low: float, high: float, told: str) -> None:
    """Of an arm that costs 4 % [0.3, 7.5] the figure said 96 % [92, 100], as of one of which nothing can be told."""
    assert _words(Estimate(0.96, low, high, 0.95, "ratio", 5, "")) == told


@pytest.mark.parametrize(
    ("of_one", "of_other", "panels"), [(0.6, 1.3, 1), (0.3, 1.0, 1), (1.0, 2.1, 2)], ids=["linear", "far", "magnified"]
)
def test_every_condition_has_its_stroke(tmp_path: Path, of_one: float, of_other: float, panels: int) -> None:
    """A toll of means that cancel had none of them, for the axis was that of its interval."""
    truth = {NATIVE.label: 1.0, AGAIN.label: 1.0, DOCKER.label: 1.0}
    factors = {"load.users": [1, 8]}
    recipe = Recipe(arms=[NATIVE, AGAIN, DOCKER], factors=factors, truth=truth, blocks=3, bulk=False)
    findings = find(write_run(tmp_path / "run", recipe))
    for (_, _, label, condition), cell in findings.matrix.cells.items():
        if label == DOCKER.label:
            cell.values["rate_per_s"] *= of_one if condition.get("load.users") == 1 else of_other
    (figure,) = Tolls().figures(findings)
    chart = specification(figure.draw(WIDE))
    drawn = chart.get("vconcat", [chart])
    assert len(drawn) == panels
    (strokes,) = (layer for layer in drawn[0]["layer"] if layer["mark"]["type"] == "tick")
    rows = list(csv.DictReader(io.StringIO(strokes["data"]["values"])))
    low, high = strokes["encoding"]["x"]["scale"]["domain"]
    assert [row["arm"] for row in rows].count(DOCKER.label) == 2
    assert all(low < float(row["value"]) < high for row in rows)


PROXIED = Arm(label="docker+published (userland-proxy)", platform="docker", network="published")
_WIDEST = (
    7.3 * 11.5 / 12
)  # pixels a character of a legend takes in DejaVu Sans, wider than what figures are laid out with


def places(svg: str) -> list[tuple[float, float, str]]:
    """x, y and text of a legend's labels; a mark's text is empty."""
    found = []

    def walk(node: ElementTree.Element, x: float, y: float, role: str) -> None:
        moved = re.match(r"translate\(([-\d.]+),([-\d.]+)\)", node.get("transform", ""))
        x, y = (x + float(moved[1]), y + float(moved[2])) if moved else (x, y)
        role = node.get("class", role)
        if "role-legend-symbol" in role and node.tag.endswith("path"):
            found.append((x, y, ""))
        if "role-legend-label" in role and node.tag.endswith("text"):
            found.append((x, y, node.text or ""))
        for child in node:
            walk(child, x, y, role)

    walk(ElementTree.fromstring(svg), 0.0, 0.0, "")
    return found


@pytest.mark.parametrize("layout", [WIDE, NARROW], ids=["wide", "narrow"])
def test_long_names_are_whole_in_legends_and_reach_no_other_mark(tmp_path: Path, layout: Layout) -> None:
    arms = (*ARMS, PROXIED)
    recipe = Recipe(arms=arms, truth={arm.label: 0.9 for arm in arms}, blocks=2)
    drawn = {figure.name: figure for figure in figures(find(write_run(tmp_path / "run", recipe)))}
    for name in ("absolute", "latency"):
        found = places(svg(specification(drawn[name].draw(layout))))
        labels = {text: (x, y) for x, y, text in found if text}
        assert set(labels) == {arm.label for arm in arms if arm.role != "floor"}
        for text, (x, y) in labels.items():
            right = x + len(text) * _WIDEST
            assert right < layout.width
            ahead = [at for at, line, other in found if not other and abs(line - y) < 9 and at > x]
            assert all(at - 6 > right for at in ahead), f"{text} runs into the next mark"


def test_a_guests_words_are_no_formula_of_a_spreadsheet(run_directory: Path) -> None:
    findings = find(run_directory)
    trial = next(trial for trial in findings.matrix.trials if trial.record.status != "valid")
    for begins in "=+-@":
        said = f"{begins}HYPERLINK(1)"
        record = trial.record.model_copy(update={"reason": said})
        matrix = replace(findings.matrix, trials=(replace(trial, record=record),))
        (row,) = csv.DictReader(io.StringIO(trials_csv(replace(findings, matrix=matrix))))
        assert row["reason"] == f"'{said}"
        assert row["trial"] == trial.record.trial.id


@pytest.mark.parametrize("said", ["=HYPERLINK(1)", "+HYPERLINK(1)", "-1+HYPERLINK(1)", "@SUM(1)", "-2|cmd"])
def test_a_guests_words_are_no_formula_in_any_table(said: str) -> None:
    table = Table(
        "audit", "All", ("", "docker"), ((Cell("Kernel"), Cell(said)), (Cell("Seccomp"), Cell("no", "", said)))
    )
    (kernel, seccomp) = csv.DictReader(io.StringIO(table.csv()))
    assert (kernel["docker"], seccomp["docker"]) == (f"'{said}", f"no ({said})")


def test_a_change_is_no_formula_and_a_cell_one_line() -> None:
    printed = ("-0.3 % [-0.5, -0.1]", "+12 ± 3 % (ratio to native 1.12)", "-1,024", "-0.5 ± 0.2")
    table = Table("changes", "All", ("a", "b", "c", "d"), (tuple(map(Cell, printed)),))
    assert tuple(next(csv.reader(io.StringIO(table.csv().partition("\n")[2])))) == printed
    split = Table("audit", "All", ("a", "b"), ((Cell("x\n\n<b>y</b>"), Cell("z|")),))
    assert r"| x  <b>y</b> | z\| |" in split.markdown().splitlines()


@pytest.mark.parametrize(
    ("value", "printed"),
    [(0.0004, "<0.001"), (-0.0004, ">-0.001"), (0.0, "0"), (-0.0012, "-0.0012"), (-25.4, "-25"), (1234.0, "1,200")],
)
def test_what_is_nearly_0_keeps_its_sign(value: float, printed: str) -> None:
    """The lower bound of an interval that holds 0 read as one above it."""
    assert significant(value) == printed


def test_what_probes_said_of_how_to_read_their_figures_stands_on_top(tmp_path: Path) -> None:
    """A host that was not full was told to hold five instances of every platform."""
    run = write_run(tmp_path / "run", Recipe(blocks=2, arms=(NATIVE, DOCKER), factors={"load.connections": [1]}))
    lines = []
    for at, line in enumerate((run / "trials.jsonl").read_text("utf-8").splitlines()):
        record = TrialRecord.model_validate_json(line)
        assert record.measured is not None
        notes = [f"the host was not full ({at} KiB were left)", "a limit"][: 1 if record.trial.arm == NATIVE else 2]
        measured = record.measured.model_copy(update={"notes": notes})
        lines.append(record.model_copy(update={"measured": measured}).model_dump_json())
    (run / "trials.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    findings = find(run)
    assert reservations(findings)[-2:] == [
        "http: the host was not full (0 KiB were left) (said in 4 of 4 trials; the first is told)",
        f"http: a limit (said in 2 of 4 trials of {DOCKER.label})",
    ]
    assert "the host was not full" in as_text(advise([findings], [], [], Known({}, ())))


def test_a_factor_of_one_level_is_told_by_that_level(tmp_path: Path) -> None:
    """The default that it took the place of was printed among the study's values."""
    run = write_run(tmp_path / "run", Recipe(blocks=2, arms=(NATIVE, DOCKER), factors={"load.connections": [20]}))
    study = json.loads((run / "study.json").read_text("utf-8"))
    study["base"]["load.connections"] = 1
    (run / "study.json").write_text(json.dumps(study), "utf-8")
    told = [text for path, text in page_module._settings(find(run)) if path == "load.connections"]
    assert told == ["20 connections"]
