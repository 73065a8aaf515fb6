"""The project's own numbers: `make bench`, or `python -m bench [NAME...]`.

Each module here is a bench of its own: run by `python -m bench.NAME`, it prints its figures with their spread and its
targets, and exits with 1 when a target is missed. All of them together are written to docs/BENCHMARKS.md; with names,
only those are run, and nothing is written. A bench that draws puts its plots beside that page, as NAME-*.svg.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
CHECKOUT = HERE.parent
DOCUMENT = CHECKOUT / "docs" / "BENCHMARKS.md"
DRAWS = ("designs", "fleet", "growth")  # these take --plots DIRECTORY
VERDICTS = {0: "all targets reached", 1: "TARGETS MISSED"}


@dataclass(frozen=True)
class Outcome:
    """What one bench said."""

    name: str
    title: str  # first line of the module's docstring
    text: str
    exit_code: int
    plots: tuple[str, ...] = ()  # files beside the document

    @property
    def verdict(self) -> str:
        return VERDICTS.get(self.exit_code, f"FAILED with exit code {self.exit_code}")


def names() -> list[str]:
    """All benches, in alphabetical order."""
    return sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def run(name: str, plots: Path | None = None) -> Outcome:
    """Run one bench; what it prints is shown as it comes, and kept. What it draws goes into ``plots``, where given."""
    docstring = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or name
    lines: list[str] = []
    print(f"== {name}", flush=True)
    argv = [sys.executable, "-m", f"bench.{name}"]
    for old in plots.glob(f"{name}-*.svg") if plots is not None else ():
        old.unlink()
    draws = plots is not None and name in DRAWS
    with subprocess.Popen(
        [*argv, "--plots", str(plots)] if draws else argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    drawn = tuple(sorted(file.name for file in plots.glob(f"{name}-*.svg"))) if plots is not None else ()
    outcome = Outcome(name, docstring.split("\n")[0], "".join(lines).rstrip(), process.returncode, drawn)
    print(f"== {name}: {outcome.verdict}\n", flush=True)
    return outcome


def machine() -> str:
    """The machine, in one line."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].split(":", 1)[1].strip() if models else platform.machine()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return f"{os.cpu_count()} x {model}, {memory_gib:.0f} GiB, Linux {platform.release()}"


def commit() -> str:
    """What was measured."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def document(outcomes: list[Outcome]) -> str:
    """docs/BENCHMARKS.md."""
    parts = [
        "# Benchmarks: what virtoll itself costs",
        "",
        "The last figures of `make bench`, which writes this page. Ratios come from interleaved runs on one machine,",
        "and are printed with their spread; absolute figures are that machine's.",
        "",
        f"- when: {datetime.now(UTC):%Y-%m-%d}",
        f"- machine: {machine()}",
        f"- commit: {commit()}",
        "",
    ]
    for outcome in outcomes:
        parts += [f"## {outcome.name}: {outcome.verdict}", "", outcome.title, "", "```", outcome.text, "```", ""]
        parts += [line for plot in outcome.plots for line in (f"![{plot.removesuffix('.svg')}]({plot})", "")]
    return "\n".join(parts)


def main() -> int:
    """Run what was asked for; the exit code is 1 unless every target was reached."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(names())}; all if none is named")
    wanted = parser.parse_args().names
    if unknown := sorted(set(wanted) - set(names())):
        parser.error(f"no such bench: {', '.join(unknown)}; there are {', '.join(names())}")
    outcomes = [run(name, None if wanted else DOCUMENT.parent) for name in wanted or names()]
    if not wanted:
        DOCUMENT.write_text(document(outcomes), encoding="utf-8")
        print(f"written: {DOCUMENT.relative_to(CHECKOUT)}")
    return int(any(outcome.exit_code for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
