"""What differs between two machines, as their runs have recorded them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from typing import Any

# By role all packages of an image, whoever asked for them: in ``comparable`` by one digest, in the notes by version.
INSTALLED = "installed"
# Of the notes: what must be the same where a run is gone on with, and is no part of what one run's environment has in
# common with another's: the code that measures, and the CPUs that virtoll may use.
MEASURED_BY = "measured_by"
# Of a machine's memory: by how much that may differ which a kernel leaves (MemTotal), boot by boot.
_KERNELS_SHARE = 0.01
_MACHINE, _MEMORY, _HOSTS = "machine", "memory_bytes", "hosts"


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two ``comparable`` records, one line each."""
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            lines.append(f"{prefix}{key}: was {old}, is {new}")
    return lines


def alike(comparable: Mapping[str, Any]) -> Hashable:
    """What two ``comparable`` records have equal just where `differences` finds none: many are compared in one pass."""
    return frozenset(
        (key, alike(value) if isinstance(value, dict) else _hashable(value))
        for key, value in comparable.items()
        if value is not None
    )


def digest(comparable: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that two ``comparable`` records have alike where `differences` finds none, and others
    hardly ever (SHA-256; of a thousand environments two are, once in eight thousand cases): a name that stays.
    """
    text = json.dumps(_without_none(comparable), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def booted_anew(before: Mapping[str, Any], now: Mapping[str, Any]) -> Mapping[str, Any]:
    """``now`` with the memory of before, where it differs by no more than a kernel keeps for itself; of a fleet that of
    each host, too.
    """
    was, has = _tables(before, _HOSTS), _tables(now, _HOSTS)
    hosts = {name: booted_anew(was.get(name, {}), each) for name, each in has.items()}
    found = {**now, _HOSTS: {**now[_HOSTS], **hosts}} if hosts else now
    machines = [machine for each in (before, now) if isinstance(machine := each.get(_MACHINE), dict)]
    sizes = [size for machine in machines if isinstance(size := machine.get(_MEMORY), int)]
    if len(sizes) != 2 or abs(sizes[1] - sizes[0]) > _KERNELS_SHARE * sizes[0]:
        return found
    return {**found, _MACHINE: {**machines[1], _MEMORY: sizes[0]}}


def without_memory(comparable: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of it whatever memory there is, of a fleet on each host: the same of all that were `booted_anew`."""
    found = dict(comparable)
    if isinstance(machine := comparable.get(_MACHINE), dict):
        found[_MACHINE] = {key: value for key, value in machine.items() if key != _MEMORY}
    if hosts := _tables(comparable, _HOSTS):
        found[_HOSTS] = {**comparable[_HOSTS], **{name: without_memory(each) for name, each in hosts.items()}}
    return found


def _tables(comparable: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """The tables in one of its tables; none, where there is none."""
    found = comparable.get(key)
    return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}


def _without_none(comparable: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in comparable.items()
        if value is not None
    }


def _hashable(value: Any) -> Hashable:
    """Of what JSON holds; equal where that is."""
    if isinstance(value, dict):
        return frozenset((key, _hashable(each)) for key, each in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
