"""Headless Chromium where the generator stands: what a load drives that needs a user's own browser.

It is Debian's, in the root filesystem of the load's programs (`PACKAGES` go into `Load.programs`), and runs on the
generator's CPUs in their control group, as nobody. It is asked by two pipes (`virtoll.loads.cdp`): no port is open.

    with chromium(client, flags=MEDIA) as browser:
        page = browser.open("https://...", timeout_s=30)
        page.wait_for("document.querySelector('video') !== null", timeout_s=30)
        told = page.evaluate("navigator.userAgent", timeout_s=5)
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from virtoll.errors import AgentError
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.local import end_session
from virtoll.images.config import DEFAULT_PATH
from virtoll.lab.client import SAID, Client
from virtoll.loads.cdp import BrowserError, Devtools, Page, opened, sent
from virtoll.platforms.logs import bounded, ending

# Fonts (DejaVu) come with it, by fontconfig.
PACKAGES: Final = ("chromium",)
# Not Debian's /usr/bin/chromium: that is a script with settings for desktops, and asks programs that are not there.
PROGRAM: Final = "/usr/lib/chromium/chromium"
# A camera and a microphone that are none (a picture that moves, and beeps), allowed unasked.
MEDIA: Final = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")

_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # its own needs root, or namespaces of its own: it is nobody, in a root filesystem of its own
    "--disable-gpu",
    "--window-size=1280,720",
    "--mute-audio",
    "--autoplay-policy=no-user-gesture-required",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-sync",
    # Every page is watched, though no window is in front.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    # Peers are told its address, not a name that is to be looked up by multicast DNS.
    "--disable-features=WebRtcHideLocalIpsWithMdns,PreloadTopChromeWebUI",
)
_NOBODY = 65534
_START_S, _OPEN_S = 60.0, 30.0
# It reads from descriptor 3 and writes to 4.
_PIPES = 'exec "$@" 3<&0 4>&1 </dev/null >&2'
_TOLD_LINES = 8
_profiles = count()


@dataclass(frozen=True)
class Browser:
    """A Chromium that runs."""

    devtools: Devtools
    version: str  # "Chrome/156.0.8078.79"
    pid: int  # of its first process, whose session all of them are in

    def open(self, url: str = "about:blank", timeout_s: float = _OPEN_S) -> Page:
        """A new page at an address, in a window of its own. BrowserError where it cannot be opened in time."""
        return opened(self.devtools, url, timeout_s)

    def send(self, url: str, timeout_s: float) -> Page:
        """A new page of a user of its own, on its way to an address. BrowserError as `open`."""
        return sent(self.devtools, url, timeout_s)


def command(profile: str, flags: Sequence[str] = ()) -> list[str]:
    """Chromium's command line, with a directory for its profile."""
    return [PROGRAM, *_FLAGS, f"--user-data-dir={profile}", *flags]


@contextmanager
def chromium(client: Client, *, flags: Sequence[str] = (), start_s: float = _START_S) -> Iterator[Browser]:
    """A Chromium of the load's own root filesystem, with a profile of its own; ended with the block.

    BrowserError where it does not start, or does not answer within ``start_s``.
    """
    programs = client.programs
    assert programs is not None, "Load.programs names browser.PACKAGES"
    profile = f"/tmp/chromium-{next(_profiles)}"
    environment = ["env", "-i", f"PATH={DEFAULT_PATH}", "HOME=/tmp", "LC_ALL=C.UTF-8"]
    inside = ["setpriv", "--no-new-privs", "chroot", f"--userspec={_NOBODY}:{_NOBODY}", "--groups=", str(programs.root)]
    argv = [*inside, *environment, *command(profile, flags)]
    log = client.directory / SAID
    try:
        with browsing(client.host, argv, log, confinement=programs.confinement, start_s=start_s) as browser:
            yield browser
    finally:
        with suppress(AgentError):
            programs.agent.run(["rm", "-rf", "--", profile])


@contextmanager
def browsing(
    host: Host, argv: Sequence[str], log: Path, *, confinement: Confinement | None = None, start_s: float = _START_S
) -> Iterator[Browser]:
    """A browser by its command line, with DevTools at descriptors 3 and 4; what it says goes to ``log``, bounded."""
    has_started = False
    try:
        with bounded(log) as said:
            pipe = subprocess.PIPE
            command = ["sh", "-c", _PIPES, "sh", *argv]
            process = host.spawn(command, stdin=pipe, stdout=pipe, stderr=said, confinement=confinement)
            try:
                devtools = _devtools(process, f"chromium on {host.where}")
                try:
                    version = _version(devtools, start_s)
                    has_started = True
                    yield Browser(devtools, version, process.pid)
                finally:
                    devtools.close()
            finally:
                end_session(process)
    except BrowserError as error:
        if has_started:
            raise
        raise _not_started(error, ending(log)) from error  # its log is whole by now


def _devtools(process: subprocess.Popen[bytes], where: str) -> Devtools:
    """What is asked over the process's stdio, whose descriptors become the protocol's own."""
    assert process.stdin is not None
    assert process.stdout is not None
    read_fd, write_fd = (os.dup(pipe.fileno()) for pipe in (process.stdout, process.stdin))
    process.stdin.close()
    process.stdout.close()
    return Devtools(read_fd, write_fd, where)


def _version(devtools: Devtools, start_s: float) -> str:
    told = devtools.ask("Browser.getVersion", {}, start_s)
    devtools.ask("Target.setDiscoverTargets", {"discover": True}, start_s)  # then it tells which page crashed
    return str(told.get("product"))[:100]


def _not_started(error: BrowserError, log: str) -> BrowserError:
    said = "\n".join(log.splitlines()[-_TOLD_LINES:])
    what = f"it did not start: {error.problem.what}\n{said}"
    return BrowserError(error.kind, what, where=error.problem.where, remedy=error.problem.remedy)
