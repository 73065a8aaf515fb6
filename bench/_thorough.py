"""Makes a made-up run as thorough as a real one of the full proxy study: what a Docker trial of 20 s leaves behind.

tests/synthetic.py writes what an analysis reads; a real record has a dozen checks and phases and a page of facts, a
real monitor writes every counter ten times a second, and the generator logs each request.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from virtoll.record.model import Check, Phase, TrialRecord
from virtoll.record.store import RunDirectory
from virtoll.record.tables import packed, requests_table

TICKS = 200  # 20 s at 10 Hz
_CGROUP = (
    *("cpu.usage_ns", "cpu.user_ns", "cpu.system_ns", "cpu.wait_ns", "context_switches", "pids.current"),
    *("memory.usage_bytes", "memory.resident_bytes", "memory.cache_bytes", "io.read_bytes", "io.write_bytes"),
)
_MACHINE = (
    *("cpu.usage_ns", "cpu.user_ns", "cpu.system_ns", "cpu.idle_ns", "cpu.steal_ns", "context_switches"),
    *("memory.total_bytes", "memory.available_bytes", "memory.rss_bytes", "memory.cache_bytes"),
    *("io.read_bytes", "io.write_bytes"),
    *(f"psi.{what}.{share}_us" for what in ("cpu", "memory", "io") for share in ("some", "full")),
)
_NET = ("net.rx_bytes", "net.rx_packets", "net.tx_bytes", "net.tx_packets")
OUTSIDE = (
    *((source, name) for source in ("instance", "payload", "helpers", "generator", "origin") for name in _CGROUP),
    *(("instance", name) for name in _NET),
    *(("host", name) for name in _MACHINE),
)
INSIDE = tuple(("inside", name) for name in (*_MACHINE, *_NET))
SAMPLES = TICKS * (len(OUTSIDE) + len(INSIDE))  # of one trial
_CHECKS = {
    "answered correctly before": "as it should",
    "the wiring lost nothing": "no drops in the lab's links",
    "requests were answered": "10000 of 10000 completed; none failed",
    "no sample was dropped": f"{TICKS * len(OUTSIDE)} values outside, {TICKS * len(INSIDE)} inside, 0 ticks late",
    "the clock held": "moved 3.01 us in the window, seen to within 141 us",
    "the CPU limit held": "0.98 of 1 CPU used",
    "the instance lived to the end": "docker asked after the window",
    "the CPU limit bites": "2 busy threads got 0.99 CPU",
    "the disk limit bites": "1280 MiB asked for, 1025 MiB got: No space left on device",
    "the limit of processes bites": "640 processes asked for, 510 got: Resource temporarily unavailable",
    "the memory limit bites": "320 MiB asked for, 254 MiB got: killed",
}
_FACTS = {
    "docker": {"Engine": "20.10.24+dfsg1", "containerd": "1.6.20~ds1", "runc": "1.1.5+ds1", "docker-init": "0.19.0"},
    "dockerd": [f"--option-{number}=/var/cache/virtoll/docker/{number}" for number in range(9)],
    "container": {
        "Image": "virtoll:b7588660340e",
        "Cmd": ["/virtoll/agent", "serve"],
        "HostConfig": {f"Setting{number}": number for number in range(12)},
    },
    "disk_limit": "enforced: limits.disk are free on the writable layer's own disk (ext4, no journal, loop device)",
    "unreadable": {f"origin.{name}": f"/sys/fs/cgroup/{name}: No such file or directory" for name in _CGROUP},
}


def make_thorough(run: Path) -> None:
    """Give every trial of a synthetic run the record and the files of a real one."""
    rng = np.random.default_rng(1)
    tables = {side: _Samples(pairs, rng) for side, pairs in (("outside", OUTSIDE), ("inside", INSIDE))}
    records = [_thorough(record) for record in RunDirectory(run).records()]
    (run / "trials.jsonl").write_text("".join(record.model_dump_json() + "\n" for record in records))
    for record in records:
        assert record.measured is not None
        window, directory = record.measured.window, run / "trials" / record.trial.id
        for side, samples in tables.items():
            table = samples.table(window.start_ns, window.duration_ns)
            (directory / f"{side}.parquet").write_bytes(packed(table))
        requests = requests_table(*_requests(record.measured.window.duration_ns, rng))
        (directory / "requests.parquet").write_bytes(packed(requests))


def _thorough(record: TrialRecord) -> TrialRecord:
    start_ns = record.phases[0].start_ns
    names = ("session", "start", "verify", "warm-up", "verify", "prove", "prove", "prove", "teardown")
    phases = [Phase(name=name, start_ns=start_ns, duration_ns=10**8) for name in names]
    checks = [Check(name=name, passed=True, detail=detail) for name, detail in _CHECKS.items()]
    more = {
        "phases": [*record.phases, *phases],
        "checks": [*record.checks, *checks],
        "facts": {**record.facts, **_FACTS},
    }
    return record.model_copy(update=more)


def _requests(
    duration_ns: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int16]]:
    start = np.sort(rng.integers(0, max(1, duration_ns), 10_000))
    return start, rng.integers(10**5, 10**7, start.size), np.full(start.size, 200, np.int16)


class _Samples:
    """Samples of every counter at each tick, in the order a monitor writes them: a counter after the other."""

    def __init__(self, pairs: tuple[tuple[str, str], ...], rng: np.random.Generator) -> None:
        sources, counters = zip(*pairs, strict=True)
        self._source = pa.array(np.repeat(sources, TICKS)).dictionary_encode()
        self._counter = pa.array(np.repeat(counters, TICKS)).dictionary_encode()
        # Counters of bytes stay about a level, what is counted grows: 0.9 s of CPU a second, say.
        self._level = np.array([not name.endswith(("_ns", "_us", "switches", "packets")) for name in counters])
        self._noise = rng.normal(1, 0.01, (TICKS, len(pairs)))

    def table(self, start_ns: int, duration_ns: int) -> pa.Table:
        """The samples of a window, from a little before it to a little after."""
        margin_ns = duration_ns // 20 + 1
        t_ns = np.linspace(start_ns - margin_ns, start_ns + duration_ns + margin_ns, TICKS).astype(np.int64)
        grown = 10**9 + (t_ns - t_ns[0])[:, None] * 0.9
        value = np.where(self._level, 9e7 * self._noise, grown).astype(np.int64)
        return pa.table(
            {
                "t_ns": np.tile(t_ns, value.shape[1]),
                "source": self._source,
                "counter": self._counter,
                "value": value.T.ravel(),
            }
        )
