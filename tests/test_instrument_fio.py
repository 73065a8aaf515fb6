"""fio in the place of the disk probes: what fio 3.33 really said, and the tool itself where it is installed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from network_place import network_place
from virtoll.instruments.base import instruments
from virtoll.instruments.fio import Fio, disk_command, disk_values, parse, sync_command, sync_values
from virtoll.probes.base import ProbeError, Timed
from virtoll.probes.disk import Disk, DiskSettings
from virtoll.probes.disk_sync import DiskSync, DiskSyncSettings

FIXTURES = Path(__file__).parent / "fixtures" / "instruments" / "fio"


def said(name: str, returncode: int = 0) -> dict[str, Any]:
    stderr = FIXTURES / f"{name}.stderr"
    output = (FIXTURES / f"{name}.stdout").read_bytes()
    return parse(returncode, output, stderr.read_bytes() if stderr.exists() else b"")


def test_a_pass_of_writing_is_read() -> None:
    report = said("write")
    side = report["jobs"][0]["write"]
    values = disk_values(report)
    assert set(values) == set(Disk.quantities)
    assert side["io_bytes"] == 64 * 1024**2
    assert values["throughput_mb_per_s"] == pytest.approx(side["bw_bytes"] / 1e6, rel=1e-3)
    assert values["operations_per_s"] == pytest.approx(side["iops"], rel=1e-6)
    assert values["latency_p50_us"] <= values["latency_p99_us"]


def test_what_was_read_is_told_from_what_was_written() -> None:
    report = said("random-read-uring")
    assert disk_values(report)["latency_us"] == report["jobs"][0]["read"]["lat_ns"]["mean"] / 1e3


def test_the_time_of_a_sync_is_its_own() -> None:
    report = said("sync")
    values = sync_values(report)
    assert set(values) == set(DiskSync.quantities)
    write = report["jobs"][0]["write"]
    assert values["syncs_per_s"] == pytest.approx(write["iops"], rel=0.01)
    assert values["sync_us"] > write["lat_ns"]["mean"] / 1e3


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("full", "space", "No space left on device"),
        ("no-direct-io", "direct-io", "does not support direct"),
        ("no-uring", "refused", "io_queue_init"),
    ],
)
def test_failures_have_the_probes_kinds(name: str, kind: str, words: str) -> None:
    with pytest.raises(ProbeError, match=words) as caught:
        said(name, returncode=1)
    assert caught.value.kind == kind


def test_what_is_no_report_is_told() -> None:
    for output in (b"", b"fio: something else", b"{}", b'{"jobs": []}'):
        with pytest.raises(ProbeError, match="gave up"):
            parse(0, output, b"")


@pytest.mark.parametrize(
    ("settings", "there", "not_there"),
    [
        (DiskSettings(), {"--rw=write", "--overwrite=0", "--end_fsync=1"}, {"--time_based=1"}),
        (DiskSettings(operation="rewrite"), {"--overwrite=1", "--end_fsync=1"}, {"--time_based=1"}),
        (DiskSettings(operation="rewrite", sync="none"), {"--overwrite=1"}, {"--end_fsync=1", "--time_based=1"}),
        (DiskSettings(operation="read"), {"--rw=read", "--invalidate=1", "--pre_read=0"}, {"--time_based=1"}),
        (DiskSettings(operation="reread"), {"--invalidate=0", "--pre_read=1", "--time_based=1"}, set()),
        (
            DiskSettings(operation="random-read", direct="yes", engine="uring", depth=16),
            {"--rw=randread", "--direct=1", "--ioengine=io_uring", "--iodepth=16", "--runtime=500000us"},
            {"--pre_read=1"},
        ),
        (DiskSettings(operation="random-write"), {"--rw=randwrite", "--overwrite=1"}, {"--time_based=1"}),
    ],
)
def test_fio_is_told_what_the_probe_does(settings: DiskSettings, there: set[str], not_there: set[str]) -> None:
    command = set(disk_command(settings))
    assert there <= command
    assert not not_there & command
    assert {"--bs=65536", "--size=67108864", "--filename=/var/tmp/.virtoll-fio", "--unlink=1"} <= command


def test_fio_is_told_how_to_sync() -> None:
    append = sync_command(DiskSyncSettings())
    assert {"--fdatasync=1", "--overwrite=0", "--time_based=0", "--runtime=500000us"} <= set(append)
    overwrite = sync_command(DiskSyncSettings(call="fsync", operation="overwrite"))
    assert {"--fsync=1", "--overwrite=1", "--time_based=1"} <= set(overwrite)


def test_it_stands_for_the_disk_alone() -> None:
    fio = instruments()["fio"]()
    assert fio.stands_for("disk", DiskSettings())
    assert fio.stands_for("disk-sync", DiskSyncSettings())
    assert not fio.stands_for("clock", Timed())


@pytest.mark.skipif(shutil.which("fio") is None, reason="apt-get install fio")
def test_it_measures_the_same_quantities_window_for_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where: dict[str, Any] = {"windows": 2, "time_ns": 500_000_000, "directory": str(tmp_path / "work")}
    (tmp_path / "work").mkdir()
    with network_place(tmp_path, monkeypatch) as place:
        disk = Fio().run(place, "disk", DiskSettings(operation="reread", file_bytes=2**20, **where))
        sync = Fio().run(place, "disk-sync", DiskSyncSettings(file_bytes=2**20, **where))
    assert disk.instrument.startswith("fio-")
    assert [set(window.values) for window in disk.windows] == [set(Disk.quantities)] * 2
    assert [set(window.values) for window in sync.windows] == [set(DiskSync.quantities)] * 2
    assert all(check.passed for check in [*disk.checks, *sync.checks])
    assert list((tmp_path / "work").iterdir()) == []
