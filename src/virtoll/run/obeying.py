"""A machine that is reached by ssh, and the one run that it works for: orders come on stdin, answers go to stdout.

It ends when stdin does, or when nobody has been heard for a minute: what is under way is undone then, and
`virtoll.run.performing`, which has loaded this, removes its own files.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from virtoll import __version__
from virtoll.hosts import keyring
from virtoll.plain import printable
from virtoll.run import frames
from virtoll.run.hosting import Hosting, measures_nothing
from virtoll.run.one_by_one import OneByOne
from virtoll.run.posting import Post

PROTOCOL = 1
BEAT_S = 10.0  # how often the other side says that it is there
_SILENCE_S = 60.0
_MOST_ORDER_BYTES = 256 * 1024**2
POST = "post"  # the role of a machine that holds the generator, and is not measured itself


class Hello(BaseModel):
    """The first message: who performs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: int
    virtoll: str
    digest: str  # of the tree that it is made of


def mark(nonce: str) -> bytes:
    """The line behind which messages begin: before, a login shell may print what it likes."""
    return f"virtoll {nonce}\n".encode()


class Obeys(Protocol):
    """Who carries orders out."""

    def answer(self, data: bytes) -> bytes:
        """One of them."""
        ...

    def end(self) -> None:
        """Undo all that is left."""
        ...


def perform(
    orders: int,
    answers: int,
    hosting: Obeys,
    silence_s: float = _SILENCE_S,
    beat_s: float | None = None,
    *,
    beats_for: Callable[[bytes], bool] | None = None,
) -> None:
    """Carry out what comes, in this thread, until no more does; nothing of a run is left then.

    ``beat_s``: how often to say meanwhile that we are there, by an empty message; None: never. ``beats_for``: during
    which orders alone, of which there is one at a time; None: at all times.
    """
    executor = OneByOne(lambda: os.kill(os.getpid(), signal.SIGTERM))
    writing, over, beating = threading.Lock(), threading.Event(), threading.Event()
    if beats_for is None:
        beating.set()

    def say(message: bytes, *, is_beat: bool = False) -> None:
        try:
            with writing:
                if is_beat and not beating.is_set():
                    return
                if not is_beat and beats_for is not None:
                    beating.clear()
                frames.write_message(answers, message)
        except OSError:
            executor.shutdown()  # nobody reads any more

    def answer(done: Future[bytes]) -> None:
        error = done.exception()
        if error is None:
            say(done.result())
            return
        # No answer will come, and who waits for it goes by our signs of life, or ssh's: we end, which is noticed.
        told = printable(f"virtoll: an order cannot be answered: {type(error).__name__}: {error}")
        print(told, file=sys.stderr, flush=True)
        executor.shutdown()

    def beat() -> None:
        while not over.wait(beat_s):
            say(b"", is_beat=True)

    def listen() -> None:
        try:
            while True:
                order = frames.read_message(orders, _MOST_ORDER_BYTES, silence_s)
                if order:  # an empty one says that somebody is there
                    if beats_for is not None and beats_for(order):
                        beating.set()
                    executor.submit(hosting.answer, order).add_done_callback(answer)
        except frames.FramesError as error:
            print(f"virtoll: no more orders: {error}", file=sys.stderr, flush=True)
        finally:
            executor.shutdown()

    threading.Thread(target=listen, name="orders", daemon=True).start()
    if beat_s is not None:
        threading.Thread(target=beat, name="beats", daemon=True).start()
    try:
        executor.run()
    finally:
        over.set()
        hosting.end()


def obey(digest: str, name: str, nonce: str, role: list[str]) -> None:
    """Say who performs, and do so. ``digest``: of the tree; ``role``: empty, or `POST`."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what else is printed is no answer
    keyring.leave()
    hello = Hello(protocol=PROTOCOL, virtoll=__version__, digest=digest)
    frames.write(answers, mark(nonce))
    frames.write_message(answers, hello.model_dump_json().encode())
    if role == [POST]:
        perform(0, answers, Post(name), beat_s=BEAT_S)
    else:
        perform(0, answers, Hosting(name), beat_s=BEAT_S, beats_for=measures_nothing)
