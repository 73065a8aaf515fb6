"""A study in a run directory: everything written out, and read back through the same types."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from virtoll.errors import StoreError
from virtoll.record.model import SCHEMA, Arm
from virtoll.study.model import Case, Catalogue, Configuration, Server, Study, StudyArm
from virtoll.study.values import is_composite, is_name


def as_json(study: Study) -> Mapping[str, Any]:
    """The study with everything written out, as study.json keeps it."""
    written = dataclasses.asdict(dataclasses.replace(study, arms=()))
    if not study.configurations:
        del written["configurations"]
    written["arms"] = [
        {
            "arm": entry.arm.model_dump(),
            "optional": entry.optional,
            "line": entry.line,
            **({"values": dict(entry.values)} if entry.values else {}),
            **({"only": dict(entry.only)} if entry.only else {}),
            **({} if entry.share is None else {"share": entry.share}),
        }
        for entry in study.arms
    ]
    return {"schema_version": SCHEMA, **written}


def of(raw: Mapping[str, Any], path: Path, catalogue: Catalogue) -> Study:
    """The study that study.json at ``path`` holds. StoreError where it holds none, or one of another schema."""
    version = raw.get("schema_version")
    if version != SCHEMA:
        raise StoreError(
            f"schema {version}, and this virtoll reads schema {SCHEMA}: its fields do not mean the same",
            where=str(path),
            remedy="use the virtoll version named in environment.json, or measure anew",
        )
    try:
        study = _study({key: value for key, value in raw.items() if key != "schema_version"}, catalogue)
        if not is_name(study.name):
            raise ValueError(f"{study.name!r} is no name of a study")
    except (AttributeError, KeyError, TypeError, ValueError, ValidationError) as error:
        raise StoreError(
            f"is damaged: {type(error).__name__}: {str(error).splitlines()[0]}",
            where=str(path),
            remedy="it was changed, or written by another version of virtoll; restore it from a copy",
        ) from error
    return study


def _study(raw: dict[str, Any], catalogue: Catalogue) -> Study:
    raw["arms"] = tuple(
        StudyArm(
            Arm.model_validate(entry["arm"]),
            entry["optional"],
            entry["line"],
            dict(entry.get("values", {})),
            dict(entry.get("only", {})),
            entry.get("share"),
        )
        for entry in raw["arms"]
    )
    raw["factors"] = {path: tuple(levels) for path, levels in raw["factors"].items()}
    raw["exclude"] = tuple(
        {path: levels if isinstance(levels, list) else [levels] for path, levels in rule.items()}  # one: older runs
        for rule in raw["exclude"]
    )
    raw["claims"] = tuple(raw["claims"])
    raw["programme"] = tuple(Case(**case) for case in raw["programme"])
    raw["servers"] = {name: _server(entry, catalogue) for name, entry in raw.get("servers", {}).items()}
    study = Study(**raw)
    classes = {**catalogue.sections, **_classes(study.service, study.load, catalogue)}
    if study.origin:
        classes["origin"] = catalogue.services[study.origin].settings
    return dataclasses.replace(
        study,
        base={**study.base, **_composites(study.base, classes)},
        configurations={name: _configuration(entry, classes) for name, entry in study.configurations.items()},
    )


def _configuration(raw: Any, classes: Mapping[str, type[Any]]) -> Configuration:
    values = raw["values"]
    return Configuration(tuple(raw["arms"]), {**values, **_composites(values, classes)})


def _server(raw: Mapping[str, Any], catalogue: Catalogue) -> Server:
    server = Server(**raw)
    classes = {**catalogue.sections, **_classes(server.service, server.load, catalogue)}
    return dataclasses.replace(server, base={**server.base, **_composites(server.base, classes)})


def _classes(service: str, load: str, catalogue: Catalogue) -> dict[str, type[Any]]:
    """The settings of a service and a load, by their section."""
    classes: dict[str, type[Any]] = {}
    if service:
        classes["service"] = catalogue.services[service].settings
    if load:
        classes["load"] = catalogue.loads[load]
    return classes


def _composites(base: Mapping[str, Any], classes: Mapping[str, type[Any]]) -> dict[str, Any]:
    """The lists and tables among such values, as their types say."""
    found = {}
    for section, cls in classes.items():
        for name, hint in typing.get_type_hints(cls).items():
            path = f"{section}.{name}"
            if path in base and _is_composite(hint):
                found[path] = TypeAdapter(hint).validate_python(base[path])
    return found


def _is_composite(hint: Any) -> bool:
    return any(is_composite(each) for each in (hint, *typing.get_args(hint)))
