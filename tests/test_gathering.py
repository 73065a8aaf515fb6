"""How a crowd gathers for a window of a search: as fast as it is served, and no faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from virtoll.study.gathering import BUFFERS, LOOK_NS, gather, has_settled, steps

SECOND = 10**9


def window(**told: int) -> dict[str, int]:
    """A look of ten viewers who play."""
    return {"playing_ns": SECOND, "starting_ns": 0, "stalled_ns": 0, "gone_ns": 0, "fallen_ns": 0, **told}


@pytest.mark.parametrize(
    ("told", "settled"),
    [
        ({}, True),
        ({"starting_ns": SECOND // 51}, True),
        ({"starting_ns": SECOND // 40}, False),
        ({"stalled_ns": SECOND // 40}, False),
        ({"gone_ns": SECOND // 40}, False),
        ({"fallen_ns": -SECOND // 21}, True),
        ({"fallen_ns": -SECOND // 19}, False),
        ({"fallen_ns": SECOND}, True),
        ({"playing_ns": 0, "starting_ns": SECOND}, False),
    ],
)
def test_who_plays_and_whose_buffer_rises_no_more_has_settled(told: dict[str, int], settled: bool) -> None:
    """Buffers that fall are the window's to tell."""
    assert has_settled(window(**told)) is settled


@dataclass
class Server:
    """It delivers so many times what one viewer plays; each who joins has a buffer of a second to fill. While more
    than a fifth of all are filling theirs, it delivers less: many small pieces.
    """

    delivers: float
    delivers_hungry: float = 1e9
    there: int = 0
    lacks_s: float = 0.0  # of media, in all buffers
    now_ns: int = 0
    asked: list[tuple[int, int]] = field(default_factory=list)

    def look(self, viewers: int, length_ns: int) -> Mapping[str, Any]:
        self.asked.append((viewers, length_ns))
        self.lacks_s = max(0.0, self.lacks_s + max(0, viewers - self.there)) if viewers >= self.there else 0.0
        self.there = viewers
        gained_s = sum(self._passes() for _ in range(length_ns // LOOK_NS))
        time_ns = viewers * length_ns
        waiting_ns = min(time_ns, round(self.lacks_s * length_ns / 2))  # half a buffer is enough to begin
        return window(playing_ns=time_ns - waiting_ns, starting_ns=waiting_ns, fallen_ns=-round(gained_s * SECOND))

    def _passes(self) -> float:
        most = min(self.delivers, self.delivers_hungry) if self.lacks_s > self.there / 5 else self.delivers
        gained_s = min(self.lacks_s, (most - self.there) * LOOK_NS / SECOND)
        self.lacks_s, self.now_ns = self.lacks_s - gained_s, self.now_ns + LOOK_NS
        return gained_s

    def gathers(self, wanted: int, settle_ns: int = 0) -> bool:
        return gather(self.look, self.there, wanted, settle_ns, SECOND, now_ns=lambda: self.now_ns)


def test_a_few_come_at_a_time_and_the_others_when_these_have_settled() -> None:
    server = Server(delivers=10_000)
    assert server.gathers(130, 7 * LOOK_NS)
    crowds = list(dict.fromkeys(viewers for viewers, _ in server.asked))
    assert crowds == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 121, 130]
    assert len(crowds) == steps(0, 130)
    assert server.asked[-3:] == [(130, LOOK_NS), (130, 7 * LOOK_NS), (130, 7 * LOOK_NS)], "the last two are alike"
    assert all(length_ns == LOOK_NS for viewers, length_ns in server.asked if viewers < 130)


def test_who_waits_at_all_times_is_not_waited_for() -> None:
    """Viewers who stay for a while only are followed by others, who wait for their first picture."""
    waits = {"playing_ns": 90, "starting_ns": 0, "stalled_ns": 0, "gone_ns": 0, "fallen_ns": 0}
    asked: list[int] = []

    def look(viewers: int, _length_ns: int) -> Mapping[str, Any]:
        asked.append(viewers)
        return {**waits, "starting_ns": min(3, len(asked))}  # 1 %, 2 %, and then 3 %

    assert gather(look, 0, 60, 0, SECOND, now_ns=lambda: 0)
    assert asked == [10, 20, 30, 40, 50, 60, 60, 60]


def test_nor_is_who_waited_before_others_came() -> None:
    """Of those who are there 3 % stall all along: more came all at once, as if they had not gathered."""
    asked: list[int] = []

    def look(viewers: int, _length_ns: int) -> Mapping[str, Any]:
        asked.append(viewers)
        return {"playing_ns": 97, "starting_ns": 0, "stalled_ns": 3, "gone_ns": 0, "fallen_ns": 0}

    assert gather(look, 300, 375, 0, SECOND, now_ns=lambda: 0)
    assert list(dict.fromkeys(asked)) == [300, 330, 363, 375]


def test_a_crowd_that_is_there_is_looked_at_no_more() -> None:
    server = Server(delivers=100, there=40)
    assert server.gathers(40)
    assert server.asked == []


def test_who_is_too_many_leaves_at_once() -> None:
    server = Server(delivers=100, there=80)
    assert server.gathers(40)
    assert [viewers for viewers, _ in server.asked] == [40, 40]


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9, 0.94])
@pytest.mark.parametrize("delivers", [100, 1000])
def test_nearly_all_that_can_be_served_gather_whatever_the_server_is(delivers: int, share: float) -> None:
    """A fixed time told of a smaller share of the slower server."""
    assert Server(delivers).gathers(round(share * delivers))


def test_a_server_that_serves_the_hungry_worse_is_not_starved_by_all_at_once() -> None:
    """nginx-rtmp in a container carried 74 viewers of a crowd that came at once, and 352 and more of one that
    gathered.
    """
    at_once = Server(400, delivers_hungry=100)
    at_once.look(300, LOOK_NS)
    assert not any(has_settled(at_once.look(300, LOOK_NS)) for _ in range(100))
    assert Server(400, delivers_hungry=100).gathers(300)


@pytest.mark.parametrize("wanted", [110, 400])
def test_who_are_too_many_to_be_served_are_not_waited_for_long(wanted: int) -> None:
    server = Server(delivers=100)
    assert not server.gathers(wanted)
    last = server.asked[-1][0]
    assert 95 <= last <= 110
    assert [viewers for viewers, _ in server.asked].count(last) <= 2 * BUFFERS * SECOND / LOOK_NS + 2
