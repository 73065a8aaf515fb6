"""By which rule a run came to have as many blocks as it has, and what that promises: for whoever would act on it."""

from __future__ import annotations

from virtoll.analysis.rules import FIXED, AtAnyTime, OverHosts, Sequential, TwoStage
from virtoll.plain import typed
from virtoll.record.rules import Decide, Precision
from virtoll.report.findings import Findings
from virtoll.report.words import join
from virtoll.units import exact_percent


def told(findings: Findings) -> list[str]:
    """What stands beside the answer where something else than a fixed number of blocks ended the run, or may yet."""
    rule, plan = findings.rule, findings.run.plan
    if isinstance(rule, Sequential):
        return [_looked(findings, rule.plan)]
    if isinstance(rule, TwoStage):
        return [_piloted(findings, rule.plan)]
    if isinstance(rule, AtAnyTime):
        steps = join([str(blocks) for blocks in plan.extended])
        return [
            f"Extended without a plan from {steps} to {plan.blocks} blocks: intervals hold at "
            "whatever moment one stops, and are some 1.7 times as wide as those of a run of planned length."
        ]
    if _is_cut_short(findings):
        return [f"The run has not come to its planned end: {_IF_LIKED}{_goes_on(findings)}"]
    return []


_IF_LIKED = "if what it showed had a say in where it stopped, its intervals are too narrow."


def _looked(findings: Findings, rule: Decide) -> str:
    looks, most = findings.run.looks, rule.looks[-1]
    margin = exact_percent(rule.margin)
    if not looks:
        return (
            f"Not looked at yet: the run ends when every arm is different from native or within ± {margin} %, it first "
            f"looks after {rule.looks[0]} blocks, and there are {findings.blocks}.{_goes_on(findings)}"
        )
    last = looks[-1]
    times = "once" if len(looks) == 1 else f"{len(looks)} times"
    how = f"ended by its rule after {last.block} of at most {most} blocks" if last.ends else "not ended yet"
    goes_on = "" if last.ends else _goes_on(findings)
    return (
        f"Looked at {times}, {how}: {last.why}. The intervals allow for all of these looks: {_errs(findings)}.{goes_on}"
    )


def _errs(findings: Findings) -> str:
    """How often the answer calls different what is not: of each of a programme's quantities by itself."""
    quantities = len(findings.judged) if findings.is_programme else 1
    if quantities == 1:
        return "in at most 5 of 100 such runs would it call any arm different that equals native"
    return (
        f"in each of its {quantities} quantities, at most 5 of 100 such runs would call any arm different that equals "
        f"native (in some of the {quantities}, more would)"
    )


def _piloted(findings: Findings, rule: Precision) -> str:
    looks = findings.run.looks
    if not looks:
        return (
            f"Still in its pilot: how many blocks ± {exact_percent(rule.half_width)} % needs is told after "
            f"{rule.pilot}, and there are {findings.blocks}; {_IF_LIKED}{_goes_on(findings)}"
        )
    computed = f"The number of blocks was computed once, after a pilot of {rule.pilot}: {looks[0].why}."
    if findings.run.pending:
        return f"{computed} They are not all there: {_IF_LIKED}{_goes_on(findings)}"
    _, _, widest = looks[-1].why.partition(WIDEST)
    computed += f" But the widest interval is {widest}." if widest else ""
    return f"{computed} What the arms cost had no say in it, so the intervals are as good as with a fixed number."


WIDEST = "; the widest interval is "  # of a last look, where that is wider than was asked for


def _goes_on(findings: Findings) -> str:
    """A sentence after another; "" of a copy, which is not gone on with."""
    run = findings.run
    return "" if run.is_kept else f" “virtoll run {typed(run.directory)}{run.far}” goes on."


def promise(findings: Findings) -> str:
    """Which rule was in force, and what it promises; of the method, for every run."""
    rule = findings.rule
    if isinstance(rule, Sequential):
        return _of_looks(rule.plan, len(findings.run.looks)) + _ABSOLUTE
    if isinstance(rule, TwoStage):
        return _of_stages(findings, rule.plan) + _ABSOLUTE
    if isinstance(rule, AtAnyTime):
        return _AT_ANY_TIME.format(first=findings.run.plan.extended[0]) + _ABSOLUTE
    if _is_cut_short(findings):
        return _ENDED_EARLY
    is_such = "is what the budget had time for" if findings.run.plan.is_filled else "was fixed beforehand"
    return _PLAIN.format(is_such=is_such)


def _is_cut_short(findings: Findings) -> bool:
    """Whether blocks of a fixed number are still to come."""
    is_fixed = findings.rule is FIXED or isinstance(findings.rule, OverHosts)
    return is_fixed and findings.run.pending > 0


def _of_looks(rule: Decide, taken: int) -> str:
    margin = exact_percent(rule.margin)
    return (
        "**A rule that was fixed before the first trial could end the run early** (group-sequential t test). After "
        f"each block from number {rule.looks[0]} to {rule.looks[-1]} it looked whether every arm was decided: "
        f"different from native, or within ± {margin} %; it took {taken} look{'s' * (taken != 1)}. Who looks often "
        "finds a difference by chance more often, so the bounds are wider: over all looks together, at most 5 of 100 "
        "such runs call any arm different that equals native. That holds for each quantity by itself, and in some of "
        "many it happens more often; the comparisons that were planned for a table share the 5 % equally (Bonferroni). "
        "An arm beyond the margin is called within it in at most 5 of 100. Spending: Lan & DeMets (1983), as Pocock's; "
        "intervals: Jennison & Turnbull's repeated ones (1989)."
    )


def _of_stages(findings: Findings, rule: Precision) -> str:
    is_computed, width = bool(findings.run.looks), exact_percent(rule.half_width)
    return (
        f"**The number of blocks {'was' if is_computed else 'will be'} computed once, from the spread of a pilot** "
        f"(Stein's two stages, 1945): of {rule.pilot} blocks, for 95 % intervals of ± {width} % on the arm that "
        f"{'scattered' if is_computed else 'scatters'} most. What the arms cost {'had' if is_computed else 'has'} no "
        "say in it, so of 100 such intervals about 95 hold the truth; they use the pilot's spread, for that of all "
        f"blocks would be too small on average.{_CUT_SHORT * bool(findings.run.pending)}"
    )


_CUT_SHORT = " So many blocks are not there yet: where somebody stopped who liked what he saw, they are too narrow."
_AT_ANY_TIME = (
    "**The run was extended after results could be seen, without a plan.** Plain intervals would promise too much: who "
    "goes on until he likes what he sees finds a difference sooner or later. These hold at every number of blocks "
    "together (t mixture: Lindon et al., arXiv 2210.08589; the comparisons planned for a table share 5 % equally): in "
    "each quantity by itself, at most 5 of 100 such runs, whenever they are stopped, call any arm different that "
    "equals native; in some of many quantities, more do. What the report of the first {first} blocks called different "
    "is not in these 5: it went by plain intervals, and adds its own. The price is a width of about 1.7 times. A new "
    "run with `--decide` or `--precision` costs less."
)
_PLAIN = (
    "**The number of blocks {is_such}**, and nothing that was found had a say in it: of 100 such intervals about 95 "
    "hold the truth. (`--decide` and `--precision` let a run end by what it finds, and keep that promise.)"
)
_ENDED_EARLY = (
    "**The number of blocks was fixed beforehand, and the run has not come to its end.** Where a budget or a fault "
    "ended it, nothing that was found had a say in that, and of 100 of its intervals about 95 hold the truth. Where "
    "somebody stopped it who liked what he saw, they are too narrow: of arms that equal native 15 in 100 are called "
    "different by who stops at the first difference that 3 to 8 blocks show. (`--decide` and `--precision` let a run "
    "end by what it finds, and keep the promise.)"
)
_ABSOLUTE = (
    " Intervals of absolute values are plain ones: no toll's words depend on them, objectives of `virtoll advise` do."
)
