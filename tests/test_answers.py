"""docs/answers: each figure is what virtoll computes of the kept runs today, and each command is one.

A page quotes a kept run in one of three ways. In a sentence by a link whose title says where the figure stands in the
run's report: [costs 11 % [6, 15]](runs/proxy "tolls: docker+routed, Throughput"), of a row whose name has a comma
"table: row | column". In a table by a link of its first head: [Arm](runs/proxy "tolls"). And in a block that begins
with a command on kept runs, where a line [...] stands for any others.
"""

from __future__ import annotations

import csv
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from undrawn import UNDRAWN
from virtoll import cli
from virtoll.catalogue import catalogue
from virtoll.cli.parser import make_parser, settings_of
from virtoll.platforms.base import platforms
from virtoll.record.store import RunDirectory
from virtoll.report import build
from virtoll.run.named import available_studies
from virtoll.study.file import read_study
from virtoll.study.plan import make_plan

CHECKOUT = Path(__file__).parent.parent
ANSWERS = CHECKOUT / "docs" / "answers"
QUESTIONS = (
    "docker",
    "docker-network",
    "cpu-bound",
    "lxc-or-vm",
    "database",
    "kvm-disk",
    "cpu-limit",
    "sandbox",
    "rootless",
    "density",
)
RUNS = sorted(path.name for path in (ANSWERS / "runs").iterdir())
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
IN_TEN_MINUTES_S = 600
MOST_BYTES = 1_300_000
MOST_LOST = {"sandbox-systrap": 2}  # by run: trials that were not valid, and are never measured again

_BRACKETED = r"(?:[^\[\]]|\[[^\[\]]*\])+"
QUOTE = re.compile(rf'\[({_BRACKETED})\]\((?:[\w./-]*/)?runs/([\w-]+) "([^"]+)"\)')
BLOCK = re.compile(r"^```\n\$ virtoll ([^\n]*docs/answers/runs/[^\n]+)\n(.+?)\n```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    (virtoll [^\n#]+)", re.MULTILINE)
# What nobody may write who has not measured it: a share, a factor, a time, a value with its half-width.
FIGURE = re.compile(r"\d\s*(?:%|×|±|ms\b|us\b|µs\b)|±\s*\d")
SAYS_NOT = re.compile(r"no run is kept yet|not measured here", re.IGNORECASE)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def page_of(question: str) -> Path:
    return ANSWERS / f"{question}.md"


def flat(text: str) -> str:
    return " ".join(text.split())


# -- what a kept run says --------------------------------------------------------------------------------------

Tables = Callable[[str, str], dict[str, dict[str, str]]]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """Of a kept run a table of its report, as it is made today: its cells by row and head."""
    patch = pytest.MonkeyPatch()
    for name, instead in UNDRAWN.items():
        patch.setattr(build, name, instead)

    @cache
    def reported(run: str) -> Path:
        copy = tmp_path_factory.mktemp("kept") / run
        shutil.copytree(ANSWERS / "runs" / run, copy)
        return build.build_report(copy).parent / "tables"

    @cache
    def table(run: str, name: str) -> dict[str, dict[str, str]]:
        with (reported(run) / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            return {row[next(iter(row))]: row for row in csv.DictReader(file)}

    yield table
    patch.undo()


def place(title: str) -> tuple[str, str, str]:
    """The table, row and head that a quote's title names."""
    table, _, rest = title.partition(": ")
    row, _, head = rest.partition(" | ") if " | " in rest else rest.partition(", ")
    return table, row, head


SENTENCES = [
    (page, flat(said), run, flat(title))
    for page in PAGES
    for said, run, title in QUOTE.findall(text_of(page))
    if ": " in title
]


@pytest.mark.parametrize(
    ("page", "said", "run", "title"), SENTENCES, ids=[f"{page.stem}-{title}" for page, _, _, title in SENTENCES]
)
def test_a_figure_in_a_sentence_is_the_runs(page: Path, said: str, run: str, title: str, tables: Tables) -> None:
    table, row, head = place(title)
    cell = tables(run, table)[row][head]
    assert said in (cell, *cell.split("; ")), f"{page.name} quotes {run}, {title}"


def quoted_tables(page: Path) -> Iterator[tuple[str, str, list[str], list[list[str]]]]:
    """Run, table, heads and rows of each table that is quoted."""
    lines = text_of(page).splitlines()
    for at, line in enumerate(lines):
        if line.startswith("|") and not lines[at - 1].startswith("|") and (found := QUOTE.search(line.split("|")[1])):
            whole = []
            for row in lines[at:]:
                if not row.startswith("|"):
                    break
                whole.append([cell.strip() for cell in row.strip("|").split("|")])
            yield found[2], found[3], [found[1], *whole[0][1:]], whole[2:]


SHOWN = [(page, *found) for page in PAGES for found in quoted_tables(page)]


@pytest.mark.parametrize("shown", SHOWN, ids=[f"{shown[0].stem}-{shown[2]}" for shown in SHOWN])
def test_a_table_is_the_runs(shown: tuple[Path, str, str, list[str], list[list[str]]], tables: Tables) -> None:
    page, run, name, heads, rows = shown
    computed = tables(run, name)
    assert rows
    for row in rows:
        assert row[1:] == [computed[row[0]][head] for head in heads[1:]], f"{page.name} quotes {run}, {name}"


SAID = [(page, words, shown) for page in PAGES for words, shown in BLOCK.findall(text_of(page))]


@pytest.mark.parametrize(("page", "words", "shown"), SAID, ids=[f"{page.stem}-{words[:30]}" for page, words, _ in SAID])
def test_what_a_verb_says_of_kept_runs_is_what_a_page_shows(
    page: Path, words: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(words))
    told = re.search(r"^exit code (\d+)$", shown, re.MULTILINE)
    assert ended.value.code == (int(told[1]) if told else 0)
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    at = 0
    for part in re.split(r"^\s*\[\.\.\.\]$", re.sub(r"\nexit code \d+$", "", shown), flags=re.MULTILINE):
        lines = [line.rstrip() for line in part.strip("\n").splitlines()]
        places = [n for n in range(at, len(said) - len(lines) + 1) if said[n : n + len(lines)] == lines]
        assert places, f"{page.name}: virtoll {words} does not say, from its line {at + 1} on:\n{part}"
        at = places[0] + len(lines)


def prose(text: str) -> str:
    """A page without what is quoted, code, and where its question comes from."""
    text = text.partition("## Where the question comes from")[0]
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    lines, is_quoted = [], False
    for line in text.splitlines():
        begins = line.startswith("|") and QUOTE.search(line.split("|")[1]) is not None
        is_quoted = line.startswith("|") and (is_quoted or begins)
        lines.append("" if is_quoted else line)
    return re.sub(r"`[^`]*`|95 % intervals", "", QUOTE.sub("", "\n".join(lines)))


@pytest.mark.parametrize("name", ["README", *QUESTIONS])
def test_no_figure_stands_there_that_no_run_gave(name: str) -> None:
    assert [found[0] for found in FIGURE.finditer(prose(text_of(page_of(name))))] == []


def test_a_figure_that_is_not_quoted_is_seen() -> None:
    for text in ("costs 11 % more", "4 × slower", "0.10 ± 0.25", "in 30 ms", "| Arm | x |\n|---|---|\n| a | 3 % |"):
        assert FIGURE.search(prose(text)), text
    for text in (
        '[4 × slower](runs/a "tolls: b, c")',
        '| [Arm](runs/a "t") | x |\n|---|---|\n| a | 3 % |',
        "`--decide 5%`",
    ):
        assert not FIGURE.search(prose(text)), text


# -- the pages ---------------------------------------------------------------------------------------------------


def test_all_ten_questions_have_a_page_in_the_index() -> None:
    assert {path.stem for path in ANSWERS.glob("*.md")} == {"README", *QUESTIONS}
    index = text_of(ANSWERS / "README.md")
    assert re.findall(r"^\| \[[^\]]+\]\(([\w-]+)\.md\) \|", index, re.MULTILINE) == list(QUESTIONS)
    assert "(docs/answers/README.md)" in text_of(CHECKOUT / "README.md")


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_page_answers_or_says_that_it_does_not(question: str) -> None:
    text = text_of(page_of(question))
    assert text.startswith("# ")
    assert re.search(r'^\*"', text, re.MULTILINE), "the question in a user's words"
    assert "## On your machine" in text
    assert "## Where the question comes from" in text
    assert re.search(r"^## What (this does|it will) not say$", text, re.MULTILINE)
    answered = QUOTE.search(text.partition("\n## ")[0])
    assert answered or SAYS_NOT.search(text.partition("\n## ")[0])


def commands() -> Iterator[tuple[str, list[str]]]:
    for name in ("README", *QUESTIONS):
        for line in COMMAND.findall(text_of(page_of(name))):
            yield name, shlex.split(line)[1:]


COMMANDS = list(commands())


@pytest.mark.parametrize(("name", "words"), COMMANDS, ids=[f"{name}-{' '.join(words)}" for name, words in COMMANDS])
def test_a_command_is_one(name: str, words: list[str]) -> None:
    parser = make_parser()
    arguments, rest = parser.parse_known_args(words)
    if arguments.verb == "probe":
        kind = catalogue().probes[arguments.name]
        assert arguments.platform in platforms()
        assert settings_of(parser, rest).keys() <= {field.removesuffix("_ns") for field in kind.__dataclass_fields__}
        return
    assert not rest
    if arguments.verb in ("run", "audit"):
        assert arguments.study in available_studies()
    if arguments.verb == "run" and not arguments.target:
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--dry-run"])
        assert ended.value.code == 0


def longest_s(words: list[str]) -> float:
    """How long a run may take where all of its platforms are there."""
    arguments = make_parser().parse_args(words)
    text = (CHECKOUT / f"src/virtoll/studies/{arguments.study}.toml").read_text(encoding="utf-8")
    study = read_study(text, arguments.study, catalogue(), quick=arguments.quick, platforms=arguments.platforms or ())
    overhead_s = {name: kind.expected_overhead_s for name, kind in platforms().items()}
    plan = make_plan(study, [entry.arm for entry in study.arms], overhead_s)
    return plan.estimate_s * (arguments.blocks or plan.blocks) / plan.blocks


@pytest.mark.parametrize("question", QUESTIONS)
def test_ten_minutes_are_enough(question: str) -> None:
    runs = [words for name, words in COMMANDS if name == question and words[0] == "run" and "--target" not in words]
    quick = [words for words in runs if "--quick" in words]
    assert quick, "a ready-made study answers it"
    assert {" ".join(words): longest_s(words) for words in quick if longest_s(words) > IN_TEN_MINUTES_S} == {}


# -- the runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_kept_run_is_small_whole_and_quoted(name: str) -> None:
    run = RunDirectory(ANSWERS / "runs" / name)
    assert run.kept is not None
    assert not run.pending()
    lost = [record.trial.id for record in run.records() if record.status != "valid"]
    assert len(lost) <= MOST_LOST.get(name, 0), "each is told on the page"
    files = [path for path in run.path.rglob("*") if path.is_file()]
    own = [path for path in files if path.relative_to(run.path).parts[0] != "report"]  # which a reader may have made
    assert sum(path.stat().st_size for path in own) < MOST_BYTES
    assert any(quoted == name for _, _, quoted, _ in SENTENCES)
