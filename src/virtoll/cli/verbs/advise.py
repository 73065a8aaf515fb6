"""`virtoll advise RUN...`: which platform to take, by what was measured and what is needed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from virtoll.analysis.load import Run
from virtoll.analysis.metrics import Wanted, is_told_by_server
from virtoll.catalogue import features
from virtoll.networks.base import network_modes
from virtoll.plain import printable
from virtoll.platforms.base import platforms
from virtoll.report.advice import Known, advise
from virtoll.report.advising import as_json, as_text
from virtoll.report.findings import find, told_as_damage
from virtoll.report.reservations import go_by_cpu
from virtoll.run.named import is_ready_made


def do(arguments: argparse.Namespace) -> int:
    """Print the advice; 1 where nothing that was measured is shown to fit."""
    runs = [find(path, wanted=partial(_wanted, arguments.objective)) for path in _each_once(arguments.runs)]
    studies = {str(run.run.study.get("name", "")) for run in runs}
    shared = {name for name, mode in network_modes().items() if mode.kinds == ("shared",)}
    elsewhere = {name for name, cls in platforms().items() if cls.is_elsewhere}
    here = {name: stated for name, stated in features().items() if name not in elsewhere}
    known = Known(here, {name for name in studies if is_ready_made(name)}, shared)
    with told_as_damage(arguments.runs[0]):
        advice = advise(runs, arguments.objective, arguments.need, known)
        told = json.dumps(as_json(advice), indent=2) if arguments.json else printable(as_text(advice))
    print(told)
    return int(all(place.candidate.standing != "fits" for place in advice.places))


def _each_once(paths: Sequence[Path]) -> list[Path]:
    """The runs, each once however it is written."""
    return list({path.resolve(): path for path in paths}.values())


def _wanted(objectives: Sequence[str], run: Run) -> Wanted:
    """Samples are read where what they tell is asked for, or is what the run's answer or a caution is in: reading them
    takes longer than all else.
    """
    memory = any(name in text for text in objectives for name in ("memory", "rss"))
    usage = memory or any(name in text for text in objectives for name in ("cpu", "switches"))
    return Wanted(latency=True, usage=usage or is_told_by_server(run) or go_by_cpu(run), memory=memory, inside=False)
