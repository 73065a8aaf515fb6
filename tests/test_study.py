"""The study file: what it accepts, and that every problem is told at once with its line."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from on_fakes import on_fakes, write_study
from test_exit_codes import code_of
from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError
from virtoll.hosts.local import LocalHost
from virtoll.offers import Http
from virtoll.record.model import Plan
from virtoll.record.store import RunDirectory
from virtoll.run.readiness import Readiness
from virtoll.run.request import Request
from virtoll.run.request import read as requested
from virtoll.run.rule import Asked, with_rule
from virtoll.run.stage import Stage
from virtoll.study.file import read_study
from virtoll.study.limits import Limits
from virtoll.study.model import Background, Catalogue, Monitoring, PlatformEntry, ServiceEntry, Study, settings_of
from virtoll.study.plan import conditions, deployments, make_plan, with_only
from virtoll.units import parse_duration_ns, within


@dataclass(frozen=True)
class ProxySettings:
    cache: Literal["off", "on"] = "off"
    memory_bytes: int = 256 * 2**20


@dataclass(frozen=True)
class HttpSettings:
    loop: Literal["closed", "open"] = "closed"
    object_bytes: int = 1000
    connections: int = within(1, least=1)
    time_limit_ns: int = within(10 * 10**9, least=1)
    warm_up_ns: int = 0
    rate_per_s: float = 0.0


@dataclass(frozen=True)
class LxcSettings:
    lxcfs: bool = False


@dataclass(frozen=True)
class LinpackSettings:
    windows: int = within(3, least=1)
    time_ns: int = within(500_000_000, least=1_000_000)
    order: int = within(1000, least=1)
    threads: int | None = None


@dataclass(frozen=True)
class NoSettings:
    pass


NO_LINK = Problem("native has no link of its own", remedy='write network = "host"')
CATALOGUE = Catalogue(
    platforms={
        "native": PlatformEntry(NoSettings, "host", lambda _: {"routed": NO_LINK}),
        "docker": PlatformEntry(NoSettings, "routed", lambda _: {}),
        "lxc": PlatformEntry(LxcSettings, "routed", lambda _: {}),
    },
    services={"squid": ServiceEntry(ProxySettings, Http, (Http,)), "nginx": ServiceEntry(NoSettings, None, (Http,))},
    loads={"http": HttpSettings},
    probes={"linpack": LinpackSettings},
    sections={"limits": Limits, "background": Background, "monitor": Monitoring},
    networks=("host", "routed", "published"),
)

GOOD = """\
name = "demo"
blocks = 3
seed = 7
[service]
name = "squid"
memory = "64 MiB"
[origin]
name = "nginx"
[load]
name = "http"
time_limit = "5 s"
[factors]
"load.object" = ["1 kB", "1 MB"]
"load.connections" = [1, 100]
"service.cache" = ["off", "on"]
[[exclude]]
"service.cache" = "on"
"load.object" = "1 MB"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
network = ["routed", "published"]
[[arms]]
platform = "lxc"
lxcfs = true
optional = true
[quick]
blocks = 2
[quick.load]
time_limit = "1 s"
"""
REAL = GOOD.replace('memory = "64 MiB"', 'cache_memory = "64 MiB"')  # for the catalogue of what is registered


def read(text: str, *, quick: bool = False, platforms: Sequence[str] = ()) -> Study:
    return read_study(text, "my.toml", CATALOGUE, quick=quick, platforms=platforms)


def problems(text: str) -> list[str]:
    with pytest.raises(StudyError) as caught:
        read(text)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


def test_values_are_in_base_units_and_defaults_are_written_out() -> None:
    study = read(GOOD)
    assert study.base["service.memory_bytes"] == 64 * 2**20
    assert study.base["load.time_limit_ns"] == 5 * 10**9
    assert study.base["load.object_bytes"] == 1000
    assert study.base["limits.vcpus"] == 1
    assert study.factors["load.object_bytes"] == (1000, 1_000_000)


def test_arms_get_labels_roles_and_a_second_native() -> None:
    arms = [entry.arm for entry in read(GOOD).arms]
    assert [(arm.label, arm.role) for arm in arms] == [
        ("native+host", "baseline"),
        ("native+host (again)", "floor"),
        ("docker+routed", "treatment"),
        ("docker+published", "treatment"),
        ("lxc+routed (lxcfs)", "treatment"),
    ]
    assert read(GOOD).arms[-1].optional
    assert read(GOOD).arms[-1].line == 25


def test_exclusions_drop_conditions() -> None:
    found = conditions(read(GOOD))
    assert len(found) == 6
    assert {"load.object_bytes": 1_000_000, "load.connections": 1, "service.cache": "on"} not in found


def test_quick_lays_its_table_over_the_rest() -> None:
    study = read(GOOD, quick=True)
    assert (study.blocks, study.base["load.time_limit_ns"]) == (2, 10**9)
    assert read(GOOD).blocks == 3


def test_problems_of_a_quick_programme_are_told_at_its_own_lines() -> None:
    text = 'name = "m"\n[[probes]]\nname = "linpack"\n[[arms]]\nplatform = "native"\n[quick]\n[[quick.probes]]\n'
    text += 'name = "linpack"\norder = 10\n[[quick.probes]]\nname = "linpack"\norder = 0\n'
    with pytest.raises(StudyError, match=r"my.toml:12: order: must be at least 1"):
        read(text, quick=True)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[quick.load]\n", "[quick.load]\nconnections = 0\n", "my.toml:31: connections: must be at least 1"),
        ("[quick.load]\n", "[quick.load]\nconections = 1\n", "my.toml:31: unknown key 'conections'"),
        ('time_limit = "1 s"', "time_limit = 1", "my.toml:31: time_limit: 1 lacks its unit"),
        ('name = "http"', 'name = "http"\nwarm_up = 1', "my.toml:11: warm_up: 1 lacks its unit"),
        ("blocks = 2", "blocks = 1", "my.toml:29: blocks must be at least 2"),
        ("[quick.load]", "[quick.limits]\nvcpus = 0\n[quick.load]", "my.toml:31: vcpus: must be at least 1"),
        ("[quick.load]", "[quick.nobody]\n[quick.load]", "my.toml:28: unknown key 'nobody'"),
    ],
)
def test_problems_of_quick_are_told_at_its_own_lines_and_others_at_theirs(old: str, new: str, told: str) -> None:
    assert old in GOOD
    with pytest.raises(StudyError, match=re.escape(told)):
        read(GOOD.replace(old, new, 1), quick=True)


def test_settings_are_built_from_base_and_condition() -> None:
    study = read(GOOD)
    settings = settings_of(HttpSettings, "load", study.values({"load.connections": 100}))
    assert settings == HttpSettings(connections=100, time_limit_ns=5 * 10**9)


def test_every_problem_is_told_at_once_with_line_and_nearest_word() -> None:
    text = (
        GOOD.replace('memory = "64 MiB"', 'memry = "64 MiB"')
        .replace('time_limit = "5 s"', "time_limit = 5")
        .replace('platform = "docker"', 'platform = "dokcer"')
        .replace('["off", "on"]', '["off", "onn"]')
        .replace('platform = "native"', 'platform = "native"\nnetwork = "routed"')
    )
    told = "\n".join(problems(text))
    assert "my.toml:6: unknown key 'memry'; did you mean 'memory'?" in told
    assert "my.toml:11: time_limit: 5 lacks its unit" in told
    assert "my.toml:15: service.cache: 'onn' is not one of 'off', 'on'; did you mean 'on'?" in told
    assert "my.toml:21: native has no link of its own" in told
    assert 'write network = "host"' in told
    assert "my.toml:23: no platform is called 'dokcer'; did you mean 'docker'?" in told
    assert "no native arm" not in told, "one cause, one problem"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "demo"', 'name = "My Study"', "my.toml:1: a study needs a name of lower-case letters"),
        ("blocks = 3", "blocks = 1", "my.toml:2: blocks must be at least 2"),
        ("blocks = 3", 'blocks = "3"', "my.toml:2: blocks = '3' is not a whole number"),
        ("[service]", "[servcie]", "unknown key 'servcie'; did you mean 'service'?"),
        ('[origin]\nname = "nginx"', "", "[origin] with a name is missing"),
        ('[origin]\nname = "nginx"', '[origin]\nname = "squid"', "no service is called 'squid'"),
        ('name = "squid"', 'name = "squidd"', "no service is called 'squidd'; did you mean 'squid'?"),
        ('"5 s"', '"5 kB"', "'5 kB' is not a duration"),
        ("[1, 100]", "[1, 1]", "load.connections names a level twice"),
        ("[1, 100]", "[1, -1]", "-1 is negative"),
        ("[1, 100]", "[1, true]", "True is not a whole number"),
        ("lxcfs = true", "lxcfs = 1", "1 is not true or false"),
        ("lxcfs = true", "", "named twice"),
        ('platform = "native"', 'platform = "docker"', "no native arm"),
        ('"load.connections" =', '"load.conections" =', "did you mean 'load.connections'?"),
    ],
)
def test_a_bad_value_is_refused(old: str, new: str, told: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if told == "named twice":
        text += '[[arms]]\nplatform = "lxc"\n'
    assert told in "\n".join(problems(text))


@pytest.mark.parametrize(
    ("factor", "above", "told", "remedy"),
    [
        ('"origin.workers" = [1, 4]', "", "one origin stands for the whole run", "make a study of each"),
        ('"origin.tls" = [false, true]', "", "one origin stands for the whole run", "make a study of each"),
        ('"rotation.rounds" = [8, 16]', 'design = "rotation"\n', "nothing is measured in turn", 'design = "rotation"'),
        ('"knee.windows" = [3, 5]', '[knee]\nobjective = ["latency_p99 < 20 ms"]\n', "searches for no knee", "[knee]"),
        ('"neighbour.start" = ["1 s", "2 s"]', '[neighbour]\naggressor = "cpu"\n', "has no aggressor", "[neighbour]"),
        ('"neighbour.duration" = ["1 s"]', '[neighbour]\naggressor = "cpu"\n', "has no aggressor", "[neighbour]"),
        ('"slices.rate" = ["none", "1 Mbit/s"]', "[slices]\ncount = 1\n", "has no slices", "[slices]"),
    ],
)
def test_a_factor_that_would_change_nothing_is_refused(factor: str, above: str, told: str, remedy: str) -> None:
    text = REAL.replace("[factors]\n", f"[factors]\n{factor}\n")
    with pytest.raises(StudyError) as caught:
        read_study(text, "my.toml", catalogue())
    (problem,) = caught.value.problems
    assert told in problem.what
    assert remedy in problem.remedy
    assert problem.where == "my.toml:13"
    if above:
        switched_on = text.replace("[service]\n", f"{above}[service]\n", 1)
        if above.startswith("[knee]"):  # which asks for connections itself
            switched_on = re.sub(r'\n"load.connections" = .*', "", switched_on)
        assert factor.split('"')[1].partition(".")[0] in str(read_study(switched_on, "my.toml", catalogue()).factors)


@pytest.mark.parametrize("table", ["[factors]", "[[exclude]]"])
def test_a_dotted_name_without_quotes_is_told_so(table: str) -> None:
    """It was told to be 'load', and that 'load.seed' was meant."""
    lacking = REAL.replace('"load.connections"', "load.connections", 1)
    if table == "[[exclude]]":
        lacking = f"{REAL}\n[[exclude]]\nload.connections = 100\n"
    with pytest.raises(StudyError) as caught:
        read_study(lacking, "my.toml", catalogue())
    (problem,) = caught.value.problems
    line = next(at for at, text in enumerate(lacking.splitlines(), 1) if text.startswith("load.connections"))
    assert problem.where == f"my.toml:{line}"
    assert problem.what == "load.connections needs quotes: without them its dot makes a table"
    assert problem.remedy == '"load.connections" = ...'


@pytest.mark.parametrize(
    "table", ["[factors]\nload = {}", "[factors.load]", '[[exclude]]\nplatform = ["docker"]\nload = {}']
)
def test_an_empty_table_is_no_factor_and_no_exclusion(table: str) -> None:
    """It was passed over: nothing was varied, and without its levels a rule excluded all of a platform."""
    study = REAL[: REAL.index("[factors]")] + REAL[REAL.index("[[arms]]") :]
    with pytest.raises(StudyError, match="'load' is no value of this study"):
        read_study(f"{study}\n{table}\n", "my.toml", catalogue())


def test_a_factor_may_be_switched_on_by_another() -> None:
    text = REAL.replace("[factors]\n", '[factors]\n"neighbour.aggressor" = ["polite", "cpu"]\n')
    text = text.replace("[factors]\n", '[factors]\n"neighbour.start" = ["1 s", "2 s"]\n')
    assert len(read_study(text, "my.toml", catalogue()).factors["neighbour.start_ns"]) == 2


def test_open_loop_must_say_how_many_connections() -> None:
    told = "load.connections must be given in open loop"
    open_loop = GOOD.replace("[load]\n", '[load]\nloop = "open"\n', 1)
    assert read(open_loop).base["load.loop"] == "open", "they are a factor"
    unsaid = open_loop.replace('"load.connections" = [1, 100]\n', "", 1)
    assert told in "\n".join(problems(unsaid))
    as_factor = GOOD.replace('"load.connections" = [1, 100]', '"load.loop" = ["closed", "open"]', 1)
    assert told in "\n".join(problems(as_factor))
    assert read(unsaid.replace("[load]\n", "[load]\nconnections = 50\n", 1)).base["load.connections"] == 50


def test_not_toml_is_refused_with_its_line() -> None:
    assert "my.toml:2: not TOML" in problems('name = "x"\nblocks = \n')[0]


@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_each_block_holds_every_treatment_once(seed: int, blocks: int) -> None:
    study = read(GOOD.replace("seed = 7", f"seed = {seed}").replace("blocks = 3", f"blocks = {blocks}"))
    arms = [entry.arm for entry in study.arms]
    overhead = {arm.platform: 2.0 for arm in arms}
    plan = make_plan(study, arms, overhead)
    assert plan == make_plan(study, arms, overhead), "the same seed gives the same plan"
    for block in range(1, blocks + 1):
        inside = [(t.arm.label, tuple(t.condition.items())) for t in plan.trials if t.block == block]
        assert len(inside) == len(set(inside)) == len(arms) * 6
    assert len({trial.id for trial in plan.trials}) == len(plan.trials)


def test_a_budget_gives_fewer_blocks_or_says_that_it_is_too_small() -> None:
    study = read(GOOD)
    arms = [entry.arm for entry in study.arms]
    overhead = {arm.platform: 2.0 for arm in arms}
    block_s = len(arms) * 6 * 7.0
    assert make_plan(study, arms, overhead).estimate_s == pytest.approx(3 * block_s)
    assert make_plan(study, arms, overhead, budget_s=2.5 * block_s).blocks == 2
    with pytest.raises(StudyError, match="fewer than two blocks"):
        make_plan(study, arms, overhead, budget_s=1.5 * block_s)


@pytest.mark.parametrize("overhead_s", [0.01, 2.0, 2.12])  # with the times of blocks rounded down, 2.12 was too little
@pytest.mark.parametrize(("asked", "blocks"), [(Asked(), 2), (Asked(decide=0.05), 4), (Asked(precision=0.02), 9)])
def test_a_budget_that_is_named_as_enough_is_enough(asked: Asked, blocks: int, overhead_s: float) -> None:
    study = dataclasses.replace(read(GOOD), blocks=100)
    arms = [entry.arm for entry in study.arms]

    def planned(budget_s: float) -> Plan:
        return with_rule(make_plan(study, arms, {arm.platform: overhead_s for arm in arms}, budget_s=budget_s), asked)

    budget_s, refused = 1e-3, 0
    while refused < 3:
        try:
            assert planned(budget_s).blocks == blocks
            break
        except StudyError as error:
            (problem,) = error.problems
            named = re.search(r"at least (\S+ \S+?)(,|$)", problem.remedy)
            assert named
            budget_s, refused = parse_duration_ns(named[1]) / 1e9, refused + 1
    assert refused == 1 + (asked != Asked()), "once by the plan, and once by the rule"


@pytest.mark.parametrize("blocks", [10**8, 33_334])
def test_more_trials_than_a_run_may_have_are_refused_before_they_are_drawn(blocks: int) -> None:
    """Whoever asked for them: the file was read with fewer blocks."""
    study = dataclasses.replace(read(GOOD), blocks=blocks)
    arms, overhead = [entry.arm for entry in study.arms], dict.fromkeys(CATALOGUE.platforms, 1.0)
    with pytest.raises(StudyError, match=rf"{blocks * 5 * 6:,} trials would be planned, and 1,000,000 are the most"):
        make_plan(study, arms, overhead)
    assert make_plan(study, arms, overhead, budget_s=1000).blocks == 5, "a budget makes them fewer"


def test_with_only_keeps_the_baseline_and_refuses_strangers() -> None:
    kept = with_only(read(GOOD), ["lxc"])
    assert [entry.arm.platform for entry in kept.arms] == ["native", "native", "lxc"]
    with pytest.raises(StudyError, match="'xen' is no platform of study 'demo'"):
        with_only(read(GOOD), ["xen"])


def test_a_platform_that_the_study_does_not_name_is_measured_as_it_usually_is() -> None:
    """And skipped, with the reason, where the machine cannot offer it."""
    study, _ = requested(Request("proxy", quick=True, platforms=["bubblewrap", "docker"]))
    arms = [(entry.arm.label, entry.optional) for entry in study.arms if entry.arm.role == "treatment"]
    assert arms == [("docker+routed", True), ("docker+published", True), ("bubblewrap+routed", True)]
    everything, _ = requested(Request("proxy", quick=True, platforms=["all"]))
    assert {entry.arm.platform for entry in everything.arms} == {*catalogue().platforms}
    with pytest.raises(StudyError, match="'bubblewarp' is no platform of study 'proxy'"):
        requested(Request("proxy", platforms=["bubblewarp"]))


def test_of_all_platforms_one_that_has_too_few_cpus_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User Mode Linux has one. Who names it is told of a mistake; so is a file that says it must be there."""
    path, host = tmp_path / "two.toml", LocalHost()
    text = 'name = "two"\n[service]\nname = "nginx"\n[load]\nname = "http"\nconnections = 4\n[limits]\nvcpus = 2\n'
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    monkeypatch.setattr("virtoll.run.stage.cpu_plan", lambda *_: None)
    path.write_text(text)
    study, _ = requested(Request(str(path), platforms=["all"]))
    arms, skipped = Stage(study, host).offered("two.toml", tries=False)
    assert [entry.arm.platform for entry in skipped] == ["uml"]
    assert "uml has no more than 1 CPU, and the study asks for 2" in skipped[0].reason
    assert {arm.platform for arm in arms} == {*catalogue().platforms} - {"uml"}
    path.write_text(f'{text}[[arms]]\nplatform = "uml"\noptional = true\n')
    study, _ = requested(Request(str(path), platforms=["all"]))
    assert [entry.arm.platform for entry in Stage(study, host).offered("two.toml", tries=False)[1]] == ["uml"]
    for platforms in (["uml"], ["uml", "lxc"], None):
        with pytest.raises(StudyError, match="uml has no more than 1 CPU"):
            requested(Request(str(path), platforms=platforms))
    path.write_text(f'{text}[[arms]]\nplatform = "uml"\n')
    with pytest.raises(StudyError, match="uml has no more than 1 CPU"):
        requested(Request(str(path), platforms=["all"]))


SIZED = 'name = "sized"\narms = [{ platform = "native" }]\nservice = { name = "nginx" }\nload = { name = "http" }\n'


@pytest.mark.parametrize("quick", [False, True])
def test_a_memory_limit_of_the_command_line_is_that_of_every_instance(quick: bool) -> None:
    """So `virtoll run density` tells of instances as those of another run are limited."""
    study, _ = requested(Request("density", quick=quick, memory_bytes=768 * 2**20))
    assert study.command == f"density{' --quick' * quick} --memory 768MiB"
    usual, _ = requested(Request("density", quick=quick))
    assert dataclasses.replace(study, command=usual.command, base=usual.base) == usual
    differing = {path for path in study.base if study.base[path] != usual.base[path]}
    assert differing == {"limits.memory_bytes"}
    assert study.base["limits.memory_bytes"] == 768 * 2**20


def test_a_memory_limit_is_refused_where_the_study_compares_several(tmp_path: Path) -> None:
    path = tmp_path / "sizes.toml"
    path.write_text(f'{SIZED}[factors]\n"limits.memory" = ["256 MiB", "512 MiB"]\n')
    with pytest.raises(StudyError) as refused:
        requested(Request(str(path), memory_bytes=2**29))
    (problem,) = refused.value.problems
    assert problem.what == "the study compares several memory limits (limits.memory), and --memory would be one"
    assert problem.remedy == "leave --memory out"
    path.write_text(SIZED)
    with pytest.raises(StudyError, match="--memory 1000B: no instance has less than 1 MiB of memory"):
        requested(Request(str(path), memory_bytes=1000))


def test_a_memory_limit_is_that_of_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the verb to the run directory; one that is gone on with has its own, and a server that is there none."""
    on_fakes(monkeypatch, {})
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path)
    assert code_of("run", "small.toml", "--memory", "768 MiB", "--out", "run") == 0
    assert RunDirectory(tmp_path / "run").study["base"]["limits.memory_bytes"] == 768 * 2**20
    assert code_of("run", "run", "--memory", "768MiB") == 2
    assert "--memory: a run's plan is fixed" in capsys.readouterr().err
    assert code_of("run", "small.toml", "--memory", "768MiB", "--target", "http://127.0.0.1:1/") == 2
    assert "--memory is for arms that are deployed" in capsys.readouterr().err


def test_a_platform_is_added_to_the_arms_however_they_are_written(tmp_path: Path) -> None:
    """As an array in one line, and in the place of the study's own by [quick]."""
    path = tmp_path / "inline.toml"
    path.write_text(
        'name = "small"\narms = [{ platform = "native" }, { platform = "lxc" }]\n'
        'service = { name = "nginx" }\nload = { name = "http", connections = 4 }\n'
        'quick = { arms = [{ platform = "native" }] }\n',
        encoding="utf-8",
    )
    for quick, own in ((False, ["native", "native", "lxc"]), (True, ["native", "native"])):
        study, _ = requested(Request(str(path), quick=quick, platforms=["lxc", "docker"][quick:]))
        assert [entry.arm.platform for entry in study.arms] == [*own, "docker"]
        assert study.arms[-1].optional


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('[load]\nname = "http"\n', 'load = "http"\n', "load is no table"),
        ("[[exclude]]", "[exclude]", "exclude is no table"),
        ("[load]\n", "[load]\nconnections = 0\n", "connections: must be at least 1"),
        ('time_limit = "5 s"', 'time_limit = "0 s"', "time_limit: must be at least 1 ns"),
        ('"load.connections" = [1, 100]', '"load.connections" = [1, 0]', "load.connections: must be at least 1"),
        ("[load]\n", "[limits]\nvcpus = 0\n[load]\n", "vcpus: must be at least 1"),
        ("optional = true", 'optional = "no"', "optional = 'no' is not true or false"),
        ('network = ["routed", "published"]', "network = []", "no network mode is listed"),
        ('"load.object" = "1 MB"\n', '"load.object" = "2 MB"\n', "load.object = '2 MB' is excluded but is no level"),
        ('"service.cache" = "on"\n"load.object" = "1 MB"\n', "", "an empty rule would exclude everything"),
        ("[[exclude]]\n", '[[exclude]]\nplatform = "native"\n', "native is what all others are compared with"),
        (
            "[[exclude]]\n",
            '[[exclude]]\nplatform = "dokcer"\n',
            "no arm is of platform 'dokcer'; did you mean",
        ),
        ('"service.cache" = "on"\n"load.object" = "1 MB"\n', 'platform = "lxc"\n', "an empty rule would exclude"),
        ('"load.object" = "1 MB"\n', '"load.object" = []\n', "load.object names nothing: such a rule excludes nothing"),
        ("[[exclude]]\n", "[[exclude]]\nplatform = []\n", "platform names nothing: such a rule excludes nothing"),
        ("blocks = 3", "blocks = 3\nmargin = 3.0", "margin is relative"),
        ("blocks = 3", 'blocks = 3\nclaims = ["nobody"]', "there are no claims called 'nobody'"),
    ],
)
def test_what_could_only_fail_later_is_refused(old: str, new: str, told: str) -> None:
    assert old in GOOD
    # Tables must come after the keys of the top.
    text = new + GOOD.replace(old, "") if new.startswith("load =") else GOOD.replace(old, new, 1)
    assert told in "\n".join(problems(text))


def test_more_cpus_than_a_platform_has_are_refused() -> None:
    one = dataclasses.replace(CATALOGUE.platforms["lxc"], most_vcpus=1)
    catalogue = dataclasses.replace(CATALOGUE, platforms={**CATALOGUE.platforms, "lxc": one})
    text = GOOD.replace("[factors]\n", '[factors]\n"limits.vcpus" = [1, 2]\n')
    assert read(text).factors["limits.vcpus"] == (1, 2)
    with pytest.raises(StudyError, match=r"my.toml:26: lxc has no more than 1 CPU"):
        read_study(text, "my.toml", catalogue)


def test_more_cpus_than_a_platform_has_may_be_excluded_for_it() -> None:
    one = dataclasses.replace(CATALOGUE.platforms["lxc"], most_vcpus=1)
    catalogue = dataclasses.replace(CATALOGUE, platforms={**CATALOGUE.platforms, "lxc": one})
    text = GOOD.replace("[factors]\n", '[factors]\n"limits.vcpus" = [1, 2]\n')
    spared = text.replace("[[quick", "[[") + '[[exclude]]\nplatform = "lxc"\n"limits.vcpus" = 2\n'
    study = read_study(spared, "my.toml", catalogue)
    asked = {each.condition["limits.vcpus"] for each in deployments(study, [entry.arm for entry in study.arms[-1:]])}
    assert asked == {1}
    for other in ('"limits.vcpus" = 1', '"limits.vcpus" = 2\n"load.connections" = 100'):
        with pytest.raises(StudyError, match="lxc has no more than 1 CPU"):
            read_study(spared.replace('"limits.vcpus" = 2', other), "my.toml", catalogue)


def test_a_quick_variant_may_drop_the_arms_that_its_study_spares_something() -> None:
    text = GOOD.replace("[[exclude]]\n", '[[exclude]]\nplatform = "lxc"\n')
    text = text.replace("[quick]", '[[quick.arms]]\nplatform = "native"\n[quick]')
    assert [entry.arm.platform for entry in read(text, quick=True).arms] == ["native", "native"]
    with pytest.raises(StudyError, match="no arm is of platform 'lcx'"):
        read(text.replace('[[exclude]]\nplatform = "lxc"', '[[exclude]]\nplatform = "lcx"'), quick=True)


def test_a_study_that_excludes_everything_is_refused() -> None:
    text = GOOD.replace('"load.object" = "1 MB"\n', "") + '[[exclude]]\n"service.cache" = "off"\n'
    study = read(text)
    with pytest.raises(StudyError, match="nothing is left to measure"):
        make_plan(study, [entry.arm for entry in study.arms], dict.fromkeys(CATALOGUE.platforms, 1.0))


def test_what_is_excluded_for_a_platform_is_measured_on_the_others() -> None:
    text = GOOD.replace("[[exclude]]\n", '[[exclude]]\nplatform = "docker"\n')
    study = read(text)
    arms = [entry.arm for entry in study.arms]
    excluded = {"service.cache": "on", "load.object_bytes": 10**6}
    for deployment in deployments(study, arms):
        assert not (deployment.arm.platform == "docker" and excluded.items() <= deployment.condition.items())
    counts = Counter(deployment.arm.platform for deployment in deployments(study, arms))
    assert counts == {"native": 16, "docker": 12, "lxc": 8}, "native and native again; two networks of docker"
    nothing = text + '[[exclude]]\nplatform = ["lxc"]\n"load.connections" = [1, 100]\n'
    with pytest.raises(StudyError, match=r"nothing of lxc\+routed.* is left to measure"):
        make_plan(read(nothing), arms, dict.fromkeys(CATALOGUE.platforms, 1.0))
