"""What a power cut leaves: only what was fsynced is certain; the rest is there, in part, or not at all, as drawn."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path


def lose(top: Path, log: Path, random_: random.Random) -> list[str]:
    """Take away what was not synced below ``top`` (which itself, and what it held before, was); what was lost."""
    synced: dict[int, dict[str, object]] = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        entry = json.loads(line)
        synced[entry["inode"]] = entry
    lost: list[str] = []
    _lose(top, synced, random_, lost)
    return lost


def _lose(directory: Path, synced: dict[int, dict[str, object]], random_: random.Random, lost: list[str]) -> None:
    entry = synced.get(directory.stat().st_ino, {})
    names = entry.get("names") or []
    certain = set(names) if isinstance(names, list) else set()
    for path in sorted(directory.iterdir()):
        if path.name not in certain and random_.random() < 0.5:
            lost.append(f"{path.name} vanished")
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif path.is_dir():
            _lose(path, synced, random_, lost)
        else:
            _shorten(path, synced, random_, lost)


def _shorten(path: Path, synced: dict[int, dict[str, object]], random_: random.Random, lost: list[str]) -> None:
    size = path.stat().st_size
    kept = synced.get(path.stat().st_ino, {}).get("size", 0)
    certain = min(size, kept if isinstance(kept, int) else 0)
    if size > certain and random_.random() < 0.7:
        os.truncate(path, random_.randint(certain, size - 1))
        lost.append(f"{path.name} is short")
