"""The record of the machine: what makes two runs incomparable, and that it is refused."""

from __future__ import annotations

import pytest

from virtoll.errors import HostError
from virtoll.fakes import fake_environment
from virtoll.hosts.local import LocalHost
from virtoll.platforms.native import Native
from virtoll.run.environment import differences, require_same


def test_differences_are_named_by_their_path() -> None:
    before = {"machine": {"kernel": "6.1", "cpus": 2}, "image": "a"}
    now = {"machine": {"kernel": "6.2", "cpus": 2}, "image": "a", "agent": "x"}
    assert differences(before, now) == ["agent: was None, is x", "machine.kernel: was 6.1, is 6.2"]


def test_a_platform_tells_the_versions_of_what_it_runs_on() -> None:
    class Demo(Native):
        runtimes = ("bash",)

    assert Native().versions(LocalHost()) == {}
    ((name, told),) = Demo().versions(LocalHost()).items()
    assert name == "bash"
    assert told.startswith("GNU bash")
    assert "\n" not in told


def test_a_run_does_not_go_on_where_it_could_not_be_compared() -> None:
    require_same(fake_environment(image="a"), fake_environment(image="a"))
    with pytest.raises(HostError, match=r"image: was a, is b(.|\n)*begin a new run"):
        require_same(fake_environment(image="a"), fake_environment(image="b"))
