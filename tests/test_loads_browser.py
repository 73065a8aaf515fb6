"""A browser over two pipes: what it is asked, and that nothing that it does or says keeps us waiting."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.hosts.local import LocalHost
from virtoll.hosts.processes import processes
from virtoll.loads import cdp
from virtoll.loads.browser import PROGRAM, Browser, browsing, command
from virtoll.loads.cdp import BrowserError, Devtools
from virtoll.loads.sights import read

LONG_S = 300.0  # of what is answered, or fails by itself: nobody waits so long
SHORT_S = 0.2  # of what is never answered
FAKE = Path(__file__).parent / "cdp_fake.py"


@contextmanager
def faked(tmp_path: Path, manner: str, start_s: float = LONG_S) -> Iterator[Browser]:
    with browsing(LocalHost(), [sys.executable, str(FAKE), manner], tmp_path / "log", start_s=start_s) as browser:
        yield browser


def kind_of(caught: pytest.ExceptionInfo[BrowserError]) -> str:
    return caught.value.kind


def test_a_page_is_opened_and_evaluates(tmp_path: Path) -> None:
    with faked(tmp_path, "ok") as browser:
        page = browser.open("http://somewhere/", LONG_S)
        assert browser.version == "Fake/1.0"
        assert page.evaluate("12345", LONG_S) == 5, "events that nobody asked for are passed over"
        assert page.wait_for("true", LONG_S) == 4


def test_what_the_browser_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    with faked(tmp_path, "ok") as browser:
        with pytest.raises(BrowserError, match="wasn't found") as caught:
            browser.devtools.ask("Nobody.knows", {}, LONG_S)
        assert kind_of(caught) == "refused"
        with pytest.raises(BrowserError, match=r"net::ERR_FAILED") as caught:
            browser.open("http://refuse/", LONG_S)
        assert kind_of(caught) == "refused"
        assert browser.devtools.ask("Target.getTargets", {}, LONG_S) == {"targetInfos": []}, "nobody would close it"
        assert browser.open(timeout_s=LONG_S).evaluate("1", LONG_S) == 1, "it can be asked again"


def test_a_page_that_is_sent_somewhere_is_not_waited_for(tmp_path: Path) -> None:
    """Two wait for their servers, of which one then cannot be reached; what comes meanwhile is asked of neither."""
    with faked(tmp_path, "ok") as browser:
        slow, refused = browser.send("http://slow/", LONG_S), browser.send("http://slow-and-refuse/", LONG_S)
        assert not slow.has_arrived()
        assert not refused.has_arrived()
        assert browser.open(timeout_s=LONG_S).evaluate("12", LONG_S) == 2, "others are asked meanwhile"
        assert slow.has_arrived()
        with pytest.raises(BrowserError, match=r"slow-and-refuse/ cannot be opened: net::ERR_FAILED") as caught:
            refused.has_arrived()
        assert kind_of(caught) == "refused"
        assert slow.has_arrived()
        assert browser.open(timeout_s=LONG_S).has_arrived()


def test_what_a_browser_says_while_nobody_waits_is_heard_as_far_as_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a message is none yet; one without an end, or an end of the browser's, is an error."""
    monkeypatch.setattr(cdp, "_MOST_MESSAGE_BYTES", 2**20)
    (ours, theirs), (read, write) = os.pipe(), os.pipe()
    devtools = Devtools(ours, write, "here")
    try:
        number = devtools.begin("Page.navigate", {}, LONG_S, target="T1")
        os.write(theirs, b'{"id": 77, "result": {}}\0{"id": 1, "res')
        assert devtools.answer(number, "Page.navigate", target="T1") is None
        os.write(theirs, b'ult": {"a": 1}}\0')
        assert devtools.answer(number, "Page.navigate", target="T1") == {"a": 1}
        number = devtools.begin("Page.navigate", {}, LONG_S, target="T1")
        os.write(theirs, b'{"method": "Target.targetCrashed", "params": {"targetId": "T1"}}\0')
        with pytest.raises(BrowserError, match="crashed"):
            devtools.answer(number, "Page.navigate", target="T1")
        os.close(theirs)
        with pytest.raises(BrowserError, match="has ended"):
            devtools.answer(number, "Page.navigate")
    finally:
        devtools.close()
        os.close(read)


@pytest.mark.parametrize(
    ("manner", "kind"),
    [
        ("ends", "ended"),
        ("crash", "crashed"),
        ("throw", "threw"),
        ("garbage", "unreadable"),
        ("endless", "unreadable"),
    ],
)
def test_what_goes_wrong_with_a_page_is_noticed_at_once(
    tmp_path: Path, manner: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdp, "_MOST_MESSAGE_BYTES", 2**20)
    with faked(tmp_path, manner) as browser:
        page = browser.open(timeout_s=LONG_S)
        with pytest.raises(BrowserError) as caught:
            page.evaluate("1", LONG_S)
        assert kind_of(caught) == kind
        page.close(LONG_S)


def test_a_page_that_crashed_is_known_to_have(tmp_path: Path) -> None:
    with faked(tmp_path, "crash") as browser:
        page = browser.open(timeout_s=LONG_S)
        for _ in range(2):
            with pytest.raises(BrowserError, match="crashed"):
                page.evaluate("1", LONG_S)


@pytest.mark.parametrize("manner", ["hang", "chatter"])
def test_one_that_never_answers_is_waited_for_no_longer_than_allowed(tmp_path: Path, manner: str) -> None:
    with faked(tmp_path, manner) as browser:
        page = browser.open(timeout_s=LONG_S)
        with pytest.raises(BrowserError) as caught:
            page.evaluate("1", SHORT_S)
        assert kind_of(caught) == "silent"


def test_what_never_becomes_true_is_waited_for_no_longer_than_allowed(tmp_path: Path) -> None:
    with faked(tmp_path, "throw") as browser:
        page = browser.open(timeout_s=LONG_S)
        with pytest.raises(BrowserError, match=r"never true: document\.title") as caught:
            page.wait_for("document.title", SHORT_S)
        assert kind_of(caught) == "silent"


def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(BrowserError, match=r"did not start(.|\n)*no such display") as caught, faked(tmp_path, "gone"):
        pass
    assert kind_of(caught) == "ended"
    with pytest.raises(BrowserError, match="did not start") as caught, faked(tmp_path, "mute", start_s=SHORT_S):
        pass
    assert kind_of(caught) == "silent"


def test_nothing_of_it_lives_on(tmp_path: Path) -> None:
    with faked(tmp_path, "hang"):
        mine = {one.pid for one in processes() if is_child_of_ours(one.pid)}
        assert mine
    assert not {one.pid for one in processes()} & mine


def is_child_of_ours(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(stat.rpartition(")")[2].split()[1]) == os.getpid() and b"cdp_fake" in line


@given(
    st.one_of(
        st.binary(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
    )
)
def test_whatever_it_says_is_an_answer_or_an_error(said: bytes) -> None:
    (ours, theirs), (read, write) = os.pipe(), os.pipe()
    os.write(theirs, said + b'\0{"id": 1, "result": {"a": 1}}\0')
    os.close(theirs)
    devtools = Devtools(ours, write, "here")
    try:
        found: object = devtools.ask("Some.method", {}, LONG_S)
    except BrowserError as error:
        found = error.kind
    finally:
        devtools.close()
        os.close(read)
    assert isinstance(found, dict) or found in ("unreadable", "refused", "ended")


needs_chromium = pytest.mark.skipif(not Path(PROGRAM).exists(), reason=f"no {PROGRAM}: apt-get install chromium")


@needs_chromium
def test_what_watches_a_room_says_in_a_real_chromium_that_it_reaches_nobody(tmp_path: Path) -> None:
    script = files("virtoll.loads").joinpath("watching.js").read_text(encoding="utf-8")
    with browsing(LocalHost(), command(str(tmp_path / "profile")), tmp_path / "log", start_s=LONG_S) as browser:
        page = browser.open(timeout_s=LONG_S)
        page.evaluate(script, LONG_S)
        before = read(page.evaluate("virtoll.told()", LONG_S))
        page.evaluate(
            'virtoll.watch("ws://127.0.0.1:9/", 1, "virtoll 0 browser")', LONG_S
        )  # discard: nobody may use it
        page.wait_for("virtoll.told().then((told) => told.failure)", LONG_S)
        after = read(page.evaluate("virtoll.told()", LONG_S))
    assert (before.failure, dict(before.streams)) == ("", {})
    assert (after.failure, dict(after.streams)) == ("signalling", {})
    assert after.at_ms > before.at_ms


@needs_chromium
def test_a_real_chromium_opens_a_page_and_evaluates(tmp_path: Path) -> None:
    with browsing(LocalHost(), command(str(tmp_path / "profile")), tmp_path / "log", start_s=LONG_S) as browser:
        page = browser.open("data:text/html,<title>a page</title>", LONG_S)
        assert page.wait_for("document.title", LONG_S) == "a page"
        assert page.evaluate("Promise.resolve({at: [1, 2.5, null]})", LONG_S) == {"at": [1, 2.5, None]}
        with pytest.raises(BrowserError, match="Error: no way") as caught:
            page.evaluate("throw new Error('no way')", LONG_S)
        assert kind_of(caught) == "threw"
        other = browser.open(timeout_s=LONG_S)
        with pytest.raises(BrowserError, match="crashed") as caught:
            page.ask("Page.crash", {}, LONG_S)
        assert kind_of(caught) == "crashed"
        assert other.evaluate("1 + 1", LONG_S) == 2, "one page's end is not the others'"
