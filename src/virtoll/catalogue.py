"""What is registered, told to the study file in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from virtoll.aggressors.base import Aggressor
from virtoll.errors import Problem
from virtoll.features import Features, variant
from virtoll.instruments.base import Instrument
from virtoll.lab.shaping import LinkShape
from virtoll.lab.slices import Slices
from virtoll.loads.base import Load, loads
from virtoll.networks.base import NetworkMode, network_modes
from virtoll.platforms.base import Platform, platforms
from virtoll.probes.base import Probe, probes
from virtoll.registry import Registered, registered
from virtoll.services.base import Service, services
from virtoll.study.limits import Limits
from virtoll.study.model import (
    Background,
    Catalogue,
    Generators,
    Knee,
    Monitoring,
    Neighbour,
    PlatformEntry,
    Rotation,
    ServiceEntry,
)

SEAMS: dict[str, Any] = {
    "platforms": Platform,
    "networks": NetworkMode,
    "services": Service,
    "loads": Load,
    "probes": Probe,
    "instruments": Instrument,
    "aggressors": Aggressor,
}


def registered_of(seam: str) -> Registered:
    """Everything registered for a seam, by its word on the command line."""
    return registered(f"virtoll.{seam}", SEAMS[seam])


def plugins() -> dict[str, str]:
    """What third parties have registered, each with its distribution, version and class."""
    return {f"{seam}: {name}": origin for seam in SEAMS for name, origin in registered_of(seam).origins.items()}


def refused() -> list[Problem]:
    """The third parties' classes that are left out, and why."""
    return [problem for seam in SEAMS for problem in registered_of(seam).refused]


def features() -> dict[str, Features]:
    """What each platform supports, as its class states it; behind it, what it does where a setting makes another of it.

    What a class inherits is said of another platform, and not taken over.
    """
    stated: dict[str, Features] = {}
    for name, cls in platforms().items():
        stated[name] = vars(cls).get("features", {})
        stated |= {variant(name, value): other for value, other in vars(cls).get("variants", {}).items()}
    return stated


def catalogue() -> Catalogue:
    """Everything a study file may name, with its settings."""
    return Catalogue(
        platforms={name: _entry(cls) for name, cls in platforms().items()},
        services={name: ServiceEntry(cls.Settings, cls.needs, cls.offered) for name, cls in services().items()},
        loads={name: cls.Settings for name, cls in loads().items()},
        probes={name: cls.Settings for name, cls in probes().items()},
        sections={
            "limits": Limits,
            "background": Background,
            "neighbour": Neighbour,
            "generators": Generators,
            "link": LinkShape,
            "monitor": Monitoring,
            "rotation": Rotation,
            "knee": Knee,
            "slices": Slices,
        },
        networks=tuple(network_modes()),
    )


def _entry(cls: type[Platform]) -> PlatformEntry:
    return PlatformEntry(cls.Settings, cls.default_network, partial(_refused, cls), cls.most_vcpus)


def _refused(cls: type[Platform], settings: Mapping[str, Any]) -> dict[str, Problem]:
    """The network modes in which a platform with these settings cannot be attached, and why."""
    platform = cls(cls.Settings(**settings))
    kinds = {name: platform.kind_in(mode) for name, mode in network_modes().items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, Problem)}
