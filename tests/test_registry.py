"""Third parties' entry points: they add, they replace nothing, and a broken one breaks nothing but itself."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtoll.catalogue import SEAMS, catalogue, plugins, refused, registered_of
from virtoll.fakes import fake_environment
from virtoll.record.comparable import differences
from virtoll.registry import forget, implementations
from virtoll.services.base import Service
from virtoll.services.squid import Squid

GOOD = """
from virtoll.services.squid import Squid

class Mine(Squid):
    name = "mine"
    summary = "a proxy of a third party's"

class Again(Mine): ...
class Native(Squid):
    name = "squid"
class Odd(Squid):
    name = "Odd Name"
class Mute(Squid):
    name = "mute"
    summary = None
class Loose(Squid):
    name = "loose"
    Settings = dict
class Half:
    name = "half"
"""
ABSTRACT = """
from virtoll.services.base import Service

class Some(Service):
    name = "some"
    summary = "nothing of what a service does"
"""


def test_every_setting_of_a_platform_can_be_written_in_an_arm() -> None:
    taken = {"platform", "network", "optional"}  # what else an arm says
    for name, entry in catalogue().platforms.items():
        assert not {field.name for field in dataclasses.fields(entry.settings)} & taken, name


class Site:
    """A directory of installed distributions."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(self, distribution: str, code: str, *entries: str, group: str = "virtoll.services") -> None:
        module = distribution.replace("-", "_")
        (self.path / f"{module}.py").write_text(code)
        info = self.path / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{entry}\n" for entry in entries))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield Site(tmp_path)
    forget()
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_a_third_partys_class_is_registered_with_where_it_comes_from(site: Site) -> None:
    before = set(implementations("virtoll.services", Service))
    forget()
    site.install("squid-mine", GOOD, "mine = squid_mine:Mine")
    assert set(implementations("virtoll.services", Service)) == before | {"mine"}
    assert plugins() == {"services: mine": "squid-mine 1.2 (squid_mine:Mine)"}
    assert "mine" in catalogue().services
    assert refused() == []


def test_without_third_parties_there_are_none() -> None:
    assert plugins() == {}
    assert refused() == []
    assert all(registered_of(seam).classes for seam in SEAMS)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("squid = bad:Native", "virtoll's own is called so"),
        ("other = bad:Mine", "bad:Mine calls itself 'mine'"),
        ("half = bad:Half", "bad:Half is no Service of virtoll's"),
        ("nothing = bad:Nothing", "cannot be imported: AttributeError"),
        ("gone = gone:Gone", "cannot be imported: ModuleNotFoundError"),
        ("torn = not a path", "cannot be imported"),
        ("Odd Name = bad:Odd", "a name has lower-case letters"),
        ("mute = bad:Mute", "a line of text"),
        ("loose = bad:Loose", "a dataclass"),
    ],
)
def test_what_cannot_be_taken_is_left_out_and_named(site: Site, entry: str, why: str) -> None:
    site.install("bad", GOOD, entry)
    (problem,) = refused()
    assert entry.split(" = ", maxsplit=1)[0] in problem.what
    assert why in problem.what
    assert problem.where == f"virtoll.services: bad 1.2 ({entry.split(' = ')[1]})"
    assert "uninstall bad" in problem.remedy
    assert implementations("virtoll.services", Service)["squid"] is Squid
    assert plugins() == {}


@pytest.mark.parametrize(
    "code", ["raise RuntimeError('at\\nhome')", "import sys; sys.exit(3)", "def (", "import nowhere"]
)
def test_a_plugin_that_cannot_be_imported_breaks_nothing_else(site: Site, code: str) -> None:
    site.install("broken", code, "mine = broken:Mine")
    site.install("fine", GOOD, "mute-not = fine:Again", "mine = fine:Mine")
    assert len(refused()) == 3, "one of that name is broken: which was meant?"
    site.path.joinpath("fine-1.2.dist-info/entry_points.txt").write_text("")
    forget()
    (problem,) = refused()
    assert "cannot be imported: " in problem.what
    assert "\n" not in problem.what


def test_an_unfinished_class_is_left_out(site: Site) -> None:
    site.install("some", ABSTRACT, "some = some:Some")
    assert "some:Some lacks " in refused()[0].what


def test_two_plugins_of_one_name_are_both_left_out(site: Site) -> None:
    site.install("one", GOOD, "mine = one:Mine")
    site.install("two", GOOD, "mine = two:Mine")
    assert [problem.where for problem in refused()] == [
        "virtoll.services: one 1.2 (one:Mine)",
        "virtoll.services: two 1.2 (two:Mine)",
    ]
    assert all("2 plugins offer one of this name" in problem.what for problem in refused())
    assert "mine" not in implementations("virtoll.services", Service)


def test_every_verb_works_beside_a_broken_plugin_and_says_so(site: Site, tmp_path: Path) -> None:
    for seam in SEAMS:
        site.install(f"bad-{seam}", "raise RuntimeError('no')", f"x = bad_{seam}:X", group=f"virtoll.{seam}")
    forget()
    assert len(refused()) == len(SEAMS)
    for argv, said in (
        (["list", "platforms"], 1),
        (["list", "studies"], 0),
        (["run", "proxy", "--dry-run", "--blocks", "1"], len(SEAMS)),
    ):
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run([sys.executable, "-m", "virtoll", *argv], capture_output=True, env=environ, timeout=600)
        errors = done.stderr.decode()
        assert errors.count("'x' is left out: it cannot be imported: RuntimeError: no") == said
        assert "Traceback" not in errors
        assert done.returncode == (0 if argv[0] == "list" else 2)


def test_an_installed_plugin_of_another_version_is_another_machine() -> None:
    before = fake_environment(plugins={"services: mine": "squid-mine 1.2 (squid_mine:Mine)"})
    now = fake_environment(plugins={"services: mine": "squid-mine 1.3 (squid_mine:Mine)"})
    told = differences(before.comparable, now.comparable)
    assert told == ["plugins.services: mine: was squid-mine 1.2 (squid_mine:Mine), is squid-mine 1.3 (squid_mine:Mine)"]
