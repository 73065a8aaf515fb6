"""What people expect of a tool they install: lists that help to choose, a manual, a file to begin from, JSON,
completion, a manual page, a licence and a citation."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synthetic import Recipe, write_run
from virtoll import __version__, manual
from virtoll.catalogue import SEAMS, catalogue, registered_of
from virtoll.cli import main
from virtoll.cli.parser import LISTED, SHELLS
from virtoll.errors import Problem
from virtoll.record.calibration import Calibration
from virtoll.run import beginning, doctor, machine, tune
from virtoll.run.named import available_studies
from virtoll.run.named import text_of as study_text
from virtoll.study.file import read_study

CHECKOUT = Path(__file__).parent.parent
WIDEST_SUMMARY = 90


def code_of(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    return int(ended.value.code or 0)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """What a verb that goes well prints."""

    def run(*argv: str, code: int = 0) -> str:
        capsys.readouterr()
        assert code_of(*argv) == code
        return capsys.readouterr().out

    return run


# -- list -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seam", SEAMS)
def test_every_entry_says_when_to_pick_it_in_one_line(seam: str) -> None:
    found = registered_of(seam)
    own = {name: cls.summary for name, cls in found.classes.items() if name not in found.origins}
    assert {name: len(summary) for name, summary in own.items() if not 20 <= len(summary) <= WIDEST_SUMMARY} == {}
    assert len(set(own.values())) == len(own), "two of the same line leave no choice"
    assert not any("\n" in summary or summary.endswith(".") for summary in own.values())


def test_list_alone_lists_what_can_be_listed(said: Any) -> None:
    lines = said("list").splitlines()
    assert [line.split()[0] for line in lines] == list(LISTED)
    assert set(LISTED) == {*SEAMS, "studies", "sections"}


def test_list_for_programs(said: Any) -> None:
    assert [entry["name"] for entry in json.loads(said("list", "--json"))["entries"]] == list(LISTED)
    for word in LISTED:
        told = json.loads(said("list", word, "--json"))
        assert told.keys() == {"list", "entries", "refused"}
        assert told["list"] == word
        assert all(entry.keys() == {"name", "summary"} for entry in told["entries"])
    assert [entry["name"] for entry in json.loads(said("list", "studies", "--json"))["entries"]] == list(
        available_studies()
    )


# -- the manual -------------------------------------------------------------------------------------------


def test_help_lists_every_page_with_one_line(said: Any) -> None:
    listed = dict(line.split(maxsplit=1) for line in said("help").splitlines()[2:])
    assert listed == manual.topics()
    assert listed.keys() == {path.stem.lower().replace("_", "-") for path in (CHECKOUT / "docs").glob("*.md")}
    assert {"probes", "exit-codes", "json", "command-line", "run-directory"} <= listed.keys()
    assert {topic: len(title) for topic, title in listed.items() if not 5 <= len(title) <= WIDEST_SUMMARY} == {}
    assert not any(title.startswith("#") for title in listed.values())


def test_a_page_is_printed_as_it_is_written_where_no_terminal_is(said: Any) -> None:
    assert said("help", "probes") == (CHECKOUT / "docs/PROBES.md").read_text()


def test_help_of_a_verb_is_its_usage(said: Any) -> None:
    assert "--dry-run" in said("help", "run")


def test_a_page_that_is_none_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("help", "prbes") == 2
    assert "did you mean 'probes'?" in capsys.readouterr().err


# -- new and check ----------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_study_is_right_and_explains_itself(here: Path, said: Any) -> None:
    assert "my-web.toml is written" in said("new", "my-web")
    text = (here / "my-web.toml").read_text()
    for quick in (False, True):
        study = read_study(text, "my-web.toml", catalogue(), quick=quick)
        assert (study.name, study.service, study.load) == ("my-web", "nginx", "http")
        assert {entry.optional for entry in study.arms} == {False, True}
    told = said("check", "my-web.toml")
    assert "my-web.toml is right." in told
    assert "arms: native+host, native+host (again)" in told
    assert "with --quick: " in told
    assert told.endswith("nothing was changed\n")
    assert [path.name for path in here.iterdir()] == ["my-web.toml"], "nothing else was made"


def test_what_the_template_offers_in_comments_is_right_too(here: Path) -> None:
    beginning.begin("mine", here)
    text = (here / "mine.toml").read_text()
    open_loop = text.replace('loop = "closed"', "#").replace("connections = 10\n", "\n")
    for line in ('  loop = "open"', '  rate = "300 /s"', "  connections = 500"):
        assert f"# {line}" in open_loop
        open_loop = open_loop.replace(f"# {line}", line)
    study = read_study(open_loop, "mine.toml", catalogue())
    assert (study.base["load.loop"], study.base["load.rate_per_s"]) == ("open", 300.0)
    factors = re.sub(r"# \[factors\].*", "[factors]", text)
    factors = re.sub(r'^#   ("load\.)', r"\1", factors, flags=re.MULTILINE)
    assert len(read_study(factors, "mine.toml", catalogue()).factors) == 2


@pytest.mark.parametrize("ready_made", available_studies())
def test_each_ready_made_study_can_be_begun_from(here: Path, said: Any, ready_made: str) -> None:
    assert "mine.toml is written" in said("new", "mine", "--like", ready_made)
    text, theirs = (here / "mine.toml").read_text(), study_text(ready_made)[0]
    changed = [(ours, its) for ours, its in zip(text.splitlines(), theirs.splitlines(), strict=True) if ours != its]
    assert changed == [('name = "mine"', f'name = "{ready_made}"')]
    known = catalogue()
    ours, its = read_study(text, "mine.toml", known), read_study(theirs, f"{ready_made}.toml", known)
    assert (ours.name, replace(ours, name=its.name)) == ("mine", its)


def test_what_is_not_ready_made_is_told_with_the_nearest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("new", "mine", "--like", "conferense") == 2
    assert "did you mean 'conference'?" in capsys.readouterr().err
    assert code_of("new", "mine", "--like", "../web") == 2
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["No Name", "../up", "a/b", "x.toml", "", "proxy"])
def test_a_name_that_is_none_or_taken_makes_no_file(here: Path, name: str) -> None:
    assert code_of("new", name) == 2
    assert list(here.iterdir()) == []


def test_new_never_overwrites(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.toml").write_text("mine")
    assert code_of("new", "mine") == 2
    assert "already exists" in capsys.readouterr().err
    assert (here / "mine.toml").read_text() == "mine"
    (here / "gone.toml").symlink_to(here / "elsewhere")
    assert code_of("new", "gone") == 2
    assert not (here / "elsewhere").exists()


WRONG = """
name = "wrong"
blocks = 1
[service]
name = "nginx"
[load]
name = "http"
time_limit = 5
[limits]
memroy = "1 GiB"
[[arms]]
platform = "native"
[[arms]]
platform = "dokcer"
[quick]
blocks = "two"
"""


def test_check_tells_all_that_is_wrong_at_once(here: Path, said: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "wrong.toml").write_text(WRONG)
    assert code_of("check", "wrong.toml") == 2
    told = capsys.readouterr().err
    for word in ("wrong.toml:3: blocks", "time_limit", "memroy", "dokcer", "did you mean 'docker'?", "'two'"):
        assert word in told, "the quick variant's too"
    document = json.loads(said("check", "wrong.toml", "--json", code=2))
    assert (document["right"], document["variants"]) == (False, {})
    assert all(problem.keys() == {"what", "where", "remedy"} for problem in document["problems"])
    assert len(document["problems"]) == len({str(problem) for problem in document["problems"]})


def test_check_and_dry_run_need_no_root(here: Path, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not root cannot see what the machine offers: that is told as not known, and is no flaw of the file's."""
    beginning.begin("mine", here)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("virtoll.lab.requirements.check", lambda _host: [Problem("only root may")])
    for argv in (("check", "mine.toml"), ("run", "mine.toml", "--dry-run")):
        assert "not known before a run: which of these arms" in said(*argv)


def test_check_takes_a_ready_made_study(here: Path, said: Any) -> None:
    """What `virtoll run` would take: the same word, the same trials."""
    told = said("check", "proxy")
    assert told.startswith("proxy.toml is right. ")
    assert not list(here.iterdir()), "nothing was changed"
    document = json.loads(said("check", "proxy", "--json"))
    assert (document["file"], document["right"]) == ("proxy.toml", True)
    assert document["variants"].keys() == {"full", "quick"}
    assert f"{document['variants']['full']['trials']} trials" in said("run", "proxy", "--dry-run")


def test_check_knows_what_a_word_means_as_run_does(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("check", "prxy") == 2
    assert "ready-made studies: " in capsys.readouterr().err
    (here / "proxy").write_text("name = 'mine'")
    assert code_of("check", "proxy") == 2
    assert "write ./proxy for what is here" in capsys.readouterr().err
    assert code_of("check", "./proxy") == 2
    assert "./proxy" not in capsys.readouterr().err


def test_a_file_with_a_byte_order_mark_is_read(here: Path, said: Any) -> None:
    """As some editors write it. It was "not TOML", at a character that nobody sees."""
    beginning.begin("mine", here)
    (here / "mine.toml").write_bytes(b"\xef\xbb\xbf" + (here / "mine.toml").read_bytes())
    assert "mine.toml is right." in said("check", "mine.toml")


def test_check_for_programs(here: Path, said: Any) -> None:
    beginning.begin("mine", here)
    document = json.loads(said("check", "mine.toml", "--json"))
    assert document.keys() == {"file", "right", "problems", "variants"}
    assert document["variants"].keys() == {"full", "quick"}
    for variant in document["variants"].values():
        assert variant["trials"] == variant["treatments"] * variant["blocks"]
        assert variant["estimate_s"] > 0
        assert variant["arms"][:2] == ["native+host", "native+host (again)"]


def test_check_for_programs_on_a_machine_with_too_few_cpus(
    here: Path, said: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It printed no JSON, and nobody heard what else was wrong, as of the quick variant."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    beginning.begin("mine", here)
    text = (here / "mine.toml").read_text().replace("vcpus = 1", "vcpus = 2")
    (here / "mine.toml").write_text(f"{text}\n[quick.limits]\nvcpus = 1\n")
    document = json.loads(said("check", "mine.toml", "--json", code=3))
    assert (document["right"], [*document["variants"]]) == (False, ["quick"])
    (problem,) = document["problems"]
    assert problem["what"] == "2 CPU(s) for 2 vCPU(s) and a load generator beside them"
    capsys.readouterr()
    assert code_of("check", "mine.toml") == 3
    assert "2 CPU(s) for 2 vCPU(s)" in capsys.readouterr().err
    (here / "mine.toml").write_text(f"{text}\n[quick.limits]\nvcpu = 1\n")
    assert code_of("check", "mine.toml") == 2, "the file is wrong besides"
    told = capsys.readouterr().err
    assert "2 CPU(s) for 2 vCPU(s)" in told
    assert "unknown key 'vcpu'" in told


# -- for programs -----------------------------------------------------------------------------------------


def test_doctor_for_programs_and_people_says_the_same() -> None:
    lacks = Problem("no dockerd", "here", "install docker.io")
    offer = doctor.MachineOffer({"docker": doctor.PlatformOffer({"routed": "missing"}, (lacks,), "slow")}, ["busy"])
    assert doctor.as_json(offer) == {
        "ready": False,
        "platforms": [
            {
                "name": "docker",
                "networks": {"routed": "missing"},
                "caveat": "slow",
                "problems": [{"what": "no dockerd", "where": "here", "remedy": "install docker.io"}],
            }
        ],
        "warnings": ["busy"],
    }
    assert doctor.MachineOffer({"lxc": doctor.PlatformOffer({"routed": "ready"})}).is_ready
    assert not doctor.MachineOffer({"native": doctor.PlatformOffer({"host": "ready"})}).is_ready


def test_plan_for_programs(here: Path, said: Any) -> None:
    told = json.loads(said("plan", "testbed", "--nodes-per-experiment", "20,400", "--out", "plan", "--json"))
    assert told["grid"] == {"nodes": 400, "interfaces": 2, "channels": 12, "slices": 2}
    first, last = told["sizes"]
    assert first == {
        "nodes_per_experiment": 20,
        "experiments": 12,
        "by_channels": 12,
        "by_slices": 40,
        "binding": ["channels"],
        "experiments_not_sliced": 12,
    }
    assert (last["experiments"], last["experiments_not_sliced"]) == (2, 1)
    assert all((here / path).is_file() for path in told["files"])


def test_report_for_programs(tmp_path: Path, said: Any) -> None:
    run = write_run(tmp_path / "run", Recipe(seed=1, blocks=3))
    told = json.loads(said("report", str(run), "--json"))
    assert told.keys() == {"run", "page", "tables", "figures", "answer", "components", "speed", "trials"}
    assert Path(told["page"]).is_file()
    assert all(Path(path).is_file() for path in (*told["tables"], *told["figures"]))
    assert any("docker+published" in sentence for sentence in told["answer"])
    lines = (run / "trials.jsonl").read_text().splitlines()
    assert sum(told["trials"].values()) == len(lines)


def test_a_dry_run_refuses_a_place_that_is_taken(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the run itself would, days later."""
    (here / "taken").mkdir()
    assert code_of("run", "proxy", "--quick", "--dry-run", "--out", "taken") == 2
    assert "--out taken: already exists" in capsys.readouterr().err


def test_a_dry_run_for_programs(here: Path, said: Any) -> None:
    beginning.begin("mine", here)
    events = [json.loads(line) for line in said("run", "mine.toml", "--quick", "--dry-run", "--json").splitlines()]
    (planned,) = (event for event in events if event["event"] == "planned")
    assert sum(event["event"] == "trial" for event in events) == planned["trials"] > 0
    assert {event["event"] for event in events} <= {"skipped", "unknown", "planned", "trial"}


@pytest.mark.parametrize("verb", ["list", "doctor", "check", "plan", "report", "probe", "run", "calibrate", "tune"])
def test_every_json_is_documented(verb: str) -> None:
    assert re.search(rf"^## virtoll {verb} .*--json$", manual.page("json"), flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("verb", "keys"),
    [
        ("list", {"list", "entries", "refused", "features", "supported", "papers"}),
        ("doctor", {*doctor.as_json(doctor.MachineOffer({})), "removed"}),
        ("doctor --machine", {*machine.as_json([], {}), "removed"}),
        ("tune", {*tune.as_json([])}),
        ("check", {*beginning.as_json(beginning.Checked("x"))}),
        ("plan", {"grid", "sizes", "sentence", "files"}),
        ("report", {"run", "page", "tables", "figures", "answer", "components", "speed", "trials"}),
        ("calibrate", {*Calibration.model_fields}),
    ],
)
def test_the_page_has_the_keys(verb: str, keys: set[str]) -> None:
    section = re.split(rf"^## virtoll {verb} .*$", manual.page("json"), flags=re.MULTILINE)[1].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == keys


# -- completion and the manual page -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three scripts, in a directory that also holds a study file."""
    directory = tmp_path_factory.mktemp("completion")
    beginning.begin("mine", directory)
    for shell in SHELLS:
        command = [sys.executable, "-m", "virtoll", "completion", shell]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        (directory / f"virtoll.{shell}").write_text(done.stdout)
    return directory


COMPLETED = [
    (
        "",
        {
            "doctor",
            "list",
            "new",
            "check",
            "run",
            "calibrate",
            "probe",
            "scheduler",
            "worker",
            "audit",
            "report",
            "compare",
            "history",
            "advise",
            "export",
            "keep",
            "plan",
            "tune",
            "untune",
            "clean",
            "help",
            "completion",
            "man",
        },
    ),
    ("list ", set(LISTED)),
    ("list pr", {"probes"}),
    ("run ", {*available_studies(), "mine.toml"}),
    ("run pro", {"proxy"}),
    ("check ", {*available_studies(), "mine.toml"}),
    ("check iso", {"isolation", "isolation-rtt"}),
    ("run proxy --platforms lx", {"lxc"}),
    ("run proxy --platforms docker,lx", {"docker,lxc"}),
    ("probe memory", {"memory", "memory-latency"}),
    ("probe clock --network us", {"usernet"}),
    ("help exit", {"exit-codes"}),
    ("completion ", set(SHELLS)),
    ("tune ", {"governor", "turbo", "thp", "congestion", "idle", "awake"}),
    ("untune aw", {"awake"}),
]


@pytest.mark.parametrize(("typed", "offered"), COMPLETED)
def test_bash_completes(scripts: Path, typed: str, offered: set[str]) -> None:
    script = """
        source ./virtoll.bash
        read -ra COMP_WORDS <<<"virtoll $1"
        [[ $1 == *" " || -z $1 ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _shtab_virtoll
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    command = ["bash", "--norc", "-c", script, "bash", typed]
    done = subprocess.run(command, cwd=scripts, capture_output=True, text=True, timeout=600)
    assert set(done.stdout.split()) == offered, done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("typed", "offered"), COMPLETED)
def test_fish_completes(scripts: Path, typed: str, offered: set[str]) -> None:
    command = ["fish", "--no-config", "-c", "source virtoll.fish; complete -C $argv[1]", f"virtoll {typed}"]
    done = subprocess.run(command, cwd=scripts, capture_output=True, text=True, timeout=600)
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} == offered, done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script(scripts: Path, tmp_path: Path) -> None:
    loads = """
        cp $1 _virtoll
        fpath=($PWD $fpath)
        autoload -U compinit && compinit -u -D
        autoload +X _virtoll
        print -r -- $_comps[virtoll]
        eval "$(<$1)"
        print -r -- $_comps[virtoll]
    """
    command = ["zsh", "-f", "-c", loads, "zsh", str(scripts / "virtoll.zsh")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr, done.returncode) == ("_virtoll\n_shtab_virtoll\n", "", 0)
    script = (scripts / "virtoll.zsh").read_text()
    assert " ".join(available_studies()) in script
    assert f"_values -s , platforms {' '.join(catalogue().platforms)}" in script


def test_the_manual_page_has_every_verb_option_and_code(said: Any) -> None:
    page = said("man")
    assert page.startswith('.TH VIRTOLL 1 "" "virtoll ' + __version__)
    for words in (".SS doctor", r"\fB\-\-dry\-run\fR", ".SH EXIT STATUS", r"\fB130\fR", r"\fBrun\-directory\fR"):
        assert words in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_manual_page_is_set_without_a_warning(said: Any) -> None:
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", "-z"], input=said("man").encode(), capture_output=True, timeout=600
    )
    assert (done.stderr, done.returncode) == (b"", 0)


# -- licence and citation ---------------------------------------------------------------------------------


def test_licence_citation_and_package_say_the_same() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert "Apache License" in (CHECKOUT / "LICENSE").read_text()
    assert "END OF TERMS AND CONDITIONS" in (CHECKOUT / "LICENSE").read_text()
    citation = (CHECKOUT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, flags=re.MULTILINE) == [__version__]
    assert re.findall(r"^license: (.*)$", citation, flags=re.MULTILINE) == [project["license"]] == ["Apache-2.0"]
    (author,) = project["authors"]
    assert f"  - name: {author['name']}\n" in citation
