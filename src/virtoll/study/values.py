"""The values that a study file may set: their types, units and bounds.

Quantities are written with their unit (``"10 kB"``, ``"5 s"``); the suffix of a number's field (``_bytes``, ``_ns``,
``_per_s``, ``_bit_per_s``, ``_share``) says which units fit, and the key in the file is the field's name without it. A
field may also be a list of strings (``tuple[str, ...]``), a table of a type (``dict[str, ...]``), or a table with
fields of its own (a frozen dataclass). Paths are relative to the study file (`Beside`).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NewType

from virtoll import units

_UNITS: dict[str, Callable[[str], float]] = {
    "_bit_per_s": units.parse_bit_rate,
    "_bytes": units.parse_bytes,
    "_ns": units.parse_duration_ns,
    "_per_s": units.parse_rate,
    "_share": units.parse_percent,
}


Beside = NewType("Beside", str)  # a file's path, written relative to the study file, kept absolute
# "oci:PATH[:TAG]" or "dir:PATH", the path likewise.
BesideAfterKind = NewType("BesideAfterKind", str)


@dataclass(frozen=True)
class Spec:
    """One value a study file may set."""

    path: str  # "load.object_bytes"
    key: str  # "object", as written
    hint: Any
    default: Any
    bounds: Mapping[str, Any]  # "least" and "most", or its "form", where there are any (units.within, units.url_path)

    def parse(self, raw: Any, beside: Path = Path()) -> Any:
        """The value in base units, paths from directory ``beside`` on; ValueError says what would be right."""
        try:
            value = self._typed(raw, beside)
        except OverflowError:
            raise ValueError(f"{str(raw)[:40]!r} is too large") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{str(raw)[:40]!r} is no finite number")
        if value is not None and self.bounds:
            self._check_bounds(value)
        return value

    def _check_bounds(self, value: Any) -> None:
        if (form := self.bounds.get("form")) is not None and not re.fullmatch(form, value):
            raise ValueError(f"{value!r} must {self.bounds['told']}")
        least, most = self.bounds.get("least"), self.bounds.get("most")
        if least is not None and value < least:
            raise ValueError(f"must be at least {self._told(least)}")
        if most is not None and value > most:
            raise ValueError(f"must be at most {self._told(most)}")

    def _told(self, bound: float) -> str:
        """A bound as a person would write it."""
        told = next((words for suffix, words in _WORDS.items() if self.path.endswith(suffix)), None)
        return told(bound) if told else f"{bound:g}"

    def _typed(self, raw: Any, beside: Path) -> Any:  # noqa: PLR0911 - one for each kind of value
        hint, optional = _without_none(self.hint)
        if optional and raw == "none":
            return None
        if is_composite(hint):
            return _composite(hint, self.path, raw, beside)
        if hint in (Beside, BesideAfterKind):
            return _path(hint, raw, beside)
        for suffix, parse in _UNITS.items():
            if hint in (int, float) and self.path.endswith(suffix):
                if not isinstance(raw, str):
                    raise ValueError(f"{raw!r} lacks its unit: write it as a string, for example {_example(suffix)}")
                return hint(parse(raw))
        if typing.get_origin(hint) is Literal:
            allowed = typing.get_args(hint)
            if raw not in allowed:
                raise ValueError(f"{raw!r} is not one of {', '.join(map(repr, allowed))}{nearest(raw, allowed)}")
            return raw
        if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
            return float(raw)
        if type(raw) is not hint:
            raise ValueError(f"{raw!r} is not {TYPE_WORDS.get(hint, hint)}")
        if isinstance(raw, int | float) and not isinstance(raw, bool) and raw < 0:
            raise ValueError(f"{raw!r} is negative")
        return raw


def is_composite(hint: Any) -> bool:
    """Whether a field holds a list or a table."""
    return typing.get_origin(hint) in (tuple, dict) or dataclasses.is_dataclass(hint)


def _composite(hint: Any, path: str, raw: Any, beside: Path) -> Any:
    """A list or a table, each of its values as its own type says; ValueError names the one that is wrong."""
    if typing.get_origin(hint) is tuple:
        if not isinstance(raw, list):
            raise ValueError(f"{raw!r} is not a list")
        (inner, _) = typing.get_args(hint)
        return tuple(Spec(path, "", inner, None, {}).parse(each, beside) for each in raw)
    if not isinstance(raw, dict):
        raise ValueError(f"{raw!r} is not a table")
    if typing.get_origin(hint) is dict:
        (_, inner) = typing.get_args(hint)
        return {
            key: _within(key, Spec(f"{path}.{key}", key, inner, None, {}), each, beside) for key, each in raw.items()
        }
    return _record(hint, path, raw, beside)


def _record(cls: type[Any], path: str, raw: Mapping[str, Any], beside: Path) -> Any:
    specs = specs_of(path, cls)
    for key in raw:
        if key not in specs:
            raise ValueError(f"unknown key {key!r}{nearest(key, specs)}; known here: {', '.join(specs)}")
    for key, spec in specs.items():
        if key not in raw and spec.default is dataclasses.MISSING:
            raise ValueError(f"{key!r} is missing")
    given = {specs[key].path.rpartition(".")[2]: _within(key, specs[key], each, beside) for key, each in raw.items()}
    return cls(**given)


def _within(key: str, spec: Spec, raw: Any, beside: Path) -> Any:
    try:
        return spec.parse(raw, beside)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _path(hint: Any, raw: Any, beside: Path) -> str:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ValueError(f"{raw!r} is not a path")
    if hint is Beside:
        return str((beside / raw).absolute())
    kind, colon, rest = raw.partition(":")
    if not colon:
        raise ValueError(f'{raw!r} does not say what it is: write "oci:{raw}" or "dir:{raw}"')
    if kind not in ("oci", "dir") or not rest or rest.startswith(":"):
        raise ValueError(f'{raw!r} is no image: write "oci:PATH", "oci:PATH:TAG" or "dir:PATH"')
    if kind == "oci" and not rest.startswith("/") and ":" in str(beside.absolute()):
        raise ValueError(f"an image's path holds no colon, and that of this study does: {beside.absolute()}")
    return f"{kind}:{(beside / rest).absolute()}"


_WORDS: dict[str, Callable[[float], str]] = {
    "_bit_per_s": units.exact_bit_rate,
    "_bytes": units.exact_size,
    "_ns": units.exact_duration,
    "_per_s": units.exact_rate,
    "_share": lambda share: f"{units.exact_percent(share)} %",
}
TYPE_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", list: "a list"}


def _example(suffix: str) -> str:
    return {"_bytes": '"10 kB"', "_ns": '"5 s"', "_per_s": '"200 /s"', "_bit_per_s": '"36 Mbit/s"', "_share": '"5 %"'}[
        suffix
    ]


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return inner[0], len(inner) < len(typing.get_args(hint))
    return hint, False


def _key(name: str) -> str:
    for suffix in _UNITS:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def specs_of(section: str, cls: type[Any]) -> dict[str, Spec]:
    """The values of a settings class, by their key in the file's table ``section``."""
    hints = typing.get_type_hints(cls)
    specs = {}
    for f in dataclasses.fields(cls):
        key = _key(f.name)
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        specs[key] = Spec(f"{section}.{f.name}", key, hints[f.name], default, f.metadata)
    return specs


def nearest(word: object, known: Iterable[object]) -> str:
    """``; did you mean 'word'?`` where one of the known words is near."""
    close = difflib.get_close_matches(str(word), [str(k) for k in known], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def is_name(value: object) -> bool:
    """Whether a study may be called so: files and directories get its name."""
    return isinstance(value, str) and re.fullmatch(r"[a-z][a-z0-9-]{0,99}", value) is not None
