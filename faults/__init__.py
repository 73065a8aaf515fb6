"""Faults by the thousand: seeded, counted, repeatable. docs/FAULTS.md says what is injected and what is promised."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # leaks.py: what a machine looks like
