"""A double of Xen's toolstack for the tests: `xl`, `xenstore-read` and `ip`, as their manual pages and sources have it.

Domains are directories below XEN_DOUBLE. `xl create -F` makes a pseudo-terminal, as xenconsoled does, starts a process
with the real agent behind it as the "domain", and stays until that has ended; then the domain is there still (its
configuration preserves it), and only `xl destroy` removes it. What a guest's kernel alone can do (its network, its
limit of processes, what it says of its type) the double answers in the agent's place.

As a program: xen_double.py xl|xenstore-read|ip ARGUMENTS, and xen_double.py deploy DIRECTORY, which a test kills.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures" / "xen"
INVALID = "{} is an invalid domain identifier (rc=-6)"  # xl_utils.c, find_domain
KERNEL_SAYS = b"[    0.5] a kernel's message\r\n"
_PATIENCE_S = 900.0  # against one that nobody ends
_TERMINAL_BYTES = 4095


def install(directory: Path) -> dict[str, str]:
    """Put the programs into ``directory``/bin, and give the environment in which they are found."""
    programs, store = directory / "bin", directory / "store"
    programs.mkdir()
    store.mkdir()
    for name in ("xl", "xenstore-read", "xenstore-write", "ip"):
        command = shlex.join([sys.executable, str(Path(__file__)), name])
        (programs / name).write_text(f'#!/bin/sh\nXEN_DOUBLE={shlex.quote(str(store))} exec {command} "$@"\n')
        (programs / name).chmod(0o755)
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


@dataclass(frozen=True)
class Store:
    """The directory of a toolstack's domains."""

    path: Path

    def domains(self) -> dict[int, Path]:
        return {int(entry.name): entry for entry in self.path.iterdir() if entry.name.isdigit()}

    def find(self, name_or_id: str) -> Path | None:
        for number, domain in sorted(self.domains().items()):
            if name_or_id in (str(number), (domain / "name").read_text()):
                return domain
        return None

    def is_alive(self, domain: Path) -> bool:
        return _runs((domain / "pid").read_text()) and not (domain / "dead").exists()

    def log(self, *words: str) -> None:
        with (self.path / "commands").open("a") as commands:
            commands.write(json.dumps(words) + "\n")

    def commands(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.path / "commands").read_text().splitlines()]


def settings(text: str) -> dict[str, Any]:
    """A configuration's settings: ``name = value``, a string, a number or a list of strings each, one a line."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): json.loads(value) for name, _, value in pairs if value}


# -- the programs ---------------------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    program, *words = argv
    if program == "deploy":
        return _deploy_until_killed(Path(words[0]))
    store = Store(Path(os.environ["XEN_DOUBLE"]))
    store.log(program, *words)
    if program == "xl" and (store.path / "no-context").exists():  # xl.c, main
        return _complain("xc: error: Could not obtain handle on privileged command interface\ncannot init xl context")
    if program == "xenstore-read":
        return _xenstore_read(store, words[0])
    if program == "xl":
        verbs = {"create": _create, "domid": _domid, "destroy": _destroy, "list": _list, "info": _info}
        return {**verbs, "vcpu-list": _vcpu_list}[words[0]](store, words[1:])
    if program == "ip" and "-batch" in words:
        store.log("ip-batch", sys.stdin.read())
    return 0


def _complain(text: str, code: int = 1) -> int:
    print(text, file=sys.stderr)
    return code


def _xenstore_read(store: Store, path: str) -> int:
    found = re.fullmatch(r"/local/domain/(\d+)/console/tty", path)
    domain = store.domains().get(int(found[1])) if found else None
    if domain is None or not (domain / "tty").exists():
        return _complain(f"xenstore-read: couldn't read path {path}")
    print((domain / "tty").read_text())
    return 0


def _domid(store: Store, words: list[str]) -> int:
    domain = store.find(words[0])
    if domain is None:
        return _complain(f"Can't get domid of domain name '{words[0]}', maybe this domain does not exist.")
    print(domain.name)
    return 0


def _list(store: Store, words: list[str]) -> int:
    if words and store.find(words[0]) is None:
        return _complain(INVALID.format(words[0]))
    print("Name                                        ID   Mem VCPUs\tState\tTime(s)")
    for number, domain in sorted(store.domains().items()):
        state = "-b----" if store.is_alive(domain) else "---s--"
        print(f"{(domain / 'name').read_text():<40} {number:>5} {256:>5} {1:>5}     {state} {1.0:>8.1f}")
    return 0


def _destroy(store: Store, words: list[str]) -> int:
    domain = store.find(words[0])
    if domain is None:
        return _complain(INVALID.format(words[0]))
    if (store.path / "cannot-destroy").exists():
        return _complain("libxl: error: libxl_domain.c:1064:domain_destroy_cb: Domain 1:Destruction of domain failed")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(int((domain / "pid").read_text()), signal.SIGKILL)
    while _runs((domain / "pid").read_text()):
        time.sleep(0.005)
    domain.rename(store.path / f"gone-{domain.name}")  # at one instant
    return 0


def _runs(pid: str) -> bool:
    """Whether a process is there and no zombie: who waits for it may be dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _info(_store: Store, _words: list[str]) -> int:
    print((FIXTURES / "info").read_text(), end="")
    return 0


def _vcpu_list(_store: Store, _words: list[str]) -> int:
    print((FIXTURES / "vcpu-list").read_text(), end="")
    return 0


def _create(store: Store, words: list[str]) -> int:
    assert words[0] == "-F", words
    file = Path(words[1])
    print(f"Parsing config from {file}", flush=True)
    if (store.path / "cannot-create").exists():
        return _complain("libxl: error: libxl_mem.c: failed to free memory for the domain")
    wanted = settings(file.read_text())
    if store.find(wanted["name"]) is not None:
        return _complain(f'libxl: error: libxl__domain_rename: Domain with name "{wanted["name"]}" exists')
    for name in ("kernel", "ramdisk"):
        if not Path(wanted[name]).exists():
            return _complain(f"libxl: error: libxl_dom.c: {name} {wanted[name]}: No such file or directory")
    number = max([*store.domains(), *(int(gone.name[5:]) for gone in store.path.glob("gone-*")), 0]) + 1
    process = subprocess.Popen(  # in a session of its own: the domain outlives xl
        [sys.executable, __file__, "xl-domain", str(store.path), str(number), str(file)], start_new_session=True
    )
    _complain(f"Waiting for domain {wanted['name']} (domid {number}) to die [pid {os.getpid()}]")
    while process.poll() is None and not (store.path / str(number) / "dead").exists():
        time.sleep(0.005)
    print(f"Domain {number} has shut down, reason code 3 0x3\nDone. Exiting now", file=sys.stderr)
    return 0


# -- a domain: a terminal, and an agent behind it ---------------------------------------------------------------


def run_domain(store: Store, number: int, file: Path) -> int:
    """What xenconsoled and a guest do together: bytes pass between the terminal and the agent."""
    from virtoll.binaries import binary

    wanted = settings(file.read_text())
    master, slave = os.openpty()
    tty.setraw(slave, termios.TCSANOW)  # as xenconsoled does
    made = store.path / f"new-{number}"
    made.mkdir()
    for name, text in (("name", wanted["name"]), ("pid", str(os.getpid())), ("tty", os.ttyname(slave))):
        (made / name).write_text(text)
    made.rename(store.path / str(number))
    mode = (store.path / "guest").read_text() if (store.path / "guest").exists() else ""
    os.write(master, KERNEL_SAYS)
    if mode == "panics":
        os.write(master, b"[    1.0] Kernel panic - not syncing: no working init found\r\n")
        (store.path / str(number) / "dead").touch()
        time.sleep(_PATIENCE_S)  # its console stays until it is destroyed
        return 1
    agent = subprocess.Popen([str(binary("virtoll-agent")), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin is not None
    assert agent.stdout is not None
    threading.Thread(target=_pass_on, args=(agent.stdout.fileno(), master), daemon=True).start()
    pending = b""
    while True:
        pending += os.read(master, 80)  # as much as xenconsoled passes on at a time
        *lines, pending = pending.split(b"\n")
        pending = pending[:_TERMINAL_BYTES]  # a guest's terminal loses the rest
        for line in lines:
            answer = _guests_answer(line, wanted["type"], mode)
            if answer is None:
                agent.stdin.write(line + b"\n")
                agent.stdin.flush()
            else:
                os.write(master, answer)


def _pass_on(source: int, sink: int) -> None:
    while data := os.read(source, 65536):
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(sink, rest) :]


def _guests_answer(line: bytes, kind: str, mode: str) -> bytes | None:
    """What a guest's kernel would do, in the agent's words; None for what the agent itself can."""
    try:
        asked = json.loads(line)
    except ValueError:
        return None
    answer: dict[str, Any]
    if asked["op"].get("get", {}).get("path") == "/sys/hypervisor/guest_type":
        told = "HVM" if mode == "other type" else kind.upper()
        data = base64.b64encode(f"{told}\n".encode()).decode()
        answer = {"data": data, "end": True}
    elif "configure" in asked["op"]:
        answer = {}
    else:
        return None
    return json.dumps({"id": asked["id"], "ok": answer}, separators=(",", ":")).encode() + b"\n"


# -- the driver on the double -------------------------------------------------------------------------------------


@dataclass
class GroupDouble:
    """A control group that holds nobody: the machine's own are left alone."""

    name: str
    procs: tuple[Path, ...] = ()
    added: list[int] = field(default_factory=list)
    log: Callable[..., None] = lambda *_words: None

    def go_first(self) -> None:
        self.log("first", self.name)

    def add_living(self, pids: Iterable[int]) -> list[int]:
        self.added += pids
        return self.added


class XenstatDouble:
    """libxenstat: the CPU time of a domain's process, and a memory of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.open = 0

    def xenstat_init(self) -> int:
        self.open += 1
        return 1

    def xenstat_uninit(self, _handle: int) -> None:
        self.open -= 1

    def xenstat_get_node(self, _handle: int, _flags: int) -> int:
        self.open += 1
        return 2

    def xenstat_free_node(self, _node: int) -> None:
        self.open -= 1

    def xenstat_node_domain(self, _node: int, domain: int) -> int | None:
        return domain if domain in self._store.domains() else None

    def xenstat_domain_cpu_ns(self, domain: int) -> int:
        pid = (self._store.domains()[domain] / "pid").read_text()
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) * (10**9 // os.sysconf("SC_CLK_TCK"))

    def xenstat_domain_cur_mem(self, _domain: int) -> int:
        return 256 * 1024**2


@contextmanager
def without_a_lab(patch: Any, directory: Path) -> Iterator[Store]:
    """Let the driver run on the double: no control groups, no kernel's threads, no disk of a real image's."""
    from virtoll.hosts.local import end_session
    from virtoll.images import disk, kernel
    from virtoll.platforms import xen_dom0, xenstat

    for name, value in install(directory).items():
        patch.setenv(name, value)
    store = Store(directory / "store")

    @contextmanager
    def owned(_ledger: Any, name: str, **_limits: Any) -> Iterator[GroupDouble]:
        store.log("cgroup", name)
        yield GroupDouble(name, log=store.log)

    files = {name: directory / name for name in ("vmlinuz", "initramfs", "disk.ext4")}
    for path in files.values():
        path.write_bytes(b"x")
    patch.setattr(xen_dom0, "owned", owned)
    patch.setattr(xen_dom0, "end", lambda _group, process: end_session(process))
    patch.setattr(xen_dom0, "backend_threads", lambda _proc, n: {70: f"{n}.xvda-0", 71: f"vif{n}.0-q0-dealloc"})
    patch.setattr(xenstat, "library", lambda: XenstatDouble(store))
    patch.setattr(disk, "ext4", lambda *_: files["disk.ext4"])
    known = kernel.Kernel(files["vmlinuz"], files["initramfs"], "6.1.0", "0" * 64)
    for name in ("guest_kernel", "kept_kernel"):
        patch.setattr(kernel, name, lambda *_: known)
    try:
        yield store
    finally:
        for number in store.domains():
            _destroy(store, [str(number)])


@contextmanager
def deployed(directory: Path, platform: Any, limits: Any, kind: Any = "vif") -> Iterator[Any]:
    """An instance on the double, with a ledger of its own in ``directory``."""
    from virtoll.hosts.ledger import opened
    from virtoll.hosts.local import LocalHost
    from virtoll.images.base import Image
    from virtoll.lab.base import Lab, Site
    from virtoll.networks.base import Attachment

    host = LocalHost()
    with opened(host, directory / "ledger", "double") as ledger:
        sites = [Site(host, f"vt-abcd-{name}", "198.18.1.1", frozenset({cpu})) for name, cpu in (("g", 0), ("s", 1))]
        lab = Lab(ledger, "abcd", sites[0], sites[1], sites[0], "virtoll/abcd", directory)
        attachment = Attachment(
            *("routed", kind, sites[1].netns, "198.18.3.10", ()), "vt0", "02:76:74:00:03:10", "198.18.3.10", 32,
            "198.18.3.1", on_link_gateway=True, wiring=("link set vt0 up",),
        )  # fmt: skip
        place = directory / "instance"
        place.mkdir()
        with platform.deploy(lab, Image("x", "0" * 64, directory), limits, attachment, place) as instance:
            yield instance


def _deploy_until_killed(directory: Path) -> int:
    """Deploy, say so, and wait to be killed."""
    import pytest

    from patience import wait_for_boots
    from virtoll.platforms.xen import XenPv
    from virtoll.study.limits import Limits

    wait_for_boots()
    with (
        pytest.MonkeyPatch.context() as patch,
        without_a_lab(patch, directory),
        deployed(directory, XenPv(), Limits(vcpus=1)),
    ):
        print("deployed", flush=True)
        time.sleep(_PATIENCE_S)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "xl-domain":
        sys.exit(run_domain(Store(Path(sys.argv[2])), int(sys.argv[3]), Path(sys.argv[4])))
    sys.exit(main(sys.argv[1:]))
