"""Users at a server of the user's own: this machine's own Chromium, where nothing is deployed and no image is built.

It runs as nobody, with Chromium's own sandbox: it shows pages of a server that is in use. Its profile (with the
addresses that it was at) is in memory, in a mount namespace of its own, and gone with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from virtoll.errors import Problem
from virtoll.hosts.processes import processes
from virtoll.images.config import DEFAULT_PATH
from virtoll.lab.client import SAID, Client
from virtoll.loads import browser
from virtoll.loads.cdp import Page

_NOBODY = "65534"
_ANSWER_S = 30.0
_OWN_TMP = 'mount -t tmpfs -o mode=1777 tmpfs /tmp && exec "$@"'


class Users(Protocol):
    """A browser that users join with, a page each."""

    @property
    def version(self) -> str:
        """Name and version: "Chrome/156.0.8078.79"."""
        ...

    def send(self, url: str, timeout_s: float) -> Page:
        """A new page of another user, on its way to an address (`Page.has_arrived`): no server that is slow to answer
        one keeps the next from asking. BrowserError where the browser does not make it in time.
        """
        ...

    def cpu_ns(self) -> int:
        """CPU time that it has used so far."""
        ...

    def expect_there(self) -> None:
        """BrowserError where it has ended, or does not answer; else it is known which of its pages crashed."""
        ...


@dataclass(frozen=True)
class Chromium:
    """This machine's Chromium."""

    running: browser.Browser

    @property
    def version(self) -> str:
        """See `Users`."""
        return self.running.version

    def send(self, url: str, timeout_s: float) -> Page:
        """See `Users`."""
        return self.running.send(url, timeout_s)

    def cpu_ns(self) -> int:
        """Of all its processes, with those that ended."""
        return sum(process.cpu_ns for process in processes() if process.session == self.running.pid)

    def expect_there(self) -> None:
        """See `Users`."""
        self.running.devtools.ask("Browser.getVersion", {}, _ANSWER_S)


def problems() -> list[Problem]:
    """What is missing on this machine."""
    if Path(browser.PROGRAM).exists():
        return []
    return [
        Problem(
            "Chromium is not installed here, and users of a server of yours are this machine's own",
            browser.PROGRAM,
            "apt install chromium",
        )
    ]


@contextmanager
def chromium(client: Client) -> Iterator[Users]:
    """A Chromium with a made-up camera and microphone. BrowserError where it does not start."""
    command = [word for word in browser.command("/tmp/chromium", browser.MEDIA) if word != "--no-sandbox"]
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _OWN_TMP, "sh"]
    nobody = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    environment = ["env", "-i", f"PATH={DEFAULT_PATH}", "HOME=/tmp", "LC_ALL=C.UTF-8"]
    argv = [*alone, *nobody, *environment, *command]
    with browser.browsing(client.host, argv, client.directory / SAID, confinement=client.confinement) as running:
        yield Chromium(running)
