"""That a stop of the machine is told, and a busy one is none."""

from __future__ import annotations

from stops import Stops


def test_a_stop_is_told_and_a_late_tick_is_none() -> None:
    times = iter([0.0, 1.0, 2.1, 6.0, 113.0, 114.0])
    stops = Stops(lambda: next(times))
    for _ in range(5):
        stops.tick()
    (told,) = stops.found
    assert told.startswith("for 106 s from ")


def test_it_watches_until_it_is_ended() -> None:
    end = Stops().watch()
    end()
    end()
