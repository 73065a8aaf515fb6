"""A QEMU that does without what it was told to use says so in its own output alone, and goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from test_platforms_vms import KERNEL, TAP
from virtoll.errors import PlatformError
from virtoll.platforms import qemu
from virtoll.platforms.base import Accounting
from virtoll.platforms.kvm import Kvm
from virtoll.study.limits import Limits

FALLBACKS = (
    "qemu-system-x86_64: Unable to use linux io_uring, falling back to thread pool: Operation not permitted",
    "qemu-system-x86_64: Unable to use Linux AIO, falling back to thread pool: Resource temporarily unavailable",
    "qemu-system-x86_64: unable to start vhost net: 14: falling back on userspace virtio",
)


@contextmanager
def deployed(monkeypatch: pytest.MonkeyPatch, directory: Path, boots: str, ends: str) -> Iterator[Any]:
    """A guest of a QEMU that prints so much by the time its agent answers, and so much by its end."""
    log, at_its_end = directory / "monitor.log", ExitStack()
    log.write_text("")

    @contextmanager
    def started(*_: Any, **__: Any) -> Iterator[Any]:
        with at_its_end:
            at_its_end.callback(lambda: log.write_text(log.read_text() + ends))
            process, accounting = SimpleNamespace(pid=0), Accounting("", directory)
            yield SimpleNamespace(accounting=accounting, process=process, is_running=lambda: True, stopped=None)

    def booted(*_: Any) -> Any:
        log.write_text(boots)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(qemu, "disk", SimpleNamespace(ext4=nothing, qcow2_overlay=nothing, DISK_LIMIT=""))
    monkeypatch.setattr(Kvm, "kernel", lambda *_: KERNEL)
    monkeypatch.setattr(Kvm, "_release", lambda *_: ("7.2.1", {}))
    for name, double in (("started", started), ("booted", booted), ("configure", nothing)):
        monkeypatch.setattr(qemu, name, double)
    lab = cast(Any, SimpleNamespace(host=None, generator=SimpleNamespace(cpus=frozenset())))
    with Kvm().deploy(lab, cast(Any, None), Limits(), TAP, directory) as instance:
        yield instance


def nothing(*_: Any) -> str:
    """What nobody looks at."""
    return ""


@pytest.mark.parametrize("said", FALLBACKS, ids=["io_uring", "native", "vhost"])
def test_a_qemu_that_does_without_what_was_asked_for_is_no_deployment(
    said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the time its agent answers, or only later: then no trial with it is valid."""
    told = pytest.raises(PlatformError, match=re.escape(f"does not use what the study asks for: {said}"))
    with told, deployed(monkeypatch, tmp_path, f"one\n{said}\n", ""):
        pytest.fail("it is there")
    was_there = False
    with told, deployed(monkeypatch, tmp_path, "one\n", f"two\n{said}\n"):
        was_there = True
    assert was_there
    with deployed(monkeypatch, tmp_path, "one\n", "two\n"):
        pass
