"""Real runs of virtoll: begun, watched by their progress, struck, gone on with, cleaned up after."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from faults import place
from faults.children import HANG_S, await_end, ended, forked

_SERVICE = """\
name = "{name}"
blocks = 2
noise_floor = false
[service]
name = "squid"
[origin]
name = "nginx"
[load]
name = "http"
connections = 2
time_limit = "300 ms"
warm_up = "0 s"
[limits]
memory = "{memory}"
[[arms]]
platform = "native"
"""
_PROGRAMME = """\
name = "{name}"
blocks = 2
noise_floor = false
{more}
[limits]
memory = "256 MiB"
[[probes]]
name = "timer"
interval = ["1 ms", "2 ms"]
windows = 2
time = "100 ms"
[[arms]]
platform = "native"
"""
_ARM = '[[arms]]\nplatform = "{platform}"\n'
_HOGS = "[background]\nhogs = 1\n"


def _programme(name: str, *platforms: str, more: str = "") -> str:
    return _PROGRAMME.format(name=name, more=more) + "".join(_ARM.format(platform=platform) for platform in platforms)


STUDIES = {
    "service": _SERVICE.format(name="service", memory="256 MiB"),
    "probe": _programme("probe"),
    "hogs": _programme("hogs", more=_HOGS),
    "docker": _programme("docker", "docker"),
    "docker-service": _SERVICE.format(name="docker-service", memory="256 MiB") + _ARM.format(platform="docker"),
    "lxc": _programme("lxc", "lxc"),
    "uml": _programme("uml", "uml"),
    "qemu-tcg": _programme("qemu-tcg", "qemu-tcg"),
}


@dataclass(frozen=True)
class Event:
    """A line of progress: its name (``phase window``) and when it was seen (s, CLOCK_MONOTONIC)."""

    name: str
    trial: str
    seen_s: float


@dataclass
class Session:
    """One process of virtoll's."""

    pid: int
    log: Path
    begun_s: float
    code: int | None = None
    over: bool = False
    events: list[Event] = field(default_factory=list)
    _read: int = 0

    def look(self) -> None:
        """Read what it has told since, and whether it has ended."""
        if not self.over and (code := ended(self.pid)) is not None:
            self.code, self.over = code, True
        data = self.log.read_bytes() if self.log.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        now = time.monotonic()
        self.events += [_event(line, now) for line in whole[self._read :].splitlines() if line.startswith(b"{")]
        self._read = len(whole)

    def await_end(self) -> int | None:
        """Its exit code; None when it had to be killed because it hung."""
        if not self.over:
            self.code, self.over = await_end(self.pid, HANG_S), True
        self.look()
        return self.code

    def under_way(self) -> set[str]:
        """Trials begun and not sealed, as far as it has told."""
        begun = {event.trial for event in self.events if event.name == "started"}
        return begun - {event.trial for event in self.events if event.name == "sealed"}

    def complaint(self) -> str:
        """What it wrote to stderr."""
        return self.log.with_suffix(".err").read_text(errors="replace").strip()


def _event(line: bytes, now: float) -> Event:
    told: dict[str, Any] = json.loads(line)
    name = told["event"]
    if name == "phase":
        return Event(f"phase {told['phase']}", told["trial"], now)
    trial = told.get("trial") or told.get("record", {}).get("trial") or {}
    return Event(name, trial.get("id", ""), now)


@dataclass
class Virtoll:
    """The command in a directory of its own, with its own state; images come from the machine's cache."""

    directory: Path
    study: str
    executed: bool = False  # a new interpreter each time, not a fork; it draws the report's figures, which takes 4 s
    state: Path = field(init=False)
    out: Path = field(init=False)
    memory_group: Path | None = None  # a cgroup that virtoll itself starts in
    tags: set[str] = field(default_factory=set)
    sessions: int = 0

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.state, self.out = Path(os.environ[place.INSIDE], place.STATE), self.directory / "out"
        (self.directory / "study.toml").write_text(STUDIES[self.study])

    def start(self, *arguments: str) -> Session:
        """Begin a session of its own with these arguments."""
        self.sessions += 1
        log = self.directory / f"session{self.sessions}.log"
        begun_s = time.monotonic()
        return Session(forked(lambda: self._be(arguments), log), log, begun_s)

    def _be(self, arguments: tuple[str, ...]) -> int:
        os.environ["VIRTOLL_STATE"] = str(self.state)
        os.chdir(self.directory)
        if self.memory_group is not None:
            (self.memory_group / "cgroup.procs").write_text("0")
        if self.executed:
            os.execv(sys.executable, [sys.executable, "-m", "virtoll", *arguments])
        from virtoll import cli
        from virtoll.report import begin, build
        from virtoll.report.page import Drawn

        vars(build)["_draw"] = lambda *_: lambda: defaultdict(lambda: Drawn(Markup(), Markup()))
        vars(build)["_start"] = lambda *_: None
        vars(begin)["_load"] = lambda *_: None
        cli.main(arguments)

    def begin(self) -> Session:
        """`virtoll run STUDY`."""
        return self.start("run", "study.toml", "--out", str(self.out), "--seed", "1", "--json")

    def resume(self) -> Session:
        """What a user does who finds the run broken off: go on with it, or begin it where it is not there yet."""
        return self.start("run", str(self.out), "--json") if self.out.exists() else self.begin()

    def clean(self) -> Session:
        """`virtoll clean`."""
        return self.start("clean")

    def look(self, session: Session) -> None:
        """Look at a session, and note the tags of what lives."""
        session.look()
        self.note_tags()

    def note_tags(self) -> None:
        """The tag of a run is in its ledger's name."""
        self.tags |= {path.stem.rpartition("-")[2] for path in (self.state / "ledger").glob("*.jsonl")}

    def await_end(self, session: Session) -> int | None:
        """The end of a session, with the tags noted meanwhile."""
        deadline = time.monotonic() + HANG_S
        while not session.over and time.monotonic() < deadline:
            self.look(session)
            time.sleep(0.02)
        return session.await_end()
