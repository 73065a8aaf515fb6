"""The load generator on another machine (`--generator`): orders, clocks, looks and devices, and the way there by a
double of ssh's client whose post stands on this machine.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import post_double
from loads_server import MisbehavingServer
from on_fakes import STUDY, on_fakes
from virtoll import cli
from virtoll.catalogue import catalogue
from virtoll.errors import DiskError, GoneError, HostError, Problem, StudyError, TrialError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts import ledger as ledgers
from virtoll.hosts import tuning
from virtoll.hosts.base import Completed
from virtoll.hosts.ledger import ElsewhereError, Ledger
from virtoll.hosts.local import LocalHost
from virtoll.lab import losses
from virtoll.lab.base import Uplink
from virtoll.lab.posts import Stand
from virtoll.loads.base import loads
from virtoll.loads.http import HttpLoad, HttpSession, HttpSettings
from virtoll.offers import Http, JanusRoom, Port
from virtoll.post import clocks, nics, orders, sessions
from virtoll.post.clocks import Reading
from virtoll.post.looks import Looks, used_ns
from virtoll.post.orders import Order, Told, load_of, offer_of, part_of
from virtoll.post.sessions import CLOCK, CLOCK_SHARE, LINK, OWN, Far, FarClient, FarSession
from virtoll.post.wires import Wires
from virtoll.record.model import ELSEWHERE, Drain, Events, PlannedTrial, Window
from virtoll.record.store import RunDirectory
from virtoll.record.told import generator_options
from virtoll.run import by_generator, by_ssh, environment, laboratory, posting, pushed
from virtoll.run.apart import expect_apart, expect_as_begun
from virtoll.run.by_generator import Posted, posted
from virtoll.run.conduct import run_study
from virtoll.run.execute import execute
from virtoll.run.posting import Post
from virtoll.run.request import Request
from virtoll.run.stage import Stage
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.trial.notes import Course, Notes

NO_WIRES = Wires(())
SERVER = "ssh://root@double.lan:2222"
EXPECT_LINKED = by_generator.expect_linked


def study_of(more: str = "", head: str = 'name = "apart"\nblocks = 2\n') -> Study:
    service = '[service]\nname = "nginx"\n[load]\nname = "http"\n'
    arms = '[[arms]]\nplatform = "native"\n'
    return read_study(f"{head}{service}{more}{arms}", "apart.toml", catalogue())


def asking(**changes: Any) -> Request:
    return replace(Request(study="small.toml", generator=SERVER, nic=("eth6", "eth7")), **changes)


# -- orders and answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in loads() if name != "command"])  # that has no settings by default
def test_a_load_comes_over_with_its_settings(name: str) -> None:
    load = loads()[name]()
    order = Order(kind="open", load=part_of(load))
    there = Order.model_validate_json(order.model_dump_json())
    assert there.load is not None
    assert load_of(there.load).settings == load.settings


@pytest.mark.parametrize(
    "offer",
    [Http("198.18.1.1", 80, proxy=True, upstream="198.18.2.2:8080"), JanusRoom("1.2.3.4", 80, Port(9, "udp", 12), 7)],
)
def test_an_offer_comes_over(offer: Any) -> None:
    assert offer_of(part_of(offer)) == offer


def test_bytes_come_over() -> None:
    order = Order(kind="exchange", sent=b"\x00\xff{")
    assert Order.model_validate_json(order.model_dump_json()).sent == b"\x00\xff{"
    assert orders.unpacked(orders.packed(None, b"\x00\xfe")).raw == b"\x00\xfe"


def test_what_failed_there_fails_the_trial() -> None:
    def failing() -> bytes:
        return Post("there").answer(Order(kind="losses", lab="none").model_dump_json().encode())

    with pytest.raises(TrialError, match="no lab is wired for this"):
        orders.unpacked(failing())
    assert b"the order cannot be read" in Post("there").answer(b"{")


@pytest.mark.parametrize("error", [DiskError("cannot write the ledger"), OSError(errno.ENOSPC, "No space left")])
def test_a_full_disk_there_is_no_answer(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Who cannot be answered ends, and the trial comes again: each one that was left failed, for good."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Post, "_done", fail)
    with pytest.raises(DiskError):
        Post("there").answer(Order(kind="losses", lab="x").model_dump_json().encode())


WINDOW = {"start_ns": 5, "duration_ns": 10, "work": 1.0}
TOLD = {
    "instrument": "x",
    "window": WINDOW,
    "histogram": [[1, 2, 3]],
    "lateness": None,
    "has_log": False,
    "use": None,
    "carried": [],
}


@pytest.mark.parametrize(
    "heading",
    [
        b"{",
        b"[" * 100_000,
        b'{"value": NaN}',
        b'{"value": 1, "more": 2}',
        json.dumps({"value": {**TOLD, "histogram": [[2, 1, 3]]}}).encode(),
        json.dumps({"value": {**TOLD, "histogram": [[1, 3, 1], [2, 4, 1]]}}).encode(),
        json.dumps({"value": {**TOLD, "histogram": [[1, 2, -3]]}}).encode(),
        json.dumps({"value": {**TOLD, "window": {**WINDOW, "work": -1}}}).encode(),
        json.dumps({"value": {**TOLD, "window": {**WINDOW, "odd": 1}}}).encode(),
        json.dumps({"value": 7}).encode(),
    ],
)
def test_what_a_stranger_answers_is_no_measurement(heading: bytes) -> None:
    with pytest.raises(TrialError, match="cannot be read"):
        orders.unpacked(len(heading).to_bytes(8, "big") + heading).read(Told)


def test_an_answer_that_lies_about_its_length_is_none() -> None:
    for answer in (b"", b"\x00" * 7, (2**40).to_bytes(8, "big"), (9).to_bytes(8, "big") + b"{}"):
        with pytest.raises(TrialError, match="cannot be read"):
            orders.unpacked(answer)


# -- clocks -----------------------------------------------------------------------------------------------


def test_the_shortest_exchange_counts() -> None:
    ours = iter([0, 100, 1000, 1010, *([2000, 2100] * 5)])
    theirs = iter([50_050, 51_005, *([52_000] * 5)])
    found = clocks.read(lambda: next(theirs), lambda: next(ours))
    assert found == Reading(1005, 50_000, 6)


@given(
    apart=st.tuples(st.integers(-(10**15), 10**15), st.integers(-100, 100)),
    start_ns=st.integers(10**6, 10**9),
    length_ns=st.integers(0, 10**10),
    after_ns=st.integers(0, 10**9),
    ways_ns=st.tuples(*[st.integers(0, 10**6)] * 4),  # out and back, before and after
)
@example(apart=(0, 23), start_ns=10**6, length_ns=7_316_092_600, after_ns=81_313, ways_ns=(0, 0, 1, 0))  # by rounding
def test_a_window_lies_within_its_bound_whatever_the_ways_take(
    apart: tuple[int, int], start_ns: int, length_ns: int, after_ns: int, ways_ns: tuple[int, int, int, int]
) -> None:
    ahead_ns, ppm = apart

    def theirs(ours_ns: int) -> int:
        return ours_ns + ahead_ns + ours_ns * ppm // 10**6

    def reading(at_ns: int, out_ns: int, back_ns: int) -> Reading:
        middle_ns = at_ns + (out_ns + back_ns) // 2
        return Reading(middle_ns, theirs(at_ns + out_ns) - middle_ns, (out_ns + back_ns) // 2 + 1)

    end_ns = start_ns + length_ns
    before = reading(start_ns - ways_ns[0] - ways_ns[1], *ways_ns[:2])
    after = reading(end_ns + after_ns, *ways_ns[2:])
    told = Window(start_ns=theirs(start_ns), duration_ns=theirs(end_ns) - theirs(start_ns), work=0)
    moved = clocks.moved(told, before, after)
    rounding = 3 + length_ns // 10**8 + 1
    assert abs(moved.window.start_ns - start_ns) <= moved.within_ns + rounding
    assert abs(moved.window.end_ns - end_ns) <= moved.within_ns + rounding + length_ns * abs(ppm) // 10**6


@pytest.mark.parametrize("stood_still_at_s", [0.5, 25, 59])
def test_a_machine_that_stood_still_is_no_drift(stood_still_at_s: float) -> None:
    """A second's pause of a virtual machine in the lead-in, or while answers were awaited, before or after 250 ms."""
    second_ns, start_ns = 10**9, 30 * 10**9
    ahead_ns = 0 if stood_still_at_s * second_ns > start_ns else -second_ns
    told = Window(start_ns=start_ns + ahead_ns, duration_ns=second_ns // 4, work=1)
    moved = clocks.moved(told, Reading(0, 0, 1000), Reading(60 * second_ns, -second_ns, 1000))
    assert abs(moved.window.start_ns - start_ns) <= moved.within_ns
    assert moved.within_ns > CLOCK_SHARE * told.duration_ns, "the trial is not valid"


def test_all_times_of_a_window_are_moved_and_no_length() -> None:
    events = Events(
        intended=1,
        offered=1,
        completed=1,
        failures={},
        censored=0,
        drain=Drain.model_validate({"under_way": 1, "completed": 1, "end_ns": 1_300}),
    )
    told = Window(start_ns=1_100, duration_ns=100, work=1, asked_ns=1_050, until_ns=1_300, begun_ns=1_101,
                  events={"request": events})  # fmt: skip
    ours = clocks.moved(told, Reading(0, 1_000, 1), Reading(400, 1_000, 1)).window
    assert (ours.start_ns, ours.duration_ns, ours.asked_ns, ours.until_ns, ours.begun_ns) == (100, 100, 50, 300, 101)
    drain = ours.events["request"].drain
    assert drain is not None
    assert drain.end_ns == 300


@pytest.mark.parametrize("start_ns", [900, 1_410])
def test_a_window_that_was_not_asked_for_is_none(start_ns: int) -> None:
    told = Window(start_ns=start_ns, duration_ns=100, work=1)
    with pytest.raises(TrialError, match="did not begin in the time"):
        clocks.moved(told, Reading(0, 1_000, 1), Reading(400, 1_000, 1))


# -- looks ------------------------------------------------------------------------------------------------


def test_both_kinds_of_books_are_read(tmp_path: Path) -> None:
    (tmp_path / "v2").write_text("usage_usec 12\nuser_usec 5\n")
    (tmp_path / "v1").write_text("34\n")
    (tmp_path / "junk").write_text("nothing")
    assert [used_ns(tmp_path / name) for name in ("v2", "v1", "junk", "gone")] == [12_000, 34, None, None]


def test_the_looks_next_to_a_windows_ends_count() -> None:
    looks = Looks({"instance": Path("/nowhere")}, frozenset({0}))
    looks._times_ns[:] = [100, 200, 300, 400]
    looks._cpu_ns[:] = [{"instance": used} for used in (1, 5, 11, 30)]
    booked = looks.booked(Window(start_ns=190, duration_ns=130, work=1))
    assert booked is not None
    assert (booked.from_ns, booked.to_ns, booked.cpu_ns) == (200, 300, {"instance": 6})


def test_books_are_looked_at_for_as_long_as_the_block(tmp_path: Path) -> None:
    (tmp_path / "book").write_text("7\n")
    before_ns = time.monotonic_ns()
    with Looks({"instance": tmp_path / "book"}, frozenset(os.sched_getaffinity(0))) as looks:
        while len(looks._times_ns) < 3:
            time.sleep(0.001)
    booked = looks.booked(Window(start_ns=before_ns, duration_ns=time.monotonic_ns() - before_ns, work=1))
    assert booked is not None
    assert booked.cpu_ns == {"instance": 0}
    assert booked.from_ns < booked.to_ns
    assert Looks({}, frozenset()).booked(Window(start_ns=0, duration_ns=1, work=1)) is None


# -- devices ----------------------------------------------------------------------------------------------

ETHER = {"ifindex": 4, "ifname": "eno1", "flags": ["UP", "LOWER_UP"], "mtu": 9000, "link_type": "ether", "address": "a"}


class Ip:
    """A machine whose `ip` says this, and whose `tc` that."""

    where = "played"

    def __init__(self, *devices: dict[str, Any], queues: Sequence[dict[str, Any]] = ()) -> None:
        self._devices, self._queues = devices, queues

    def run(self, argv: Any, **_: Any) -> Completed:
        queues = [each for each in self._queues if argv[-2:] == ["dev", each["dev"]]]
        said = {"ip": self._devices, "tc": queues}
        return Completed(tuple(argv), 0, json.dumps(said[argv[0]]).encode() if argv[0] in said else b"", b"")

    def read(self, path: Path) -> bytes:
        assert path == Path("/proc/net/softnet_stat")
        return b"000000aa 00000003 00000000\n000000bb 0000000f 00000000\n"


def vlan_of_a_bond(root: Path) -> None:
    """What /sys tells of eno1, a VLAN upon a bond of two ports; p2 is another's."""
    for name in ("eno1", "bond0", "p0", "p1", "p2"):
        (root / name / "queues/rx-0").mkdir(parents=True)
        (root / name / "queues/rx-0/rps_cpus").write_text("0\n")
    for above, below in (("eno1", "bond0"), ("bond0", "p0"), ("bond0", "p1")):
        (root / above / f"lower_{below}").symlink_to(root / below)
    for name, text in {"ifindex": "4", "address": "a"}.items():
        (root / "eno1" / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"ifname": "eno2"}, "there is no such network device; there are: eno2"),
        ({"flags": []}, "it is down"),
        ({"flags": ["UP"]}, "it has no link"),
        ({"master": "br0"}, "it is a port of br0"),
        ({"link_type": "loopback"}, "it is no Ethernet device"),
        ({}, ""),
    ],
)
def test_what_no_lab_can_stand_upon(changes: dict[str, Any], what: str) -> None:
    host: Any = Ip({**ETHER, **changes})
    told = " ".join(problem.what for problem in nics.problems_of(host, "eno1", "this machine's"))
    assert what in told
    assert bool(what) == bool(told)


def test_what_a_device_does_for_the_kernel_is_recorded() -> None:
    assert {"gso", "gro", "sg", "tso"} <= set(nics._offloads("lo"))


def test_large_receive_offload_is_that_of_the_device_below_a_vlan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The VLAN's own flags do not have it, and the kernel ends it below all the same."""
    vlan_of_a_bond(tmp_path)
    flags = {"p0": nics._LRO, "p1": nics._LRO | 1, "p2": nics._LRO, "eno1": 1}
    monkeypatch.setattr(
        nics, "_ethtool", lambda _asker, name, command: flags.get(name, 0) if command == nics._FLAGS else 0
    )
    host: Any = Ip(ETHER)
    assert nics.with_lro(host, "eno1", tmp_path) == ["p0", "p1"]
    assert nics.nic(host, "eno1", tmp_path).offloads == ["lro"]
    flags.clear()
    assert nics.with_lro(host, "eno1", tmp_path) == []
    assert nics.nic(host, "eno1", tmp_path).offloads == []


def test_a_device_as_it_is_recorded(tmp_path: Path) -> None:
    device = tmp_path / "eno1"
    (device / "device").mkdir(parents=True)
    (device / "device/driver").symlink_to(tmp_path / "ixgbe")
    (tmp_path / "ixgbe").mkdir()
    for name, text in {"ifindex": "4", "address": "a", "speed": "10000"}.items():
        (device / name).write_text(f"{text}\n")
    host: Any = Ip(ETHER)
    assert nics.nic(host, "eno1", tmp_path).model_dump() == {
        "name": "eno1",
        "driver": "ixgbe",
        "speed_mbit_per_s": 10_000,
        "mtu": 9000,
        "identity": "ca978112",
        "offloads": [],  # this machine has none of that name
    }
    (device / "ifindex").write_text("5\n")  # another namespace's of the same name
    assert nics.nic(host, "eno1", tmp_path).driver is None


@pytest.mark.parametrize(
    ("mask", "cpus", "written"),
    [("0", {1}, "2"), ("00", {0, 7}, "81"), ("00000000,00000000", {0, 33}, "00000002,00000001"), ("f", {9}, "0")],
)
def test_a_mask_has_the_kernels_width(mask: str, cpus: set[int], written: str) -> None:
    assert nics.mask_like(mask, frozenset(cpus)) == written


def test_steering_is_put_back(tmp_path: Path) -> None:
    queue = tmp_path / "eno1/queues/rx-0"
    queue.mkdir(parents=True)
    (queue / "rps_cpus").write_text("0\n")
    for name, text in {"ifindex": "4", "address": "a"}.items():
        (tmp_path / "eno1" / name).write_text(f"{text}\n")
    host: Any = Ip(ETHER)
    ledger = Ledger(host, tmp_path / "ledger/run.jsonl").open()
    try:
        with nics.steered(ledger, "eno1", frozenset({1}), tmp_path):
            assert (queue / "rps_cpus").read_text().strip() == "2"
            assert "rps_cpus" in ledger.path.read_text()
        assert (queue / "rps_cpus").read_text().strip() == "0"
    finally:
        ledger.close()


def test_what_comes_over_a_vlan_of_a_bond_is_steered_where_it_comes_in(tmp_path: Path) -> None:
    vlan_of_a_bond(tmp_path)
    host: Any = Ip(ETHER)

    def steered() -> list[str]:
        return [(tmp_path / name / "queues/rx-0/rps_cpus").read_text().strip() for name in ("bond0", "p0", "p1", "p2")]

    ledger = Ledger(host, tmp_path / "ledger/run.jsonl").open()
    try:
        with nics.steered(ledger, "eno1", frozenset({1}), tmp_path):
            assert steered() == ["2", "2", "2", "0"]
        assert steered() == ["0"] * 4
    finally:
        ledger.close()


def test_a_full_ring_is_a_loss() -> None:
    rx = {"missed_errors": 3, "crc_errors": 0, "dropped": 9}
    host: Any = Ip({**ETHER, "stats64": {"rx": rx, "tx": {"dropped": 1, "errors": 0}}})
    assert losses.of_nic(host, "eno1") == {
        "nic eno1 rx_missed_errors": 3,
        "nic eno1 rx_crc_errors": 0,
        "nic eno1 rx_dropped": 9,
        "nic eno1 tx_dropped": 1,
        "nic eno1 tx_errors": 0,
        "nic eno1 backlog": 18,
    }


def test_what_the_devices_below_a_vlan_lost_is_a_loss(tmp_path: Path) -> None:
    """A frame comes in there: a full ring's are the port's alone, and what a CPU's queue drops is booked to it."""
    vlan_of_a_bond(tmp_path)

    def told(name: str, missed: int, dropped: int) -> dict[str, Any]:
        rx = {"missed_errors": missed, "crc_errors": 0, "dropped": dropped}
        return {**ETHER, "ifname": name, "stats64": {"rx": rx, "tx": {"dropped": 0, "errors": 0}}}

    def counted(missed: int, dropped: int) -> dict[str, int]:
        names = ("eno1", "bond0", "p0", "p2")
        host: Any = Ip(*(told(name, 0, 0) for name in names), told("p1", missed, dropped))
        return losses.of_nic(host, "eno1", tmp_path)

    before, after = counted(0, 0), counted(3, 7)
    assert losses.lost(before, {**after, "nic eno1 backlog": before["nic eno1 backlog"] + 5}) == {
        "nic p1 rx_missed_errors": 3,
        "nic eno1 backlog": 5,
    }
    assert not [place for place in before if "p2" in place]


def test_what_a_devices_own_queue_drops_is_a_loss(tmp_path: Path) -> None:
    """No counter of the device has it (as seen of a pfifo in an htb), and the root's has what its children dropped."""
    vlan_of_a_bond(tmp_path)

    def counted(drops: int) -> dict[str, int]:
        roots = [{"kind": "noqueue", "dev": "eno1", "root": True, "drops": 0}]
        roots += [{"kind": "mq", "dev": name, "root": True, "drops": drops} for name in ("p1", "p2")]
        child = {"kind": "fq_codel", "dev": "p1", "parent": ":1", "drops": drops}
        host: Any = Ip(ETHER, queues=[*roots, child])
        return losses.of_nic(host, "eno1", tmp_path)

    assert losses.lost(counted(2), counted(6)) == {"nic p1 queue_dropped": 4}


def test_words_of_tcs_that_are_no_json_are_told() -> None:
    """An old one's, of some disciplines; every trial failed with a JSON decoder's own words."""

    class Old(Ip):
        def run(self, argv: Any, **_: Any) -> Completed:
            return Completed(tuple(argv), 0, b"[mqprio tc 4]", b"") if argv[0] == "tc" else super().run(argv)

    host: Any = Old({**ETHER, "stats64": {}})
    with pytest.raises(HostError, match=r"tc -s -j qdisc show dev eno1: it is no JSON(.|\n)*iproute2 of 2020"):
        losses.of_nic(host, "eno1")


def test_what_a_bond_counts_is_not_counted_twice(tmp_path: Path) -> None:
    """Its own counters are the sum of its ports'."""
    vlan_of_a_bond(tmp_path)
    (tmp_path / "bond0/bonding").mkdir()
    rx = {"missed_errors": 3, "crc_errors": 0, "dropped": 5}
    told = [{**ETHER, "ifname": name, "stats64": {"rx": rx, "tx": {}}} for name in ("bond0", "p1")]
    host: Any = Ip(ETHER, *told)
    found = losses.of_nic(host, "eno1", tmp_path)
    assert found["nic eno1 rx_dropped"] == 5
    assert not [place for place in found if "bond0" in place]


def test_a_machine_without_tc_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each trial would fail there, as nobody tells what was lost."""
    monkeypatch.setattr(nics, "find", lambda _program: None)
    host: Any = Ip(ETHER)
    problem, *_ = nics.problems_of(host, "eno1", "the generator's")
    assert problem.what.startswith("tc is not installed")


def test_a_device_that_is_gone_is_told() -> None:
    host: Any = Ip(ETHER)
    with pytest.raises(HostError, match="there is no network device eno7 any more"):
        losses.of_nic(host, "eno7")


@pytest.mark.parametrize(
    ("dropped", "backlog", "found"),
    [
        (50, 0, {}),  # what nobody wanted
        (0, 7, {}),  # another device's: an instance's own link
        (50, 7, {"nic eno1 backlog": 7}),
        (5, 7, {"nic eno1 backlog": 5}),
    ],
)
def test_what_a_cpus_full_queue_dropped_of_a_device_is_a_loss(
    dropped: int, backlog: int, found: dict[str, int]
) -> None:
    """Where receive packet steering hands on what comes over it, as it does for as long as a run lasts."""
    before = {"nic eno1 rx_dropped": 100, "nic eno1 backlog": 10, "sut org0 rx_dropped": 1}
    after = {"nic eno1 rx_dropped": 100 + dropped, "nic eno1 backlog": 10 + backlog, "sut org0 rx_dropped": 1}
    assert losses.lost(before, after) == found
    assert losses.lost(before, {**after, "sut org0 rx_dropped": 3}) == {"sut org0 rx_dropped": 2, **found}


def test_an_eth0_of_the_machines_own_is_another_than_the_labs(tmp_path: Path) -> None:
    class Host(Ip):
        def run(self, argv: Any, **named: Any) -> Completed:
            if argv[0] != "sh":
                return super().run(argv, **named)
            return Completed(tuple(argv), 0, b"  eth0: 320 5 2 5 0 0 0 5 180 2 6 7 0 0 0 0", b"")

    nic = {**ETHER, "ifname": "eth0", "stats64": {"rx": {}, "tx": {"dropped": 1, "errors": 0}}}
    played: Any = Host(nic)
    stand = Stand(played, played, "ab12", "vt-ab12-gen", played, played, tmp_path, frozenset(), "eth0")
    told = stand.losses()
    assert (told["eth0 tx_dropped"], told["nic eth0 tx_dropped"]) == (7, 1)


def test_a_broadcast_that_nobody_wants_is_no_loss() -> None:
    """As seen of a macvlan: each frame of a protocol that nobody speaks (0x8899, a switch's) is one that it drops."""

    class Namespace:
        where = "played"

        def run(self, argv: Any, **_: Any) -> Completed:
            lines = [f"  {name}: 320 5 2 5 0 0 0 5 180 2 0 0 0 0 0 0" for name in ("lo", "gen0", "org0")]
            return Completed(tuple(argv), 0, "\n".join(lines).encode(), b"")

    host: Any = Namespace()
    here, apart = losses.of_namespace(host, "sut"), losses.of_namespace(host, "sut", upon="gen0")
    assert here["gen0 rx_dropped"] == 5
    assert here.items() - apart.items() == {("gen0 rx_dropped", 5)}


# -- a session --------------------------------------------------------------------------------------------


class Direct:
    """The way to a post in this process."""

    where = "the post here"

    def __init__(self, post: Post) -> None:
        self.post, self.asked = post, list[str]()

    def ask(self, order: Order) -> orders.Reply:
        self.asked.append(order.kind)
        return orders.unpacked(self.post.answer(order.model_dump_json().encode()))


@pytest.fixture(name="post")
def _post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Direct]:
    post_double.stand_here(monkeypatch, tmp_path / "there")
    (tmp_path / "there").mkdir(mode=0o700)
    post = Post("there")
    try:
        channel = Direct(post)
        channel.ask(Order(kind="look", nic="eth7", loads=[part_of(HttpLoad())]))
        channel.ask(Order(kind="wire", lab="ab12", uplink=Uplink("eth6", "m", "eth7", "n")))
        yield channel
    finally:
        post.end()


@pytest.fixture(name="server")
def _server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as server:
        yield server


def client_in(directory: Path, post: Direct, **books: Path) -> Any:
    (directory / "here").mkdir()
    client = Far(post, "ab12", 1, frozenset(os.sched_getaffinity(0)), NO_WIRES).client(directory / "here", books)
    assert isinstance(client, FarClient)
    return client


def test_a_window_there_is_told_as_one_here(post: Direct, server: MisbehavingServer, tmp_path: Path) -> None:
    (tmp_path / "book").write_text("7\n")
    client = client_in(tmp_path, post, instance=tmp_path / "book")
    settings = HttpSettings(path="/ok", time_limit_ns=200 * 10**6, warm_up_ns=50 * 10**6)
    began_ns = time.monotonic_ns()
    with client.opened(HttpLoad(settings), server.offer) as session:
        assert isinstance(session, FarSession)
        assert (session.warm_up() or 0) > 0
        session.lead_in(50 * 10**6)
        assert session.lead_ns >= 50 * 10**6
        first = session.measure()
        session.rest()
        second = session.measure(intensity=2, duration_ns=100 * 10**6)
        checks = {name: (passed, told) for name, passed, told in session.proofs()}
        facts = session.facts[ELSEWHERE]
    assert post.asked[-1] == "close"
    assert began_ns < first.window.asked_from_ns < first.window.start_ns < first.window.end_ns < second.window.start_ns
    assert second.window.end_ns < time.monotonic_ns()
    assert second.window.at == 2
    assert first.window.booked is not None
    assert first.window.booked.cpu_ns == {"instance": 0}
    assert first.bulk.log is not None
    assert first.bulk.log.stat().st_size % 26 == 0
    assert second.bulk.log is None, "of several windows nobody reads the single requests"
    assert first.window.events["request"].completed <= sum(count for _, _, count in first.bulk.histogram or ())
    assert set(checks) == {CLOCK, OWN, LINK}
    assert checks[LINK] == (None, "no device here tells a wire's speed")
    assert len(facts["clock"]) == 2
    assert all(abs(each["ahead_ns"]) <= each["within_ns"] for each in facts["clock"]), "it is the same clock"


def test_a_crowd_gathers_and_recovers_there(
    post: Direct, server: MisbehavingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those of a search would all come at once, and what an overload left of them be told of the next window."""
    done: list[tuple[str, float]] = []
    monkeypatch.setattr(HttpSession, "gather", lambda _session, intensity: done.append(("gather", intensity)))
    monkeypatch.setattr(HttpSession, "recover", lambda _session: done.append(("recover", 0.0)))
    with client_in(tmp_path, post).opened(HttpLoad(), server.offer) as session:
        assert isinstance(session, FarSession)
        session.gather(47.0)
        session.recover()
    assert done == [("gather", 47.0), ("recover", 0.0)]
    assert post.asked[-3:] == ["gather", "recover", "close"]


class Measuring:
    """A machine that measures what it is told, at once."""

    where = "another machine"

    def __init__(self) -> None:
        self.asked: list[Order] = []

    def ask(self, order: Order) -> orders.Reply:
        self.asked.append(order)
        if order.kind != "measure":
            return orders.Reply(1)
        window: dict[str, Any] = {"start_ns": order.start_ns, "duration_ns": 1000, "work": 1, "events": {}}
        return orders.Reply({**TOLD, "window": window, "has_log": True}, b"1234")


def test_a_start_is_by_our_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_ns, channel = 10**15, Measuring()
    far: Any = channel
    readings = iter([Reading(1_000, ahead_ns, 5), Reading(9_000, ahead_ns, 11)])
    monkeypatch.setattr(FarSession, "_clock", lambda _session: next(readings))
    with (
        Far(far, "ab12", 1, frozenset(), NO_WIRES)
        .client(tmp_path, {})
        .opened(HttpLoad(), Http("198.18.1.1", 80)) as session
    ):
        measurement = session.measure(start_ns=5_000)
        checks = {name: passed for name, passed, _ in session.proofs()}
        clock = session.facts[ELSEWHERE]["clock"]
    (asked,) = [order for order in channel.asked if order.kind == "measure"]
    assert asked.start_ns == 5_000 + ahead_ns
    assert measurement.window.start_ns == 5_000
    assert measurement.bulk.log is not None
    assert measurement.bulk.log.read_bytes() == b"1234"
    assert checks == {CLOCK: False, OWN: None, LINK: None}, "11 ns are more than a hundredth of a window of 1 us"
    assert clock == [{"ahead_ns": ahead_ns, "within_ns": 11}]


@pytest.mark.parametrize(
    ("uses", "passed"),
    [
        ([(10, 0.9, 0), (10, 1.05, 0.1)], True),
        ([(10, 1.5, 0), (10, 0.6, 0)], False),
        ([(10, 0, 1.1), (10, 0, 1.1)], False),
        ([(10, -0.2, 0)], True),
        ([(10, 3.0, 0), (10, -2.5, 0)], False),
        ([(0, 0, 0)], None),
    ],
)
def test_who_else_was_at_work_there(uses: list[tuple[float, ...]], passed: bool | None) -> None:
    session: Any = object.__new__(FarSession)
    keys = ("whole_s", "others_s", "stolen_s")
    session._uses = [orders.Use(**dict(zip(keys, use, strict=True))) for use in uses]
    assert session._own_proof()[:2] == (OWN, passed)


def test_a_window_without_a_length_says_nothing_of_the_clock() -> None:
    """All requests were sent at once; none is due at a time, and headroom and rate are not known of it either."""
    session: Any = object.__new__(FarSession)
    at_once, brief = (clocks.Moved(Window(start_ns=9, duration_ns=each, work=1), 0, 5) for each in (0, 1000))
    session._windows = [at_once]
    assert session._clock_proof()[:2] == (CLOCK, None)
    session._windows = [at_once, brief]
    assert session._clock_proof()[:2] == (CLOCK, True)


@pytest.mark.parametrize(("awake", "others_s"), [([], 9.25), (["virtoll-awake-cpu0"], 0.25)])
def test_loops_that_keep_its_cpus_awake_are_nobody_elses(
    awake: list[str], others_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "groups_awake", lambda _layout: awake)
    idle = dict.fromkeys(("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"), 0.0)
    use = posting._Used(idle, 0).until(posting._Used({**idle, "user": 1.0, "nice": 9.0, "system": 0.5}, 0.75))
    assert (use.whole_s, use.others_s) == (10.5, others_s)


def test_what_interrupts_take_of_the_lab_hides_nobody_elses_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may book the network's work to the group that it interrupts: 5 s, beside 3 s of somebody else's."""
    idle = dict.fromkeys(("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"), 0.0)
    busy = {**idle, "user": 3.0 + 1.0, "system": 0.5, "softirq": 5.0}
    told = iter([(idle, 10.0), (busy, 11.0)])
    latest: dict[str, Any] = {}
    monkeypatch.setattr(posting, "spent_of", lambda _cpus: latest["all"])
    monkeypatch.setattr(posting, "group_user_s", lambda _group: latest["ours"])
    monkeypatch.setattr(posting, "groups_awake", lambda _layout: [])
    monkeypatch.setattr(os, "times", lambda: SimpleNamespace(user=7.0))
    stand: Any = SimpleNamespace(cpus={0}, whole=SimpleNamespace(cpu_ns=lambda: 0))

    def now() -> posting._Used:
        latest["all"], latest["ours"] = next(told)
        used = posting._Used.now(stand)
        assert used is not None
        return used

    assert now().until(now()).others_s == 3.0


def test_who_looks_whether_it_answers_stands_there(post: Direct, server: MisbehavingServer, tmp_path: Path) -> None:
    client = client_in(tmp_path, post)
    assert client.get(server.offer, "/ok").length_bytes == 1000
    assert client.exchange(server.offer, b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n", 15) == b"HTTP/1.1 200 OK"
    assert Far(post, "ab12", 1, frozenset(), NO_WIRES).losses() == {"eth0 rx_dropped": 3}
    with pytest.raises(TrialError, match="nothing is run there but loads"):
        client.host.run(["true"])
    with pytest.raises(TrialError, match="no answer: "):
        client.exchange(Http("127.0.0.1", 1), b"", 1)


def test_what_is_open_there_ends_with_its_lab(post: Direct, server: MisbehavingServer, tmp_path: Path) -> None:
    session = FarSession(HttpLoad(), client_in(tmp_path, post), server.offer)
    post.ask(Order(kind="unwire", lab="ab12"))
    with pytest.raises(TrialError, match="no lab is wired"):
        session.rest()


def test_a_lab_that_is_not_undone_there_is_in_nobodys_way(post: Direct) -> None:
    def failing() -> None:
        raise HostError("the namespace is held")

    def interrupted() -> None:
        with _far(post, wire):
            post.post._labs["cd34"].stack.callback(failing)
            raise KeyboardInterrupt

    wire = Order(kind="wire", lab="cd34", uplink=Uplink("eth6", "m", "eth7", "n"))
    again = wire.model_copy(update={"lab": "ab12"})
    with pytest.raises(ElsewhereError, match="could not be undone there: the namespace is held"), _far(post, wire):
        post.post._labs["cd34"].stack.callback(failing)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(TrialError, match="cannot be wired"), _far(post, again):
        pass


def _far(post: Direct, wire: Order) -> Any:
    return sessions.far(post, wire, 1, frozenset(), NO_WIRES)


def test_a_generators_failure_is_the_trials(post: Direct, server: MisbehavingServer, tmp_path: Path) -> None:
    settings = HttpSettings(path="/ok", time_limit_ns=10**8, warm_up_ns=0)
    nowhere = Http("198.18.1.1:x", 80)
    with (
        client_in(tmp_path, post).opened(HttpLoad(settings), nowhere) as session,
        pytest.raises(TrialError, match="virtoll-load http"),
    ):
        session.measure()


# -- the way there ----------------------------------------------------------------------------------------


@pytest.fixture(name="plays")
def _plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    post_double.put(tmp_path, monkeypatch)
    monkeypatch.setattr(pushed, "PACKAGES", ("annotated_types",))
    monkeypatch.setattr(by_ssh, "_LAST_WORDS_S", 60.0)
    monkeypatch.setattr(by_generator, "_SILENCE_S", 480.0)  # no clock decides a test
    monkeypatch.setattr(nics, "problems_of", lambda *_: [])
    monkeypatch.setattr(nics, "nic", lambda _host, name, **_: post_double.NIC.model_copy(update={"name": name}))
    monkeypatch.setattr(by_generator, "expect_linked", lambda _post: None)  # no lab is wired
    return lambda deed: monkeypatch.setenv("HOST_PLAYS", deed)


def connected() -> Any:
    return posted(asking(), study_of(), lambda _text: None)


def test_a_post_is_reached_and_told_of(plays: Any) -> None:
    said: list[str] = []
    with posted(asking(), study_of(), said.append) as post:
        assert post is not None
        environment = post.told_in(fake_environment())
        one, other = post.uplink(), post.uplink()
    assert said[-1].startswith("double.lan-2222: ")
    assert (one.nic, one.far_nic) == ("eth6", "eth7")
    assert len({one.mac, one.far_mac, other.mac, other.far_mac}) == 4
    same, notes = environment.comparable[ELSEWHERE], environment.notes[ELSEWHERE]
    assert same["nic"]["speed_mbit_per_s"] == 10_000
    assert same["kernel"]
    assert abs(notes["clock"]["ahead_ns"]) <= notes["clock"]["within_ns"], "it is the same clock"
    assert generator_options(environment) == " --generator ssh://root@double.lan:2222 --nic eth6,eth7"
    with posted(Request(study="small.toml"), study_of(), said.append) as nobody:
        assert nobody is None


def test_what_the_kernel_ends_on_our_device_is_told_and_keeps_no_run_from_going_on(
    plays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, said = [], list[str]()
    for on, ports in ((["gro", "lro"], ["p0", "p1"]), (["gro"], [])):  # before the first run, and before it goes on
        nic = post_double.NIC.model_copy(update={"offloads": on})
        monkeypatch.setattr(nics, "with_lro", lambda _host, _name, ports=ports: ports)
        monkeypatch.setattr(nics, "nic", lambda _host, name, nic=nic, **_: nic.model_copy(update={"name": name}))
        with posted(asking(), study_of(), said.append) as post:
            assert post is not None
            recorded.append(post.told_in(fake_environment()).comparable[ELSEWHERE]["nic here"])
    assert recorded[0] == recorded[1]
    told = [line.partition(":")[0] for line in said if "lro on" in line]
    assert told == ["p0", "p1"], "eth6 is a VLAN's, or a bond's"
    assert "ethtool -K p1 lro on" in said[3]


def test_the_image_of_a_loads_own_programs_is_made_there(plays: Any) -> None:
    said: list[str] = []
    with posted(asking(), _named("postgres"), said.append) as post:
        assert post is not None
        assert post.told_in(fake_environment()).comparable[ELSEWHERE]["image"] == "sha256:ab12"
    assert "the image of the load's own programs is made there" in said[-1]


def test_frames_are_no_larger_than_an_instances(plays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected() as post:
        assert post.uplink().mtu == 1500
        small = post_double.NIC.model_copy(update={"mtu": 1400})
        assert replace(post, here=small).uplink().mtu == 1400
        assert replace(post, here=small.model_copy(update={"mtu": 9000})).uplink().mtu == 1500


def test_mtus_must_be_the_same(plays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    jumbo = post_double.NIC.model_copy(update={"mtu": 9000})
    monkeypatch.setattr(nics, "nic", lambda *_: jumbo)
    with pytest.raises(HostError, match="MTU of eth7 here is 9000, and that of eth7 there is 1500"), connected():
        pass


def test_a_device_of_ours_is_looked_at_first(plays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nics, "problems_of", lambda *_: [Problem("it is down", "this machine's eth6")])
    with pytest.raises(HostError, match="this machine's eth6: it is down"), connected():
        pass


@pytest.mark.parametrize(
    ("deed", "why"),
    [
        ("look:1 lost", "the connection was lost"),
        ("look:1 killed", "Out of memory"),
        ("look:1 half", "it ended within a message"),
        ("look:1 huge", "none is longer than"),
        ("look:1 text", "cannot be read"),
        ("look:1 list", "cannot be read"),
        ("look:1 pickle", "cannot be read"),
        ("clock:3 lost", "the connection was lost"),
    ],
)
def test_one_that_is_no_post_is_refused(plays: Any, deed: str, why: str) -> None:
    plays(deed)
    with pytest.raises(HostError, match=why), connected():
        pass


def test_one_that_is_lost_is_asked_nothing_more(plays: Any) -> None:
    plays("losses:1 lost")
    with connected() as post:
        assert isinstance(post, Posted)
        for _ in range(2):
            with pytest.raises(GoneError, match="the generator's machine was lost: the connection was lost"):
                post.channel.ask(Order(kind="losses", lab="x"))


def test_one_that_gives_no_sign_of_life_is_lost(plays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plays("losses:1 silent")
    monkeypatch.setattr(by_ssh, "_LAST_WORDS_S", 0.01)
    with connected() as post:
        monkeypatch.setattr(by_generator, "_SILENCE_S", 0.01)
        with pytest.raises(GoneError, match="nothing was heard for"):
            post.channel.ask(Order(kind="losses", lab="x"))


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("localhost", "double.lan-2222: "),
        ("", "double.lan-2222: "),
        ("double.lan-2222", "double.lan-2222: "),
        ("/var/lib/virtoll/lock", "double.lan-2222: /var/lib/virtoll/lock: "),
    ],
)
def test_what_fails_there_is_told_of_that_machine(
    where: str, told: str, plays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("ab is not installed", where, "apt-get install apache2-utils")
    told = f"the generator's machine, {told}ab is not installed"
    with connected() as post:
        monkeypatch.setattr(post.channel._line, "tell", lambda _order: None)
        monkeypatch.setattr(post.channel._line, "next", lambda *_: orders.refused(problem))
        with pytest.raises(TrialError) as failed:
            post.channel.ask(Order(kind="losses", lab="x"))
        with pytest.raises(HostError) as refused:
            by_generator._asked(post.channel, Order(kind="look"))
        standing = post.standing.model_copy(update={"problems": [(problem.what, where, problem.remedy)]})
        answer = orders.packed(standing.model_dump(mode="json"))
        monkeypatch.setattr(post.channel._line, "next", lambda *_: answer)
        with pytest.raises(HostError) as lacking:
            by_generator._looked(post.channel, study_of(), "eth7")
    assert str(failed.value).startswith(told)
    assert str(refused.value).startswith(f"--generator {told}")
    assert told in str(lacking.value)


def test_one_that_is_lost_before_a_run_is_no_machine_for_it(plays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plays("wire:1 lost")
    lab: Any = SimpleNamespace(run_tag="ab12", generator=SimpleNamespace(cpus=frozenset({0})))
    monkeypatch.setattr(by_generator, "expect_linked", EXPECT_LINKED)
    monkeypatch.setattr(ledgers, "opened", lambda *_: nullcontext())
    monkeypatch.setattr(ledgers, "state_directory", lambda: Path("/none"))
    monkeypatch.setattr(by_generator, "wired", lambda *_, **__: nullcontext(lab))
    monkeypatch.setattr(by_generator, "cpu_plan", lambda *_: None)
    with (
        pytest.raises(HostError, match=r"^--generator the generator's machine, .*: the connection was lost"),
        connected(),
    ):
        pass


class Saying:
    """A machine that answers all with one thing."""

    where = "the stranger"

    def __init__(self, said: Any) -> None:
        self._said = said

    def ask(self, _order: Order) -> orders.Reply:
        return orders.Reply(self._said)


def test_what_is_left_there_is_told(plays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with posted(asking(), study_of(), said.append) as post:
        assert post is not None
        told = len(said)
    assert len(said) == told, "all was undone"
    with posted(asking(), study_of(), said.append) as post:
        assert post is not None
        monkeypatch.setattr(post.channel, "ask", _left)
        told = len(said)
    assert said[told:] == [
        "warning: the machine: not all was undone there: the namespace is held; "
        f"`virtoll clean --host {SERVER}` removes it"
    ]
    with pytest.raises(KeyboardInterrupt):
        interrupt_one(said)
    assert len(said) == told + 1 + 2, "and an interrupt waits for nobody"


def interrupt_one(said: list[str]) -> None:
    with posted(asking(), study_of(), said.append) as post:
        assert post is not None
        vars(post.channel)["ask"] = _left
        raise KeyboardInterrupt


def _left(_order: Order) -> orders.Reply:
    raise TrialError("the namespace is held", where="the machine")


def test_a_post_that_ends_says_what_it_could_not_undo(post: Direct) -> None:
    def failing() -> None:
        raise HostError("the namespace is held")

    post.post._stack.callback(failing)
    with pytest.raises(TrialError, match="the namespace is held"):
        post.ask(Order(kind="end"))
    post.ask(Order(kind="end"))


@pytest.mark.parametrize("said", [7, None, ["x"]])
def test_no_digest_of_an_image_is_refused(said: Any) -> None:
    with pytest.raises(HostError, match="--generator the stranger: what the generator's machine answers cannot be"):
        by_generator._image(Saying(said), _named("postgres"), "x", lambda _text: None)


@pytest.mark.parametrize("said", [2**63, -1, "soon"])
def test_no_time_is_no_clock(said: Any) -> None:
    with pytest.raises(HostError, match="cannot be read"):
        by_generator._clock(Saying(said))


@pytest.mark.parametrize(
    "said", [{"eth0\x1b[2J": 1}, {"eth0": 10**400}, {f"eth{n}": 0 for n in range(1001)}, {"e" * 65: 0}]
)
def test_no_counters_are_no_losses(said: Any) -> None:
    with pytest.raises(TrialError, match="cannot be read"):
        Far(Saying(said), "ab12", 1, frozenset(), NO_WIRES).losses()


@pytest.mark.parametrize("address", ["", "1.2.3.4\0", "--help", "fe80::1%eth0 x"])
def test_the_way_to_what_is_no_address_is_not_asked_for(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalHost, "run", lambda *_, **__: pytest.fail("somebody was asked"))
    assert by_generator._way_to(address) == ""


def test_an_order_that_was_interrupted_leaves_nobody_to_ask(plays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected() as post:
        with monkeypatch.context() as patch:
            patch.setattr(post.channel._line, "next", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                post.channel.ask(Order(kind="clock"))
        with pytest.raises(GoneError, match="was not awaited"):
            post.channel.ask(Order(kind="clock"))


def _interrupted(*_: object) -> bytes:
    raise KeyboardInterrupt


def test_what_is_missing_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    post_double.stand_here(monkeypatch, tmp_path)
    told = Problem("ab is not installed", "localhost", "apt-get install apache2-utils")
    monkeypatch.setattr(loads()["ab"], "check", lambda *_: [told])
    post = Post("there")
    try:
        order = Order(kind="look", nic="eth7", loads=[part_of(loads()["ab"]())])
        standing = orders.unpacked(post.answer(order.model_dump_json().encode())).read(orders.Standing)
    finally:
        post.end()
    assert standing.problems == [(told.what, told.where, told.remedy)]
    assert standing.tools == {}


@pytest.mark.parametrize("tuned", [{}, {"governor": "CPU frequency governor performance"}])
def test_how_it_is_tuned_is_of_the_machine(
    tuned: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post_double.stand_here(monkeypatch, tmp_path)
    monkeypatch.setattr(tuning, "in_force", lambda _where: tuned)
    post = Post("there")
    try:
        order = Order(kind="look", nic="eth7", loads=[])
        standing = orders.unpacked(post.answer(order.model_dump_json().encode())).read(orders.Standing)
    finally:
        post.end()
    assert standing.machine.get("tuned", {}) == tuned


def test_the_digest_of_a_tool_is_that_of_the_generators_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post_double.stand_here(monkeypatch, tmp_path)
    monkeypatch.setattr(loads()["ab"], "check", lambda *_: [])
    monkeypatch.setattr("virtoll.hosts.programs.digest", lambda name: f"digest of {name}")
    post = Post("there")
    try:
        order = Order(kind="look", nic="eth7", loads=[part_of(loads()["ab"]())])
        standing = orders.unpacked(post.answer(order.model_dump_json().encode())).read(orders.Standing)
    finally:
        post.end()
    assert standing.tools == {"ab": "digest of ab"}
    nic = post_double.NIC
    channel: Any = None
    told = Posted(channel, SERVER, nic, standing, Reading(0, 0, 1), "ab12").told_in(fake_environment())
    assert told.comparable[ELSEWHERE]["load generators"] == {"ab": "digest of ab"}


# -- the whole way ----------------------------------------------------------------------------------------


class Asking(FakeExperiment):
    """One whose trials ask the generator's machine something, as all do."""

    def __init__(self, stage: Stage) -> None:
        super().__init__({"native": 1.0, "docker": 1.25}, spread=0.01)
        assert stage.posted is not None
        self._channel = stage.posted.channel

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        with suppress(TrialError):  # there is no lab of this name
            self._channel.ask(Order(kind="losses", lab="none"))
        yield from super().perform(trial, notes)


@contextmanager
def _asking(stage: Stage, _images: object, _pending: object) -> Iterator[Asking]:
    yield Asking(stage)


@pytest.mark.usefixtures("undrawn")
def test_a_run_whose_generator_is_lost_goes_on_with_it_alone(
    plays: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def virtoll(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        said = capsys.readouterr()
        return int(end.value.code or 0), " ".join(f"{said.out} {said.err}".split())

    on_fakes(monkeypatch, {})
    monkeypatch.setattr(Stage, "lab", _asking)
    monkeypatch.setattr(environment, "of_stage", lambda stage, *_: stage.posted.told_in(fake_environment()))
    (tmp_path / "small.toml").write_text(STUDY)
    out, options = str(tmp_path / "out"), ("--generator", SERVER, "--nic", "eth6,eth7")

    plays("losses:2 lost")
    code, said = virtoll("run", str(tmp_path / "small.toml"), "--out", out, *options)
    assert code == 1
    assert "the generator's machine was lost: the connection was lost" in said
    assert f"`virtoll run {out} --generator {SERVER} --nic eth6,eth7` goes on" in said
    assert [record.status for record in RunDirectory(Path(out)).records()] == ["valid", "failed"]

    plays("")
    code, said = virtoll("run", out)
    assert code == 2
    assert f"virtoll run {out} --generator ssh://root@double.lan:2222 --nic eth6,eth7" in said
    monkeypatch.setattr(nics, "nic", lambda _host, name, **_: post_double.NIC.model_copy(update={"name": "other"}))
    code, said = virtoll("run", out, *options)
    assert code == 3
    assert "generator elsewhere.nic here.name: was eth6, is other" in said
    monkeypatch.setattr(nics, "nic", lambda _host, name, **_: post_double.NIC.model_copy(update={"name": name}))
    code, said = virtoll("run", out, *options)
    assert code == 0, said
    statuses = Counter(record.status for record in RunDirectory(Path(out)).records())
    assert statuses == {"valid": 6, "failed": 1}
    page = (tmp_path / "out/report/index.html").read_text()
    assert "generator elsewhere" in page


@pytest.mark.parametrize("design", ["blocks", "rotation"])
def test_what_comes_is_steered_as_long_as_a_run_lasts(
    design: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    @contextmanager
    def noted(what: str) -> Iterator[Any]:
        done.append(what)
        try:
            yield None
        finally:
            done.append(f"no {what}")

    @contextmanager
    def in_lab(*_: object) -> Iterator[FakeExperiment]:
        with noted("lab"):
            yield FakeExperiment({"native": 1.0})

    monkeypatch.setattr(ledgers, "opened", lambda *_: noted("ledger"))
    monkeypatch.setattr(laboratory, "wired", lambda *_, **__: noted("wires"))
    monkeypatch.setattr(laboratory, "in_lab", in_lab)
    far: Any = SimpleNamespace(
        steering=lambda *_: noted("steering"), uplink=lambda: None, stood=lambda *_: noted("post")
    )
    study = study_of(head=f'name = "apart"\nblocks = 2\ndesign = "{design}"\n')
    directory = run_directory(tmp_path / "run", fake_environment(), study)
    cpus: Any = None
    files: dict[str, str] = {}
    images: Any = None
    pending = directory.pending()
    with laboratory.laboratory(
        study, LocalHost(), cpus, images, pending=pending, files=files, posted=far
    ) as experiment:
        for trial in pending:
            for _ in experiment.perform(trial, Notes(tmp_path, lambda _: None)):
                pass
    assert (done[:3], done[-3:]) == (["ledger", "steering", "wires"], ["no wires", "no steering", "no ledger"])
    assert done.count("steering") == 1
    assert (done.count("wires") > 1) == (design == "rotation")


@pytest.mark.usefixtures("undrawn")
def test_a_run_whose_generator_is_here_is_made_ready_as_it_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_fakes(monkeypatch, {})
    seen: list[Stage] = []
    offered = Stage.offered

    def looked(self: Stage, file: str) -> Any:
        seen.append(self)
        return offered(self, file)

    monkeypatch.setattr(Stage, "offered", looked)
    monkeypatch.setattr(Stage, "prepare", lambda self, *_: seen.append(self))
    (tmp_path / "small.toml").write_text(STUDY)
    assert run_study(Request(study=str(tmp_path / "small.toml"), out=tmp_path / "out")) == 0
    assert len(seen) == 2
    assert seen[0] is seen[1], "what it knows of files and memory is not asked for twice"


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"nic": None}, "--generator needs --nic"),
        ({"generator": None}, "--nic needs --generator"),
        ({"host": "ssh://a"}, "--generator and --host"),
        ({"cluster": "tls://a:1"}, "--generator and --cluster"),
        ({"generator": "server.lan"}, "'server.lan' is no host"),
    ],
)
def test_options_that_do_not_go_together(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(StudyError, match=what):
        run_study(asking(**changes))


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("[generators]\ncount = 2\n", "one generator stands there"),
        ('[link]\ndelay = "5 ms"\n', "is not shaped"),
        ('[[arms]]\nplatform = "ssh"\ndestination = "root@a"\n', "it is reached over this machine's own network"),
    ],
)
def test_what_needs_the_generator_here_is_refused(more: str, what: str) -> None:
    expect_apart(study_of(), "apart.toml")
    with pytest.raises(StudyError, match=what):
        expect_apart(study_of(more), "apart.toml")


def test_what_only_this_machine_has_is_refused() -> None:
    expect_apart(_named("postgres"), "x")  # whose load's programs are packages
    own = 'name = "mine"\nblocks = 2\n[service]\nname = "nginx"\n[load]\nname = "command"\nimage = "dir:there"\n'
    own += 'run = ["x", "{address}"]\nwork = { read = "(1)" }\n[[arms]]\nplatform = "native"\n'
    with pytest.raises(StudyError, match="an image that is on this machine"):
        expect_apart(read_study(own, "mine.toml", catalogue()), "mine.toml")
    with pytest.raises(StudyError, match="media that are made beforehand"):
        expect_apart(_named("conference"), "x")
    with pytest.raises(StudyError, match="probes ask from the generator's place"):
        expect_apart(_named("micro"), "x")


def _named(name: str) -> Study:
    from virtoll.run.named import text_of

    return read_study(*text_of(name), catalogue())


def run_directory(path: Path, environment: Any, study: Study | None = None) -> RunDirectory:
    from virtoll.study import document
    from virtoll.study.plan import make_plan

    study = study or study_of()
    plan = make_plan(study, [entry.arm for entry in study.arms], {"native": 1.0})
    return RunDirectory.create(path, document.as_json(study), plan, environment)


def test_a_run_goes_on_with_the_generator_where_it_was(tmp_path: Path) -> None:
    nic = {"name": "eth7"}
    far = fake_environment(**{ELSEWHERE: {"nic": nic, "nic here": {"name": "eth6"}}})
    begun = run_directory(tmp_path / "far", far)
    with pytest.raises(StudyError, match="--generator ssh://root@HOST --nic eth6,eth7"):
        expect_as_begun(begun, Request(study=str(begun.path)))
    expect_as_begun(begun, asking())
    with pytest.raises(StudyError, match="is on the machine that it measures"):
        expect_as_begun(run_directory(tmp_path / "near", fake_environment()), asking())


def test_options_of_anybodys_run_are_words() -> None:
    far = fake_environment(**{ELSEWHERE: {"nic": {"name": "a; rm -rf /"}, "nic here": 7}})
    assert generator_options(far) == " --generator ssh://root@HOST --nic HERE,THERE"


# -- lost in a trial --------------------------------------------------------------------------------------


class Losing(FakeExperiment):
    """The generator's machine is lost in the second trial."""

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        if trial.position == 2:
            raise GoneError("the generator's machine was lost: a cable")
        yield from super().perform(trial, notes)


def test_a_trial_in_which_it_is_lost_comes_again_and_no_other_is_begun(tmp_path: Path, told: Any) -> None:
    directory = run_directory(tmp_path / "run", fake_environment())
    with directory.writing(), pytest.raises(GoneError):
        execute(directory, Losing({"native": 1.0}, spread=0.01), told)
    last = directory.records()[-1]
    assert (last.status, last.reason) == ("failed", "interrupted: the generator's machine was lost: a cable")
    assert directory.pending()[0].id == f"{last.trial.id}r"
    assert len(directory.records()) == 2


@pytest.fixture(name="told")
def _told() -> Any:
    class Silent:
        def trial_started(self, _trial: object) -> None: ...

        def phase(self, _trial: object, _name: str) -> None: ...

        def trial_sealed(self, _record: object) -> None: ...

    return Silent()
