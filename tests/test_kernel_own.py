"""A guest's kernel that is the user's own: what it lacks is told, and nothing of the user's is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import busybox, kernel

VERSION = "6.6.1-own"


def test_modules_whose_order_was_not_noted_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`depmod` wrote a dozen files beside them, which nothing removed."""
    modules, own = tmp_path / "lib/modules" / VERSION, tmp_path / "vmlinuz"
    modules.mkdir(parents=True)
    own.write_bytes(b"a kernel")
    monkeypatch.setattr(kernel, "_ROOT", tmp_path)
    monkeypatch.setattr(kernel, "kernel_version", lambda _image, _where: VERSION)
    monkeypatch.setattr(busybox, "problem", lambda _host: None)
    problem = kernel.kernel_problem(LocalHost(), own)
    assert problem is not None
    assert (problem.where, problem.remedy) == (str(modules), f"depmod {VERSION}")
    with pytest.raises(HostError, match="in which order these modules are loaded"):
        kernel.driver_modules(LocalHost(), tmp_path, VERSION, kernel.VIRTIO)
    assert list(modules.iterdir()) == []
    (modules / "modules.dep").touch()
    assert kernel.kernel_problem(LocalHost(), own) is None
    assert kernel.driver_modules(LocalHost(), tmp_path, "6.6.1-built-in", kernel.VIRTIO) == []
