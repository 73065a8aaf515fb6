"""Imports go downwards only, and the two halves meet in the run directory alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtoll import cli
from virtoll.cli.parser import make_parser, verbs_of

SOURCE = Path(__file__).parent.parent / "src" / "virtoll"

# Units (modules and packages right below virtoll), topmost first. A unit imports only from lines below its own.
LAYERS = """
__main__
cli
run fakes manual
catalogue trial
instruments post
probes
aggressors
loads
monitor services
footage platforms report voice
analysis films networks study
encoded
images lab record
agent binaries files helpers hosts offers registry
errors features h264 plain strict_json studies units
"""

# Whoever analyses needs no machine, and whoever records computes no statistic.
ANALYSE = {"analysis", "report"}
MACHINE = {
    "agent",
    "hosts",
    "lab",
    "images",
    "networks",
    "platforms",
    "post",
    "services",
    "loads",
    "monitor",
    "trial",
    "probes",
    "aggressors",
    "instruments",
}

DEPTH = {unit: depth for depth, line in enumerate(LAYERS.split("\n")) for unit in line.split()}
UNITS = sorted({path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()})


def unit_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_units(path: Path) -> Iterator[tuple[int, str]]:
    """Line and unit of each import of virtoll's own, wherever in the file it is."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "virtoll" and rest and not rest.startswith("__"):
                yield node.lineno, rest.split(".")[0]


def imports() -> Iterator[tuple[str, str, str]]:
    """Where, importing unit, imported unit."""
    for path in sorted(SOURCE.rglob("*.py")):
        for line, imported in imported_units(path):
            if imported != unit_of(path):
                yield f"{path.relative_to(SOURCE.parent)}:{line}", unit_of(path), imported


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit != "__init__"])
def test_every_unit_has_its_place(unit: str) -> None:
    assert unit in DEPTH, f"virtoll.{unit} is in no layer: add it to LAYERS in tests/test_imports.py"


def test_imports_go_downwards() -> None:
    wrong = [f"{where}: {above} imports {below}" for where, above, below in imports() if DEPTH[above] >= DEPTH[below]]
    assert not wrong, "\n".join(wrong)


def test_the_halves_meet_in_the_run_directory() -> None:
    wrong = [
        f"{where}: {importer} imports {imported}"
        for where, importer, imported in imports()
        if (importer in ANALYSE and imported in MACHINE) or (importer in MACHINE and imported in ANALYSE)
    ]
    assert not wrong, "\n".join(wrong)


def test_what_a_helper_process_loads_again_is_light() -> None:
    """It loads the module that the command begins in, as a process that is spawned does."""
    asked = "import sys, virtoll.__main__; print(*(name for name in sys.modules if name.startswith('virtoll.')))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["virtoll.__main__"]


# What takes longer to import than all that a light verb does: numbers and tables, the half that analyses, all parts.
ANALYSING = (
    "dask",
    "distributed",
    "numpy",
    "pyarrow",
    "scipy",
    "altair",
    "vl_convert",
    "jinja2",
    "virtoll.analysis.load",
    "virtoll.report",
)
READING = (*ANALYSING, "rich", "shtab", "virtoll.run.execute", "virtoll.trial.experiment")
BARE = (*READING, "pydantic", "virtoll.catalogue", "virtoll.record", "virtoll.study")


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        ("--version", (*BARE, "virtoll.cli.verbs")),
        ("--help", (*BARE, "virtoll.cli.verbs")),
        ("run", (*BARE, "virtoll.cli.verbs")),
        ("run proxy --quack", (*BARE, "virtoll.cli.verbs")),
        ("list", BARE),
        ("list studies", (*READING, "virtoll.catalogue", "virtoll.loads")),
        ("list platforms", READING),
        ("clean", BARE),
        ("check proxy", READING),
        ("check absent.toml", READING),
        ("run proxy --dry-run", READING),
        ("run absent.toml --dry-run", READING),
        ("help exit-codes", (*ANALYSING, "pydantic", "shtab", "rich.markdown", "virtoll.catalogue")),
        ("run --help", (*BARE, "virtoll.cli.verbs")),
    ],
)
def test_a_verb_waits_for_nothing_slow_that_it_does_not_use(
    words: str, unused: tuple[str, ...], tmp_path: Path
) -> None:
    code = "from virtoll.__main__ import main\ntry: main()\nfinally: print('', *sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}", *words.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "VIRTOLL_STATE": str(tmp_path / "state")},
    )
    loaded = done.stderr.splitlines()[-1].split()
    assert "virtoll.cli.parser" in loaded, done.stderr
    assert [name for name in unused if name in loaded] == []


def test_each_verb_has_its_module() -> None:
    modules = {path.stem for path in (SOURCE / "cli" / "verbs").glob("*.py")} - {"__init__"}
    assert modules == verbs_of(make_parser()).keys()
    assert modules > {*cli._PRINTS_ONLY, *cli._READS_RUNS}
