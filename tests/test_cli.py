"""The command line: what each verb prints, and the ready-made studies it offers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from virtoll.catalogue import catalogue
from virtoll.cli import main
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import clean
from virtoll.hosts.lock import exclusive
from virtoll.record.model import Arm, Plan, PlannedTrial, TrialRecord
from virtoll.record.store import RunDirectory
from virtoll.run.execute import execute
from virtoll.run.json_lines import JsonProgress
from virtoll.run.measuring import _measure, finish
from virtoll.run.named import available_studies
from virtoll.run.progress import LiveProgress, PlainProgress, Progress, _Tally
from virtoll.run.request import Request
from virtoll.run.unstyled import plain
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.plan import conditions, make_plan
from virtoll.trial.notes import Course, Notes

PROXY = (Path(__file__).parent.parent / "src/virtoll/studies/proxy.toml").read_text()


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("platforms", {"native", "docker", "podman", "oci", "lxc", "bubblewrap", "nspawn", "openvz", "openvz-profile"}),
        ("platforms", {"proxmox-ct", "proxmox-vm"}),
        ("platforms", {"gvisor", "uml", "kvm", "qemu-tcg", "ssh"}),
        (
            "networks",
            {"host", "bridge", "routed", "macvlan", "ipvlan", "nat", "published", "usernet", "venet", "direct"},
        ),
        ("networks", {"pasta", "slirp4netns"}),
        ("services", {"squid", "nginx", "apache"}),
        ("loads", {"http", "ab", "wrk", "siege"}),
        ("studies", {"proxy"}),
    ],
)
def test_list_names_all_with_a_summary(what: str, named: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", what) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert named <= {name for name, _ in lines}
    assert all(summary for _, summary in lines)


def test_the_proxy_study_is_the_papers() -> None:
    study = read_study(PROXY, "proxy.toml", catalogue())
    assert study.blocks == 10
    assert study.base["load.requests"] == 10_000
    assert study.base["background.hogs"] == 12
    assert study.factors["load.object_bytes"] == (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    assert study.factors["load.connections"] == (1, 100)
    assert len(conditions(study)) == 5 * 2 + 4 * 2, "the paper has no cached 10 MB"
    labels = {entry.arm.label for entry in study.arms}
    assert {"native+host", "docker+routed", "docker+published", "kvm+routed", "uml+routed"} <= labels


def test_the_quick_study_asks_the_same_of_the_same_arms() -> None:
    full, quick = (read_study(PROXY, "proxy.toml", catalogue(), quick=quick) for quick in (False, True))
    assert full.arms == quick.arms
    assert len(conditions(quick)) == 1
    assert quick.design == "rotation"
    assert quick.question == available_studies()["proxy"]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["run", "prxy"], "no such study"),
        (["run", "proxy", "--platforms", "dokcer", "--dry-run"], "'dokcer' is no platform of study 'proxy'"),
        (["run", "proxy", "--blocks", "1", "--dry-run"], "one block gives no interval"),
        (["run", "proxy", "--blocks", "100000000", "--dry-run"], "trials would be planned, and 1,000,000 are the most"),
        (["run", "proxy", "--quick", "--platforms", "lxc", "--budget", "20s", "--dry-run"], "fewer than two blocks"),
    ],
)
def test_a_wrong_request_ends_with_2_and_says_what_is_known(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == 2
    assert told in capsys.readouterr().err


def test_a_wrong_duration_is_told_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "proxy", "--budget", "30 minutes") == 2
    assert "'30 minutes' is not a duration" in capsys.readouterr().err


def test_report_of_what_is_no_run_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", str(tmp_path)) == 4
    assert str(tmp_path) in capsys.readouterr().err


def small_run(path: Path, told: Progress) -> RunDirectory:
    """Native and docker, two blocks, on fakes; the second trial fails."""
    text = PROXY.replace('network = ["routed", "published"]\n', "")
    study = read_study(text, "proxy.toml", catalogue(), quick=True)
    arms = [entry.arm for entry in study.arms if entry.arm.platform in ("native", "docker")]
    plan = make_plan(study, arms, {"native": 1.0, "docker": 1.0})
    run = RunDirectory.create(path, {}, plan, fake_environment())
    with told:
        told.say("preparing")
        told.planned(plan, run.records())
        execute(run, FakeExperiment({"native": 1.0, "docker": 1.25}, fail={plan.trials[1].id: "limits in force"}), told)
    return run


def test_plain_progress_is_a_line_a_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run(tmp_path / "r", PlainProgress())
    lines = capsys.readouterr().out.splitlines()
    total = len(run.plan.trials)
    assert lines[0] == "preparing"
    assert f"{total} trials in 6 blocks" in lines[1]
    assert len(lines) == 2 + total
    assert "INVALID: limits in force" in "\n".join(lines)
    assert "1,000 requests/s" in "\n".join(lines)
    assert "(nothing left)" in lines[-1]


def test_json_progress_is_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run(tmp_path / "r", JsonProgress())
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    together = ["started"] * 3  # that are measured in turn
    assert [event["event"] for event in events[:6]] == ["preparing", "planned", *together, "phase"]
    sealed = [event["record"] for event in events if event["event"] == "sealed"]
    assert sealed == [record.model_dump() for record in run.records()]


def test_live_progress_shows_bar_phase_and_the_running_table(tmp_path: Path) -> None:
    screen = io.StringIO()
    small_run(tmp_path / "r", LiveProgress(Console(file=screen, force_terminal=True, width=120)))
    text = screen.getvalue()
    assert "INVALID: limits in force" in text
    assert "native+host (again)" in text
    assert "docker+routed" in text
    assert "x 0.80" in text, "1.25 times the time is 0.8 times the rate"


def test_drawing_the_progress_looks_at_no_record_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn while a trial is measured: with 2,000 records it took a fifth of a CPU from what was measured."""
    run = small_run(tmp_path / "r", PlainProgress())
    records, looked_at = run.records(), 0

    def counted(name: str, of: Any) -> None:
        def counting(self: Any) -> Any:
            nonlocal looked_at
            looked_at += 1
            return of(self)

        monkeypatch.setattr(TrialRecord, name, property(counting), raising=False)

    live = LiveProgress(Console(file=io.StringIO(), force_terminal=True, width=120))
    live.planned(run.plan, records[:-1])
    live.trial_sealed(records[-1])
    drawn = _shown(live)
    for name in ("trial", "measured", "status", "reason"):
        counted(name, lambda self, name=name: self.__dict__[name])
    assert records[0].trial.id
    assert looked_at == 1, "the count counts"
    assert _shown(live) == drawn
    assert looked_at == 1
    live.trial_sealed(records[-1])
    assert looked_at < 20, "one record alone was looked at"


def _shown(live: LiveProgress) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(live._table())
    live._render()
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_words_from_outside_are_neither_markup_nor_escape_codes() -> None:
    """``[/x]`` in a guest's error would end the run, ``[red]`` would vanish, and ESC [2J would clear the screen."""
    said = "[/x] [red]no\x1b[2J such [bold] file"
    screen = io.StringIO()
    live = LiveProgress(Console(file=screen, width=120))
    live.say(said)
    live.console.print(plain(said, "yellow"))
    for line in screen.getvalue().splitlines():
        assert line == "[/x] [red]no\ufffd[2J such [bold] file"


def test_a_study_survives_its_run_directory(tmp_path: Path) -> None:
    study = read_study(PROXY, "proxy.toml", catalogue())
    plan = make_plan(study, [study.arms[0].arm], {"native": 1.0})
    run = RunDirectory.create(tmp_path / "r", document.as_json(study), plan, fake_environment())
    assert document.of(run.study, run.path / "study.json", catalogue()) == study


def _without_a_reader(script: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """virtoll with a stdout that nobody reads, after ``script``."""
    read, write = os.pipe()
    os.close(read)
    names = "import sys; from virtoll import cli; from virtoll.cli import common; from virtoll.cli.verbs import run"
    code = f"{names}\n{script}\ncli.main(sys.argv[1:])"
    try:
        return subprocess.run(
            [sys.executable, "-c", code, *argv],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
    finally:
        os.close(write)


@pytest.mark.parametrize("argv", [("list", "studies"), ("run", "--dry-run", "proxy")])
def test_a_list_that_nobody_reads_to_its_end_is_no_error(argv: tuple[str, ...]) -> None:
    script = "run.run_study = lambda request: print('a plan') or 0"
    done = _without_a_reader(script, *argv)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("flush", [True, False])
def test_a_run_that_nobody_reads_is_interrupted_and_not_done(flush: bool) -> None:
    script = f"common.require_root = lambda: None; run.run_study = lambda request: print('said', flush={flush}) or 0"
    done = _without_a_reader(script, "run", "proxy")
    assert done.returncode == 130
    assert "nobody reads" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_that_nobody_hears_keeps_its_exit_code() -> None:
    script = """
from virtoll.errors import StoreError
def fails(request):
    print("said before")
    raise StoreError("no\\x1b[2J room")
common.require_root = lambda: None; run.run_study = fails
"""
    done = _without_a_reader(script, "run", "proxy")
    assert (done.returncode, done.stderr) == (4, "virtoll: no\ufffd[2J room\n")


def test_what_a_guest_said_gives_the_terminal_no_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_directory = small_run(tmp_path / "r", JsonProgress())
    failed = next(record for record in run_directory.records() if record.status != "valid")
    spoilt = failed.model_copy(update={"reason": "\x1b]0;title\x07\x1b[2J"})
    capsys.readouterr()
    monkeypatch.setattr(RunDirectory, "records", lambda _self: [spoilt])
    monkeypatch.setattr("virtoll.report.findings.find", lambda _path: SimpleNamespace(calibration=None))
    monkeypatch.setattr("virtoll.report.build.write_report", lambda _findings: "page")
    monkeypatch.setattr("virtoll.report.answer.answer", lambda _findings: ["\x1b[2Jnative"])
    assert finish(run_directory, True, quiet=False) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\ufffd[2J" in out


def test_a_killed_trial_is_pending_again_before_the_lab_is_built(
    tmp_path: Path,
) -> None:
    """What the lab is told is pending, it will be given: else a deployment's last trial is not known as such."""
    run_directory = small_run(tmp_path / "r", JsonProgress())
    log = run_directory.path / "trials.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]))  # the last one was killed in its middle: its directory is there
    last = json.loads(lines[-1])["trial"]["id"]
    told: list[list[str]] = []
    given: list[str] = []

    class Experiment(FakeExperiment):
        def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
            given.append(trial.id)
            yield from super().perform(trial, notes)

    @contextmanager
    def lab(_images: object, pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
        told.append([trial.id for trial in pending])
        yield Experiment({"native": 1.0, "docker": 1.25})

    stage: Any = SimpleNamespace(lab=lab)
    images: Any = None
    assert _measure(run_directory, stage, images, PlainProgress(), Request(study="proxy")) == (True, "")
    assert told == [given] == [[f"{last}r"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may clean")
def test_clean_and_a_run_keep_out_of_each_others_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path / "cache"))
    with exclusive(tmp_path / "state"):
        assert run("clean") == 3
    assert f"another virtoll is at work here (process {os.getpid()})" in capsys.readouterr().err
    thing = tmp_path / "thing"
    thing.mkdir()
    ledger = tmp_path / "state/ledger/run.jsonl"
    ledger.parent.mkdir()
    ledger.write_text(json.dumps({"entry": 1, "kind": "directory", "name": str(thing)}) + "\n")
    held: list[str] = []

    def cleaned(host: Host, directory: Path) -> list[str]:
        held.append((tmp_path / "state/lock").read_text().split()[0])
        return clean(host, directory)

    monkeypatch.setattr("virtoll.run.alone.ledgers.clean", cleaned)
    assert run("clean") == 0
    assert set(held) == {str(os.getpid())}, "who begins a run meanwhile is told so"
    assert capsys.readouterr().out == f"removed directory {thing}\n1 removed\n"
    assert not thing.exists()


def test_what_is_left_of_a_run_in_turns_is_told_by_whole_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All trials of a turn are over at once: by the first of 14 that is told, 14 times as much would seem left."""
    arms = [Arm(label=f"a{number}", platform="native", network="host") for number in range(10)]
    trials = [
        PlannedTrial(id=f"b{block:02d}-t{at:03d}", block=block, position=at, arm=arm, condition={}, turn=f"turn{block}")
        for block in (1, 2, 3)
        for at, arm in enumerate(arms, 1)
    ]
    clock = [0.0]
    monkeypatch.setattr("virtoll.run.progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    tally = _Tally()
    records = [TrialRecord(trial=trial, status="valid", started_at="2026-01-01T00:00:00+00:00") for trial in trials]
    tally.planned(Plan(seed=1, blocks=3, trials=trials, estimate_s=300), [])
    assert tally.left_s() == 300
    clock[0] = 100.0
    for record in records[:10]:
        tally.add(record)
        assert tally.left_s() == pytest.approx(200)
    clock[0] = 98.6
    tally.add(records[10])
    assert tally.left_s() == pytest.approx(49.3)
    assert tally.left() == "about 50 s left"
    for record in records[11:21]:
        tally.add(record)
    assert (tally.left_s(), tally.left()) == (0, "a moment left")
    clock[0] = 200.0
    again = _Tally()  # gone on with, half a turn told
    again.planned(Plan(seed=1, blocks=3, trials=trials, estimate_s=300), records[:15])
    clock[0] = 250.0
    again.add(records[15])
    assert again.left_s() == pytest.approx(100)
