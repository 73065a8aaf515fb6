"""The Chrome DevTools Protocol over two pipes (Chromium's ``--remote-debugging-pipe``): JSON texts, each ended by NUL.

What comes is a browser's, and what its pages say: bounded in size and time, and read as data only. Of the protocol's
methods (https://chromedevtools.github.io/devtools-protocol/) it takes Target, Runtime and Page.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from virtoll import strict_json
from virtoll.agent.streams import is_ready
from virtoll.errors import TrialError

_MOST_MESSAGE_BYTES, _PIECE_BYTES = 16 * 2**20, 2**16
_MOST_WORDS = 300  # characters, of what a page threw
_CATCH_UP_S = 1.0  # for what has come and nobody waits for: messages that never end must not keep us
_CRASHED, _DETACHED = "Target.targetCrashed", "Target.detachedFromTarget"

# ended: the whole browser; crashed: the page; silent: no answer in time; refused: the browser does not do that;
# threw: what was evaluated threw; unreadable: what came is no message.
Kind = Literal["ended", "crashed", "silent", "refused", "threw", "unreadable"]
GONE: Final[tuple[Kind, ...]] = ("ended", "crashed")


class BrowserError(TrialError):
    """A browser, or a page of it, did not do what it was asked."""

    def __init__(self, kind: Kind, what: str, *, where: str, remedy: str = "") -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.kind: Kind = kind


class Devtools:
    """A browser's protocol. Owns both descriptors: `close` closes them, at which Chromium ends.

    ``where`` names the browser in errors.
    """

    def __init__(self, read_fd: int, write_fd: int, where: str) -> None:
        self._read_fd, self._write_fd, self._where = read_fd, write_fd, where
        self._pending = bytearray()
        self._scanned = 0
        self._last_id = 0
        self._begun: set[int] = set()  # what was asked for and is not waited for, by number
        self._answers: dict[int, dict[str, Any]] = {}  # what came of it
        self._gone: set[str] = set()  # targets and sessions that crashed or were taken away
        self._closed = False
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)

    def ask(
        self, method: str, parameters: Mapping[str, Any], timeout_s: float, *, target: str = "", session: str = ""
    ) -> dict[str, Any]:
        """The result of a method, of ``session`` (the page ``target``'s), or of the browser itself where there is none.

        BrowserError, of whatever kind but threw, where there is no result.
        """
        deadline = time.monotonic() + timeout_s
        number = self._say(method, parameters, deadline, target, session)
        while True:
            heard = self._receive(method, deadline)
            self._note(heard)
            if heard.get("id") == number:
                return self._result(heard, method)
            self._expect_there(method, target, session)

    def begin(
        self, method: str, parameters: Mapping[str, Any], timeout_s: float, *, target: str = "", session: str = ""
    ) -> int:
        """As `ask`, of what may take long and is not waited for: a number by which `answer` knows it. BrowserError
        where the browser does not take it in time.
        """
        number = self._say(method, parameters, time.monotonic() + timeout_s, target, session)
        self._begun.add(number)
        return number

    def answer(self, number: int, method: str, *, target: str = "", session: str = "") -> dict[str, Any] | None:
        """The result of what was begun, once; None: it has not come yet. BrowserError as `ask`."""
        self._catch_up(method)
        if number in self._answers:
            return self._result(self._answers.pop(number), method)
        self._expect_there(method, target, session)
        return None

    def _say(self, method: str, parameters: Mapping[str, Any], deadline: float, target: str, session: str) -> int:
        self._expect_there(method, target, session)
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": dict(parameters)}
        self._send(message | ({"sessionId": session} if session else {}), method, deadline)
        return self._last_id

    def _catch_up(self, method: str) -> None:
        """Note all that has come."""
        deadline = time.monotonic() + _CATCH_UP_S
        while not self._closed and time.monotonic() < deadline:
            if self._has_message(method):
                self._note(self._receive(method, math.inf))
            elif is_ready(self._read_fd, select.POLLIN, 0.0):
                self._fill(method, deadline)
            else:
                return

    def close(self) -> None:
        """End it."""
        if not self._closed:
            self._closed = True
            for fd in (self._read_fd, self._write_fd):
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _expect_there(self, method: str, target: str, session: str) -> None:
        if self._closed:
            raise self._error("ended", f"{method}: the browser was ended")
        if self._gone & {target, session} - {""}:
            raise self._error("crashed", f"{method}: the page has crashed, or was closed")

    def _note(self, heard: Mapping[str, Any]) -> None:
        """Of what is told unasked: which pages are gone; and the answers that are not waited for."""
        told, number = heard.get("params"), heard.get("id")
        if isinstance(number, int) and number in self._begun:
            self._begun.remove(number)
            self._answers[number] = dict(heard)
        if heard.get("method") in (_CRASHED, _DETACHED) and isinstance(told, dict):
            self._gone |= {each for each in (told.get("targetId"), told.get("sessionId")) if isinstance(each, str)}

    def _result(self, heard: Mapping[str, Any], method: str) -> dict[str, Any]:
        error, result = heard.get("error"), heard.get("result")
        if isinstance(error, dict):
            raise self._error("refused", f"{method}: {str(error.get('message'))[:_MOST_WORDS]}")
        if not isinstance(result, dict):
            raise self._error("unreadable", f"{method}: its answer has no result")
        return result

    def _send(self, message: Mapping[str, Any], method: str, deadline: float) -> None:
        rest = memoryview(json.dumps(message).encode() + b"\0")
        while rest:
            if not is_ready(self._write_fd, select.POLLOUT, deadline - time.monotonic()):
                raise self._error("silent", f"{method}: the browser takes no message in time")
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._error("ended", f"{method}: the browser has ended ({error.strerror})") from error

    def _receive(self, method: str, deadline: float) -> dict[str, Any]:
        """The next message, an answer or not."""
        while not self._has_message(method):
            self._fill(method, deadline)
        if time.monotonic() > deadline:  # messages that never end must not keep us from the time's being over
            raise self._error("silent", f"{method}: no answer in time")
        end = self._pending.find(b"\0", self._scanned)
        text = bytes(self._pending[:end])
        del self._pending[: end + 1]
        self._scanned = 0
        return self._read(text, method)

    def _has_message(self, method: str) -> bool:
        """Whether all of a message has come. BrowserError where one is too long."""
        if self._pending.find(b"\0", self._scanned) >= 0:
            return True
        self._scanned = len(self._pending)
        if self._scanned > _MOST_MESSAGE_BYTES:
            self.close()  # where the next message would begin is not known
            raise self._error("unreadable", f"{method}: a message goes on after {_MOST_MESSAGE_BYTES} bytes")
        return False

    def _fill(self, method: str, deadline: float) -> None:
        if not is_ready(self._read_fd, select.POLLIN, deadline - time.monotonic()):
            raise self._error("silent", f"{method}: no answer in time")
        try:
            piece = os.read(self._read_fd, _PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            raise self._error("ended", f"{method}: the browser has ended")
        self._pending += piece

    def _read(self, text: bytes, method: str) -> dict[str, Any]:
        try:
            heard = strict_json.loads(text)
        except ValueError as error:
            raise self._error("unreadable", f"{method}: what the browser says is no JSON: {error}") from error
        if not isinstance(heard, dict):
            raise self._error("unreadable", f"{method}: what the browser says is no object: {str(heard)[:80]}")
        return heard

    def _error(self, kind: Kind, what: str) -> BrowserError:
        return BrowserError(kind, what, where=self._where, remedy="load.txt, in the trial, has its own words")


class Page:
    """A page of a browser. What it is asked for has a deadline, and fails at once when the page has crashed."""

    def __init__(self, devtools: Devtools, target: str, session: str) -> None:
        self._devtools, self._target, self._session = devtools, target, session
        self._sent: tuple[int, str] | None = None  # by which number it was sent to an address, and which

    def evaluate(self, expression: str, timeout_s: float) -> Any:
        """The JSON value of a JavaScript expression; of a promise, what it brings. None where it is undefined.

        BrowserError; of kind threw where the expression throws, or its promise is rejected.
        """
        parameters = {"expression": expression, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        told = self.ask("Runtime.evaluate", parameters, timeout_s)
        if "exceptionDetails" in told:
            raise BrowserError("threw", f"the page threw {_thrown(told)}", where="a browser's page")
        result = told.get("result")
        return result.get("value") if isinstance(result, dict) else None

    def wait_for(self, expression: str, timeout_s: float, every_s: float = 0.1) -> Any:
        """The first true value of an expression that is asked for again and again, also while the page is exchanged for
        another. BrowserError of kind silent where none comes in time.
        """
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                if value := self.evaluate(expression, left_s):
                    return value
            except BrowserError as error:
                if error.kind not in ("refused", "threw"):
                    raise
            time.sleep(min(every_s, max(0.0, deadline - time.monotonic())))
        raise BrowserError(
            "silent", f"in {timeout_s:g} s it was never true: {expression[:80]}", where="a browser's page"
        )

    def go(self, url: str, timeout_s: float) -> None:
        """Open an address; its document has begun when this returns. BrowserError of kind refused where it cannot."""
        _expect_opened(self.ask("Page.navigate", {"url": url}, timeout_s), url)

    def send(self, url: str, timeout_s: float) -> None:
        """As `go`, but wait for the browser alone, and not for the address's server."""
        asked = {"target": self._target, "session": self._session}
        self._sent = self._devtools.begin("Page.navigate", {"url": url}, timeout_s, **asked), url

    def has_arrived(self) -> bool:
        """Whether the document has begun of an address that it was sent to, as far as is known without waiting.
        BrowserError as `go`.
        """
        if self._sent is None:
            return True
        number, url = self._sent
        told = self._devtools.answer(number, "Page.navigate", target=self._target, session=self._session)
        if told is None:
            return False
        self._sent = None
        _expect_opened(told, url)
        return True

    def ask(self, method: str, parameters: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The result of any method of the page's (Page, Runtime, Emulation ...); BrowserError as `Devtools.ask`."""
        return self._devtools.ask(method, parameters, timeout_s, target=self._target, session=self._session)

    def close(self, timeout_s: float = 10.0) -> None:
        """Take it away, if it is there still."""
        with contextlib.suppress(BrowserError):
            self._devtools.ask("Target.closeTarget", {"targetId": self._target}, timeout_s)


def opened(devtools: Devtools, url: str, timeout_s: float) -> Page:
    """A new page that shows ``url``, in a window of its own. BrowserError where it does not: then it is taken away."""
    return _made(devtools, {}, timeout_s, lambda page, left_s: None if url == "about:blank" else page.go(url, left_s))


def sent(devtools: Devtools, url: str, timeout_s: float) -> Page:
    """A new page of a user of its own, with cookies and connections that no other has, on its way to ``url``:
    `Page.has_arrived` tells when it is there. BrowserError where the browser does not make it in time.
    """
    own = devtools.ask("Target.createBrowserContext", {}, timeout_s)
    own = {"browserContextId": str(own.get("browserContextId"))}
    return _made(devtools, own, timeout_s, lambda page, left_s: page.send(url, left_s))


def _made(devtools: Devtools, own: Mapping[str, str], timeout_s: float, then: Callable[[Page, float], None]) -> Page:
    deadline = time.monotonic() + timeout_s
    told = devtools.ask("Target.createTarget", {"url": "about:blank", "newWindow": True, **own}, timeout_s)
    target = str(told.get("targetId"))
    left_s = max(0.0, deadline - time.monotonic())
    page = Page(devtools, target, "")
    try:
        told = devtools.ask("Target.attachToTarget", {"targetId": target, "flatten": True}, left_s, target=target)
        page = Page(devtools, target, str(told.get("sessionId")))
        then(page, max(0.0, deadline - time.monotonic()))
    except BrowserError:
        page.close(max(0.0, deadline - time.monotonic()))
        raise
    return page


def _expect_opened(told: Mapping[str, Any], url: str) -> None:
    """BrowserError where what became of `Page.navigate` is an error."""
    if told.get("errorText"):
        what = f"{url[:200]} cannot be opened: {str(told['errorText'])[:_MOST_WORDS]}"
        raise BrowserError("refused", what, where="a browser's page")


def _thrown(told: Mapping[str, Any]) -> str:
    """What was thrown, in its own words, cut."""
    details = told["exceptionDetails"] if isinstance(told["exceptionDetails"], dict) else {}
    thrown = details.get("exception")
    words = thrown.get("description") or thrown.get("value") if isinstance(thrown, dict) else None
    return str(words or details.get("text"))[:_MOST_WORDS]
