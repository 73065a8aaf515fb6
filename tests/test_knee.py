"""The knee, from the study file to the sentence that answers; on fakes with a known capacity."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from virtoll.analysis.load import read_run
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.metrics import KNEE
from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.local import LocalHost
from virtoll.record.model import PlannedTrial, TrialRecord
from virtoll.record.store import RunDirectory
from virtoll.report.answer import answer
from virtoll.report.build import build_report
from virtoll.report.findings import find
from virtoll.run.execute import execute
from virtoll.run.readiness import Readiness
from virtoll.run.stage import Stage
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Knee, Study, settings_of
from virtoll.study.plan import make_plan

TEXT = """\
name = "carries"
question = "How many requests/s does docker carry?"
blocks = 6
[service]
name = "nginx"
[load]
name = "http"
loop = "open"
connections = 500
[knee]
objective = ["latency_p99 < 20 ms", "failed < 0.1 %"]
least = 100
most = 100000
window = "1 s"
[quick.knee]
precision = "20 %"
windows = 3
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""
# Of the fakes' one queue: at 1 ms alone, one in a hundred takes longer than 20 ms from this share of its capacity on.
SHARE = 1 - 1 * math.log(100) / 20


def study(text: str = TEXT, *, quick: bool = False) -> Study:
    return read_study(text, "carries.toml", catalogue(), quick=quick)


def knee_of(read: Study) -> Knee:
    found: Knee = settings_of(Knee, "knee", read.base)
    return found


class Quiet:
    def trial_started(self, trial: PlannedTrial) -> None: ...

    def phase(self, trial: PlannedTrial, name: str) -> None: ...

    def trial_sealed(self, record: TrialRecord) -> None: ...


def run(path: Path, experiment: FakeExperiment, text: str = TEXT) -> RunDirectory:
    read = study(text)
    plan = make_plan(read, [entry.arm for entry in read.arms], {"native": 1.0, "docker": 2.0})
    directory = RunDirectory.create(path, document.as_json(read), plan, fake_environment())
    experiment.knee = knee_of(read)
    assert execute(directory, experiment, Quiet())
    return directory


# -- the study file ---------------------------------------------------------------------------------------


def test_a_few_lines_ask_for_it() -> None:
    knee = knee_of(study())
    assert knee.objective == ("latency_p99 < 20 ms", "failed < 0.1 %")
    assert (knee.least, knee.most, knee.precision_share, knee.window_ns, knee.windows) == (100, 100_000, 0.05, 10**9, 5)
    quick = knee_of(study(quick=True))
    assert (quick.precision_share, quick.windows, quick.least) == (0.2, 3, 100)


def test_without_it_nothing_is_searched() -> None:
    assert knee_of(study(re.sub(r"\[knee\].*?(?=\[\[arms)", "", TEXT, count=1, flags=re.DOTALL))).objective == ()


# -- from the plan to the report --------------------------------------------------------------------------


def test_the_knee_of_each_arm_and_their_ratio_are_found(tmp_path: Path) -> None:
    directory = run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.01))
    loaded = read_run(directory.path)
    for trial in measure_all(loaded):
        assert trial.record.status == "valid", trial.record.reason
        toll = 1.25 if trial.record.trial.arm.platform == "docker" else 1.0
        assert trial.values[KNEE] == pytest.approx(10_000 * SHARE / toll, rel=0.12)
    toll = next(each for each in find(directory.path).answering())
    assert toll.ratio is not None
    assert toll.ratio.value == pytest.approx(1 / 1.25, rel=0.03)
    (told, *_) = answer(find(directory.path))
    assert re.match(r"native\+host carries 7,\d00 ± \d+ requests/s under latency_p99 < 20 ms and failed < 0.1 %, ", told)
    assert re.search(r"docker\+routed carries (19|20|21)(\.\d)? % less \[", told), told
