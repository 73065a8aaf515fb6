"""Papers' claims about probes: percentages of native, rows that are means, statements in any metric, beliefs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synthetic import AGAIN, KVM, LXC, NATIVE, TCG, UML
from synthetic_programme import LXCFS, MadeUp, Recipe, write_programme
from virtoll.analysis import claims
from virtoll.analysis.claims import JudgedPaper, JudgedTable, judge_paper
from virtoll.analysis.conditions import Condition
from virtoll.analysis.counterparts import fits
from virtoll.analysis.estimates import Summary
from virtoll.analysis.load import read_run
from virtoll.analysis.matrix import Matrix, build_matrix
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.objectives import held, objective_of
from virtoll.analysis.papers import Paper, Published, Statement, read_paper
from virtoll.analysis.rules import FIXED
from virtoll.record.model import Arm, TrialRecord
from virtoll.record.rules import Decide, Precision
from virtoll.report.sections.papers import numbers, outcomes, statements
from virtoll.units import parse_bytes

STATEMENT = {"quote": "as fast", "where": "", "reads": "", "metric": "a.b", "over": "lxc", "holds": "every"}
PAPERS = ("kvm-openvz-lxc", "kvm-openvz", "xen-openvz")
PROBES = {
    "linpack": MadeUp({"order": [500, 1000, 2000]}, {"gflops": ("LINPACK", "GFLOP/s", "more", 38.0)}),
    "memory": MadeUp(
        {"operation": ["read", "write"], "unit": ["float"], "block_bytes": [2**15, 2**20, 2**24, 2**26]},
        {"bandwidth_mb_per_s": ("Memory bandwidth", "MB/s", "more", 40_000.0)},
    ),
    "disk": MadeUp(
        {
            "operation": ["write", "rewrite", "read", "random-write"],
            "direct": ["no", "yes"],
            "record_bytes": [4096, 2**20],
        },
        {"throughput_mb_per_s": ("Disk throughput", "MB/s", "more", 900.0)},
    ),
    "round-trip": MadeUp(
        {"protocol": ["tcp", "udp"], "message_bytes": [1], "size_bytes": [1]},
        {"round_trip_mean_us": ("Round trip, mean", "us", "less", 21.0)},
    ),
}


def programme(directory: Path, **changes: Any) -> Matrix:
    recipe = Recipe(**{"probes": PROBES, "instruments": {}, "arms": (NATIVE, AGAIN, LXC, LXCFS, TCG), **changes})
    run = read_run(write_programme(directory, recipe))
    return build_matrix(run, measure_all(run))


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return programme(tmp_path_factory.mktemp("claims") / "run")


@pytest.fixture(scope="module")
def judged(matrix: Matrix) -> JudgedPaper:
    return judge_paper(read_paper("kvm-openvz-lxc"), matrix)


def table(judged: JudgedPaper, of: str) -> JudgedTable:
    return next(table for table in judged.tables if table.table.id == of)


def test_published_numbers_are_those_of_the_papers() -> None:
    both = read_paper("kvm-openvz-lxc")
    tables = {table.id: table.rows for table in both.tables}
    assert tables["Figure 4"]["1,000 and more"]["openvz"] == Published(value=95.42)
    assert tables["Figure 6"]["random write"]["lxc"] == Published(value=67.40)
    assert tables["Table 2"]["TCP_RR"]["openvz"] == Published(value=94.56)
    percent = {table.id: table for table in read_paper("kvm-openvz").tables}["Figure 10"]
    assert percent.rows["TCP_RR"]["kvm"] == Published(value=91.7)
    assert percent.numbers == "% above native"


@pytest.mark.parametrize("name", PAPERS)
def test_every_column_and_statement_names_an_arm(name: str) -> None:
    paper = read_paper(name)
    named = {column for table in paper.tables for row in table.rows.values() for column in row}
    named |= {arm for statement in paper.statements for arm in (statement.over, statement.under) if arm}
    assert named <= set(paper.arms)
    for statement in paper.statements:
        assert statement.above is not None or statement.below is not None
        assert len(statement.quote) < 100, "quotes are short"


def test_a_mean_is_of_one_metric_for_its_conditions_weigh_alike() -> None:
    mean = {**STATEMENT, "above": 0.95, "holds": "mean"}
    assert Statement.model_validate({**mean, "metric": ["a.b"]}).metrics == ("a.b",)
    with pytest.raises(ValueError, match="write one for each"):
        Statement.model_validate({**mean, "metric": ["a.b", "c.d"]})


def test_what_lxcfs_costs_is_asked_of_each_metric(judged: JudgedPaper) -> None:
    """Of 102 cases of memory and four of LINPACK the memory would be the answer."""
    asked = [one for one in judged.statements if one.statement.quote.startswith("investigate and evaluate")]
    assert [one.statement.metric.partition(".")[0] for one in asked if isinstance(one.statement.metric, str)] == [
        "linpack",
        "memory",
        "disk",
        "bulk",
    ]
    assert [one.outcome for one in asked] == ["agrees", "agrees", "agrees", "not measured here"]


def test_a_block_without_a_ratio_does_not_leave_the_others_to_decide(tmp_path: Path, judged: JudgedPaper) -> None:
    matrix = programme(tmp_path / "run")
    of_lxc = (
        cell for (*_, label, where), cell in matrix.cells.items() if (label, where.probe) == (LXC.label, "linpack")
    )
    next(cell for cell in of_lxc if cell.record.trial.condition["linpack.order"] == 2000).values["linpack.gflops"] = 0.0
    again = judge_paper(read_paper("kvm-openvz-lxc"), matrix)
    for one, outcome in ((judged, "agrees"), (again, "cannot tell")):
        assert table(one, "Figure 4").cells["1,000 and more", "lxc"].outcome == outcome
        (every,) = (each for each in one.statements if each.statement.reads.endswith("LINPACK to 5 %, at every order"))
        assert every.outcome == outcome
    assert every.why == f"judged over 2 of 3 conditions; no ratio: {LXC.label}: some block holds a 0 or less"


def linpack_with_a_0(directory: Path, *orders: int) -> Matrix:
    """Of native too: a statement may be of native alone."""
    matrix = programme(directory)
    for (*_, where), cell in matrix.cells.items():
        order = cell.record.trial.condition.get("linpack.order")
        if where.probe == "linpack" and order in orders and cell.values.get("linpack.gflops") is not None:
            cell.values["linpack.gflops"] = 0.0
    return matrix


@pytest.mark.parametrize(
    ("holds", "bound", "zeros", "judged"),
    [
        ("every", {"above": 2.0}, [2000], ("disagrees", 2)),
        ("every", {"above": 0.5}, [2000], ("cannot tell", 2)),
        ("every", {"above": 0.5}, [500, 1000, 2000], ("cannot tell", 0)),
        ("some", {"above": 0.5}, [2000], ("agrees", 2)),
        ("some", {"above": 2.0}, [2000], ("cannot tell", 2)),
        ("mean", {"above": 0.5}, [2000], ("cannot tell", 0)),
        ("trend", {"above": 0.5}, [1000], ("agrees", 1)),
        ("trend", {"above": 0.5}, [500], ("cannot tell", 0)),
        ("trend", {"above": 0.5}, [2000], ("cannot tell", 0)),
    ],
)
def test_a_statement_is_judged_by_the_conditions_that_decide_it(
    tmp_path: Path, holds: str, bound: dict[str, float], zeros: list[int], judged: tuple[str, int]
) -> None:
    """Containers reach native's LINPACK about, at three orders, of which some hold a 0."""
    statement = {**STATEMENT, **bound, "metric": "linpack.gflops", "under": "native", "holds": holds}
    statement |= {"by": "linpack.order"} if holds == "trend" else {}
    raw = {"name": "x", "title": "", "authors": "", "venue": "", "machine": "", "statement": [statement]}
    arms = {
        "native": {"platform": "native", "role": "baseline", "title": "Native"},
        "lxc": {"platform": "lxc", "title": "LXC"},
    }
    (one,) = judge_paper(
        Paper.model_validate({**raw, "arms": arms}), linpack_with_a_0(tmp_path / "run", *zeros)
    ).statements
    assert (one.outcome, len(one.measured)) == judged
    assert one.why.endswith("some block holds a 0 or less") == (one.outcome == "cannot tell")


@pytest.mark.parametrize(
    ("holds", "lost", "why"),
    [
        ("mean", 2000, "measured under 2 of 3 conditions"),
        ("trend", 2000, "nothing was measured at its end: 2000"),
        ("trend", 1000, ""),
        ("every", 2000, ""),
    ],
)
def test_a_mean_over_what_is_left_is_none_over_all(tmp_path: Path, holds: str, lost: int, why: str) -> None:
    """LXC holds nothing at one of three orders: its ratio at the other two was told as agreeing, or not."""
    statement = {**STATEMENT, "above": 0.5, "metric": "linpack.gflops", "under": "native", "holds": holds}
    statement |= {"by": "linpack.order"} if holds == "trend" else {}
    raw = {"name": "x", "title": "", "authors": "", "venue": "", "machine": "", "statement": [statement]}
    arms = {
        "native": {"platform": "native", "role": "baseline", "title": "Native"},
        "lxc": {"platform": "lxc", "title": "LXC"},
    }
    matrix = programme(tmp_path / "run")
    for (_, _, label, _), cell in matrix.cells.items():
        if label.startswith("lxc") and cell.record.trial.condition.get("linpack.order") == lost:
            cell.values.pop("linpack.gflops", None)
    (one,) = judge_paper(Paper.model_validate({**raw, "arms": arms}), matrix).statements
    assert one.outcome == ("cannot tell" if why else "agrees")
    assert one.why.startswith(why)


@pytest.mark.parametrize(("holds", "log", "outcome"), [("every", -0.05, "disagrees"), ("some", 0.05, "agrees")])
def test_one_of_many_decides_by_its_share_of_the_error(holds: str, log: float, outcome: str) -> None:
    """Of 24 true conditions some whole interval lies on the wrong side in a quarter of studies."""
    statement = Statement.model_validate({**STATEMENT, "above": 1.0, "holds": holds})
    mean = Summary(log, 0.02, 11)
    one = FIXED.interval(mean, "as in a test")
    told = [claims._one_of(statement, one, claims._shared(mean, one, of, FIXED)) for of in (1, 24)]
    assert told == [outcome, "cannot tell"]
    clear = Summary(3 * log, 0.02, 11)
    one = FIXED.interval(clear, "as in a test")
    assert claims._one_of(statement, one, claims._shared(clear, one, 24, FIXED)) == outcome


def test_both_papers_print_the_same_round_trips() -> None:
    """One prints times, the other what they are above native: the ratios agree to the digits printed."""
    times = {table.id: table.rows for table in read_paper("kvm-openvz-lxc").tables}["Table 2"]
    above = {table.id: table.rows for table in read_paper("kvm-openvz").tables}["Figure 10"]
    for row, published in above.items():
        for column, percent in published.items():
            ratio = times[row][column].value / times[row]["native"].value
            assert ratio == pytest.approx(1 + percent.value / 100, abs=0.01)


def test_a_percentage_of_native_is_judged_as_a_mean_over_its_orders(judged: JudgedPaper) -> None:
    figure = table(judged, "Figure 4")
    assert [condition.get("linpack.order") for condition in figure.stands_for["1,000 and more"]] == [1000, 2000]
    claim = figure.cells["1,000 and more", "lxc"]
    assert claim.measured_ratio is not None
    assert claim.measured_ratio.value == pytest.approx(1.0, abs=0.02)
    assert claim.outcome == "agrees"  # 99.13 %, within the margin
    assert claim.measured_value is None, "a mean over orders has no value in GFLOP/s"


def test_absent_platforms_are_not_measured_and_emulation_stands_for_nothing(judged: JudgedPaper) -> None:
    absent = ("kvm", "openvz")
    outcomes = {claim.outcome for t in judged.tables for (_, column), claim in t.cells.items() if column in absent}
    outcomes |= {s.outcome for s in judged.statements if {s.statement.over, s.statement.under} & set(absent)}
    assert outcomes == {"not measured here"}
    assert table(judged, "Figure 4").cells["1,000 and more", "openvz"].why == "no OpenVZ here"


OPENVZ = Arm(label="openvz+routed", platform="openvz", network="routed")
PROFILE = Arm(label="openvz-profile+venet", platform="openvz-profile", network="venet")


def test_what_is_said_of_openvz_is_judged_where_there_is_one_and_nothing_else_stands_for_it(tmp_path: Path) -> None:
    paper = read_paper("kvm-openvz-lxc")
    for name, arm, measured in (("host", OPENVZ, True), ("elsewhere", PROFILE, False)):
        judged = judge_paper(paper, programme(tmp_path / name, arms=(NATIVE, AGAIN, LXC, arm)))
        cell = table(judged, "Figure 4").cells["1,000 and more", "openvz"]
        assert (cell.outcome != "not measured here") == measured, name
        spoken = [
            one for one in judged.statements if one.statement.over == "openvz" and one.statement.under == "native"
        ]
        assert len(spoken) > 1
        assert {one.outcome for one in spoken} == ({"agrees"} if measured else {"not measured here"}), name


@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_s_openvz_is_the_platform_of_that_name(name: str) -> None:
    known = read_paper(name).arms["openvz"]
    assert known.platform == "openvz"
    assert known.match((PROFILE, LXC)) is None
    assert known.match((PROFILE, OPENVZ)) == OPENVZ


def test_the_paper_s_own_setting_is_preferred_and_the_rest_said(judged: JudgedPaper, matrix: Matrix) -> None:
    figure = table(judged, "Figure 6")
    claim = figure.cells["read", "lxc"]
    there = {"disk.operation": "read", "disk.direct": "yes", "disk.record_bytes": 2**20}
    (condition,) = (c for c in matrix.conditions if there.items() <= dict(c.levels).items())
    assert matrix.baseline is not None
    assert claim.measured_value == matrix.absolute("disk.throughput_mb_per_s", LXC, condition)
    assert claim.outcome == "disagrees"  # 87.45 % there, 100 % here
    assert figure.cells["random read", "lxc"].why == "this condition was not in the study"
    assert "disk.file_bytes: 8 GB in the paper, not set here" in figure.differs
    assert any("O_DIRECT" in difference for difference in figure.differs)


def test_values_without_intervals_agree_within_the_margin(judged: JudgedPaper) -> None:
    row = table(judged, "Table 2").cells["TCP_RR", "lxc"]
    assert row.published_ratio is not None
    assert row.published_ratio.low is None
    assert row.published_ratio.value == pytest.approx(1.674, abs=0.001)
    assert row.outcome == "disagrees"  # 1.09 here
    assert table(judged, "Table 2").cells["TCP_RR", "native"].outcome is None


def test_one_block_cannot_tell(tmp_path: Path) -> None:
    judged = judge_paper(read_paper("kvm-openvz-lxc"), programme(tmp_path / "r", blocks=2, sealed=5 * 29))
    assert table(judged, "Figure 4").cells["1,000 and more", "lxc"].outcome == "cannot tell"


def outcome_of(judged: JudgedPaper, reads: str) -> tuple[str, list[str]]:
    (one,) = (one for one in judged.statements if reads in one.statement.reads)
    return one.outcome, [where for where, _ in one.measured]


def test_statements_hold_over_the_conditions_they_leave_open(judged: JudgedPaper) -> None:
    assert outcome_of(judged, "Linux Containers reach native's LINPACK") == (
        "agrees",
        ["order 500", "order 1,000", "order 2,000"],
    )
    cached = outcome_of(judged, "Linux Containers read blocks of up to 2 MB")
    assert cached == ("agrees", ["block 32 KiB", "block 1 MiB"])
    assert outcome_of(judged, "the mean round trip of Linux Containers takes longer") == ("agrees", ["tcp", "udp"])


def test_what_an_instance_believes_is_judged_with_and_without_lxcfs(judged: JudgedPaper, tmp_path: Path) -> None:
    """The made-up containers see the host's memory without lxcfs, and say nothing of CPUs online."""
    outcome, measured = outcome_of(judged, "more CPUs and more memory are seen")
    assert outcome == "agrees"
    assert measured == ["memory it sees"]
    (seen,) = (s for s in judged.statements if s.statement.over == "lxc" and s.measured and not s.statement.under)
    assert seen.measured[0][1].value == pytest.approx(32)
    assert seen.why == "judged over 1 of 2 conditions"
    assert outcome_of(judged, "with LXCFS as many CPUs")[0] == "agrees"
    plain = programme(tmp_path / "r", arms=(NATIVE, AGAIN, LXC), blocks=2)
    assert outcome_of(judge_paper(read_paper("kvm-openvz-lxc"), plain), "with LXCFS as many CPUs") == (
        "not measured here",
        [],
    )


def test_what_an_instance_believes_is_judged_whatever_case_it_is_spared(tmp_path: Path) -> None:
    """An arm that is not asked the first case (`[[exclude]]`) was told not to be measured, and all others asked it."""
    run = read_run(write_programme(tmp_path / "r", Recipe(probes=PROBES, instruments={}, arms=(NATIVE, LXC), blocks=2)))
    first = build_matrix(run, measure_all(run)).conditions[0]
    trials = [each for each in run.plan.trials if each.arm != LXC or Condition.of(each) != first]
    kept = {each.id for each in trials}
    records = tuple(record for record in run.records if record.trial.id in kept)
    spared = replace(run, plan=run.plan.model_copy(update={"trials": trials}), records=records)
    judged = judge_paper(read_paper("kvm-openvz-lxc"), build_matrix(spared, measure_all(spared)))
    assert outcome_of(judged, "in Linux Containers more CPUs and more memory")[0] == "agrees"


def test_a_trend_runs_along_the_path_it_names(matrix: Matrix) -> None:
    statement = {
        "quote": "falls",
        "where": "nowhere",
        "reads": "native reads large blocks slower than small ones",
        "metric": "memory.bandwidth_mb_per_s",
        "over": "native",
        "holds": "trend",
        "by": "memory.block_bytes",
        "below": 0.5,
    }
    raw = {"name": "x", "title": "", "authors": "", "venue": "", "machine": "", "statement": [statement]}
    paper = Paper.model_validate(
        {**raw, "arms": {"native": {"platform": "native", "role": "baseline", "title": "Native"}}}
    )
    (one,) = judge_paper(paper, matrix).statements
    assert one.outcome == "agrees"
    assert len(one.measured) == 1
    assert one.measured[0][1].value == pytest.approx(0.5 / 1.6, abs=0.02)


def along_blocks_of_memory() -> Paper:
    """That native's bandwidth does not fall to less than a fourth."""
    statement = {**STATEMENT, "metric": "memory.bandwidth_mb_per_s", "over": "native", "holds": "trend", "above": 0.25}
    raw = {"name": "x", "title": "", "authors": "", "venue": "", "machine": ""}
    return Paper.model_validate(
        {
            **raw,
            "statement": [{**statement, "by": "memory.block_bytes"}],
            "arms": {"native": {"platform": "native", "role": "baseline", "title": "Native"}},
        }
    )


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_trend_sets_no_other_conditions_against_its_first(tmp_path: Path, is_asked: bool) -> None:
    """Writing takes a fourth of the time of reading, at every size, and nothing is known of it at the largest: that
    reading alone was left there was told as the trend, half of what it is (0.5 / 1.6).
    """
    matrix = programme(tmp_path / "run")
    lost = []
    for (*_, label, where), cell in matrix.cells.items():
        if label == NATIVE.label and where.get("memory.operation") == "write":
            cell.values["memory.bandwidth_mb_per_s"] *= 4
            if where.get("memory.block_bytes") == 2**26:
                cell.values.pop("memory.bandwidth_mb_per_s")
                lost.append(cell.record.trial)
    if not is_asked:
        matrix.run.plan.trials[:] = [trial for trial in matrix.run.plan.trials if trial not in lost]
    (one,) = judge_paper(along_blocks_of_memory(), matrix).statements
    assert one.measured[0][1].value == pytest.approx(0.5 / 1.6, abs=0.02)
    told = ("agrees", "") if not is_asked else ("cannot tell", "measured under 3 of 4 conditions at its ends")
    assert (one.outcome, one.why) == told


def test_a_trend_of_one_arm_is_of_the_blocks_in_which_its_ends_were_measured_in_one_sitting(tmp_path: Path) -> None:
    """A block whose largest blocks of memory were measured a day later, on a machine a third slower."""
    matrix = programme(tmp_path / "run")
    paper = along_blocks_of_memory()
    (before,) = judge_paper(paper, matrix).statements
    later = [
        cell.record.trial.id
        for (block, *_, where), cell in matrix.cells.items()
        if block == 2 and where.get("memory.block_bytes") == 2**26
    ]
    trials = tuple(
        replace(trial, record=trial.record.model_copy(update={"sitting": 2 if trial.record.trial.id in later else 1}))
        for trial in matrix.trials
    )
    (told,) = judge_paper(paper, build_matrix(matrix.run, [*trials])).statements
    assert told.measured[0][1].n == before.measured[0][1].n - 1


def test_what_is_said_of_steps_is_judged_by_flows_that_step(tmp_path: Path) -> None:
    """A flow at the same rate whose other slice never steps was judged with them: it alone could refute the claim."""
    levels: dict[str, list[Any]] = {"rate_bit_per_s": [20_000_000], "size_bytes": [1024], "packets": [None]}
    varied: dict[str, list[Any]] = {"other_rate_bit_per_s": [None], "steps": ["", "5 Mbit/s, 40 Mbit/s"]}
    flow = {"slice1_throughput_mbit_per_s": ("Throughput of a flow, slice 1", "Mbit/s", "more", 20.0)}
    probes = {"flow": MadeUp({**levels, **varied}, flow)}
    matrix = programme(tmp_path / "r", arms=(NATIVE, AGAIN, OPENVZ), blocks=3, probes=probes, instruments={})
    for (_, _, label, condition), cell in matrix.cells.items():
        if label == OPENVZ.label and condition.get("flow.steps") == "":
            cell.values["flow.slice1_throughput_mbit_per_s"] /= 2
    paper = judge_paper(read_paper("testbed"), matrix)
    (judged,) = (one for one in paper.statements if "while slice 2 steps up" in one.statement.reads)
    assert (judged.outcome, judged.why) == ("agrees", "judged over 1 condition")


@pytest.mark.parametrize("name", ["kvm-openvz-lxc", "kvm-openvz"])
def test_what_is_said_of_direct_records_of_1_mib_is_not_refuted_by_small_or_cached_ones(
    tmp_path: Path, name: str
) -> None:
    """The papers ran IOzone with O_DIRECT and records of 1024 KB: each case of ours stood for them."""
    matrix = programme(tmp_path / "r", arms=(NATIVE, AGAIN, KVM, OPENVZ))
    for (_, _, label, condition), cell in matrix.cells.items():
        as_there = condition.get("disk.direct") == "yes" and condition.get("disk.record_bytes") == 2**20
        if condition.probe == "disk" and label in (KVM.label, OPENVZ.label) and not as_there:
            cell.values["disk.throughput_mb_per_s"] /= 2
    judged = judge_paper(read_paper(name), matrix).statements
    spoken = [each for each in judged if each.statement.metric == "disk.throughput_mb_per_s" and each.measured]
    assert len(spoken) == {"kvm-openvz-lxc": 3, "kvm-openvz": 1}[name]
    assert {(one.outcome, one.why) for one in spoken} == {("agrees", "judged over 2 conditions")}


@pytest.mark.parametrize(("name", "over"), [("kvm-openvz-lxc", LXC), ("kvm-openvz", KVM)])
def test_that_nothing_is_lost_of_a_gigabit_is_judged_over_such_a_link_alone(
    tmp_path: Path, name: str, over: Arm
) -> None:
    """What two network stacks do between themselves is no Ethernet's limit, and stood for it."""
    levels: dict[str, list[Any]] = {"protocol": ["tcp", "udp"], "direction": ["in", "out"]}
    bulk = MadeUp(levels, {"throughput_mbit_per_s": ("Throughput", "Mbit/s", "more", 935.0)})
    for link, told in (
        ({}, ("not measured here", "its conditions were not measured")),
        ({"link.rate_bit_per_s": [10**8]}, ("not measured here", "its conditions were not measured")),
        ({"link.rate_bit_per_s": [None, 10**9]}, ("agrees", "judged over 2 conditions")),
    ):
        matrix = programme(tmp_path / str(link), arms=(NATIVE, AGAIN, over), probes={"bulk": bulk}, factors=link)
        paper = judge_paper(read_paper(name), matrix)
        (one,) = (one for one in paper.statements if "within 5 % of native's throughput" in one.statement.reads)
        assert (one.outcome, one.why) == told, link


PING = MadeUp(
    {"packets_per_s": [10.0]},
    {
        "round_trip_mean_us": ("ICMP round trip, mean", "us", "less", 100.0),
        "fairness": (
            "Fairness of the slices' round trips",
            "of 1",
            "more",
            9.0,
        ),  # so that it is above 0.99 in any case
        "lost_percent": ("Requests without an answer", "%", None, 0.0),
    },
)


def lossy(record: TrialRecord) -> TrialRecord:
    """Of a slice's requests 90 % were lost: no mean is told, and so no fairness."""
    measured, kept = record.measured, "lost_percent"
    assert measured is not None
    windows = [window.model_copy(update={"values": {kept: 90.0}}) for window in measured.windows]
    told = {"windows": windows, "quantities": {kept: measured.quantities[kept]}}
    return record.model_copy(update={"measured": measured.model_copy(update=told)})


def test_a_claim_is_not_judged_by_the_trials_that_lost_nothing(tmp_path: Path) -> None:
    """Slices whose channel had dropped nine tenths in one block were fair by the others'."""
    run = read_run(write_programme(tmp_path / "r", Recipe(probes={"ping": PING}, arms=(NATIVE, AGAIN, OPENVZ))))
    first = next(record for record in run.records if record.trial.arm == OPENVZ)
    some = tuple(lossy(record) if record == first else record for record in run.records)
    for records, told in (
        (run.records, ("agrees", "judged over 1 condition")),
        (some, ("cannot tell", f"no ratio: {OPENVZ.label}: in 1 of 4 trials it is not known of what was lost")),
    ):
        here = replace(run, records=records)
        matrix = build_matrix(here, measure_all(here))
        spoken = judge_paper(read_paper("testbed"), matrix).statements
        (judged,) = (one for one in spoken if one.statement.metric == "ping.fairness")
        assert (judged.outcome, judged.why) == told
    (condition,) = matrix.conditions
    assert matrix.absolute("ping.round_trip_mean_us", OPENVZ, condition) is None
    assert matrix.why_missing("ping.fairness", OPENVZ, condition) == "it is not known of what was lost: 90 %"
    assert matrix.absolute("ping.lost_percent", OPENVZ, condition) is not None


def test_an_objective_is_not_met_by_the_cases_that_lost_nothing(tmp_path: Path) -> None:
    """One in which every arm lost too much for a mean was none of the metric's: a worse native had made *met* of it."""
    ping = replace(PING, levels={"packets_per_s": [10.0, 1000.0]})
    run = read_run(write_programme(tmp_path / "r", Recipe(probes={"ping": ping}, arms=(NATIVE, OPENVZ))))
    heavy = [record.trial.condition["ping.packets_per_s"] == 1000 for record in run.records]
    assert 0 < sum(heavy) < len(heavy)
    records = tuple(lossy(r) if lost else r for r, lost in zip(run.records, heavy, strict=True))
    for here, told in ((run, "met"), (replace(run, records=records), "not measured")):
        matrix = build_matrix(here, measure_all(here))
        for metric in ("ping.round_trip_mean_us < 1000000 us", "ping.fairness > 0.001"):
            assert held(matrix, objective_of(metric, matrix.metrics), OPENVZ).told == told
        assert len(matrix.conditions_of("ping.round_trip_mean_us")) == 2


def test_a_level_that_is_none_has_no_place_along_a_trend(tmp_path: Path) -> None:
    """A flow that is sent as fast as it goes, among others at a rate, left the run without any report: TypeError."""
    levels: dict[str, list[Any]] = {"rate_bit_per_s": [None, 5_000_000, 40_000_000], "size_bytes": [1024]}
    unset: dict[str, list[Any]] = {"other_rate_bit_per_s": [None], "packets": [None], "steps": [""]}
    flow = {"throughput_sd_mbit_per_s": ("Variation of the throughput", "Mbit/s", "less", 0.5)}
    probes = {"flow": MadeUp({**levels, **unset}, flow)}
    matrix = programme(tmp_path / "r", arms=(NATIVE, AGAIN, UML), blocks=3, probes=probes, instruments={})
    paper = judge_paper(read_paper("testbed"), matrix)
    (judged,) = (one for one in paper.statements if "varies more at the highest" in one.statement.reads)
    ((where, _),) = judged.measured
    assert where == "rate 40 Mbit/s over rate 5 Mbit/s"


@pytest.mark.parametrize("name", PAPERS)
def test_tables_of_every_paper_can_be_made(matrix: Matrix, name: str) -> None:
    judged = judge_paper(read_paper(name), matrix)
    made = [*statements(judged), *numbers(judged)]
    assert len({one.name for one in made}) == len(made)
    assert all(one.markdown() and one.latex() and one.csv() for one in made)
    assert outcomes(judged).startswith("Of its" if name == PAPERS[0] else "None of its")


def test_percentages_are_shown_as_printed(judged: JudgedPaper) -> None:
    made = {one.name: one for one in (*statements(judged), *numbers(judged))}
    figure = made["paper-kvm-openvz-lxc-figure-4"].markdown()
    assert "99.13 % (ratio to native 0.9913, here " in figure
    assert "1,000 and more, here: the geometric mean over order 1,000; order 2,000." in figure
    assert "95.42 % (no OpenVZ here; ratio to native 0.9542: not measured here)" in figure


@pytest.mark.parametrize(
    ("path", "here", "wanted", "so"),
    [
        ("memory.block_bytes", 2**24, {"least": "16 MB"}, True),
        ("memory.block_bytes", 2**24, {"most": "2 MB"}, False),
        ("memory.block_bytes", None, {"most": "2 MB"}, False),
        ("load.object_bytes", "1 kB", 1000, True),
        ("disk.direct", True, "yes", True),
        ("disk.direct", "no", True, False),
        ("service.cache", "off", "off", True),
        ("disk.operation", "rewrite", ["write", "rewrite"], True),
        ("disk.operation", "reread", ["write", "rewrite"], False),
    ],
)
def test_levels_fit_what_is_wanted(path: str, here: Any, wanted: Any, so: bool) -> None:
    assert fits(path, here, wanted) is so


def test_an_arm_with_a_setting_is_not_the_arm_without() -> None:
    arms = read_paper("kvm-openvz-lxc").arms
    switched_off = Arm(label="lxc+routed", platform="lxc", network="routed", settings={"lxcfs": False})
    assert arms["lxc"].match((LXCFS, switched_off)) == switched_off
    assert arms["lxcfs"].match((LXC, LXCFS)) == LXCFS
    assert arms["kvm"].match((TCG,)) is None
    assert arms["kvm"].match((TCG, KVM)) == KVM
    assert parse_bytes("16 MB") < 2**24


def test_a_trend_names_what_it_runs_along() -> None:
    with pytest.raises(ValueError, match="is a trend along nothing: write by"):
        Statement.model_validate({**STATEMENT, "holds": "trend", "above": 1.0})


def test_a_statement_without_a_bound_would_agree_with_anything() -> None:
    assert Statement.model_validate({**STATEMENT, "above": 0.95}).above == 0.95
    with pytest.raises(ValueError, match="'as fast' has no bound"):
        Statement.model_validate(STATEMENT)


@pytest.mark.parametrize(
    "rule", [Decide(margin=0.05, looks=(4, 5, 6)), Precision(half_width=0.02, pilot=4, most=6)], ids=["decide", "stein"]
)
def test_what_an_instance_believes_is_judged_under_a_rule_too(tmp_path: Path, rule: Decide | Precision) -> None:
    programme(tmp_path / "r", blocks=6)
    run = read_run(tmp_path / "r")
    run = replace(run, plan=run.plan.model_copy(update={"rule": rule}))
    judged = judge_paper(read_paper("kvm-openvz-lxc"), build_matrix(run, measure_all(run)))
    (seen,) = (s for s in judged.statements if s.statement.over == "lxc" and s.measured and not s.statement.under)
    assert seen.measured[0][1].value == pytest.approx(32)
    assert seen.outcome == "agrees"


def test_a_claim_before_the_first_look_is_not_said_to_be_of_one_block(tmp_path: Path) -> None:
    programme(tmp_path / "r", blocks=3)
    run = read_run(tmp_path / "r")
    run = replace(run, plan=run.plan.model_copy(update={"rule": Decide(margin=0.05, looks=tuple(range(4, 21)))}))
    judged = judge_paper(read_paper("kvm-openvz-lxc"), build_matrix(run, measure_all(run)))
    said = {cell.why for table in judged.tables for cell in table.cells.values() if cell.measured_ratio is not None}
    assert "one block has no interval" not in said
    assert "the first look is after 4 blocks, and it has 3" in said
    untold = [seen.why for seen in judged.statements if seen.measured and seen.outcome == "cannot tell"]
    assert untold
    assert all("the first look is after 4 blocks" in why for why in untold)
