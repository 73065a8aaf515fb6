"""`virtoll list platforms --features`: what each platform supports, why, and by which source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from virtoll.catalogue import features
from virtoll.features import FEATURES, PAPERS, Features, supported


def as_json() -> dict[str, Any]:
    """docs/JSON.md has the keys."""
    return {
        "features": [{"name": name, **asdict(feature)} for name, feature in FEATURES.items()],
        "supported": {
            platform: {name: asdict(supported(stated, name)) for name in FEATURES}
            for platform, stated in features().items()
        },
        "papers": PAPERS,
    }


def as_text() -> str:
    """The table, and below it each answer's reason and source."""
    return "\n".join([*_table(features()), "", *_reasons(features())])


def _table(platforms: Mapping[str, Features]) -> Iterator[str]:
    width, column = max(map(len, FEATURES)), max(map(len, platforms)) + 1
    yield f"{'':<{width}}  {''.join(f'{name:<{column}}' for name in platforms)}".rstrip()
    for name in FEATURES:
        answers = "".join(f"{supported(stated, name).answer:<{column}}" for stated in platforms.values())
        yield f"{name:<{width}}  {answers}".rstrip()


def _reasons(platforms: Mapping[str, Features]) -> Iterator[str]:
    yield "partly: under the condition that is named; unknown: nothing was found that documents it."
    yield from (f"{paper}: {title}." for paper, title in PAPERS.items())
    for name, feature in FEATURES.items():
        yield f"\n{name}: {feature.title} (asked in {feature.asked_in})"
        for platform, stated in platforms.items():
            one = supported(stated, name)
            yield f"  {platform:<14}  {one.answer}: {one.why}{f' [{one.source}]' if one.source else ''}"
