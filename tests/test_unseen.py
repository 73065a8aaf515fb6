"""Reports and comparisons of an arm that nobody sees from outside: what is missing is missing, and never 0."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from synthetic import AGAIN, DOCKER, NATIVE, TRUTH, Recipe, write_run
from test_audit import HOST
from virtoll.analysis.audit import judged
from virtoll.cli import main
from virtoll.record.model import NOT_LIMITED, Arm, Audit
from virtoll.record.store import RunDirectory
from virtoll.report.answer import answer
from virtoll.report.build import build_report
from virtoll.report.changes import compare
from virtoll.report.findings import find
from virtoll.report.pooled import Pooled
from virtoll.report.sections.cpu import Cpu

GUEST = Arm(
    label="ssh+direct (destination root@192.0.2.7)",
    platform="ssh",
    network="direct",
    settings={"destination": "root@192.0.2.7"},
)
LIMITS = {"cpu_quota": "1 CPU", "memory_limit": "512 MiB", "processes_limit": "512", "disk_limit": "enforced: ..."}
SEEN = {"cpus": "1", "cpus_online": "2"}
NATIVES = Audit(process="squid", found={**HOST, **LIMITS, **SEEN}, missing={})
GUESTS = Audit(
    process="squid",
    found={
        **HOST,
        **dict.fromkeys(LIMITS, f"{NOT_LIMITED}: the machine has more"),
        "cpus": "4",
        "cpus_online": "4",
        "memory_seen": "2 GiB",
        "kernel": "5.10.0-cloud",
    },
    missing={"host.seccomp": "nothing of it is seen from outside"},
)
OUTSIDE = ("cpu_s_per_1000", "memory_peak_mib", "memory_mean_mib", "rss_peak_mib", "helpers_percent")


def written(directory: Path, seed: int = 1) -> Path:
    """A run of native, docker and a guest, of which the samples from outside hold nothing."""
    truth = {**TRUTH, GUEST.label: 0.7}
    audits = {NATIVE.label: NATIVES, GUEST.label: GUESTS}
    write_run(directory, Recipe((NATIVE, AGAIN, DOCKER, GUEST), truth=truth, blocks=4, seed=seed, audits=audits))
    lines = [json.loads(line) for line in (directory / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        if line["trial"]["arm"]["label"] == GUEST.label:
            line["facts"]["limits"] = NOT_LIMITED
    (directory / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for trial in RunDirectory(directory).plan.trials:
        if trial.arm == GUEST:
            path = directory / "trials" / trial.id / "outside.parquet"
            table = pq.read_table(path)
            own = [source in ("instance", "helpers") for source in table["source"].to_pylist()]
            pq.write_table(table.filter([not each for each in own]), path)
    return directory


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("unseen") / "run")


def test_what_nobody_saw_is_missing_with_a_reason(run: Path) -> None:
    findings = find(run)
    mine = [trial for trial in findings.matrix.trials if trial.record.trial.arm == GUEST]
    assert len(mine) == 4 * len(findings.matrix.conditions)
    for trial in mine:
        assert not trial.values.keys() & {*OUTSIDE}
        assert trial.values["rate_per_s"] > 0
        assert trial.values["cpu_s_per_1000_inside"] > 0, "what it tells of itself is there"


def test_its_rate_is_compared_all_the_same(run: Path) -> None:
    findings = find(run)
    estimate = Pooled.of(findings, "rate_per_s").mean("rate_per_s", GUEST)
    assert estimate is not None
    pooled = Pooled.of(findings, "cpu_s_per_1000")
    assert pooled.mean("cpu_s_per_1000", GUEST) is None
    assert pooled.mean("cpu_s_per_1000", DOCKER) is not None


@pytest.mark.usefixtures("undrawn")
def test_the_report_is_whole_and_says_so(run: Path) -> None:
    page = re.sub(r"<[^>]+>", " ", build_report(run).read_text("utf-8"))
    assert GUEST.label in page
    assert NOT_LIMITED in page
    assert "nan" not in page.lower().split()
    told = " ".join(page.split())
    assert f"Not told of {GUEST.label}: what it costs in CPU time. That is a machine of its own" in told
    assert f"Not told of {GUEST.label}: the memory that it takes." in told
    assert f"{GUEST.label}: {NOT_LIMITED}, so that what is seen there is what there is." in told
    assert "there are no limits of virtoll's" in told.replace("&#39;", "'")


def test_that_its_ratio_is_of_two_machines_is_said_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"{GUEST.label}: on a machine of its own, so that a ratio to native is of two machines"
    (told,) = (sentence for sentence in answer(find(run)) if "two machines" in sentence)
    assert told.startswith(said)
    with pytest.raises(SystemExit):
        main(["advise", str(run)])
    assert " ".join(capsys.readouterr().out.split()).count(said) == 1


def test_a_helper_that_is_not_in_an_arms_cost_is_named(run: Path, tmp_path: Path) -> None:
    """As OpenVZ's, whose group vzctl makes."""
    assert not any("without" in sentence for sentence in Cpu().text(find(run)))
    other = written(tmp_path / "other")
    lines = [json.loads(line) for line in (other / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        if line["trial"]["arm"]["label"] == DOCKER.label:
            line["facts"]["not_booked"] = "vzctl exec2"
    (other / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (told,) = (sentence for sentence in Cpu().text(find(other)) if "without" in sentence)
    assert told.startswith(f"{DOCKER.label}: without vzctl exec2, which stands beside its control group")
    (figure,) = (each for each in Cpu().figures(find(other)) if each.name == "cpu")
    assert f"helpers included (QEMU's and UML's own threads, docker-proxy), but of {DOCKER.label} not" in figure.caption


@pytest.mark.parametrize("words", [("advise",), ("history",), ("export",)])
def test_other_verbs_live_with_it(run: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([words[0], str(run.parent if words[0] == "history" else run), *words[1:]])
    assert ended.value.code in (0, 1), capsys.readouterr().err
    assert "Traceback" not in capsys.readouterr().err


def test_two_such_runs_are_compared(run: Path, tmp_path: Path) -> None:
    compared = compare(run, written(tmp_path / "other", seed=2), threshold=0.5)
    named = {change.matched.metric.name for change in compared.changes if change.matched.arm == GUEST}
    assert "rate_per_s" in named
    told = {c.matched.metric.name: c for c in compared.changes if c.matched.arm == GUEST}
    assert all(told[name].ratio is None for name in OUTSIDE if name in told)


def test_what_it_has_beyond_the_studys_limits_is_flagged() -> None:
    (one,) = judged([(GUEST, GUESTS), (NATIVE, NATIVES)])
    found = {each.key: each for each in one.differences}
    flagged = {key for key, each in found.items() if each.kind == "flagged"}
    assert flagged == {*LIMITS, "cpus", "cpus_online", "memory_seen"}
    assert all("[limits]" in found[key].remedy for key in flagged)
    assert found["kernel"].kind == "explained"


def test_native_of_the_same_size_is_not_flagged_for_what_it_sees() -> None:
    alike = GUESTS.model_copy(update={"found": {**GUESTS.found, **SEEN, "memory_seen": HOST["memory_seen"]}})
    (one,) = judged([(GUEST, alike), (NATIVE, NATIVES)])
    assert {each.key for each in one.differences if each.kind == "flagged"} == {*LIMITS}
