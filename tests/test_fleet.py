"""One study over many hosts: from the command line to the report, on loopback, with fakes for labs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from virtoll.run import environment
from yard import Yard, environment_here

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    made = Yard(tmp_path, monkeypatch)
    monkeypatch.setattr(environment, "describe", lambda *_, **__: environment_here.found)
    try:
        yield made
    finally:
        made.end()


def test_every_host_runs_whole_blocks_and_the_record_names_it(yard: Yard) -> None:
    yard.start("node1", "node2", "node3")
    assert yard.run() == 0
    directory = yard.run_directory
    records = directory.records()
    assert len(records) == 3 * 9
    assert {record.status for record in records} == {"valid"}
    hosts = {record.trial.block: record.trial.host for record in records}
    assert sorted(hosts.values()) == ["node1", "node1", "node1", "node2", "node2", "node2", "node3", "node3", "node3"]
    for host in ("node1", "node2", "node3"):
        assert directory.environment_of(host).comparable["machine"] == {"cpu_model": "fake"}
    assert all((yard.out / "trials" / record.trial.id / "latency.parquet").is_file() for record in records)
