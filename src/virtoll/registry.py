"""Finds the implementations of a seam: one file each, plus third parties' entry points.

A module of the seam's package (``virtoll.platforms.docker``) that defines a public subclass of the seam's base
class with a ``name`` is registered under that name. A third party registers a class under the entry point group
of the same dotted name (``virtoll.platforms``).
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from typing import Any


@cache
def implementations(package: str, base: type[Any]) -> dict[str, type[Any]]:
    """Map names to the classes of ``package`` derived from ``base``, in alphabetical order."""
    found: dict[str, type[Any]] = {}
    for module_info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{module_info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__:
                name = getattr(value, "name", "")
                if name:
                    found[name] = value
    for entry in entry_points(group=package):
        found[entry.name] = entry.load()
    return dict(sorted(found.items()))
