"""What the doubles of Firecracker and Cloud Hypervisor share: an API on a Unix socket, a guest, and a lab without one.

The doubles (`firecracker_double`, `cloud_hypervisor_double`) are programs that behave as documented. Each request is
held against its schema (`vmm_schemas`; a field that is not there is refused by both, by Cloud Hypervisor's too, which
is stricter than the real one) and against the order in which it may come. Kernel, initramfs, disk and tap have to be
there; a tap is a file below the store's `taps`, and has one holder. Behind the guest's console is the real agent; what
a guest's kernel alone can do is answered in its place, as `xen_double` does.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shlex
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from vmm_schemas import RefusalError
from xen_double import _TERMINAL_BYTES, GroupDouble, _guests_answer

KERNEL_SAYS = b"[    0.5] a kernel's message\r\n"
PANIC = b"[    9.0] sysrq: Trigger a crash\r\n[    9.1] Kernel panic - not syncing: sysrq triggered crash\r\n"
BOOTED = b"virtoll: the guest has booted\r\n"
TAP = "vt0"
_PR_SET_NAME = 15


class Monitor:
    """What it was told, and the files that it holds."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.lock = threading.Lock()
        self.held: list[int] = []

    def mode(self) -> str:
        """What the test wants the guest to do."""
        path = self.store / "guest"
        return path.read_text() if path.exists() else ""

    def take_tap(self, name: str, refusal: str) -> None:
        """A tap has one holder (TUNSETIFF of one queue)."""
        try:
            fd = os.open(self.store / "taps" / name, os.O_RDWR)
        except OSError as error:
            raise RefusalError(400, f"{refusal}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise RefusalError(400, f"{refusal}: Resource busy (os error 16)") from error
        self.held.append(fd)

    def answer(self, method: str, target: str, body: Any) -> Any:
        """The answer's body; None for no content."""
        raise NotImplementedError

    def refusal(self, what: str) -> Any:
        """The body of one."""
        raise NotImplementedError


def serve(monitor: Monitor, path: str, thread: str) -> None:
    """The API at a socket, until the process ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            name(thread)
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                body = json.loads(data) if data else None
                with monitor.lock:
                    log(monitor.store, self.command, self.path, body)
                    told, status = monitor.answer(self.command, self.path, body), 200
            except ValueError:
                told, status = monitor.refusal("the body is no JSON"), 400
            except RefusalError as error:
                told, status = monitor.refusal(str(error)), error.status
            text = b"" if told is None else json.dumps(told).encode()
            self.send_response_only(204 if told is None else status)
            if text:
                self.send_header("Content-Length", str(len(text)))
                self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = _answer  # noqa: N815

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    Server(path, Handler).serve_forever()


def name(thread: str) -> None:
    """What the kernel calls the thread that asks."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, thread.encode()[:15], 0, 0, 0)


def vcpu(thread: str) -> None:
    """A thread of a vCPU, which waits for interrupts."""

    def run() -> None:
        name(thread)
        named.set()
        threading.Event().wait()

    named = threading.Event()
    threading.Thread(target=run, daemon=True).start()
    named.wait()


def log(store: Path, *words: Any) -> None:
    """Keep what was asked."""
    with (store / "log").open("a") as lines:
        lines.write(json.dumps(words) + "\n")


def told(store: Path) -> list[list[Any]]:
    """What was asked."""
    return [json.loads(line) for line in (store / "log").read_text().splitlines()]


def kernel_file(path: str, *magic: bytes) -> None:
    """RefusalError where a file does not begin as one of these."""
    try:
        head = Path(path).read_bytes()[:8]
    except OSError as error:
        raise RefusalError(400, f"{path}: {error.strerror}") from error
    if not head.startswith(magic):
        raise RefusalError(400, f"{path}: Invalid magic number")


def guest(read_fd: int, say: Callable[[bytes], None], reset: Callable[[], None]) -> None:
    """The agent behind a line, until the guest resets; then what the monitor does about it."""
    from virtoll.binaries import binary

    agent = subprocess.Popen([str(binary("virtoll-agent")), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin is not None
    assert agent.stdout is not None
    answers = agent.stdout.fileno()

    def pass_on() -> None:
        while data := os.read(answers, 65536):
            say(data)

    threading.Thread(target=pass_on, daemon=True).start()
    pending = b""
    while data := read(read_fd):
        *lines, pending = (pending + data).split(b"\n")
        pending = pending[:_TERMINAL_BYTES]  # a guest's terminal loses the rest
        for line in lines:
            answer = _guests_answer(line, "", "")
            if b"sysrq-trigger" in line:
                agent.kill()
                reset()
                return
            if answer is None:
                agent.stdin.write(line + b"\n")
                agent.stdin.flush()
            else:
                say(answer)
    threading.Event().wait()  # nobody asks any more; a guest does not end by that


def read(fd: int) -> bytes:
    """What comes in; a terminal whose other end was not opened yet, or is closed, says that it is broken."""
    while True:
        try:
            return os.read(fd, 64)  # as much as a serial line's queue holds
        except OSError:
            time.sleep(0.005)


def complain(text: str, code: int = 1) -> int:
    print(text, file=sys.stderr)
    return code


# -- the drivers on the doubles ---------------------------------------------------------------------------------


def install(directory: Path) -> Path:
    """Put the programs into ``directory``/bin, and the lab's tap into the store; the store."""
    programs, store = directory / "bin", directory / "store"
    (store / "taps").mkdir(parents=True)
    (store / "taps" / TAP).touch()
    programs.mkdir()
    for program in ("firecracker", "cloud-hypervisor"):
        double = Path(__file__).with_name(f"{program.replace('-', '_')}_double.py")
        command = shlex.join([sys.executable, str(double), str(store)])
        (programs / program).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (programs / "nsenter").write_text(
        '#!/bin/sh\nshift; [ "$1" = -- ] && shift; exec "$@"\n'
    )  # the lab's are not there
    for path in programs.iterdir():
        path.chmod(0o755)
    return store


@contextmanager
def without_a_lab(patch: Any, directory: Path) -> Iterator[Path]:
    """Let the drivers run on the doubles: no control groups, no namespaces, no disk of a real image's. The store."""
    from virtoll.hosts.local import end_session
    from virtoll.images import disk, kernel
    from virtoll.platforms import vm

    store = install(directory)
    patch.setenv("PATH", f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}")

    @contextmanager
    def owned(_ledger: Any, name: str, **limits: Any) -> Iterator[GroupDouble]:
        plain = {key: sorted(value) if isinstance(value, frozenset) else value for key, value in limits.items()}
        log(store, "cgroup", name, plain)
        yield GroupDouble(name, log=partial(log, store))

    files = {"vmlinux": b"\x7fELF\x02\x01", "initramfs": b"070701", "disk.ext4": b"x"}
    for name, data in files.items():
        (directory / name).write_bytes(data)
    patch.setattr(vm, "owned", owned)
    patch.setattr(vm, "end", lambda _group, process: end_session(process))
    patch.setattr(disk, "ext4", lambda *_: directory / "disk.ext4")
    known = kernel.Kernel(directory / "vmlinux", directory / "initramfs", "6.1.0", "0" * 64)
    for name in ("guest_kernel", "kept_kernel"):
        patch.setattr(kernel, name, lambda *_: known)
    yield store
