"""What the benches share: ratios of paired readings, and keeping the figures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def paired(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Ours over theirs, pair by pair: ``rounds``, ``median``, ``quartiles``, and either side's own median."""
    low, median, high = statistics.quantiles([ours / theirs for ours, theirs in pairs], n=4)
    return {
        "rounds": len(pairs),
        "median": median,
        "quartiles": [low, high],
        "ours": statistics.median(ours for ours, _ in pairs),
        "theirs": statistics.median(theirs for _, theirs in pairs),
    }


def keep(path: Path | None, document: Any) -> None:
    """Write the figures as JSON to ``path``, where one is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
