"""What stands between this machine and an arm: the lab's needs, the platform's, the network mode's."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab import requirements
from virtoll.networks.base import network_modes
from virtoll.platforms.base import Platform


@dataclass
class Readiness:
    """Asks each thing once: some answers need a trial that takes seconds."""

    host: Host
    tries: bool = True  # also what needs a trial; then the machine must be the caller's alone
    _known: dict[str, list[Problem]] = field(default_factory=dict)

    def problems(self, platform: Platform, network: str) -> list[Problem]:
        """What is missing for ``platform`` in mode ``network``; empty when ready. The pair must be possible.

        Only root sees that: for anybody else, who ``tries`` nothing, all counts as ready.
        """
        if not self.tries and os.geteuid() != 0:
            return []
        return self.of_lab() or self.of_platform(platform) or self._of_mode(platform, network)

    def of_lab(self) -> list[Problem]:
        """What keeps any lab from being wired here."""
        if "lab" not in self._known:
            self._known["lab"] = requirements.check(self.host)
        return self._known["lab"]

    def of_platform(self, platform: Platform) -> list[Problem]:
        """What the platform lacks, with its settings."""
        key = f"{platform.name} {platform.settings}"
        if key not in self._known:
            problems = platform.check(self.host)
            self._known[key] = problems or (platform.try_out(self.host) if self.tries else [])
        return self._known[key]

    def _of_mode(self, platform: Platform, network: str) -> list[Problem]:
        mode = network_modes()[network]
        kind = platform.kind_in(mode)
        if isinstance(kind, Problem):
            return [kind]
        key = f"{network} {kind}"
        if key not in self._known:
            self._known[key] = mode().check(self.host, kind)
        return self._known[key]
