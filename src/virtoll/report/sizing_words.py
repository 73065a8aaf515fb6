"""A plan for users, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from virtoll.analysis.knees import told
from virtoll.analysis.scaling import Law
from virtoll.analysis.server import deployments
from virtoll.analysis.sizing import Size, Span
from virtoll.plain import typed
from virtoll.report.numbers import size as memory_size
from virtoll.report.packing import measured_by, memory_limit
from virtoll.report.packing import said as density_said
from virtoll.report.reservations import cautions
from virtoll.report.sizing import Row, Sizing
from virtoll.report.tables import Cell, Table, plain
from virtoll.units import exact_percent

_DENSITY = "density"  # in the place of what a host runs out of
_HEADS = ("", "carried", "with headroom", "instances", "CPUs each", "memory each", "a host holds", "hosts", "cost")


def as_text(plans: Sequence[Sizing]) -> str:
    """Each server's table, what could not be told, the law where there is one, and what nobody measured."""
    return "\n\n".join("\n".join(_lines(plan)) for plan in plans)


def _lines(plan: Sizing) -> Iterator[str]:
    table = _table(plan)
    yield plain(table) if table.rows else "\n\n".join((table.caption, *table.notes[:1]))
    yield ""
    said = [(row, line) for row in plan.rows for line in _all_said(plan, row)]
    yield from _grouped(said)
    laws = [(row, _law(plan, row.law)) for row in plan.rows if row.law is not None]
    if laws:
        yield "\nGunther's scalability law, X(N) = g N / (1 + a (N - 1) + b N (N - 1)), of work delivered:"
        yield from (f"  {line}" for line in _grouped(laws))
    yield "\nNot measured:"
    yield from (f"  {line}" for line in _not_measured(plan))


def _grouped(said: Sequence[tuple[Row, str]]) -> Iterator[str]:
    """What is said of several arms, once."""
    whose: dict[str, list[str]] = {}
    for row, line in said:
        whose.setdefault(line, []).append(_label(row))
    return (f"{', '.join(labels)}: {line}" for line, labels in whose.items())


def _table(plan: Sizing) -> Table:
    asked, machine = plan.asked, f"{plan.asked.host_cpus:g} CPUs and {memory_size(plan.asked.host_memory_bytes)}"
    server = f"{plan.server}: " if plan.server else ""
    unit = f" {plan.unit}" * bool(plan.unit)  # which a search tells when it has ended
    caption = f"{server}{asked.users:,}{unit}, headroom {exact_percent(asked.headroom)} %, hosts of {machine}"
    rows = tuple(tuple(Cell(text) for text in (_label(row), *_cells(plan, row.size))) for row in plan.rows if row.size)
    notes: tuple[str, ...] = (
        f"Under {', '.join(plan.objective)}. {plan.findings.run.directory}; 95 % intervals over blocks.",
        "With headroom: whole users of an instance that is given so much less than it carried. A host keeps as much of "
        "its CPUs and memory free. CPUs and memory each: at what was carried.",
        *cautions(plan.findings),
    )
    if plan.path:
        notes += (
            "A ramp knows its levels alone: carried is the highest that met the objective, as all lower ones did, and "
            "the truth lies between it and the next. Where all blocks have the same, chance has no measure.",
        )
    cost = () if plan.price is None else (f"cost per {plan.price.per}",)
    return Table("plan", caption, (*_HEADS[:-1], *cost), rows, notes)


def _cells(plan: Sizing, size: Size | None) -> list[str]:
    if size is None:
        return []
    memory = size.memory_bytes and size.memory_bytes.times(1 / 2**20)
    cells = [_users(size.carried), _whole(size.users), _whole(size.instances), _measure(size.cpus)]
    cells += [f"{_measure(memory)} MiB" if memory else "not known", _whole(size.per_host), _whole(size.hosts)]
    return cells if plan.price is None else [*cells, _cost(plan, size)]


def _cost(plan: Sizing, size: Size) -> str:
    if size.hosts is None or plan.price is None:
        return "not known"
    return _told(size.hosts.times(plan.price.amount), lambda value: f"{value:,.2f}")


def _label(row: Row) -> str:
    return f"{row.carrying.arm.label}{f', {row.words}' if row.words else ''}"


def _users(span: Span) -> str:
    return _told(span, lambda value: f"{value:,.0f}" if value >= 100 else f"{value:,.1f}")


def _whole(span: Span | None) -> str:
    return _told(span, lambda value: f"{value:,.0f}")


def _measure(span: Span | None) -> str:
    return _told(span, lambda value: f"{value:,.0f}" if value >= 100 else f"{value:,.3g}")


def _told(span: Span | None, words: Any) -> str:
    if span is None:
        return "not known"

    def one(value: float) -> str:
        return words(value) if math.isfinite(value) else "none is enough"

    if span.low is None or span.high is None:
        return f"{one(span.value)} (one block)"
    return f"{one(span.value)} [{one(span.low)}, {one(span.high)}]"


def _all_said(plan: Sizing, row: Row) -> Iterator[str]:
    yield from [_bound(plan, row)] if row.size is None else _said(plan, row.size)
    per_host = None if row.size is None or row.size.per_host is None else row.size.per_host.value
    needed = None if per_host is None else round(per_host / (1 - plan.asked.headroom), 9)
    planned = memory_limit(plan.findings.run, row.carrying.condition)
    yield from density_said(plan.density, row.carrying.arm, needed, planned, plan.findings.run.far_hosts)
    yield from _of_others(plan, row)


def _of_others(plan: Sizing, row: Row) -> Iterator[str]:
    """Of blocks in which an arm was deployed, and that told nothing of it."""
    told, tried = row.carrying.blocks, deployments(plan.findings.matrix, row.carrying.arm)[0]
    if 0 < told < tried:
        yield (
            f"by {told} of {tried} blocks: of the others nothing valid is known, which may be the worse ones; "
            f"`virtoll report {_directory(plan)}` lists their trials"
        )


def _said(plan: Sizing, size: Size) -> Iterator[str]:
    """What a row of the table does not say by itself."""
    if size.blocks == 1:
        yield f"one block has no interval: {_more_blocks(plan)}"
    elif size.carried.low == size.carried.high:
        yield "all blocks carried the same, which is no measure of chance: the interval has no width, and tells none"
    if size.hosts is None:
        yield "CPU time or memory was not sampled at what it carried: how many fit on a host is not known"
    elif size.per_host is not None and size.per_host.value < 1 and size.bound_by == _DENSITY:
        yield "of what idle instances a host holds none is left beside the headroom"
    elif size.per_host is not None and size.per_host.value < 1:
        yield f"one instance takes more {size.bound_by} than a host has to give"
    elif size.bound_by == _DENSITY:
        yield "what binds first is how many idle instances a host holds, before its CPUs and its memory"
    elif size.bound_by:
        yield f"a host runs out of {size.bound_by} first"


def _more_blocks(plan: Sizing) -> str:
    """What makes a run longer that is whole; one that is not is gone on with, and its plan is never made shorter. One
    that a rule ends, or that other hosts measured, is not made longer.
    """
    run = plan.findings.run
    if run.is_kept:
        return "this copy is not gone on with"
    if run.pending:
        return f"`virtoll run {_directory(plan)}{run.far}` gives one"
    if run.plan.rule is not None or run.plan.hosts:
        return f"a new run of {run.study.get('name', 'STUDY')} with more blocks gives one"
    return f"`virtoll run {_directory(plan)} --blocks {max(4, run.plan.blocks + 2)}` gives one"


def _bound(plan: Sizing, row: Row) -> str:
    """What is known of an arm that has no number."""
    each, users = row.carrying, plan.asked.users
    if each.lost:
        return f"nothing valid is known: {each.lost}; `virtoll report {_directory(plan)}` lists its trials"
    if each.below is not None:
        some = f"in {each.bounded} of {each.of} deployments it " if each.bounded < each.of else ""
        return (
            f"{some}carries fewer than {told(each.below)} {plan.unit}, the least that was tried: nothing can be "
            f"planned by it; {_wider(plan, 'least')}"
        )
    assert each.at_least is not None
    if not each.at_least:
        remedy = f"`virtoll report {_directory(plan)}` lists its trials" if plan.path else _wider(plan, "most")
        return f"what it carries is not known: in some block not even the least was told; {remedy}"
    users_each = math.floor(round(each.at_least * (1 - plan.asked.headroom), 9))  # 0.8 of 10 is 8, and not 7.99...
    if users_each < 1:
        return (
            f"carries {told(each.at_least)} {plan.unit} or more, which is a bound and no number, and with the headroom "
            f"no whole one; {_wider(plan, 'most')}"
        )
    most = math.ceil(users / users_each)
    return (
        f"carries {told(each.at_least)} {plan.unit} or more, which is a bound and no number: beyond lies what was not "
        f"tried, what is not valid, or what the generator could not offer; so at most {most:,} "
        f"instance{'s' * (most > 1)}, and hosts are not known; {_wider(plan, 'most')}"
    )


def _wider(plan: Sizing, which: str) -> str:
    name = plan.findings.run.study.get("name", "STUDY")
    if plan.path:
        level = "lower" if which == "least" else "higher"
        return f"run {name} with {level} levels of {plan.path.partition('.')[2]}"
    change = "a smaller `least`" if which == "least" else "a larger `most`, or with more CPUs for the generator"
    return f"run {name} with {change}"


def _law(plan: Sizing, law: Law | str) -> str:
    if isinstance(law, str):
        return f"refused: {law}"
    levels, off = law.levels, f"{law.off * 100:.1f} %"
    peak = f"none up to {law.at:g}" if math.isinf(law.peak) else f"{law.peak:,.0f} {plan.unit}"
    peak += ", the fewest that were tried, or below" if law.peak == levels[0] else ""
    fitted = f"fitted to {len(levels)} levels from {levels[0]:g} to {levels[-1]:g}, at most {off} off"
    (said, low, high), (seen, least, most) = law.foretold, law.measured
    return (
        f"g = {law.gain:.4g}, a = {law.contention:.4g}, b = {law.crosstalk:.4g}; peak: {peak}; {fitted}; at "
        f"{law.at:g}, which was not fitted, it foretells {said:.4g} [{low:.4g}, {high:.4g}], and {seen:.4g} "
        f"[{least:.4g}, {most:.4g}] was measured"
    )


def _not_measured(plan: Sizing) -> Iterator[str]:
    yield "what instances on one host take from each other: `virtoll run isolation`"
    if plan.density is None:
        more = f"{_density(plan)}, and then --density with its run directory"
        yield f"what a host takes for idle instances, and how many it holds: {more}"
    if plan.price is None:
        yield "what it costs, for no price was given: `--price 0.05/hour`, of a host"


def _density(plan: Sizing) -> str:
    """Of the first arm that is not native."""
    run = plan.findings.run
    others = [row.carrying for row in plan.rows if row.carrying.arm.role != "baseline"]
    if not others:
        return f"`virtoll run density{run.far_hosts}`"
    first = others[0]
    return measured_by(first.arm, memory_limit(run, first.condition), run.far_hosts)


def _directory(plan: Sizing) -> str:
    return typed(plan.findings.run.directory)


def as_json(plans: Sequence[Sizing]) -> dict[str, Any]:
    """docs/JSON.md has the keys."""
    return {"plans": [_plan(plan) for plan in plans]}


def _plan(plan: Sizing) -> dict[str, Any]:
    asked = {"users": plan.asked.users, "unit": plan.unit, "headroom": plan.asked.headroom}
    host = {"cpus": plan.asked.host_cpus, "memory_bytes": plan.asked.host_memory_bytes}
    price = None if plan.price is None else asdict(plan.price)
    head = {"run": str(plan.findings.run.directory), "server": plan.server, **asked, "host": host, "price": price}
    head["density"] = None if plan.density is None else str(plan.density.run)
    return {**head, "objective": list(plan.objective), "arms": [_arm(plan, row) for row in plan.rows]}


def _arm(plan: Sizing, row: Row) -> dict[str, Any]:
    each, size = row.carrying, row.size
    spans = {name: None if size is None else _numbers(getattr(size, name), whole) for name, whole in _SPANS.items()}
    hosts = None if size is None or plan.price is None or size.hosts is None else size.hosts.times(plan.price.amount)
    return {
        "arm": each.arm.label,
        "condition": dict(each.condition.levels),
        **spans,
        "cost": _numbers(hosts),
        "blocks": 0 if size is None else size.blocks,
        "bound_by": None if size is None else size.bound_by or None,
        "density": _packed(plan, row),
        "at_least": each.at_least,
        "below": each.below,
        "said": "; ".join(_all_said(plan, row)),
        "law": _law_numbers(row.law),
    }


def _packed(plan: Sizing, row: Row) -> dict[str, Any] | None:
    """What was measured, whether it bounds this plan or not."""
    each = None if plan.density is None else plan.density.of(row.carrying.arm)
    return None if each is None else {"arm": each.of.label, "held": list(each.held), "at_least": each.at_least or None}


# What a size tells, and whether it is in whole numbers.
_SPANS = {
    **dict.fromkeys(("carried", "cpus", "memory_bytes"), False),
    **dict.fromkeys(("users", "instances", "per_host", "hosts"), True),
}


def _numbers(span: Span | None, whole: bool = False) -> dict[str, float | None] | None:
    """inf, where no number is enough, is null: JSON has none."""
    if span is None:
        return None

    def one(value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        return round(value) if whole else value

    return {name: one(value) for name, value in asdict(span).items()}


def _law_numbers(law: Law | str | None) -> dict[str, Any] | None:
    if law is None:
        return None
    if isinstance(law, str):
        return {"refused": law}
    return {**asdict(law), "peak": None if math.isinf(law.peak) else law.peak}
