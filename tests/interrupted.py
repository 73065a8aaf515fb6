"""Makes and unmakes an instance, and is interrupted at lines of its own code that a seed has drawn.

What the interrupt hits does not depend on how fast the machine is: lines are counted (also those of the standard
library, where processes are started), not seconds. Half of the interrupts come some milliseconds after their line, to
fall into what a command of ours is in the middle of.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import contract
import leaks
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.interrupts import install
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Image
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import free_tag, wired
from virtoll.platforms.base import Platform, platforms

_LATEST_S = 0.03


@cache
def _is_counted(file: str) -> bool:
    return "virtoll" in Path(file).parts or Path(file).name in ("contextlib.py", "subprocess.py")


@dataclass
class Lines:
    """Counts executed lines of the thread that it is installed in; sends ``number`` to this process at line ``at``."""

    at: int | None = None
    number: signal.Signals = signal.SIGINT
    delay_s: float = 0.0
    count: int = 0
    _timer: threading.Timer | None = None

    def __enter__(self) -> Lines:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        if self.at is not None and self.count < self.at:  # it waited for something less often than when it was counted
            self._send()

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not _is_counted(frame.f_code.co_filename):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                self._send()
        return self._trace

    def come(self) -> None:
        """Wait until it was sent."""
        if self._timer is not None:
            self._timer.join()

    def _send(self) -> None:
        if self.delay_s:
            self._timer = threading.Timer(self.delay_s, os.kill, (os.getpid(), self.number))
            self._timer.start()
        else:
            os.kill(os.getpid(), self.number)


def once(directory: Path, tag: str, platform: Platform, image: Image) -> None:
    """A lab, an instance in it, and both undone again."""
    host = LocalHost()
    with (
        ledgers.opened(host, directory, tag) as ledger,
        wired(host, ledger, tag, cpu_plan(host, 1)) as lab,
        contract.deployed(lab, image, platform) as instance,
    ):
        instance.agent.run(["true"])


def drawn(random_: random.Random, lines: int, number: signal.Signals) -> Lines:
    """A point among ``lines``."""
    delay_s = random_.choice((0.0, random_.uniform(0, _LATEST_S)))
    return Lines(random_.randrange(1, lines), number, delay_s)


def interrupted(directory: Path, seed: str, lines: int, platform: Platform, image: Image) -> str:
    """What the interrupt of this seed leaves behind, in words; nothing where nothing is left."""
    before, tag = leaks.snapshot(), free_tag()
    point = drawn(random.Random(seed), lines, signal.SIGINT)
    try:
        with point:
            once(directory, tag, platform, image)
        point.come()  # where the end came first
    except KeyboardInterrupt:
        pass
    try:
        ledgers_left = [path.name for path in directory.iterdir()]
        assert not ledgers_left, ledgers_left
        leaks.assert_nothing_left(before, tag)
    except AssertionError as error:
        return f"seed {seed!r}, {point}: {error}"
    return ""


def opening(directory: Path) -> None:
    """A ledger is opened and closed, interrupted at each of its lines in turn: told is where a file was left."""
    install()
    at, point = 0, Lines()
    while at <= point.count:  # the last one comes after the end
        at, point = at + 1, Lines(at + 1)
        try:
            with point, ledgers.opened(LocalHost(), directory, "run"):
                pass
            print(f"line {at}: no interrupt came")
        except KeyboardInterrupt:
            pass
        for left in directory.iterdir():
            print(f"line {at}: {left.read_text()!r}")
            left.unlink()
    print(at, "lines", file=sys.stderr)


def main() -> None:
    """``count DIRECTORY PLATFORM``: the number of lines. ``int DIRECTORY PLATFORM LINES SEED...``: what each leaves.

    ``kill DIRECTORY PLATFORM LINES SEED TAG``: ends itself with kill -9 instead. ``opening DIRECTORY``: see there.
    """
    if sys.argv[1] == "opening":
        opening(Path(sys.argv[2]))
        return
    what, directory, name, *rest = sys.argv[1:]
    platform, image = platforms()[name](), contract.image()
    if what == "count":
        with Lines() as lines:
            once(Path(directory), free_tag(), platform, image)
        print(lines.count)
    elif what == "int":
        lines_of, *seeds = rest
        left = [interrupted(Path(directory), seed, int(lines_of), platform, image) for seed in seeds]
        print("\n".join(line for line in left if line))
    else:
        lines_of, seed, tag = rest
        with drawn(random.Random(seed), int(lines_of), signal.SIGKILL) as point:
            once(Path(directory), tag, platform, image)
        point.come()


if __name__ == "__main__":
    main()
