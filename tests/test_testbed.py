"""The testbed: its capacity, its study, the paper's claims and its table of experiments."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthetic import DOCKER, NATIVE
from synthetic_programme import MadeUp, Recipe, write_programme
from virtoll.analysis.capacity import Grid, capacity, largest_with_all_channels
from virtoll.analysis.counterparts import fits
from virtoll.analysis.experiments import read_experiments
from virtoll.analysis.load import read_run
from virtoll.analysis.papers import read_paper
from virtoll.catalogue import catalogue
from virtoll.cli import main
from virtoll.platforms.base import platforms
from virtoll.probes.base import probes
from virtoll.record.store import RunDirectory
from virtoll.record.tables import packed, samples_table
from virtoll.report import plan
from virtoll.report.build import build_report
from virtoll.report.drawing import NARROW, WIDE
from virtoll.report.findings import find
from virtoll.report.probe_views import view_figure
from virtoll.report.questions import views_of_slices
from virtoll.report.render import specification, svg
from virtoll.report.sections.experiments import ExperimentKinds
from virtoll.report.tables import plain
from virtoll.report.time_series import SLICES, time_figures
from virtoll.study.file import read_study
from virtoll.study.limits import Limits
from virtoll.study.model import Study, settings_of
from virtoll.trial.treatment import make_probe

SMALL = st.integers(1, 12)
GRIDS = st.builds(Grid, nodes=SMALL, interfaces=st.integers(1, 4), channels=SMALL, slices=st.integers(1, 4))


def dealt(grid: Grid, experiments: int, size: int) -> list[list[int]]:
    """The nodes of each experiment, dealt out round the grid."""
    return [[(one * size + at) % grid.nodes for at in range(size)] for one in range(experiments)]


@given(GRIDS, st.integers(1, 12))
def test_what_is_said_to_fit_can_be_dealt_out_and_one_more_cannot(grid: Grid, size: int) -> None:
    found = capacity(grid, size)
    placed = dealt(grid, found.experiments, size)
    assert all(len(set(nodes)) == size for nodes in placed)
    taken = [node for nodes in placed for node in nodes]
    assert all(taken.count(node) <= grid.usable_slices for node in range(grid.nodes))
    assert found.experiments <= grid.channels
    one_more = found.experiments + 1
    lacks_slices = one_more * size > grid.nodes * min(grid.slices, grid.interfaces) or size > grid.nodes
    lacks_channels = one_more > grid.channels
    assert lacks_slices or lacks_channels
    assert ("channels" in found.binding) == (lacks_channels and size <= grid.nodes)
    assert bool({"slices", "interfaces", "nodes"} & set(found.binding)) == lacks_slices


@given(GRIDS, st.integers(1, 12))
def test_more_of_anything_never_means_fewer_experiments(grid: Grid, size: int) -> None:
    here = capacity(grid, size).experiments
    for name in ("interfaces", "channels", "slices"):
        assert capacity(Grid(**{**vars(grid), name: getattr(grid, name) + 1}), size).experiments >= here
    assert capacity(Grid(**{**vars(grid), "nodes": grid.nodes + 1}), size).experiments >= here
    assert capacity(grid, size + 1).experiments <= here


@given(GRIDS, SMALL)
def test_what_binds_is_what_helps(grid: Grid, size: int) -> None:
    """More of a limit that binds alone helps; more of one that does not bind never does."""
    found = capacity(grid, size)
    more = Grid(**{**vars(grid), "channels": grid.channels + 1})
    assert (capacity(more, size).experiments > found.experiments) == (found.binding == ("channels",))


@given(GRIDS)
def test_the_largest_experiment_that_leaves_no_channel_idle(grid: Grid) -> None:
    sizes = [size for size in range(1, grid.nodes + 1) if capacity(grid, size).experiments == grid.channels]
    assert largest_with_all_channels(grid) == max(sizes, default=0)


@pytest.mark.parametrize("channels", [12, 400, 1000, 1001, 10**9])
def test_the_figure_goes_to_the_largest_experiment_however_many_channels_there_are(channels: int) -> None:
    """Of 1,000 channels every fifth number of experiments is drawn: none was below five, and the line ended there."""
    rows = plan._steps("of", Grid(nodes=400, channels=channels))
    assert len(rows) < 5000
    assert rows[-1]["x"] == 400
    assert rows[-1]["value"] == capacity(Grid(nodes=400, channels=channels), 400).experiments


def test_the_paper_s_grid() -> None:
    grid = Grid()
    assert (grid.nodes * grid.interfaces, grid.channels, grid.slices) == (800, 12, 2)
    assert [capacity(grid, size).experiments for size in (1, 66, 67, 100, 200, 400)] == [12, 12, 11, 8, 4, 2]
    assert [capacity(grid.whole, size).experiments for size in (1, 33, 34, 100, 200, 400)] == [12, 12, 11, 4, 2, 1]
    assert capacity(grid, 61).binding == ("channels",)
    assert capacity(grid, 66).binding == ("channels", "slices"), "a thirteenth would need both"
    assert capacity(grid, 100).binding == ("slices",)
    assert capacity(Grid(slices=3), 100).binding == ("interfaces",)
    assert capacity(Grid(channels=8), 100).binding == ("channels", "slices")
    assert capacity(grid, 401).binding == ("nodes",)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="slices is 0"):
        Grid(slices=0)
    with pytest.raises(ValueError, match="0 nodes"):
        capacity(Grid(), 0)


def study(*, quick: bool) -> Study:
    text = (files("virtoll.studies") / "testbed.toml").read_text("utf-8")
    return read_study(text, "testbed.toml", catalogue(), quick=quick)


@pytest.mark.parametrize("quick", [False, True])
def test_the_study_measures_what_the_claims_speak_of(quick: bool) -> None:
    programme = study(quick=quick).programme
    for statement in read_paper("testbed").statements:
        for metric in statement.metrics:
            name, _, key = metric.partition(".")
            assert key in probes()[name].quantities, metric
            fitting = [
                case
                for case in programme
                if case.probe == name
                and all(
                    fits(path, case.settings[path.partition(".")[2]], level)
                    for path, level in statement.setting.items()
                )
            ]
            assert fitting, statement.reads
            assert (
                len({case.settings[statement.by.partition(".")[2]] for case in fitting}) > 1 if statement.by else True
            )


@pytest.mark.parametrize("quick", [False, True])
def test_every_case_has_its_slices_and_fits_the_limits(quick: bool) -> None:
    whole = study(quick=quick)
    limits = settings_of(Limits, "limits", whole.base)
    assert whole.base["slices.rate_bit_per_s"] == 36_000_000
    for case in whole.programme:
        assert make_probe(case).check(limits) == []
        assert probes()[case.probe].slices <= whole.base["slices.count"]
    assert {case.probe for case in whole.programme} == {n for n, probe in probes().items() if probe.slices}
    labels = [entry.arm.label for entry in whole.arms]
    assert {"docker+routed", "lxc+routed", "uml+routed", "kvm+routed", "qemu-tcg+routed"} < set(labels)
    assert labels[:2] == ["native+host", "native+host (again)"]


def test_what_is_of_openvz_is_read_of_nothing_else() -> None:
    paper = read_paper("testbed")
    assert paper.arms["openvz"].platform == "openvz"
    general = [one for one in paper.statements if one.over in ("lxc", "docker")]
    assert all("of OS-level virtualization" in one.where for one in general)


def test_every_platform_answers_for_every_kind_of_experiment() -> None:
    known = read_experiments()
    assert set(known.platforms) == set(platforms())
    assert known.claims in study(quick=True).claims
    containers = [known.answer(kind, "lxc").answer for kind in known.kinds]
    assert "own kernel" not in containers
    assert known.kinds[0].printed == {"full": "Yes", "para": "Yes", "os": "Yes"}
    marks = {
        mark for kind in known.kinds for words in kind.printed.values() for mark in known.footnotes if mark in words
    }
    assert marks == set(known.footnotes)


def test_plan_prints_the_table_says_what_binds_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "testbed", "--nodes-per-experiment", "60,100,500", "--out", str(tmp_path / "plan")])
    assert not ended.value.code
    printed = capsys.readouterr().out
    rows = [line.split()[:3] for line in printed.splitlines() if line[:1].isdigit()]
    assert rows == [["60", "12", "6"], ["100", "8", "4"], ["500", "0", "0"]]
    assert "Up to 66 nodes an experiment the 12 channels are the limit, beyond it the 800 slices." in printed
    made = {path.name for path in (tmp_path / "plan").iterdir()}
    assert made == {f"testbed-capacity.{suffix}" for suffix in ("svg", "png", "pdf", "md", "csv", "tex")}
    assert "12 channels" in (tmp_path / "plan" / "testbed-capacity.svg").read_text("utf-8")


def test_without_a_directory_the_plan_goes_where_runs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["plan", "testbed"])
    assert not ended.value.code
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "which .gitignore names"
    assert (tmp_path / "runs/testbed-plan/testbed-capacity.md").is_file()


def test_plan_refuses_what_is_no_count(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "testbed", "--slices", "0"])
    assert ended.value.code == 2
    assert "'0' is no whole number from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize("grid", [Grid(), Grid(channels=2000), Grid(1, 1, 1, 1), Grid(nodes=3, channels=7, slices=3)])
def test_any_grid_can_be_told_and_drawn(grid: Grid) -> None:
    sizes = plan.usual_sizes(grid)
    assert sizes[-1] == grid.nodes
    assert plan.sentence(grid) in plain(plan.capacity_table(grid, sizes))
    assert svg(specification(plan.capacity_figure(grid).draw(NARROW))).startswith("<svg")


FLOW = {
    "throughput_mbit_per_s": ("Throughput of a flow", "Mbit/s", "more", 20.0),
    "slice1_throughput_mbit_per_s": ("Throughput of a flow, slice 1", "Mbit/s", "more", 20.0),
    "interarrival_us": ("Time between arrivals", "us", None, 200.0),
}
UNSET: dict[str, list[Any]] = {"packets": [None], "steps": [""]}


def views(tmp_path: Path, levels: dict[str, list[Any]]) -> dict[str, list[str]]:
    """The names of the figures of such a flow, with their panels."""
    recipe = Recipe(arms=(NATIVE, DOCKER), probes={"flow": MadeUp(levels, FLOW)}, instruments={}, blocks=2)
    findings = find(write_programme(tmp_path / "run", recipe))
    found = [view for headline in findings.headlines for view in views_of_slices(findings, headline)]
    assert all(view_figure(findings, view) is not None for view in found)
    return {view.name: list(dict.fromkeys(words for _, _, words in view.entries)) for view in found}


def test_each_sweep_of_a_probe_is_a_figure(tmp_path: Path) -> None:
    rates = [5_000_000, 20_000_000, 35_000_000]
    plain: dict[str, list[Any]] = {
        "rate_bit_per_s": rates,
        "size_bytes": [128, 512, 1024],
        "other_rate_bit_per_s": [None],
        **UNSET,
    }
    panels = ["size 128 B", "size 512 B", "size 1 KiB"]
    assert views(tmp_path / "plain", plain) == {
        "flow-load": panels,
        "flow-size": ["rate 5 Mbit/s", "rate 20 Mbit/s", "rate 35 Mbit/s"],
    }
    coupled: dict[str, list[Any]] = {
        "rate_bit_per_s": rates[:2],
        "size_bytes": [1024],
        "other_rate_bit_per_s": [None, *rates],
        **UNSET,
    }
    assert views(tmp_path / "coupled", coupled) == {"flow-coupling": ["rate 5 Mbit/s", "rate 20 Mbit/s"]}
    rows: dict[str, list[Any]] = {
        "rate_bit_per_s": [36_000_000],
        "size_bytes": [128, 512, 1470],
        "other_rate_bit_per_s": [None],
    }
    assert views(tmp_path / "rows", {**rows, "packets": [100], "steps": [""]}) == {"flow-arrivals": [""]}


def over_time(directory: Path, factors: dict[str, list[Any]]) -> Path:
    """A run of a flow that steps and of fork bombs, whose trials have no series yet."""
    steps: dict[str, list[Any]] = {
        "rate_bit_per_s": [20_000_000], "steps": ["5 Mbit/s, 40 Mbit/s"], "time_ns": [10**9], "warm_up_ns": [10**8],
    }  # fmt: skip
    bomb = {"fairness": ("Fairness of the slices' processes", "of 1", "more", 1.0)}
    probes = {"flow": MadeUp(steps, FLOW), "fork-bomb": MadeUp({}, bomb)}
    recipe = Recipe(arms=(NATIVE, DOCKER), probes=probes, instruments={}, blocks=2, noise=0, factors=factors)
    return write_programme(directory, recipe)


def keep_series(run: Path) -> None:
    """Have all trials tell 20 Mbit/s of each slice, or processes of which the host counts twice what the bomb does."""
    for record in read_run(run).records:
        assert record.measured is not None
        start_ns = record.measured.windows[0].start_ns
        rows = [(start_ns + at * 10**8, name, "received_bytes", at * 250_000) for at in range(22) for name in SLICES]
        if record.measured.name == "fork-bomb":
            rows = [
                (start_ns + at * 10**7, name, counter, at * times)
                for at in range(50)
                for name in SLICES
                for counter, times in (("processes", 1), ("processes_outside", 2))
            ]
        (run / "trials" / record.trial.id).mkdir(parents=True)
        RunDirectory(run).write_parquet(record.trial, "series", packed(samples_table(rows)))


def test_slices_of_several_cases_are_said_to_be_those_of_the_first(tmp_path: Path) -> None:
    """Of two limits of processes the figure of the fork bombs was of one, and did not say so."""
    run = over_time(tmp_path / "run", {"limits.pids": [64, 512]})
    keep_series(run)
    assert [figure.name for figure in time_figures(find(run))] == ["flow-steps", "fork-bomb-processes"]
    for figure in time_figures(find(run)):
        assert figure.caption.endswith(" Drawn: the first of 2 cases (pids 64).")


def test_deployments_of_another_length_are_drawn_at_the_same_times(tmp_path: Path) -> None:
    """What came after the end made one interval more, and two of one were averaged with one of the other."""
    run = over_time(tmp_path / "run", {})
    for record in read_run(run).records:
        if record.measured is None or record.measured.name != "flow":
            continue
        count = 400 + record.trial.block  # intervals, of which 400 can be seen: nothing comes in the first half of them
        start_ns = record.measured.windows[0].start_ns
        came = [(start_ns + at * 10**8, max(0, at - 200) * 250_000) for at in range(count + 1)]
        rows = [(t_ns, name, "received_bytes", total) for t_ns, total in came for name in SLICES]
        (run / "trials" / record.trial.id).mkdir(parents=True)
        RunDirectory(run).write_parquet(record.trial, "series", packed(samples_table(rows)))
    (through,) = time_figures(find(run))
    head, *lines = through.draw(WIDE).to_dict(validate=False)["data"]["values"].splitlines()
    rows_drawn = [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]
    drawn = [(float(row["x"]), float(row["value"])) for row in rows_drawn if row["line"] != "mark"]
    assert max(x for x, _ in drawn) > 39
    assert {value for x, value in drawn if x < 19} == {0.0}
    assert {value for x, value in drawn if x > 21} == {20.0}


def test_slices_are_drawn_over_time(tmp_path: Path) -> None:
    run = over_time(tmp_path / "run", {})
    assert time_figures(find(run)) == [], "nothing was kept"
    keep_series(run)
    through, processes = time_figures(find(run))
    assert not any("Drawn" in figure.caption for figure in (through, processes))
    for layout in (WIDE, NARROW):
        drawn = svg(specification(through.draw(layout)))
        assert ">5 M<" in drawn
        assert ">40 M<" in drawn
        assert "docker+routed" in svg(specification(processes.draw(layout)))
    lines = through.draw(WIDE).to_dict(validate=False)["data"]["values"].splitlines()
    rates = [float(line.split(",")[4]) for line in lines[1:] if "slice" in line and "mark" not in line]
    assert rates == pytest.approx([20.0] * len(rates)), "250 kB in 100 ms"
    assert len(rates) == 2 * 2 * 21
    counts = [line.split(",") for line in processes.draw(WIDE).to_dict(validate=False)["data"]["values"].splitlines()]
    assert max(float(count[4]) for count in counts[1:]) == 98, "the host's count, not the bomb's"


def test_the_table_of_experiments_goes_with_the_paper_s_claims(tmp_path: Path) -> None:
    recipe = Recipe(probes={"fork-bomb": MadeUp({}, {"fairness": ("Fairness", "of 1", "more", 1.0)})}, instruments={})
    run = write_programme(tmp_path / "run", recipe)
    assert not ExperimentKinds().applies(find(run))
    told = json.loads((run / "study.json").read_text("utf-8"))
    (run / "study.json").write_text(json.dumps({**told, "claims": ["testbed"]}), encoding="utf-8")
    assert ExperimentKinds().applies(find(run))
    (table,) = ExperimentKinds().tables(find(run))
    assert table.heads[:2] == ("Experiments", "In the paper")
    assert set(table.heads[2:-1]) == {"native", "docker", "lxc", "uml", "qemu-tcg"}
    page = build_report(run).read_text("utf-8")
    assert 'id="experiments"' in page
    assert "Overlay*" in page


def test_a_grid_of_one_of_each_is_told_in_the_singular() -> None:
    """It was one of "1 nodes", and of "1000000000 orthogonal channels"."""
    assert plan.described(Grid(1, 1, 1, 1)) == "1 node, 1 interface each, 1 orthogonal channel, 1 slice a node"
    many = Grid(nodes=4000, interfaces=2, channels=1000, slices=2)
    assert plan.described(many) == "4,000 nodes, 2 interfaces each, 1,000 orthogonal channels, 2 slices a node"
