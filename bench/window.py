"""How much of a container trial's wall time is measured window, in the full proxy study: `python -m bench.window`.

Runs two blocks of the study's own load on native and Docker, at its fastest condition (1 kB, 100 connections, cache
on: the shortest windows it has) and adds up the phases of every container trial. The proofs of the limits, which an
arm gives once a session and not once a trial, are left out.
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

TARGET = 0.70
_CONDITION = {"load.object": '["1 kB"]', "load.connections": "[100]", "service.cache": '["on"]'}


def study() -> str:
    """The full proxy study with one condition and two blocks."""
    text = (files("virtoll.studies") / "proxy.toml").read_text(encoding="utf-8")
    body, _, _ = text.partition("# --quick")
    before, _, rest = body.partition("[factors]")
    _, _, arms = rest.partition("[[arms]]")
    factors = "\n".join(f'"{path}" = {levels}' for path, levels in _CONDITION.items())
    before = before.replace("blocks = 10", "blocks = 2").replace('claims = "proxy"\n', "")
    return f"{before}[factors]\n{factors}\n\n[[arms]]{arms}"


def window_share(record: dict[str, Any]) -> float:
    """Measured window over all phases of one trial."""
    spent: dict[str, int] = {}
    for phase in record["phases"]:
        spent[phase["name"]] = spent.get(phase["name"], 0) + phase["duration_ns"]
    whole = sum(ns for name, ns in spent.items() if name not in ("prove", "session"))
    return spent["window"] / whole


def measure() -> list[float]:
    """The share of each valid container trial."""
    with tempfile.TemporaryDirectory() as directory:
        file, out = Path(directory, "window.toml"), Path(directory, "run")
        file.write_text(study(), encoding="utf-8")
        argv = [sys.executable, "-m", "virtoll", "run", str(file), "--platforms", "docker", "--out", str(out)]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=os.environ)
        records = [json.loads(line) for line in (out / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
    return [
        window_share(record)
        for record in records
        if record["status"] == "valid" and record["trial"]["arm"]["platform"] == "docker"
    ]


def main() -> int:
    """Print the shares; 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    shares = measure()
    median = statistics.median(shares)
    reached = median >= TARGET
    print(f"window share of a Docker trial: median {median:.0%} (lowest {min(shares):.0%}, n = {len(shares)})")
    print(f"target >= {TARGET:.0%}: {'reached' if reached else 'MISSED'}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"shares": shares, "target": TARGET}), encoding="utf-8")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
