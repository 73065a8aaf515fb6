"""Runs every verb in the directory that is named, for test_terminal.py to look at what it prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from on_fakes import on_fakes, write_study
from undrawn import UNDRAWN, nothing
from virtoll import cli
from virtoll.cli.verbs import clean
from virtoll.cli.verbs import doctor as doctor_verb
from virtoll.errors import Problem
from virtoll.networks.base import network_modes
from virtoll.report import begin, build
from virtoll.run import doctor
from virtoll.run.doctor import MachineOffer, PlatformOffer

VERBS = (
    ("doctor",),
    ("list",),
    ("list", "probes"),
    ("new", "mine"),
    ("check", "mine.toml"),
    ("run", "mine.toml", "--dry-run"),
    ("run", "small.toml", "--out", "small"),
    ("report", "small"),
    ("export", "small"),
    ("keep", "small", "smaller"),
    ("advise", "small"),
    ("list", "platforms", "--features"),
    ("plan", "testbed"),
    ("tune", "--dry-run"),
    ("untune",),
    ("clean",),
    ("help",),
    ("help", "exit-codes"),
    ("help", "run"),
    ("completion", "bash"),
    ("man",),
    ("report", "absent"),
)


def main(directory: Path) -> None:
    """Every verb in turn, each between two lines with its words."""
    os.chdir(directory)
    write_study(directory)
    patch = pytest.MonkeyPatch()
    on_fakes(patch, {"b01-t0001": "limits in force"})

    @contextmanager
    def alone(_host: object) -> Iterator[list[str]]:
        yield ["a thing"]

    patch.setattr(doctor_verb, "alone", alone)
    patch.setattr(clean, "remove_all_left", lambda _host: ["a thing"])
    patch.setattr(begin, "_load", nothing)
    for name, instead in UNDRAWN.items():
        patch.setattr(build, name, instead)
    modes = network_modes()
    offers = {
        "native": PlatformOffer(dict.fromkeys(modes, "ready")),
        "docker": PlatformOffer(dict.fromkeys(modes, "missing"), (Problem("no dockerd", "here", "install it"),)),
    }
    patch.setattr(doctor, "examine", lambda _host: MachineOffer(offers, ["a busy machine"]))
    for argv in VERBS:
        print(f"<{' '.join(argv)}>", flush=True)
        try:
            cli.main(argv)
        except SystemExit as ended:
            print(f"<{' '.join(argv)}: {ended.code}>", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
