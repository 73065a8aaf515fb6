"""iperf3 and sockperf: command lines, and parsers against what they really printed (tests/fixtures/instruments)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from network_place import network_place
from virtoll.errors import TrialError
from virtoll.hosts.base import Completed
from virtoll.hosts.local import LocalHost
from virtoll.instruments import iperf3, sockperf
from virtoll.instruments.base import Instrument
from virtoll.loads.outside import Output
from virtoll.probes.base import Place, ProbeError
from virtoll.probes.bulk import Bulk, BulkSettings
from virtoll.probes.round_trip import RoundTrip, RoundTripSettings

FIXTURES = Path(__file__).parent / "fixtures" / "instruments"
END_NS = 10**12


def printed(path: str) -> Output:
    return Output((FIXTURES / path).read_text(), "", END_NS)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with network_place(tmp_path, monkeypatch) as place:
        yield place


def test_iperf3_reports_what_its_receiver_counted() -> None:
    inwards = iperf3.parse(printed("iperf3/tcp_in.json"), 131_072)
    assert inwards.values == {"throughput_mbit_per_s": pytest.approx(15963.128)}
    assert inwards.duration_ns == 1_003_309_000
    assert inwards.start_ns + inwards.duration_ns == END_NS
    outwards = iperf3.parse(printed("iperf3/tcp_out.json"), 131_072)
    assert outwards.values == {"throughput_mbit_per_s": pytest.approx(16190.612)}
    assert iperf3.version(printed("iperf3/tcp_in.json")) == "3.12"


@pytest.mark.parametrize(
    ("name", "arrived", "lost_percent", "seconds"),
    [("udp_in", 86_597, 75.811, 1.000072), ("udp_out", 87_673, 75.658, 1.000021)],
)
def test_iperf3_counts_datagrams_that_arrived(name: str, arrived: int, lost_percent: float, seconds: float) -> None:
    window = iperf3.parse(printed(f"iperf3/{name}.json"), 1470)
    assert window.work == arrived
    assert window.values == {
        "throughput_mbit_per_s": pytest.approx(arrived * 1470 * 8e-6 / seconds, rel=1e-6),
        "packets_per_s": pytest.approx(arrived / seconds, rel=1e-6),
        "lost_percent": pytest.approx(lost_percent, abs=1e-3),
    }


def test_iperf3_that_reached_nobody_is_a_failure_although_it_exits_with_0() -> None:
    with pytest.raises(ProbeError, match="Connection refused") as caught:
        iperf3.parse(printed("iperf3/refused.json"), 1000)
    assert caught.value.kind == "peer"


@pytest.mark.parametrize(
    ("protocol", "p50_us", "received", "seconds"), [("tcp", 18.189, 23_284, 0.550), ("udp", 17.769, 17_134, 0.551)]
)
def test_sockperf_reports_whole_round_trips(protocol: str, p50_us: float, received: int, seconds: float) -> None:
    window = sockperf.parse(printed(f"sockperf/{protocol}.txt"))
    quantiles = {"tcp": (37.439, 23.539), "udp": (38.869, 32.125)}[protocol]
    assert window.values == {
        "round_trip_p50_us": p50_us,
        "round_trip_p99_us": quantiles[0],
        "round_trip_mean_us": quantiles[1],
        "transactions_per_s": pytest.approx(received / seconds),
    }
    assert (window.work, window.duration_ns) == (received, round(seconds * 1e9))
    assert sockperf.version(printed(f"sockperf/{protocol}.txt")) == "3.7"


@pytest.mark.parametrize(
    ("name", "words"), [("refused", "Connection refused"), ("silent", "No messages were received from the server")]
)
def test_sockperf_that_reached_nobody_is_a_failure_although_it_exits_with_0(name: str, words: str) -> None:
    with pytest.raises(ProbeError, match=words) as caught:
        sockperf.parse(printed(f"sockperf/{name}.txt"))
    assert caught.value.kind == "peer"


def test_sockperf_that_does_not_count_what_was_lost_has_not_lost_nothing() -> None:
    printed_so = printed("sockperf/udp.txt")
    assert sockperf.dropped(printed_so) == 0
    assert (
        sockperf.dropped(Output(printed_so.stdout.replace("dropped messages = 0", "dropped messages = 7"), "", 0)) == 7
    )
    with pytest.raises(ProbeError, match="could not be read"):
        sockperf.dropped(Output(printed_so.stdout.replace("dropped messages", "messages dropped"), "", 0))


def test_half_a_round_trip_is_not_taken_for_one() -> None:
    text = printed("sockperf/tcp.txt").stdout.replace("Round trip is", "Latency is")
    with pytest.raises(ProbeError, match="could not be read"):
        sockperf.parse(Output(text, "", END_NS))


def test_an_unreadable_report_is_an_error_that_shows_it() -> None:
    garbage = Output("Segmentation fault", "", END_NS)
    for parse in (sockperf.parse, lambda output: iperf3.parse(output, 1)):
        with pytest.raises(TrialError, match="Segmentation fault"):
            parse(garbage)


def test_commands() -> None:
    tcp = iperf3.command("198.18.3.10", 5210, protocol="tcp", direction="out", size_bytes=131_072, seconds=1)
    assert " ".join(tcp) == "iperf3 -c 198.18.3.10 -p 5210 -J -t 1 -l 131072 -R"
    udp = iperf3.command("198.18.3.10", 5210, protocol="udp", direction="in", size_bytes=64, seconds=2)
    assert " ".join(udp) == "iperf3 -c 198.18.3.10 -p 5210 -J -t 2 -l 64 -u -b 0"
    ping = sockperf.command("198.18.3.10", 5210, "tcp", 14, 1)
    assert " ".join(ping) == "sockperf ping-pong -i 198.18.3.10 -p 5210 --tcp -m 14 -t 1 --full-rtt"
    assert "--tcp" not in sockperf.server(5210, "udp")


def test_who_stands_for_whom() -> None:
    ping, stream = sockperf.Sockperf(), iperf3.Iperf3()
    assert ping.stands_for("round-trip", RoundTripSettings())
    assert not ping.stands_for("round-trip", RoundTripSettings(wait="spin"))
    assert not ping.stands_for("bulk", BulkSettings())
    assert stream.stands_for("bulk", BulkSettings(protocol="udp", direction="out"))
    assert not stream.stands_for("bulk", BulkSettings(protocol="udp", segmentation="yes"))
    assert not stream.stands_for("round-trip", RoundTripSettings())


@pytest.mark.parametrize("instrument", [sockperf.Sockperf(), iperf3.Iperf3()], ids=["sockperf", "iperf3"])
def test_a_missing_tool_is_a_problem_with_a_remedy(instrument: Instrument, monkeypatch: pytest.MonkeyPatch) -> None:
    host = LocalHost()
    monkeypatch.setattr(host, "run", lambda argv, **_: Completed(tuple(argv), 127, b"", b""))
    (problem,) = instrument.check(host)
    assert instrument.name in problem.what
    assert "apt-get install" in problem.remedy


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize("name", ["sockperf", "iperf3"])
def test_the_real_tool_measures_the_probes_quantities(name: str, protocol: str, place: Place) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    brief: dict[str, Any] = {"windows": 1, "time_ns": 10**9, "protocol": protocol}
    if name == "sockperf":
        result = sockperf.Sockperf().run(place, "round-trip", RoundTripSettings(**brief))
        assert result.notes == ["its messages have 14 B: its header"]
        known = set(RoundTrip.quantities) - {"lost_percent"}
    else:
        result = iperf3.Iperf3().run(place, "bulk", BulkSettings(**brief))
        known = set(Bulk.quantities) if protocol == "udp" else {"throughput_mbit_per_s"}
    assert result.instrument.startswith(f"{name} 3.")
    (window,) = result.windows
    assert set(window.values) == known
