"""How much of a trial's wall time is measured window, in the proxy study: `python -m bench.window [--quick]`.

Runs two blocks of the study's own load at its fastest condition (1 kB, 100 connections, cache on: the shortest windows
it has; with --quick its 2 s windows) and tells for each arm where the time of a trial goes. What an arm gives once a
session and not once a trial is left out: the session itself, the audit, and the proofs of the limits. The target is for
containers in the full study; a guest that boots under emulation cannot reach it.

The window is the phase of that name: what was under way at its end is waited for, and is measured too. ``asked`` is the
share of window and warm-up together, as far as the study asks for that one: what is left is what virtoll itself takes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

TARGET = 0.92
CONTAINERS = ("docker", "lxc")
ONCE = ("prove", "session", "audit")
PARTS = ("deploy", "start", "verify", "warm-up", "teardown")
_CONDITION = {"load.object": '["1 kB"]', "load.connections": "[100]", "service.cache": '["on"]'}

Shares = dict[str, dict[str, float]]  # by arm: the shares of a trial, and seconds of each part


def study() -> str:
    """The full proxy study with one condition and two blocks; its quick variant has two blocks, too."""
    text = (files("virtoll.studies") / "proxy.toml").read_text(encoding="utf-8")
    body, mark, quick = text.partition("# --quick")
    before, _, rest = body.partition("[factors]")
    _, _, arms = rest.partition("[[arms]]")
    factors = "\n".join(f'"{path}" = {levels}' for path, levels in _CONDITION.items())
    before = before.replace("blocks = 10", "blocks = 2")
    quick = quick.replace("blocks = 5", "blocks = 2").replace('["1 kB", "100 kB"]', '["1 kB"]')
    return f"{before}[factors]\n{factors}\n\n[[arms]]{arms}{mark}{quick}"


def spent_s(record: dict[str, Any]) -> dict[str, float]:
    """Seconds of a trial's parts; ``whole`` is from its first phase to its last, with what lies between them.

    ``asked``: what the study asked for, which is the window and so much of the warm-up as its setting says.
    """
    spent: dict[str, float] = {}
    for phase in record["phases"]:
        spent[phase["name"]] = spent.get(phase["name"], 0.0) + phase["duration_ns"] / 1e9
    begun_ns = min(phase["start_ns"] for phase in record["phases"])
    end_ns = max(phase["start_ns"] + phase["duration_ns"] for phase in record["phases"])
    whole = (end_ns - begun_ns) / 1e9 - sum(spent.get(name, 0.0) for name in ONCE)
    asked = spent["window"] + record["measured"]["settings"]["warm_up_ns"] / 1e9
    return {**{name: spent.get(name, 0.0) for name in (*PARTS, "window")}, "asked": asked, "whole": whole}


def measure(quick: bool, platforms: str) -> Shares:
    """What the valid trials of each arm tell: medians."""
    with tempfile.TemporaryDirectory() as directory:
        file, out = Path(directory, "window.toml"), Path(directory, "run")
        file.write_text(study(), encoding="utf-8")
        argv = [sys.executable, "-m", "virtoll", "run", str(file), "--out", str(out)]
        argv += ["--platforms", platforms] * bool(platforms) + ["--quick"] * quick
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=os.environ)
        records = [json.loads(line) for line in (out / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
    arms: dict[str, list[dict[str, float]]] = {}
    for record in records:
        if record["status"] == "valid":
            arms.setdefault(record["trial"]["arm"]["label"], []).append(spent_s(record))
    return {arm: _medians(trials) for arm, trials in sorted(arms.items())}


def _medians(trials: list[dict[str, float]]) -> dict[str, float]:
    shares = {
        name: statistics.median(trial[part] / trial["whole"] for trial in trials)
        for name, part in (("share", "window"), ("share_asked", "asked"))
    }
    parts = {name: statistics.median(trial[name] for trial in trials) for name in trials[0]}
    known = sum(parts[name] for name in (*PARTS, "window"))
    return {"n": len(trials), **shares, **parts, "between": parts["whole"] - known}


def main() -> int:
    """Print the shares; 1 when a container of the full study misses the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the quick variant, with its windows of 2 s: no target")
    parser.add_argument("--platforms", default="docker,lxc", help="beside native; empty: all of the study's")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    shares = measure(arguments.quick, arguments.platforms)
    columns = ("window", *PARTS, "between")
    print(f"{'arm':<24} share asked   n " + "".join(f"{name + ' s':>11}" for name in columns))
    for arm, told in shares.items():
        seconds = "".join(f"{told[name]:>11.2f}" for name in columns)
        print(f"{arm:<24} {told['share']:>5.1%} {told['share_asked']:>5.1%} {told['n']:>3.0f} {seconds}")
    judged = [told["share"] for arm, told in shares.items() if arm.startswith(CONTAINERS)]
    reached = arguments.quick or (bool(judged) and min(judged) >= TARGET)
    if not arguments.quick:
        print(f"target for containers >= {TARGET:.0%}: {'reached' if reached else 'MISSED'}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"shares": shares, "target": TARGET}), encoding="utf-8")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
