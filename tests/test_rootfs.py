"""Images: what goes into the digest, what the cache does, and what is said when mmdebstrap fails.

A stand-in for mmdebstrap on PATH makes a tiny tree, or fails with the words of the real one.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from virtoll import binaries
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import cached, rootfs

pytestmark = pytest.mark.machine  # builds have a mount namespace of their own

_MAKES = r"""#!/bin/sh
echo "I: installing essential packages..." >&2
case $* in
*--variant=essential*) echo essential ;;
*"/rootfs/. "*" install -- "*) echo "${*##* install -- }" | cut -d" " -f1 ;;
esac >>"$VIRTOLL_CACHE/calls"
while [ -n "${GATE-}" ] && ! [ -e "$GATE" ]; do sleep 0.01; done
for root; do :; done
mkdir -p "$root/etc" "$root/var/lib/dpkg"
echo 127.0.0.9 secret.example >"$root/etc/hosts"
printf 'Package: squid\nStatus: install ok installed\nMaintainer: x <x@example.org>\nArchitecture: all
Version: 5.7-2\nDescription: x\n' >"$root/var/lib/dpkg/status"
"""
_IS_KILLED = """#!/bin/sh
for root; do :; done
mkdir -p "$root/proc"
mount -t proc -o ro proc "$root/proc"
[ -e "$root/proc/self" ] && echo mounted >>"$VIRTOLL_CACHE/calls"
kill -9 0
"""
_FAILS = """#!/bin/sh
echo "I: running apt-get update..." >&2
echo "E: {words}" >&2
exit 1
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Install a stand-in for mmdebstrap and an agent; returns the cache directory."""
    agent = tmp_path / "agent"
    agent.write_bytes(b"agent")
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("VIRTOLL_CACHE", str(cache))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(binaries, "binary", lambda name: agent)
    monkeypatch.setattr(binaries, "digest", lambda name: "a" * 64)

    def install(script: str) -> Path:
        command = tmp_path / "bin/mmdebstrap"
        command.parent.mkdir(exist_ok=True)
        command.write_text(script)
        command.chmod(0o755)
        return cache

    return install


def test_builds_once_and_notes_versions(stand_in: Callable[[str], Path]) -> None:
    cache = stand_in(_MAKES)
    told: list[str] = []
    image = rootfs.build(LocalHost(), "proxy", ["squid"], told.append)
    assert "image: installing essential packages..." in told
    assert (image.rootfs / "virtoll/agent").read_bytes() == b"agent"
    assert (image.rootfs / "virtoll/agent").stat().st_mode & 0o777 == 0o755
    assert (image.rootfs / "etc/hosts").read_text() == "127.0.0.1 localhost instance\n"
    assert list((image.rootfs / "tmp").iterdir())
    assert rootfs.manifest(image)["versions"] == {"squid": "5.7-2"}
    assert rootfs.build(LocalHost(), "proxy", ["squid"], told.append) == image
    assert (cache / "calls").read_text() == "essential\nsquid\n"


def test_no_images_tmp_is_empty(tmp_path: Path) -> None:
    """gVisor would have one in memory in its place: a database that spilled there was told as quicker than it is."""
    for name in ("without", "used/tmp/pictures", "linked"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "linked/tmp").symlink_to("/var/tmp")
    for name, there in (("without", "tmp"), ("used", "tmp"), ("linked", "var/tmp")):
        rootfs._keep_tmp(LocalHost(), tmp_path / name)
        found = [path.name for path in (tmp_path / name / there).iterdir()]
        assert found == (["pictures"] if name == "used" else [".virtoll"]), (
            "no link leads out, and a user's are his own"
        )
    assert (tmp_path / "without/tmp").stat().st_mode & 0o7777 == 0o1777


def test_the_essential_packages_are_installed_once_for_all(stand_in: Callable[[str], Path]) -> None:
    """Each image took half a minute more for them."""
    cache = stand_in(_MAKES)
    for packages in (["squid"], [], ["nginx"]):
        rootfs.build(LocalHost(), "any", packages, print)
    assert (cache / "calls").read_text() == "essential\nsquid\nnginx\n"


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("I: running apt-get update...", "running apt-get update..."),
        ("I: running --setup-hook in shell: sh -c 'cp -a ...'", ""),
        ("I: running --customize-hook in shell: sh -c 'apt-get ...'", "installing packages inside the chroot..."),
        ("I: nothing to download -- skipping...", ""),
        ("I: success in 3.2 seconds", ""),
        ("W: something", ""),
    ],
)
def test_what_is_done_is_told_in_words_for_people(line: str, step: str) -> None:
    assert rootfs._step(line) == step


def test_what_was_built_again_is_told_from_what_was_there(stand_in: Callable[[str], Path]) -> None:
    """By the same request: Debian's packages of another day, which whoever kept a copy would take for the same."""
    cache = stand_in(_MAKES)
    first = rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert rootfs.build(LocalHost(), "proxy", ["squid"], print).built == first.built
    for entry in (cache / "images").iterdir():
        cached.remove(entry)
    stand_in(_MAKES.replace("5.7-2", "5.7-3"))
    second = rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert second == first
    assert rootfs.manifest(second)["versions"] == {"squid": "5.7-3"}
    assert second.built != first.built


def test_one_that_was_killed_leaves_nothing_mounted_where_the_next_one_builds(
    stand_in: Callable[[str], Path],
) -> None:
    """It mounts /proc and /sys in the tree; the next run could not remove that ("Read-only file system")."""
    cache = stand_in(_IS_KILLED)
    with pytest.raises(HostError, match="the image could not be built"):
        rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert str(cache) not in Path("/proc/self/mountinfo").read_text()
    stand_in(_MAKES)
    rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert (cache / "calls").read_text() == "mounted\nessential\nsquid\n"


def test_what_an_older_virtolls_killed_build_left_mounted_is_taken_away(stand_in: Callable[[str], Path]) -> None:
    cache = stand_in(_MAKES)
    place = cache / "images/.bootstrap-0123456789ab.partial/rootfs/proc"
    place.mkdir(parents=True)
    (cache / "images").chmod(0o700)
    subprocess.run(["mount", "-t", "proc", "-o", "ro", "proc", str(place)], check=True)
    rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert str(cache) not in Path("/proc/self/mountinfo").read_text()


def test_whoever_is_not_root_reads_what_is_laid_into_it(stand_in: Callable[[str], Path], tmp_path: Path) -> None:
    """Whatever this machine's root keeps to himself (umask)."""
    stand_in(_MAKES)
    film = tmp_path / "film"
    film.write_bytes(b"film")
    film.chmod(0o644)
    before = os.umask(0o077)
    try:
        image = rootfs.build(LocalHost(), "proxy", ["squid"], lambda _: None, {"/virtoll/films/a.flv": film})
    finally:
        os.umask(before)
    for directory in ("virtoll", "virtoll/films"):
        assert (image.rootfs / directory).stat().st_mode & 0o777 == 0o755, directory
    for name in ("etc/hosts", "etc/resolv.conf", "virtoll/films/a.flv"):
        assert (image.rootfs / name).stat().st_mode & 0o777 == 0o644, name


def test_a_new_agent_needs_no_new_bootstrap(stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = stand_in(_MAKES)
    first = rootfs.build(LocalHost(), "proxy", ["squid"], print)
    monkeypatch.setattr(binaries, "digest", lambda name: "b" * 64)
    second = rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert first.digest != second.digest
    assert (cache / "calls").read_text() == "essential\nsquid\n"
    shared = "etc/hosts"
    assert (first.rootfs / shared).stat().st_ino == (second.rootfs / shared).stat().st_ino


def test_the_package_that_brings_mmdebstrap_is_named(
    stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(_MAKES)
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(HostError, match="mmdebstrap is not installed") as raised:
        rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert raised.value.problem.remedy == "apt-get install mmdebstrap"


def test_the_order_of_packages_does_not_matter(stand_in: Callable[[str], Path]) -> None:
    stand_in(_MAKES)
    assert rootfs.image_of("a", ["squid", "nginx"]) == rootfs.image_of("a", ["nginx", "squid", "nginx"])
    assert rootfs.image_of("a", ["squid"]).digest != rootfs.image_of("a", ["nginx"]).digest


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("cannot write: No space left on device", "disk is full"),
        ("Unable to locate package squidd", "no package of that name"),
        ("Temporary failure resolving the mirror", "mirror cannot be reached"),
        ("The following signatures could not be verified: NO_PUBKEY 6ED0E7B82643E131", "debian-archive-keyring"),
        ("something else", "run the command by hand"),
    ],
)
def test_failures_say_what_to_do(stand_in: Callable[[str], Path], words: str, advice: str) -> None:
    cache = stand_in(_FAILS.format(words=words))
    with pytest.raises(HostError) as raised:
        rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert words in raised.value.problem.what
    assert advice in raised.value.problem.remedy
    assert {path.suffix for path in (cache / "images").iterdir()} == {".lock"}
    stand_in(_MAKES)
    assert rootfs.build(LocalHost(), "proxy", ["squid"], print).rootfs.is_dir()


def test_a_build_ends_with_a_virtoll_that_is_killed(
    stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on for minutes beside whatever was measured next, and what it had made stayed."""
    cache = stand_in('#!/bin/sh\nfor root; do :; done\nmkdir -p "$root"\nsleep 900 & wait')
    with _builder(cache) as builder:
        while not list((cache / "images").glob(".bootstrap-*.partial/rootfs")):
            assert builder.poll() is None
            time.sleep(0.01)
        builder.kill()
    monkeypatch.setattr(rootfs, "_DYING_S", 480.0)  # no clock decides a test
    (removed,) = rootfs.remove_unfinished(LocalHost())
    assert removed.startswith("what a killed virtoll was making: ")
    assert list((cache / "images").glob(".*.partial")) == []


def _builder(cache: Path) -> subprocess.Popen[bytes]:
    """Another virtoll that builds the same."""
    program = (
        "import json, sys; from pathlib import Path; from virtoll import binaries; from virtoll.images import rootfs\n"
        "from virtoll.hosts.local import LocalHost\n"
        f"binaries.binary = lambda name: Path({str(cache.parent / 'agent')!r})\n"
        "binaries.digest = lambda name: 'a' * 64\n"
        "image = rootfs.build(LocalHost(), 'proxy', ['squid'], lambda line: print(line, file=sys.stderr, flush=True))\n"
        "print(image.rootfs)"
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_two_builders_at_once_do_the_work_once(
    stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = stand_in(_MAKES)
    gate = cache.parent / "gate"
    monkeypatch.setenv("GATE", str(gate))
    builders = [_builder(cache) for _ in range(2)]
    first = wait_for_one_that_waits(builders)
    gate.touch()
    said = [builder.communicate() for builder in builders]
    assert said[0][0] == said[1][0]
    assert (cache / "calls").read_text() == "essential\nsquid\n"
    assert "waiting for another virtoll" in first


def wait_for_one_that_waits(builders: Sequence[subprocess.Popen[bytes]]) -> str:
    """What they have said when one of them waits for the other."""
    said = b""
    with selectors.DefaultSelector() as selector:
        for builder in builders:
            assert builder.stderr is not None
            selector.register(builder.stderr, selectors.EVENT_READ)
        while b"waiting for another" not in said:
            for key, _ in selector.select():
                piece = os.read(key.fd, 4096)
                assert piece, f"one ended, and there was nobody to wait for: {said!r}"
                said += piece
    return said.decode()
