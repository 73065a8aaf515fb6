"""What tests of BigBlueButton's users share: its secret, a client of its API, a browser's double, and what must be read
nowhere.
"""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bbb_server import SECRET, BbbServer
from virtoll.catalogue import catalogue
from virtoll.loads.bbb_api import SECRET_FILE, Api, Secret
from virtoll.loads.cdp import BrowserError, Kind, Page
from virtoll.offers import BigBlueButton
from virtoll.study.file import read_study
from virtoll.study.model import Study


def secret_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the environment names."""
    path = directory / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    monkeypatch.setenv(SECRET_FILE, str(path))
    return path


def study_of(more: str = "") -> Study:
    text = f'name = "mine"\nquestion = "?"\n[service]\nname = "bigbluebutton"\n[load]\nname = "bigbluebutton"\n{more}\n'
    return read_study(f'{text}[[arms]]\nplatform = "native"\n', "mine.toml", catalogue())


def api_of(server: BbbServer, **more: Any) -> Api:
    offer = BigBlueButton("127.0.0.1", server.port, host="127.0.0.1", is_tls=False)
    return Api(offer, "/bigbluebutton/", Secret(more.pop("text", SECRET)), **more)


def expect_hidden(text: str, server: BbbServer) -> None:
    """Neither the secret nor any checksum, password or session token that was ever used stands in a text."""
    opens = {SECRET}
    for target in server.targets:
        values = parse_qs(urlsplit(target).query)
        opens |= {each for name in ("checksum", "password", "sessionToken") for each in values.get(name, [])}
    for each in opens:
        assert each not in text
    assert "checksum=" not in text.replace("checksum=...", "")


@dataclass
class Double:
    """A browser that asks for the join URL, follows it, and stays connected."""

    port: int
    version: str = "Double/1"
    pages: list[Any] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)  # responses, whose end is the connection's
    dies_at: int = 0  # the page at which it ends
    fails_later: Kind | None = None  # what becomes of it, or of its pages, when all are in
    cpu: int = 0
    refuses: str = ""  # in what words, whatever it is to open
    is_refused_later: bool = False  # not when it is asked, but when it has tried
    answers_wait: bool = False  # else who is sent somewhere is there when the next is

    def send(self, url: str, timeout_s: float) -> Page:
        if self.refuses and not self.is_refused_later:
            raise BrowserError("silent", self.refuses, where="a browser's page")
        if self.dies_at == len(self.pages) + 1:
            raise BrowserError("ended", f"Page.navigate: {url}", where="chromium")
        page = DoublePage("", self)
        way = threading.Thread(target=self._go, args=(url, page), daemon=True)
        way.start()
        if not self.answers_wait:
            way.join()
        return page  # type: ignore[return-value]

    def _go(self, url: str, page: DoublePage) -> None:
        location = self._get(urlsplit(url)).getheader("Location", "")
        self.pages.append(location)
        told = parse_qs(urlsplit(location).query)
        page.has_come = True
        page.key = json.loads(told["errors"][0])[0]["key"] if "errors" in told else ""
        if "sessionToken" in told:
            text = self._get(urlsplit(location)).read().decode()
            if "const camera = true" in text:
                self._get(urlsplit(f"/webcam?sessionToken={told['sessionToken'][0]}"))
            self._get(urlsplit(f"/connection?sessionToken={told['sessionToken'][0]}"))

    def _get(self, parts: Any) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("GET", f"{parts.path}?{parts.query}")
        self.held.append(connection.getresponse())
        response: http.client.HTTPResponse = self.held[-1]
        return response

    def expect_there(self) -> None:
        if self.fails_later == "ended":
            raise BrowserError("ended", "Browser.getVersion: the browser has ended", where="chromium")

    def cpu_ns(self) -> int:
        self.cpu += 1
        return self.cpu


@dataclass
class DoublePage:
    key: str
    browser: Double
    has_come: bool = False

    def has_arrived(self) -> bool:
        if self.browser.refuses:
            raise BrowserError("refused", self.browser.refuses, where="a browser's page")
        return self.has_come

    def close(self, timeout_s: float) -> None: ...

    def evaluate(self, expression: str, timeout_s: float) -> str:
        if self.browser.fails_later:
            raise BrowserError(self.browser.fails_later, "Runtime.evaluate: it fails", where="chromium")
        return self.key
