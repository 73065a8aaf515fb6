"""The network probes with the real agent on both ends, by the loopback; sizes and networks that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import contract
from network_place import network_place, own_checks
from virtoll.binaries import binary
from virtoll.errors import CommandError, TrialError
from virtoll.lab.base import Lab
from virtoll.networks.base import network_modes
from virtoll.offers import Port
from virtoll.probes import peers
from virtoll.probes.base import Place, Probe, ProbeError
from virtoll.probes.bulk import Bulk, BulkSettings
from virtoll.probes.connect import Connect, ConnectSettings
from virtoll.probes.round_trip import RoundTrip, RoundTripSettings
from virtoll.services import daemon
from virtoll.study.limits import Limits
from virtoll.trial.subjects import LOST

# How much is lost on a busy machine's loopback is not the probe's to answer for; that losses fail is tested in Rust.
BRIEF: dict[str, Any] = {"windows": 2, "time_ns": 2_000_000, "patience_ns": 480 * 10**9}
PROBES = [
    RoundTrip(RoundTripSettings(**BRIEF)),
    # Ten in a row that are lost are a peer that is gone: not one that stands still for some seconds.
    RoundTrip(
        RoundTripSettings(
            **BRIEF, protocol="udp", size_bytes=100, wait="spin", lost_after_ns=20 * 10**9, most_lost_percent=100.0
        )
    ),
    Bulk(BulkSettings(**BRIEF)),
    Bulk(BulkSettings(**BRIEF, direction="out", size_bytes=1000)),
    Bulk(BulkSettings(**BRIEF, protocol="udp")),
    Bulk(BulkSettings(**BRIEF, protocol="udp", direction="out", size_bytes=64, segmentation="yes")),
    Connect(ConnectSettings(**BRIEF)),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with network_place(tmp_path, monkeypatch) as place:
        yield place


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: f"{probe.name} {probe.settings}"[:60])
def test_it_measures_what_it_says_and_leaves_no_peer(probe: Probe, place: Place) -> None:
    result = probe.run(place)
    assert result.instrument.startswith("virtoll-agent")
    assert len(result.windows) == 2
    protocol = getattr(probe.settings, "protocol", "tcp")
    keys = {key for key in probe.quantities if protocol == "udp" or key not in ("lost_percent", "packets_per_s")}
    # Of what a stalled machine brings all at once, or not at all, there is no rate and no time to tell.
    always = {"lost_percent", "transactions_per_s"} if isinstance(probe, RoundTrip) else {"lost_percent"}
    for window in result.windows:
        assert keys & always <= set(window.values) <= keys
        assert all(value > 0 for key, value in window.values.items() if key not in always)
        assert window.duration_ns > 0
        assert window.work > 0
    assert all(check.passed for check in own_checks(result)), result.checks
    counts_losses = isinstance(probe, RoundTrip) and protocol == "udp"
    assert any(check.name == LOST for check in result.checks) == counts_losses
    assert not place.instance.agent.listening(peers.PORT)


def test_round_trips_and_connections_are_counted_one_by_one(place: Place) -> None:
    for probe in (PROBES[0], PROBES[-1]):
        result = probe.run(place)
        assert result.histogram is not None
        assert sum(count for _, _, count in result.histogram) == sum(window.work for window in result.windows)


def test_a_run_is_not_given_up_before_it_can_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 minutes it was, after an hour, in each arm anew."""
    limits_s = []

    def noted(_: Any, __: list[str], *, timeout_s: float, **___: Any) -> Any:
        limits_s.append(timeout_s)
        raise CommandError("noted")

    monkeypatch.setattr(peers, "serving", lambda *_: nullcontext())
    monkeypatch.setattr(type(place.client.host), "run", noted)
    with pytest.raises(ProbeError, match="noted"):
        Connect(ConnectSettings(windows=4, time_ns=1200 * 10**9)).run(place)
    assert limits_s == [pytest.approx(3600 + 5400, rel=0.01)]


@pytest.mark.parametrize("probe", [PROBES[0], PROBES[4], PROBES[-1]], ids=lambda probe: probe.name)
def test_a_peer_that_is_gone(probe: Probe, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "serving", lambda *_: nullcontext())
    with pytest.raises(ProbeError, match=f"127.0.0.1:{peers.PORT}") as caught:
        probe.run(place)
    assert caught.value.kind == "peer"


# The peer of a client that is connected to it, however late any of them comes.
_KILLING = """
"$@" &
while kill -0 $! && ! ss -Htn "dport = :{port}" | grep -q ESTAB; do sleep 0.05; done
kill -9 $(ss -Hltnp "sport = :{port}" | grep -o "pid=[0-9]*" | cut -d= -f2)
wait $!
"""


def test_a_peer_that_is_killed_in_the_middle(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, host = place.instance.agent, place.client.host
    run = host.run

    def killing(argv: list[str], **options: Any) -> Any:
        return run(["sh", "-c", _KILLING.format(port=peers.PORT), "sh", *argv], **options)

    monkeypatch.setattr(host, "run", killing)
    with pytest.raises(ProbeError) as caught:
        RoundTrip(RoundTripSettings(time_ns=1200 * 10**9, windows=1)).run(place)
    assert caught.value.kind == "peer"
    assert not agent.listening(peers.PORT)


@pytest.mark.parametrize(
    ("argv", "deadline_s", "told"),
    [
        (["sh", "-c", "echo no room; kill -9 $$"], 600.0, "ended at once by signal 9 .*no room"),
        (["sleep", "600"], 0.1, "did not listen on port"),
    ],
)
def test_a_peer_that_does_not_come_up_is_told_as_one_that_does_not_answer(
    place: Place, monkeypatch: pytest.MonkeyPatch, argv: list[str], deadline_s: float, told: str
) -> None:
    """Beside a neighbour that is its harm. The trial failed, and the blocks in which the peer came up told alone."""
    agent, pids = place.instance.agent, []
    start, spawn = daemon.start, agent.spawn

    def spawned(*words: Any, **options: Any) -> int:
        pids.append(spawn(*words, **options))
        return pids[-1]

    monkeypatch.setattr(daemon, "start", lambda *given, **how: start(*given, **how, deadline_s=deadline_s))
    monkeypatch.setattr(agent, "spawn", spawned)
    with pytest.raises(ProbeError, match=f"(?s){told}") as caught, peers.serving(place, "p", argv, "tcp"):
        raise AssertionError("it did")
    assert (caught.value.kind, caught.value.is_own) == ("peer", False)
    (pid,) = pids
    assert not agent.alive(pid)


def test_a_port_that_is_taken(place: Place) -> None:
    with (
        peers.serving(place, "first", [str(binary("virtoll-agent")), "peer", "--port", str(peers.PORT)], "tcp"),
        pytest.raises(TrialError, match="taken") as caught,
    ):
        PROBES[0].run(place)
    assert not isinstance(caught.value, ProbeError)


@pytest.mark.parametrize(
    ("probe", "remedy"),
    [
        (RoundTrip(RoundTripSettings(protocol="udp", size_bytes=65_508)), "65507 B"),
        (Bulk(BulkSettings(protocol="udp", size_bytes=65_508)), "65507 B"),
        (Bulk(BulkSettings(protocol="udp", size_bytes=15)), "16 B"),
        (Bulk(BulkSettings(segmentation="yes")), "udp"),
    ],
    ids=["round trip", "too large", "too small", "segments"],
)
def test_what_cannot_be_sent_is_refused_beforehand(probe: Probe, remedy: str) -> None:
    (problem,) = probe.check(Limits())
    assert remedy in problem.remedy


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: f"{probe.name} {probe.settings}"[:60])
def test_what_can_be_sent_is_not(probe: Probe) -> None:
    assert probe.check(Limits()) == []
    assert Port(peers.PORT, getattr(probe.settings, "protocol", "tcp")) in probe.ports
    assert probe.headline in probe.quantities


@pytest.mark.machine
@pytest.mark.parametrize("name", network_modes())
def test_a_probe_needs_its_port_or_an_address_of_the_instances_own(name: str, lab: Lab) -> None:
    mode = network_modes()[name]
    contract.skip_unless_there(name, mode.kinds[0])
    with mode().attach(lab, mode.kinds[0], peers.PORTS) as attachment:
        peers.expect_way(attachment, "round-trip", "tcp")
        peers.expect_way(attachment, "round-trip", "udp")
    with mode().attach(lab, mode.kinds[0], (Port(peers.PORT),)) as attachment:
        peers.expect_way(attachment, "round-trip", "tcp")
        if name in ("host", "bridge", "routed", "ipvlan", "macvlan", "venet", "direct"):
            peers.expect_way(attachment, "round-trip", "udp")
            return
        with pytest.raises(ProbeError, match=f"mode '{name}' does not bring {peers.PORT}/udp") as caught:
            peers.expect_way(attachment, "round-trip", "udp")
        assert caught.value.kind == "refused"
