"""Hp demand of the last hours and its forecast as an SVG: one panel per device type.

Rule: a line for what was, a line for the median, a band up to the quantile that the quota keeps free, a
dashed line for the devices there are. Texts of others are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from cotenant.controller.domain import ClassReport, PoolReport

WIDTH: Final = 720
HEIGHT: Final = 220
LEFT: Final = 50
TOP: Final = 30
BOTTOM: Final = 30


def fan_chart(classes: ClassReport) -> str:
    panels = [_panel(pool, classes.level, number * HEIGHT) for number, pool in enumerate(classes.pools)]
    height = max(1, len(panels)) * HEIGHT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="Devices that class hp asked for, and is expected to">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *panels, "</svg>"])


def _panel(pool: PoolReport, level: float, above: int) -> str:
    past, median, upper = pool.recent, pool.forecast_median, pool.forecast_upper
    hours = max(2, len(past) + len(median))
    highest = max(1.0, float(pool.capacity), *past, *upper)

    def at(hour: float, gpus: float) -> str:
        x = LEFT + (WIDTH - LEFT - 20) * hour / (hours - 1)
        y = above + TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - gpus / highest)
        return f"{x:.1f},{y:.1f}"

    def line(first: int, values: Sequence[float], look: str) -> str:
        points = " ".join(at(first + number, value) for number, value in enumerate(values))
        return f'<polyline points="{points}" fill="none" {look}/>'

    start = len(past) - 1
    last = [float(past[-1])] if past else []
    begin = start if past else 0
    band = [at(begin + n, v) for n, v in enumerate([*last, *upper])]
    band += [at(begin + n, v) for n, v in reversed([*enumerate([*last, *median])])]
    title = f"{pool.device_type}: devices that class hp asks for, by hours; band: to quantile {level:g}"
    return "\n".join(
        [
            f'<text x="{LEFT}" y="{above + 18}">{escape(title)}</text>',
            f'<text x="8" y="{at(0, highest).split(",")[1]}">{highest:.0f}</text>',
            f'<polygon points="{" ".join(band)}" fill="#9ecae1"/>',
            line(0, past, 'stroke="#333" stroke-width="1.5"'),
            line(begin, [*last, *median], 'stroke="#08519c" stroke-width="1.5"'),
            line(0, [float(pool.capacity)] * hours, 'stroke="#a50f15" stroke-dasharray="4 3"'),
            f'<text x="{LEFT}" y="{above + HEIGHT - 10}" fill="#555">{escape(pool.forecast_note)}</text>',
        ]
    )
