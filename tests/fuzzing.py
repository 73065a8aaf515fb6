"""What the fuzz tests share: texts and documents near to real ones, and what counts as a good end."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


def fuzzed(examples: int) -> settings:
    """Settings of a fuzz test: the same examples in every run, and no clock that decides."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


ODD = ["0", "-1", "1e999", "nan", "-inf", "9" * 30, "9" * 5000, "", "null", "1.2.3", ".", "\x00", "é", "{", "[" * 3000]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**63, -(2**63), 10**40]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["../../etc/passwd", "<b>", "nan"]),
)
JSON = st.recursive(
    SCALARS,
    lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(st.text(max_size=5), deeper, max_size=3),
    max_leaves=6,
)


@st.composite
def edited(draw: st.DrawFn, texts: list[str]) -> str:
    """One of these texts, torn, doubled, or with an odd word in the place of another."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 5, 40, 10**6])))
        new = draw(st.sampled_from([*ODD, text[start:end] * 2]) | st.text(max_size=6))
        number = draw(st.booleans())
        if number:  # a number is where parsers look
            digits = [at for at in range(len(text)) if text[at].isdigit() and not text[at - 1 : at].isdigit()]
            if digits:
                start = draw(st.sampled_from(digits))
                end = next((at for at in range(start, len(text)) if text[at] not in "0123456789."), len(text))
        text = text[:start] + new + text[end:]
    return text


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with some of its values, anywhere in it, replaced or gone."""
    copy = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = _somewhere(draw, copy)
        if holder is None:
            return draw(JSON)
        if draw(st.integers(0, 3)) == 0:
            del holder[key]
        else:
            holder[key] = draw(JSON)
    return copy


def _somewhere(draw: st.DrawFn, document: Any) -> tuple[Any, Any]:
    holder, key, at = None, None, document
    while isinstance(at, dict | list) and at and (holder is None or draw(st.integers(0, 4))):
        key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        holder, at = at, at[key]
    return holder, key
