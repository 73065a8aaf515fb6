"""The testbed: its capacity, its study, the paper's claims and its table of experiments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.analysis.capacity import Grid, capacity, largest_with_all_channels

SMALL = st.integers(1, 12)
GRIDS = st.builds(Grid, nodes=SMALL, interfaces=st.integers(1, 4), channels=SMALL, slices=st.integers(1, 4))


def dealt(grid: Grid, experiments: int, size: int) -> list[list[int]]:
    """The nodes of each experiment, dealt out round the grid."""
    return [[(one * size + at) % grid.nodes for at in range(size)] for one in range(experiments)]


@given(GRIDS, st.integers(1, 12))
def test_what_is_said_to_fit_can_be_dealt_out_and_one_more_cannot(grid: Grid, size: int) -> None:
    found = capacity(grid, size)
    placed = dealt(grid, found.experiments, size)
    assert all(len(set(nodes)) == size for nodes in placed)
    taken = [node for nodes in placed for node in nodes]
    assert all(taken.count(node) <= grid.usable_slices for node in range(grid.nodes))
    assert found.experiments <= grid.channels
    one_more = found.experiments + 1
    lacks_slices = one_more * size > grid.nodes * min(grid.slices, grid.interfaces) or size > grid.nodes
    lacks_channels = one_more > grid.channels
    assert lacks_slices or lacks_channels
    assert ("channels" in found.binding) == (lacks_channels and size <= grid.nodes)
    assert bool({"slices", "interfaces", "nodes"} & set(found.binding)) == lacks_slices


@given(GRIDS, st.integers(1, 12))
def test_more_of_anything_never_means_fewer_experiments(grid: Grid, size: int) -> None:
    here = capacity(grid, size).experiments
    for name in ("interfaces", "channels", "slices"):
        assert capacity(Grid(**{**vars(grid), name: getattr(grid, name) + 1}), size).experiments >= here
    assert capacity(Grid(**{**vars(grid), "nodes": grid.nodes + 1}), size).experiments >= here
    assert capacity(grid, size + 1).experiments <= here


@given(GRIDS, SMALL)
def test_what_binds_is_what_helps(grid: Grid, size: int) -> None:
    """More of a limit that binds alone helps; more of one that does not bind never does."""
    found = capacity(grid, size)
    more = Grid(**{**vars(grid), "channels": grid.channels + 1})
    assert (capacity(more, size).experiments > found.experiments) == (found.binding == ("channels",))


@given(GRIDS)
def test_the_largest_experiment_that_leaves_no_channel_idle(grid: Grid) -> None:
    sizes = [size for size in range(1, grid.nodes + 1) if capacity(grid, size).experiments == grid.channels]
    assert largest_with_all_channels(grid) == max(sizes, default=0)


def test_the_paper_s_grid() -> None:
    grid = Grid()
    assert (grid.nodes * grid.interfaces, grid.channels, grid.slices) == (800, 12, 2)
    assert [capacity(grid, size).experiments for size in (1, 66, 67, 100, 200, 400)] == [12, 12, 11, 8, 4, 2]
    assert [capacity(grid.whole, size).experiments for size in (1, 33, 34, 100, 200, 400)] == [12, 12, 11, 4, 2, 1]
    assert capacity(grid, 61).binding == ("channels",)
    assert capacity(grid, 66).binding == ("channels", "slices"), "a thirteenth would need both"
    assert capacity(grid, 100).binding == ("slices",)
    assert capacity(Grid(slices=3), 100).binding == ("interfaces",)
    assert capacity(Grid(channels=8), 100).binding == ("channels", "slices")
    assert capacity(grid, 401).binding == ("nodes",)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="slices is 0"):
        Grid(slices=0)
    with pytest.raises(ValueError, match="0 nodes"):
        capacity(Grid(), 0)
