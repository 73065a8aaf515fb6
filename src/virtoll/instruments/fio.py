"""fio, the flexible I/O tester, in the place of the probes of the disk.

One run of fio is one window. Where a pass has a beginning or an end of its own (all that is written, and what is read
from a cache that was dropped) it is one whole pass, as ours are, however long it takes. Rereading and reading at random
are alike all along, and run for as long as a window of ours. fio lays a file out by itself, and that is not part of its
time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, ClassVar

from virtoll.instruments.base import Instrument
from virtoll.loads import outside
from virtoll.probes.base import Place, ProbeError, ProbeResult
from virtoll.probes.disk import DiskSettings
from virtoll.probes.disk_sync import DiskSyncSettings
from virtoll.record.model import Check, Window

_TIME_LIMIT_S = 600.0  # of one window
_ENGINES = {"sync": "psync", "uring": "io_uring"}
_PATTERNS = {
    "write": "write",
    "rewrite": "write",
    "read": "read",
    "reread": "read",
    "random-read": "randread",
    "random-write": "randwrite",
}
# What fio says, and the kind of failure that is: as the probes call it.
_KINDS = {
    "does not support direct": "direct-io",
    "No space left on device": "space",
    "Operation not permitted": "refused",
    "Function not implemented": "refused",
}


class Fio(Instrument):
    """Debian's fio, with the records, file, order and flushing of the probe."""

    name: ClassVar[str] = "fio"
    summary: ClassVar[str] = "a second opinion on disk and disk-sync: by fio"
    packages: ClassVar[tuple[str, ...]] = ("fio",)

    def stands_for(self, probe: str, settings: Any) -> bool:  # noqa: ARG002
        """Whatever the probes of the disk do, fio can be told to."""
        return probe in ("disk", "disk-sync")

    def run(self, place: Place, probe: str, settings: Any) -> ProbeResult:
        """One run a window."""
        agent = place.instance.agent
        command = disk_command(settings) if probe == "disk" else sync_command(settings)
        read = disk_values if probe == "disk" else sync_values
        windows: list[Window] = []
        reports: list[dict[str, Any]] = []
        for _ in range(settings.windows):
            done = agent.run(command, timeout_s=_TIME_LIMIT_S)
            end_ns = time.monotonic_ns() + agent.clock().offset_ns
            report = parse(done.returncode, done.stdout, done.stderr)
            windows.append(measured(report, read, end_ns))
            reports.append(report)
        version, whole = told(reports)
        return ProbeResult(instrument=version, windows=windows, facts={"command": command}, checks=[whole])


def disk_command(settings: DiskSettings) -> list[str]:
    """fio's command line for a window of probe ``disk``."""
    writes = settings.operation.endswith("write")
    cached = settings.direct == "no"
    options = {
        "rw": _PATTERNS[settings.operation],
        "ioengine": _ENGINES[settings.engine],
        "iodepth": settings.depth,
        "direct": int(not cached),
        "overwrite": int(writes and settings.operation != "write"),  # lay the file out first
        "end_fsync": int(writes and settings.sync == "end"),
        "invalidate": int(settings.operation == "read" or not cached),  # else the cache is as the layout left it
        "pre_read": int(cached and settings.operation in ("reread", "random-read")),
    }
    one_pass = settings.operation not in ("reread", "random-read")
    return _command(settings, options | ({} if one_pass else _timed(settings)))


def sync_command(settings: DiskSyncSettings) -> list[str]:
    """fio's command line for a window of probe ``disk-sync``; appending ends with the file, if that is sooner."""
    overwrites = settings.operation == "overwrite"
    options = {"rw": "write", "ioengine": "psync", "overwrite": int(overwrites), settings.call: 1}
    return _command(settings, options | _timed(settings) | {"time_based": int(overwrites)})


def _timed(settings: DiskSettings | DiskSyncSettings) -> dict[str, int | str]:
    return {"runtime": f"{settings.time_ns // 1000}us", "time_based": 1}


def _command(settings: DiskSettings | DiskSyncSettings, options: dict[str, Any]) -> list[str]:
    always = {
        "name": "virtoll",
        "filename": f"{settings.directory}/.virtoll-fio",
        "bs": settings.record_bytes,
        "size": settings.file_bytes,
        "fallocate": "none",  # else the file's blocks are there before it is written
        "unlink": 1,
        "lat_percentiles": 1,
        "clat_percentiles": 0,
        "percentile_list": "50:99",
        "output-format": "json",
    }
    return ["fio", *(f"--{key}={value}" for key, value in (always | options).items())]


def parse(returncode: int, stdout: bytes, stderr: bytes) -> dict[str, Any]:
    """fio's report; ProbeError with what it said where it gave up."""
    text = stdout.decode(errors="replace")
    said = stderr.decode(errors="replace") + text[: text.find("{")]  # notes come before the report
    try:
        report: dict[str, Any] = json.loads(text[text.index("{") :])
        error = report["jobs"][0]["error"]
    except (LookupError, RecursionError, TypeError, ValueError):
        report, error = {}, returncode or 1
    if error == 0 and returncode == 0:
        return report
    kinds = [kind for words, kind in _KINDS.items() if words in said]
    raise ProbeError(
        f"fio gave up with exit code {returncode}: {' '.join(said.split())[-500:] or 'it said nothing'}",
        kind=kinds[0] if kinds else "system",
        where="instrument fio",
        remedy="choose settings that the probe itself can measure here",
    )


def disk_values(report: dict[str, Any]) -> dict[str, float]:
    """The quantities of probe ``disk``."""
    side = _side(report)
    percentiles = side["lat_ns"]["percentile"]
    return {
        "throughput_mb_per_s": side["io_bytes"] / side["runtime"] / 1e3,
        "operations_per_s": side["total_ios"] / side["runtime"] * 1e3,
        "latency_us": side["lat_ns"]["mean"] / 1e3,
        "latency_p50_us": percentiles["50.000000"] / 1e3,
        "latency_p99_us": percentiles["99.000000"] / 1e3,
    }


def sync_values(report: dict[str, Any]) -> dict[str, float]:
    """The quantities of probe ``disk-sync``."""
    latency = report["jobs"][0]["sync"]["lat_ns"]
    return {
        "sync_us": latency["mean"] / 1e3,
        "sync_p50_us": latency["percentile"]["50.000000"] / 1e3,
        "sync_p99_us": latency["percentile"]["99.000000"] / 1e3,
        "syncs_per_s": latency["N"] / _side(report)["runtime"] * 1e3,
    }


def _side(report: dict[str, Any]) -> dict[str, Any]:
    """What the job did: it either read or wrote. Its time is in whole milliseconds."""
    job = report["jobs"][0]
    side: dict[str, Any] = max(job["read"], job["write"], key=lambda each: each["io_bytes"])
    if side["runtime"] == 0:
        raise ProbeError(
            "fio was done within a millisecond, which is its clock",
            kind="system",
            where="instrument fio",
            remedy="choose a larger file",
        )
    return side


def measured(report: dict[str, Any], read: Callable[[dict[str, Any]], dict[str, float]], end_ns: int) -> Window:
    """The window of a run that ended then. TrialError where the report is not as fio's are."""
    with outside.reading("fio", json.dumps(report)):
        side, values = _side(report), read(report)
        duration_ns = outside.span_ns(side["runtime"] / 1e3)
        outside.expect_finite({**values, "records": side["total_ios"]})
        return Window(
            start_ns=end_ns - duration_ns, duration_ns=duration_ns, work=int(side["total_ios"]), values=values
        )


def told(reports: list[dict[str, Any]]) -> tuple[str, Check]:
    """Its name with its version, and whether all bytes were moved."""
    with outside.reading("fio", json.dumps(reports)):
        return str(reports[0]["fio version"])[:100], _whole(reports)


def _whole(reports: list[dict[str, Any]]) -> Check:
    short = sum(_side(report)["short_ios"] for report in reports)
    return Check(name="bytes moved", passed=short == 0, detail=f"{short} records were moved in part")
