"""Links between the project's pages lead somewhere, and the studies that they show are some."""

from __future__ import annotations

import re
import shlex
import subprocess
import textwrap
from pathlib import Path

import pytest

from virtoll import cli
from virtoll.catalogue import catalogue
from virtoll.cli.parser import make_parser
from virtoll.errors import EXIT_CODES, UNTOLD, WORSE
from virtoll.run.named import available_studies
from virtoll.study.file import read_study

CHECKOUT = Path(__file__).parent.parent
PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """What a page's headings can be linked by (as GitHub makes them)."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}: no such heading"


EXAMPLES = [
    (page.name, text)
    for page in (CHECKOUT / "README.md", *(CHECKOUT / "docs" / name for name in ("OWN.md", "KNEE.md", "CONFERENCE.md")))
    for text in re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
]
# Around what a page shows of a study: an arm, and a service of one's own that speaks what the load asks for.
ARM = '[[arms]]\nplatform = "native"\n'
SERVICE = '[service]\nname = "own"\nimage = "oci:shop.tar"\nports = ["5432/tcp"]\n'


@pytest.mark.parametrize(("page", "text"), EXAMPLES, ids=[f"{page}-{at}" for at, (page, _) in enumerate(EXAMPLES)])
def test_examples_of_studies_are_studies(page: str, text: str) -> None:
    whole = text
    if "[service]" not in text and "[[probes]]" not in text:
        whole = SERVICE + whole
    if "[[arms]]" not in text:
        whole += ARM
    if "name = " not in whole.partition("[")[0]:
        whole = f'name = "example"\n{whole}'
    study = read_study(whole, page, catalogue())
    assert study.arms


def test_there_are_examples_of_both() -> None:
    assert {page for page, _ in EXAMPLES} == {"README.md", "OWN.md", "KNEE.md", "CONFERENCE.md"}


COMMANDS = {
    tuple(shlex.split(line, comments=True)[2:])
    for page in (CHECKOUT / "README.md", CHECKOUT / "docs/COMMAND_LINE.md")
    for line in re.findall(r"^    \S*virtoll run [^<\n]+$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
}
STUDIES = available_studies()
READY_MADE = sorted(words for words in COMMANDS if words[0] in STUDIES and "--target" not in words)


@pytest.mark.parametrize("words", READY_MADE, ids=" ".join)
def test_what_a_page_says_to_run_is_not_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", *words, "--dry-run"])
    assert ended.value.code == 0


COMPARE = (CHECKOUT / "docs/COMPARE.md").read_text(encoding="utf-8")
JOBS = re.findall(r"^```yaml\n(.*?)^```", COMPARE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("job", JOBS, ids=["github", "gitlab"])
def test_the_commands_of_a_job_are_some(job: str) -> None:
    folded = re.sub(r"\\?\n\s+(?=--)", " ", job)
    verbs = []
    for line in re.findall(r"virtoll ((?:run|compare) [^|\n]+)", folded):
        arguments = make_parser().parse_args(shlex.split(line))
        verbs.append(arguments.verb)
        if arguments.verb == "compare":
            assert (arguments.before, arguments.after) == (Path("bench/before"), Path("after"))
            assert arguments.fail_over == 0.05
    assert verbs == ["run", "compare"]


@pytest.mark.parametrize("code", EXIT_CODES)
def test_githubs_step_ends_as_compare_does_but_where_it_cannot_tell(code: int, tmp_path: Path) -> None:
    """Run as GitHub runs a step (bash -e), with a virtoll that writes no page where it refuses."""
    step = textwrap.dedent(JOBS[0].rpartition("- run: |\n")[2])
    writes = "echo told >compare.md; " if code in (0, WORSE, UNTOLD) else ""
    stub = tmp_path / "virtoll"
    stub.write_text(f"#!/bin/sh\n{writes}exit {code}\n")
    stub.chmod(0o755)
    (tmp_path / "step.sh").write_text(step)
    summary = tmp_path / "summary"
    summary.touch()
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_STEP_SUMMARY": str(summary)}
    done = subprocess.run(["bash", "-e", "step.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == (0 if code == UNTOLD else code), done.stderr
    assert ("::warning::" in done.stdout) == (code == UNTOLD)
    assert summary.read_text() == ("told\n" if writes else "")


def test_gitlab_lets_pass_what_cannot_be_told_and_nothing_else() -> None:
    assert re.findall(r"exit_codes: \[(.*)\]", JOBS[1]) == [str(UNTOLD)]
