"""Java archives by a lock: what a line may be, what Ivy is asked for, and that only what was locked is taken."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from virtoll.errors import HostError
from virtoll.hosts.base import Completed
from virtoll.hosts.local import LocalHost
from virtoll.images import jars, rootfs
from virtoll.images.base import Jar, Wanted, together
from virtoll.images.jars import description, laid, locked

DATA = b"PK an archive"
JAR = Jar("org.example", "server", "1.2", hashlib.sha256(DATA).hexdigest())
OTHER = Jar("org.example", "more", "3", "0" * 64)


def say(line: str) -> None:
    print(line, file=sys.stderr)


def test_a_lock_is_read() -> None:
    assert locked(f"# why\n\norg.example:server:1.2 sha256:{JAR.sha256}\n") == (JAR,)
    assert (JAR.file, JAR.inside) == ("server-1.2.jar", "/virtoll/jars/server-1.2.jar")


@pytest.mark.parametrize("line", ["org.example:server:1.2", "server:1.2 sha256:" + "0" * 64, "a:b:c sha256:abc", "x"])
def test_what_locks_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="locks no jar"):
        locked(line)


def test_ivy_is_asked_for_these_alone() -> None:
    text = description([JAR, OTHER])
    assert '<dependency org="org.example" name="server" rev="1.2" transitive="false"/>' in text
    assert text.count("<dependency ") == text.count('transitive="false"') == 2


def test_one_image_has_the_jars_of_all() -> None:
    both = together([Wanted(packages=("b",), jars=(JAR,)), Wanted(packages=("a",), jars=(JAR, OTHER))])
    assert both == Wanted(packages=("a", "b"), jars=(JAR, OTHER))


class Fetching:
    """A host on which the fetch brings ``data``, or nothing and an error."""

    where = "double"

    def __init__(self, data: bytes | None) -> None:
        self.data, self.runs = data, 0

    def run(self, argv: list[str], **_: object) -> Any:
        self.runs += 1
        if self.data is not None:
            (Path(argv[-2]) / "upper/mnt" / JAR.file).write_bytes(self.data)
        return SimpleNamespace(returncode=0, stdout=b":: resolving\nServer access error: unreachable\n", stderr=b"")


@pytest.fixture
def _no_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own, and nothing to build in it."""
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path))
    monkeypatch.setattr(rootfs, "build", lambda *_: SimpleNamespace(rootfs=tmp_path / "rootfs"))


@pytest.mark.usefixtures("_no_image")
def test_they_are_fetched_once_and_looked_at_each_time() -> None:
    host: Any = Fetching(DATA)
    lying = laid(host, [JAR], say)
    assert list(lying) == [JAR.inside]
    assert lying[JAR.inside].read_bytes() == DATA
    assert [path.name for path in lying[JAR.inside].parent.iterdir()] == [JAR.file], "nothing is left of the fetch"
    assert laid(host, [JAR], say) == lying
    assert host.runs == 1
    lying[JAR.inside].write_bytes(b"another")
    with pytest.raises(HostError, match="is not what was locked"):
        laid(host, [JAR], say)


@pytest.mark.usefixtures("_no_image")
@pytest.mark.parametrize(("data", "words"), [(b"another", "is not what was locked"), (None, "access error: unreach")])
def test_nothing_else_is_taken(data: bytes | None, words: str) -> None:
    host: Any = Fetching(data)
    for _ in range(2):  # and nothing stays in the cache
        with pytest.raises(HostError, match=words):
            laid(host, [JAR], say)
    assert host.runs == 2


@pytest.mark.usefixtures("_no_image")
def test_whoever_is_not_root_reads_them() -> None:
    """Whatever this machine's root keeps to himself (umask)."""
    host: Any = Fetching(DATA)
    before = os.umask(0o077)
    try:
        lying = laid(host, [JAR], say)[JAR.inside]
    finally:
        os.umask(before)
    assert lying.stat().st_mode & 0o777 == 0o644


@pytest.mark.usefixtures("_no_image")
def test_one_that_is_gone_from_the_cache_is_told() -> None:
    host: Any = Fetching(DATA)
    lying = laid(host, [JAR], say)[JAR.inside]
    lying.unlink()
    with pytest.raises(HostError, match=r"server-1\.2\.jar cannot be read") as caught:
        laid(host, [JAR], say)
    assert f"rm -r {lying.parent}" in caught.value.problem.remedy


@pytest.mark.usefixtures("_no_image")
def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "there"))

    monkeypatch.setattr(shutil, "copyfile", full)
    host: Any = Fetching(DATA)
    with pytest.raises(HostError, match="cannot be written: No space left") as caught:
        laid(host, [JAR], say)
    assert caught.value.problem.where == str(tmp_path / "there")


@pytest.mark.usefixtures("_no_image")
def test_what_was_fetched_wrong_is_not_there_to_be_removed(tmp_path: Path) -> None:
    host: Any = Fetching(b"another")
    with pytest.raises(HostError, match="is not what was locked") as caught:
        laid(host, [JAR], say)
    assert "rm -r" not in caught.value.problem.remedy
    assert not list((tmp_path / "jars").glob("[!.]*"))


def test_why_is_told_before_what() -> None:
    """As Ivy told it of two jars, without a network (and shortened)."""
    said = "\tHost repository not found. url=https://repository/a.pom\n" + "\t\t:: org.example#a;1: not found\n" * 9
    told = str(jars._unfetched(LocalHost(), "it", said))
    assert "Host repository not found" in told
    assert "#a;1" not in told


@pytest.mark.usefixtures("_no_image")
def test_a_fetch_without_end_is_a_matter_of_the_network() -> None:
    class Hanging(LocalHost):
        """On which the fetch waits for an answer."""

        def run(self, argv: Sequence[str], **more: Any) -> Completed:
            return super().run(["sh", "-c", "exec sleep 1000"], **more | {"timeout_s": 1})

    with pytest.raises(HostError, match="cannot be fetched from Maven's central repository:\nno end within") as caught:
        laid(Hanging(), [JAR], say)
    assert "unshare" not in caught.value.problem.what, "a script of ours tells a user nothing"
    assert "proxy" in caught.value.problem.remedy


@pytest.mark.usefixtures("_no_image")
def test_what_is_kept_is_a_file_of_roots_own(tmp_path: Path) -> None:
    """And no link to what somebody else could write to: he who fetches it is not trusted."""

    class Linking(Fetching):
        def run(self, argv: list[str], **_: object) -> Any:
            (tmp_path / "elsewhere").write_bytes(DATA)
            (Path(argv[-2]) / "upper/mnt" / JAR.file).symlink_to(tmp_path / "elsewhere")
            return SimpleNamespace(returncode=0, stdout=b"", stderr=b"")

    host: Any = Linking(None)
    with pytest.raises(HostError, match="cannot be fetched"):
        laid(host, [JAR], say)


@pytest.mark.machine
def test_a_real_one_is_fetched(tmp_path: Path) -> None:
    jar = Jar("org.slf4j", "slf4j-api", "1.7.30", "cdba07964d1bb40a0761485c6b1e8c2f8fd9eb1d19c53928ac0d7f9510105c57")
    try:
        rootfs.build(LocalHost(), "jars", jars.PACKAGES, say)
        jars._fetch(LocalHost(), [jar], tmp_path / "made", say)
    except HostError as error:
        if "is not what was locked" in str(error):
            raise
        pytest.skip(str(error))
    assert [path.name for path in (tmp_path / "made").iterdir()] == [jar.file]
