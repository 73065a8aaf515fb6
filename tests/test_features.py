"""What each platform supports: stated by its class, listed, and in the report of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from synthetic import DOCKER, LXC, NATIVE, UML, Recipe, write_run
from virtoll import catalogue
from virtoll.analysis.audit import _HAS_OWN_KERNEL, _MADE_BY_SETTINGS
from virtoll.catalogue import features
from virtoll.cli import main
from virtoll.features import FEATURES, UNKNOWN, supported, variant
from virtoll.platforms.base import platforms
from virtoll.record.model import Arm
from virtoll.report.build import report_of
from virtoll.report.findings import find
from virtoll.report.sections.features import FeaturesSection

XEN = ("xen-hvm", "xen-pv", "xen-pvh")


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    return int(ended.value.code or 0)


@pytest.mark.parametrize("platform", sorted(features()))
def test_each_platform_answers_to_each_word_with_a_reason_and_a_source(platform: str) -> None:
    stated = features()[platform]
    assert stated.keys() == FEATURES.keys()
    for name, one in stated.items():
        assert one.why, name
        assert bool(one.source) == (one.answer != "unknown"), name


def test_an_audit_knows_the_same_kernels() -> None:
    """What analysis cannot ask of a platform's class (it works where none is installed) has to say what that says."""
    ours = [name for name, cls in platforms().items() if cls.__module__.startswith("virtoll.")]
    answers = {name: supported(features()[name], "own-kernel").answer == "yes" for name in ours}
    assert answers == {name: _HAS_OWN_KERNEL[name] for name in answers}
    made = {(name, value) for name in ours for value in platforms()[name].variants if not answers[name]}
    own = {one for one in made if supported(features()[variant(*one)], "own-kernel").answer == "yes"}
    assert own == {(platform, value) for platform, _, value in _MADE_BY_SETTINGS}


def test_a_class_that_states_nothing_is_unknown() -> None:
    assert supported({}, "own-kernel") == UNKNOWN


# What the papers say, row by row; where docs of today say otherwise, theirs.
@pytest.mark.parametrize(
    ("word", "yes", "no"),
    [
        ("own-kernel", {"kvm", "qemu-tcg", "uml", *XEN}, {"native", "docker", "lxc", "openvz"}),
        ("live-migration", {"kvm", "qemu-tcg", "openvz", *XEN}, {"native", "uml"}),
        ("stock-kernel", {"native", "docker", "lxc", "kvm", "qemu-tcg", "uml"}, {"openvz", *XEN}),
        (
            "no-cpu-extensions",
            {"native", "docker", "lxc", "qemu-tcg", "uml", "openvz", "xen-pv"},
            {"kvm", "xen-hvm", "xen-pvh"},
        ),
        ("own-resource-view", {"kvm", "qemu-tcg", "uml", "openvz", *XEN}, {"native", "docker"}),
        ("fault-isolation", {"kvm", "qemu-tcg", "uml", *XEN}, {"native", "docker", "lxc", "openvz"}),
    ],
)
def test_the_answers_of_the_papers(word: str, yes: set[str], no: set[str]) -> None:
    compared = (
        "native",
        "docker",
        "lxc",
        "uml",
        "kvm",
        "qemu-tcg",
        "openvz",
        *XEN,
    )  # what papers and first arms are of
    answers = {name: supported(features()[name], word).answer for name in compared}
    assert {name for name, answer in answers.items() if answer == "yes"} == yes
    assert {name for name, answer in answers.items() if answer == "no"} == no


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "platforms", "--features") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == list(features())
    (row,) = [line for line in lines[1:] if line.startswith("live-migration ")]
    assert dict(zip(lines[0].split(), row.split()[1:], strict=True))["lxc"] == "partly"


def test_programs_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "platforms", "--features", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [feature["name"] for feature in told["features"]] == list(FEATURES)


def test_nothing_else_has_features(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "probes", "--features") == 2
    assert "only platforms have features" in capsys.readouterr().err


def test_a_report_has_those_of_its_arms(tmp_path: Path) -> None:
    arms = (NATIVE, LXC, DOCKER, replace_platform("third-party"), UML)
    made = write_run(tmp_path / "r", Recipe(arms=arms, truth={arm.label: 1.0 for arm in arms}, blocks=2, bulk=False))
    found = find(made)
    assert not FeaturesSection().applies(found)
    (table,) = FeaturesSection().tables(replace(found, features=features()))
    assert set(table.heads) == {"", "native", "lxc", "docker", "uml"}
    (row,) = [row for row in table.rows if row[0].detail == "live-migration"]
    answers = {head: cell.text for head, cell in zip(table.heads, row, strict=True)}
    assert (answers["docker"], answers["lxc"], answers["uml"]) == ("partly", "partly", "no")
    assert "docs.docker.com" in table.notes[0]


def test_an_arm_that_its_settings_make_another_of_has_a_column_of_its_own(tmp_path: Path) -> None:
    sentry = DOCKER.model_copy(update={"label": "docker+published (runtime runsc)", "settings": {"runtime": "runsc"}})
    crun = DOCKER.model_copy(update={"label": "docker+routed (runtime crun)", "settings": {"runtime": "crun"}})
    arms = (NATIVE, DOCKER, crun, sentry)
    made = write_run(tmp_path / "r", Recipe(arms=arms, truth={arm.label: 1.0 for arm in arms}, blocks=2, bulk=False))
    (table,) = FeaturesSection().tables(replace(find(made), features=features()))
    assert set(table.heads) == {"", "native", "docker", "docker:runsc"}
    (row,) = [row for row in table.rows if row[0].detail == "own-kernel"]
    answers = {head: cell.text for head, cell in zip(table.heads[1:], row[1:], strict=True)}
    assert answers == {"native": "no", "docker": "no", "docker:runsc": "yes"}


def replace_platform(name: str) -> Arm:
    return DOCKER.model_copy(update={"label": f"{name}+routed", "platform": name})


def test_what_a_class_inherits_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = type("Theirs", (platforms()["docker"],), {"name": "theirs"})
    monkeypatch.setattr(catalogue, "platforms", lambda: {"theirs": theirs})
    assert features()["theirs"] == {}


@pytest.mark.usefixtures("undrawn")
def test_the_page_and_its_files_have_the_table(tmp_path: Path) -> None:
    made = write_run(tmp_path / "r", Recipe(arms=(NATIVE, DOCKER), blocks=2, factors={}, bulk=False))
    _, page = report_of(made, features())
    text = page.read_text("utf-8")
    assert "What does each platform support?" in text
    assert "a checkpoint can be carried over; Docker calls it experimental" in text
    table = (page.parent / "tables" / "features.csv").read_text("utf-8")
    assert "Moves to another host while it runs (live-migration)" in table
