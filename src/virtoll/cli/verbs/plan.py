"""`virtoll plan`: how many experiments a testbed holds at once."""

from __future__ import annotations

import argparse

from virtoll.analysis.capacity import Grid
from virtoll.cli import common
from virtoll.report import plan


def do(arguments: argparse.Namespace) -> int:
    """Print the table, write it and its figure."""
    grid = Grid(arguments.nodes, arguments.interfaces, arguments.channels, arguments.slices)
    sizes = arguments.nodes_per_experiment or plan.usual_sizes(grid)
    if not arguments.json:
        print(plan.plain(plan.capacity_table(grid, sizes)))
    files = plan.write_plan(grid, sizes, arguments.out)
    if arguments.json:
        common.print_json({**plan.as_json(grid, sizes), "files": [str(path) for path in files]})
    else:
        print(*files, sep="\n")
    return 0
