"""In rotation nothing of an arm's wiring is on another's path: who is driven is seen by nobody else's counters.

What was seen before each arm had a lab of its own: native 7 % slower beside an idle container with published ports.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import contract
import leaks
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import free_tag, wired
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.docker import Docker
from virtoll.platforms.native import Native
from virtoll.record.model import Arm, PlannedTrial
from virtoll.trial.labs import InTurn
from virtoll.trial.notes import Course, Experiment, Notes

pytestmark = pytest.mark.machine

PLATFORMS: dict[str, Platform] = {"native": Native(), "docker": Docker()}
NATIVE, ROUTED, PUBLISHED = "native+host", "docker+routed", "docker+published"
_WAYS_IN = ("gen0", "org0")  # all that leads into a SUT's namespace. (On an instance's own link there is its ARP.)
_STILL_S = 1.0  # a segment that is sent again comes some tenths of a second later


@dataclass(frozen=True)
class Seen:
    """What a SUT's namespace has counted so far."""

    packets: dict[str, int]  # by the link that they came by or left by
    tracked: frozenset[str]  # connections, by who speaks with whom
    rules: str  # of the firewall, each with its hits

    @staticmethod
    def by(lab: Lab) -> Seen:
        links = json.loads(lab.host.run(["ip", "-n", lab.sut.netns, "-json", "-stats", "link"]).text)
        entries = _in_sut(lab, "conntrack", "-L").splitlines()
        return Seen(
            packets={
                f"{link['ifname']} {way}": link["stats64"][way]["packets"]
                for link in links
                if link["ifname"] in _WAYS_IN
                for way in ("rx", "tx")
            },
            tracked=frozenset(
                f"{entry.split()[0]} {' '.join(leaks.TUPLE.findall(entry))}"
                for entry in entries
                if "dst=224." not in entry  # the kernel's own, of the bridge (IGMP), when it likes
            ),
            rules=_in_sut(lab, "nft", "list", "ruleset"),
        )

    def untouched_since(self, before: Seen) -> bool:
        """Entries of connection tracking may have ended: they do so by themselves."""
        return (self.packets, self.rules) == (before.packets, before.rules) and self.tracked <= before.tracked


@dataclass
class Arms:
    """The labs of a rotation, by arm, and what is deployed there is driven whenever its course goes on."""

    host: LocalHost
    ledger: Ledger
    image: Image
    labs: dict[str, Lab] = field(default_factory=dict)

    @contextmanager
    def lab(self, trials: Sequence[PlannedTrial]) -> Iterator[Experiment]:
        (label,) = {trial.arm.label for trial in trials}
        with wired(self.host, self.ledger, free_tag(), cpu_plan(self.host, 1)) as lab:
            self.labs[label] = lab
            yield self

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        """Megabytes over TCP both ways, on to the origin too, and datagrams; the first step is the deployment."""
        lab, platform = self.labs[trial.arm.label], PLATFORMS[trial.arm.platform]
        with (
            platform.session(lab, self.image),
            contract.deployed(lab, self.image, platform, trial.arm.network) as instance,
        ):
            while True:
                yield
                contract.is_reached(lab, instance)
                _become_still(lab, instance)


def _planned() -> list[PlannedTrial]:
    """A turn of three arms."""
    labels = (NATIVE, ROUTED, PUBLISHED)
    arms = [Arm(label=label, platform=label.partition("+")[0], network=label.partition("+")[2]) for label in labels]
    return [
        PlannedTrial(id=f"b01-t{at:04d}", block=1, position=at, arm=arm, condition={}, turn="b01-r0001")
        for at, arm in enumerate(arms, 1)
    ]


@pytest.fixture(scope="module")
def arms(host: LocalHost, ledger: Ledger) -> Iterator[tuple[dict[str, Lab], dict[str, Course]]]:
    """The three, deployed beside each other as a rotation does it: their labs, and how to drive them."""
    contract.skip_unless_ready(PLATFORMS["docker"])
    made, trials = Arms(host, ledger, contract.image()), _planned()
    with ExitStack() as labs, ExitStack() as courses:
        turns = InTurn(made.lab, trials, labs)
        driven = {
            trial.arm.label: courses.enter_context(closing(turns.perform(trial, Notes(Path("/none"), lambda _: None))))
            for trial in trials
        }
        for course in driven.values():
            next(course)
        yield made.labs, driven


@pytest.mark.parametrize("driven", [NATIVE, ROUTED, PUBLISHED])
def test_who_is_driven_is_seen_by_nobody_else(arms: tuple[dict[str, Lab], dict[str, Course]], driven: str) -> None:
    labs, courses = arms
    before = {label: Seen.by(lab) for label, lab in labs.items()}
    next(courses[driven])
    after = {label: Seen.by(lab) for label, lab in labs.items()}
    for label in labs.keys() - {driven}:
        assert after[label].untouched_since(before[label]), (label, before[label], after[label])
    own, mine = before[driven], after[driven]
    assert all(mine.packets[link] > own.packets[link] for link in own.packets), "the counters do count"
    assert (mine.rules != own.rules) == bool(mine.tracked - own.tracked) == (driven == PUBLISHED)


def test_only_who_publishes_ports_has_rules_and_tracks_connections(
    arms: tuple[dict[str, Lab], dict[str, Course]],
) -> None:
    labs, courses = arms
    for course in courses.values():
        next(course)
    for label in (NATIVE, ROUTED):
        seen = Seen.by(labs[label])
        assert (seen.rules, seen.tracked) == ("", frozenset())
    assert "masquerade" in Seen.by(labs[PUBLISHED]).rules.lower()


def _become_still(lab: Lab, instance: Instance) -> None:
    """Return when the server has gone, which closes what it held open, and what was under way has arrived: the last
    segments of a connection that both ends have closed.
    """
    group = Cgroup(instance.accounting.cgroup, hierarchies())
    while any(_is_nginx(pid) for pid in group.pids()):
        time.sleep(0.01)
    last = None
    while (now := Seen.by(lab).packets) != last:
        last = now
        time.sleep(_STILL_S)


def _is_nginx(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        return Path(f"/proc/{pid}/comm").read_bytes() == b"nginx\n"
    return False


def _in_sut(lab: Lab, *argv: str) -> str:
    return lab.host.run(argv, confinement=Confinement(netns=lab.sut.netns)).text
