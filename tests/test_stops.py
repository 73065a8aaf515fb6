"""That a stop of the machine is told, and a busy one is none."""

from __future__ import annotations

import threading

from stops import Stops


def test_a_stop_is_told_and_a_late_tick_is_none() -> None:
    times, begun = iter([0.0, 1.0, 2.1, 6.0, 113.0, 114.0]), list[int]()
    stops = Stops(lambda: next(times), begin=lambda: begun.append(1))
    for _ in range(5):
        stops.tick()
    (told,) = stops.found
    assert told.startswith("for 106 s from ")
    assert len(begun) == 5


def test_it_watches_until_it_is_ended() -> None:
    ticked = threading.Event()
    before = _watching()  # a session of tests has one of its own
    end = Stops(begin=ticked.set).watch()
    (thread,) = _watching() - before
    assert ticked.wait(600)
    end()
    assert not thread.is_alive()


def _watching() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "stops"}
