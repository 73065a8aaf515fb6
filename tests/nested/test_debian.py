"""virtoll on Debian as it is installed, on any machine: an emulated computer with systemd and control groups version 2.

    .venv/bin/pytest -m slow tests/nested/test_debian.py

The disk is made once (a few minutes, needs Debian's mirror). A user's own Docker container, LXC container, guest of
libvirt's on its network, and firewall are at work there while virtoll, installed from its wheel, runs a small study,
and stay as they are. kvm is none of its arms: a guest in a guest hangs by chance, and test_kvm.py has it in a computer
of one CPU.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from nested import computer, debian
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import disk as disk_of
from virtoll.images import rootfs
from virtoll.images.base import Image
from virtoll.study.limits import Limits

LIMIT_S = 7200.0  # on a slow machine, with nothing else, one trial of ten was done after 18 minutes
CHECKOUT = computer.TESTS.parent
ARMS = {"native", "docker", "lxc"}
STUDY = """
name = "nested"
title = "A small study on an emulated Debian"
question = "Does it run, and leave all as it was?"
blocks = 2

[service]
name = "squid"
cache = "off"

[origin]
name = "nginx"

[load]
name = "http"
loop = "closed"
object = "10 kB"
connections = 4
keep_alive = true
requests = 0
time_limit = "3 s"
warm_up = "1 s"

[limits]
vcpus = 1
memory = "512 MiB"

[[arms]]
platform = "native"
[[arms]]
platform = "docker"
network = ["routed", "published"]
[[arms]]
platform = "lxc"
"""


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the emulated computer reads this machine's files")
def test_a_study_on_debian_as_installed_leaves_the_users_things_as_they_are(host: LocalHost, tmp_path: Path) -> None:
    images = [_image(host, package) for package in ("squid", "nginx")]
    disk_of.ext4(host, images[0], Limits().disk_bytes, print)  # made here: there, it would take minutes
    disk = debian.installed(host)
    given, out = tmp_path / "in", tmp_path / "out"
    given.mkdir()
    out.mkdir()
    (given / "study.toml").write_text(STUDY)
    shutil.copy(_wheel(host), given)
    site = next((CHECKOUT / ".venv/lib").glob("python3*/site-packages"))
    settings = {
        "CHECKOUT": f"/host{CHECKOUT}",
        "SITE": f"/host{site}",
        "IMAGES_FROM": f"/host{images[0].directory.parent}",
        "IMAGES": " ".join(image.directory.name for image in images),
    }
    script = (computer.TESTS / "nested/debian_inside.sh").read_text()
    (given / "run").write_text(f"export {shlex.join(f'{name}={word}' for name, word in settings.items())}\n{script}")
    devices = ["-smp", "2", "-m", "6000M", "-snapshot"]
    devices += ["-drive", f"id=disk,if=none,format=raw,file={disk.disk}", "-device", "virtio-blk-pci,drive=disk"]
    devices += computer.shared("in", given, readonly=True)
    devices += computer.shared("out", out)
    devices += computer.shared("host", Path("/"), readonly=True)
    console = tmp_path / "console.log"
    computer.boot(
        host, disk.vmlinuz, disk.initrd, console, devices, limit_s=LIMIT_S, words="root=/dev/vda", in_turn=True
    )
    told = {file.name: file.read_text(errors="replace") for file in out.iterdir() if file.is_file()}
    print(told.get("log"), told.get("doctor"), told.get("run.log"), sep="\n")
    assert told["status"] == "0\n", console.read_text(errors="replace")[-3000:]
    assert "virtoll run: 0" in told["log"]
    assert changed(told["before"], told["after"]) == []
    assert "the user's own page" in told["after"]
    assert "the user's own container" in told["after"]
    assert "the user's own guest" in told["after"]
    assert told["version"].splitlines()[1:] == ["/opt/virtoll/virtoll/__init__.py"]
    environment = json.loads((out / "run/environment.json").read_text())
    assert environment["comparable"]["machine"]["cgroup_version"] == 2
    assert "processor is emulated" in (out / "run/report/index.html").read_text()
    records = [json.loads(line) for line in (out / "run/trials.jsonl").read_text().splitlines()]
    assert {record["trial"]["arm"]["platform"] for record in records} >= ARMS


def _image(host: LocalHost, package: str) -> Image:
    """Made here: there, it would take an hour."""
    try:
        return rootfs.build(host, package, (package,), print)
    except HostError as error:
        pytest.skip(str(error))


def _wheel(host: LocalHost) -> Path:
    host.run(["make", "--directory", str(CHECKOUT), "wheel"], timeout_s=600)
    return max(CHECKOUT.glob("dist/virtoll-*.whl"), key=lambda file: file.stat().st_mtime)


def changed(before: str, after: str) -> list[str]:
    """The lines that only one of two inventories has, each with its section."""
    first, second = _lines(before), _lines(after)
    return [f"gone: {line}" for line in first if line not in second] + [
        f"new: {line}" for line in second if line not in first
    ]


def _lines(inventory: str) -> dict[str, None]:
    section, lines = "", dict[str, None]()
    for line in inventory.splitlines():
        if line.startswith("== "):
            section = line.removeprefix("== ")
        else:
            lines[f"{section}: {line}"] = None
    return lines
