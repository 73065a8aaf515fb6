"""What keeps the servers of a study from running side by side (`[neighbour] servers = "others"`): all that can be known
before anything is made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.networks.base import network_modes
from virtoll.record.model import BESIDE, SERVER, Arm
from virtoll.run.groups import free_bytes
from virtoll.study.model import Study
from virtoll.study.plan import conditions, elsewhere
from virtoll.trial.deployer import make_platform
from virtoll.trial.treatment import Driven, Treatment, treatment_of
from virtoll.units import format_bytes, format_duration

_ALONE = 'write servers = "none" in [neighbour]'

_NOBODY = f'name several in [servers]; where an [[exclude]] leaves none, exclude "{BESIDE}" = "others" there too'


def problems_side_by_side(study: Study, asked: Sequence[Treatment], file: str) -> list[Problem]:
    """What is wrong with what the study sets side by side; nothing, where it sets nothing so."""
    where = f"{file}: [neighbour] servers"
    together = [each for each in asked if each.neighbour.servers == "others"]
    found = [Problem(what, where, remedy) for each in together for what, remedy in _of(study, each)]
    found += [Problem(what, where, remedy) for what, remedy in _of_platforms(study)]
    return [*dict.fromkeys(found)]


def _of(study: Study, treatment: Treatment) -> Iterator[tuple[str, str]]:
    """What is wrong under one treatment, and the remedy."""
    if not isinstance(treatment.work, Driven) or not treatment.beside:
        yield "no other server is there to run beside the one that is measured", _NOBODY
        return
    if study.design == "rotation":
        what = "the servers beside one arm would be at work while others are measured"
        yield what, 'measure one treatment after another: design = "blocks"'
    if treatment.knee is not None:
        yield "the others are under one load, and not in all of a search for the knee", f"leave out [knee], or {_ALONE}"
    if treatment.neighbour.aggressor:
        yield "beside the others no aggressor is let loose", f"leave the aggressor out, or {_ALONE}"
    works = [treatment.work, *treatment.beside.values()]
    for load in {work.load.name: work.load for work in works}.values():
        if not load.begins_at_a_time:
            yield f"load {load.name!r} begins when it is started, and all are to begin at one time", _ALONE
        elif not load.programs.is_nothing:
            yield f"load {load.name!r} has programs of its own, and only one such load can run at a time", _ALONE
    lengths = dict.fromkeys(getattr(work.load.settings, "time_limit_ns", None) for work in works)
    if None in lengths:
        yield "one of their loads has no time_limit, and nobody knows how long its window is", _ALONE
    elif len(lengths) > 1:
        told = ", ".join(format_duration(length_ns) for length_ns in lengths if length_ns is not None)
        yield f"their windows are of different lengths: {told}", "write one time_limit, in [load]"
    yield from _of_ports(study, works)


def _of_platforms(study: Study) -> Iterator[tuple[str, str]]:
    """What is beside fewer servers on one platform than on the others is not to be compared with them."""
    for platform in dict.fromkeys(entry.arm.platform for entry in study.arms):
        for condition in conditions(study, platform):
            for name in elsewhere(study, condition, platform):
                what = f"{name} is excluded on {platform}, and runs beside {condition[SERVER]} on the other platforms: "
                what += "what these are beside would not be the same"
                rule = f'[[exclude]]\nserver = "{name}"\n"{BESIDE}" = "others"'
                yield what, f"let it run beside nobody on any of them, or be measured on all:\n{rule}"


def _of_ports(study: Study, works: Sequence[Driven]) -> Iterator[tuple[str, str]]:
    """In a mode in which instances share the host's own network stack a port is one service's."""
    shared = [entry.arm.label for entry in study.arms if network_modes()[entry.arm.network].kinds == ("shared",)]
    for one, other in itertools.combinations(works, 2) if shared else ():
        both = [
            str(mine)
            for mine in one.service.ports
            for theirs in other.service.ports
            if mine.protocol == theirs.protocol and mine.number <= theirs.end and theirs.number <= mine.end
        ]
        if both:
            names = " and ".join(sorted((one.service.name, other.service.name)))
            what = f"{names} have the same port ({', '.join(both)}), and on {shared[0]} they share one network stack"
            yield what, "leave one of them out (native has no other network mode)"


def crowded(study: Study, arm: Arm, host: Host) -> list[Problem]:
    """That the memory does not hold all at once what is side by side on an arm; nothing where it does."""
    asked = [treatment_of(study, condition) for condition in conditions(study, arm.platform)]
    together = [each for each in asked if each.beside]
    if not together:
        return []
    platform = make_platform(arm)
    sizes = [platform.overhead_bytes + (0 if platform.is_pooled else each.limits.memory_bytes) for each in together]
    counts = [1 + len(each.beside) for each in together]
    needed, count = max((size * count, count) for size, count in zip(sizes, counts, strict=True))
    free = free_bytes(host)
    if needed <= free:
        return []
    what = f"{count} instances of {arm.label} may take {format_bytes(needed)}, and {format_bytes(free)} are free"
    return [Problem(what, remedy="give less in [limits] memory, or free some")]
