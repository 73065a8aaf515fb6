"""A run goes on where it was begun: with the same virtoll, on the same CPUs, with all that is still wanted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from on_fakes import on_fakes, write_study
from synthetic import AGAIN, DOCKER, NATIVE, Recipe, write_run
from virtoll.analysis.ratios import whole_blocks
from virtoll.catalogue import features
from virtoll.cli import main
from virtoll.errors import HostError, Problem
from virtoll.fakes import fake_environment
from virtoll.record.model import Arm, Environment
from virtoll.record.store import INTERRUPTED, RunDirectory
from virtoll.report.advice import Known, advise
from virtoll.report.findings import find
from virtoll.report.untold import untold
from virtoll.run import environment, groups
from virtoll.run.environment import require_same
from virtoll.run.stage import Stage

pytestmark = pytest.mark.usefixtures("helped")


def code_of(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    return int(ended.value.code or 0)


def test_what_cannot_be_had_any_more_is_not_sealed_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a reboot, say: huge pages are gone, or a profile of AppArmor's is back."""
    on_fakes(monkeypatch, {"b01-t0002": KeyboardInterrupt()})
    monkeypatch.setattr("virtoll.report.build.write_report", lambda findings: findings.run.directory / "report")
    out = tmp_path / "run"
    assert code_of("run", str(write_study(tmp_path)), "--out", str(out)) == 130
    sealed = len(RunDirectory(out).records())
    on_fakes(monkeypatch, {})

    def without_docker(_stage: Stage, arm: Arm, _readiness: object) -> list[Problem]:
        return [Problem("dockerd is gone")] if arm.platform == "docker" else []

    monkeypatch.setattr(Stage, "missing", without_docker)
    assert code_of("run", str(out)) == 3
    said = capsys.readouterr().err
    assert "does not offer any more what is left to measure" in said
    assert "docker+routed: dockerd is gone" in said
    assert len(RunDirectory(out).records()) == sealed
    monkeypatch.setattr(Stage, "missing", lambda *_: [])
    assert code_of("run", str(out)) == 0
    monkeypatch.setattr(Stage, "missing", without_docker)
    assert code_of("run", str(out)) == 0, "nothing is left to measure"


def test_arms_that_the_memory_does_not_hold_beside_each_other_any_more_are_not_sealed_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In rotation, where another program has taken memory since: it was divided when the run began, and never looked at
    again. Instances were killed for want of it, and their trials lost.
    """
    on_fakes(monkeypatch, {"b01-t0002": KeyboardInterrupt()})
    monkeypatch.setattr("virtoll.report.build.write_report", lambda findings: findings.run.directory / "report")
    study, out = write_study(tmp_path), tmp_path / "run"
    study.write_text(study.read_text().replace("blocks = 2", 'blocks = 2\ndesign = "rotation"'))
    assert code_of("run", str(study), "--out", str(out)) == 130
    sealed = len(RunDirectory(out).records())
    on_fakes(monkeypatch, {})
    monkeypatch.setattr(groups, "free_bytes", lambda *_: 2**30)
    assert code_of("run", str(out)) == 3
    said = capsys.readouterr().err
    assert "does not offer any more what is left to measure" in said
    assert "3 arms side by side, and one more to prove the limits, may take 2 GiB, and 1 GiB are free" in said
    assert len(RunDirectory(out).records()) == sealed
    on_fakes(monkeypatch, {})
    assert code_of("run", str(out)) == 0


def interrupted(run: Path, block: int) -> Path:
    """The same run, its trials of a block interrupted and to come again."""
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    for record in lines:
        if record["trial"]["block"] == block:
            record |= {"status": "failed", "reason": f"{INTERRUPTED}by the user", "measured": None}
    (run / "trials.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in lines))
    return run


def gone_on_with(run: Path, whole: Path) -> Path:
    """The same run, in which what was interrupted came again as it is in a whole one."""
    pending = RunDirectory(run).pending()
    there = {record.trial.id: record for record in RunDirectory(whole).records()}
    with (run / "trials.jsonl").open("a") as log:
        for trial in pending:
            log.write(there[trial.id.rstrip("r")].model_copy(update={"trial": trial}).model_dump_json() + "\n")
    return run


def said_of_docker(run: Path) -> tuple[str, str, list[bool]]:
    """Of a run whatever path it has: the verdict, what advice has to ask for, and which blocks are whole."""
    findings = find(run)
    (toll,) = [toll for toll in findings.answering() if toll.arm == DOCKER]
    advice = advise([findings], [], [], Known(features(), set()))
    (command,) = [one.command for one in untold(advice) if one.what.startswith("whether docker")]
    return toll.verdict.words, command.replace(str(run), "RUN"), whole_blocks(findings.matrix).tolist()


def test_a_block_that_was_interrupted_is_yet_to_come(tmp_path: Path) -> None:
    """By Ctrl-C in its last trial, or in a turn, all of its trials are sealed."""
    recipe = Recipe(arms=(NATIVE, AGAIN, DOCKER), factors={}, blocks=6, bulk=False, seed=36)
    whole, without, run = (
        write_run(tmp_path / name, replace(recipe, sealed=3 * blocks))
        for name, blocks in (("whole", 6), ("without", 3), ("run", 4))
    )
    assert said_of_docker(interrupted(run, 4)) == said_of_docker(without)
    words, command, are_whole = said_of_docker(run)
    assert words == "cannot tell yet: needs about 3 more blocks"
    assert command == "virtoll run RUN"
    assert are_whole == [True] * 3 + [False] * 3
    findings = find(gone_on_with(run, whole))
    assert findings.run.pending == 0
    assert whole_blocks(findings.matrix).all()
    assert findings.tolls("rate_per_s") == find(whole).tolls("rate_per_s")


def told(**by: Any) -> Environment:
    made = fake_environment(kernel="6.1")
    return made.model_copy(update={"notes": {**made.notes, **({"measured_by": by} if by else {})}})


def test_another_virtoll_or_other_cpus_do_not_go_on_with_a_run() -> None:
    require_same(told(code="a", cpus=[0, 1]), told(code="a", cpus=[0, 1]))
    require_same(told(), told(code="a", cpus=[0, 1]))  # begun by one that did not tell
    with pytest.raises(HostError, match="code: was a, is b"):
        require_same(told(code="a", cpus=[0, 1]), told(code="b", cpus=[0, 1]))
    with pytest.raises(HostError, match=r"cpus: was \[0, 1\], is \[2, 3\]"):
        require_same(told(code="a", cpus=[0, 1]), told(code="a", cpus=[2, 3]))


def test_the_code_that_measures_is_known_and_what_reads_results_is_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "run/environment.py"))
    measures = ("platforms/one.py", "study/search.py", "record/model.py", "run/execute.py", "footage.py")
    files = (*measures, "record/store.py", "run/progress.py", "report/one.py", "manual.py")
    for path in files:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("a = 1\n")

    def code() -> str:
        environment._code.cache_clear()
        return environment._code()

    found = {}
    for path in files:
        before = code()
        (tmp_path / path).write_text("a = 2\n")
        found[path] = code() != before
    environment._code.cache_clear()
    assert found == {path: path in measures for path in files}


# Of three directories what decides neither what a trial measures nor whether it is valid.
OTHERS = {
    "": {
        *("__init__", "__main__", "binaries", "catalogue", "errors", "fakes", "features", "helpers", "manual"),
        *("plain", "registry", "strict_json"),
    },
    "run": {
        # asked for, planned or refused: before the first trial, and kept in plan.json
        *("again", "apart", "beginning", "calibrating", "conduct", "dry", "elsewhere", "explaining", "generators"),
        *("groups", "named", "readiness", "refusals", "request", "rule", "side_by_side"),
        # leads from the one to the other, keeps others away, and seals what others measure
        *("__init__", "alone", "measuring", "over_hosts"),
        # carries orders and answers
        *("boot", "by_ssh", "cluster", "fleet", "frames", "obeying", "one_by_one", "performing", "pushed", "there"),
        *("trusted", "worker"),
        # reads results, and tells
        *("calibrations", "deciding", "environment", "json_lines", "progress", "unstyled"),
        # other verbs
        *("audit", "doctor", "machine", "single", "target", "trying", "tune"),
    },
    # keeps, reads and tells what is recorded
    "record": {"__init__", "calibration", "comparable", "document", "rules", "store", "told"},
}


@pytest.mark.parametrize("where", OTHERS)
def test_no_module_is_forgotten(where: str) -> None:
    """Each either is of the code that measures, or decides nothing of a trial."""
    top = Path(environment.__file__).parent.parent
    names = {path.stem for path in (top / where).glob("*.py")}
    measures = {Path(place).stem for place in environment._MEASURING if Path(place).parent == Path(where)}
    assert names - measures == OTHERS[where]


def test_all_of_the_code_that_measures_is_there() -> None:
    top = Path(environment.__file__).parent.parent
    assert [place for place in environment._MEASURING if not (top / place).exists()] == []
