"""A comparison confirmed: both configurations measured in the blocks of one run, from the verb to what it says."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy

from ocimake import Entry, Made, docker_files, layer, write_archive
from on_fakes import on_fakes
from test_exit_codes import code_of
from virtoll import binaries
from virtoll.analysis.changes import Matched, Paired, judge_changes
from virtoll.analysis.estimates import summarise
from virtoll.analysis.load import read_run
from virtoll.analysis.metrics import load_metrics
from virtoll.analysis.ratios import Row
from virtoll.analysis.rules import FIXED
from virtoll.catalogue import catalogue
from virtoll.errors import IncomparableError, Problem, StoreError
from virtoll.fakes import FakeExperiment
from virtoll.hosts.local import LocalHost
from virtoll.images import oci, rootfs
from virtoll.images.base import Image, Images
from virtoll.images.source import Source
from virtoll.platforms.native import Native
from virtoll.record.model import CONFIGURATION, Arm, Plan, PlannedTrial
from virtoll.record.store import RunDirectory
from virtoll.report import change_forms as forms
from virtoll.report.changes import Compared, compare, confirmed
from virtoll.report.history import history
from virtoll.run import stage
from virtoll.run.elsewhere import problems_elsewhere
from virtoll.run.stage import Stage
from virtoll.services.own import Own
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.interleaved import interleaved
from virtoll.study.limits import Limits
from virtoll.study.model import Study
from virtoll.study.plan import conditions, make_plan
from virtoll.trial import deployer
from virtoll.trial.notes import Notes
from virtoll.trial.treatment import treatment_of

pytestmark = pytest.mark.usefixtures("undrawn")

TEXT = """
name = "small"
title = "Small"
question = "What does docker cost here?"
blocks = 6
seed = 4
[service]
name = "nginx"
[load]
name = "http"
time_limit = "1 s"
[limits]
memory = "512 MiB"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
[[arms]]
platform = "lxc"
"""
LARGER = TEXT.replace("512 MiB", "1 GiB").replace("seed = 4", "seed = 5")
UNCONFINED = TEXT.replace("seed = 4", "seed = 5").replace(
    'platform = "docker"', 'platform = "docker"\nseccomp = "unconfined"'
)
OPEN = TEXT.replace('name = "http"', 'name = "http"\nloop = "open"\nconnections = 50')
DOCKER, FREE, LXC = "docker+routed", "docker+routed (seccomp unconfined)", "lxc+routed"
TOLL = 1.04  # of docker under B, over that under A


def of(text: str) -> Study:
    return read_study(text, "small.toml", catalogue())


def planned(a: Study, b: Study) -> Plan:
    both = interleaved(a, b)
    assert both is not None
    arms = [entry.arm for entry in both.study.arms]
    return make_plan(replace(both.study, seed=1), arms, {arm.platform: 1.0 for arm in arms})


@dataclass
class Two(FakeExperiment):
    """A fake whose docker takes longer under B; how much longer than native's each platform takes is drawn block by
    block.
    """

    def _toll(self, trial: PlannedTrial, probe: str = "") -> float:
        own = random.Random(f"{trial.arm.platform} {trial.block}").lognormvariate(0, 0.05)
        is_native, is_docker = (trial.arm.platform == name for name in ("native", "docker"))
        is_b = trial.condition.get(CONFIGURATION) == "B" or trial.arm.label == FREE
        return super()._toll(trial, probe) * (1 if is_native else own) * (TOLL if is_docker and is_b else 1)


@dataclass
class Bench:
    """Verbs on a fake lab, in a directory of their own."""

    directory: Path
    patch: pytest.MonkeyPatch
    fail: dict[str, BaseException | str] = field(default_factory=dict)
    offers: Callable[[Stage], list[Arm]] = lambda stage: [entry.arm for entry in stage.study.arms]

    def __post_init__(self) -> None:
        on_fakes(self.patch, {})
        self.patch.chdir(self.directory)

        @contextmanager
        def lab(_stage: Stage, _images: object, _pending: Sequence[PlannedTrial]) -> Iterator[Two]:
            tolls = {"native": 1.0, "docker": 1.25, "lxc": 1.1}
            yield Two(tolls, spread=0.002, fail=self.fail)

        self.patch.setattr(Stage, "lab", lab)

    def run(self, name: str, text: str) -> Path:
        (self.directory / f"{name}.toml").write_text(text)
        assert code_of("run", f"{name}.toml", "--out", name) == 0
        return self.directory / name

    def again(self, *options: str, a: str = "a", b: str = "b") -> int:
        return code_of("compare", a, b, "--again", *options)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def change_of(compared: Compared, label: str = DOCKER) -> Any:
    return next(c for c in compared.changes if (c.matched.arm.label, c.matched.metric.name) == (label, "rate_per_s"))


# -- the statistic --------------------------------------------------------------------------------------------


def test_the_change_is_that_of_the_paired_test() -> None:
    before, after = [-0.02, 0.01, -0.03, 0.0, 0.02], [-0.06, -0.02, -0.08, -0.05, -0.01]
    told = Paired(summarise(np.subtract(after, before)), FIXED)
    theirs = scipy.stats.ttest_rel(after, before)
    interval = theirs.confidence_interval(0.95)
    assert told.p() == pytest.approx(theirs.pvalue, rel=1e-9)
    assert told.estimate().low == pytest.approx(math.exp(interval.low), rel=1e-9)
    assert told.estimate().high == pytest.approx(math.exp(interval.high), rel=1e-9)
    docker = Arm(label=DOCKER, platform="docker", network="routed")
    rows = [Row(docker, None, summarise(values), None, 1) for values in (before, after)]
    matched = Matched(docker, load_metrics("request")["rate_per_s"], "", rows[0], rows[1], (FIXED, FIXED))
    one_run = replace(matched, is_one_run=True, within=summarise(np.subtract(after, before)))
    [apart], [together] = judge_changes([matched], 0.03, 0.01), judge_changes([one_run], 0.03, 0.01)
    assert (apart.kind, together.kind) == ("worse", "worse")
    assert together.p < apart.p
    assert together.smallest is not None
    assert apart.smallest is not None
    assert together.smallest < apart.smallest
    [nothing] = judge_changes([replace(one_run, within=None)], 0.03, 0.01)
    assert (nothing.kind, nothing.gate, nothing.ratio) == ("missing", "open", None)


# -- one study of two -----------------------------------------------------------------------------------------


def test_what_differs_is_a_factor_and_native_stands_in_both() -> None:
    both = interleaved(of(TEXT), of(LARGER))
    assert both is not None
    assert both.differing == ("limits.memory_bytes: 536870912 in A, 1073741824 in B",)
    plan = planned(of(TEXT), of(LARGER))
    assert plan.blocks == 6
    for block in range(1, 7):
        mine = [(t.arm.label, t.condition) for t in plan.trials if t.block == block]
        labels = ("native+host", "native+host (again)", DOCKER, LXC)
        assert sorted(map(str, mine)) == sorted(
            str((label, {CONFIGURATION: name})) for label in labels for name in "AB"
        )
    sizes = [treatment_of(both.study, {CONFIGURATION: name}, DOCKER).limits.memory_bytes for name in "AB"]
    assert sizes == [2**29, 2**30]


def test_arms_that_differ_by_themselves_share_their_native() -> None:
    both = interleaved(of(TEXT), of(UNCONFINED))
    assert both is not None
    assert both.differing == (f"arm: {DOCKER} in A, {FREE} in B",)
    assert both.left_out == (f"{LXC} is the same in both",)
    plan = planned(of(TEXT), of(UNCONFINED))
    block = [trial.arm.label for trial in plan.trials if trial.block == 1]
    assert sorted(block) == sorted(["native+host", "native+host (again)", DOCKER, FREE])


def test_where_values_differ_too_an_arm_stands_in_its_own_configuration_alone() -> None:
    plan = planned(of(TEXT), of(UNCONFINED.replace("512 MiB", "1 GiB")))
    asked = {(trial.arm.label, trial.condition[CONFIGURATION]) for trial in plan.trials}
    assert {name for label, name in asked if label == DOCKER} == {"A"}
    assert {name for label, name in asked if label == FREE} == {"B"}
    assert {name for label, name in asked if label == LXC} == {"A", "B"}


OWN = TEXT.replace(
    'name = "nginx"', 'name = "own"\nports = ["80/tcp"]\npackages = ["nginx"]\ncommand = ["/usr/sbin/nginx"]'
)


def test_a_list_of_a_service_may_differ_and_is_read_back() -> None:
    """Which no factor may be."""
    both = interleaved(of(OWN), of(OWN.replace('sbin/nginx"]', 'sbin/nginx", "-q"]')))
    assert both is not None
    kept = json.loads(json.dumps(document.as_json(both.study)))
    study = document.of(kept, Path("study.json"), catalogue())
    assert study == both.study
    commands = [treatment_of(study, {CONFIGURATION: name}).work.service.settings.command for name in "AB"]  # type: ignore[union-attr]
    assert commands == [("/usr/sbin/nginx",), ("/usr/sbin/nginx", "-q")]


def test_a_study_of_one_configuration_is_written_as_before() -> None:
    assert "configurations" not in document.as_json(of(TEXT))


def test_a_factor_of_one_level_is_a_value() -> None:
    """As quick variants have them; a rule that excludes another level of it, or this one with others, is still held."""
    sizes = '[factors]\n"limits.memory" = [{}]\n"load.connections" = [1, 9]\n[[exclude]]\n"limits.memory" = {}\n'
    one, other = (
        f"{TEXT}{sizes.format(size, size)}\"load.connections\" = 9\nplatform = 'lxc'\n"
        for size in ('"512 MiB"', '"1 GiB"')
    )
    both = interleaved(of(one), of(other))
    assert both is not None
    assert both.differing == ("limits.memory_bytes: 536870912 in A, 1073741824 in B",)
    asked = {
        (t.arm.label, t.condition["load.connections"], t.condition[CONFIGURATION])
        for t in planned(of(one), of(other)).trials
    }
    assert {each for each in asked if each[0] == LXC} == {(LXC, 1, "A"), (LXC, 1, "B")}
    assert len({each for each in asked if each[0] == DOCKER}) == 4
    quick = of(TEXT + '[factors]\n"limits.memory" = ["512 MiB", "1 GiB"]\n[[exclude]]\n"limits.memory" = "1 GiB"\n')
    assert interleaved(replace(quick, factors={"limits.memory_bytes": (2**29,)}), of(LARGER)) is not None


def test_a_factor_of_one_level_is_that_of_all_servers() -> None:
    """Each server's own default was in its place: nine connections were asked for, and one was measured."""
    servers = "".join(
        f'[servers.{name}.service]\nname = "{name}"\n[servers.{name}.load]\nname = "http"\n'
        for name in ("nginx", "apache")
    )
    text = f"""name = "both"
blocks = 2
[service]
tls = false
{servers}
[factors]
"load.connections" = [9]
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""
    limited = text.replace("[factors]", '[limits]\nmemory = "1 GiB"\n[factors]')
    both = interleaved(of(text), of(limited))
    assert both is not None
    assert both.differing == ("limits.memory_bytes: 536870912 in A, 1073741824 in B",)
    asked = [both.study.values(condition)["load.connections"] for condition in conditions(both.study)]
    assert asked == [9, 9, 9, 9]
    other = interleaved(of(text), of(text.replace("[9]", "[7]")))
    assert other is not None
    asked = [other.study.values(condition)["load.connections"] for condition in conditions(other.study)]
    assert asked == [9, 9, 7, 7]


def test_configured_alike_there_is_no_study() -> None:
    assert interleaved(of(TEXT), of(TEXT.replace("blocks = 6", "blocks = 9").replace("seed = 4", "seed = 5"))) is None


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (TEXT.replace('"nginx"', '"apache"'), "service: nginx in A, apache in B"),
        (OPEN, "load.loop: closed in A, open in B"),
        (TEXT.replace("[limits]", "[link]\ndelay = '1 ms'\n[limits]"), "link.delay_ns"),
        (TEXT.replace("seed = 4", 'seed = 4\ndesign = "rotation"'), "design: blocks in A, rotation in B"),
        (f'{TEXT}[factors]\n"load.connections" = [1, 9]\n', "[factors] load.connections: nothing in A, [1, 9] in B"),
    ],
)
def test_what_cannot_be_two_things_at_once_is_named(other: str, told: str) -> None:
    with pytest.raises(IncomparableError) as refused:
        interleaved(of(TEXT), of(other))
    assert told in str(refused.value)
    assert "service.workers" not in str(refused.value)  # whose service is another, all else of it is
    assert "->" in str(refused.value)


def test_other_probes_are_named() -> None:
    probes = TEXT[: TEXT.index("[service]")] + '[[probes]]\nname = "clock"\n' + TEXT[TEXT.index("[limits]") :]
    with pytest.raises(IncomparableError, match=r"\[\[probes\]\]"):
        interleaved(of(probes), of(probes.replace('"clock"', '"timer"')))


def test_who_uses_it_has_one_image() -> None:
    by_command = 'name = "command"\nrun = ["x"]\nwork = { read = "(1)" }\nimage = "oci:load.tar"'
    one = of(TEXT.replace('name = "http"', by_command))
    with pytest.raises(IncomparableError, match=r"load\.image: oci:\S+/load\.tar in A, oci:\S+/other\.tar in B"):
        interleaved(one, of(TEXT.replace('name = "http"', by_command.replace("load.tar", "other.tar"))))


def test_without_an_arm_in_common_nothing_stands_against_anything() -> None:
    few = TEXT.replace('[[arms]]\nplatform = "lxc"\n', "")
    with pytest.raises(IncomparableError, match="no arm of A is among B's: only A has docker"):
        interleaved(of(few), of(few.replace('"docker"', '"lxc"')))


# -- two images -----------------------------------------------------------------------------------------------


IMAGE = OWN.replace('packages = ["nginx"]', 'image = "oci:a.tar"')
PATHS = {"a": IMAGE, "b": IMAGE.replace("a.tar", "b.tar")}
PACKAGES = {"a": OWN, "b": OWN.replace('["nginx"]', '["nginx", "curl"]')}


def study_of_images(texts: Mapping[str, str]) -> Study:
    both = interleaved(of(texts["a"]), of(texts["b"]))
    assert both is not None
    return both.study


@pytest.mark.parametrize("texts", [PATHS, PACKAGES], ids=["images", "packages"])
def test_each_configuration_has_the_image_of_its_own_run(texts: Mapping[str, str]) -> None:
    """As the run of it alone had; nothing of the one's packages is in the other's."""
    wanted = Stage(study_of_images(texts), LocalHost()).wanted
    alone = {name.upper(): Stage(of(text), LocalHost()).wanted[""] for name, text in texts.items()}
    assert wanted == alone
    assert wanted["A"] != wanted["B"]
    assert list(Stage(study_of_images({"a": TEXT, "b": LARGER}), LocalHost()).wanted) == [""], "they share one"


def test_both_images_are_made_ready_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each platform and its limits, in the run's record under their configurations."""
    ready: list[tuple[str, int]] = []

    class Ready(Native):
        def prepare(self, host: Any, image: Image, limits: Limits, progress: Any) -> None:
            ready.append((image.digest, limits.memory_bytes))

    text = PATHS["b"].replace("512 MiB", "1 GiB")
    study = study_of_images({"a": PATHS["a"], "b": text})
    monkeypatch.setattr(stage, "built", lambda _host, name, wanted, *_: Image(name, wanted.source[-5:], Path()))
    monkeypatch.setattr(stage, "_platforms", lambda _arms: {"native": Ready()})
    looked_at: list[tuple[str, str]] = []

    def looked(service: Own, image: Image) -> list[Problem]:
        looked_at.append((service.settings.image[-5:], image.digest))
        return []

    monkeypatch.setattr(Own, "problems_with", looked)
    images = Stage(study, LocalHost()).prepare([], lambda _line: None)
    assert {role: image.digest for role, image in images.by_role.items()} == {
        "instance A": "a.tar",
        "instance B": "b.tar",
    }
    assert sorted(ready) == [("a.tar", 2**29), ("b.tar", 2**30)]
    assert set(looked_at) == {("a.tar", "a.tar"), ("b.tar", "b.tar")}, "what is to be started is looked for in its own"


def test_a_trial_is_deployed_from_its_configurations_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All that it deploys, within a session of that image, which is begun once."""
    seen: list[tuple[str, str]] = []

    class Seen:
        name = "native"

        @contextmanager
        def session(self, _lab: object, image: Image) -> Iterator[None]:
            seen.append(("session", image.digest))
            yield

    @contextmanager
    def deployed(_lab: object, name: str, _platform: object, image: Image, **_: object) -> Iterator[Any]:
        seen.append((name, image.digest))
        yield SimpleNamespace(facts={}, agent=SimpleNamespace(facts=dict))

    monkeypatch.setattr(deployer, "make_platform", lambda _arm: Seen())
    monkeypatch.setattr(deployer, "_deployed", deployed)
    monkeypatch.setattr(deployer.Deployer, "_steer", lambda *_: None)
    monkeypatch.setattr(deployer, "replace", lambda lab, **_: lab)
    one, other = (Image("own", digest, tmp_path) for digest in ("aa", "bb"))
    lab = SimpleNamespace(sut=None, at=lambda _site: None)
    plan = planned(of(PATHS["a"]), of(PATHS["b"]))
    mine = [trial for trial in plan.trials if (trial.block, trial.arm.label) == (1, DOCKER)]
    with ExitStack() as sessions, ExitStack() as stack:
        made = deployer.Deployer(lab, Images(one, configured={"A": one, "B": other}), sessions)  # type: ignore[arg-type]
        for trial in (*mine, mine[0]):
            made.first(stack, trial, Limits(), (), Notes(tmp_path, lambda _phase: None))
            stack.enter_context(made.deployed("another", trial, Limits(), ()))
    of_trial = {trial.id: {"A": "aa", "B": "bb"}[trial.condition[CONFIGURATION]] for trial in mine}
    assert [digest for what, digest in seen if what == "session"] == list(of_trial.values())
    told = [each for each in seen if each[0] != "session"]
    assert told == [(what, of_trial[t.id]) for t in (*mine, mine[0]) for what in (t.id, "another")]


def test_on_a_machine_elsewhere_there_is_one_image() -> None:
    study = study_of_images(PATHS)
    ssh = Arm(label="ssh+direct", platform="ssh", network="direct", settings={"destination": "root@host"})
    told = [problem.what for problem in problems_elsewhere(study, Stage(study, LocalHost()).asked, ssh)]
    assert told == ["the two configurations have an image each, and one is brought there"]


def measured_of_images(bench: Bench, *, texts: Mapping[str, str] = PATHS, **comparable: Any) -> None:
    """Both runs, each with its image in its record."""
    for name, text in texts.items():
        if "image" in text:
            made = Made([layer(Entry("server", name.encode()))], {"Cmd": ["/server"]})
            write_archive(bench.directory / f"{name}.tar", docker_files({f"{name}:1": made}, legacy=False))
        run = bench.run(name, text)
        wanted = Stage(document.of(RunDirectory(run).study, run, catalogue()), LocalHost()).wanted[""]
        source = Source.parse(wanted.source, Path()) if wanted.source else None
        image = oci.image_of("small", source) if source else rootfs.image_of("small", wanted.packages)
        versions = dict.fromkeys(wanted.packages, "1.0")
        of_packages = {"packages": {"instance": versions}, "installed": {"instance": repr(versions)}}
        changed(run, agent="agent", images={"instance": image.digest}, **of_packages, **comparable)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(binaries, "digest", lambda _name: "agent")
    return monkeypatch


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("texts", [PATHS, PACKAGES], ids=["images", "packages"])
def test_two_images_are_measured_in_the_same_blocks(
    bench: Bench, texts: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    measured_of_images(bench, texts=texts)
    capsys.readouterr()
    assert bench.again("--out", "again", "--fail-over", "50%") == 0
    assert re.search(r"service\.(image|packages): \S+ in A, .+ in B", capsys.readouterr().out)
    docker = change_of(confirmed(bench.directory / "again"))
    assert docker.ratio.low < 1 / TOLL < docker.ratio.high
    assert docker.ratio.n == 6


@pytest.mark.usefixtures("agent")
def test_an_image_that_is_another_by_now_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """By what it holds, whatever it is called; where virtoll's agent is another nobody can tell, and that is said."""
    measured_of_images(bench)
    (bench.directory / "a.tar").write_bytes((bench.directory / "b.tar").read_bytes())
    capsys.readouterr()
    assert bench.again("--out", "again") == 7
    assert "the image of A is not there any more: oci:" in capsys.readouterr().err
    (bench.directory / "a.tar").unlink()
    assert bench.again("--out", "again") == 3
    assert "there is no such image" in capsys.readouterr().err
    assert not (bench.directory / "again").exists()
    assert bench.again("--dry-run") == 0


@pytest.mark.usefixtures("agent")
def test_an_image_that_was_replaced_under_its_name_is_of_the_machine(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """And so is another version of a package that both have."""
    measured_of_images(bench, texts={"a": IMAGE, "b": IMAGE.replace("512 MiB", "1 GiB")})
    changed(bench.directory / "b", images={"instance": "another"})
    capsys.readouterr()
    assert bench.again("--out", "again") == 7
    assert "images.instance: was" in capsys.readouterr().err
    for name in ("a", "b"):
        shutil.rmtree(bench.directory / name)
    measured_of_images(bench, texts=PACKAGES)
    changed(bench.directory / "b", packages={"instance": {"nginx": "2.0", "curl": "1.0"}})
    capsys.readouterr()
    assert bench.again("--out", "again") == 7
    said = capsys.readouterr().err
    assert "packages.instance.nginx: was 1.0, is 2.0" in said
    assert "curl" not in said
    assert "installed" not in said
    for name in ("a", "b"):
        shutil.rmtree(bench.directory / name)
    measured_of_images(bench, texts={"a": OWN, "b": OWN.replace("512 MiB", "1 GiB")})
    changed(bench.directory / "b", installed={"instance": "110 packages of another day"})
    capsys.readouterr()
    assert bench.again("--out", "again") == 7
    assert "installed.instance: was " in capsys.readouterr().err


# -- the verb -------------------------------------------------------------------------------------------------


def test_one_run_tells_what_two_could_not(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """What a platform does from block to block is in both configurations, and so in neither's change."""
    bench.run("a", TEXT), bench.run("b", LARGER)
    capsys.readouterr()
    assert bench.again("--fail-over", "2%", "--metrics", "rate_per_s", "--out", "again", "--seed", "1") == 5
    out = capsys.readouterr().out
    assert "limits.memory_bytes: 536870912 in A, 1073741824 in B" in out
    assert "B is worse than A by more than 2 %: 1 of 2." in out
    assert "different under test: limits.memory_bytes" in out
    told = confirmed(bench.directory / "again")
    docker, lxc = change_of(told), change_of(told, LXC)
    assert docker.ratio.low < 1 / TOLL < docker.ratio.high
    assert (docker.kind, lxc.kind) == ("worse", "same")
    assert docker.ratio.n == 6
    half = math.log(docker.ratio.high / docker.ratio.low)
    apart = math.hypot(*(math.log(each.high / each.low) for each in (docker.before, docker.after)))
    assert half < apart / 5
    assert {each.metric.name for each in told.natives} == {"rate_per_s", "cpu_s_per_1000"}
    study = RunDirectory(bench.directory / "again").study
    assert study["command"] == "compare a b --again"
    assert study["blocks"] == 6


def test_the_arms_settings_alone_may_differ(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run("a", TEXT), bench.run("b", UNCONFINED)
    assert bench.again("--out", "again", "--blocks", "8") == 0
    out = capsys.readouterr().out
    assert f"arm: {DOCKER} in A, {FREE} in B" in out
    assert f"not measured: {LXC} is the same in both" in out
    told = confirmed(bench.directory / "again")
    docker = change_of(told)
    assert docker.ratio.low < 1 / TOLL < docker.ratio.high
    assert docker.ratio.n == 8
    assert not told.natives  # it is the same one
    assert any(line.startswith(f"{DOCKER}: nothing in A") for line in told.configured)


def test_the_report_of_such_a_run_is_like_any_others(bench: Bench) -> None:
    bench.run("a", TEXT), bench.run("b", LARGER)
    assert bench.again("--out", "again", "--blocks", "2") == 0
    page = (bench.directory / "again" / "report" / "index.html").read_text().replace("\u00a0", " ")
    assert "virtoll compare a b --again --blocks 2" in page
    assert "A: limits.memory_bytes" in page
    assert "configuration A" in page


def test_a_run_that_was_interrupted_goes_on_and_is_told_then(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run("a", TEXT), bench.run("b", LARGER)
    bench.fail["b03-t0019"] = KeyboardInterrupt()
    assert bench.again("--out", "again") == 130
    assert "`virtoll run again` goes on" in capsys.readouterr().out
    bench.fail.clear()
    assert code_of("run", "again") == 0
    capsys.readouterr()
    assert code_of("compare", "again", "--fail-over", "50%") == 0
    assert "B is not worse than A by more than 50 %: all 4." in capsys.readouterr().out


def test_one_that_was_made_longer_has_the_intervals_of_such_a_run(bench: Bench) -> None:
    bench.run("a", TEXT), bench.run("b", LARGER)
    assert bench.again("--out", "again", "--blocks", "8") == 0
    before = change_of(confirmed(bench.directory / "again")).ratio
    assert code_of("run", "again", "--blocks", "9") == 0
    docker = change_of(confirmed(bench.directory / "again"))
    assert docker.ratio.n == 9
    assert math.isnan(docker.p)
    assert docker.ratio.high / docker.ratio.low > before.high / before.low
    assert docker.kind == "worse"


def test_what_failed_is_in_no_change_and_the_code_says_it(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run("a", TEXT), bench.run("b", LARGER)
    plan = planned(of(TEXT), of(LARGER))
    lost = next(t.id for t in plan.trials if t.arm.label == DOCKER and t.condition[CONFIGURATION] == "B")
    bench.fail[lost] = "limits in force"
    assert bench.again("--out", "again", "--seed", "1") == 1
    assert "B: 1 of docker+routed's 6 trials are in no ratio" in " ".join(capsys.readouterr().out.split())
    docker = change_of(confirmed(bench.directory / "again"))
    assert docker.ratio.n == docker.before.n == docker.after.n == 5, "all three are of the blocks that tell the change"
    assert docker.after.value / docker.before.value == pytest.approx(docker.ratio.value, rel=1e-12)


def test_an_arm_that_b_lacks_is_missed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """It is left out of the run that measures both, and the code was 0, where that of the two as they were is 6."""
    bench.run("a", TEXT), bench.run("b", LARGER.replace('[[arms]]\nplatform = "lxc"', ""))
    assert code_of("compare", "a", "b", "--fail-over", "50%") == 6
    capsys.readouterr()
    assert bench.again("--out", "again", "--fail-over", "50%") == 6
    assert f"B lacks {LXC}." in " ".join(capsys.readouterr().out.split())
    assert bench.again("--out", "more", "--fail-over", "50%", a="b", b="a") == 0, "what A lacks is not missed in B"


def test_a_plan_changes_nothing(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run("a", TEXT), bench.run("b", LARGER)
    capsys.readouterr()
    assert bench.again("--dry-run", "--out", "again", "--blocks", "3") == 0
    assert "24 trials in 3 blocks" in capsys.readouterr().out
    assert not (bench.directory / "again").exists()


def test_the_json_is_one_object_whatever_the_run_says(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run("a", TEXT), bench.run("b", LARGER)
    capsys.readouterr()
    assert bench.again("--json", "--out", "again") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["same_blocks"] is True
    assert told["runs"] == ["again", "again"]
    assert code_of("compare", "a", "b", "--json") == 0
    assert json.loads(capsys.readouterr().out)["same_blocks"] is False


def test_a_table_says_that_blocks_were_shared(bench: Bench) -> None:
    bench.run("a", TEXT), bench.run("b", LARGER)
    assert bench.again("--out", "again", "--fail-over", "50%", "--markdown", "m.md", "--junit", "j.xml") == 0
    assert "A and B of again, in the same blocks" in (bench.directory / "m.md").read_text()
    assert 'name="virtoll compare again"' in (bench.directory / "j.xml").read_text()


def test_what_reads_runs_reads_such_a_one(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy that was kept small says the same; a history has it in a series of its own."""
    bench.run("a", TEXT), bench.run("b", LARGER)
    assert bench.again("--out", "again", "--blocks", "2") == 0
    told = []
    assert code_of("keep", "again", "kept") == 0
    for name in ("again", "kept"):
        capsys.readouterr()
        assert code_of("compare", name, "--json") == 0
        told.append(json.loads(capsys.readouterr().out)["changes"])
    assert told[0] == told[1]
    assert code_of("report", "again") == 0
    assert code_of("advise", "again") == 0
    capsys.readouterr()
    assert code_of("history", ".", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["run"] for row in rows if row["study"] == "compare a b --again"} == {"again"}


# -- what is refused ------------------------------------------------------------------------------------------


def changed(run: Path, **comparable: Any) -> None:
    path = run / "environment.json"
    there = json.loads(path.read_text())
    there["virtoll"] = comparable.pop("virtoll", there["virtoll"])
    there["comparable"] |= comparable
    path.write_text(json.dumps(there))


@pytest.mark.parametrize(
    ("text", "comparable", "told"),
    [
        (TEXT, {}, "configured alike, on one machine as it was: there is nothing to set against each other"),
        (TEXT, {"kernel": "6.8"}, "kernel: was 6.1.0-fake, is 6.8"),
        (LARGER, {"kernel": "6.8"}, "kernel: was 6.1.0-fake, is 6.8"),
        (LARGER, {"virtoll": "0.2"}, "virtoll: was fake, is 0.2"),
    ],
)
def test_a_machine_is_one_thing_at_a_time(
    bench: Bench, text: str, comparable: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run("a", TEXT)
    changed(bench.run("b", text), **comparable)
    capsys.readouterr()
    assert bench.again("--out", "again") == 7
    said = capsys.readouterr().err
    assert told in said
    assert "->" in said
    assert not (bench.directory / "again").exists()


def test_what_only_one_run_had_to_start_is_no_other_machine(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    changed(bench.run("a", TEXT), runtimes={"docker": "20.10"})
    changed(bench.run("b", LARGER), runtimes={"docker": "20.10", "podman": "4.3"})
    assert bench.again("--out", "again") == 0
    assert "the machine is not as it was" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [({"one": "1"}, {"other": "2"}, 0), (None, {"other": "2"}, 0), ({"one": "1"}, {"one": "2"}, 7)],
    ids=["other media", "none before", "the same made otherwise"],
)
def test_media_are_what_was_asked_for(a: dict[str, str] | None, b: dict[str, str], code: int, bench: Bench) -> None:
    """Conferences of two bit rates send two webcams; one of one name that another ffmpeg made is of the machine."""
    changed(bench.run("a", TEXT), **({} if a is None else {"media": a}))
    changed(bench.run("b", LARGER), media=b)
    assert bench.again("--out", "again") == code


def test_another_machine_than_that_of_both_is_told(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("a", TEXT), ("b", LARGER)):
        changed(bench.run(name, text), kernel="5.10")
    assert bench.again("--out", "again") == 0
    assert "the machine is not as it was in A and B: kernel" in " ".join(capsys.readouterr().out.split())


def files_of(run: Path) -> dict[str, str]:
    return Stage(document.of(RunDirectory(run).study, run, catalogue()), None).files  # type: ignore[arg-type]


def test_a_file_that_is_another_by_now_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    (bench.directory / "a.conf").write_text("1")
    (bench.directory / "b.conf").write_text("2")
    with_file = OWN.replace("[load]", 'files = {"/etc/own.conf" = "a.conf"}\n[load]', 1)
    for name, text in (("a", with_file), ("b", with_file.replace("a.conf", "b.conf"))):
        run = bench.run(name, text)
        changed(run, files=files_of(run))
    assert bench.again("--out", "again") == 0
    [both] = files_of(bench.directory / "again").values()
    assert len(both.split(" or ")) == 2
    (bench.directory / "a.conf").write_text("3")
    capsys.readouterr()
    assert bench.again("--out", "once-more") == 7
    assert "what the service of A was given is not there any more: /etc/own.conf" in capsys.readouterr().err
    (bench.directory / "a.conf").unlink()
    assert bench.again("--out", "once-more") == 2
    assert "a.conf: what the service of A was given cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [("a", "--again"), ("a", "b", "--blocks", "3"), ("a", "b", "--dry-run"), ("a", "b", "--again", "--junit", "x")],
)
def test_options_of_the_other_kind_are_refused(words: Sequence[str], bench: Bench) -> None:
    assert code_of("compare", *words) == 2


def test_one_run_of_one_configuration_is_none_to_tell(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    run = bench.run("a", TEXT)
    with pytest.raises(StoreError, match="of one configuration"):
        confirmed(run)
    assert code_of("compare", "a") == 4
    assert "name two run directories" in capsys.readouterr().err


def test_such_a_run_is_set_against_no_other_one(bench: Bench) -> None:
    """Its conditions are others."""
    bench.run("a", TEXT), bench.run("b", LARGER)
    assert bench.again("--out", "again", "--blocks", "2") == 0
    assert set(read_run(bench.directory / "again").configurations) == {"A", "B"}
    with pytest.raises(IncomparableError):
        compare(bench.directory / "a", bench.directory / "again")


def test_two_such_runs_of_other_loads_are_not_compared(bench: Bench) -> None:
    """What is a configuration's stands in no base: B at 2 connections was compared with B at 100, as one series."""
    for name, connections in (("a", 1), ("b", 2), ("c", 100)):
        bench.run(name, TEXT.replace('"1 s"', f'"1 s"\nconnections = {connections}'))
    assert bench.again("--out", "one", "--blocks", "2") == 0
    assert bench.again("--out", "other", "--blocks", "2", "--seed", "9", b="c") == 0
    one, other = bench.directory / "one", bench.directory / "other"
    with pytest.raises(IncomparableError, match=r"configuration B: load\.connections: 2 in A, 100 in B"):
        compare(one, other)
    told = [[run.directory.name for run in each.runs] for each in history(bench.directory).series]
    assert ["one"] in told
    assert ["other"] in told


def test_what_two_such_runs_have_under_test_is_told(bench: Bench) -> None:
    """It was not: B's memory is in no base."""
    bench.run("a", TEXT), bench.run("b", LARGER), bench.run("c", LARGER.replace("1 GiB", "2 GiB"))
    assert bench.again("--out", "one", "--blocks", "2") == 0
    assert bench.again("--out", "other", "--blocks", "2", "--seed", "9", b="c") == 0
    compared = compare(bench.directory / "one", bench.directory / "other")
    assert compared.configured == (f"configuration B: limits.memory_bytes: {1024**3} in A, {2 * 1024**3} in B",)


def test_forms_have_no_second_directory(bench: Bench) -> None:
    bench.run("a", TEXT), bench.run("b", UNCONFINED)
    assert bench.again("--out", "again", "--blocks", "2") == 0
    assert forms.as_json(confirmed(bench.directory / "again"))["runs"] == [str(bench.directory / "again")] * 2
