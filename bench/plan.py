"""Does a plan's scalability law foretell what is measured? `python -m bench.plan [--only NAME...] [--keep DIRECTORY]`.

Real runs, as a user has them: streaming servers of four kinds, and a web server in a closed loop, on native, docker and
lxc, each at several numbers of users. Of each arm `virtoll plan` fits Gunther's law to all levels but the highest, and
tells what it foretells of that one. *Inside*: the measured mean lies within the foretelling's 95 % interval; *near*:
beside it, and the plan holds it for true, for both intervals meet or it is off by 5 % at the most; *missed*: neither,
and the plan refuses the law. Where no law fits the lower levels nothing is foretold. Target: nine tries of ten true.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._figures import keep

TARGET = 0.9
_MISSED = "it does not hold"  # a plan's words of a law that fits, and foretells wrongly
_STUDY = """
name = "law-{name}"
question = "What does a service deliver to so many users?"
noise_floor = false
blocks = {blocks}
[limits]
vcpus = 1
memory = "768 MiB"
pids = 2000
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
[[arms]]
platform = "lxc"
{text}
"""
_VIEWERS = """
bitrate = "900 kbit/s"
clip = "1 min"
join = "10 ms"
settle = "1 s"
time_limit = "3 s"
[factors]
"load.viewers" = [10, 20, 40, 60, 80, 100]
"""
STUDIES = {
    "rtmp": f'[service]\nname = "nginx-rtmp"\n[load]\nname = "rtmp-viewers"\n{_VIEWERS}',
    "rtsp": f'[service]\nname = "gst-rtsp"\n[load]\nname = "rtsp-viewers"\ntransport = "tcp"\n{_VIEWERS}',
    "http": f'[service]\nname = "nginx"\n[load]\nname = "viewers"\ndelivery = "progressive"\n{_VIEWERS}',
    "hls": f'[service]\nname = "nginx"\n[load]\nname = "viewers"\ndelivery = "hls"\nsegment = "1 s"\n{_VIEWERS}',
    "closed": """
[service]
name = "nginx"
[load]
name = "http"
keep_alive = true
object = "10 kB"
time_limit = "2 s"
warm_up = "300 ms"
log_requests = false
[factors]
"load.connections" = [1, 2, 4, 8, 16, 32]
""",
}
# A plan needs both; the law rests on neither.
_ASKED = "--users", "1000", "--objective", "deploy_s < 1000 s"


@dataclass(frozen=True)
class Try:
    """One arm of one run."""

    study: str
    arm: str
    kind: str  # "inside", "near", "missed", or "no law"
    told: str


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, plan, print; 1 where fewer than nine of ten tries were true."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("--only", choices=[*STUDIES], nargs="+", default=[*STUDIES])
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument(
        "--keep", type=Path, metavar="DIRECTORY", help="where the runs stay; those there are not repeated"
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args(argv)
    tries: list[Try] = []
    with ExitStack() as stack:
        scratch = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="virtoll-bench-")))
        for name in options.only:
            tries += tries_of(name, measured(name, options.blocks, scratch))
    for each in tries:
        print(f"{each.study:<8}{each.arm:<16}{each.kind:<8}{each.told}")
    count = Counter(each.kind for each in tries)
    true, told = count["inside"] + count["near"], len(tries) - count["no law"]
    reached = told > 0 and true >= TARGET * told
    verdict = "reached" if reached else "MISSED"
    print(
        f"{true} of {told} true, {count['inside']} of them inside; no law: {count['no law']}; target 9 of 10: {verdict}"
    )
    keep(options.json, {"tries": [vars(each) for each in tries]})
    return 0 if reached else 1


def measured(name: str, blocks: int, scratch: Path) -> Path:
    """The directory of a whole run of a study."""
    scratch.mkdir(parents=True, exist_ok=True)
    study, run = scratch / f"{name}.toml", scratch / name
    if not run.exists():
        study.write_text(_study(name, blocks), encoding="utf-8")
        words = ["run", str(study), "--out", str(run)]
        subprocess.run([sys.executable, "-m", "virtoll", *words], check=True, stdout=sys.stderr)
    return run


def _study(name: str, blocks: int) -> str:
    return _STUDY.format(name=name, blocks=blocks, text=STUDIES[name])


def tries_of(name: str, run: Path) -> list[Try]:
    """What its plan foretold of each arm, and what came."""
    words = ["plan", str(run), *_ASKED, "--json"]
    done = subprocess.run([sys.executable, "-m", "virtoll", *words], check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return [_try(name, arm["arm"], arm["law"]) for plan in json.loads(done.stdout)["plans"] for arm in plan["arms"]]


def _try(study: str, arm: str, law: dict[str, Any]) -> Try:
    if why := law.get("refused"):
        return Try(study, arm, "missed" if why.startswith(_MISSED) else "no law", why)
    low, high = law["foretold"][1:]
    foretold, measured = (f"{mid:,.0f} [{lo:,.0f}, {hi:,.0f}]" for mid, lo, hi in (law["foretold"], law["measured"]))
    told = f"at {law['at']:g} {foretold} foretold, {measured} measured"
    return Try(study, arm, "inside" if low <= law["measured"][0] <= high else "near", told)


if __name__ == "__main__":
    sys.exit(main())
