"""The [[probes]] of a study file: each table is a probe with settings; a list of values is a case for each of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from virtoll.study.model import Case
from virtoll.study.reader import Reader
from virtoll.study.values import Spec, nearest, specs_of

TABLE = "probes"
MOST_CASES = 2000
# How a case is measured, not what: they tell no case from another.
MANNER = ("windows", "time", "warm_up", "series", "trace", "most_short_percent")


def programme(reader: Reader, tables: Sequence[Mapping[str, Any]]) -> tuple[Case, ...]:
    """The cases of all tables. Of one probe, every case names each setting that any of its tables sets."""
    set_somewhere: dict[str, dict[str, None]] = {}
    for table in tables:
        keys = (key for key in table if key not in ("name", *MANNER))
        set_somewhere.setdefault(str(table.get("name")), {}).update(dict.fromkeys(keys))
    cases: list[Case] = []
    for index, table in enumerate(tables):
        for case in _cases(reader, table, index, tuple(set_somewhere[str(table.get("name"))])):
            if any(case.condition == other.condition for other in cases):
                reader.fail(f"this case of {case.probe} is there already", TABLE, "name", occurrence=index)
            cases.append(case)
    return tuple(cases)


def _cases(reader: Reader, table: Mapping[str, Any], index: int, shown: tuple[str, ...]) -> list[Case]:
    known = reader.catalogue.probes
    name = table.get("name")
    if not isinstance(name, str) or name not in known:
        what = f"no probe is called {name!r}{nearest(name, known)}"
        reader.fail(what, TABLE, "name", f"`virtoll list probes` shows: {', '.join(known)}", index)
        return []
    specs = specs_of(name, known[name])
    given = {key: value for key, value in table.items() if key != "name"}
    reader.unknown(given, specs.keys(), TABLE, index)
    levels = {key: _levels(reader, spec, given, index) for key, spec in specs.items()}
    count = math.prod(len(each) for each in levels.values())
    if count > MOST_CASES:
        reader.fail(f"{count:,} cases of {name}, and {MOST_CASES:,} are the most", TABLE, "name", occurrence=index)
        return []
    cases = []
    for combination in itertools.product(*levels.values()):
        settings = dict(zip((spec.path.partition(".")[2] for spec in specs.values()), combination, strict=True))
        told = {specs[key].path: settings[specs[key].path.partition(".")[2]] for key in shown if key in specs}
        line = reader.line(TABLE, "name", index)
        expected_s = 0.0 if reader.problems else getattr(known[name](**settings), "expected_s", 0.3)
        cases.append(Case(name, settings, {"probe": name, **told}, line, expected_s=expected_s))
    return cases


def _levels(reader: Reader, spec: Spec, given: Mapping[str, Any], index: int) -> list[Any]:
    if spec.key not in given:
        return [spec.default]
    raw = given[spec.key]
    if raw == []:
        reader.fail(f"{spec.key} has no value", TABLE, spec.key, occurrence=index)
    values = raw if isinstance(raw, list) else [raw]
    return [reader.parsed(spec, value, TABLE, spec.key, index) for value in values]
