"""What reads a study file: finds lines, and collects problems so that all of them are told at once."""

from __future__ import annotations

import re
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from virtoll.errors import Problem
from virtoll.study.model import Catalogue
from virtoll.study.values import Spec, nearest

QUICK = "quick"


class Reader:
    """Collects problems while it walks the file, so that all of them are told at once."""

    def __init__(self, text: str, file: str, catalogue: Catalogue) -> None:
        self.text, self.file, self.catalogue = text, file, catalogue
        self.problems: list[Problem] = []
        self.headings: dict[str, str] = {}  # of tables that [quick] has in the place of the study's own
        self.from_quick: dict[str, Collection[str]] = {}  # of the others: what [quick] has of them

    def line(self, table: str, key: str = "", occurrence: int = 0) -> int:
        """Line of a key in a table (``arms`` with ``occurrence`` for arrays of tables), 1 if it cannot be found."""
        if key in self.from_quick.get(table, ()):
            table = f"{QUICK}.{table}".rstrip(".")
        else:
            table = self.headings.get(table, table)
        current, seen, header = "", -1, 1
        for number, text in enumerate(self.text.splitlines(), 1):
            heading = re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?", text)
            if heading and "=" not in text.split("]")[0]:
                current = heading[1].strip("\"' ")
                seen += current == table
                header = number if current == table and seen == occurrence else header
            elif current == table and (not table or seen == occurrence):
                match = re.match(r"""\s*["']?([^"'=]+?)["']?\s*=""", text)
                if key and match and match[1] == key:
                    return number
        return header

    def fail(self, what: str, table: str = "", key: str = "", remedy: str = "", occurrence: int = 0) -> None:
        """Note a problem at the line of a key."""
        self.problems.append(Problem(what, f"{self.file}:{self.line(table, key, occurrence)}", remedy))

    def unknown(self, given: Mapping[str, Any], known: Collection[str], table: str, occurrence: int = 0) -> None:
        """Note every key that is not known here, with the nearest that is."""
        for key in given:
            if key not in known:
                remedy = f"known here: {', '.join(sorted(known))}"
                self.fail(f"unknown key {key!r}{nearest(key, known)}", table, key, remedy, occurrence)

    def named(self, what: str, name: object, known: Mapping[str, Any], table: str) -> type[Any] | None:
        """What a table's name stands for; None, and a problem, where nothing is called so."""
        if isinstance(name, str) and name in known:
            return typing.cast(type[Any], known[name])
        self.fail(
            f"no {what} is called {name!r}{nearest(name, known)}",
            table,
            "name",
            f"`virtoll list {what}s` shows: {', '.join(known)}",
        )
        return None

    def parsed(self, spec: Spec, raw: Any, table: str, key: str, occurrence: int = 0) -> Any:
        """A value in base units; None, and a problem, where it cannot be read."""
        try:
            return spec.parse(raw, Path(self.file).parent)
        except ValueError as error:
            self.fail(f"{key}: {error}", table, key, occurrence=occurrence)
            return None
