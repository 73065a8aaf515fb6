"""What guests and tools report can be kept, or it is no report."""

from __future__ import annotations

import json

import pytest

from virtoll import strict_json
from virtoll.aggressors import result
from virtoll.probes import native
from virtoll.probes.base import ProbeError

REPORT = {
    "version": "1", "probe": "timer", "windows": [{"start_ns": 1, "duration_ns": 2, "work": 3, "values": {"x": 1.5}}],
    "facts": {"said": "word"}, "checks": [], "notes": [],
}  # fmt: skip
TEXT = json.dumps(REPORT)
UNKEEPABLE = ["NaN", "Infinity", "-Infinity", "1e999", r'"half \ud800 a pair"']


@pytest.mark.parametrize("value", UNKEEPABLE)
def test_what_cannot_be_kept_is_no_report(value: str) -> None:
    assert native.parse("timer", 0, TEXT.encode(), b"").windows[0].values == {"x": 1.5}
    for spoilt in (TEXT.replace("1.5", value), TEXT.replace('"word"', value)):
        with pytest.raises(ProbeError, match="without a report"):
            native.parse("timer", 0, spoilt.encode(), b"")


@pytest.mark.parametrize("value", UNKEEPABLE)
def test_an_aggressors_line_that_cannot_be_kept_is_words(value: str) -> None:
    line = f'{{"t_ns": 5, "processes": 1, "restarts": 0, "counts": {{"sweeps": {value}}}}}'.encode()
    found = result.parse("cache", line, lived=False)
    assert (found.ended, list(found.series)) == ("refused", [])


@pytest.mark.parametrize("text", ["[" * 100_000, "{", b"\xff", "nan"])
def test_nonsense_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever kind
        strict_json.loads(text)


def test_all_else_is_as_json_has_it() -> None:
    text = r'{"a": [1, -2.5, 1e300, null, true, "\ud83d\ude00", 123456789012345678901234567890]}'
    assert strict_json.loads(text) == json.loads(text)
