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
from virtoll.study.file import is_name
from virtoll.study.model import Case, Catalogue, Study, StudyArm
from virtoll.study.values import is_composite


def as_json(study: Study) -> Mapping[str, Any]:
    """The study with everything written out, as study.json keeps it."""
    written = dataclasses.asdict(dataclasses.replace(study, arms=()))
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
    raw["exclude"] = tuple(raw["exclude"])
    raw["claims"] = tuple(raw["claims"])
    raw["programme"] = tuple(Case(**case) for case in raw["programme"])
    study = Study(**raw)
    return dataclasses.replace(study, base={**study.base, **_composites(study, catalogue)})


def _composites(study: Study, catalogue: Catalogue) -> dict[str, Any]:
    """The lists and tables among the study's values, as their types say."""
    classes: dict[str, type[Any]] = dict(catalogue.sections)
    for section in ("service", "origin"):
        if name := getattr(study, section):
            classes[section] = catalogue.services[name].settings
    if study.load:
        classes["load"] = catalogue.loads[study.load]
    found = {}
    for section, cls in classes.items():
        for name, hint in typing.get_type_hints(cls).items():
            path = f"{section}.{name}"
            if path in study.base and _is_composite(hint):
                found[path] = TypeAdapter(hint).validate_python(study.base[path])
    return found


def _is_composite(hint: Any) -> bool:
    return any(is_composite(each) for each in (hint, *typing.get_args(hint)))
