"""What a host hands back of a trial: its record and the bytes of its files, as one bounded message.

A message is the length of its heading (8 bytes, big endian), the heading (JSON), and the bytes of all files that the
heading names, in its order. Whoever reads one trusts nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from virtoll.errors import TrialError
from virtoll.plain import printable
from virtoll.record.model import SCHEMA, PlannedTrial, TrialRecord
from virtoll.record.store import RunDirectory

MOST_BYTES = 512 * 1024**2  # of one message: what all trials of a turn may hand back
MOST_HEADING_BYTES = 16 * 1024**2  # of it: a hundred times what the records of a long turn take
MOST_RECORD_BYTES = 1024**2  # of one record: thirty times the longest
MOST_FILES = 100  # of a trial
_MOST_TOLD = 200  # characters of why a table cannot be read, which may name what is in it
_LENGTH = 8

# What a trial may have in its directory: nothing hidden, and nothing in a directory of its own.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]
_NAMES = TypeAdapter(FileName)


class _Trial(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    record: TrialRecord
    files: dict[FileName, Annotated[int, Field(ge=0, le=MOST_BYTES)]] = Field(max_length=MOST_FILES)


class _Heading(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    trials: list[_Trial]


@dataclass(frozen=True)
class Handed:
    """A trial as its host has sealed it."""

    record: TrialRecord
    files: dict[str, bytes]


def collected(spool: RunDirectory, turn: Sequence[PlannedTrial]) -> list[Handed]:
    """What a spool (a run directory in all but its plan) holds of a turn, whose trials are all sealed in it.

    Raw files beyond what one message holds, or of names that are none of virtoll's, and records that are too long, each
    or together, are not sent: their trials failed, and say so. Else all that the host has still to measure would be
    lost with them.
    """
    records = {record.trial.id: record for record in spool.records()}
    found, room = [], MOST_BYTES // 2  # the rest is for the records
    left = MOST_HEADING_BYTES - MOST_RECORD_BYTES  # the rest is for what says that a trial failed, and for names
    for trial in turn:
        paths = sorted(path for path in (spool.path / "trials" / trial.id).iterdir() if path.is_file())
        size = sum(path.stat().st_size for path in paths)
        record, length = records[trial.id], len(json.dumps(_headed(records[trial.id], {})))
        if why := _too_much(record, paths, size, room) or _too_long(length, left):
            failed = TrialRecord(trial=trial, status="failed", reason=why, started_at=record.started_at)
            found.append(Handed(failed, {}))
            continue
        room, left = room - size, left - length
        found.append(Handed(record, {path.name: path.read_bytes() for path in paths}))
    return found


def _too_much(record: TrialRecord, paths: Sequence[Path], size: int, room: int) -> str:
    """Why a trial is not sent as it is; "" where it is."""
    odd = [path.name for path in paths if not _is_plain(path.name)]
    if odd:
        return f"a raw file is called {odd[0]!r}, which is no plain name"
    if size > room or len(paths) > MOST_FILES:
        return f"its {len(paths)} raw files hold {size:,} B, which is more than a host hands back of a turn"
    if (length := len(record.model_dump_json())) > MOST_RECORD_BYTES:
        return f"its record is {length:,} B long, which is more than a host hands back: take fewer rounds, or windows"
    return ""


def _too_long(length: int, left: int) -> str:
    """Why a record has no room behind the others of its turn; "" where it has."""
    if length <= left:
        return ""
    what = f"its record is {length:,} B long, which with its turn's others is more than a host hands back"
    return f"{what}: take fewer rounds, windows or arms"


def _headed(record: TrialRecord, files: Mapping[str, bytes]) -> dict[str, Any]:
    return {"record": record.model_dump(mode="json"), "files": {name: len(data) for name, data in files.items()}}


def _is_plain(name: str) -> bool:
    try:
        _NAMES.validate_python(name)
    except ValidationError:
        return False
    return True


def packed(handed: Sequence[Handed]) -> bytes:
    """As one message."""
    heading = {"trials": [_headed(each.record, each.files) for each in handed]}
    head = json.dumps(heading).encode()
    return b"".join([len(head).to_bytes(_LENGTH, "big"), head, *(d for each in handed for d in each.files.values())])


def unpacked(message: object, turn: Sequence[PlannedTrial]) -> list[Handed]:
    """The trials of this turn, in its order. TrialError where the message is anything but these, whole."""
    if not isinstance(message, bytes):
        raise _unreadable(f"a {type(message).__name__}, and no bytes")
    if len(message) > MOST_BYTES:
        raise _unreadable(f"{len(message):,} B, and a turn's trials are at most {MOST_BYTES:,}")
    head = int.from_bytes(message[:_LENGTH], "big")
    if head > MOST_HEADING_BYTES:
        raise _unreadable(f"a heading of {head:,} B, and the records of a turn are at most {MOST_HEADING_BYTES:,}")
    if len(message) < _LENGTH + head:
        raise _unreadable(f"{len(message):,} B, which end within their heading")
    try:
        heading = _Heading.model_validate_json(message[_LENGTH : _LENGTH + head])
        for each in heading.trials:
            _expect_kept(each.record)
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "too deep"
        raise _unreadable(f"no heading of trials: {first}") from None
    if [each.record.trial for each in heading.trials] != list(turn):
        raise _unreadable("of other trials than it was asked for")
    if _LENGTH + head + sum(sum(each.files.values()) for each in heading.trials) != len(message):
        raise _unreadable("more, or less, than its heading says")
    found = _cut(heading, memoryview(message)[_LENGTH + head :])
    for one in found:
        _expect_tables(one)
    return found


def _expect_kept(record: TrialRecord) -> None:
    """TrialError for what could not be read again from a run directory."""
    line = record.model_dump_json()
    TrialRecord.model_validate_json(line)  # what is no JSON (NaN) could not be kept
    if record.schema_version != SCHEMA:
        raise _unreadable(f"a record of schema {record.schema_version}, and this virtoll keeps schema {SCHEMA}")
    if len(line) > MOST_RECORD_BYTES:
        raise _unreadable(f"a record of {len(line):,} B, and one is at most {MOST_RECORD_BYTES:,}")


def _cut(heading: _Heading, rest: memoryview) -> list[Handed]:
    found, at = [], 0
    for each in heading.trials:
        files: dict[str, bytes] = {}
        for name, size in each.files.items():
            files[name] = bytes(rest[at : at + size])
            at += size
        found.append(Handed(each.record, files))
    return found


def _expect_tables(handed: Handed) -> None:
    """TrialError for a table that no report could be made of: of no other trial, either."""
    from virtoll.analysis.load import TABLES, why_unreadable  # only whoever seals has what analyses

    is_open = handed.record.measured is not None and handed.record.measured.loop == "open"
    for name, data in handed.files.items():
        table = name.removesuffix(".parquet")
        if table != name and table in TABLES and (why := why_unreadable(table, data, is_open=is_open)):
            raise _unreadable(f"a damaged {name} of {handed.record.trial.id}: {why[:_MOST_TOLD]}")


def _unreadable(what: str) -> TrialError:
    return TrialError(printable(f"what its host handed back cannot be read: it is {what}"))


def spool_in(directory: Path) -> RunDirectory:
    """A new spool, for one turn."""
    (directory / "trials").mkdir(parents=True)
    (directory / "trials.jsonl").touch()
    return RunDirectory(directory)
