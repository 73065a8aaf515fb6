"""What an OpenVZ or Virtuozzo host says of its containers: its kernel's files, and its tools' JSON.

Read from the documented formats (OpenVZ's wiki, vzctl(8), vzlist(8), prlctl(8), and the kernel's own printing), and not
yet from a live host. So all of it is tolerant: a resource, column or key that is not known is kept, and one that is
missing is missing. A container's root writes some of it (hostname, description): it is bounded, and never trusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from virtoll.errors import HostError

MOST_BYTES = 16 * 1024**2  # of one file or answer
_COUNTED = 5  # columns of a beancounter
_UNLIMITED = frozenset({2**63 - 1, 2**31 - 1})  # LONG_MAX of the kernel's; the second where it has 32 bits
_SLICE = r'^[ \t]*VE_CGROUP_SLICE="?([A-Za-z0-9_.-]{1,63})"?[ \t]*$'
_DUMMY = "dummy"  # printed by old kernels in place of what they had still earlier
# Columns of /proc/vz/vestat after the id: user nice system uptime, idle strv uptime used maxlat totlat numsched. The
# first four are jiffies, `Clock` is of the rest.
_JIFFIES = 4
_USED = 7

Clock = Literal["cycles", "nanoseconds"]


@dataclass(frozen=True)
class Beancounter:
    """One resource of one container: now, the most ever held, barrier, limit, and how often it was refused.

    Units follow from the resource (pages of 4 KiB, bytes, or a number of things: `unit`). ``barrier`` and ``limit`` are
    None where there is none.
    """

    held: int
    maxheld: int
    barrier: int | None
    limit: int | None
    failcnt: int


@dataclass(frozen=True)
class Usage:
    """CPU time of a container by /proc/vz/vestat: the first three in jiffies, ``used`` in ``clock``'s unit.

    ``used`` is None where the kernel prints fewer columns.
    """

    user_jiffies: int
    nice_jiffies: int
    system_jiffies: int
    uptime_jiffies: int
    used: int | None
    clock: Clock


@dataclass(frozen=True)
class Container:
    """One container as vzlist or prlctl lists it; None is what the tool did not say."""

    id: str
    status: str | None
    hostname: str | None
    addresses: tuple[str, ...]
    cpu_limit_percent: float | None  # of one CPU; None where there is no limit, or none is told
    cpu_units: int | None


def unit(resource: str) -> Literal["pages", "bytes", "things"]:
    """What a beancounter counts (OpenVZ's wiki, UBC parameter units): of 4 KiB, bytes, or one each."""
    if resource.endswith("pages"):
        return "pages"
    return "bytes" if resource in ("kmemsize", "dcachesize") or resource.endswith("buf") else "things"


def parse_beancounters(text: str) -> dict[str, dict[str, Beancounter]]:
    """/proc/user_beancounters, by container, by resource. HostError where it is no such file: /proc/bc/ID/resources,
    which has neither a version nor the container's id, is none.
    """
    lines = _versioned(text, "user_beancounters")
    found: dict[str, dict[str, Beancounter]] = {}
    current: str | None = None
    for line in lines:
        words = line.split()
        if words and words[0].endswith(":"):  # the first resource of a container: its id is before it
            current = words.pop(0).removesuffix(":")
            found[current] = {}
        if current is None or len(words) != 1 + _COUNTED or words[0] == _DUMMY:
            continue  # the header, a dummy, or a line of a later kernel's
        numbers = _naturals(words[1:])
        if len(numbers) != _COUNTED:
            continue
        held, maxheld, barrier, limit, failcnt = numbers
        found[current][words[0]] = Beancounter(held, maxheld, _bound(barrier), _bound(limit), failcnt)
    return found


def parse_vestat(text: str, clock: Clock) -> dict[str, Usage]:
    """/proc/vz/vestat, by container's id. HostError where it is no such file.

    ``clock``: OpenVZ's wiki says that ``used`` is in CPU cycles, and the kernel of Virtuozzo 7 prints nanoseconds; no
    word in the file tells (`clock_of`).
    """
    found = {}
    for line in _versioned(text, "vestat"):
        words = line.split()
        numbers = _naturals(words[1:])
        if len(numbers) < _JIFFIES:
            continue  # the header, or a line that was cut
        user, nice, system, uptime = numbers[:_JIFFIES]
        used = numbers[_USED] if len(numbers) > _USED else None
        found[words[0].removesuffix(":")] = Usage(user, nice, system, uptime, used, clock)
    return found


def clock_of(kernel: str) -> Clock:
    """In what the kernel of that release (uname -r) prints vestat's finer columns: from 3.10 on it is Virtuozzo 7's."""
    release = re.match(r"(\d{1,4})\.(\d{1,4})", kernel)
    return "nanoseconds" if release and (int(release[1]), int(release[2])) >= (3, 10) else "cycles"


def parse_vzlist(text: str) -> list[Container]:
    """The answer of ``vzlist -a -j``. HostError where it is not JSON: vzlist escapes nothing, and a container's
    hostname or description with a quote breaks it for all (list with ``-o ctid,status,ip`` then).
    """
    return [
        Container(
            id=str(entry["ctid"]),
            status=_text(entry.get("status")),
            hostname=_text(entry.get("hostname")),
            addresses=tuple(one for one in _listed(entry.get("ip")) if isinstance(one, str)),
            cpu_limit_percent=_positive(entry.get("cpulimit")),
            cpu_units=_whole(entry.get("cpuunits")),
        )
        for entry in _objects(text, "vzlist -a -j")
        if type(entry.get("ctid")) in (int, str)
    ]


def parse_prlctl(text: str) -> list[Container]:
    """The answer of ``prlctl list -a -j``: containers and virtual machines; values are mostly strings."""
    found = []
    for entry in _objects(text, "prlctl list -a -j"):
        identity = entry.get("uuid", entry.get("ID"))
        if not isinstance(identity, str):
            continue
        told = entry.get("ip_configured", entry.get("ip"))
        addresses = told.split() if isinstance(told, str) and told != "-" else _listed(told)
        found.append(
            Container(
                id=identity.strip("{}"),
                status=_text(entry.get("status", entry.get("State"))),
                hostname=_text(entry.get("hostname")),
                addresses=tuple(one.partition("/")[0] for one in addresses if isinstance(one, str)),
                cpu_limit_percent=None,
                cpu_units=None,
            )
        )
    return found


def parse_status(text: str) -> frozenset[str]:
    """The answer of ``vzctl status``: *exist* or *deleted*, *mounted* or *unmounted*, *running* or *down*, and
    *suspended* (vzctl(8)). HostError where it is no such line.
    """
    words = text[:MOST_BYTES].split()
    if len(words) < 5 or words[2] not in ("exist", "deleted"):
        raise HostError(
            f"does not say whether there is such a container, but {text.strip()[:120]!r}",
            where="vzctl status",
            remedy="run it by hand, as root; is the service vz running?",
        )
    return frozenset(words[2:])


def slice_of(configuration: str) -> str:
    """The control group that holds those of all containers, by /etc/vz/vz.conf: machine.slice where it is silent."""
    told = re.findall(_SLICE, configuration[:MOST_BYTES], re.MULTILINE)
    return told[-1] if told else "machine.slice"


def _versioned(text: str, name: str) -> list[str]:
    """The lines after ``Version: 2.5``."""
    first, _, rest = text[:MOST_BYTES].partition("\n")
    if not re.fullmatch(r"Version: \d{1,9}(\.\d{1,9})*\s*", first):
        raise HostError(
            f"does not begin with a version, but with {first[:60]!r}",
            where=f"/proc/vz/{name}" if name == "vestat" else f"/proc/{name}",
            remedy="is this an OpenVZ kernel? (uname -r)",
        )
    return rest.split("\n")


def _objects(text: str, command: str) -> list[Mapping[str, Any]]:
    try:
        answer = json.loads(text[:MOST_BYTES])
    except (ValueError, RecursionError) as error:
        raise HostError(
            f"is not JSON: {str(error)[:120]}",
            where=command,
            remedy="look for a quote in a container's hostname or description, which is not escaped",
        ) from None
    return [entry for entry in answer if isinstance(entry, dict)] if isinstance(answer, list) else []


def _naturals(words: Sequence[str]) -> list[int]:
    """The words as numbers; none where one of them is no number."""
    return [int(word) for word in words] if all(re.fullmatch(r"[0-9]{1,20}", word) for word in words) else []


def _bound(value: int) -> int | None:
    return None if value in _UNLIMITED else value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _positive(value: Any) -> float | None:
    """0 is vzlist's word for no limit."""
    return float(value) if type(value) in (int, float) and 0 < value < 1e9 else None
