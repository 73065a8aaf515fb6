"""Colours and marks: the same arm looks the same in every figure, table and run; told apart without colour too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from virtoll.record.model import Arm

# (light, dark). Light ones after Okabe and Ito, safe for colour-blind readers; variants of a platform differ in shade
# and in mark.
_PLATFORMS: dict[str, tuple[tuple[str, str], ...]] = {
    "native": (("#3f454d", "#cdd2d8"), ("#9097a0", "#868d96")),
    "docker": (("#0072b2", "#4ea5dc"), ("#56b4e9", "#a3d6f5")),
    "lxc": (("#009e73", "#35c398"), ("#66c2a4", "#9fe3cb")),
    "uml": (("#d99200", "#f0b541"), ("#eec06a", "#f7d99b")),
    "kvm": (("#d55e00", "#f2854a"), ("#eb9b62", "#f7bd97")),
    "qemu-tcg": (("#b2528c", "#dd92bf"), ("#d49cc0", "#ebc3db")),
}
# Beside the six above these are told apart by mark and line as well: so many hues are not, in a legend.
_FURTHER: dict[str, tuple[tuple[str, str], int]] = {
    "bubblewrap": (("#6a5fb0", "#a79df0"), 2),
    "cloud-hypervisor": (("#3d5a80", "#98b4d8"), 2),
    "firecracker": (("#b5382a", "#ee8f80"), 2),
    "gvisor": (("#8a6d3b", "#cbab74"), 3),
    "nspawn": (("#5d7f35", "#a4c878"), 2),
    "oci": (("#a03c3c", "#e08585"), 3),
    "openvz": (("#1f6f54", "#7fc4a8"), 3),
    "openvz-profile": (("#2f8f9d", "#6fc9d6"), 2),
    "podman": (("#7b7f2a", "#c4c86b"), 3),
    "proxmox-ct": (("#2c7a3f", "#86d099"), 3),
    "proxmox-vm": (("#9a4f1f", "#e0a172"), 3),
    "ssh": (("#a8577e", "#e3a3c2"), 2),
    "xen-hvm": (("#7a4a6e", "#c99abc"), 2),
    "xen-pv": (("#136f8a", "#69b9d0"), 3),
    "xen-pvh": (("#4f5fa8", "#99a6ea"), 3),
}
# Platforms without a colour of their own (third parties') take these in turn.
_OTHERS: tuple[tuple[str, str], ...] = (
    ("#6a5fb0", "#a79df0"),
    ("#8a6d3b", "#cbab74"),
    ("#5d7f35", "#a4c878"),
    ("#a03c3c", "#e08585"),
    ("#2f8f9d", "#6fc9d6"),
    ("#7b7f2a", "#c4c86b"),
)
_SHAPES = ("circle", "diamond", "square", "triangle-up")
_DASHES = ((1, 0), (5, 3), (2, 2), (8, 2, 2, 2))

INK = ("#1c2024", "#e7e9ec")
MUTED = ("#59626c", "#a2abb5")
RULE = ("#dfe2e6", "#30363d")
BAND = ("#e9ebee", "#262b31")
PAPER = ("#ffffff", "#14171a")
# How many times worse than native, in steps (upper bounds); the margin decides where the middle one ends.
WORSE = (
    (1.5, ("#fbe3c8", "#4a3320")),
    (3.0, ("#f5bd84", "#7d4a22")),
    (10.0, ("#e28743", "#b8682c")),
    (float("inf"), ("#b3471d", "#ef9d63")),
)
BETTER = ("#cfe6f2", "#1d3d50")
CHROME = (INK, MUTED, RULE, BAND)


@dataclass(frozen=True)
class Style:
    """How one arm is drawn."""

    light: str
    dark: str
    shape: str
    dash: tuple[int, ...]


def styles(arms: Sequence[Arm]) -> dict[str, Style]:
    """Style by arm label. Arms of one platform share a hue; the floor arm is a paler native.

    Virtoll's own platforms look the same in every run, whoever else is in it.
    """
    found: dict[str, Style] = {}
    others = iter(_OTHERS * (1 + len(arms) // len(_OTHERS)))
    hues: dict[str, tuple[tuple[str, str], ...]] = {}
    for arm in sorted(arms, key=lambda arm: (arm.role == "floor", arm.platform)):
        if arm.platform not in hues:
            hues[arm.platform] = _hues(arm.platform) or (next(others),)
    used: dict[str, int] = {}
    for arm in arms:
        variant = used.get(arm.platform, 0)
        used[arm.platform] = variant + 1
        shades = hues[arm.platform]
        light, dark = shades[min(variant, len(shades) - 1)]
        mark = variant + (_FURTHER[arm.platform][1] if arm.platform in _FURTHER else 0)
        found[arm.label] = Style(light, dark, _SHAPES[mark % len(_SHAPES)], _DASHES[mark % len(_DASHES)])
    return found


def _hues(platform: str) -> tuple[tuple[str, str], ...]:
    return (_FURTHER[platform][0],) if platform in _FURTHER else _PLATFORMS.get(platform, ())


def pairs(arm_styles: dict[str, Style], *, heat: bool = False) -> list[tuple[str, str]]:
    """Every (light, dark) pair in use, each once; with those of a heat map, where there is one."""
    steps = [PAPER, BETTER, *(pair for _, pair in WORSE)] if heat else []
    return list(dict.fromkeys([*CHROME, *steps, *((style.light, style.dark) for style in arm_styles.values())]))
