"""The study file: typed, unknown keys refused, every problem reported at once with its line.

`study_values` says how a value is written; `study_programme` reads the probes of a programme.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from virtoll.errors import Problem, StudyError
from virtoll.record.model import SERVER, Arm
from virtoll.studies import claims
from virtoll.study.inert import unheard_rate, why_inert
from virtoll.study.limits import LEAST_MEMORY_BYTES
from virtoll.study.model import PLATFORM, VCPUS, Catalogue, Study, StudyArm
from virtoll.study.plan import too_many
from virtoll.study.programme import programme
from virtoll.study.quick import apply_quick
from virtoll.study.reader import Reader
from virtoll.study.sections import KNEE, SERVERS, Sections, read_sections
from virtoll.study.values import TYPE_WORDS, Spec, is_composite, is_name, nearest, specs_of
from virtoll.units import exact_bytes, format_bytes

_MOST_BYTES = 1_000_000
_TOP: dict[str, tuple[type, Any]] = {
    "name": (str, ""),
    "title": (str, ""),
    "question": (str, ""),
    "blocks": (int, 10),
    "seed": (int, None),
    "claims": (list, []),
    "margin": (float, 0.03),
    "noise_floor": (bool, True),
    "design": (str, "blocks"),
}
_TABLES = ("service", "origin", "load", "servers", "probes", "factors", "exclude", "arms", "quick")
_LISTS_OF_TABLES = ("exclude", "arms", "probes")
DESIGNS = ("blocks", "rotation")
_MEMORY = "limits.memory"


def read_file(path: Path) -> str:
    """The text of a study file. StudyError where it cannot be read, or is none by its size or its bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise StudyError([Problem(f"is larger than {_MOST_BYTES / 1e6:.0f} MB: no study is", str(path))])
        return data.decode("utf-8-sig")  # some editors write a byte order mark, and TOML has none
    except OSError as error:
        raise StudyError([Problem(f"cannot be read: {error.strerror}", str(path))]) from error
    except UnicodeDecodeError as error:
        raise StudyError([Problem(f"not UTF-8 from byte {error.start} on", str(path))]) from error


def read_study(
    text: str,
    file: str,
    catalogue: Catalogue,
    *,
    quick: bool = False,
    platforms: Sequence[str] = (),
    all_that_can: bool = False,
    memory_bytes: int | None = None,
) -> Study:
    """The study in ``text``. StudyError lists every problem with ``file:line`` and the nearest valid word.

    ``platforms``: each that has no arm in it gets one, as the platform usually is, and optional. ``all_that_can``: an
    optional arm whose platform has fewer CPUs than are asked for is no mistake: nobody named it (`Stage.offered`).
    ``memory_bytes``: the limit of each instance, in place of the study's.
    """
    try:
        document = _parsed(text, file)
        reader = Reader(text, file, catalogue)
        _expect_tables(reader, document)
        if quick:
            apply_quick(reader, document)
        if memory_bytes is not None:
            _limit_memory(reader, document, memory_bytes)
        document["arms"] = [*document.get("arms", []), *_further_arms(document, platforms)]
        return _read(reader, document, quick=quick, all_that_can=all_that_can)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        what = f"cannot be made sense of: {type(error).__name__}: {str(error)[:200]}"
        raise StudyError(
            [Problem(what, file, "compare its tables and values with docs/ and a ready-made study")]
        ) from error


def _parsed(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"at line (\d+)", str(error))
        raise StudyError([Problem(f"not TOML: {error}", f"{file}:{where[1] if where else 1}")]) from error


def _read(reader: Reader, document: dict[str, Any], *, quick: bool, all_that_can: bool) -> Study:
    reader.unknown(document, (*_TOP, *_TABLES, *reader.catalogue.sections), "")
    top = {key: _top_value(reader, document, key) for key in _TOP}
    if type(top["blocks"]) is int and top["blocks"] < 2:
        reader.fail("blocks must be at least 2: one block gives no interval", "", "blocks")
    if type(top["margin"]) is float and not 0 < top["margin"] < 1:
        reader.fail("margin is relative: 0.03 calls a ratio from 0.97 to 1.03 no difference", "", "margin")
    _expect_design(reader, document, top["design"])
    _expect_objective(reader, document)
    for name in top["claims"] if isinstance(top["claims"], list) else ():
        if name not in claims.names():
            reader.fail(f"there are no claims called {name!r}", "", "claims", "leave them out")
    sections = read_sections(reader, document)
    specs, base = sections.specs, sections.base
    factors = _factors(reader, document, sections)
    if sections.servers:
        specs[SERVER] = {"": Spec(SERVER, SERVER, str, "", {})}
        factors = {SERVER: tuple(sections.servers), **factors}
    exclude = _exclusions(reader, document, factors, specs, quick=quick)
    _refuse_unsaid_connections(reader, document, sections, factors)
    if not quick:  # whose loop may be another than that of the study it goes on from
        _refuse_unheard_rates(reader, document, sections)
    cases = programme(reader, document.get("probes", []))
    arms = _arms(reader, document, bool(top["noise_floor"]))
    must = [entry for entry in arms if not (all_that_can and entry.optional)]
    _refuse_too_many_vcpus(reader, must, factors.get(VCPUS, (base.get(VCPUS),)), exclude)
    if not reader.problems:
        _refuse_too_many_trials(reader, top["blocks"], len(arms), factors, len(cases))
    if reader.problems:
        raise StudyError(reader.problems)
    del top["noise_floor"]
    for section in ("service", "origin", "load"):
        top[section] = document.get(section, {}).get("name", "")
    top["claims"] = tuple(top["claims"])
    return Study(
        **top, arms=arms, base=base, factors=factors, exclude=exclude, programme=cases, servers=sections.servers
    )


def _expect_tables(reader: Reader, document: Mapping[str, Any]) -> None:
    """StudyError when a table is none: nothing else could be read."""
    quick = document.get("quick", {})
    for place, part in (("", document), ("quick.", quick if isinstance(quick, dict) else {})):
        for key in (*_TABLES, *reader.catalogue.sections):
            value = part.get(key)
            if key in _LISTS_OF_TABLES:
                right = value is None or (isinstance(value, list) and all(isinstance(table, dict) for table in value))
            else:
                right = value is None or isinstance(value, dict)
            if not right:
                heading = f"[[{place}{key}]]" if key in _LISTS_OF_TABLES else f"[{place}{key}]"
                reader.fail(f"{place}{key} is no table", "", key, f"write {heading} on a line of its own")
    if reader.problems:
        raise StudyError(reader.problems)


def _expect_design(reader: Reader, document: Mapping[str, Any], design: Any) -> None:
    if design not in DESIGNS:
        reader.fail(f"design = {design!r} is none of {', '.join(DESIGNS)}", "", "design")
    elif design == "blocks" and "rotation" in document:
        reader.fail("[rotation] is for a study in rotation", "rotation", "", 'write design = "rotation" at the top')


def _expect_objective(reader: Reader, document: Mapping[str, Any]) -> None:
    common = document.get(KNEE, {})
    searches = {KNEE: common} if KNEE in document else {}
    for name, own in document.get(SERVERS, {}).items():
        if isinstance(own, dict) and isinstance(own.get(KNEE), dict):
            searches[f"{SERVERS}.{name}.{KNEE}"] = {**common, **own[KNEE]}
    for where, search in searches.items():
        if not search.get("objective"):
            remedy = 'objective = ["latency_p99 < 20 ms", "failed < 0.1 %"]'
            reader.fail("a search for the knee needs an objective", where, "objective", remedy)
    if KNEE in document and document.get("probes"):
        reader.fail("only a load has a knee, and this study has none", KNEE, "", "leave [knee] out")


def _refuse_unsaid_connections(
    reader: Reader, document: Mapping[str, Any], sections: Sections, factors: Mapping[str, Any]
) -> None:
    """In open loop the default of one connection would make requests queue in the generator."""
    given = "load.connections" in factors or "connections" in document.get("load", {})
    loads: dict[str, tuple[Mapping[str, Any], bool]] = {"load": (sections.base, given)}
    for name, server in sections.servers.items():
        own = document[SERVERS][name]["load"]
        loads[f"{SERVERS}.{name}.load"] = (server.base, given or "connections" in own)
    for where, (base, said) in loads.items():
        loops = factors.get("load.loop", (base.get("load.loop"),))
        if "open" in loops and "load.connections" in base and not said:
            reader.fail(
                "load.connections must be given in open loop: a request that finds all of them busy waits in the "
                "generator",
                where,
                "loop",
                "write how many may be open at once, well above rate x latency (connections = 500)",
            )


def _refuse_unheard_rates(reader: Reader, document: Mapping[str, Any], sections: Sections) -> None:
    servers = sections.servers
    places = [("load", document.get("load", {}), [server.base for server in servers.values()] or [sections.base])]
    places += [(f"{SERVERS}.{name}.load", document[SERVERS][name]["load"], [servers[name].base]) for name in servers]
    for where, table, loads in places:
        if "rate" in table and (why := unheard_rate(document, loads)):
            reader.fail(why[0], where, "rate", why[1])


def _refuse_too_many_trials(
    reader: Reader, blocks: int, arms: int, factors: Mapping[str, tuple[Any, ...]], cases: int
) -> None:
    trials = blocks * arms * math.prod(len(levels) for levels in factors.values()) * max(1, cases)
    if what := too_many(trials):
        reader.fail(what, "", "blocks", "leave out blocks, arms or levels")


def _refuse_too_many_vcpus(
    reader: Reader, arms: Sequence[StudyArm], vcpus: tuple[Any, ...], exclude: Sequence[Mapping[str, Sequence[Any]]]
) -> None:
    """But what a rule excludes for a platform, whatever else is asked of it, it need not have."""
    for entry in arms:
        name = entry.arm.platform
        rules = (rule for rule in exclude if rule.keys() <= {PLATFORM, VCPUS} and name in rule.get(PLATFORM, (name,)))
        spared = [count for rule in rules for count in rule.get(VCPUS, ())]
        most = reader.catalogue.platforms[name].most_vcpus
        if most is not None and any(type(count) is int and count > most for count in vcpus if count not in spared):
            what = f"{name} has no more than {most} CPU"
            remedy = f"compare with limits.vcpus = {most}, leave {name} out, or [[exclude]] what is more for it"
            reader.problems.append(Problem(what, f"{reader.file}:{entry.line}", remedy))


def _limit_memory(reader: Reader, document: dict[str, Any], memory_bytes: int) -> None:
    """Lay a limit over the study's own; a study that compares several is another one without them."""
    if _MEMORY in document.get("factors", {}):
        what = f"the study compares several memory limits ({_MEMORY}), and --memory would be one"
        reader.fail(what, "factors", _MEMORY, "leave --memory out")
    elif memory_bytes < LEAST_MEMORY_BYTES:
        what = f"no instance has less than {format_bytes(LEAST_MEMORY_BYTES)} of memory"
        reader.problems.append(Problem(what, f"--memory {exact_bytes(memory_bytes)}", "ask for more: 512MiB"))
    else:
        document["limits"] = {**document.get("limits", {}), "memory": exact_bytes(memory_bytes)}


def _top_value(reader: Reader, document: Mapping[str, Any], key: str) -> Any:
    kind, default = _TOP[key]
    value = document.get(key, default)
    if kind is float and type(value) is int:
        value = float(value)
    if value is not default and type(value) is not kind:
        reader.fail(f"{key} = {value!r} is not {TYPE_WORDS[kind]}", "", key)
    if key == "name" and not is_name(value):
        reader.fail("a study needs a name of lower-case letters, digits and hyphens", "", "name", 'name = "my-study"')
    return value


def _factor_spec(
    reader: Reader, path: str, table: str, specs: Mapping[str, Mapping[str, Spec]], occurrence: int = 0
) -> Spec | None:
    section, _, key = path.partition(".")
    spec = specs.get(section, {}).get(key)
    if spec is None:
        known = [f"{s}.{k}" for s, keys in specs.items() for k in keys]
        reader.fail(f"{path!r} is no value of this study{nearest(path, known)}", table, path, occurrence=occurrence)
    return spec


def _lacks_quotes(reader: Reader, path: str, raw: Any, table: str, occurrence: int = 0) -> bool:
    """Whether TOML has read ``load.users = [1, 2]`` as a table `load`; each of its keys is a problem then."""
    if not isinstance(raw, dict) or not raw or "." in path:  # an empty table has no key that could be told of
        return False
    for key in raw:
        name = f"{path}.{key}"
        reader.fail(
            f"{name} needs quotes: without them its dot makes a table", table, name, f'"{name}" = ...', occurrence
        )
    return True


def _factors(reader: Reader, document: Mapping[str, Any], sections: Sections) -> dict[str, tuple[Any, ...]]:
    factors = {}
    for path, levels in document.get("factors", {}).items():
        if _lacks_quotes(reader, path, levels, "factors"):
            continue
        spec = _factor_spec(reader, path, "factors", sections.specs)
        if spec is not None and (inert := why_inert(document, sections, spec.path)):
            what, remedy = inert
            reader.fail(f"{path} would change nothing: {what}", "factors", path, remedy)
        if not isinstance(levels, list) or not levels:
            reader.fail(f"{path} needs a list of levels", "factors", path)
        elif spec is not None and is_composite(spec.hint):
            reader.fail(f"{path} is a list or a table, which cannot vary within a study", "factors", path)
        elif spec is not None:
            values = tuple(reader.parsed(spec, level, "factors", path) for level in levels)
            if len(set(values)) < len(values):
                reader.fail(f"{path} names a level twice", "factors", path)
            factors[spec.path] = values
    return factors


def _exclusions(
    reader: Reader,
    document: Mapping[str, Any],
    factors: Mapping[str, tuple[Any, ...]],
    specs: Mapping[str, Mapping[str, Spec]],
    *,
    quick: bool,
) -> tuple[Mapping[str, Sequence[Any]], ...]:
    """The rules of [[exclude]]: of each factor a level or several, for all platforms or for some: native stays, for it
    is what others are compared with. A quick variant may have dropped the levels that its study excludes.
    """
    rules = []
    for index, table in enumerate(document.get("exclude", [])):
        rule: dict[str, Sequence[Any]] = {}
        if not table.keys() - {PLATFORM}:
            reader.fail("an empty rule would exclude everything", "exclude", occurrence=index)
        for path, raw in table.items():
            listed = raw if isinstance(raw, list) else [raw]
            if not listed:
                reader.fail(f"{path} names nothing: such a rule excludes nothing", "exclude", path, occurrence=index)
            if path == PLATFORM:
                rule[PLATFORM] = _excluded_platforms(reader, document, listed, index, quick=quick)
                continue
            if _lacks_quotes(reader, path, raw, "exclude", index):
                continue
            spec = _factor_spec(reader, path, "exclude", specs, index)
            if spec is None:
                continue
            rule[spec.path] = levels = [reader.parsed(spec, each, "exclude", path) for each in listed]
            if spec.path not in factors:
                reader.fail(f"{path} is excluded but is no factor", "exclude", path, occurrence=index)
                continue
            for each, level in zip(listed, levels, strict=True):
                if not quick and level not in factors[spec.path]:
                    reader.fail(f"{path} = {each!r} is excluded but is no level", "exclude", path, occurrence=index)
        rules.append(rule)
    return tuple(rules)


def _excluded_platforms(
    reader: Reader, document: Mapping[str, Any], names: Sequence[Any], index: int, *, quick: bool
) -> Sequence[Any]:
    """A quick variant may have dropped the arms that its study spares something."""
    platforms = [str(table.get("platform")) for table in document.get("arms", [])]
    for name in names:
        if name == "native":
            reader.fail("native is what all others are compared with", "exclude", PLATFORM, "leave it in", index)
        elif name not in (reader.catalogue.platforms if quick else platforms):
            what = f"no arm is of platform {name!r}{nearest(name, platforms)}"
            reader.fail(what, "exclude", PLATFORM, occurrence=index)
    return names


def _arms(reader: Reader, document: Mapping[str, Any], noise_floor: bool) -> tuple[StudyArm, ...]:
    arms: list[StudyArm] = []
    for index, table in enumerate(document.get("arms", [])):
        arms.extend(_arm(reader, table, index))
    labels = [a.arm.label for a in arms]
    for label in sorted({x for x in labels if labels.count(x) > 1}):
        reader.fail(f"arm {label!r} is named twice", "arms")
    baseline = next((a for a in arms if a.arm.platform == "native"), None)
    if baseline is None:
        if all(table.get("platform") != "native" for table in document.get("arms", [])):
            reader.fail("no native arm: every ratio needs its baseline", "arms", "", '[[arms]]\nplatform = "native"')
        return tuple(arms)
    first = dataclasses.replace(baseline, arm=baseline.arm.model_copy(update={"role": "baseline"}))
    rest = [a for a in arms if a is not baseline]
    if noise_floor:
        again = first.arm.model_copy(update={"label": f"{first.arm.label} (again)", "role": "floor"})
        rest.insert(0, dataclasses.replace(baseline, arm=again))
    return (first, *rest)


def _further_arms(document: Mapping[str, Any], platforms: Sequence[str]) -> list[dict[str, Any]]:
    """What the file would say of the platforms that it does not name, as each usually is."""
    named = [table.get("platform") for table in document.get("arms", [])]
    return [{"platform": name, "optional": True} for name in dict.fromkeys(platforms) if name not in named]


def _arm(reader: Reader, table: Mapping[str, Any], index: int) -> list[StudyArm]:
    """The arms of one [[arms]] table: one for each network mode it lists."""
    platforms = reader.catalogue.platforms
    name = table.get("platform")
    entry = platforms.get(name) if isinstance(name, str) else None
    if entry is None or not isinstance(name, str):
        remedy = f"`virtoll list platforms` shows: {', '.join(platforms)}"
        reader.fail(f"no platform is called {name!r}{nearest(name, platforms)}", "arms", "platform", remedy, index)
        return []
    specs = specs_of("settings", entry.settings)
    given = {key: value for key, value in table.items() if key not in ("platform", "network", "optional")}
    if entry.settings and given:
        reader.unknown(given, specs.keys(), "arms", index)
    settings = {
        specs[key].path.removeprefix("settings."): reader.parsed(specs[key], value, "arms", key)
        for key, value in given.items()
        if key in specs
    }
    modes = table.get("network", entry.default_network)
    if modes == []:
        reader.fail("no network mode is listed", "arms", "network", "leave the key out for the usual one", index)
    optional = table.get("optional", False)
    if type(optional) is not bool:
        reader.fail(f"optional = {optional!r} is not true or false", "arms", "optional", occurrence=index)
    refused = entry.refuses(settings)
    made = []
    for mode in modes if isinstance(modes, list) else [modes]:
        if mode not in reader.catalogue.networks:
            remedy = f"`virtoll list networks` shows: {', '.join(reader.catalogue.networks)}"
            what = f"no network mode is called {mode!r}{nearest(mode, reader.catalogue.networks)}"
            reader.fail(what, "arms", "network", remedy, index)
        elif mode in refused:
            reader.fail(refused[mode].what, "arms", "network", refused[mode].remedy, index)
        else:
            arm = Arm(label=_label(name, mode, settings, specs), platform=name, network=mode, settings=settings)
            line = reader.line("arms", "platform", index)
            made.append(StudyArm(arm, bool(optional), line))
    return made


def _label(platform: str, mode: str, settings: Mapping[str, Any], specs: Mapping[str, Spec]) -> str:
    """``docker+published (seccomp unconfined, no userland proxy)``; of what is off, only what usually is on."""
    on = {spec.path.removeprefix("settings.") for spec in specs.values() if spec.default is True}
    words = []
    for key, value in settings.items():
        name = key.replace("_", " ")
        if value is not False:
            words.append(name if value is True else f"{name} {value}")
        elif key in on:
            words.append(f"no {name}")
    return f"{platform}+{mode}" + (f" ({', '.join(words)})" if words else "")
