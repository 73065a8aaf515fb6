"""The sections of a study file: what each may set, and what the study starts from.

A study of one service names it in [service], and its load in [load]. One that sets several beside each other has a
[servers.NAME.service] and a [servers.NAME.load] for each, laid over what [service] and [load] say of all of them; where
one alone is to be searched for its knee, it has a [servers.NAME.knee], too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from virtoll.offers import Offer
from virtoll.study.model import Server
from virtoll.study.reader import Reader
from virtoll.study.values import Spec, is_name, specs_of

Specs = dict[str, dict[str, Spec]]  # by section and key as written
SERVERS = "servers"
_OF_A_SERVER = ("service", "load")
KNEE = "knee"  # which a server may have besides


@dataclasses.dataclass(frozen=True)
class Sections:
    """What the sections of a file say."""

    specs: Specs  # what any of them may set, and a factor may vary
    base: dict[str, Any]
    servers: dict[str, Server]  # by name; none, where the study has one service or none


def read_sections(reader: Reader, document: Mapping[str, Any]) -> Sections:
    """The values of all sections; what is wrong with them is noted."""
    if SERVERS not in document:
        specs = _all_specs(reader, document)
        return Sections(specs, _base_values(reader, document, specs), {})
    common = {name: specs_of(name, cls) for name, cls in reader.catalogue.sections.items()}
    found = {name: _server(reader, document, name) for name in _names(reader, document)}
    shared = _shared([specs for specs, _ in found.values()])
    return Sections(
        {**common, **shared},
        _base_values(reader, document, common),
        {name: server for name, (_, server) in found.items() if server is not None},
    )


def _names(reader: Reader, document: Mapping[str, Any]) -> list[str]:
    """The servers that are tables of tables, as they should be."""
    for section in ("origin", "probes"):
        if section in document:
            reader.fail(f"a study of [servers] has no [{section}]", section, "", "make two studies of it")
    for section in _OF_A_SERVER:
        if "name" in document.get(section, {}):
            remedy = f"leave the name out: what [{section}] says is for all of them"
            reader.fail(f"[{section}] names one, and the study has [servers]", section, "name", remedy)
    names = []
    for name, table in document[SERVERS].items():
        where = f"{SERVERS}.{name}"
        if not isinstance(table, dict) or any(not isinstance(table.get(part), dict) for part in _OF_A_SERVER):
            remedy = f'[{where}.service]\nname = "..."\n[{where}.load]\nname = "..."'
            reader.fail(f"[{where}] needs a service and a load", where, "", remedy)
            continue
        if not is_name(name):
            reader.fail(f"[{where}] has no name of lower-case letters, digits and hyphens", where)
        reader.unknown(table, (*_OF_A_SERVER, KNEE), where)
        if not isinstance(table.get(KNEE, {}), dict):
            reader.fail(f"[{where}] has a knee that is no table", where, KNEE, f"write [{where}.{KNEE}]")
            continue
        names.append(name)
    if len(document[SERVERS]) < 2:
        reader.fail("[servers] sets several beside each other", SERVERS, "", "write [service] and [load] for one")
    return names


def _server(reader: Reader, document: Mapping[str, Any], name: str) -> tuple[Specs, Server | None]:
    """A server's specs, by section, and itself; None where nothing is called so."""
    catalogue, own = reader.catalogue, document[SERVERS][name]
    known = {"service": {n: entry.settings for n, entry in catalogue.services.items()}, "load": catalogue.loads}
    specs: Specs = {}
    base: dict[str, Any] = {}
    for section in _OF_A_SERVER:
        where = f"{SERVERS}.{name}.{section}"
        cls = reader.named(section, own[section].get("name"), known[section], where)
        if cls is None:
            return {}, None
        specs[section] = specs_of(section, cls)
        base |= _values(reader, document.get(section, {}), own[section], where, specs[section])
    if KNEE in own:
        of_search = specs_of(KNEE, catalogue.sections[KNEE])
        base |= _values(reader, document.get(KNEE, {}), own[KNEE], f"{SERVERS}.{name}.{KNEE}", of_search)
    service = catalogue.services[own["service"]["name"]]
    if service.needs is not None:
        what = f"service {own['service']['name']!r} needs an origin, and a study of [servers] has none"
        reader.fail(what, f"{SERVERS}.{name}.service", "name", "make a study of its own for it")
    return specs, Server(own["service"]["name"], own["load"]["name"], base)


def _values(
    reader: Reader, common: Mapping[str, Any], own: Mapping[str, Any], where: str, known: Mapping[str, Spec]
) -> dict[str, Any]:
    """What a section says; a server's own, over what is said in ``common`` of all of them."""
    section = where.rpartition(".")[2]
    reader.unknown({key: value for key, value in common.items() if key != "name"}, known.keys(), section)
    reader.unknown({key: value for key, value in own.items() if key != "name"}, known.keys(), where)
    base = {}
    for key, spec in known.items():
        if key in own:
            base[spec.path] = reader.parsed(spec, own[key], where, key)
        elif key in common:
            base[spec.path] = reader.parsed(spec, common[key], section, key)
        elif spec.default is dataclasses.MISSING:
            reader.fail(f"[{where}] needs {key!r}", where)
        else:
            base[spec.path] = spec.default
    return base


def _shared(of_servers: list[Specs]) -> Specs:
    """What all servers know by the same name and type: a factor varies it for all of them."""
    known = [specs for specs in of_servers if specs]
    shared: Specs = {}
    for section in _OF_A_SERVER if known else ():
        first = known[0][section].items()
        alike = {key: spec for key, spec in first if all(_is_alike(spec, each[section].get(key)) for each in known)}
        shared[section] = alike
    return shared


def _is_alike(spec: Spec, other: Spec | None) -> bool:
    return other is not None and (spec.path, spec.hint) == (other.path, other.hint)


def _all_specs(reader: Reader, document: Mapping[str, Any]) -> dict[str, dict[str, Spec]]:
    """By section, every value the file may set, given the service, origin and load it names."""
    catalogue = reader.catalogue
    specs = {name: specs_of(name, cls) for name, cls in catalogue.sections.items()}
    if document.get("probes"):
        for section in ("service", "origin", "load"):
            if section in document:
                reader.fail(f"a study of [[probes]] has no [{section}]", section, "", "make two studies of it")
        return specs
    settings = {name: entry.settings for name, entry in catalogue.services.items()}
    needs = _needs(reader, document)
    origins = {
        name: entry.settings
        for name, entry in catalogue.services.items()
        if needs is None or any(issubclass(offer, needs) for offer in entry.offers if not entry.needs)
    }
    sections = [("service", "service", settings), ("load", "load", catalogue.loads)]
    if "origin" in document or needs is not None:
        sections.append(("origin", "service", origins))
    for section, what, known in sections:
        table = document.get(section)
        if not isinstance(table, dict) or "name" not in table:
            reader.fail(f"[{section}] with a name is missing", section, "", f'[{section}]\nname = "..."')
            continue
        cls = reader.named(what, table["name"], known, section)
        specs[section] = specs_of(section, cls) if cls else {}
    return specs


def _needs(reader: Reader, document: Mapping[str, Any]) -> type[Offer] | None:
    """What the service under test needs behind it."""
    service = document.get("service")
    entry = reader.catalogue.services.get(str(service.get("name"))) if isinstance(service, dict) else None
    return None if entry is None else entry.needs


def _base_values(
    reader: Reader, document: Mapping[str, Any], specs: Mapping[str, Mapping[str, Spec]]
) -> dict[str, Any]:
    base: dict[str, Any] = {}
    for section, known in specs.items():
        if known:
            base |= _values(reader, {}, document.get(section, {}), section, known)
    return base
