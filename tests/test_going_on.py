"""A run goes on where it was begun: with the same virtoll, on the same CPUs, with all that is still wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from on_fakes import on_fakes, write_study
from virtoll.cli import main
from virtoll.errors import HostError, Problem
from virtoll.fakes import fake_environment
from virtoll.record.model import Arm, Environment
from virtoll.record.store import RunDirectory
from virtoll.run import environment
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
    for room in ("platforms", "report", "run"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "one.py").write_text("a = 1\n")
    digests = []
    for path, text in (("platforms/one.py", "a = 1\n"), ("report/one.py", "a = 2\n"), ("platforms/one.py", "a = 2\n")):
        (tmp_path / path).write_text(text)
        environment._code.cache_clear()
        digests.append(environment._code())
    environment._code.cache_clear()
    assert digests[0] == digests[1] != digests[2]
