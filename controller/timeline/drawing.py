"""Just enough SVG: escaped elements, the width of a text, colours that can be told apart and read.

Rule: what is drawn depends on no font, script or file of the viewer's machine. Text widths are those of a
wide sans-serif, so that what fits here fits everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
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

_NARROW = frozenset("fijlrtI.,:;'!|()[] -")
_WIDE = frozenset("mwMW@%")


def element(name: str, attributes: dict[str, object], *children: str) -> str:
    """One element; children are markup already."""
    inside = "".join(
        f" {key.replace('_', '-')}={quoteattr(_shown(value))}" for key, value in attributes.items()
    )
    return f"<{name}{inside}>{''.join(children)}</{name}>" if children else f"<{name}{inside}/>"


def text(content: str, x: float, y: float, classes: str, **attributes: object) -> str:
    """A text whose baseline starts at (x, y)."""
    return element("text", {"x": x, "y": y, "class": classes, **attributes}, escape(content))


def tooltip(content: str) -> str:
    return f"<title>{escape(content)}</title>"


def text_width(content: str, size: float, bold: bool = False) -> float:
    """An upper estimate: DejaVu Sans, one of the widest faces a viewer may fall back to."""
    ems = sum(0.42 if c in _NARROW else 1.0 if c in _WIDE else 0.72 if c.isupper() else 0.64 for c in content)
    return ems * size * (1.08 if bold else 1.0)


def longest_that_fits(candidates: Sequence[str], size: float, width: float, bold: bool = False) -> str:
    """The first candidate (they get shorter) that fits, or nothing."""
    return next((each for each in candidates if text_width(each, size, bold) <= width), "")


def shortened(content: str, size: float, width: float, bold: bool = False) -> str:
    """As much of the content as fits, with an ellipsis where some was cut."""
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


def _shown(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
