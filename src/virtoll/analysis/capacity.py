"""How many experiments a sliced testbed holds at once.

After G. Bhanage, I. Seskar, Y. Zhang, D. Raychaudhuri, S. Jain: Experimental Evaluation of OpenVZ from a Testbed
Deployment Perspective, TridentCom 2010 (doi 10.1007/978-3-642-17851-1_7), section 1 and figure 1(b): experiments are
kept apart by frequency, each on an orthogonal channel of its own; a slice of a node has a radio interface to itself.
The defaults are that paper's grid. All numbers are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Bound = Literal["channels", "slices", "interfaces", "nodes"]


@dataclass(frozen=True)
class Grid:
    """A grid of equal nodes: 400 with two interfaces each, 12 channels (802.11a), two slices on a node."""

    nodes: int = 400
    interfaces: int = 2  # of a node
    channels: int = 12  # orthogonal ones
    slices: int = 2  # of a node

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}, and must be at least 1")

    @property
    def usable_slices(self) -> int:
        """Slices of a node that have an interface."""
        return min(self.slices, self.interfaces)

    @property
    def scarce(self) -> Bound:
        """What keeps a node from more slices."""
        return "interfaces" if self.interfaces < self.slices else "slices"

    @property
    def whole(self) -> Grid:
        """The same grid, its nodes not sliced."""
        return Grid(self.nodes, self.interfaces, self.channels, 1)


@dataclass(frozen=True)
class Capacity:
    """What a grid holds of experiments of one size, and which limits bind: one more of each would be needed."""

    nodes_per_experiment: int
    experiments: int
    by_channels: int
    by_slices: int
    binding: tuple[Bound, ...]


def capacity(grid: Grid, nodes_per_experiment: int) -> Capacity:
    """How many experiments of so many nodes go on at once.

    An experiment takes a channel, and one slice on each of its nodes. With s usable slices on each of N nodes, m
    experiments of n <= N nodes fit exactly if m n <= s N: deal their slices out round the nodes, and no experiment
    comes to a node twice, none of the nodes to more than s. An experiment of more nodes than there are fits never.
    ValueError: a size below 1.
    """
    if nodes_per_experiment < 1:
        raise ValueError(f"an experiment of {nodes_per_experiment} nodes is none")
    if nodes_per_experiment > grid.nodes:
        return Capacity(nodes_per_experiment, 0, grid.channels, 0, ("nodes",))
    by_slices = grid.nodes * grid.usable_slices // nodes_per_experiment
    binding: list[Bound] = []
    if grid.channels <= by_slices:
        binding.append("channels")
    if by_slices <= grid.channels:
        binding.append(grid.scarce)
    experiments = min(grid.channels, by_slices)
    return Capacity(nodes_per_experiment, experiments, grid.channels, by_slices, tuple(binding))


def largest_with_all_channels(grid: Grid) -> int:
    """The most nodes that experiments may have so that every channel has one; 0 where there are not slices enough."""
    return min(grid.nodes, grid.nodes * grid.usable_slices // grid.channels)
