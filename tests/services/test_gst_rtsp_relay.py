"""Who publishes to GStreamer's RTSP server, and who is handed on: its program's own logic, with doubles of the library
(seen with the library itself: `test_films_deployed`).
"""

from __future__ import annotations

import gc
import runpy
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from virtoll.services import rtsp

PROGRAM = Path(rtsp.__file__).parent / "inside/rtsp.py"


class Signals:
    """What can be connected to."""

    def __init__(self) -> None:
        self.handlers: defaultdict[str, list[tuple[Callable[..., Any], tuple[Any, ...]]]] = defaultdict(list)

    def connect(self, signal: str, handler: Callable[..., Any], *data: Any) -> None:
        self.handlers[signal].append((handler, data))

    def tell(self, signal: str, *args: Any) -> None:
        for handler, data in self.handlers[signal]:
            handler(self, *args, *data)


class Element(Signals):
    """Of a pipeline: its source, or its sink. What is given to it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Any] = []

    def set_property(self, name: str, value: object) -> None: ...

    def get_base_time(self) -> int:
        return 1

    def emit(self, signal: str, *args: Any) -> Any:
        if signal == "pull-sample":
            return MagicMock(**{"get_segment.return_value.to_running_time.return_value": 5})
        self.given.append(signal)
        return None


class Media(Signals):
    """One pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = {name: Element() for name in ("video", "audio")}

    def get_element(self) -> Any:
        return SimpleNamespace(get_by_name=self.elements.__getitem__)

    def set_rate_control(self, _on: bool) -> None: ...

    def bring(self) -> None:
        """A piece of each track."""
        for element in self.elements.values():
            element.tell("new-sample")


class Factory(Signals):
    """What makes pipelines."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set_"):
            return lambda *_args: None
        raise AttributeError(name)

    def make(self) -> Media:
        media = Media()
        self.tell("media-configure", media)
        return media


class Mounts:
    """Paths, and what makes their pipelines."""

    def __init__(self) -> None:
        self.paths: dict[str, Factory] = {}
        self.meanwhile: Callable[[], object] = lambda: None  # what happens as a path is about to be added or removed

    def add_factory(self, path: str, factory: Factory) -> None:
        self.meanwhile()
        self.paths[path] = factory

    def remove_factory(self, path: str) -> None:
        self.meanwhile()
        del self.paths[path]


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> Mounts:
    """Of a server that offers a film which somebody may publish."""
    library = ModuleType("gi.repository")
    names = {"GLib": MagicMock(), "Gst": MagicMock(), "GstRtspServer": MagicMock(RTSPMediaFactory=Factory)}
    names["Gst"].CLOCK_TIME_NONE = 2**64 - 1
    vars(library).update(names)
    monkeypatch.setitem(sys.modules, "gi", MagicMock())
    monkeypatch.setitem(sys.modules, "gi.repository", library)
    running = Mounts()
    runpy.run_path(str(PROGRAM))["offer"](running, None, Path("/films/film.mp4"), "published")
    return running


def published(mounts: Mounts) -> Media:
    media = mounts.paths["/publish/film"].make()
    media.tell("prepared")
    return media


def test_what_is_published_is_handed_on_and_at_its_end_viewers_are_told(mounts: Mounts) -> None:
    assert list(mounts.paths) == ["/publish/film"]
    publisher = published(mounts)
    viewers = mounts.paths["/film"].make()
    publisher.bring()
    assert [element.given for element in viewers.elements.values()] == [["push-sample"]] * 2
    publisher.tell("unprepared")
    assert [element.given[-1] for element in viewers.elements.values()] == ["end-of-stream"] * 2
    assert list(mounts.paths) == ["/publish/film"]


def test_who_only_asks_for_the_path_takes_nothing_over(mounts: Mounts) -> None:
    """DESCRIBE, or an announcement that cannot be taken: a pipeline is made, but never prepared."""
    publish = mounts.paths["/publish/film"]
    publish.make()
    assert list(mounts.paths) == ["/publish/film"], "there is nothing to watch"
    publisher = published(mounts)
    viewers = mounts.paths["/film"].make()
    publish.make()
    publisher.bring()
    assert viewers.elements["video"].given == ["push-sample"]


def test_who_publishes_last_is_the_one_and_then_who_did_before(mounts: Mounts) -> None:
    first = published(mounts)
    viewers = mounts.paths["/film"].make()
    second = published(mounts)
    first.bring()
    assert viewers.elements["video"].given == []
    second.bring()
    assert viewers.elements["video"].given == ["push-sample"]
    second.tell("unprepared")
    first.bring()
    assert viewers.elements["video"].given == ["push-sample"] * 2, "nobody was told of an end"
    first.tell("unprepared")
    assert viewers.elements["video"].given[-1] == "end-of-stream"


def test_a_publisher_that_has_left_leaves_nothing(mounts: Mounts) -> None:
    """Between GObjects no collector finds a circle, so there must be none: each such pipeline kept two descriptors."""
    publisher = published(mounts)
    gone = weakref.ref(publisher)
    publisher.tell("unprepared")
    gc.disable()
    try:
        del publisher
        assert gone() is None
    finally:
        gc.enable()


def test_who_comes_as_another_leaves_is_watched(mounts: Mounts) -> None:
    """Each client has a thread of its own. The path was taken away after the new one had it, for good."""
    first, second = published(mounts), list[Media]()
    thread = threading.Thread(target=lambda: second.append(published(mounts)))

    def meanwhile() -> None:
        mounts.meanwhile = lambda: None
        thread.start()
        thread.join(0.2)  # it waits for its turn, or has had it by then

    mounts.meanwhile = meanwhile
    first.tell("unprepared")
    thread.join()
    viewers = mounts.paths["/film"].make()
    second[0].bring()
    assert viewers.elements["video"].given == ["push-sample"]


def test_who_began_to_watch_too_late_takes_nothing_of_who_publishes_next(mounts: Mounts) -> None:
    first = published(mounts)
    late = mounts.paths["/film"]
    first.tell("unprepared")
    second = published(mounts)
    viewers = mounts.paths["/film"].make()
    too_late = late.make()
    second.bring()
    assert too_late.elements["video"].given == ["end-of-stream"]
    assert viewers.elements["video"].given == ["push-sample"]
