"""The wheel carries everything and works outside the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from virtoll.binaries import binary

CHECKOUT = Path(__file__).parent.parent
BUILD = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]


def sources() -> list[Path]:
    """The files of the checkout that git knows or would add, relative."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (CHECKOUT / (path := Path(name))).is_file()]


def copy_checkout(target: Path) -> None:
    for path in sources():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes((CHECKOUT / path).read_bytes())
        (target / path).chmod((CHECKOUT / path).stat().st_mode)


def run(argv: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, with the checkout's binaries, so that no cargo runs here."""
    copy = tmp_path_factory.mktemp("checkout")
    copy_checkout(copy)
    native = binary("virtoll-agent").parent
    (copy / "src/virtoll/native").mkdir()
    for path in native.iterdir():
        (copy / "src/virtoll/native" / path.name).write_bytes(path.read_bytes())
        (copy / "src/virtoll/native" / path.name).chmod(path.stat().st_mode)
    built = run([sys.executable, *BUILD, "--wheel-dir", str(copy / "dist"), str(copy)])
    assert built.returncode == 0, built.stderr
    (found,) = (copy / "dist").iterdir()
    return found


def test_the_tag_names_the_one_platform_it_fits(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")


def test_all_files_of_the_package_are_in_it(wheel: Path) -> None:
    expected = {str(path.relative_to("src")) for path in sources() if path.parts[:2] == ("src", "virtoll")}
    expected |= {f"virtoll/native/virtoll-{name}" for name in ("agent", "load", "confer")}
    expected |= {f"virtoll/{path}" for path in sources() if path.parent == Path("docs") and path.suffix == ".md"}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the programs of a fresh environment that has the wheel."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([venv / "bin/pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    # What virtoll needs comes from the environment that runs the tests: no network in a test. A .pth that lies there
    # (an editable install has one) is not read from here.
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv / "bin"


@pytest.fixture
def virtoll(installed: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs the installed virtoll in a directory of its own, and gives what it prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def program(*argv: str) -> str:
        done = run([str(installed / "virtoll"), *argv], cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return program


def test_nothing_of_the_checkout_is_reached(installed: Path, tmp_path: Path) -> None:
    script = """
import sys, virtoll.cli, virtoll.manual, virtoll.report.build, virtoll.binaries as b
print(b.binary("virtoll-agent"), *virtoll.manual._pages().values())
print(*sys.path, *(m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "virtoll" and m.__file__))
"""
    told = run([str(installed / "python"), "-I", "-c", script], cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    files, imported = (line.split() for line in told.stdout.splitlines())
    assert all(path.startswith(str(installed.parent)) for path in files)
    assert os.access(files[0], os.X_OK)
    assert [path for path in imported if path.startswith(str(CHECKOUT / "src"))] == []


def test_its_verbs_work_outside_the_checkout(virtoll: Callable[..., str], tmp_path: Path) -> None:
    assert "native" in virtoll("list", "platforms")
    assert "proxy" in virtoll("list", "studies")
    assert "run-directory" in virtoll("help")
    assert virtoll("help", "probes") == (CHECKOUT / "docs/PROBES.md").read_text()
    assert "nothing was changed" in virtoll("run", "proxy", "--dry-run")
    virtoll("new", "mine")
    assert "mine.toml is right" in virtoll("check", "mine.toml")
    assert "_shtab_virtoll" in virtoll("completion", "bash")
    assert virtoll("man").startswith(".TH VIRTOLL 1")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.machine
def test_it_measures_outside_the_checkout(virtoll: Callable[..., str]) -> None:
    """Image, agent and lab from what is installed. A window's time is no matter: a busy machine may give half of it."""
    told = json.loads(virtoll("probe", "clock", "--platform", "native", "--work", "1000000", "--json"))
    assert told["probe"] == "clock"
    assert all(check["passed"] is not False for check in told["checks"])


def test_licence_and_what_an_index_would_show(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())
    assert "License-Expression: Apache-2.0" in metadata
    assert "Author: The virtoll developers" in metadata


def test_without_cargo_the_build_says_so(tmp_path: Path) -> None:
    copy_checkout(tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    built = run([sys.executable, *BUILD, "--wheel-dir", str(tmp_path / "dist"), str(tmp_path)], env=environment)
    if "building for" in built.stdout + built.stderr:
        pytest.skip("cargo is in /usr/bin here: there is no way to hide it")
    assert built.returncode != 0
    assert "could not be built" in built.stderr
    assert "install cargo" in built.stderr
