"""The flow and ping probes with real agents at both ends of two slices, by the loopback, and on platforms."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import sliced as platforms_sliced
from network_place import own_ports
from virtoll.binaries import binary
from virtoll.errors import AgentError, Problem
from virtoll.fakes import FAKE_IMAGE
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import Lab
from virtoll.lab.client import Client
from virtoll.networks.base import Attachment
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.stdio import agent_on_stdio
from virtoll.probes import flow, peers, sliced
from virtoll.probes.base import Place, Probe, ProbeError, ProbeResult, Slice
from virtoll.probes.flow import Flow, FlowSettings
from virtoll.probes.fork_bomb import jain
from virtoll.probes.native import arguments
from virtoll.probes.ping import Ping, PingSettings
from virtoll.record.model import Window
from virtoll.services import daemon
from virtoll.study.limits import Limits
from virtoll.study.model import Case
from virtoll.trial.subjects import measured_of

# A machine that runs tests may keep no pace, be late, and lose what its loopback's own queue has no room for. What is
# counted must agree all the same; that every datagram goes at its time is tested by a simulated clock, in Rust.
BRIEF: dict[str, Any] = {
    "windows": 2,
    "time_ns": 200_000_000,
    "warm_up_ns": 50_000_000,
    "series_ns": 20_000_000,
    "most_short_percent": 100.0,
    "patience_ns": 480 * 10**9,
}
PING: dict[str, Any] = {
    "windows": 2,
    "time_ns": 20_000_000,
    "warm_up_ns": 5_000_000,
    "most_short_percent": 100.0,
    "most_lost_percent": 100.0,
}
BEGAN = ("the flow began when it was to", "the requests began when they were to")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Two slices on this machine: four agents, the far ones at addresses of their own."""
    host, agent_path = LocalHost(), str(binary("virtoll-agent"))
    for module in (flow, sliced):
        monkeypatch.setattr(module, "AGENT", agent_path)
    monkeypatch.setattr(daemon, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(sliced, "LEAD_NS", 200_000_000)
    with ExitStack() as stack:
        monkeypatch.setattr(peers, "PORT", stack.enter_context(own_ports(2)))

        def instance(name: str) -> Instance:
            serve = agent_on_stdio(
                host,
                [agent_path, "serve"],
                log=tmp_path / f"{name}.log",
                confinement=Confinement(),
                platform="native",
            )
            agent, process = stack.enter_context(serve)
            attachment = Attachment("host", "shared", "", "127.0.0.1", ())
            accounting = Accounting("", tmp_path)
            return Instance(
                "native", agent, attachment, accounting, Limits(), {}, lambda: process.poll() is None, FAKE_IMAGE
            )

        slices = [
            Slice(index, instance(f"near{index}"), instance(f"far{index}"), "127.0.0.1", f"127.0.0.{index + 2}")
            for index in range(2)
        ]
        client = Client(host, Confinement(), tmp_path, cpus=1)

        def another(_: int) -> Iterator[Instance]:
            raise NotImplementedError

        yield Place(slices[0].near, client, [], contextmanager(another), slices)


def ran(probe: Probe, place: Place) -> ProbeResult:
    """Of a sender that stands still for as long as its whole flow, as on a busy machine, it is told that nothing of it
    arrived. That tells nothing of a flow, and another run is asked for.
    """
    for _ in range(20):
        try:
            return probe.run(place)
        except ProbeError as error:
            if "none of 0 arrived" not in str(error):
                raise
    raise AssertionError("in none of 20 runs each flow sent anything")


def passed(probe: Probe, place: Place) -> Any:
    result = ran(probe, place)
    # Whether a run begins in time is the machine's affair; that it is asked is ours.
    began = [check for check in result.checks if check.name.endswith(BEGAN)]
    assert began, result.checks
    assert all(check.passed for check in result.checks if check not in began), result.checks
    assert result.instrument.startswith("virtoll-agent")
    for window in result.windows:
        assert set(window.values) <= set(probe.quantities)
        assert probe.headline in window.values
    return result


def flowed(settings: FlowSettings, place: Place) -> Any:
    """A run in whose windows each flow was under way: who stands still for all of so brief a one sends nothing."""
    rates = Flow(settings)._rates(place.slices)
    for _ in range(20):
        result = passed(Flow(settings), place)
        sent = [
            window.values[f"{sliced.slice_name(one)}_offered_mbit_per_s"] * 1e6 / 8 * settings.windows_s / len(asked)
            for one, asked in rates
            for window, rate in zip(result.windows, asked, strict=True)
            if rate != 0
        ]
        if min(sent) >= 2 * settings.size_bytes * (1 - 1e-9):  # of one alone there is no time between
            return result
    raise AssertionError("in none of 20 runs each flow sent in each of its windows")


def test_two_flows_side_by_side_and_both_series_on_the_hosts_clock(place: Place) -> None:
    before_ns = time.monotonic_ns()
    result = flowed(FlowSettings(**BRIEF, rate_bit_per_s=8_192_000, trace=30), place)
    after_ns = time.monotonic_ns()
    assert len(result.windows) == 2
    for window in result.windows:
        assert 0 < window.work <= 2 * 200
        values = window.values
        both = [values["slice1_throughput_mbit_per_s"], values["slice2_throughput_mbit_per_s"]]
        assert values["throughput_mbit_per_s"] == pytest.approx(sum(both) / 2)
        if any(both):
            assert values["fairness"] == pytest.approx(jain(both))
        assert 0 <= values["lost_percent"] < 100
    for source in ("slice1", "slice2"):
        rows = [row for row in result.series if row[1] == source]
        assert {row[2] for row in rows} == {"sent_bytes", "received_bytes", "arrival"}
        assert all(before_ns < row[0] < after_ns + 10**9 for row in rows)
        received = [value for _, _, counter, value in rows if counter == "received_bytes"]
        assert received == sorted(received)
        assert received[0] == 0 < received[-1] <= 450 * 1024
        assert 0 < len([row for row in rows if row[2] == "arrival"]) <= 30
        assert result.facts[source]["stamps"] == "kernel"
    gaps = sum(count for _, _, count in result.histogram)
    assert 0 < gaps <= sum(window.work - 2 for window in result.windows)
    for one in place.slices:
        assert not one.far.agent.listening(peers.PORT + one.index)


def test_one_steps_up_while_the_other_is_constant(place: Place) -> None:
    settings = FlowSettings(**BRIEF, rate_bit_per_s=4_096_000, steps="8.192 Mbit/s, 0 bit/s, 16.384 Mbit/s")
    windows = flowed(settings, place).windows
    # A machine that runs tests may stall; then a window is longer, or some of its datagrams are not sent: never more.
    offered = [[window.values[f"slice{at}_offered_mbit_per_s"] for window in windows] for at in (1, 2)]
    for asked, values in (([4.096] * 3, offered[0]), ([8.192, 0, 16.384], offered[1])):
        assert all(0 <= value <= most * (1 + 1e-9) for value, most in zip(values, asked, strict=True)), values
        assert [value > 0 for value in values] == [most > 0 for most in asked]
    assert "fairness" not in windows[1].values


def told_of(windows: list[dict[str, float]], index: int) -> sliced.Told:
    """What a slice says in these windows."""
    one = Slice(index, cast("Any", None), cast("Any", None), "", "")
    each = [Window(start_ns=0, duration_ns=10**9, work=1, values=values) for values in windows]
    return sliced.Told(one, ProbeResult("an agent", each), [])


def test_a_value_that_a_slice_with_traffic_lacks_is_no_mean(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slice 2 was starved in the first window: what is told of both would be slice 1's alone."""
    trip = {"round_trip_mean_us": 100.0, "offered_packets_per_s": 10.0, "lost_percent": 0.0}
    starved = {"offered_packets_per_s": 10.0, "lost_percent": 100.0}
    told = [told_of([trip, trip], 0), told_of([starved, {**trip, "round_trip_mean_us": 300.0}], 1)]
    monkeypatch.setattr(sliced, "together", lambda *_: told)
    first, second = Ping(PingSettings()).run(place).windows
    assert first.values == {
        "slice1_round_trip_mean_us": 100.0,
        "slice1_lost_percent": 0.0,
        "slice2_lost_percent": 100.0,
        "lost_percent": 50.0,
        "offered_packets_per_s": 10.0,
    }
    assert second.values["round_trip_mean_us"] == 200.0
    assert second.values["fairness"] == pytest.approx(0.8)


def test_a_loss_that_is_not_known_in_a_slice_is_not_known_of_both() -> None:
    flow_told = {"throughput_mbit_per_s": 20.0, "lost_percent": 1.0}
    told = [told_of([flow_told], 0), told_of([{"throughput_mbit_per_s": 10.0}], 1)]
    values = Flow()._values(told, [(each.slice, [None]) for each in told], 0)
    assert values["throughput_mbit_per_s"] == 15.0
    assert "lost_percent" not in values
    assert values["slice1_lost_percent"] == 1.0


def test_a_slice_that_was_to_send_nothing_is_in_no_mean() -> None:
    idle = {"throughput_mbit_per_s": 0.0, "offered_mbit_per_s": 0.0}
    busy = {"throughput_mbit_per_s": 36.0, "offered_mbit_per_s": 36.0, "lost_percent": 1.0, "jitter_us": 5.0}
    told = [told_of([busy, busy], 0), told_of([idle, busy], 1)]
    rates = [(told[0].slice, [36_000_000] * 2), (told[1].slice, [0, 36_000_000])]
    values = Flow()._values(told, rates, 0)
    assert {key: values[key] for key in busy} == busy
    assert values["slice2_throughput_mbit_per_s"] == 0.0
    assert Flow()._values(told, rates, 1)["throughput_mbit_per_s"] == 36.0


def test_fairness_is_of_what_was_due_in_the_window() -> None:
    """At 10 kbit/s, 1.2 datagrams a second are one in most windows and two in others: each got all of its own."""
    whole = {"throughput_mbit_per_s": 20.0, "intended_mbit_per_s": 20.0}
    one, two = ({"throughput_mbit_per_s": rate, "intended_mbit_per_s": rate} for rate in (0.008192, 0.016384))
    told = [told_of([whole] * 3, 0), told_of([one, two, {**two, "throughput_mbit_per_s": 0.008192}], 1)]
    rates = [(each.slice, [rate] * 3) for each, rate in zip(told, (20_000_000, 10_000), strict=True)]
    fairness = [Flow()._values(told, rates, window)["fairness"] for window in range(3)]
    assert fairness == pytest.approx([1.0, 1.0, jain([1.0, 0.5])])


def test_two_flows_of_which_a_window_holds_no_whole_number_offer_no_more(place: Place) -> None:
    settings = FlowSettings(**BRIEF, rate_bit_per_s=1_000_000, other_rate_bit_per_s=100_000)
    result = flowed(settings, place)
    assert sum(window.work for window in result.windows) <= 49 + 5  # 0.4 s, at 122.07 and 12.2 datagrams a second


def test_an_idle_slice_has_no_values(place: Place) -> None:
    result = flowed(FlowSettings(**BRIEF, other_rate_bit_per_s=0), place)
    assert not any(key.startswith("slice2") or key == "fairness" for key in result.windows[0].values)
    assert {source for _, source, _, _ in result.series} == {"slice1"}


def test_a_flow_without_a_rate_beside_one_with_a_rate_has_no_share(place: Place) -> None:
    result = flowed(FlowSettings(**BRIEF, rate_bit_per_s=None, other_rate_bit_per_s=2_000_000), place)
    assert "slice2_throughput_mbit_per_s" in result.windows[0].values
    assert "fairness" not in result.windows[0].values


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        (FlowSettings(**BRIEF, packets=50, size_bytes=128), {"interarrival_us", "jitter_us"}),
        (FlowSettings(**BRIEF, protocol="tcp", size_bytes=16_384), {"throughput_sd_mbit_per_s"}),
        (FlowSettings(**BRIEF, rate_bit_per_s=None, size_bytes=1470), {"fairness", "lost_percent"}),
        (FlowSettings(**BRIEF, other_rate_bit_per_s=2_000_000), {"fairness", "slice2_throughput_mbit_per_s"}),
    ],
    ids=["packets", "tcp", "as fast as it goes", "another rate"],
)
def test_every_kind_of_flow(settings: FlowSettings, keys: set[str], place: Place) -> None:
    assert Flow(settings).check(Limits()) == []
    result = flowed(settings, place)
    # Of a flood more may come than a busy receiver has room for: then no loss is known.
    overrun = any(facts.get("overrun") for facts in result.facts.values() if isinstance(facts, dict))
    unknown = {"lost_percent"} if overrun and settings.rate_bit_per_s is None else set()
    for window in result.windows:
        assert keys - unknown <= set(window.values)
        assert settings.packets is None or 0 < window.work <= 2 * settings.packets


def test_a_rate_that_no_machine_holds_fails_its_check(place: Place) -> None:
    settings = FlowSettings(**{**BRIEF, "most_short_percent": 0.5}, rate_bit_per_s=10**12)
    failed = {check.name for check in ran(Flow(settings), place).checks if not check.passed}
    assert "slice1: the intended rate was held" in failed


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (FlowSettings(steps="5 Mbit/s; 6"), "5 Mbit/s, 10 Mbit/s"),
        (FlowSettings(steps="5 Mbit/s", other_rate_bit_per_s=1), "leave them out"),
        (FlowSettings(steps="5 Mbit/s", packets=5), "leave them out"),
        (FlowSettings(rate_bit_per_s=None, packets=5), "20 Mbit/s"),
        (FlowSettings(packets=1000, other_rate_bit_per_s=1_000_000), "leave out packets"),
        (FlowSettings(protocol="tcp", trace=5), "udp"),
        (FlowSettings(work=100), "packets = 100"),
        (FlowSettings(windows=25, time_ns=3600 * 10**9, series_ns=60 * 10**9), "fewer windows"),
        (FlowSettings(rate_bit_per_s=300_000_000, trace=50_000), "fewer arrivals"),
        (FlowSettings(rate_bit_per_s=None, trace=50_000), "fewer arrivals"),
        (FlowSettings(steps="5 Mbit/s, 200 Mbit/s", trace=1_000_000, time_ns=2 * 10**9), "fewer arrivals"),
        (FlowSettings(packets=20_000, trace=50_000), "fewer arrivals"),
        (FlowSettings(time_ns=10 * 10**9, series_ns=1_000_000), "a longer series"),
        (FlowSettings(windows=1000, time_ns=100_000_000, series_ns=10_000_000), "fewer windows"),
        (FlowSettings(rate_bit_per_s=10_000), "longer windows"),
        (FlowSettings(other_rate_bit_per_s=10_000), "longer windows"),
        (FlowSettings(steps="5 Mbit/s, 0 bit/s, 10 kbit/s"), "longer windows"),
    ],
)
def test_what_contradicts_itself_is_refused_beforehand(settings: FlowSettings, told: str) -> None:
    problems: list[Problem] = Flow(settings).check(Limits())
    assert [told in problem.remedy for problem in problems] == [True]


@pytest.mark.parametrize(
    "settings",
    [
        FlowSettings(),
        FlowSettings(rate_bit_per_s=36_000_000, size_bytes=128, packets=10_000, trace=10_000),
        FlowSettings(trace=1_000_000),  # and fewer are sent
        FlowSettings(rate_bit_per_s=None, trace=35_000, other_rate_bit_per_s=0),
        FlowSettings(packets=2, other_rate_bit_per_s=0),
        FlowSettings(packets=2, rate_bit_per_s=10**6, other_rate_bit_per_s=10**6),
        FlowSettings(windows=100, time_ns=5 * 10**9),
        FlowSettings(rate_bit_per_s=16_384, other_rate_bit_per_s=0),  # one datagram in each window
    ],
)
def test_what_can_be_told_is_not_refused(settings: FlowSettings) -> None:
    assert Flow(settings).check(Limits()) == []


@pytest.mark.parametrize(
    ("settings", "windows_s"),
    [
        (FlowSettings(windows=4, time_ns=5 * 10**9), 20),
        (FlowSettings(steps="5 Mbit/s, 0 bit/s, 10 Mbit/s", windows=9, time_ns=60 * 10**9), 180),
        (FlowSettings(windows=2, packets=1000, size_bytes=125, rate_bit_per_s=10**5, other_rate_bit_per_s=0), 20),
    ],
)
def test_how_long_it_takes_is_known_beforehand(settings: FlowSettings, windows_s: float) -> None:
    assert settings.expected_s == pytest.approx(windows_s + 1.5)


def test_pings_take_as_long_as_their_requests() -> None:
    assert PingSettings(windows=4, time_ns=5 * 10**9).expected_s == pytest.approx(21.5)
    assert PingSettings(windows=4, work=100, packets_per_s=2.0).expected_s == pytest.approx(201.5)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (PingSettings(packets_per_s=1_000_000, time_ns=10 * 10**9), "30500000 requests are above 10000000"),
        (PingSettings(packets_per_s=1_000_000, work=5_000_000), "15500000 requests are above 10000000"),
        (PingSettings(windows=25, time_ns=3600 * 10**9), "24 h"),
        (PingSettings(packets_per_s=1.0), "less than one"),
    ],
)
def test_more_than_the_agent_pings_is_refused_beforehand(settings: PingSettings, told: str) -> None:
    (problem,) = Ping(settings).check(Limits())
    assert told in problem.what
    argv = [str(binary("virtoll-agent")), *arguments("ping", settings), "--peer", "127.0.0.1"]
    done = subprocess.run(argv, check=False, capture_output=True)
    assert told.encode() in done.stderr, "and by the agent, for the same reason"


def test_requests_are_those_of_one_schedule_through_all_windows() -> None:
    """Three a second in half a second each: 0 to 5 are due before 2 s, and two in each half would be 8."""
    assert PingSettings(packets_per_s=3.0).requests == 6
    assert PingSettings(packets_per_s=3.0, work=2).requests == 2 + 3 * 2


def test_as_many_as_the_agent_pings_are_not_refused() -> None:
    settings = PingSettings(packets_per_s=1_000_000, time_ns=3 * 10**9)
    assert Ping(settings).check(Limits()) == []
    assert Ping(PingSettings(windows=24, time_ns=3600 * 10**9)).check(Limits()) == []
    assert Ping().check(Limits()) == []


@pytest.mark.parametrize("probe", [Flow(), Ping()], ids=["flow", "ping"])
def test_without_slices_it_is_refused(probe: Probe, place: Place) -> None:
    alone = Place(place.instance, place.client, [], place.another, place.slices[:1])
    with pytest.raises(ProbeError, match="needs 2 slices, and there are 1") as caught:
        probe.run(alone)
    assert caught.value.kind == "refused"


def test_a_receiver_that_is_gone_is_told_with_its_slice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "start", lambda *_, **__: place.slices[0].far.agent.spawn(["true"]))
    with pytest.raises(ProbeError, match="flow, slice1") as caught:
        Flow(FlowSettings(**BRIEF)).run(place)
    assert caught.value.kind == "peer"


def test_a_run_is_not_given_up_before_it_can_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 minutes it was, after an hour, in each arm anew."""
    agent, limits_s = type(place.instance.agent), []

    def noted(_: Any, argv: list[str], *, timeout_s: float = 60.0) -> Any:
        limits_s.append(timeout_s)
        if "probe" in argv:
            raise AgentError("noted")

    monkeypatch.setattr(agent, "run", noted)
    with pytest.raises(AgentError, match="noted"):
        Ping(PingSettings(windows=4, time_ns=1200 * 10**9)).run(place)
    assert max(limits_s) == pytest.approx(3600 + 4800, rel=0.01)


def test_pings_in_both_slices(place: Place) -> None:
    result = passed(Ping(PingSettings(**PING, packets_per_s=500.0)), place)
    for window in result.windows:
        assert window.work == 2 * 10
        assert 0.5 <= window.values["fairness"] <= 1
        assert window.values["slice1_round_trip_mean_us"] > 0
    lost = sum(window.work * window.values["lost_percent"] / 100 for window in result.windows)
    assert sum(count for _, _, count in result.histogram) == pytest.approx(2 * 2 * 10 - lost)


@pytest.mark.machine
def test_of_slices_that_drop_most_the_loss_is_told_and_no_time_of_the_rest(lab: Lab, tmp_path: Path) -> None:
    """100 kbit/s carry eight of a hundred such requests a second: their mean, and fairness, were told of all."""
    with platforms_sliced.place(lab, "native", tmp_path) as place, ExitStack() as stack:
        for one in place.slices:
            assert one.reshaped is not None
            stack.enter_context(one.reshaped(100_000))
        pace: dict[str, Any] = {"windows": 1, "warm_up_ns": 500_000_000, "time_ns": 2 * 10**9, "packets_per_s": 100.0}
        result = ran(Ping(PingSettings(**pace, size_bytes=1400, most_short_percent=100.0)), place)
    (window,) = result.windows
    lost = {"lost_percent", "slice1_lost_percent", "slice2_lost_percent"}
    assert window.values.keys() == lost | {"offered_packets_per_s", "round_trip_min_us"}
    assert min(window.values[key] for key in lost) > 50
    assert [note.partition(":")[0] for note in result.notes] == ["slice1", "slice2"]
    assert measured_of(Case("ping", {}, {}), Ping(), result).quantities.keys() == window.values.keys()


@pytest.mark.machine
@pytest.mark.parametrize("platform", ["native", "lxc", "uml"])
def test_flows_and_pings_over_channels(lab: Lab, platform: str, tmp_path: Path) -> None:
    brief = {**BRIEF, "windows": 1, "time_ns": 300_000_000, "series_ns": 20_000_000, "warm_up_ns": 500_000_000}
    with platforms_sliced.place(lab, platform, tmp_path) as place:
        platforms_sliced.assert_shaped(lab)
        below = flowed(FlowSettings(**brief, rate_bit_per_s=8_192_000), place)
        above = flowed(FlowSettings(**brief, rate_bit_per_s=49_152_000), place)
        trips = passed(Ping(PingSettings(**{**PING, "time_ns": 200_000_000}, packets_per_s=100.0)), place)
    # What comes in a window may have been sent before it, by who was off its CPU; what is offered in it is exact.
    for result, most in ((below, 8.192), (above, 49.152)):
        assert 0 <= result.windows[0].values["offered_mbit_per_s"] <= most * (1 + 1e-9)
        for source in ("slice1", "slice2"):
            assert max(row[3] for row in result.series if row[1:3] == (source, "received_bytes")) > 0
    values = above.windows[0].values
    if values["offered_mbit_per_s"] > 45:  # else the machine was too busy to send so much
        # Of a channel of 36 Mbit/s. Where the receiver had no room for all that came, no loss is known.
        assert any(facts.get("overrun") for facts in above.facts.values()) or values["lost_percent"] > 0
    assert trips.windows[0].values["round_trip_mean_us"] > 0
