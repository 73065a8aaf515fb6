"""What is fetched and built for images: it ends with who asked for it, and sees little of root's."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import go, rootfs
from virtoll.images.base import Image
from virtoll.images.workshop import Workshop

pytestmark = pytest.mark.machine
PATIENCE_S = 120.0
ASKING = """
import sys
from pathlib import Path
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Image
from virtoll.images.workshop import Workshop
Workshop(Path(sys.argv[1])).do(LocalHost(), Image("x", "0" * 64, Path(sys.argv[2])), sys.argv[3], 600)
"""


@pytest.fixture(scope="module")
def image() -> Image:
    try:
        return rootfs.build(LocalHost(), "go", go.PACKAGES, lambda line: print(line, file=sys.stderr))
    except HostError as error:
        pytest.skip(str(error))


def at_work(word: str) -> list[str]:
    """The processes whose words hold it, but for who asked."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if words[0] == b"sleep" and word.encode() in words:
            found.append(path.parent.name)
    return found


def await_it(what: str, is_so: bool, word: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while bool(at_work(word)) != is_so:
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_it_ends_with_who_asked_for_it_though_nobody_does_the_work(image: Image, tmp_path: Path) -> None:
    """A build of minutes would go on beside whatever is measured next."""
    word = f"600.{secrets.randbelow(10**9):09}"
    argv = [sys.executable, "-c", ASKING, str(tmp_path / "room"), str(image.directory), f"sleep {word} & sleep {word}"]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as asking:
        await_it("it was never begun", True, word)
        asking.kill()
    await_it("it goes on", False, word)


def test_of_roots_environment_it_has_what_says_where_to_go(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:1")
    monkeypatch.setenv("A_TOKEN", "secret")
    monkeypatch.setenv("TMPDIR", "/nowhere")
    said = Workshop(tmp_path / "room").do(
        LocalHost(), image, "env; echo user $(id -u) of $(ls -d /proc/[0-9]* | wc -l) processes", 600
    )
    assert "HTTPS_PROXY=http://proxy.test:1" in said
    assert "secret" not in said
    assert "TMPDIR" not in said
    found = re.search(r"user (\d+) of (\d+) processes", said)
    assert found is not None
    assert int(found[1]) == 65534, "nobody"
    assert int(found[2]) < 10, "the machine's"


@pytest.mark.parametrize("mask", [0o027, 0o077])
def test_nobody_passes_its_root_whatever_root_keeps_to_himself(image: Image, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        workshop = Workshop(tmp_path / "room")
        said = workshop.do(LocalHost(), image, "echo made >made", 600)
    finally:
        os.umask(before)
    assert workshop.take("made", tmp_path / "kept", 0o600), said
