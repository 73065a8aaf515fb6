"""Studies of one's own service and load: what the file may say, what is wrong with it, and that study.json keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import ocimake
from fuzzing import JSON, fuzzed
from ocimake import Entry, Made, docker_files, layer, layout_files, write_archive, write_directory
from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StoreError, StudyError
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Image, Images
from virtoll.loads.command import CommandLoad
from virtoll.loads.reading import Reading
from virtoll.run import stage
from virtoll.run.named import available_studies
from virtoll.run.readiness import Readiness
from virtoll.run.stage import Stage
from virtoll.services.own import Own
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.values import Beside, Spec
from virtoll.trial.treatment import Driven, treatments

HERE = "/studies/shop.toml"

SERVICE = """\
[service]
name = "own"
image = "oci:shop.tar:1.2"
ports = ["8080/tcp", "53/udp"]
ready = "/health"
ready_within = "5 s"
command = ["--loud"]
env = { WORKERS = "2" }
files = { "/etc/shop.toml" = "conf/shop.toml", "/etc/other" = "/abs/other" }
"""
LOAD = """\
[load]
name = "command"
packages = ["postgresql-client"]
seed = ["init", "{address}"]
seeded = { read = 'rows (\\d+)' }
run = ["bench", "-c", "{users}"]
users = 4
time_limit = "2 s"
work = { unit = "order", json = "orders[0].n" }
failed = { csv = "failed" }
elapsed = { read = '(\\d+) ms', times = 0.001 }
env = { LANG = "C" }
[load.quantities.latency_ms]
read = 'latency ([\\d.]+)'
better = "less"
[load.quantities.depth]
json = "depth"
title = "How deep"
"""
ARMS = """\
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
network = ["routed", "published"]
"""
HTTP = '[load]\nname = "http"\npath = "/cart"\n'


def text(service: str = SERVICE, load: str = LOAD, more: str = "") -> str:
    return f'name = "shop"\nblocks = 2\nnoise_floor = false\n{service}{load}{more}{ARMS}'


def read(*parts: str, file: str = HERE, **named: str) -> Study:
    return read_study(text(*parts, **named), file, catalogue())


def refused(*parts: str, **named: str) -> list[Problem]:
    with pytest.raises(StudyError) as caught:
        read(*parts, **named)
    return list(caught.value.problems)


def work(study: Study) -> tuple[Own, CommandLoad]:
    (treatment,) = treatments(study)
    assert isinstance(treatment.work, Driven)
    service, load = treatment.work.service, treatment.work.load
    assert isinstance(service, Own)
    assert isinstance(load, CommandLoad)
    return service, load


# -- what it says -----------------------------------------------------------------------------------------


def test_lists_tables_and_tables_of_tables_are_values_and_paths_lie_beside_the_study() -> None:
    service, load = work(read())
    own, own_load = service.settings, load.settings
    assert own.image == "oci:/studies/shop.tar:1.2"
    assert (own.ports, own.command, own.env) == (("8080/tcp", "53/udp"), ("--loud",), {"WORKERS": "2"})
    assert own.files == {"/etc/shop.toml": "/studies/conf/shop.toml", "/etc/other": "/abs/other"}
    assert own.ready_within_ns == 5 * 10**9
    assert own_load.work == Reading(unit="order", json="orders[0].n")
    assert own_load.elapsed == Reading(read=r"(\d+) ms", times=0.001)
    assert own_load.quantities == {
        "latency_ms": Reading(read=r"latency ([\d.]+)", better="less"),
        "depth": Reading(json="depth", title="How deep"),
    }
    assert (own_load.users, own_load.run, own_load.packages) == (4, ("bench", "-c", "{users}"), ("postgresql-client",))


def test_each_has_its_defaults_and_shares_none_of_them() -> None:
    least = '[service]\nname = "own"\nimage = "dir:/a"\nports = ["1/tcp"]\ncommand = ["x"]\n'
    small = '[load]\nname = "command"\nrun = ["x"]\nwork = { read = "(1)" }\n'
    service, load = work(read(least, small))
    assert (service.settings.env, service.settings.files, load.settings.quantities) == ({}, {}, {})
    assert (load.settings.seeded, load.settings.failed, load.settings.elapsed) == (None, None, None)
    assert service.settings.env is not load.settings.env


def test_the_names_of_environment_variables_ask_for_no_unit() -> None:
    """Whatever they end in: what is written is what the program sees."""
    variables = {"cache_bytes": "10 kB", "keep_share": "50 %", "timeout_ns": "5", "rate_per_s": "", "a_bit_per_s": "x"}
    table = "{ " + ", ".join(f'{name} = "{value}"' for name, value in variables.items()) + " }"
    service, load = work(read(SERVICE.replace('{ WORKERS = "2" }', table), LOAD.replace('{ LANG = "C" }', table)))
    assert service.settings.env == load.settings.env == variables


def test_study_json_reads_back_equal(tmp_path: Path) -> None:
    for study in (read(), read(load=HTTP), read(more='[factors]\n"load.users" = [1, 8]\n')):
        kept = json.loads(json.dumps(document.as_json(study)))
        again = document.of(kept, tmp_path / "study.json", catalogue())
        assert again == study
        for one, other in zip(treatments(again), treatments(study), strict=True):
            assert type(one.work) is type(other.work)
            if isinstance(one.work, Driven) and isinstance(other.work, Driven):
                assert one.work.service.image == other.work.service.image


@fuzzed(150)
@given(raw=JSON)
def test_a_study_json_that_was_changed_is_refused_or_a_study(raw: Any) -> None:
    for path in ("service.ports", "service.files", "load.work", "load.quantities", "load.seeded"):
        kept = json.loads(json.dumps(document.as_json(read())))
        kept["base"][path] = raw
        with suppress(StoreError):
            document.of(kept, Path("study.json"), catalogue())


# -- what is wrong with the file --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "what", "line"),
    [
        ('ready = "', 'redy = "', "unknown key 'redy'; did you mean 'ready'?", 8),
        ("ports = [", "port = [", "unknown key 'port'; did you mean 'ports'?", 7),
        ('ports = ["8080/tcp", "53/udp"]\n', "", "[service] needs 'ports'", 4),
        ('ports = ["8080/tcp", "53/udp"]', "ports = 8080", "ports: 8080 is not a list", 7),
        ('ports = ["8080/tcp", "53/udp"]', "ports = [8080]", "ports: 8080 is not a string", 7),
        ('"oci:shop.tar:1.2"', '"shop.tar"', "image: 'shop.tar' does not say what it is: write \"oci:shop.tar\" or", 6),
        ('"oci:shop.tar:1.2"', '"docker:shop"', "image: 'docker:shop' is no image: write \"oci:PATH\"", 6),
        ('"oci:shop.tar:1.2"', '"oci:"', "image: 'oci:' is no image", 6),
        ('"oci:shop.tar:1.2"', '"oci::1.2"', "image: 'oci::1.2' is no image", 6),
        ('"oci:shop.tar:1.2"', '""', "image: '' is not a path", 6),
        ('"oci:shop.tar:1.2"', '"oci:a\\u0000"', "is not a path", 6),
        ("{ WORKERS = ", "{ WORKERS = 2 } #", "env: WORKERS: 2 is not a string", 11),
        ('"conf/shop.toml"', "1", "files: /etc/shop.toml: 1 is not a path", 12),
        ('"5 s"', "5", "ready_within: 5 lacks its unit", 9),
        ('"5 s"', '"5 ms"', "ready_within: must be at least 1 s", 9),
        ('json = "orders', 'jsn = "orders', "work: unknown key 'jsn'; did you mean 'json'?", 21),
        ('better = "less"', 'better = "lower"', "quantities: latency_ms: better: 'lower' is not one of", 13),
        ("times = 0.001", 'times = "ms"', "elapsed: times: 'ms' is not a number", 23),
        ('work = { unit = "order", json = "orders[0].n" }\n', "", "[load] needs 'work'", 13),
        ('run = ["bench", "-c", "{users}"]', 'run = "bench -c"', "run: 'bench -c' is not a list", 18),
        ("[load.quantities.depth]", "[load.quantities.latency_ms]", "not TOML: Cannot declare", 28),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(old: str, new: str, what: str, line: int) -> None:
    whole = text()
    assert old in whole
    with pytest.raises(StudyError) as caught:
        read_study(whole.replace(old, new, 1), HERE, catalogue())
    problem = caught.value.problems[0]
    assert what in problem.what
    if "quantities" not in what:  # a table of its own in the file, told at its section
        assert problem.where == f"{HERE}:{line}"


def test_a_list_or_table_is_no_factor() -> None:
    (problem,) = refused(more='[factors]\n"service.ports" = [["1/tcp"], ["2/tcp"]]\n')
    assert problem.what == "service.ports is a list or a table, which cannot vary within a study"


def test_a_study_in_a_directory_with_a_colon_cannot_have_an_archive_beside_it() -> None:
    (problem,) = refused(file="/a:b/shop.toml")
    assert "an image's path holds no colon, and that of this study does: /a:b" in problem.what


NOWHERE = Beside("")


@dataclass(frozen=True)
class Inner:
    size_bytes: int
    path: Beside = NOWHERE


@pytest.mark.parametrize(
    ("hint", "raw", "value"),
    [
        (tuple[str, ...], ["a"], ("a",)),
        (tuple[Beside, ...], ["a", "/b"], ("/here/a", "/b")),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[str, tuple[float, ...]], {"a": [1, 2.5]}, {"a": (1.0, 2.5)}),
        (Inner, {"size": "2 kB", "path": "x"}, Inner(2000, Beside("/here/x"))),
        (Inner | None, "none", None),
        (dict[str, Inner], {"a": {"size": "1 B"}}, {"a": Inner(1)}),
        (dict[str, str], {"a_ns": "5", "b_bytes": "10 kB"}, {"a_ns": "5", "b_bytes": "10 kB"}),
    ],
)
def test_a_value_may_be_a_list_a_table_or_a_table_of_fields(hint: Any, raw: Any, value: Any) -> None:
    assert Spec("s.x", "x", hint, None, {}).parse(raw, Path("/here")) == value


@pytest.mark.parametrize(
    ("hint", "raw", "said"),
    [
        (tuple[str, ...], "a", "'a' is not a list"),
        (tuple[str, ...], ["a", 1], "1 is not a string"),
        (dict[str, int], ["a"], "['a'] is not a table"),
        (dict[str, int], {"a": "b"}, "a: 'b' is not a whole number"),
        (Inner, {}, "'size' is missing"),
        (Inner, {"size": 5}, "size: 5 lacks its unit"),
        (Inner, {"sizes": "5 B"}, "unknown key 'sizes'; did you mean 'size'?; known here: size, path"),
        (dict[str, Inner], {"a": {"size": "1 s"}}, "a: size: "),
    ],
)
def test_and_what_is_wrong_in_it_is_named(hint: Any, raw: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are looked at below
        Spec("s.x", "x", hint, None, {}).parse(raw, Path("/here"))
    assert str(caught.value).startswith(said)


@fuzzed(300)
@given(raw=JSON)
def test_any_value_is_one_or_a_sentence(raw: Any) -> None:
    for hint in (tuple[str, ...], dict[str, Beside], dict[str, Inner], Inner | None, dict[str, tuple[float, ...]]):
        with suppress(ValueError):
            Spec("s.x", "x", hint, None, {}).parse(raw, Path("/here"))


# -- what is wrong with what it names ---------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lacks nothing."""
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])


def offered(directory: Path, *parts: str, **named: str) -> list[Problem]:
    """All that `virtoll check` tells of a study in this directory."""
    study = read(*parts, file=str(directory / "shop.toml"), **named)
    try:
        Stage(study, LocalHost()).offered("shop.toml", tries=False)
    except StudyError as error:
        return list(error.problems)
    return []


PLAIN = '[service]\nname = "own"\nimage = "oci:shop.tar"\nports = ["8080/tcp"]\nready = "/health"\n'
SMALL = '[load]\nname = "command"\nrun = ["x"]\nwork = { read = "(1)" }\n'


def small(**told: Any) -> Made:
    return Made([layer(Entry("bin/server", b"", mode=0o755))], {"Entrypoint": ["/bin/server"]}, **told)


def save(path: Path, made: Made) -> None:
    write_archive(path, docker_files({"shop:1": made}, legacy=False))


def test_an_image_and_a_load_that_fit_are_offered(tmp_path: Path) -> None:
    save(tmp_path / "shop.tar", small())
    assert offered(tmp_path, PLAIN, HTTP) == []
    assert offered(tmp_path, PLAIN, SMALL) == []
    assert offered(tmp_path, PLAIN, HTTP, '[factors]\n"service.ready_within" = ["5 s", "9 s"]\n') == []


_Write = Callable[[Path], object]
_UNFIT: Mapping[str, tuple[_Write, str, str]] = {
    "not found": (lambda path: None, "there is no such image", "correct image = ... in the study file"),
    "not an image": (
        lambda path: write_archive(path, {"hello": b"world"}),
        "is no image: it holds neither index.json (OCI) nor manifest.json (docker save)",
        'write "dir:PATH" for a directory of files',
    ),
    "not even an archive": (lambda path: path.write_text("hello"), "the archive is damaged or cut off", "again"),
    "of another machine": (
        lambda path: save(path, small(architecture="s390x")),
        "the image is for linux/s390x, and this machine is linux/",
        "build or pull it with --platform linux/",
    ),
    "one of several": (
        lambda path: write_archive(path, layout_files({"a": small(), "b": ocimake.Made([layer(Entry("x"))])})),
        "it holds 2 images",
        "name one",
    ),
    "of a wrong configuration": (
        lambda path: save(path, Made([], {"Entrypoint": "sh"})),
        "the image's configuration is wrong: Entrypoint = sh",
        "build the image again",
    ),
}


@pytest.mark.parametrize("kind", _UNFIT)
def test_an_image_that_cannot_be_one_is_told_before_anything_is_made(kind: str, tmp_path: Path) -> None:
    """Once, whatever the number of conditions; of a load's image too."""
    write, what, remedy = _UNFIT[kind]
    write(tmp_path / "shop.tar")
    factor = '[factors]\n"load.users" = [1, 2]\n'
    load = SMALL + 'image = "oci:shop.tar"\n'
    service = PLAIN.replace("oci:shop.tar", "dir:.") + 'command = ["x"]\n'
    for found in (offered(tmp_path, PLAIN, SMALL, factor), offered(tmp_path, service, load, factor)):
        (problem,) = found
        assert problem.what.startswith(what)
        assert problem.where == f"oci:{tmp_path}/shop.tar"
        assert remedy in problem.remedy


def test_a_directory_is_told_from_an_image_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    service = PLAIN.replace("oci:shop.tar", "dir:file") + 'command = ["x"]\n'
    (problem,) = offered(tmp_path, service, HTTP)
    assert (problem.what, problem.remedy) == ("it is no directory", 'write "oci:file" for an image in a file')
    write_directory(tmp_path / "layout", layout_files({"": small()}))
    assert offered(tmp_path, PLAIN.replace("oci:shop.tar", "oci:layout"), HTTP) == []


def test_a_load_must_take_what_the_service_offers_and_ask_for_what_it_holds(tmp_path: Path) -> None:
    save(tmp_path / "shop.tar", small())
    (problem,) = offered(tmp_path, PLAIN.replace("/health", "tcp"), HTTP)
    assert problem.what == "load 'http' cannot drive own, which offers tcp"
    assert problem.where == "shop.toml: [load] name"
    assert "command" in problem.remedy
    (problem,) = offered(tmp_path, PLAIN, '[load]\nname = "http"\n')
    assert problem.what == "load 'http' asks for an object of 1000 B, which own does not hold"
    assert problem.remedy == 'ask for something that it serves: path = "/..."'
    factor = '[factors]\n"load.path" = ["/a", ""]\n'
    (problem,) = offered(tmp_path, PLAIN, '[load]\nname = "http"\n', factor)
    assert "an object of 1000 B" in problem.what


def test_an_origin_holds_for_the_proxy_before_it(tmp_path: Path) -> None:
    proxy = '[service]\nname = "squid"\n[origin]\nname = "nginx"\n'
    assert offered(tmp_path, proxy, '[load]\nname = "http"\n') == []


def test_all_conditions_share_one_image(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        save(tmp_path / name, small())
    (problem,) = offered(tmp_path, PLAIN, HTTP, '[factors]\n"service.image" = ["oci:a.tar", "oci:b.tar"]\n')
    assert problem.what == "2 images are asked for in one study: its conditions must share one"
    assert problem.where == "shop.toml: [factors]"


def test_all_that_can_be_known_is_told_at_once(tmp_path: Path) -> None:
    service = PLAIN.replace("8080/tcp", "8080").replace('"/health"', '"/health"\nfiles = { "etc" = "no" }')
    load = SMALL.replace('["x"]', '["{x}"]').replace('"(1)"', '"1"') + 'image = "dir:none"\n'
    found = offered(tmp_path, service, load)
    assert [(problem.where, problem.what.split(":")[0]) for problem in found] == [
        ("shop.toml: [service] ports", "'8080' is no port"),
        ("shop.toml: [service] files", "'etc' is no absolute path of a file inside"),
        (f"shop.toml: [service] files: {tmp_path}/no", "there is no such file"),
        ("shop.toml: [load] work", "read = '1' has 0 groups"),
        ("shop.toml: [load] run", "nothing is known of {x}"),
        (f"oci:{tmp_path}/shop.tar", "there is no such image"),
        (f"dir:{tmp_path}/none", "there is no such image"),
    ]
    assert all(problem.remedy for problem in found if "is no port" not in problem.what)
    assert [path.name for path in tmp_path.iterdir()] == [], "nothing is left"


# -- what is wrong with what was built --------------------------------------------------------------------


def prepared(directory: Path, monkeypatch: pytest.MonkeyPatch, config: Mapping[str, Any], *parts: str) -> list[Problem]:
    """What `prepare` tells of a service's image with this configuration, and of a load's without a program."""
    entry = directory / "entry"
    (entry / "rootfs/bin").mkdir(parents=True)
    (entry / "rootfs/bin/server").touch(0o755)
    (entry / "rootfs/bin/data").touch(0o644)
    stored = {"entrypoint": [], "command": [], "env": [], "working_dir": "/", "user": "", "volumes": [], "ports": []}
    (entry / "manifest.json").write_text(json.dumps({"config": {**stored, "stop_signal": "", **config}}))
    image = Image("shop", "0" * 64, entry)
    monkeypatch.setattr(stage, "built", lambda *_: image)
    study = read(*parts)
    try:
        images = Stage(study, LocalHost()).prepare([], lambda _line: None)
    except StudyError as error:
        return list(error.problems)
    assert isinstance(images, Images)
    return []


@pytest.mark.parametrize(
    ("config", "what", "remedy"),
    [
        ({"entrypoint": ["/bin/server"]}, "", ""),
        ({"entrypoint": ["server"]}, "", ""),
        ({"entrypoint": ["./server"], "working_dir": "/bin"}, "", ""),
        ({}, "the image has no entrypoint and no command", "set command = [...] in the study file"),
        ({"entrypoint": ["/bin/shop"]}, "the image has no program /bin/shop", "correct the image's entrypoint"),
        ({"entrypoint": ["/bin/data"]}, "the image has no program /bin/data", "correct the image's entrypoint"),
        ({"entrypoint": ["shop"]}, "the image has no program shop in PATH /usr/local/sbin:", "or command = [...]"),
        (
            {"entrypoint": ["/bin/server"], "user": "shop"},
            "the image runs as user 'shop', whom its /etc/passwd does not know",
            "add the account to the image, or name a number",
        ),
    ],
)
def test_a_service_that_cannot_be_started_is_told_before_anything_is_deployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], what: str, remedy: str
) -> None:
    found = prepared(tmp_path, monkeypatch, config, PLAIN, HTTP)
    assert len(found) == bool(what)
    for problem in found:
        assert problem.what.startswith(what)
        assert problem.where == "[service]"
        assert remedy in problem.remedy


def test_a_program_may_come_with_the_studys_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = PLAIN + 'command = ["/start.sh"]\nfiles = { "/start.sh" = "start.sh" }\n'
    assert prepared(tmp_path, monkeypatch, {}, service, HTTP) == []


def test_service_and_load_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = prepared(tmp_path, monkeypatch, {}, PLAIN, SMALL, '[factors]\n"load.users" = [1, 2]\n')
    assert [problem.where for problem in found] == ["[service]", "[load] run"]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    "name", sorted({*available_studies()} - {"meeting"})
)  # that one has no server without --target
def test_each_ready_made_study_fits_and_reads_back_equal(name: str, quick: bool) -> None:
    text = (Path(stage.__file__).parent.parent / f"studies/{name}.toml").read_text()
    study = read_study(text, f"{name}.toml", catalogue(), quick=quick)
    Stage(study, LocalHost()).offered(f"{name}.toml", tries=False)
    kept = json.loads(json.dumps(document.as_json(study)))
    assert document.of(kept, Path("study.json"), catalogue()) == study


def test_a_file_that_a_service_is_given_is_part_of_what_a_run_is(tmp_path: Path) -> None:
    """Changed between trials it would be another service: the run is not gone on with."""
    given = tmp_path / "shop.toml"
    text = f"""
name = "given"
[service]
name = "own"
image = "dir:{tmp_path}"
command = ["/server"]
ports = ["8080/tcp"]
files = {{ "/etc/shop.toml" = "{given}" }}
[load]
name = "command"
run = ["true"]
work = {{ read = "(1)" }}
[[arms]]
platform = "native"
"""
    given.write_text("greeting = 1")
    study = read_study(text, str(tmp_path / "given.toml"), catalogue())
    before = Stage(study, LocalHost()).files
    given.write_text("greeting = 2")
    assert before.keys() == Stage(study, LocalHost()).files.keys() == {"/etc/shop.toml"}
    assert before != Stage(study, LocalHost()).files
