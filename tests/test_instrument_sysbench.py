"""sysbench in the place of the memory probe: what it really printed, and the tool itself where it is installed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from network_place import network_place
from virtoll.errors import TrialError
from virtoll.instruments.sysbench import Sysbench, command, named, parse, window
from virtoll.probes.base import ProbeError
from virtoll.probes.memory import MIB, Memory, MemorySettings
from virtoll.probes.stream import StreamSettings

FIXTURES = Path(__file__).parent / "fixtures" / "instruments" / "sysbench"


def printed(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text()


def settings(**others: Any) -> MemorySettings:
    return MemorySettings(**{"unit": "integer", "block_bytes": 64 * MIB, **others})


def test_a_reading_is_blocks_rate_and_time() -> None:
    reading = parse(printed("read"))
    assert (reading.blocks, reading.mib_per_s, reading.duration_ns) == (258, 16379.72, 1_007_300_000)
    assert named(printed("version")) == "sysbench 1.0.20"


def test_its_mebibytes_become_the_probes_megabytes() -> None:
    made = window(parse(printed("read")), end_ns=2_000_000_000)
    assert made.values["bandwidth_mb_per_s"] == pytest.approx(16379.72 * 1.048576)
    assert (made.start_ns, made.duration_ns) == (992_700_000, 1_007_300_000)


def test_what_is_no_report_is_told() -> None:
    for text in ("", printed("refused"), printed("version")):
        with pytest.raises(TrialError, match="could not be read"):
            parse(text)
    with pytest.raises(TrialError, match="could not be read"):
        named("WARNING: no version")


def test_it_stands_only_for_what_its_loop_can_do() -> None:
    tool = Sysbench()
    assert tool.stands_for("memory", settings())
    assert tool.stands_for("memory", settings(block_bytes=MIB))
    assert tool.stands_for("memory", settings(operation="write"))
    assert not tool.stands_for("memory", settings(operation="write", block_bytes=MIB))
    assert not tool.stands_for("memory", settings(block_bytes=1024))
    assert not tool.stands_for("memory", settings(block_bytes=3 * MIB))
    assert not tool.stands_for("memory", settings(unit="float"))
    assert not tool.stands_for("memory", settings(pages="huge"))
    assert not tool.stands_for("stream", StreamSettings())


def test_the_command_says_what_the_probe_does() -> None:
    argv = command(settings(operation="write"), 2, 3)
    assert {"--threads=2", "--time=3", "--memory-oper=write", f"--memory-block-size={64 * MIB}"} <= set(argv)


@pytest.mark.skipif(shutil.which("sysbench") is None, reason="apt-get install sysbench")
def test_it_measures_memory_window_for_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with network_place(tmp_path, monkeypatch) as place:
        result = Sysbench().run(place, "memory", settings(windows=1, threads=1, block_bytes=MIB))
        with pytest.raises(ProbeError, match="gave up with exit 1"):
            Sysbench().run(place, "memory", settings(windows=1, block_bytes=3000))
    (made,) = result.windows
    assert result.instrument.startswith("sysbench ")
    assert set(made.values) == set(Memory.quantities)
    assert made.values[Memory.headline] > 0
    assert made.work > 0
