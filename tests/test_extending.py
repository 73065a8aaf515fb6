"""docs/EXTENDING.md as a third party's distribution: its files are taken from the page, installed, checked and run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import contract
import leaks
import undrawn
from contract import Place
from virtoll.catalogue import SEAMS
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.lab.base import Lab
from virtoll.platforms.base import platforms
from virtoll.registry import forget

CHECKOUT = Path(__file__).parent.parent
PAGE = CHECKOUT / "docs/EXTENDING.md"
BLOCK = re.compile(r"^```(\w+)\n# (\S+\.(?:py|toml))\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SEAMS_OF_THE_PAGE = {f"virtoll.{seam}" for seam in SEAMS} | {"virtoll.report.sections"}
IMAGES = [("busybox-static",), ("coreutils", "dash"), ("coreutils", "dash", "findutils")]
SENTENCE = r"The windows of <b>{} trials</b> take [\d.]+ s together\."


def files() -> dict[str, str]:
    """The page's files by name; each is whole, with the comment that names it."""
    return {name: f"# {name}\n{text}" for _, name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8"))}


def entry_points() -> dict[str, dict[str, str]]:
    """By group, as the page's pyproject.toml has them."""
    points: dict[str, dict[str, str]] = tomllib.loads(files()["pyproject.toml"])["project"]["entry-points"]
    return points


@dataclass(frozen=True)
class Installed:
    """The page's distribution in a directory of its own, and the command beside it."""

    directory: Path

    def command(self, *words: str | Path, code: int = 0) -> str:
        """What virtoll prints; it must end so. Its reports are without figures."""
        return self.program(*undrawn.ARGV[1:], *words, code=code)

    def program(self, *words: str | Path, code: int = 0) -> str:
        """What Python prints that has this distribution; it must end so."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.directory / "site"),
            "VIRTOLL_STATE": str(self.directory / "state"),
        }
        argv = [sys.executable, *map(str, words)]
        process = subprocess.Popen(
            argv, cwd=self.directory, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            stdout, stderr = process.communicate(timeout=1500)
        finally:
            process.kill()
        assert process.returncode == code, stdout[-3000:] + stderr[-3000:]
        return stdout

    def smaller(self, name: str, *changes: tuple[str, str]) -> Path:
        """A study of the page, with windows as small as may be."""
        text = (self.directory / name).read_text()
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        (self.directory / name).write_text(text)
        return self.directory / name


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    site = tmp_path / "site"
    info = site / "virtoll_example-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: virtoll-example\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {cls}\n" for name, cls in points.items())
        for group, points in entry_points().items()
    ]
    (info / "entry_points.txt").write_text("".join(lines))
    for name, text in files().items():
        path = (site if name.endswith(".py") else tmp_path) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (site / "virtoll_example/__init__.py").write_text('"""Of docs/EXTENDING.md."""\n')
    return Installed(tmp_path)


def test_the_page_has_a_file_for_each_seam() -> None:
    assert entry_points().keys() == SEAMS_OF_THE_PAGE
    classes = [cls for points in entry_points().values() for cls in points.values()]
    modules = {f"{cls.partition(':')[0].replace('.', '/')}.py" for cls in classes}
    assert len(modules) == len(SEAMS_OF_THE_PAGE), "each is a file of its own"
    assert modules == {name for name in files() if name.endswith(".py")}
    blocks = re.findall(r"^```\w+$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(blocks) == len(files()), "a block that names no file is tested by nobody"


# As many processes would import all of virtoll as often.
LIST_EACH = """\
import sys
from contextlib import suppress
from virtoll import cli
for name in sys.argv[1:]:
    with suppress(SystemExit):
        cli.main(["list", name, "--json"])
    print("<end>")
"""


def test_each_is_listed(installed: Installed) -> None:
    names = [group.rpartition(".")[2] for group in entry_points()]
    lists = installed.program("-c", LIST_EACH, *names).split("<end>\n")
    for (group, points), text in zip(entry_points().items(), lists[:-1], strict=True):
        told = json.loads(text)
        assert told["list"] == group.rpartition(".")[2]
        found = {entry["name"]: entry["summary"] for entry in told["entries"]}
        assert told["refused"] == []
        assert points.keys() <= found.keys()
        assert all(20 <= len(found[name]) <= 90 or group.endswith("sections") for name in points)


def test_the_files_are_in_order(installed: Installed) -> None:
    """As virtoll's own: ruff and mypy, strict."""
    package = installed.directory / "site/virtoll_example"
    config = f"--config-file={CHECKOUT / 'pyproject.toml'}"
    checks: Sequence[Sequence[str]] = [
        ["ruff", "check", "--no-cache", f"--config={CHECKOUT / 'pyproject.toml'}", "--ignore=ARG002", str(package)],
        ["ruff", "format", "--no-cache", f"--config={CHECKOUT / 'pyproject.toml'}", "--diff", str(package)],
        ["mypy", config, f"--cache-dir={CHECKOUT / '.mypy_cache'}", str(package)],
    ]
    environment = {**os.environ, "MYPYPATH": f"{CHECKOUT / 'src'}:{installed.directory / 'site'}"}
    for check in checks:
        argv = [sys.executable, "-m", *check]
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=CHECKOUT)
        assert done.returncode == 0, done.stdout + done.stderr


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]


def built() -> None:
    """The images that the page's studies need; skips where they cannot be had."""
    try:
        for packages in IMAGES:
            rootfs.build(LocalHost(), "extending", packages, lambda line: print(line, file=sys.stderr))
    except HostError as error:
        pytest.skip(str(error))


def run(installed: Installed, study: Path, *words: str) -> list[dict[str, Any]]:
    """The records of a run that goes well and leaves nothing, with the section's sentence on its page."""
    installed.command("check", study)
    out = installed.directory / study.stem
    installed.command("run", study, "--out", out, *words)
    told = records(out)
    assert [
        (record["trial"]["id"], record["status"], record["checks"]) for record in told if record["status"] != "valid"
    ] == []
    page = next(out.rglob("*.html")).read_text(encoding="utf-8")
    assert re.search(SENTENCE.format(len(told)), page)
    assert installed.command("clean").strip() == "nothing was left"
    return told


@pytest.mark.machine
def test_a_service_is_measured_under_a_load_on_a_platform_in_a_mode(installed: Installed) -> None:
    built()
    study = installed.smaller("served.toml", ('"10 s"', '"1 s"'), ("blocks = 10", "blocks = 2\nnoise_floor = false"))
    told = run(installed, study)
    assert {record["trial"]["arm"]["label"] for record in told} == {
        "native+host",
        "unshared+routed",
        "unshared+narrow",
    }
    for record in told:
        (window,) = record["measured"]["windows"]
        assert record["measured"]["unit"] == "download"
        assert window["work"] == window["events"]["download"]["completed"] > 0


@pytest.mark.machine
def test_a_probe_is_measured_beside_an_aggressor(installed: Installed) -> None:
    built()
    study = installed.smaller(
        "started.toml", ('"500 ms"', '"50 ms"'), ("blocks = 10", "blocks = 2\nnoise_floor = false")
    )
    told = run(installed, study)
    assert len(told) == 2 * 2 * 2
    for record in told:
        assert record["outcome"] == "answered"
        assert all(window["values"]["start_us"] > 0 for window in record["measured"]["windows"])
        counts = record["neighbour"]["counts"]
        assert counts["syncs" if record["neighbour"]["aggressor"] == "commits" else "periods"] > 0


@pytest.mark.machine
def test_a_probe_is_checked_by_an_instrument(installed: Installed) -> None:
    built()
    changes = [('"500 ms"', '"50 ms"'), ("blocks = 10", "blocks = 2\nnoise_floor = false")]
    text = (installed.directory / "started.toml").read_text()
    beside = text[text.index("[neighbour]") : text.index("[[arms]]")]
    study = installed.smaller("started.toml", *changes, (beside, ""))
    told = run(installed, study, "--cross-check")
    assert {record["measured"]["instrument"] for record in told} == {"dash", "xargs"}


@pytest.fixture
def registered_here(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's classes in this process, too."""
    monkeypatch.syspath_prepend(installed.directory / "site")
    forget()
    yield
    forget()
    for module in [name for name in sys.modules if name.partition(".")[0] == "virtoll_example"]:
        del sys.modules[module]


@pytest.mark.machine
@pytest.mark.usefixtures("registered_here")
def test_platform_and_mode_keep_the_contract(lab: Lab) -> None:
    platform = platforms()["unshared"]()
    contract.skip_unless_ready(platform)
    place = Place(lab, contract.image(), platform)
    assert set(contract.modes(platform)) - {*contract.RARE} == {"bridge", "macvlan", "nat", "narrow", "routed", "venet"}
    before = leaks.snapshot()
    with place.deployed() as instance:
        contract.answers(instance)
        contract.is_accounted_for(instance)
        contract.cpu_limit_holds(instance)
        contract.memory_limit_holds(instance)
        contract.disk_limit_holds(instance)
        contract.pids_limit_holds(instance)
    for mode in ("routed", "narrow"):
        with place.deployed(mode) as instance:
            contract.is_reached(lab, instance)
    contract.live_side_by_side(place, "narrow")
    contract.starts_from_the_image(lab, place.image, platform)
    contract.nothing_left(lab, before)
