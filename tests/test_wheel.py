"""The wheel carries everything and works outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
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
    expected |= {"virtoll/native/virtoll-agent", "virtoll/native/virtoll-load"}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_it_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([venv / "bin/pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    # What virtoll needs comes from the environment that runs the tests: no network in a test.
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    listed = run([str(venv / "bin/virtoll"), "list", "platforms"], cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "native" in listed.stdout
    where = run([str(venv / "bin/python"), "-c", "import virtoll.binaries as b; print(b.binary('virtoll-agent'))"])
    assert where.stdout.startswith(str(venv))
    assert os.access(where.stdout.strip(), os.X_OK)


def test_without_cargo_the_build_says_so(tmp_path: Path) -> None:
    copy_checkout(tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    built = run([sys.executable, *BUILD, "--wheel-dir", str(tmp_path / "dist"), str(tmp_path)], env=environment)
    if "building for" in built.stdout + built.stderr:
        pytest.skip("cargo is in /usr/bin here: there is no way to hide it")
    assert built.returncode != 0
    assert "could not be built" in built.stderr
    assert "install cargo" in built.stderr
