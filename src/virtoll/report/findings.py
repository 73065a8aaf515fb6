"""Everything a report says, computed once: the matrix, the toll tables, the judged papers, the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from virtoll.analysis.claims import JudgedPaper, judge_paper
from virtoll.analysis.estimates import Estimate, mean
from virtoll.analysis.load import Run, read_run
from virtoll.analysis.matrix import Condition, Matrix, build_matrix
from virtoll.analysis.metrics import METRICS, Metric, measure_all
from virtoll.analysis.papers import read_paper
from virtoll.analysis.ratios import DECLARED_MARGIN, Toll, TollTable, toll_table
from virtoll.record import Arm, TrialRecord

_LATENCIES = ("latency_p99_ms", "latency_p90_ms", "latency_p50_ms")

# The columns of the table of tolls, after the headline metric.
BESIDE = ("latency_p99_ms", "cpu_s_per_1000", "memory_peak_mib", "deploy_s")


@dataclass
class Findings:
    """A run, analysed. Toll tables are made when first asked for."""

    run: Run
    matrix: Matrix
    margin: float
    papers: tuple[JudgedPaper, ...]
    _tolls: dict[str, TollTable] = field(default_factory=dict)

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """The kinds of loop the load ran in: "closed", "open"."""
        return tuple(sorted({t.record.load.loop for t in self.matrix.trials if t.record.load is not None}))

    @cached_property
    def headline(self) -> Metric:
        """What the answer is given in: throughput in closed loop; in open loop, where the rate is set, latency.

        Of the latencies it is the highest percentile that the trials had requests enough for.
        """
        if self.loops != ("open",):
            return METRICS["requests_per_s"]
        known = [name for name in _LATENCIES if np.isfinite(self.matrix.values(name)).any()]
        return METRICS[known[0] if known else _LATENCIES[-1]]

    @cached_property
    def treatments(self) -> list[Arm]:
        """The arms under test, cheapest first; what was not measured comes last."""
        arms = [arm for arm in self.matrix.arms if arm.role == "treatment"]
        return sorted(arms, key=self._cost)

    @cached_property
    def arms(self) -> list[Arm]:
        """All arms in the order of figures and tables: baseline, treatments cheapest first, floor."""
        outer = {role: [arm for arm in self.matrix.arms if arm.role == role] for role in ("baseline", "floor")}
        return [*outer["baseline"], *self.treatments, *outer["floor"]]

    @property
    def excluded(self) -> list[TrialRecord]:
        """Trials that failed or are not valid."""
        return [record for record in self.run.records if record.status != "valid"]

    def _cost(self, arm: Arm) -> float:
        toll = self.tolls(self.headline.name).total(arm)
        if toll is None or toll.ratio is None:
            return float("inf")
        return -toll.ratio.value if self.headline.better == "more" else toll.ratio.value

    def tolls(self, metric: str) -> TollTable:
        """The toll table of a metric."""
        if metric not in self._tolls:
            self._tolls[metric] = toll_table(self.matrix, metric, self.margin)
        return self._tolls[metric]

    def pooled(self, metric: str, arm: Arm) -> Estimate | None:
        """Mean over deployments of a metric that hardly depends on the condition (memory, deployment)."""
        values = self.matrix.values(metric)[:, self.matrix.arms.index(arm), :]
        seen = values[np.isfinite(values).any(axis=1)]
        if seen.size == 0:
            return None
        return mean(np.nanmean(seen, axis=1), METRICS[metric].unit).with_method(
            "mean over blocks of the mean over conditions, t interval"
        )

    def shown_conditions(self, most: int = 8) -> list[Condition]:
        """Conditions for figures that have room for few: the extreme object sizes under each other setting."""
        path = "load.object_bytes"
        sizes = self.matrix.levels(path)
        wanted = {sizes[0], 1_000_000 if 1_000_000 in sizes else sizes[-1]} if sizes else set()
        picked = [c for c in self.matrix.conditions if c.get(path) in wanted] or list(self.matrix.conditions)
        return sorted(picked, key=lambda condition: sizes.index(condition.get(path)))[:most]


def find(directory: Path) -> Findings:
    """Read and analyse a run directory."""
    run = read_run(directory)
    matrix = build_matrix(run, measure_all(run))
    declared = run.study.get("margin", DECLARED_MARGIN)
    margin = float(declared) if isinstance(declared, int | float) else DECLARED_MARGIN
    papers = tuple(judge_paper(read_paper(name), matrix, margin) for name in run.study.get("claims", ()))
    return Findings(run, matrix, margin, papers)


def answer(findings: Findings) -> str:
    """The answer in one sentence: every arm with the words its verdict allows."""
    if findings.matrix.baseline is None:
        return "There is no answer: the run has no native arm to compare with."
    tolls = [findings.tolls(findings.headline.name).total(arm) for arm in findings.treatments]
    measured = [toll for toll in tolls if toll is not None and toll.ratio is not None]
    if not measured:
        return "There is no answer yet: no valid trial can be compared with native."
    parts = [_same(measured), *(_one(toll) for toll in measured if toll.verdict.kind in ("costs", "gains"))]
    parts.append(_unsure(measured))
    skipped = [s.arm.label for s in findings.run.environment.skipped]
    skipped += [toll.arm.label for toll in tolls if toll is not None and toll.ratio is None]
    parts.append(f"{join(skipped)} {'was' if len(skipped) == 1 else 'were'} not measured" if skipped else "")
    what = _headline_words(findings)
    return f"{what}, against native: " + "; ".join(part for part in parts if part) + "."


def _headline_words(findings: Findings) -> str:
    loops = " and ".join(findings.loops) or "closed"
    word = "Throughput" if findings.headline.name == "requests_per_s" else findings.headline.title
    return f"{word} ({loops} loop)"


def _same(tolls: Sequence[Toll]) -> str:
    same = [toll for toll in tolls if toll.verdict.kind == "same"]
    if not same:
        return ""
    widest = max(same, key=lambda toll: toll.margin).verdict.words
    return f"{join([toll.arm.label for toll in same])} {'shows' if len(same) == 1 else 'show'} " + widest.replace(
        "difference shown", "difference"
    )


def _one(toll: Toll) -> str:
    more = times(toll)
    return f"{toll.arm.label} {toll.verdict.words}" + (f" ({more})" if more else "")


def times(toll: Toll) -> str:
    """``13 × slower`` or ``4.7 × as much`` where a percentage is hard to picture; else nothing."""
    if toll.ratio is None or toll.metric.better is None or toll.verdict.kind != "costs":
        return ""
    factor = 1 / toll.ratio.value if toll.metric.better == "more" else toll.ratio.value
    word = "slower" if toll.metric.name.startswith(("requests", "total", "latency", "deploy")) else "as much"
    return (
        f"{factor:.2g} × {word}" if factor >= 2 and factor < 100 else f"{factor:,.0f} × {word}" if factor >= 2 else ""
    )


def _unsure(tolls: Sequence[Toll]) -> str:
    unsure = [
        (toll.arm.label, toll.verdict.words.partition(": ")[2]) for toll in tolls if toll.verdict.kind == "unsure"
    ]
    return "cannot tell yet: " + ", ".join(f"{label} ({why})" for label, why in unsure) if unsure else ""


def join(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
