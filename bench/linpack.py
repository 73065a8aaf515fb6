"""LINPACK against SciPy with OpenBLAS, and in UML against native: `python -m bench.linpack [--json FILE]`.

One round runs everybody once in each cell (n = 4000 on one thread and on all CPUs), in random order, each in a process
of its own on the same CPUs, warmed up by one solution; what counts of a run is its best solution, for another program
on the machine can only make it slower. Ratios are taken within a round. OpenBLAS chooses its kernels by the CPU, or as
OPENBLAS_CORETYPE in the environment says: where that is set, both are measured, each with a row of its own. SciPy's
side is getrf and getrs, as lu_factor and lu_solve call them: OpenBLAS's gesv with one right-hand side stays on one
thread. Then one instance each on UML and on native, with the same limits, solve n = 2000 in turns. Printed: the median
ratio and the middle half.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench._figures import keep
from virtoll.binaries import binary
from virtoll.hosts.ledger import opened, state_directory
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import AGENT, Image
from virtoll.lab.base import Lab
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired
from virtoll.networks.base import common_kind, network_modes
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.native import Native
from virtoll.platforms.uml import Uml
from virtoll.study.limits import Limits

_ORDER, _UML_ORDER = 4000, 2000
_TARGET, _UML_TARGET = 0.97, 0.9
_LIMITS = Limits(vcpus=1, memory_bytes=256 * 1024**2)
_OURS = "virtoll-agent"
_CHOICE = "OPENBLAS_CORETYPE"
_SCIPY = """
import sys, time, numpy
from scipy.linalg import lapack
order, solutions = int(sys.argv[1]), int(sys.argv[2])
numbers = numpy.random.default_rng(1)
matrix = numpy.asfortranarray(numbers.uniform(-0.5, 0.5, (order, order)))
right = numpy.asfortranarray(numbers.uniform(-0.5, 0.5, (order, 1)))
factors, solution = matrix.copy(order="F"), right.copy(order="F")
took_s = []
for _ in range(solutions + 1):
    factors[...], solution[...] = matrix, right
    start_s = time.perf_counter()
    _, pivots, _ = lapack.dgetrf(factors, overwrite_a=1)
    lapack.dgetrs(factors, pivots, solution, overwrite_b=1)
    took_s.append(time.perf_counter() - start_s)
assert numpy.allclose(matrix @ solution, right)
print(min(took_s[1:]))
"""

Readings = dict[str, list[float]]  # best GFLOP/s by who, index is the round


@dataclass(frozen=True)
class Row:
    """One comparison."""

    cell: str
    other: str
    target: float
    ours: list[float]
    theirs: list[float]

    def figures(self) -> dict[str, Any]:
        """The median ratio, the middle half, the medians, whether the target is reached."""
        ratios = [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return {
            "cell": self.cell,
            "other": self.other,
            "target": self.target,
            "rounds": len(ratios),
            "median": median,
            "quartiles": [low, high],
            "ours_gflops": statistics.median(self.ours),
            "theirs_gflops": statistics.median(self.theirs),
            "reached": median >= self.target,
        }


def choices() -> dict[str, dict[str, str]]:
    """The environments in which OpenBLAS is measured, by what to call them."""
    bare = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
    asked = {f"OpenBLAS, {os.environ[_CHOICE]}": dict(os.environ)} if _CHOICE in os.environ else {}
    return {"OpenBLAS, its own choice": bare, **asked}


def probe(agent: str, order: int, threads: int, solutions: int) -> list[str]:
    """The command line of one run: a solution a window."""
    words = ["--order", order, "--threads", threads, "--windows", solutions, "--work", 1]
    return [agent, "probe", "linpack", *map(str, words), "--json"]


def best(what: str, printed: bytes) -> float:
    """GFLOP/s of a report's best window; its own check must have passed."""
    report = json.loads(printed)
    if "error" in report or not all(check["passed"] for check in report["checks"]):
        raise SystemExit(f"bench.linpack: {what}: {printed.decode()}")
    return max(float(window["values"]["gflops"]) for window in report["windows"])


def run(argv: Sequence[str], threads: int, environment: dict[str, str]) -> bytes:
    """stdout of a command on the last ``threads`` CPUs."""
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[-threads:]))
    environment = environment | {"OPENBLAS_NUM_THREADS": str(threads)}
    return subprocess.run(
        ["taskset", "--cpu-list", cpus, *argv], env=environment, check=True, stdout=subprocess.PIPE
    ).stdout


def once(who: str, agent: str, threads: int, solutions: int) -> float:
    """Best GFLOP/s of one process."""
    if who == _OURS:
        return best(who, run(probe(agent, _ORDER, threads, solutions), threads, dict(os.environ)))
    argv = [sys.executable, "-c", _SCIPY, str(_ORDER), str(solutions)]
    count = 2 / 3 * _ORDER**3 + 3 / 2 * _ORDER**2
    return count / float(run(argv, threads, choices()[who])) / 1e9


def against_openblas(agent: str, rounds: int, solutions: int, order: random.Random) -> list[Row]:
    """The cells on this machine itself."""
    cells = sorted({1, len(os.sched_getaffinity(0))})
    readings: dict[int, Readings] = {threads: {who: [] for who in (_OURS, *choices())} for threads in cells}
    for number in range(1, rounds + 1):
        for threads in order.sample(cells, len(cells)):
            for who in order.sample(list(readings[threads]), len(readings[threads])):
                readings[threads][who].append(once(who, agent, threads, solutions))
        print(f"round {number} of {rounds}", file=sys.stderr)
    return [
        Row(f"n={_ORDER}, {threads} thr.", other, _TARGET, by_who[_OURS], by_who[other])
        for threads, by_who in readings.items()
        for other in choices()
    ]


@contextmanager
def deployed(lab: Lab, image: Image, platform: Platform, slot: int) -> Iterator[Instance]:
    """An instance that nobody reaches."""
    lab = replace(lab, slot=slot)
    mode = network_modes()[platform.default_network]
    kind = common_kind(platform.name, platform.kinds, mode)
    assert isinstance(kind, str), kind
    with ExitStack() as stack:
        directory = lab.directory / f"instance{slot}"
        stack.enter_context(lab.ledger.owning("directory", str(directory)))
        directory.mkdir()
        attachment = stack.enter_context(mode().attach(lab, kind, ()))
        yield stack.enter_context(platform.deploy(lab, image, _LIMITS, attachment, directory))


def against_native(rounds: int, solutions: int, order: random.Random) -> Row:
    """UML and native in turns, on the same CPU."""
    host = LocalHost()
    image = rootfs.build(host, "proxy", ("nginx", "squid"), lambda line: print(line, file=sys.stderr))
    tag = f"{os.getpid() & 0xFFFF:04x}"
    readings: Readings = {"uml": [], "native": []}
    platforms: list[Platform] = [Uml(), Native()]
    for platform in platforms:
        platform.prepare(host, image, _LIMITS, lambda line: print(line, file=sys.stderr))
    with ExitStack() as stack:
        ledger = stack.enter_context(opened(host, state_directory() / "ledgers", f"bench-{tag}"))
        lab = stack.enter_context(wired(host, ledger, tag, cpu_plan(host, 1)))
        instances = [
            stack.enter_context(deployed(lab, image, platform, slot)) for slot, platform in enumerate(platforms)
        ]
        for _ in range(rounds):
            for instance in order.sample(instances, len(instances)):
                done = instance.agent.run(probe(AGENT, _UML_ORDER, 1, solutions), timeout_s=120)
                readings[instance.platform].append(best(instance.platform, done.stdout))
    return Row(f"n={_UML_ORDER}, 1 thr., in UML", "native", _UML_TARGET, readings["uml"], readings["native"])


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.linpack", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uml-rounds", type=int, default=9)
    parser.add_argument("--solutions", type=int, default=2, help="of one process; the best counts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agent", default="", help="another virtoll-agent than the package's, outside of UML")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    agent, order = options.agent or str(binary("virtoll-agent")), random.Random(options.seed)
    rows = [row.figures() for row in against_openblas(agent, options.rounds, options.solutions, order)]
    problems = Uml().check(LocalHost())
    if not problems:
        rows.append(against_native(options.uml_rounds, options.solutions, order).figures())
    print(f"{'cell':26}{'against':28}{'target':>7}{'median':>8}  {'middle half':16}{'ours':>7}{'theirs':>8}  GFLOP/s")
    for row in rows:
        spread = f"{row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f}"
        print(
            f"{row['cell']:26}{row['other']:28}{row['target']:7.2f}{row['median']:8.2f}  {spread:16}"
            f"{row['ours_gflops']:7.1f}{row['theirs_gflops']:8.1f}  {'reached' if row['reached'] else 'MISSED'}"
        )
    for problem in problems:
        print(f"not measured in UML: {problem}")
    keep(options.json, {"seed": options.seed, "rows": rows})
    return 0 if all(row["reached"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
