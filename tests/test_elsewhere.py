"""A study with an arm on a machine of the user's own: what may be asked for, and what is said before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from on_fakes import on_fakes, write_study
from ssh_double import Played, play
from virtoll.catalogue import catalogue
from virtoll.cli import main
from virtoll.errors import Problem, StudyError
from virtoll.hosts.ledger import ElsewhereError
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Images
from virtoll.record.model import PlannedTrial
from virtoll.run.elsewhere import announced, problems_elsewhere
from virtoll.run.stage import Stage, untried
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.trial.notes import Experiment
from virtoll.trial.treatment import treatments

SERVED = '[service]\nname = "nginx"\n[load]\nname = "http"\n'
ARMS = '[[arms]]\nplatform = "native"\n[[arms]]\nplatform = "ssh"\ndestination = "root@192.0.2.7"\n'


def study(text: str = SERVED, *, top: str = "") -> Study:
    return read_study(f'name = "abroad"\n{top}\n{text}\n{ARMS}', "abroad.toml", catalogue())


def refusals(text: str = SERVED, *, top: str = "") -> list[str]:
    """What is wrong with the last arm; native has all of it."""
    asked = study(text, top=top)
    native, *_, there = (entry.arm for entry in asked.arms)
    assert problems_elsewhere(asked, treatments(asked), native) == []
    found = problems_elsewhere(asked, treatments(asked), there)
    assert all(problem.remedy for problem in found)
    return [problem.where for problem in found]


def test_an_arm_is_written_as_any_other() -> None:
    arm = study().arms[-1].arm
    assert (arm.platform, arm.network) == ("ssh", "direct")
    assert arm.settings == {"destination": "root@192.0.2.7"}
    assert arm.label == "ssh+direct (destination root@192.0.2.7)"


def test_no_wire_of_the_lab_leads_there() -> None:
    with pytest.raises(StudyError, match="ssh cannot be attached in mode 'routed'"):
        study(SERVED + '[[arms]]\nplatform = "ssh"\nnetwork = "routed"')
    with pytest.raises(StudyError, match="docker cannot be attached in mode 'direct'"):
        study(SERVED + '[[arms]]\nplatform = "docker"\nnetwork = "direct"')


def test_a_service_under_a_load_can_be_had_there() -> None:
    assert refusals() == []
    assert refusals(SERVED, top='design = "rotation"') == []
    assert refusals(SERVED + '[knee]\nobjective = ["latency_p99 < 20 ms"]\n') == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (SERVED + '[neighbour]\naggressor = "cpu"\n', "[neighbour] aggressor"),
        (SERVED + "[background]\nhogs = 2\n", "[background] hogs"),
        (SERVED + '[link]\ndelay = "1 ms"\n', "[link]"),
        ('[service]\nname = "squid"\n[origin]\nname = "nginx"\n[load]\nname = "http"\n', "[origin]"),
        ('[service]\nname = "postgres"\n[load]\nname = "pgbench"\n', "[load] name"),
        ('[[probes]]\nname = "density"\n', "probe density"),
        ('[[probes]]\nname = "ping"\n[slices]\ncount = 2\n', "[slices]"),
    ],
)
def test_what_needs_the_lab_or_a_limit_is_refused_with_the_arm(text: str, where: str) -> None:
    assert where in refusals(text)


@pytest.mark.parametrize(
    ("design", "other", "refused"),
    [
        ("rotation", "192.0.2.7", True),
        ("rotation", "ssh://admin@192.0.2.7", True),
        ("rotation", "ssh://root@192.0.2.7:22", True),
        ("rotation", "ssh://192.0.2.7/", True),
        ("rotation", "ssh://[192.0.2.7", False),
        ("rotation", "root@192.0.2.8", False),
        ("blocks", "192.0.2.7", False),
    ],
)
def test_two_arms_of_one_machine_do_not_stand_there_at_one_time(design: str, other: str, refused: bool) -> None:
    second = f'[[arms]]\nplatform = "ssh"\ndestination = "{other}"\ndirectory = "/var/other"\n'
    found = refusals(f"{SERVED}{second}", top=f'design = "{design}"')
    assert found == (["design"] if refused else [])


def test_servers_side_by_side_are_refused_there() -> None:
    servers = "".join(
        f'[servers.{name}.service]\nname = "{name}"\n[servers.{name}.load]\nname = "http"\n'
        for name in ("nginx", "apache")
    )
    assert "[neighbour] servers" in refusals(servers + '[neighbour]\nservers = "others"\n')


def test_probes_that_need_the_agent_alone_can_be_had_there() -> None:
    names = ("linpack", "memory-latency", "round-trip", "disk-sync", "unix-syscall")
    assert refusals("".join(f'[[probes]]\nname = "{name}"\n' for name in names)) == []


def test_whom_a_run_reaches_is_said_before_it_does() -> None:
    (line,) = announced(entry.arm for entry in study().arms)
    assert line.startswith(
        "ssh+direct (destination root@192.0.2.7): root@192.0.2.7: commands, the image and the load go"
    )


def test_a_run_says_it_first_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_fakes(monkeypatch, {})
    done: list[str] = []

    def offered(stage: Stage, _file: str) -> None:
        done.append(capsys.readouterr().out)
        raise StudyError([Problem("here it ends")])

    monkeypatch.setattr(Stage, "offered", offered)
    monkeypatch.chdir(tmp_path)
    Path("abroad.toml").write_text(f'name = "abroad"\n{SERVED}{ARMS}')
    with pytest.raises(SystemExit):
        main(["run", "abroad.toml"])
    (said,) = done
    assert "root@192.0.2.7" in said
    assert "to nobody else" in " ".join(said.split()), "before anybody is asked"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_what_is_left_there_at_the_end_takes_nobodys_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """The machine is gone when all trials have been measured."""
    on_fakes(monkeypatch, {})
    wired = Stage.lab

    @contextmanager
    def lab(stage: Stage, images: Images, pending: Sequence[PlannedTrial]) -> Iterator[Experiment]:
        with wired(stage, images, pending) as experiment:
            yield experiment
        raise ElsewhereError("could not be removed: ssh-directory", where="a.jsonl", remedy="`virtoll clean`")

    monkeypatch.setattr(Stage, "lab", lab)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["run", str(write_study(tmp_path)), "--out", "out", *words])
    assert end.value.code == 0
    assert (tmp_path / "out/report/index.html").exists()
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: a.jsonl: could not be removed: ssh-directory" in said


def test_a_plan_says_what_only_a_login_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: Played = play(tmp_path / "played", monkeypatch)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert untried([study().arms[-1].arm], LocalHost()) == [
        "ssh {'destination': 'root@192.0.2.7'}: whether root@192.0.2.7 lets us in, and what is there"
    ]
    assert played.asked == []
