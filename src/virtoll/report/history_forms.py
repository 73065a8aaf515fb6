"""A folder's history, as people and programs read it: text, JSON, CSV, Parquet, OpenMetrics, Zabbix's sender."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from virtoll.analysis.change_points import LEAST_RUNS, ChangePoint
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.verdicts import cost_percent, interval_words
from virtoll.report import zabbix
from virtoll.report.history import History, Line, Point, Series
from virtoll.report.tables import no_formula
from virtoll.units import percent

_COLUMNS = {
    "study": pa.string(),
    "metric": pa.string(),
    "better": pa.string(),
    "arm": pa.string(),
    "run": pa.string(),
    "begun": pa.timestamp("s", tz="UTC"),
    "environment": pa.int64(),
    "environment_digest": pa.string(),
    "virtoll": pa.string(),
    "ratio": pa.float64(),
    "low": pa.float64(),
    "high": pa.float64(),
    "blocks": pa.int64(),
    "conditions": pa.string(),
    "change": pa.float64(),
    "change_low": pa.float64(),
    "change_high": pa.float64(),
    "change_p": pa.float64(),
}


def sentences(told: History) -> list[str]:
    """What there is to say, a sentence each."""
    environments = {number for each in told.series for number in each.environments}
    where = f"{len(environments)} environment{'s' * (len(environments) != 1)}"
    said = [f"{told.runs} run{'s' * (told.runs != 1)} of {len(told.series)} studies in {where}."]
    if len(told.series) == 1:
        said = [said[0].replace("1 studies", "one study")]
    changes = [
        change_words(line, point, change) + _under_test(series, point) for series, line, point, change in changed(told)
    ]
    if changes:
        return [*said, *changes]
    if told.asked:
        return [*said, *_unchanged(told)]
    alike = "in one environment, over the same conditions"
    return [*said, f"No change is asked for: no arm has {LEAST_RUNS} runs of one study {alike}."]


def _unchanged(told: History) -> Iterator[str]:
    """In how many stretches no change is shown, and in how many none could have been."""
    seen, of = told.asked - told.blind, f"{told.asked} stretch{'es' * (told.asked != 1)} of one environment"
    if seen:
        yield f"No arm is shown to change its level in {seen} of {of}: a change of the last few runs is not seen."
    if told.blind:
        yield f"In {told.blind} of {of} no change could be shown yet: they hold too few runs for so many at once."


def changed(told: History) -> Iterator[tuple[Series, Line, Point, ChangePoint]]:
    """Every change, with the first run of the new level."""
    for series in told.series:
        for line in series.lines:
            for point, change in line.changes:
                yield series, line, point, change


def change_words(line: Line, point: Point, change: ChangePoint) -> str:
    """``docker+routed: Throughput, to native, is worse by 3 % [2, 4] from R (2026-11-23) on (p = 0.001).``"""
    words = _size_words(line, change.ratio)
    since = f"from {point.run.directory.name} ({point.run.begun:%Y-%m-%d}) on"
    return f"{line.arm.label}: {line.metric.title}, to native, is {words} {since} (p = {change.p:.2g})."


def _size_words(line: Line, ratio: Estimate) -> str:
    if ratio.low is None or ratio.high is None:
        cost, *_ = cost_percent(line.metric, ratio.value, ratio.value, ratio.value)
        which = "better" if cost < 0 else "worse"
        return f"{which} by {percent(abs(cost))} % (runs that are all alike have no interval)"
    cost, least, most = cost_percent(line.metric, ratio.value, ratio.low, ratio.high)
    if cost < 0:
        return f"better by {interval_words(-cost, -most, -least)}"
    return f"worse by {interval_words(cost, least, most)}"


def _under_test(series: Series, point: Point) -> str:
    """What was made otherwise right there, where anything was: it may be all there is to a change."""
    lines = next((lines for run, lines in series.configured() if run.directory == point.run.directory), [])
    return f" Different under test from there on: {'; '.join(lines)}." if lines else ""


def rows(told: History) -> Iterator[dict[str, Any]]:
    """A row for each run of each line."""
    for series in told.series:
        for line in series.lines:
            changes = {id(point): change for point, change in line.changes}
            for point in line.points:
                change = changes.get(id(point))
                step = None if change is None else change.ratio
                yield {
                    "study": series.title,
                    "metric": line.metric.name,
                    "better": line.metric.better,
                    "arm": line.arm.label,
                    "run": str(point.run.directory),
                    "begun": point.run.begun,
                    "environment": point.environment,
                    "environment_digest": point.run.environment,
                    "virtoll": point.run.virtoll,
                    **_bounds(point.ratio, "ratio", "low", "high"),
                    "blocks": point.ratio.n,
                    "conditions": "; ".join(point.over),
                    **_bounds(step, "change", "change_low", "change_high"),
                    "change_p": None if change is None else change.p,
                }


def _bounds(estimate: Estimate | None, *names: str) -> dict[str, float | None]:
    values = (None,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)
    return dict(zip(names, values, strict=True))


def as_csv(told: History) -> bytes:
    """CSV; what is missing is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(_COLUMNS))
    writer.writeheader()
    for row in rows(told):
        writer.writerow({name: no_formula(value) for name, value in {**row, "begun": row["begun"].isoformat()}.items()})
    return out.getvalue().encode()


def as_parquet(told: History) -> bytes:
    """Parquet, the same columns."""
    table = pa.Table.from_pylist(list(rows(told)), schema=pa.schema(list(_COLUMNS.items())))
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return bytes(out.getvalue())


_FAMILIES = {
    "ratio": ("virtoll_ratio_to_native", "An arm's ratio to native, of one run."),
    "low": ("virtoll_ratio_to_native_low", "Lower end of its 95 % interval."),
    "high": ("virtoll_ratio_to_native_high", "Upper end of its 95 % interval."),
}
# By label the column: the environment's number might be another's when the folder has more runs.
_LABELS = {
    "study": "study",
    "metric": "metric",
    "arm": "arm",
    "run": "run",
    "environment": "environment_digest",
    "conditions": "conditions",
}


def as_openmetrics(told: History) -> bytes:
    """OpenMetrics 1.0 text with each run's time, as `promtool tsdb create-blocks-from openmetrics` takes it."""
    lines = []
    for column, (family, words) in _FAMILIES.items():
        lines += [f"# TYPE {family} gauge", f"# HELP {family} {words}"]
        for row in rows(told):
            if row[column] is not None:
                labels = ",".join(f'{label}="{_escaped(str(row[name]))}"' for label, name in _LABELS.items())
                lines.append(f"{family}{{{labels}}} {row[column]!r} {int(row['begun'].timestamp())}")
    return ("\n".join([*lines, "# EOF"]) + "\n").encode()


_ITEMS = {"ratio": "virtoll.ratio", "low": "virtoll.ratio.low", "high": "virtoll.ratio.high"}
_NOT_IN_A_KEY = re.compile(r"[^0-9A-Za-z_.]+")


@dataclass(frozen=True)
class ForZabbix:
    """Lines as Zabbix's sender takes them with --with-timestamps and --with-ns, and their hosts and items."""

    lines: tuple[str, ...]
    hosts: tuple[str, ...]
    keys: tuple[str, ...]

    @property
    def file(self) -> bytes:
        """The lines, in the order of time: triggers ask for that."""
        return "".join(f"{line}\n" for line in self.lines).encode()


def for_zabbix(told: History) -> ForZabbix:
    """Each run's ratios at the time when it began. A host is an arm, called as `virtoll export` calls it; an item is a
    study's metric in one environment, for the same arm may be in several studies, and a trigger is to fire for no other
    machine or kernel: ``virtoll.ratio[proxy-quick,rate_per_s,3f9a1c20]``. What Zabbix has is called so for good: by the
    command that began the study's first run, and by a digest of the environment. Of what is over other conditions than
    the arm's first run the metric has a ``_`` behind.
    """
    studies = _studies(told)
    hosts = zabbix.called((line.arm.label, "") for series in told.series for line in series.lines)
    found = []
    for at, series in enumerate(told.series):
        for line in series.lines:
            asked = f"{studies[at]},{_NOT_IN_A_KEY.sub('-', line.metric.name)}"
            kinds = list(dict.fromkeys(point.conditions for point in line.points))
            for point in line.points:
                item = f"{asked}{'_' * kinds.index(point.conditions)},{point.run.environment}"
                at_ns = round(point.run.begun.timestamp() * 1000) * 10**6
                values = _bounds(point.ratio, *_ITEMS)
                found += [
                    (at_ns, hosts[line.arm.label, ""], f"{key}[{item}]", values[column])
                    for column, key in _ITEMS.items()
                ]
    known = sorted((each for each in found if each[3] is not None), key=lambda each: each[0])
    return ForZabbix(
        tuple(zabbix.line(host, key, at_ns, value) for at_ns, host, key, value in known if value is not None),
        tuple(dict.fromkeys(host for _, host, _, _ in known)),
        tuple(dict.fromkeys(key for _, _, key, _ in known)),
    )


def _studies(told: History) -> list[str]:
    """What each series is called in a key, by its first run: no two alike."""
    names: list[str] = []
    for series in told.series:
        name = _NOT_IN_A_KEY.sub("-", series.title).strip("-")
        while name in names:
            name += "_"
        names.append(name)
    return names


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def as_json(told: History) -> dict[str, Any]:
    """The same for programs; docs/JSON.md has the keys."""
    return {
        "folder": str(told.directory),
        "sentences": sentences(told),
        "stretches": told.asked,
        "stretches_too_short": told.blind,
        "rows": [{**row, "begun": row["begun"].isoformat()} for row in rows(told)],
        "environment_changes": [
            {"study": each.title, "run": str(run.directory), "environment": number, "differs": differs}
            for each in told.series
            for run, number, differs in each.moves()
        ],
        "configured_changes": [
            {"study": each.title, "run": str(run.directory), "differs": differs}
            for each in told.series
            for run, differs in each.configured()
        ],
        "left_out": [{"run": str(path), "reason": why} for path, why in told.left_out],
        "not_told": [
            {"run": str(run.directory), "metric": metric, "arm": arm, "reason": why}
            for each in told.series
            for run in each.runs
            for (metric, arm), why in run.missing.items()
        ],
    }


def without(series: Series) -> Iterator[str]:
    """Runs that are told over other levels than the one before, arms that are over other conditions, and those that no
    run of a series has a ratio of, with the first reason that is given; a sentence each.
    """
    for run in series.other_levels():
        where = "; ".join(run.levels) or "no level"
        yield f"{run.directory.name}: all arms met the objective at {where}, and over that it is told"
    for line in series.lines:
        yield from (_other_conditions(line, *both) for both in line.other_conditions())
    lines = {(line.metric.name, line.arm.label) for line in series.lines}
    told = {key: (run, why) for run in reversed(series.runs) for key, why in run.missing.items()}
    titles = {metric.name: metric.title for run in series.runs for metric in run.metrics}
    for (metric, arm), (run, why) in sorted(told.items(), key=lambda item: item[0]):
        if (metric, arm) not in lines:
            yield f"{arm}: none in {titles[metric]} ({run.directory.name}: {why})"


def _other_conditions(line: Line, before: Point, point: Point) -> str:
    """``R: uml+routed is told over 100 viewers too, in Throughput``."""
    more = [each for each in point.over if each not in before.over]
    less = [each for each in before.over if each not in point.over]
    words = [f"over {'; '.join(more)} too"] * bool(more) + [f"no more over {'; '.join(less)}"] * bool(less)
    return f"{point.run.directory.name}: {line.arm.label} is told {', '.join(words)}, in {line.metric.title}"
