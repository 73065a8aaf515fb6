"""`virtoll run` as it is, above a lab that is a fake: no root, no machine, no time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtoll.cli import common
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.record.model import Arm, PlannedTrial, SkippedArm
from virtoll.run import environment, groups, measuring
from virtoll.run.stage import Stage

STUDY = """
name = "small"
question = "What does docker cost here?"
blocks = 2
[service]
name = "nginx"
[load]
name = "http"
time_limit = "1 s"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""


def on_fakes(patch: pytest.MonkeyPatch, fail: Mapping[str, BaseException | str]) -> None:
    """Put a fake experiment in the place of everything that touches the machine; ``fail``: see `FakeExperiment`."""

    @contextmanager
    def alone(_host: object) -> Iterator[list[str]]:
        yield []

    @contextmanager
    def lab(_stage: Stage, _images: object, _pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
        yield FakeExperiment({"native": 1.0, "docker": 1.25}, fail=fail)

    def offered(self: Stage, _file: str, *, tries: bool = True) -> tuple[list[Arm], list[SkippedArm]]:
        return [entry.arm for entry in self.study.arms], []

    patch.setattr(groups, "free_bytes", lambda _host: 2**40)  # whatever is free here
    patch.setattr(common, "require_root", lambda: None)
    patch.setattr(measuring, "alone", alone)
    patch.setattr(Stage, "lab", lab)
    patch.setattr(Stage, "offered", offered)
    patch.setattr(Stage, "missing", lambda *_: [])
    patch.setattr(Stage, "prepare", lambda *_: None)
    patch.setattr(Stage, "runtimes", lambda *_: {})
    patch.setattr(environment, "describe", lambda *_, **__: fake_environment())


def write_study(directory: Path) -> Path:
    """A study file for `on_fakes`: native (twice) and docker, two blocks, one condition: six trials."""
    path = directory / "small.toml"
    path.write_text(STUDY)
    return path
