"""What is seen under its name is whole: the order of writes, syncs and names, and a fault at every one of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quiet import Quiet
from test_run import IDS, TOLLS, new_run
from virtoll.errors import StoreError
from virtoll.fakes import FakeExperiment
from virtoll.files import durable
from virtoll.hosts.local import LocalHost
from virtoll.images.cached import cached, remove_forsaken
from virtoll.record.store import INTERRUPTED, RunDirectory
from virtoll.run.execute import execute

_CALLS = ("open", "write", "fsync", "rename", "mkdir")


class Disk:
    """Stands before the calls that change a disk: notes them in order, and fails one of them."""

    def __init__(self, fail_at: int = 0, short: bool = False) -> None:
        self.fail_at, self.short = fail_at, short
        self.calls: list[tuple[str, str]] = []
        self.real = {name: getattr(os, name) for name in _CALLS}

    def call(self, name: str) -> Callable[..., Any]:
        def stand_in(first: Any, *rest: Any, **named: Any) -> Any:
            changes = name != "open" or bool(rest[0] & os.O_CREAT)
            if not changes:
                return self.real[name](first, *rest, **named)
            self.calls.append((name, self.path(first)))
            if len(self.calls) == self.fail_at:
                if name == "write" and self.short and len(rest[0]) > 1:
                    self.real["write"](first, rest[0][: len(rest[0]) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if name == "write" and self.short:  # as a signal or a full quota may have it
                return self.real["write"](first, rest[0][: max(1, len(rest[0]) // 3)])
            return self.real[name](first, *rest, **named)

        return stand_in

    @staticmethod
    def path(first: Any) -> str:
        return str(Path(f"/proc/self/fd/{first}").readlink()) if isinstance(first, int) else os.fspath(first)

    @contextmanager
    def under(self) -> Iterator[Disk]:
        with pytest.MonkeyPatch.context() as patch:
            for name in _CALLS:
                patch.setattr(os, name, self.call(name))
            patch.setattr(durable, "_sync_file_system", lambda fd: self.calls.append(("syncfs", self.path(fd))))
            yield self


def positions(disk: Disk, *calls: tuple[str, str]) -> list[int]:
    """Where each of these calls comes first after the one before it; ValueError where one does not."""
    found = [-1]
    for call in calls:
        found.append(disk.calls.index(call, found[-1] + 1))
    return found[1:]


def test_a_file_gets_its_name_after_its_bytes_and_the_name_is_synced(tmp_path: Path) -> None:
    path, partial = str(tmp_path / "a"), str(tmp_path / ".a.partial")
    with Disk().under() as disk:
        durable.write_once(Path(path), b"bytes")
    assert positions(disk, ("write", partial), ("fsync", partial), ("rename", partial), ("fsync", str(tmp_path)))
    with pytest.raises(FileExistsError):
        durable.write_once(Path(path), b"others")
    assert Path(path).read_bytes() == b"bytes"


def test_a_new_directory_is_synced_in_each_one_above(tmp_path: Path) -> None:
    with Disk().under() as disk:
        durable.make_directories(tmp_path / "a/b")
    a = str(tmp_path / "a")
    assert positions(disk, ("mkdir", a), ("fsync", str(tmp_path)), ("mkdir", f"{a}/b"), ("fsync", a))
    with pytest.raises(FileExistsError):
        durable.make_directories(tmp_path / "a/b")


def test_a_cache_entry_gets_its_name_after_its_file_system_was_synced(tmp_path: Path) -> None:
    def make(partial: Path) -> None:
        partial.mkdir()
        (partial / "file").write_bytes(b"x")

    with Disk().under() as disk:
        cached(tmp_path / "entry", make)
    partial = str(tmp_path / ".entry.partial")
    assert positions(disk, ("mkdir", partial), ("syncfs", partial), ("rename", partial), ("fsync", str(tmp_path)))


def test_a_cache_entry_that_cannot_be_synced_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "_sync_file_system", broken)
    with pytest.raises(OSError, match="Input/output"):
        cached(tmp_path / "entry", lambda partial: partial.mkdir())
    assert [path.name for path in tmp_path.iterdir()] == [".entry.lock"]


def test_what_a_killed_maker_left_is_removed_and_what_is_being_made_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path))
    left = [tmp_path / "images/.bootstrap-0123.partial", tmp_path / "images/0123/.disk-1.ext4.partial"]
    strangers = tmp_path / "images/.stranger.partial"  # nobody says by a lock that he makes it here
    being_made: list[list[str]] = []

    def make(partial: Path) -> None:
        partial.mkdir()
        being_made.append(remove_forsaken(LocalHost()))
        assert partial.is_dir()

    for place in (left[0] / "rootfs/proc", left[1].parent, strangers):
        place.mkdir(parents=True)
    left[1].write_bytes(b"half a disk")
    for path in left:
        path.with_name(path.name.replace(".partial", ".lock")).touch()
    cached(tmp_path / "images/4567", make)
    assert being_made == [[f"what a killed virtoll was making: {path}" for path in left]]
    assert [path.exists() for path in (*left, strangers)] == [False, False, True]
    assert remove_forsaken(LocalHost()) == []


def test_syncfs_is_really_asked(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    durable.rename_tree(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").is_dir()
    with pytest.raises(OSError, match="Bad file descriptor"):
        durable._sync_file_system(-1)


def test_a_run_is_one_only_when_all_of_it_is_on_the_disk(tmp_path: Path) -> None:
    root = tmp_path / "runs/r"
    with Disk().under() as disk:
        new_run(root)
    begun = root.with_name(".r.partial")
    files = ("study.json", "environment.json", "trials.jsonl", "plan.json")
    others = [("rename", str(begun / f".{name}.partial")) for name in files]
    last = [("fsync", str(begun)), ("rename", str(begun)), ("fsync", str(root.parent))]
    assert positions(disk, ("mkdir", str(begun)), *others, *last)
    assert disk.calls[-1] == ("fsync", str(root.parent))


def test_what_a_killed_virtoll_had_begun_of_a_run_stands_in_nobodys_way(tmp_path: Path) -> None:
    begun = tmp_path / ".r.partial"
    (begun / "trials").mkdir(parents=True)
    (begun / "study.json").write_text("half")
    assert new_run(tmp_path / "r").plan.trials
    assert not begun.exists()


def test_a_run_that_cannot_be_begun_is_not_said_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Not a directory") as caught:
        new_run(tmp_path / "file" / "below")
    assert caught.value.problem.remedy.endswith("name another --out that can be written to; nothing was measured")


def test_a_trial_is_sealed_after_its_files_are_on_the_disk(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    with Disk().under() as disk:
        execute(run, FakeExperiment(TOLLS), Quiet())
    for trial in IDS:
        directory = str(run.path / "trials" / trial)
        before = positions(
            disk,
            ("fsync", f"{directory}/latency.parquet"),
            ("fsync", directory),
            ("fsync", str(run.path / "trials")),
            ("write", str(run.path / "trials.jsonl")),
            ("fsync", str(run.path / "trials.jsonl")),
        )
        assert before


@pytest.mark.parametrize("short", [False, True], ids=["nothing-more", "short-writes"])
def test_a_full_disk_at_any_write_loses_no_sealed_trial_and_the_run_goes_on(tmp_path: Path, short: bool) -> None:
    faults, ended = 0, False
    while not ended:
        faults += 7 if short else 1  # the many calls of short writes are much alike
        path = tmp_path / str(faults)
        with Disk(fail_at=faults, short=short).under() as disk:
            ended = begun(path)
        assert ended == (len(disk.calls) < faults), f"fault {faults} was swallowed: {disk.calls[faults - 1 :]}"
        goes_on(path)
    assert faults > 60, "four trials write, sync and name a few files each"


def begun(path: Path) -> bool:
    """Begin a run; whether it came to its end, rather than to that of the disk."""
    try:
        run = new_run(path)
        with run.writing():
            return execute(run, FakeExperiment(TOLLS), Quiet())
    except StoreError as error:
        if "No space left" not in str(error):
            raise
        return False


def goes_on(path: Path) -> None:
    """A run begun, and ended by a fault anywhere, is gone on with; what was sealed stays as it was, byte for byte."""
    if not path.exists():
        new_run(path)
    run = RunDirectory(path)
    log = path / "trials.jsonl"
    sealed = log.read_bytes()
    sealed = sealed[: sealed.rfind(b"\n") + 1]
    whole = {
        file: file.read_bytes() for record in run.records() for file in (path / "trials" / record.trial.id).iterdir()
    }
    with run.writing():
        assert execute(run, FakeExperiment(TOLLS), Quiet())
    assert log.read_bytes().startswith(sealed)
    assert whole == {file: file.read_bytes() for file in whole}
    records = run.records()
    assert [r.trial.id.rstrip("r") for r in records if r.status == "valid"] == IDS
    assert all(r.reason.startswith(INTERRUPTED) for r in records if r.status != "valid")
    assert run.pending() == []


def test_a_line_that_could_not_be_synced_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    for fault in (1, 2):  # the write, the fsync
        with Disk(fail_at=fault, short=True).under(), pytest.raises(OSError, match="No space"):
            durable.append(path, b"two\n")
        assert path.read_bytes() == b"one\n"
    durable.append(path, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_run_without_its_trials_is_told_and_not_begun_anew(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    execute(run, FakeExperiment(TOLLS), Quiet())
    (run.path / "trials.jsonl").unlink()
    with pytest.raises(StoreError, match="No such file"), run.writing():
        pass
    assert not (run.path / "trials.jsonl").exists()


def test_what_a_bug_says_is_kept_or_the_study_stops(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")

    def spoil(trial: Any) -> None:
        (run.path / "trials" / trial.id / "log.txt").mkdir()
        raise ZeroDivisionError

    with pytest.raises(StoreError, match="Is a directory"):
        execute(run, FakeExperiment(TOLLS, before=spoil), Quiet())
