"""Any program as a load: the user's own, or one of Debian's. What it measures is read from what it prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.images import inside
from virtoll.images.base import Image, Wanted
from virtoll.loads.program import ENVIRONMENT, Figures, ProgramLoad, ProgramSettings
from virtoll.loads.reading import Reading
from virtoll.offers import Offer
from virtoll.record.model import Quantity
from virtoll.study.values import BesideAfterKind

_PLACES = ("address", "port", "users", "rate", "seconds")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NO_IMAGE = BesideAfterKind("")
_SMALLEST = "debianutils"  # an image needs at least one package


@dataclass(frozen=True, kw_only=True)
class CommandSettings(ProgramSettings):
    """Settings of a foreign program. In ``seed`` and ``run``, {address} and {port} are the service's, {users}, {rate}
    (per second) and {seconds} as set; ``loop`` says which of users and rate is the load's intensity.

    ``seed`` runs once on each deployment, before all else; that it did something is seen by ``seeded`` (a number that
    is read from what it printed must be above 0), or else by bytes that it exchanged with the service.
    """

    run: tuple[str, ...]
    work: Reading  # how many units were done in the window
    packages: tuple[str, ...] = ()
    image: BesideAfterKind = _NO_IMAGE
    seed: tuple[str, ...] = ()
    seeded: Reading | None = None
    failed: Reading | None = None
    elapsed: Reading | None = None  # how long its window was, in seconds; else from its start to its end
    quantities: dict[str, Reading] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


class CommandLoad(ProgramLoad):
    """A program that is started for each window and reports at its end."""

    name: ClassVar[str] = "command"
    summary: ClassVar[str] = "any program of yours or Debian's, when no load here speaks your service's protocol"
    takes: ClassVar[tuple[type[Offer], ...]] = (Offer,)
    tells_percentiles: ClassVar[bool] = False  # but for its quantities
    Settings: ClassVar[type[CommandSettings]] = CommandSettings
    settings: CommandSettings

    @property
    def unit(self) -> str:
        """As ``work`` names it."""
        return self.settings.work.unit or "unit"

    @property
    def tells_failures(self) -> bool:
        """Where the study says how they are read."""
        return self.settings.failed is not None

    @property
    def programs(self) -> Wanted:
        """As the study says; with neither, the smallest Debian there is."""
        settings = self.settings
        return (
            Wanted(settings.image) if settings.image else Wanted("", tuple(sorted(settings.packages or (_SMALLEST,))))
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """As the study says."""
        return self.settings.env

    @property
    def unsearched(self) -> str:
        """Without a place for the intensity all windows of a search would be alike."""
        place = "{rate}" if self.loop == "open" else "{users}"
        said = any(place in word for word in self.settings.run)
        return "" if said else f"`run` of its load has no place for the intensity: {place}"

    @property
    def quantities(self) -> dict[str, Quantity]:
        """Those that the study names; a unit that is not given is the end of the key ("latency_ms")."""
        return {key: _quantity(key, reading) for key, reading in self.settings.quantities.items()}

    def check(self, host: Host) -> list[Problem]:  # noqa: ARG002
        """Whether the words have sense: placeholders that exist, readings that can find something."""
        settings = self.settings
        problems = [
            Problem(reading.flaw, f"[load] {key}", "see `virtoll help own`")
            for key, reading in _readings(settings).items()
            if reading.flaw
        ]
        known = f"there are {', '.join(f'{{{place}}}' for place in _PLACES)}"
        for key, words in (("run", settings.run), ("seed", settings.seed)):
            unknown = {place for word in words for place in _PLACEHOLDER.findall(word)} - set(_PLACES)
            problems += [
                Problem(f"nothing is known of {{{place}}}", f"[load] {key}", known) for place in sorted(unknown)
            ]
        if not settings.run:
            problems.append(Problem("is empty", "[load] run", 'run = ["program", "{address}"]'))
        if settings.image and settings.packages:
            problems.append(Problem("an image and packages", "[load]", "give one of the two"))
        return problems

    def problems_with(self, image: Image) -> list[Problem]:
        """Programs of ``run`` and ``seed`` that the image does not have."""
        settings, problems = self.settings, []
        path = {**ENVIRONMENT, **settings.env}["PATH"]
        for key, words in (("run", settings.run), ("seed", settings.seed)):
            if words and not inside.program(image.rootfs, words[0], path):
                what = f"there is no program {words[0]}" + ("" if "/" in words[0] else f" in PATH {path}")
                remedy = "name the package that has it in packages = [...], or correct the path"
                problems.append(Problem(what, f"[load] {key}", remedy))
        return problems

    def command(self, settings: CommandSettings, offer: Offer, seconds: int) -> Sequence[str]:
        """``run`` with the placeholders filled in."""
        return _filled(settings.run, settings, offer, seconds)

    def seed(self, settings: CommandSettings, offer: Offer) -> Sequence[str]:
        """``seed`` with the placeholders filled in."""
        return _filled(settings.seed, settings, offer, round(settings.time_limit_ns / 1e9))

    def seeded(self, said: str) -> float | None:
        """What ``seeded`` reads."""
        return None if self.settings.seeded is None else self.settings.seeded.of(said)

    def figures(self, said: str) -> Figures:
        """What the readings find."""
        settings = self.settings
        failed, elapsed = settings.failed, settings.elapsed
        return Figures(
            work=_named("work", settings.work.of, said),
            failed=None if failed is None else round(_named("failed", failed.of, said)),
            elapsed_s=None if elapsed is None else _named("elapsed", elapsed.of, said),
            values={key: _named(f"quantities.{key}", each.of, said) for key, each in settings.quantities.items()},
        )


def _readings(settings: CommandSettings) -> dict[str, Reading]:
    readings = {"work": settings.work, "failed": settings.failed, "seeded": settings.seeded}
    readings["elapsed"] = settings.elapsed
    readings |= {f"quantities.{key}": reading for key, reading in settings.quantities.items()}
    return {key: reading for key, reading in readings.items() if reading is not None}


def _named(key: str, read: Callable[[str], float], said: str) -> float:
    try:
        return read(said)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _filled(words: Sequence[str], settings: CommandSettings, offer: Offer, seconds: int) -> list[str]:
    places = {
        "address": offer.address,
        "port": str(offer.port),
        "users": str(settings.users),
        "rate": f"{settings.rate_per_s:.10g}",
        "seconds": str(seconds),
    }
    return [_PLACEHOLDER.sub(lambda place: places[place[1]], word) for word in words]


def _quantity(key: str, reading: Reading) -> Quantity:
    words, _, suffix = key.rpartition("_")
    unit = reading.unit or (suffix if words else "")
    title = reading.title or (words or key).replace("_", " ").capitalize()
    return Quantity(title, unit, None if reading.better == "neither" else reading.better)
