"""How many idle instances a host held bounds a plan: by runs of the probe on fakes, beside a search's knees."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from advice_examples import GIB, search_of
from quiet import Quiet
from synthetic import measured_elsewhere
from test_plan_bounds import altered
from test_plan_users import HOST, alike, planned, run
from virtoll.analysis.sizing import size
from virtoll.catalogue import catalogue
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.probes.density import Density
from virtoll.record.model import Measured, PlannedTrial, Window
from virtoll.record.store import RunDirectory
from virtoll.run.execute import execute
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.plan import make_plan
from virtoll.trial.notes import Notes

TEXT = """
name = "density"
blocks = 4
seed = 1
noise_floor = false
[limits]
memory = "512 MiB"
[[probes]]
name = "density"
most = 100
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""
USERS = ("--users", "100000")


@dataclass
class Packing(FakeExperiment):
    """A fake on which so many live at once, block by block; ``full``: whether the host then held no more."""

    held: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by platform
    full: Sequence[bool] = (True,) * 4

    def _probe(self, trial: PlannedTrial, notes: Notes, noise: random.Random) -> None:
        lived, at = self.held[trial.arm.platform], trial.block - 1
        values = {"instances": float(lived[at]), "pss_mib_per_instance": 4.0}
        if self.full[at]:
            values["instances_that_fit"] = float(lived[at])
        window = Window(start_ns=1, duration_ns=10**9, work=1, values=values)
        quantities = {key: quantity for key, quantity in Density.quantities.items() if key in values}
        notes.measured = Measured(
            name="density",
            instrument="fake 1",
            headline="pss_mib_per_instance",
            quantities=quantities,
            windows=[window],
        )


def density_of(path: Path, text: str = TEXT, *, memory: int = 16 * GIB, cpus: int = 8, **fake: Any) -> Path:
    """A run of the probe on a host like that of the search."""
    study = read_study(text, "density.toml", catalogue())
    arms = [entry.arm for entry in study.arms]
    plan = make_plan(study, arms, {arm.platform: 1.0 for arm in arms})
    there = fake_environment(machine={"cpus": cpus, "memory_bytes": memory})
    directory = RunDirectory.create(path, document.as_json(study), plan, there)
    execute(directory, Packing({"native": 1.0, "docker": 1.0, "lxc": 1.0}, **fake), Quiet())
    return path


HELD = {"native": [90] * 4, "docker": [12, 11, 12, 13]}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return search_of(tmp_path_factory.mktemp("plan") / "run")


# -- the arithmetic ------------------------------------------------------------------------------------------


def test_the_scarcest_of_three_binds() -> None:
    told = size(alike(100), HOST, [10.0] * 4)
    assert told.per_host is not None
    assert told.per_host.value == math.floor(0.7 * 10) == 7  # by CPUs 16, by memory 44
    assert told.hosts is not None
    assert told.hosts.value == math.ceil(29 / 7)
    assert told.bound_by == "density"
    free = size(alike(100), replace(HOST, headroom=0.0), [10.0] * 4).per_host
    assert free is not None
    assert free.value == 10


def test_what_binds_less_changes_nothing() -> None:
    assert size(alike(100), HOST, [1000.0] * 4) == size(alike(100), HOST)
    assert size(alike(100, mib=2048), HOST, [1000.0] * 4).bound_by == "memory"


def test_its_scatter_is_in_the_interval() -> None:
    told = size(alike(100), HOST, [8.0, 12.0, 9.0, 15.0]).per_host
    assert told is not None
    assert told.low is not None
    assert told.high is not None
    assert told.low < told.value < told.high
    one = size(alike(100), HOST, [10.0]).per_host
    assert one is not None
    assert (one.low, one.value, one.high) == (7, 7, 7)


def test_where_cpu_time_is_unknown_it_gives_no_hosts() -> None:
    assert size(alike(100, cpus=None), HOST, [10.0] * 4).hosts is None


# -- the verb ------------------------------------------------------------------------------------------------


def test_a_host_that_holds_fewer_idle_ones_is_bound_by_that(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = density_of(tmp_path / "density", held=HELD)
    told = planned(capsys, str(searched), *USERS, "--density", str(packed))
    native, docker = told["native+host"], told["docker+routed"]
    assert (native["bound_by"], docker["bound_by"]) == ("CPUs", "density")
    assert docker["per_host"]["value"] == 8
    assert docker["hosts"]["value"] == math.ceil(docker["instances"]["value"] / 8)
    assert docker["density"] == {"arm": "docker+routed", "held": [12, 11, 12, 13], "at_least": None}
    code, out, _ = run(capsys, str(searched), *USERS, "--density", str(packed))
    assert code == 0
    assert "docker+routed: what binds first is how many idle instances a host holds" in out
    assert "native+host: a host runs out of CPUs first" in out
    assert "virtoll run density" not in out


def test_without_it_the_command_that_measures_it_is_named(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, str(searched), *USERS)
    hint = "`virtoll run density --platforms docker --memory 512MiB`, and then --density with its run directory"
    assert hint in out
    assert planned(capsys, str(searched), *USERS)["docker+routed"]["density"] is None


def test_a_host_that_was_not_full_bounds_nothing(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So many live beside each other: more than are planned is enough to know, fewer is not."""
    held = {"native": [100] * 4, "docker": [6, 7, 6, 6]}
    packed = density_of(tmp_path / "density", held=held, full=[True, True, False, True])
    told = planned(capsys, str(searched), *USERS, "--density", str(packed))
    alone = planned(capsys, str(searched), *USERS)
    for label in told:
        assert told[label]["bound_by"] == "CPUs"
        assert told[label]["hosts"] == alone[label]["hosts"]
    assert "holds at least 100 idle ones: how many it holds binds no plan of fewer" in told["native+host"]["said"]
    assert "holds at least 6 idle ones, and whether more is not known" in told["docker+routed"]["said"]
    assert told["docker+routed"]["density"] == {"arm": "docker+routed", "held": [], "at_least": 6}


def test_a_host_that_was_not_full_may_bind_for_the_headroom_that_is_kept_of_it(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is full with the 16 that lived is planned to hold 11, and 14 are planned: "binds no plan of fewer"."""
    packed = density_of(tmp_path / "density", held={"native": [16] * 4, "docker": [100] * 4}, full=[False] * 4)
    native = planned(capsys, str(searched), *USERS, "--density", str(packed))["native+host"]
    assert 0.7 * 16 < native["per_host"]["value"] <= 16
    assert "holds at least 16 idle ones, and whether more is not known" in native["said"]
    native = planned(capsys, str(searched), *USERS, "--density", str(packed), "--headroom", "0%")["native+host"]
    assert native["per_host"]["value"] <= 16
    assert "how many it holds binds no plan of fewer" in native["said"]


def test_an_arm_that_it_lacks_is_named_with_the_command(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = density_of(
        tmp_path / "density", TEXT.replace('"docker"', '"lxc"'), held={"native": [90] * 4, "lxc": [9] * 4}
    )
    told = planned(capsys, str(searched), *USERS, "--density", str(packed))
    assert "`virtoll run density --platforms docker --memory 512MiB` measures it" in told["docker+routed"]["said"]
    assert told["docker+routed"]["bound_by"] == "CPUs"


def test_blocks_in_which_nothing_valid_is_known_of_a_full_host_are_named(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of those in which it was loaded: who did not answer at the end is not valid, and held fewer perhaps."""

    def silent(record: dict[str, Any]) -> None:
        if record["trial"]["arm"]["platform"] == "docker" and record["trial"]["block"] > 2:
            record |= {"status": "invalid", "reason": "every instance answered at the end: no answer from [7]"}

    packed = altered(density_of(tmp_path / "density", held=HELD), silent)
    told = planned(capsys, str(searched), *USERS, "--density", str(packed))
    assert len(told["docker+routed"]["density"]["held"]) == 2
    assert "how many idle ones a host holds is known by 2 of 4 blocks" in told["docker+routed"]["said"]
    assert "by 2 of 4 blocks" not in told["native+host"]["said"]


def test_what_another_host_carried_is_packed_there_too(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On this machine it would be "measured on a host of" other CPUs and memory, and bound nothing."""
    made = Path(shutil.copytree(searched, tmp_path / "run"))
    measured_elsewhere(made, {"performer": "ab12"})
    command = "`virtoll run density --platforms docker --memory 512MiB --host ssh://root@HOST`"
    assert f"{command}, and then --density with its run directory" in run(capsys, str(made), *USERS)[1]
    packed = density_of(tmp_path / "density", TEXT.replace('"docker"', '"lxc"'), held=HELD | {"lxc": [9] * 4})
    assert f"{command} measures it" in run(capsys, str(made), *USERS, "--density", str(packed))[1]


def test_an_arm_that_no_option_makes_is_given_no_command(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--platforms docker` makes one without settings, of which a plan for docker by runsc takes nothing."""
    made = Path(shutil.copytree(searched, tmp_path / "run"))
    for name in ("plan.json", "trials.jsonl"):
        text = (made / name).read_text()
        of_docker = re.compile(r'("platform": ?"docker".*?"settings": ?)\{\}', re.DOTALL)
        (made / name).write_text(of_docker.sub(r'\1{"runtime":"runsc"}', text))
    packed = density_of(tmp_path / "density", held=HELD)
    said = planned(capsys, str(made), *USERS, "--density", str(packed))["docker+routed"]["said"]
    assert "a study of the probe density with docker+routed among its arms, of 512MiB, measures it" in said
    assert "virtoll run density" not in said
    assert "virtoll run density" not in run(capsys, str(made), *USERS)[1]


def test_another_network_mode_is_told(searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TEXT.replace('platform = "docker"', 'platform = "docker"\nnetwork = "published"')
    packed = density_of(tmp_path / "density", text, held=HELD)
    said = planned(capsys, str(searched), *USERS, "--density", str(packed))["docker+routed"]
    assert said["bound_by"] == "density"
    assert "is that of docker+published: another network mode" in said["said"]


def test_what_may_have_another_memory_limit_bounds_nothing(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A guest takes its memory from the host, whole or in part: of twice the limit a host may hold half as many."""
    packed = density_of(tmp_path / "density", TEXT.replace("512 MiB", "256 MiB"), held=HELD)
    told = planned(capsys, str(searched), *USERS, "--density", str(packed))
    alone = planned(capsys, str(searched), *USERS)
    for label in told:
        assert (told[label]["bound_by"], told[label]["hosts"]) == ("CPUs", alone[label]["hosts"])
    said = told["docker+routed"]["said"]
    assert (
        "is not known: they may have 256 MiB, and those that were loaded 512 MiB; "
        "`virtoll run density --platforms docker --memory 512MiB` measures it" in said
    )
    assert told["docker+routed"]["density"]["held"] == HELD["docker"], "which was measured, and is told"


@pytest.mark.parametrize("other", [("--host-cpus", "16"), ("--host-memory", "64GiB")])
def test_what_another_host_held_bounds_nothing(
    other: tuple[str, str], searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = density_of(tmp_path / "density", held=HELD)
    told = planned(capsys, str(searched), *USERS, "--density", str(packed), *other)["docker+routed"]
    assert told["bound_by"] == "CPUs"
    assert "it was measured on a host of 8 CPUs and 16 GiB, and others are planned" in told["said"]


def test_one_block_is_in_no_interval_and_says_so(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = density_of(tmp_path / "density", held=HELD)
    lines = (packed / "trials.jsonl").read_text().splitlines()
    first = [line for line in lines if json.loads(line)["trial"]["block"] == 1]
    (packed / "trials.jsonl").write_text("".join(f"{line}\n" for line in first))
    told = planned(capsys, str(searched), *USERS, "--density", str(packed))["docker+routed"]
    assert "is of one block, and so in no interval" in told["said"]


TWICE = TEXT.replace("most = 100", 'most = 100\n[[probes]]\nname = "density"\nmost = 50')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TEXT.replace('"density"\nmost = 100', '"clock"'), "did not measure how many instances a host holds"),
        (TWICE, "under several conditions"),
    ],
)
def test_a_run_that_cannot_tell_is_refused(
    text: str, told: str, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = density_of(tmp_path / "density", text, held=HELD)
    code, _, err = run(capsys, str(searched), *USERS, "--density", str(packed))
    assert code == 2
    assert told in err
    assert "`virtoll run density` measures it" in err


def test_it_says_nothing_of_a_testbed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "testbed", "--density", "runs/density")[0] == 2
