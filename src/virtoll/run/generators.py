"""What keeps one server from being loaded by several generators (`[generators] count`)."""

from __future__ import annotations

from collections.abc import Iterator

from virtoll.errors import Problem
from virtoll.trial.treatment import Driven, Treatment

_ONE = "write count = 1 in [generators]"


def of_generators(treatment: Treatment, file: str) -> Iterator[Problem]:
    """What is wrong under a treatment of several; nothing, where there is one."""
    where = f"{file}: [generators] count"
    for what, remedy in _of(treatment) if treatment.generators > 1 else ():
        yield Problem(what, where, remedy)


def _of(treatment: Treatment) -> Iterator[tuple[str, str]]:
    """What is wrong, and the remedy."""
    work, knee, count = treatment.work, treatment.knee, treatment.generators
    if not isinstance(work, Driven):
        yield "generators drive a service, and this study has none", "leave [generators] out"
        return
    if why := work.load.undivided(count):
        yield why, f"change [load], or {_ONE}"
    if knee is not None and work.load.intensity.whole and knee.least < count:
        what = f"{knee.least:g} {work.load.intensity.unit} cannot be shared by {count} generators"
        yield what, f"write least = {count} or more in [knee]"
    if treatment.rotation is not None:
        what = "several generators take a quarter of a second to agree when a window begins, after its lead-in"
        yield what, f'measure one arm after another (design = "blocks"), or {_ONE}'
    if treatment.neighbour.aggressor:
        what = "what an aggressor does is read request by request, which several generators do not keep"
        yield what, f"leave [neighbour] out, or {_ONE}"
    if treatment.neighbour.servers == "others":
        yield "other servers beside it are loaded by one generator each", f'write servers = "none", or {_ONE}'
