"""`python -m faults`: inject seeded faults, and say whether every promise held.

Each fault has a seed of its own: --seed S --count N injects those of S, S+1, ... until N have hit, and any one can be
repeated alone by its seed. Exit code 1: a promise was broken; the line above says by which seed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults import place
from faults.base import Kind, Place, Verdict
from faults.children import asked
from faults.machine import OFFERED
from faults.virtolls import STUDIES

_MOST_MISSES = 4  # faults drawn for each that is to hit, before the harness gives up


def main(argv: Sequence[str]) -> int:
    """Inject what was asked for; inside a place of its own."""
    arguments = _parser().parse_args(argv)
    if arguments.list:
        for kind in _kinds():
            print(f"{kind.name:<24} {kind.layer:<8} {kind.sentence}")
        return 0
    if place.INSIDE not in os.environ:
        if os.geteuid() != 0:
            print("faults: namespaces and mounts are root's: run it with sudo", file=sys.stderr)
            return 3
        wanted = [kind for kind in _kinds() if kind.layer == "machine" and _is_wanted(kind, arguments.kinds)]
        os.environ[OFFERED] = " ".join(asked(_ready_studies, 900)) if wanted else ""
        return place.enter("faults", list(argv))
    work = Path(os.environ[place.INSIDE])
    place.settle(work)
    return _inject_all(arguments, work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first fault (default: drawn, and printed)")
    parser.add_argument("--count", type=int, default=40, help="how many faults have to hit (default: 40)")
    parser.add_argument(
        "--kinds",
        default="",
        metavar="A,B",
        help="only these, or a layer's (fakes, machine); the seeds of others are passed over",
    )
    parser.add_argument("--list", action="store_true", help="the kinds of faults")
    return parser


def _kinds() -> list[Kind]:
    from faults import fake_kinds, machine_kinds

    return [*fake_kinds.KINDS, *machine_kinds.KINDS]


def _ready_studies() -> list[str]:
    """The studies that this machine can run, with their images made: inside there is no network to make them by."""
    from virtoll.catalogue import catalogue
    from virtoll.errors import StudyError
    from virtoll.hosts.local import LocalHost
    from virtoll.run.stage import Stage
    from virtoll.study.file import read_study

    ready = []
    for name, text in STUDIES.items():
        study = read_study(text, f"{name}.toml", catalogue())
        stage = Stage(study, LocalHost())
        try:
            arms, _ = stage.offered(f"{name}.toml")
        except StudyError as error:
            print(f"faults: no faults of {name}: {error}", flush=True)
            continue
        stage.prepare(arms, print)
        ready.append(name)
    return ready


def _is_wanted(kind: Kind, names: str) -> bool:
    """Whether it is one of those asked for: by name, or by layer; all are where nothing was asked for."""
    return not names or not {kind.name, kind.layer}.isdisjoint(names.split(","))


def drawn(kinds: Sequence[Kind], seed: int) -> tuple[Kind, random.Random]:
    """The kind of the fault with this seed, and the random source that all its other choices come from."""
    random_ = random.Random(seed)
    return random_.choices(kinds, [kind.weight for kind in kinds])[0], random_


def _inject_all(arguments: argparse.Namespace, work: Path) -> int:
    kinds = _kinds()
    first = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"faults: --seed {first} --count {arguments.count}", flush=True)
    _warm_up()
    began_s = time.monotonic()
    told: list[tuple[Kind, Verdict, float]] = []
    for seed in _seeds(first, arguments.count, told):
        kind, random_ = drawn(kinds, seed)
        if not _is_wanted(kind, arguments.kinds):
            continue
        began_one_s = time.monotonic()
        directory = work / f"f{seed}"
        verdict = kind.inject(random_, Place(work, directory))
        took_s = time.monotonic() - began_one_s
        told.append((kind, verdict, took_s))
        _tell(seed, kind, verdict, took_s)
        _forget(directory)
    return _table(told, time.monotonic() - began_s, arguments.count)


def _forget(directory: Path) -> None:
    """Remove a fault's directory, and the small disks in it."""
    state = directory.parent / place.STATE
    for point in (state, directory / "small", directory / "runs"):
        subprocess.run(["umount", "--lazy", str(point)], check=False, capture_output=True)
    shutil.rmtree(state, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def _seeds(first: int, count: int, told: Sequence[tuple[Kind, Verdict, float]]) -> Iterator[int]:
    seed = first
    while sum(verdict.hit for _, verdict, _ in told) < count and len(told) < count * _MOST_MISSES:
        yield seed
        seed += 1


def _tell(seed: int, kind: Kind, verdict: Verdict, took_s: float) -> None:
    outcome = "BROKEN" if verdict.problems else "held" if verdict.hit else "missed"
    print(f"{seed:>7} {kind.name:<24} {outcome:<7} {took_s:6.2f} s  {verdict.when}", flush=True)
    for problem in verdict.problems:
        print("        " + problem.replace("\n", "\n        "))
    if verdict.problems:
        print(f"        repeat: make faults SEED={seed} COUNT=1", flush=True)


def _table(told: Sequence[tuple[Kind, Verdict, float]], took_s: float, count: int) -> int:
    print(f"\n{'kind':<24} {'injected':>8} {'resumed':>8} {'tidy':>8} {'missed':>8}")
    names = sorted({kind.name for kind, _, _ in told})
    for name in names:
        mine = [verdict for kind, verdict, _ in told if kind.name == name]
        hits = [verdict for verdict in mine if verdict.hit]
        print(
            f"{name:<24} {len(hits):>8} {sum(v.resumed for v in hits):>8} {sum(v.tidy for v in hits):>8} "
            f"{len(mine) - len(hits):>8}"
        )
    hits = [verdict for _, verdict, _ in told if verdict.hit]
    broken = [verdict for _, verdict, _ in told if verdict.problems]
    trials, busy = sum(v.trials for v in hits), sum(v.busy for v in hits)
    print(f"{len(hits)} faults of {len(names)} kinds in {took_s:.0f} s; {len(broken)} broke a promise")
    print(f"{trials} sealed trials looked at; {busy} of those that no fault struck were invalid for want of CPU")
    return int(bool(broken) or len(hits) < count)


def _warm_up() -> None:
    """Import what a run imports, once: every virtoll here is a fork of this process."""
    import virtoll.cli.verbs.run
    import virtoll.report.build
    import virtoll.report.findings
    import virtoll.run.laboratory
    import virtoll.run.measuring  # noqa: F401


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
