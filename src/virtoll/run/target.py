"""`virtoll run STUDY --target URL`: a study's load at a server of the user's own, here and now.

Nothing is deployed and nothing compared: it tells what the generator measured, and whether it did its own part.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtoll.analysis.load import Histogram
from virtoll.errors import Problem, StudyError
from virtoll.hosts.base import Confinement
from virtoll.hosts.ledger import scratch
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads.base import Load, Measurement
from virtoll.offers import BigBlueButton, Target
from virtoll.plain import printable
from virtoll.record.model import LEAST_BEYOND, Measured, beyond
from virtoll.run.alone import alone
from virtoll.study.model import Study
from virtoll.trial import proofs
from virtoll.trial.notes import Notes
from virtoll.trial.treatment import Driven, treatments
from virtoll.units import format_duration, plural

_OPTION = "--target"
_PERCENTILES = (0.5, 0.9, 0.99)
_USERS = ("viewers", "connections", "participants")  # the setting of a load that says how many there are at once


@dataclass(frozen=True)
class _Told:
    """What was measured, and the proofs of it."""

    target: Target
    measured: Measured
    latencies_ms: dict[str, float]  # "p99": of what was asked for one by one, failed ones being slower than any
    notes: Notes

    @property
    def is_valid(self) -> bool:
        return all(check.passed is not False for check in self.notes.checks)


def run_target(study: Study, url: str, *, as_json: bool) -> int:
    """Let the study's load use the server at ``url``, and print what came of it; 1 where a proof did not hold.

    StudyError where no load of the study speaks the URL's protocol, or the URL names no server.
    """
    target = Target.parse(url)
    load = load_for(study, target)
    host = LocalHost()
    problems = load.check(host)
    if problems:
        raise StudyError(problems)
    with alone(host), scratch(host, "target") as directory:
        cpus = len(os.sched_getaffinity(0))
        client = Client(host, Confinement(), directory, cpus)
        _say(_announced(load, target))
        told = _told(load, target, client)
    print(_as_json(told) if as_json else printable(_as_text(told)))
    return 0 if told.is_valid else 1


def load_for(study: Study, target: Target) -> Load:
    """The first load of a study, in its order, that takes what is offered, asking for the target's own.

    One that would first write what it then asks for (keys, tables) is none for a server that is in use.
    """
    asked = treatments(study)
    if any(each.beside for each in asked):
        what = f"{study.name} loads its servers side by side, and nobody is deployed beside a server of your own"
        raise StudyError([Problem(what, f"{_OPTION} {target.url}", "name a study whose servers are measured alone")])
    if any(each.generators > 1 for each in asked):
        what = f"{study.name} has several generators, and a server of your own is asked by one"
        raise StudyError([Problem(what, f"{_OPTION} {target.url}", "leave [generators] out of the study")])
    driven = [each.work.load for each in asked if isinstance(each.work, Driven)]
    fitting = [load for load in driven if load.own and isinstance(target.offer, load.takes)]
    if not fitting:
        names = ", ".join(dict.fromkeys(load.name for load in driven)) or "none, for it is a programme of probes"
        what = f"no load of {study.name} asks by {target.offer.kind} for what is there, and writes nothing"
        raise StudyError([Problem(what, f"{_OPTION} {target.url}", f"its loads: {names}")])
    load = fitting[0]
    return type(load)(dataclasses.replace(load.settings, **{load.own: target.path}))


def _told(load: Load, target: Target, client: Client) -> _Told:
    notes = Notes(client.directory, lambda _phase: None)
    with load.session(client, target.offer) as session:
        session.warm_up()
        measurement = session.measure()
    measured = load.measured([measurement])
    proofs.of_requests(notes, measured)
    proofs.of_generator(notes, measured, load.usable_cpus(client.cpus))
    return _Told(target, measured, _latencies_ms(measured, measurement), notes)


def _latencies_ms(measured: Measured, measurement: Measurement) -> dict[str, float]:
    """Those percentiles that enough lie beyond, and that do not lie among what failed."""
    rows, events = measurement.bulk.histogram, measured.events
    if rows is None or events is None:
        return {}
    lower_ns, upper_ns, count = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    histogram = Histogram(lower_ns, upper_ns, count, events.censored)
    found = {f"p{100 * q:g}": (q, histogram.quantile_ns(q)) for q in _PERCENTILES}
    return {
        name: at_ns / 1e6
        for name, (q, at_ns) in found.items()
        if at_ns is not None and beyond(histogram.total, q) >= LEAST_BEYOND
    }


def _announced(load: Load, target: Target) -> str:
    """What is about to be sent, and to whom: said before it begins."""
    settings = load.settings
    users = next(getattr(settings, name) for name in _USERS if hasattr(settings, name))
    many = f"{users:,} at once"
    if load.loop == "open" and hasattr(settings, "rate_per_s"):
        many = f"{settings.rate_per_s:,g} {plural(load.request)} a second, {users:,} at once at the most"
    lasts = format_duration(getattr(settings, "time_limit_ns", 0))
    where = f"{target.offer.address}:{target.offer.port}"
    farther = "where its pages lead" if isinstance(target.offer, BigBlueButton) else "to nobody else"
    return (
        f"{load.name} goes to {target.url} ({where}), and {farther}: {many}, for {lasts} after its "
        "warm-up; Ctrl-C ends it. Load only a server that is yours, or whose owner knows."
    )


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _as_text(told: _Told) -> str:
    measured, window = told.measured, told.measured.window
    lines = [f"{told.target.url} under {measured.name} ({measured.instrument})"]
    if window.rate_per_s is not None:
        lines.append(_line(f"{plural(measured.unit)} per second", f"{window.rate_per_s:,.5g}"))
    lines += [_line(f"time of a {measured.asked}, {name}", f"{ms:.4g} ms") for name, ms in told.latencies_ms.items()]
    if measured.events is not None:
        lines += [_line(f"failed: {kind}", f"{count:,}") for kind, count in measured.events.failures.items() if count]
        early = measured.events.early_failures
        lines += [_line(f"failed, of those sent before: {kind}", f"{count:,}") for kind, count in early.items()]
    lines += [_line(q.title, f"{window.values[key]:.4g} {q.unit}") for key, q in _quantities(measured)]
    lines += [_line("CPUs the generator used", f"{window.cpus:.2f}")] if window.cpus is not None else []
    lines += [f"  note: {note}" for note in measured.notes]
    lines += [f"  NOT VALID: {check.name}: {check.detail}" for check in told.notes.checks if check.passed is False]
    return "\n".join(lines)


def _quantities(measured: Measured) -> list[tuple[str, Any]]:
    return [(key, q) for key, q in measured.quantities.items() if key in measured.window.values]


def _line(words: str, value: str) -> str:
    return f"  {words:<44} {value}"


def _as_json(told: _Told) -> str:
    window = told.measured.window
    return json.dumps(
        {
            "target": told.target.url,
            "address": f"{told.target.offer.address}:{told.target.offer.port}",
            "rate_per_s": window.rate_per_s,
            "latency_ms": told.latencies_ms,
            "measured": told.measured.model_dump(),
            "checks": [check.model_dump() for check in told.notes.checks],
        }
    )


def refuse_beside(given: dict[str, Any]) -> None:
    """StudyError for options that are of a study which deploys: none of them would do anything."""
    said = [name for name, value in given.items() if value is not None and value is not False]  # a seed may be 0
    idle = [f"--{name.replace('_', '-')}" for name in said]
    if idle:
        what = f"{', '.join(idle)} {'is' if len(idle) == 1 else 'are'} for arms that are deployed, and a target is not"
        raise StudyError([Problem(what, _OPTION, "leave it out" if len(idle) == 1 else "leave them out")])
