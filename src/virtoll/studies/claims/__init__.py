"""What the papers published, as data: one TOML file a study, read by virtoll.analysis.claims."""

from __future__ import annotations

from importlib.resources import files


def names() -> list[str]:
    """What a study file may name in ``claims``."""
    return sorted(file.name.removesuffix(".toml") for file in files(__name__).iterdir() if file.name.endswith(".toml"))
