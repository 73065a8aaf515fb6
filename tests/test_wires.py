"""That the wire between a generator on another machine and what it loads was not what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from virtoll.hosts import devices
from virtoll.hosts.base import Completed
from virtoll.loads.http import HttpLoad
from virtoll.offers import Http
from virtoll.post import orders
from virtoll.post.clocks import Reading
from virtoll.post.orders import Carried, Order
from virtoll.post.sessions import LINK, Far, FarSession
from virtoll.post.wires import Stretch, Wires, carried, headroom
from virtoll.record.model import Window

S = 10**9
FULL_BYTES = 122_000_000  # in a second, of 1 Gbit/s: 100 kB objects at 118 MB/s, with all that is around them


def device(root: Path, name: str, *, speed: str, is_virtual: bool = False) -> Path:
    """What /sys tells of one that has carried nothing."""
    (root / name / "statistics").mkdir(parents=True)
    for key, text in {"ifindex": "4", "address": "a", "speed": speed}.items():
        (root / name / key).write_text(f"{text}\n")
    if not is_virtual:
        (root / name / "device").mkdir()
    counted(root / name, 0, 0)
    return root / name


def counted(path: Path, received: int, sent: int, frames: int = 0) -> None:
    """So many bytes, and frames in each direction, so far."""
    told = {"rx_bytes": received, "tx_bytes": sent, "rx_packets": frames, "tx_packets": frames}
    for name, count in told.items():
        (path / "statistics" / name).write_text(f"{count}\n")


class Ip:
    """A machine that has one device of this name."""

    def __init__(self, name: str) -> None:
        self._said = json.dumps([{"ifname": name, "ifindex": 4, "address": "a"}]).encode()

    def run(self, argv: Any, **_: Any) -> Completed:
        return Completed(tuple(argv), 0, self._said, b"")


def test_the_wires_of_a_vlan_of_a_bond_are_its_ports(tmp_path: Path) -> None:
    """The bond tells their sum, and one connection goes through one of them."""
    for name, speed in {"eno1.10": "2000", "bond0": "2000"}.items():
        device(tmp_path, name, speed=speed, is_virtual=True)
    for name in ("p0", "p1", "p2"):
        device(tmp_path, name, speed="1000")
    for above, below in (("eno1.10", "bond0"), ("bond0", "p0"), ("bond0", "p1")):
        (tmp_path / above / f"lower_{below}").symlink_to(tmp_path / below)
    host: Any = Ip("eno1.10")
    assert [path.name for path in Wires.of(host, "eno1.10", tmp_path).paths] == ["p0", "p1"]


def test_a_virtual_devices_speed_is_no_wires(tmp_path: Path) -> None:
    """A veth tells 10,000 Mbit/s, and a tap 10."""
    device(tmp_path, "a0", speed="10000", is_virtual=True)
    host: Any = Ip("a0")
    assert Wires.of(host, "a0", tmp_path) == Wires(())
    assert Wires.of(host, "gone", tmp_path) == Wires(())


@pytest.mark.parametrize(("told", "speed"), [("1000", 1000), ("-1", None), ("0", None), ("", None)])
def test_what_is_around_a_frame_is_on_the_wire(tmp_path: Path, told: str, speed: int | None) -> None:
    eno1 = device(tmp_path, "eno1", speed=told)
    wires = Wires((eno1, tmp_path / "gone"))
    before = wires.look()
    counted(eno1, 6_000, 600, frames=10)
    (found,) = carried(before, wires.look())
    assert found == Carried(device="eno1", speed_mbit_per_s=speed, received_bytes=6_240, sent_bytes=840)


def wire(sent_bytes: int, speed: int | None = 1000, name: str = "eno1") -> Carried:
    return Carried(device=name, speed_mbit_per_s=speed, received_bytes=sent_bytes // 50, sent_bytes=sent_bytes)


def window(**fields: Any) -> Window:
    return Window(**{"start_ns": 5 * S, "duration_ns": S, "work": 1, **fields})


@pytest.mark.parametrize(
    ("here", "there", "passed", "told"),
    [
        ([wire(FULL_BYTES)], [wire(FULL_BYTES)], False, "98% of 1,000 Mbit/s sent over eno1 here (90% may be)"),
        ([wire(FULL_BYTES // 2)], [wire(FULL_BYTES // 2)], True, "49% of 1,000 Mbit/s sent over eno1 here"),
        ([wire(FULL_BYTES, 10_000)], [wire(FULL_BYTES)], False, "98% of 1,000 Mbit/s sent over eno1 there"),
        ([wire(FULL_BYTES)], [], False, "98%"),  # whatever the other end does not tell
        ([wire(FULL_BYTES // 2)], [], None, "no device there tells a wire's speed"),
        ([wire(FULL_BYTES, None)], [wire(9)], None, "no device here tells a wire's speed"),
        ([wire(9), wire(9, None, "p1")], [wire(9)], None, "the speed of p1 here is not told"),
        ([wire(9), wire(0, None, "p1")], [wire(9)], True, "0%"),  # its cable is out
        ([wire(FULL_BYTES), wire(0, name="p1")], [wire(9)], False, "98%"),  # of one port
        ([wire(0)], [wire(FULL_BYTES)], None, "the counters of eno1 here do not keep up with the windows"),
    ],
)
def test_a_full_wire_is_told(here: list[Carried], there: list[Carried], passed: bool | None, told: str) -> None:
    found, detail = headroom([Stretch(window(), here, there, S)])
    assert (found, detail[: len(told)]) == (passed, told)


def test_of_several_windows_those_of_one_intensity_count_together() -> None:
    """A search's many light windows hide no full one; of windows alike one's counters may tell what another carried."""

    def found(*shares: tuple[float, float]) -> bool | None:
        told = [(window(at=at), [wire(round(FULL_BYTES * share))]) for at, share in shares]
        return headroom([Stretch(each, ends, ends, S) for each, ends in told])[0]

    assert found((10, 0.1), (20, 0.2), (30, 1)) is False
    assert found((10, 0.1), (10, 1.4), (10, 0.6)) is True


def test_answers_after_the_windows_end_leave_it_open_whether_the_wire_was_full() -> None:
    """Half of what was carried may have come then."""
    half = [wire(FULL_BYTES)]
    assert headroom([Stretch(window(until_ns=7 * S), half, half, S)]) == (
        None,
        "between 49% and 98% of 1,000 Mbit/s sent over eno1 here: some of it may be of before or after the windows",
    )
    led_in = window(asked_ns=4 * S, until_ns=6 * S)
    assert headroom([Stretch(led_in, half, half, S)])[0] is True, "what came in the lead-in takes its time, too"
    program = window(until_ns=6 * S, cpu_span_ns=2 * S)  # nobody tells how much of its run lay within the window
    assert headroom([Stretch(program, half, half, S)])[0] is None


def test_what_users_had_while_they_joined_is_not_of_the_window() -> None:
    """Of viewers who fill their buffers before it, a wire a third full was told as 90 % used."""
    of_25_s = [wire(9 * FULL_BYTES)]
    joined = Stretch(window(duration_ns=10 * S), of_25_s, of_25_s, 25 * S)
    assert headroom([joined]) == (True, "88% of 1,000 Mbit/s sent over eno1 here (90% may be)")
    more = [wire(10 * FULL_BYTES)]
    assert headroom([Stretch(window(duration_ns=10 * S), more, more, 25 * S)]) == (
        None,
        "between 39% and 98% of 1,000 Mbit/s sent over eno1 here: some of it may be of before or after the windows",
    )


def test_what_tells_no_wires_speed_or_counts_once_a_second_is_not_known(tmp_path: Path) -> None:
    """An emulated device (e1000, vmxnet3) carries more than it tells; tg3's counters are late by up to 1 s."""
    fast = [wire(2 * FULL_BYTES)]
    told = "195% of 1,000 Mbit/s sent over eno1 here: that is no wire's speed"
    assert headroom([Stretch(window(), fast, fast, S)]) == (None, told)
    eno1 = device(tmp_path, "eno1", speed="1000")
    (tmp_path / "tg3").mkdir()
    (eno1 / "device/driver").symlink_to(tmp_path / "tg3")
    wires = Wires((eno1,))
    before = wires.look()
    counted(eno1, 0, FULL_BYTES)
    coarse = carried(before, wires.look())
    assert headroom([Stretch(window(), coarse, [wire(9)], S)]) == (
        None,
        "the counters of eno1 here are brought up to date once a second",
    )


def test_of_a_bridges_ports_those_of_its_guests_are_no_wires(tmp_path: Path) -> None:
    """A guest that is stopped loses what is flooded to its tap."""
    device(tmp_path, "vmbr0", speed="10000", is_virtual=True)
    (tmp_path / "vmbr0/bridge").mkdir()
    for name, is_virtual in (("eno1", False), ("tap0", True), ("eno2.20", True), ("eno2", False)):
        device(tmp_path, name, speed="1000", is_virtual=is_virtual)
    for above, below in (("vmbr0", "eno1"), ("vmbr0", "tap0"), ("vmbr0", "eno2.20"), ("eno2.20", "eno2")):
        (tmp_path / above / f"lower_{below}").symlink_to(tmp_path / below)
    told = {"ifname": "vmbr0", "ifindex": 4, "address": "a"}
    names = [path.name for path in devices.and_below(told, tmp_path)]
    assert names == ["eno1", "eno2", "eno2.20", "vmbr0"]


def test_all_at_once_says_nothing_of_a_wire() -> None:
    found = headroom([Stretch(window(duration_ns=0), [wire(9)], [wire(9)], 0)])
    assert found == (None, "the windows have no length: all requests were sent at once")


def test_a_session_proves_that_its_link_had_headroom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eno1 = device(tmp_path, "eno1", speed="1000")

    class Measuring:
        where = "another machine"

        def ask(self, order: Order) -> orders.Reply:
            if order.kind != "measure":
                return orders.Reply(1)
            counted(eno1, 9, FULL_BYTES // 2)
            told = {"window": window().model_dump(mode="json"), "carried": [wire(FULL_BYTES).model_dump()]}
            rest = dict.fromkeys(("histogram", "lateness", "use"))
            return orders.Reply({"instrument": "x", "has_log": False, **rest, **told})

    channel: Any = Measuring()
    monkeypatch.setattr(FarSession, "_clock", lambda _session: Reading(5 * S, 0, 5))
    far = Far(channel, "ab12", 1, frozenset(), Wires((eno1,)))
    with far.client(tmp_path, {}).opened(HttpLoad(), Http("198.18.1.1", 80)) as session:
        session.measure()
        (told,) = [(passed, detail) for name, passed, detail in session.proofs() if name == LINK]
    assert told == (False, "98% of 1,000 Mbit/s sent over eno1 there (90% may be)")
