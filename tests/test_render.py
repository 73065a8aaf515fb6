"""From a chart to SVG and files: the fonts that text is measured and drawn with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from virtoll.report import render

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"


def chart(label: str) -> dict[str, Any]:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.1.0.json",
        "config": {"font": FONT},
        "data": {"values": [{"name": label, "value": 1}]},
        "mark": "bar",
        "encoding": {"y": {"field": "name", "type": "nominal"}, "x": {"field": "value", "type": "quantitative"}},
    }


@pytest.fixture
def looked_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The directories that the renderer is told to look for fonts in, without doing so."""
    told: list[str] = []
    for known in (render._know_own_font, render._know_machines_fonts):
        known.cache_clear()
    monkeypatch.setattr("vl_convert.register_font_directory", told.append)
    yield told
    for known in (render._know_own_font, render._know_machines_fonts):
        known.cache_clear()


@pytest.mark.parametrize("label", ["lxc+routed (lxcfs)", "10 µs – 2 × 5 ≤ 12 …", "Müller, Łódź, Ωμέγα, Сеть"])
def test_the_usual_needs_none_of_the_machines_fonts(label: str, looked_for: list[str]) -> None:
    drawn = render.svg(chart(label))
    assert label in drawn
    assert render.files(drawn)["pdf"].startswith(b"%PDF")
    assert looked_for == ["/nonexistent"]


@pytest.mark.parametrize("label", ["服务器", "x₂"])
def test_what_the_renderers_font_lacks_is_looked_for_in_the_machines(label: str, looked_for: list[str]) -> None:
    render.svg(chart(label))
    render.files(render.svg(chart(label)))
    assert looked_for[0] == "/nonexistent"
    assert looked_for[1:] == [str(Path(directory).expanduser()) for directory in render._MACHINES_FONTS]


@pytest.mark.parametrize("before", [None, "/etc/fonts/mine.conf"])
def test_the_environment_is_as_it_was(
    before: str | None, looked_for: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FONTCONFIG_FILE", raising=False)
    if before is not None:
        monkeypatch.setenv("FONTCONFIG_FILE", before)
    render.svg(chart("a"))
    assert looked_for == ["/nonexistent"]
    assert os.environ.get("FONTCONFIG_FILE") == before


def test_the_machines_own_configuration_of_fonts_is_not_read(tmp_path: Path) -> None:
    """Two charts in processes of their own, one of which could find no other font: they are the same, files too."""
    empty = tmp_path / "fonts.conf"
    empty.write_text("<fontconfig><dir>/nonexistent</dir></fontconfig>")
    draw = (
        f"import sys; from virtoll.report import render; s = render.svg({chart('native+host')!r}); "
        "sys.stdout.buffer.write(s.encode() + render.files(s)['png'])"
    )
    drawn = [
        subprocess.run(
            [sys.executable, "-c", draw], env={**os.environ, **more}, stdout=subprocess.PIPE, check=True
        ).stdout
        for more in ({}, {"FONTCONFIG_FILE": str(empty)})
    ]
    assert drawn[0].startswith(b"<svg")
    assert drawn[0] == drawn[1]


def test_places_are_rounded_and_words_are_not() -> None:
    axis = {"type": "quantitative", "axis": {"format": ",~r"}, "scale": {"zero": False}}
    fine = chart("")
    fine["data"]["values"] = [{"name": 0.1583, "value": 0.1583}, {"name": 0.1641, "value": 0.1641}]
    fine |= {"mark": "point", "encoding": {at: {"field": name, **axis} for at, name in (("x", "value"), ("y", "name"))}}
    drawn = render.svg(fine)
    assert ">0.162<" in drawn
    assert not re.search(r"<[^>]*\d\.\d{3}", drawn)


def test_what_a_mark_says_on_hover_is_not_cut_off() -> None:
    """It said "0.97 [0.95, 0.99]" of what the table tells as "0.977 [0.957, 0.999]"."""
    said = chart("")
    said["data"]["values"] = [{"name": "", "value": 1.23456, "words": "x 0.977 [0.957, 0.999]"}]
    said |= {"mark": {"type": "rect", "aria": True}}
    said["encoding"]["description"] = {"field": "words", "type": "nominal"}
    drawn = render.svg(said)
    assert "<title>x 0.977 [0.957, 0.999]</title>" in drawn
    assert "1.23456" not in drawn
