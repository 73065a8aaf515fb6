"""What each kind of virtualization can do, as words that a platform's class answers with and a user can ask for.

The words are what the papers that virtoll repeats compare in tables and text. Each platform's class states its answers
(`Platform.features`), each with a reason and a source; `virtoll list platforms --features` shows them, a report has
those of its arms, and `virtoll advise --need` goes by them. What such a table says of speed (Eiras et al., table I,
*Performance*) is no feature: that is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Answer = Literal["yes", "partly", "no", "unknown"]

# The papers, as sources name them, and what stands for them.
EIRAS, VASCONCELOS = "Eiras 2016", "Vasconcelos 2016"
BHANAGE, SUKARIDHOTO = "Bhanage 2010", "Sukaridhoto 2009"
PAPERS = {
    EIRAS: "R. Eiras et al., Performance Evaluation of a Virtualized HTTP Proxy in KVM and Docker, IEEE 2016",
    VASCONCELOS: "P. Vasconcelos et al., KVM, OpenVZ and Linux Containers: Performance Comparison of Virtualization "
    "for Web Conferencing Systems, Int. Journal Multimedia and Image Processing 6, 2016",
    BHANAGE: "G. Bhanage et al., Experimental Evaluation of OpenVZ from a Testbed Deployment Perspective, "
    "TridentCom 2010",
    SUKARIDHOTO: "S. Sukaridhoto et al., A Comparative Study of Open Source Softwares for Virtualization with "
    "Streaming Server Applications, about 2009",
}


@dataclass(frozen=True)
class Feature:
    """What is asked of a platform, and where the papers ask it."""

    title: str
    asked_in: str


@dataclass(frozen=True)
class Support:
    """A platform's answer: *partly* is yes under the condition that ``why`` names; *unknown*: nothing documents it."""

    answer: Answer
    why: str
    source: str


Features = Mapping[str, Support]  # by a word of FEATURES

FEATURES: dict[str, Feature] = {
    "own-kernel": Feature("A kernel of its own", f"{EIRAS}, table I (guest OS)"),
    "other-systems": Feature("Other systems than Linux", f"{VASCONCELOS}, 2.6; {EIRAS}, III.B"),
    "own-distribution": Feature("Another distribution than the host's", f"{BHANAGE}, 2; {SUKARIDHOTO}, II.B"),
    "changed-kernel": Feature("Changes to its kernel", f"{BHANAGE}, table 1 (network coding, transport layer)"),
    "root-inside": Feature("Root inside, who is not the host's", f"{BHANAGE}, 2"),
    "separate-files": Feature("Files apart from the host's", f"{EIRAS}, table I (isolation)"),
    "fault-isolation": Feature("A kernel that breaks leaves the others alone", f"{SUKARIDHOTO}, II.B"),
    "own-network": Feature("Network devices of its own", f"{EIRAS}, table I (communication)"),
    "shared-base": Feature("One base image on disk for all", f"{EIRAS}, table I (storage)"),
    "unmodified-guest": Feature("Guests run as they are", f"{BHANAGE}, 2; {VASCONCELOS}, 2.1"),
    "no-cpu-extensions": Feature("Works without VT-x or AMD-V", f"{BHANAGE}, 2"),
    "stock-kernel": Feature("The host's kernel as Linux has it", f"{VASCONCELOS}, 2.4 to 2.7"),
    "live-migration": Feature("Moves to another host while it runs", f"{VASCONCELOS}, 2.5 and 3"),
    "checkpoint": Feature("Is saved and restored while it runs", f"{VASCONCELOS}, 2.6 and 3"),
    "own-resource-view": Feature("Sees its own CPUs and memory, not the host's", f"{VASCONCELOS}, 2.7"),
    "resize": Feature("Is given more or less while it runs", f"{VASCONCELOS}, 2.7"),
    "overcommit": Feature("More may be promised than the host has", f"{VASCONCELOS}, 2.6 (limits and guarantees)"),
}


def yes(why: str, source: str) -> Support:
    """It does."""
    return Support("yes", why, source)


def partly(why: str, source: str) -> Support:
    """It does, under a condition."""
    return Support("partly", why, source)


def no(why: str, source: str) -> Support:
    """It does not."""
    return Support("no", why, source)


UNKNOWN = Support("unknown", "nothing was found that documents it", "")


def variant(platform: str, value: object) -> str:
    """What a platform is called of which a setting's value makes another: ``docker:runsc``."""
    return f"{platform}:{value}"


def is_variant(name: str) -> bool:
    """Whether a name is one of these: no platform's has a colon."""
    return ":" in name


def of_arm(stated: Mapping[str, Features], platform: str, settings: Mapping[str, Any]) -> tuple[str, Features]:
    """What is stated of an arm's platform with its settings, and under which name."""
    names = (variant(platform, value) for value in settings.values())
    name = next((name for name in names if name in stated), platform)
    return name, stated.get(name, {})


def supported(features: Features, name: str) -> Support:
    """A platform's answer to one word; `UNKNOWN` where its class states none."""
    return features.get(name, UNKNOWN)
