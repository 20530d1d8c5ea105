"""Just enough SVG: escaped elements, the width of a text, colours that can be told apart and read; and the
style sheet of a timeline, inside a picture that is a file, beside one that is part of a page.

Rule: what is drawn depends on no font, script or file of the viewer's machine. Text widths are those of a
wide sans-serif, so that what fits here fits everywhere. Every selector begins with `.timeline`, so that
nothing of the page around it is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

FONTS = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"

# Told apart with any common colour blindness (after Okabe and Ito, without the yellow that is lost on white).
JOB_COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#7a5195",
    "#8c8c8c",
    "#a6761d",
    "#88b04b",
)
DARK_TEXT = "#10161f"
LIGHT_TEXT = "#ffffff"

UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))

_NARROW = frozenset("fijlrtI.,:;'!|()[] -")
_WIDE = frozenset("mwMW@%")

_LIGHT: Final = """
.timeline .page { fill: #fbfcfe; stroke: #d5dbe5; }
.timeline .title, .timeline .device { fill: #10161f; }
.timeline .subtitle, .timeline .about, .timeline .tick { fill: #566072; }
.timeline .strip { fill: #eceff5; }
.timeline .grid { stroke: #d9dfe8; }
.timeline .axis { stroke: #8b95a5; }
.timeline .note { fill: #a3170f; stroke: #fbfcfe; }
.timeline .mark { fill: #c3251b; }
.timeline .mark-line { stroke: #c3251b; }
.timeline .wait { fill: #ffffff; stroke: #aab3c2; }
.timeline .wait-label { fill: #303a49; }
.timeline .policy { fill: #dfe6f2; }
.timeline .policy-name { fill: #2c3e63; }
.timeline .policy-line { stroke: #5b6f99; }
.timeline .edge { stroke: #fbfcfe; }
"""
_DARK: Final = """
.timeline .page { fill: #151a22; stroke: #2d3644; }
.timeline .title, .timeline .device { fill: #eef2f8; }
.timeline .subtitle, .timeline .about, .timeline .tick { fill: #a9b4c4; }
.timeline .strip { fill: #1f2631; }
.timeline .grid { stroke: #2d3644; }
.timeline .axis { stroke: #6b7788; }
.timeline .note { fill: #ff9d94; stroke: #151a22; }
.timeline .mark { fill: #ff7a6e; }
.timeline .mark-line { stroke: #ff7a6e; }
.timeline .wait { fill: #1b212b; stroke: #5d6878; }
.timeline .wait-label { fill: #d3dae5; }
.timeline .policy { fill: #263450; }
.timeline .policy-name { fill: #cfdcf5; }
.timeline .policy-line { stroke: #8fa4cf; }
.timeline .edge { stroke: #151a22; }
"""
CSS: Final = f"""
.timeline text {{ font-family: {FONTS}; }}
.timeline .title {{ font-size: 20px; font-weight: 600; }}
.timeline .subtitle {{ font-size: 13px; }}
.timeline .device {{ font-size: 14px; font-weight: 600; }}
.timeline .about, .timeline .note, .timeline .extra, .timeline .wait-label {{ font-size: 11.5px; }}
.timeline .name, .timeline .extra, .timeline .wait-label {{ pointer-events: none; }}
.timeline .note {{ paint-order: stroke; stroke-width: 3px; }}
.timeline .name {{ font-size: 13px; font-weight: 600; }}
.timeline .tick {{ font-size: 12px; }}
.timeline .policy-name {{ font-size: 12.5px; font-weight: 600; }}
.timeline .grid {{ stroke-width: 1; }}
.timeline .edge {{ stroke-width: 1.2; }}
.timeline .mark-line {{ stroke-width: 2; }}
.timeline .wait {{ stroke-dasharray: 4 3; }}
.timeline .policy-line {{ stroke-width: 1.5; stroke-dasharray: 5 4; }}
{_LIGHT}@media (prefers-color-scheme: dark) {{{_DARK}}}
"""


def element(name: str, attributes: dict[str, object], *children: str) -> str:
    """The markup of one element; `children` are markup already."""
    inside = "".join(
        f" {key.replace('_', '-')}={quoteattr(_attribute_text(value))}" for key, value in attributes.items()
    )
    return f"<{name}{inside}>{''.join(children)}</{name}>" if children else f"<{name}{inside}/>"


def text(content: str, x: float, y: float, classes: str, **attributes: object) -> str:
    """A text whose baseline starts at (x, y)."""
    return element("text", {"x": x, "y": y, "class": classes, **attributes}, escape(content))


def tooltip(content: str) -> str:
    return f"<title>{escape(content)}</title>"


def duration(seconds: float) -> str:
    """A duration in the unit that people would say it in."""
    unit_s, unit = next((each for each in UNITS if seconds >= 2 * each[0]), (1, "s"))
    return f"{seconds / unit_s:.3g} {unit}" if unit_s > 1 else f"{seconds:.0f} s"


def text_width(content: str, size: float, bold: bool = False) -> float:
    """An upper estimate of a text's width: DejaVu Sans, one of the widest faces a viewer may fall back to."""
    ems = sum(0.42 if c in _NARROW else 1.0 if c in _WIDE else 0.72 if c.isupper() else 0.64 for c in content)
    return ems * size * (1.08 if bold else 1.0)


def longest_that_fits(candidates: Sequence[str], size: float, width: float, bold: bool = False) -> str:
    """The first candidate (they get shorter) that fits, or nothing."""
    return next((each for each in candidates if text_width(each, size, bold) <= width), "")


def shorten_text(content: str, size: float, width: float, bold: bool = False) -> str:
    """Returns as much of the content as fits, with an ellipsis where some was cut."""
    cuts = (content[:length].rstrip() + "\u2026" for length in range(len(content) - 1, 0, -1))
    return longest_that_fits([content, *cuts], size, width, bold)


def text_colour(fill: str) -> str:
    """Dark or light, whichever can be read better on this fill."""
    return max((DARK_TEXT, LIGHT_TEXT), key=lambda ink: contrast(ink, fill))


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two `#rrggbb` colours as WCAG defines it, 1 to 21."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _attribute_text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
