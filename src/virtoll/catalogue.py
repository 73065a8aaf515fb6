"""What is registered, told to the study file in plain words."""

from __future__ import annotations

from virtoll.errors import Problem
from virtoll.lab.shaping import LinkShape
from virtoll.lab.slices import Slices
from virtoll.limits import Limits
from virtoll.loads.base import loads
from virtoll.networks.base import common_kind, network_modes
from virtoll.platforms.base import Platform, platforms
from virtoll.probes.base import probes
from virtoll.services.base import services
from virtoll.study import Background, Catalogue, Monitoring, Neighbour, PlatformEntry, ServiceEntry


def catalogue() -> Catalogue:
    """Everything a study file may name, with its settings."""
    return Catalogue(
        platforms={name: _entry(name, cls) for name, cls in platforms().items()},
        services={
            name: ServiceEntry(cls.Settings, cls.needs_origin, cls.holds_objects) for name, cls in services().items()
        },
        loads={name: cls.Settings for name, cls in loads().items()},
        probes={name: cls.Settings for name, cls in probes().items()},
        sections={
            "limits": Limits,
            "background": Background,
            "neighbour": Neighbour,
            "link": LinkShape,
            "monitor": Monitoring,
            "slices": Slices,
        },
        networks=tuple(network_modes()),
    )


def _entry(name: str, cls: type[Platform]) -> PlatformEntry:
    refuses = {}
    for mode_name, mode in network_modes().items():
        kind = common_kind(name, cls.kinds, mode)
        if isinstance(kind, Problem):
            refuses[mode_name] = kind.what
    return PlatformEntry(cls.Settings, cls.default_network, refuses, cls.most_vcpus)
