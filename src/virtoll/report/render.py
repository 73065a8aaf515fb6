"""From a chart to files for papers and to SVG that follows the page's light or dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert as vlc

from virtoll.files.confined import write_inside

_LONG_NUMBER = re.compile(r"(\d+\.\d{2})\d+")
_SIZE = re.compile(r'<svg([^>]*?) width="[\d.]+" height="[\d.]+"')
_LABELLED = re.compile(r'<path aria-label="([^"]*)"([^>]*?)/>')
_PNG_SCALE = 2.0
_VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def specification(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """A chart in Vega-Lite."""
    return chart.to_dict(validate=False)


def svg(chart: dict[str, Any]) -> str:
    """A Vega-Lite chart as SVG, its coordinates rounded to a hundredth of a pixel.

    What a mark's label says shows on hover. Any thread may call it, which is not so of what makes a chart.
    """
    text = vlc.vegalite_to_svg(chart, vl_version=_VERSION)
    text = _LABELLED.sub(r"<path\2><title>\1</title></path>", text)
    return _LONG_NUMBER.sub(r"\1", text)


def write_files(text: str, directory: Path, name: str) -> list[Path]:
    """Write a figure for papers as SVG, PNG (on white, double resolution) and PDF."""
    opaque = re.sub(r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="#ffffff"/>', text, count=1)
    forms = {"svg": text.encode(), "png": vlc.svg_to_png(opaque, scale=_PNG_SCALE), "pdf": vlc.svg_to_pdf(text)}
    return [write_inside(directory, f"{name}.{suffix}", data) for suffix, data in forms.items()]


def themed(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    """SVG for the page: colours become its CSS variables, and the size that of its place."""
    for light, _ in pairs:
        text = text.replace(f'"{light}"', f'"var({variable(light)})"')
    return _SIZE.sub(r"<svg\1", text, count=1)


def variable(light: str) -> str:
    """The CSS variable that stands for a colour of the palette."""
    return f"--k-{light.removeprefix('#')}"
