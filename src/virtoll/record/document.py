"""A run directory's documents, checked against their types when they are read."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from virtoll.errors import StoreError
from virtoll.record.model import SCHEMA, Environment, Extension, Kept, Plan, TrialRecord
from virtoll.record.rules import Look

Document = TypeVar("Document", Plan, Environment, TrialRecord, Extension, Kept)


def validated(model: type[Document], data: bytes, where: str) -> Document:
    """One that was read from ``where``. StoreError where it is damaged, or of another schema."""
    try:
        found = model.model_validate_json(data)
    except ValidationError as error:
        expect_schema(data, where)  # of another schema: what it lacks by ours is no damage
        first = error.errors()[0]
        raise damaged(where, f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}") from error
    if found.schema_version != SCHEMA:
        expect_schema(data, where)
    return found


def look_of(line: bytes, where: str) -> Look:
    """A line of looks.jsonl; the same."""
    try:
        return Look.model_validate_json(line)
    except ValidationError as error:
        raise damaged(where, error.errors()[0]["msg"]) from error


class _Versioned(BaseModel):
    schema_version: int


def expect_schema(data: bytes, where: str) -> None:
    """StoreError where a document says that it is of another schema."""
    try:
        version = _Versioned.model_validate_json(data).schema_version
    except ValidationError:
        return  # damaged in another way, which its own model tells
    if version != SCHEMA:
        raise StoreError(
            f"schema {version}, and this virtoll reads schema {SCHEMA}: its fields do not mean the same",
            where=where,
            remedy="use the virtoll version named in environment.json, or measure anew",
        )


def damaged(where: str, what: str) -> StoreError:
    """``what`` is wrong with it."""
    return StoreError(
        f"is damaged: {what.splitlines()[0]}",
        where=where,
        remedy="it was changed, or written by another version of virtoll; restore it from a copy",
    )
