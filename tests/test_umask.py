"""Root's umask may be 077: services that are not root read what they need, and what is the user's own stays his."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtoll.fakes import fake_environment
from virtoll.files import umask
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.images import layer
from virtoll.images.base import Image
from virtoll.record.model import Plan
from virtoll.record.store import RunDirectory
from virtoll.run.alone import alone


@pytest.fixture(params=[0o027, 0o077])
def mask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The caller's."""
    mask: int = request.param
    monkeypatch.setattr(umask, "CALLERS", mask)
    before = os.umask(mask)
    try:
        yield mask
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.machine
def test_whoever_has_the_machine_makes_what_others_may_read(
    mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / "state"))
    host = LocalHost()
    with alone(host):
        (tmp_path / "ours").mkdir()
        assert mode(tmp_path / "ours") == 0o755
        assert host.run(["sh", "-c", "umask"]).text.strip() == "0022", "as an instance's agent has it"
        assert mode(tmp_path / "state") == 0o700, "all that is below is root's alone"
        with ledgers.scratch(host, "secret") as directory:
            assert mode(directory) == 0o700
    assert os.umask(mask) == mask, "what comes after, a report, is the user's own"


def test_who_may_look_into_a_run_is_left_to_its_user(mask: int, tmp_path: Path) -> None:
    plan = Plan(seed=1, blocks=1, trials=[], estimate_s=1.0)
    with umask.readable():
        run = RunDirectory.create(tmp_path / "runs/one", {}, plan, fake_environment())
    assert mode(run.path) == mode(run.path.parent) == 0o777 & ~mask


@pytest.mark.machine
@pytest.mark.usefixtures("mask")
def test_the_root_of_an_overlay_is_its_images(tmp_path: Path) -> None:
    image = Image("x", "0" * 64, tmp_path / "image")
    image.rootfs.mkdir(parents=True)
    image.rootfs.chmod(0o755)
    host, directory = LocalHost(), tmp_path / "instance"
    with (
        ledgers.opened(host, tmp_path / "ledger", "test") as ledger,
        layer.overlay(host, ledger, image, directory, 16 * 2**20) as root,
    ):
        assert mode(root) == 0o755, "else nobody but root passes it"
