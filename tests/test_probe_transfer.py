"""The FTP transfer over a slice, on platforms; what came is really compared; what cannot be fetched is told."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import contract
import sliced
from virtoll.agent import ExecResult
from virtoll.errors import AgentError
from virtoll.lab.base import Lab
from virtoll.lab.shaping import burst_bytes
from virtoll.probes import transfer
from virtoll.probes.base import Place, ProbeError, Slice
from virtoll.probes.transfer import Transfer, TransferSettings
from virtoll.record.model import Window
from virtoll.study.limits import Limits

SMALL = TransferSettings(file_bytes=1_000_000, windows=2)


LIMITS = replace(contract.LIMITS, disk_bytes=64 * 1024**2)


@pytest.fixture
def place(lab: Lab, tmp_path: Path) -> Iterator[Place]:
    with sliced.place(lab, "native", tmp_path, Transfer.packages, LIMITS) as place:
        yield place


def test_a_file_that_does_not_fit_the_disk_is_refused() -> None:
    assert Transfer().check(Limits()) == []
    (problem,) = Transfer().check(Limits(disk_bytes=10**9))
    assert "1 GB do not fit a disk of 1 GB" in problem.what
    assert "950000000 B" in problem.remedy


def fetched(monkeypatch: pytest.MonkeyPatch, said: str, took_s: float = 2.0) -> Window:
    """A fetch of which curl says so, and which takes so long by the host's clock."""
    now_ns = itertools.count(10**9, round(took_s * 1e9))
    monkeypatch.setattr(transfer, "time", SimpleNamespace(monotonic_ns=lambda: next(now_ns)))
    agent = SimpleNamespace(run=lambda *_, **__: ExecResult(0, said.encode(), b""))
    near = cast("Any", SimpleNamespace(agent=agent, platform="lxc"))
    one = Slice(0, near, near, "198.18.3.10", "198.18.3.11")
    window, _ = Transfer(SMALL)._fetched(one, "digest")
    return window


def account(start_s: object = 0.5, total_s: object = 1.5, received_bytes: object = 999) -> str:
    told = {"time_starttransfer": start_s, "time_total": total_s, "size_download": received_bytes}
    return json.dumps(told)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "curl: out of memory",
        "[]",
        "{}",
        account(start_s=None),
        account(total_s="soon"),
        account(received_bytes=[5]),
        account(start_s=1.5),  # it took no time
        account(start_s=1.6),  # less than none
        account(start_s=-1.0),
        account(total_s=2.1),  # longer than it took
        account(total_s="nan"),
        account(received_bytes=-1),
        account(received_bytes=10**400),
        "[" * 100_000,
    ],
)
def test_an_account_of_a_fetch_that_cannot_be_is_told_with_its_instance(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProbeError) as caught:
        fetched(monkeypatch, said)
    assert caught.value.problem.where == "probe transfer, slice 1, lxc, inside the near instance"


def test_an_account_of_a_fetch_that_can_be_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    window = fetched(monkeypatch, account())
    assert (window.duration_ns, window.work) == (1_500_000_000, 999)
    assert window.values["throughput_mbit_per_s"] == pytest.approx(999 * 8 / 1e6)
    assert fetched(monkeypatch, account(total_s=2.01)).values["session_s"] == 2.01  # a clock inside may be a bit faster


@pytest.mark.machine
@pytest.mark.parametrize("platform", ["lxc", "uml"])
def test_the_channel_is_the_measure_on_every_platform(lab: Lab, platform: str, tmp_path: Path) -> None:
    with sliced.place(lab, platform, tmp_path, Transfer.packages, LIMITS) as place:
        result = Transfer(SMALL).run(place)
    assert result.checks[0].passed, result.checks
    least_s = (SMALL.file_bytes - burst_bytes(sliced.RATE_BIT_PER_S)) * 8 / sliced.RATE_BIT_PER_S
    for window in result.windows:
        assert window.work == SMALL.file_bytes
        # Where curl sees late that data came, its transfer is short (and the check says so), and its session is not.
        assert window.values["session_s"] > least_s
        assert window.values["session_s"] > window.values["transfer_s"] > 0
        # That none is faster than the channel is a check; how much slower is the machine's affair, if it is busy.
        assert window.values["throughput_mbit_per_s"] > 0


@pytest.mark.machine
def test_nothing_of_a_transfer_stays(place: Place) -> None:
    result = Transfer(SMALL).run(place)
    assert result.checks[0].passed, result.checks
    one = place.slices[0]
    assert one.far.agent.run(["ls", "-A", "/srv/ftp"]).stdout == b""
    assert one.near.agent.run(["test", "-e", transfer._RECEIVED]).returncode == 1
    assert Transfer(SMALL).run(place).checks[0].passed  # the port is free again


@pytest.mark.machine
@pytest.mark.parametrize(
    ("harm", "told"), [("printf x >>{0}/file", "1000001 B came"), ("printf x | dd of={0}/file conv=notrunc", "SHA-256")]
)
def test_what_is_not_what_was_sent_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch, harm: str, told: str) -> None:
    monkeypatch.setattr(transfer, "_MAKE", transfer._MAKE + harm.format(transfer._DIRECTORY))
    check = Transfer(SMALL).run(place).checks[0]
    assert check.passed is False
    assert f"fetch 1: {told}" in check.detail


@pytest.mark.machine
def test_a_file_that_is_not_served_is_a_failure_in_the_clients_words(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_MAKE", f"{transfer._MAKE}\nrm {transfer._DIRECTORY}/file")
    with pytest.raises(ProbeError, match=r"exit code 78.*file does not exist") as caught:
        Transfer(SMALL).run(place)
    assert caught.value.kind == "peer"


@pytest.mark.machine
def test_a_full_disk_is_told(place: Place) -> None:
    with pytest.raises(ProbeError, match="No space left") as caught:
        Transfer(TransferSettings(file_bytes=10**9)).run(place)
    assert caught.value.kind == "space"


@pytest.mark.machine
def test_a_far_instance_that_dies_is_no_transfer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_MAKE", "kill -9 $PPID")
    with pytest.raises(AgentError):
        Transfer(SMALL).run(place)


@pytest.mark.machine
def test_the_channel_has_another_rate_for_as_long_as_it_is_asked_for(lab: Lab, place: Place) -> None:
    sliced.assert_shaped(lab)
    slow = Transfer(replace(SMALL, rate_bit_per_s=9_000_000, windows=1)).run(place)
    sliced.assert_shaped(lab)
    usual = Transfer(SMALL).run(place)
    assert [result.checks[0].passed for result in (slow, usual)] == [True] * 2, (slow.checks, usual.checks)
    assert (slow.facts["rate_bit_per_s"], usual.facts["rate_bit_per_s"]) == (9_000_000, sliced.RATE_BIT_PER_S)
    least_s = (SMALL.file_bytes - burst_bytes(9_000_000)) * 8 / 9e6
    assert slow.windows[0].values["session_s"] >= least_s  # whatever else the machine does


def test_a_slower_channel_takes_longer() -> None:
    one = TransferSettings(file_bytes=10**9, windows=3, rate_bit_per_s=10 * 10**6)
    assert one.expected_s == pytest.approx(3 * (800 + 0.5) + 2)
    assert TransferSettings(file_bytes=10**9).expected_s == pytest.approx(3 * (8e9 / 36e6 + 0.5) + 2)
