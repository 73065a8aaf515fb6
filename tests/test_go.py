"""Go programs by a lock: how they are built, and that only what was locked is taken."""

from __future__ import annotations

import hashlib
import platform
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll.errors import CommandError, HostError
from virtoll.images import go, rootfs
from virtoll.images.base import GoProgram, Wanted, together

DATA = b"\x7fELF a program"
MODULES, SUMS = "module virtoll\n\ngo 1.26\n", "example.org/server v1.2.3 h1:x=\n"
PROGRAM = GoProgram(
    "example.org/server/cmd", "server", "1.26.8", "h1:go=", MODULES, SUMS, hashlib.sha256(DATA).hexdigest()
)


def say(line: str) -> None:
    print(line, file=sys.stderr)


class Building:
    """A host on which the build makes ``data``, or nothing and an error."""

    where = "double"

    def __init__(self, data: bytes | None, modules: str = MODULES) -> None:
        self.data, self.modules, self.scripts = data, modules, list[str]()

    def run(self, argv: list[str], **_: object) -> Any:
        source = Path(argv[-2]) / "upper/mnt/program"
        assert ((source / "go.mod").read_text(), (source / "go.sum").read_text()) == (self.modules, SUMS)
        self.scripts.append(argv[-3])
        if self.data is not None:
            (source / "server").write_bytes(self.data)
        said = b"go: downloading example.org/server v1.2.3\ngo: example.org/server@v1.2.3: no route to host\n"
        return SimpleNamespace(returncode=0, stdout=b"", stderr=said)


@pytest.fixture(autouse=True)
def _no_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own, no tools to fetch, and a processor that programs are built for."""
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path))
    monkeypatch.setattr(rootfs, "build", lambda *_: SimpleNamespace(rootfs=tmp_path / "rootfs"))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_it_is_built_once_and_looked_at_each_time() -> None:
    host: Any = Building(DATA)
    (path,) = go.laid(host, [PROGRAM], say).values()
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (DATA, 0o755)
    assert go.laid(host, [PROGRAM], say) == {"/virtoll/programs/server": path}
    assert len(host.scripts) == 1
    assert not (path.parent / "workshop").exists(), "gigabytes would stay"
    path.write_bytes(b"another")
    with pytest.raises(HostError, match=r"(?s)is not what was locked.*rm -r"):
        go.laid(host, [PROGRAM], say)


def test_the_source_of_a_command_that_is_in_no_module_lies_beside_the_lock() -> None:
    class Reading(Building):
        def run(self, argv: list[str], **_: object) -> Any:
            assert (Path(argv[-2]) / "upper/mnt/program/main.go").read_text() == "package main"
            return super().run(argv)

    host: Any = Reading(DATA)
    go.laid(host, [replace(PROGRAM, package=".", source="package main")], say)
    (script,) = host.scripts
    assert script.rstrip().endswith("/mnt/program/server .")


@pytest.mark.parametrize(
    "changed",
    [{"source": "package main // changed"}, {"go": "1.26.9"}, {"go_sum": "h1:other="}, {"package": "./other"}],
    ids="".join,
)
def test_what_was_changed_beside_its_lock_is_not_what_was_built_before(changed: dict[str, str]) -> None:
    """The program of the old source, or of the old modules, would have been measured as that of the new."""
    beside = replace(PROGRAM, package=".", source="package main")
    go.laid(cast(Any, Building(DATA)), [beside], say)
    with pytest.raises(HostError, match="is not what was locked"):
        go.laid(cast(Any, Building(b"another")), [replace(beside, **cast(Any, changed))], say)


def test_other_modules_are_not_what_was_built_before() -> None:
    go.laid(cast(Any, Building(DATA)), [PROGRAM], say)
    modules = MODULES.replace("1.26", "1.27")
    changed, host = replace(PROGRAM, modules=modules), Building(b"another", modules)
    with pytest.raises(HostError, match="is not what was locked"):
        go.laid(cast(Any, host), [changed], say)
    assert len(host.scripts) == 1


def test_another_program_is_not_kept(tmp_path: Path) -> None:
    host: Any = Building(b"another")
    with pytest.raises(HostError, match="is not what was locked"):
        go.laid(host, [PROGRAM], say)
    assert [path.name for path in (tmp_path / "programs").iterdir() if not path.name.endswith(".lock")] == []


def test_where_modules_cannot_be_had_it_says_so() -> None:
    host: Any = Building(None)
    with pytest.raises(HostError, match=r"server cannot be built from Go modules:\ngo: .*no route to host") as caught:
        go.laid(host, [PROGRAM], say)
    assert "GOPROXY" in caught.value.problem.remedy


def test_a_build_without_end_tells_nothing_of_our_script() -> None:
    class Hanging(Building):
        def run(self, argv: list[str], **_: object) -> Any:
            raise CommandError(f"no end within 3600 s: {' '.join(argv)}", where=self.where)

    host: Any = Hanging(None)
    with pytest.raises(HostError, match="no end within") as caught:
        go.laid(host, [PROGRAM], say)
    assert "mount" not in caught.value.problem.what


def test_other_processors_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    host: Any = Building(DATA)
    with pytest.raises(HostError, match="x86-64 only, this is aarch64"):
        go.laid(host, [PROGRAM], say)


def test_what_is_made_depends_on_nothing_but_the_lock() -> None:
    host: Any = Building(DATA)
    go.laid(host, [PROGRAM], say)
    (script,) = host.scripts
    for word in (
        "-trimpath",
        "-buildid=",
        "CGO_ENABLED=0",
        "GOAMD64=v1",
        "-mod=readonly",
        "go1.26.8.linux-amd64",
        '"Sum": "h1:go="',
    ):
        assert word in script


def test_one_image_has_the_programs_of_all() -> None:
    both = together([Wanted(packages=("b",), programs=(PROGRAM,)), Wanted(packages=("a",), programs=(PROGRAM,))])
    assert both == Wanted(packages=("a", "b"), programs=(PROGRAM,))
