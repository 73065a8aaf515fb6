"""The disk probes with the real agent on this machine: what they measure, what they refuse, what they leave behind."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from network_place import own_checks
from virtoll.binaries import binary
from virtoll.probes.base import Probe, ProbeError, ProbeResult, probes
from virtoll.probes.disk import Disk, DiskSettings
from virtoll.probes.disk_sync import DiskSync, DiskSyncSettings
from virtoll.probes.native import arguments, parse
from virtoll.study.limits import Limits

KIB, MIB = 1024, 1024**2
BRIEF: dict[str, Any] = {"windows": 2, "time_ns": 2_000_000}
SMALL: dict[str, Any] = {**BRIEF, "record_bytes": 4096, "file_bytes": 256 * KIB}
OPERATIONS = get_args(get_type_hints(DiskSettings)["operation"])
LIMITS = Limits(memory_bytes=64 * MIB, disk_bytes=100 * MIB)


def measured(probe: Probe, file_system: str = "") -> ProbeResult:
    """Run a probe here, or with its directory on a file system of its own: ``mount`` is told this."""
    words = [str(binary("virtoll-agent")), *arguments(probe.name, probe.settings)]
    if file_system:
        mount = f"mount {file_system} {probe.settings.directory}"
        words = ["unshare", "--mount", "sh", "-c", f"{mount} && exec {shlex.join(words)}"]
    done = subprocess.run(words, capture_output=True, check=False)
    return parse(probe.name, done.returncode, done.stdout, done.stderr)


def assert_sound(probe: Probe, result: ProbeResult) -> None:
    """It measured all its quantities, and its own work proved right."""
    lies_in_memory = result.facts["file_system"] == "tmpfs"  # whose pages are the file, and are not forgotten
    broken = {check.name for check in own_checks(result) if not check.passed}
    assert broken <= ({"the page cache had forgotten the file"} if lies_in_memory else set())
    assert "contents of the file" in {check.name for check in result.checks}
    assert len(result.windows) == probe.settings.windows
    latencies = {key for key in probe.quantities if key.startswith("latency")}
    for window in result.windows:
        # Of a window in which no record was timed, as on a machine that stalls, there is no latency.
        assert set(probe.quantities) - latencies <= set(window.values) <= set(probe.quantities)
        assert all(value > 0 for value in window.values.values())
    assert result.histogram is not None


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_measures_and_proves_itself(operation: Any, tmp_path: Path) -> None:
    probe = Disk(DiskSettings(operation=operation, directory=str(tmp_path), **SMALL))
    result = measured(probe)
    assert_sound(probe, result)
    window = result.windows[0]
    unit_bytes = 4096 if operation == "random-read" else 256 * KIB  # a record, or a whole pass
    assert window.values["throughput_mb_per_s"] == pytest.approx(window.work * unit_bytes / window.duration_ns * 1e3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_past_the_cache_and_many_at_a_time(operation: Any, tmp_path: Path) -> None:
    settings = DiskSettings(operation=operation, directory=str(tmp_path), direct="yes", **SMALL)
    probe = Disk(replace(settings, engine="uring", depth=4))
    try:
        result = measured(probe)
    except ProbeError as error:
        if error.kind not in ("direct-io", "refused"):
            raise
        pytest.skip(str(error))
    assert_sound(probe, result)
    assert result.facts["cached_share_most"] == 0


@pytest.mark.parametrize("operation", ["overwrite", "append"])
def test_each_way_of_syncing_measures_and_proves_itself(operation: Any, tmp_path: Path) -> None:
    probe = DiskSync(DiskSyncSettings(operation=operation, directory=str(tmp_path), **SMALL))
    result = measured(probe)
    if operation == "overwrite":  # how this machine's file system syncs is not the probe's to answer for
        result = replace(result, checks=[check for check in result.checks if check.name != "syncs reached the disk"])
    assert_sound(probe, result)


@pytest.mark.machine
def test_a_full_disk_is_a_failure_of_its_kind(tmp_path: Path) -> None:
    for operation in ("write", "rewrite"):
        settings = DiskSettings(operation=operation, directory=str(tmp_path), **{**SMALL, "file_bytes": 4 * MIB})
        with pytest.raises(ProbeError, match="the disk is full") as caught:
            measured(Disk(replace(settings, time_ns=10**9)), "-t tmpfs -o size=1m none")
        assert caught.value.kind == "space"
    append = DiskSyncSettings(operation="append", directory=str(tmp_path), **{**SMALL, "file_bytes": 4 * MIB})
    with pytest.raises(ProbeError, match="the disk is full"):
        measured(DiskSync(replace(append, time_ns=10**9)), "-t tmpfs -o size=1m none")


@pytest.mark.machine
@pytest.mark.parametrize("file_system", ["ramfs", "tmpfs"])
def test_a_file_system_that_does_not_obey_o_direct_is_told(file_system: str, tmp_path: Path) -> None:
    """ramfs refuses to open; a recent tmpfs opens, and keeps the data in the page cache all the same."""
    probe = Disk(DiskSettings(directory=str(tmp_path), direct="yes", **SMALL))
    with pytest.raises(ProbeError) as caught:
        measured(probe, f"-t {file_system} none")
    assert caught.value.kind == "direct-io"


def test_nothing_is_left_of_a_probe_that_is_killed(tmp_path: Path) -> None:
    settings = DiskSettings(operation="rewrite", directory=str(tmp_path), **{**SMALL, "time_ns": 3600 * 10**9})
    words = [str(binary("virtoll-agent")), *arguments("disk", settings)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 600
        while not has_a_nameless_file(process.pid, tmp_path) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert has_a_nameless_file(process.pid, tmp_path)
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def has_a_nameless_file(pid: int, directory: Path) -> bool:
    """Whether a process holds a file in this directory that has been unlinked."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            links.append(str(entry.readlink()))
    return any(link.startswith(str(directory)) and link.endswith("(deleted)") for link in links)


def test_a_missing_directory_is_told() -> None:
    with pytest.raises(ProbeError, match="No such file"):
        measured(Disk(DiskSettings(directory="/nowhere", **SMALL)))


def told(probe: Probe) -> list[str]:
    """What is refused beforehand."""
    return [f"{problem.what}; {problem.remedy}" for problem in probe.check(LIMITS)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"file_bytes": 200 * MIB}, "the largest that fits is 100 MiB"),
        ({"file_bytes": 100 * MIB, "record_bytes": 16 * MIB}, "no whole number of records"),
        ({"record_bytes": 3000}, "no power of two"),
        ({"record_bytes": 512, "direct": "yes"}, "at least 4 KiB"),
        ({"depth": 2}, 'engine = "uring"'),
        ({"depth": 64, "engine": "uring", "file_bytes": MIB}, "fewer than 64 records"),
        ({"depth": 64, "engine": "uring", "record_bytes": MIB}, "the greatest depth that fits is 29"),
    ],
)
def test_what_cannot_be_measured_is_refused_beforehand(settings: dict[str, Any], expected: str) -> None:
    assert any(expected in text for text in told(Disk(DiskSettings(**settings)))), told(Disk(DiskSettings(**settings)))


def test_what_fits_is_not_refused() -> None:
    assert told(Disk()) == []
    assert told(DiskSync()) == []
    assert told(Disk(DiskSettings(file_bytes=100 * MIB, direct="yes", engine="uring", depth=64))) == []
    assert any("does not fit a disk" in text for text in told(DiskSync(DiskSyncSettings(file_bytes=128 * MIB))))


def test_a_disk_that_holds_no_record_is_told_no_file_that_fits() -> None:
    """The largest was said to be one of 0 B, which no study may ask for."""
    problems = Disk(DiskSettings(record_bytes=16 * MIB, file_bytes=64 * MIB)).check(Limits(disk_bytes=8 * MIB))
    assert [problem.remedy for problem in problems] == ["choose smaller records; or raise disk in [limits]"]


def test_they_are_found_by_their_names() -> None:
    assert probes()["disk"] is Disk
    assert probes()["disk-sync"] is DiskSync


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ('{"what": "full", "where": "write", "remedy": "less", "kind": "space"}', "space"),
        ('{"what": "full", "where": "write", "remedy": "less", "kind": ["space"]}', "system"),
        ('{"what": "full"}', "system"),
        ('"full"', "system"),
        ("null", "system"),
    ],
)
def test_a_reason_that_is_none_is_the_probes_own_fault(told: str, kind: str) -> None:
    """What stands inside an instance may say anything."""
    with pytest.raises(ProbeError) as found:
        parse("disk", 1, b'{"error": %s}' % told.encode(), b"")
    assert found.value.kind == kind
    assert found.value.is_own == (kind == "system")
