"""What would change nothing: of a factor a report would have a condition for each level, of one treatment; of a rate
the user would believe that it was kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from virtoll.record.model import INTENSITIES
from virtoll.study.sections import Sections

_Why = tuple[str, str]  # and what to do


def why_inert(document: Mapping[str, Any], sections: Sections, path: str) -> _Why | None:
    """Why all levels of a factor would be one and the same, and what to do; None where they are not."""
    section, base = path.partition(".")[0], sections.base
    if section == "origin":
        return "one origin stands for the whole run", "make a study of each"
    if section == "rotation" and document.get("design") != "rotation":
        return "nothing is measured in turn", 'write design = "rotation" at the top, or leave it out'
    if why := _why_overruled(document, sections, path):
        return why
    switch, lacks = _SWITCHES.get(section, ("", ""))
    if not switch or path in (switch, *_NEED_NO_SWITCH) or base.get(switch) or switch in document["factors"]:
        return None
    own = [bool(server.base.get(switch)) for server in sections.servers.values()]
    if own and all(own):
        return None
    if any(own):
        lacks = f"has servers of which it {lacks}"
    return f"this study {lacks}", f"write {switch.partition('.')[2]} in [{section}], or leave it out"


def unheard_rate(document: Mapping[str, Any], loads: Sequence[Mapping[str, Any]]) -> _Why | None:
    """Why none of these loads would keep to its rate, and what to do; None where one would."""
    if any(loop != "closed" for loop in _loops(document, loads)) or _is_said("load.rate_per_s", loads):
        return None
    return "a load in closed loop asks as fast as it is answered, and keeps to no rate", _CLOSED[1]


# Sections that do nothing without one of their values, and what a study is then.
_SWITCHES = {
    "knee": ("knee.objective", "searches for no knee"),
    "neighbour": ("neighbour.aggressor", "has no aggressor"),
    "slices": ("slices.count", "has no slices"),
}
_NEED_NO_SWITCH = ("neighbour.servers",)


def _why_overruled(document: Mapping[str, Any], sections: Sections, path: str) -> _Why | None:
    """What decides in a factor's place under every condition."""
    loads = [server.base for server in sections.servers.values()] or [sections.base]
    searches = [bool(base.get("knee.objective") or sections.base.get("knee.objective")) for base in loads]
    loops, unsaid, in_turn = _loops(document, loads), not _is_said(path, loads), document.get("design") == "rotation"
    asked = (INTENSITIES if all(searches) else ()) + (_USERS if all(loop in ("closed", None) for loop in loops) else ())
    is_rate = path in _OF_OPEN_LOOP and all(loop == "closed" for loop in loops)
    is_amount = path in _OF_CLOSED_LOOP and all(loop == "open" for loop in loops)
    found = (
        (any(searches) and path in asked, _ASKED),
        (any(searches) and path in _LENGTHS + _TURNS and unsaid, _SEARCHED),
        (in_turn and path in _LENGTHS and unsaid, _IN_TURN),
        (is_rate and unsaid, _CLOSED),
        (is_amount, _OPEN),
    )
    return next((why for holds, why in found if holds), None)


_ASKED = "the search for the knee asks for it itself", "leave it out, or leave [knee] out"
_SEARCHED = "the windows of a search are as [knee] says", "vary knee.window or knee.windows, or leave it out"
_IN_TURN = "the windows in turn are as [rotation] says", "vary rotation.window, or leave it out"
_CLOSED = "no load is in open loop", 'write loop = "open" in [load], or leave it out'
_OPEN = "no load is in closed loop", "vary load.time_limit, or leave it out"
_USERS = ("load.connections", "load.users")  # how many there are, of a closed loop
_LENGTHS = ("load.time_limit_ns", "load.requests")  # of a load's own windows
_TURNS = ("rotation.rounds", "rotation.window_ns")
_OF_OPEN_LOOP = ("load.rate_per_s", "load.arrival")
_OF_CLOSED_LOOP = ("load.requests",)


def _loops(document: Mapping[str, Any], loads: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Of all loads under all conditions; None of one that has no setting for it, as programs that are always closed."""
    levels = document.get("factors", {}).get("load.loop")
    return levels if isinstance(levels, list) else [base.get("load.loop") for base in loads]


def _is_said(path: str, loads: Sequence[Mapping[str, Any]]) -> bool:
    """A program of the user's own is told it all the same; how long a window is, each run is told as it is."""
    place, keys = _PLACES.get(path, ("", ()))
    said = (base.get(key) for base in loads for key in keys)
    return any(place in word for words in said if isinstance(words, tuple) for word in words)  # other seeds are numbers


_PLACES = {
    "load.rate_per_s": ("{rate}", ("load.run", "load.seed")),
    "load.time_limit_ns": ("{seconds}", ("load.seed",)),
}
