"""`virtoll run`: a study, from its plan to its report."""

from __future__ import annotations

import argparse

from virtoll.catalogue import refused
from virtoll.cli import common
from virtoll.run.conduct import run_study
from virtoll.run.request import Request, read

# Options of a run that say something of arms, blocks or a run directory.
_OF_ARMS = (
    *(
        "platforms",
        "memory",
        "blocks",
        "budget",
        "decide",
        "precision",
        "seed",
        "dry_run",
        "out",
        "cross_check",
        "explain",
        "cluster",
        "host",
        "generator",
        "nic",
    ),
)


def do(arguments: argparse.Namespace) -> int:
    """Run it, go on with it, or print its plan."""
    if not (arguments.dry_run or arguments.cluster or arguments.host):  # else others measure, and they are root
        common.require_root()
    common.tell_refused(refused())
    if arguments.target is not None:
        from virtoll.run.target import refuse_beside, run_target  # of a run's arms nothing of it is needed

        refuse_beside({name: getattr(arguments, name) for name in _OF_ARMS})
        study, _ = read(Request(study=arguments.study, quick=arguments.quick))
        return run_target(study, arguments.target, as_json=arguments.json)
    return run_study(
        Request(
            study=arguments.study,
            quick=arguments.quick,
            platforms=arguments.platforms,
            memory_bytes=arguments.memory,
            blocks=arguments.blocks,
            budget_s=arguments.budget,
            seed=arguments.seed,
            dry_run=arguments.dry_run,
            out=arguments.out,
            as_json=arguments.json,
            cross_check=arguments.cross_check,
            explain=arguments.explain,
            decide=arguments.decide,
            precision=arguments.precision,
            cluster=arguments.cluster,
            tls=arguments.tls,
            host=arguments.host,
            generator=arguments.generator,
            nic=arguments.nic,
        )
    )
