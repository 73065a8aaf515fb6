"""From a chart to files for papers and to SVG that follows the page's light or dark.

Vega runs in a JavaScript engine in this process, which holds the interpreter's lock all the while. Altair, which takes
long to load, is not needed for it.

Text is measured and drawn in the Liberation Sans that Vega's renderer brings with it, on every machine the same. A font
of the machine's own would be opened anew for every letter, and takes a third of the time; so these are known to it only
from the first figure on that holds a character which that font lacks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vl_convert as vlc

from virtoll.files.confined import write_inside

if TYPE_CHECKING:
    import altair as alt

_LONG_NUMBER = re.compile(r"(\d+\.\d{2})\d+")
_TAG = re.compile(r"(<[^>]*>)")
_SIZE = re.compile(r'<svg([^>]*?) width="[\d.]+" height="[\d.]+"')
_LABELLED = re.compile(r'<path aria-label="([^"]*)"([^>]*?)/>')
_ID = re.compile(r'id="((?:clip|gradient_)\d+)"')
_REFERENCE = re.compile(r'(id="|url\(#)((?:clip|gradient_)\d+)')
# All but what that font surely has: Latin, Greek and Cyrillic letters, and the usual signs.
_LACKED = re.compile(r"[^\s!-~\u00a0-\u036f\u0384-\u03ce\u0400-\u0513\u2013-\u2022\u2026\u2190-\u2193−∞≈≠≤≥]")
_MACHINES_FONTS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts")
_FONTS_FROM = "FONTCONFIG_FILE"
_PNG_SCALE = 2.0
_VERSION = re.compile(r"/v(\d+\.\d+)[^/]*$")  # in the address of a chart's schema


def specification(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """A chart in Vega-Lite."""
    return chart.to_dict(validate=False)


def svgs(name: str, layouts: Sequence[dict[str, Any]]) -> list[str]:
    """A figure's layouts in Vega-Lite as SVG. ValueError, with Vega's words, where one is no chart."""
    return [svg(layout, f"{name}-{number}") for number, layout in enumerate(layouts, 1)]


def svg(chart: dict[str, Any], name: str = "") -> str:
    """A Vega-Lite chart as SVG, its coordinates rounded to a hundredth of a pixel.

    What a mark's label says shows on hover. ``name`` leads its ids, which no other SVG of a page may have. ValueError,
    with Vega's words, where it is no chart.
    """
    version = _VERSION.search(chart["$schema"])
    _know_own_font()
    text = vlc.vegalite_to_svg(chart, vl_version=version and version[1])
    if _LACKED.search(text):
        _know_machines_fonts()
        text = vlc.vegalite_to_svg(chart, vl_version=version and version[1])
    text = _LABELLED.sub(r"<path\2><title>\1</title></path>", _renumbered(text, name))
    parts = _TAG.split(text)  # words, tag, words, ...: an axis may say 0.155
    parts[1::2] = [_LONG_NUMBER.sub(r"\1", tag) for tag in parts[1::2]]
    return "".join(parts)


@cache
def _know_own_font() -> None:
    """Have the renderer look for the machine's fonts where there are none: it does so once, when it is first called."""
    before = os.environ.get(_FONTS_FROM)
    with resources.as_file(resources.files("virtoll.report") / "fonts.xml") as path:
        os.environ[_FONTS_FROM] = str(path)
        vlc.register_font_directory("/nonexistent")
    del os.environ[_FONTS_FROM]
    if before is not None:
        os.environ[_FONTS_FROM] = before


@cache
def _know_machines_fonts() -> None:
    """Have the renderer look for characters that its own font lacks in the machine's, too."""
    for directory in _MACHINES_FONTS:
        vlc.register_font_directory(str(Path(directory).expanduser()))


def _renumbered(text: str, name: str) -> str:
    """Its ids from 1 on: Vega counts on from chart to chart, and so numbers them by what was rendered before."""
    ids = {old: f"{name}-{number}" for number, old in enumerate(dict.fromkeys(_ID.findall(text)), 1)}
    return _REFERENCE.sub(lambda found: f"{found[1]}{ids.get(found[2], found[2])}", text)


def files(text: str) -> dict[str, bytes]:
    """A figure for papers, by suffix: SVG, PNG (on white, double resolution) and PDF."""
    _know_own_font()
    if _LACKED.search(text):
        _know_machines_fonts()
    opaque = re.sub(r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="#ffffff"/>', text, count=1)
    return {"svg": text.encode(), "png": vlc.svg_to_png(opaque, scale=_PNG_SCALE), "pdf": vlc.svg_to_pdf(text)}


def write_files(forms: Mapping[str, bytes], directory: Path, name: str) -> list[Path]:
    """Write the `files` of a figure; their paths."""
    return [write_inside(directory, f"{name}.{suffix}", data) for suffix, data in forms.items()]


def themed(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    """SVG for the page: colours become its CSS variables, and the size that of its place."""
    for light, _ in pairs:
        text = text.replace(f'"{light}"', f'"var({variable(light)})"')
    return _SIZE.sub(r"<svg\1", text, count=1)


def variable(light: str) -> str:
    """The CSS variable that stands for a colour of the palette."""
    return f"--k-{light.removeprefix('#')}"
