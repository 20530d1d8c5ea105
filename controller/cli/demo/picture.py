"""Draws a timeline as one SVG that needs nothing else and reads on dark and on light pages. Pure.

Rule: phases differ by pattern and jobs by name as well as by colour, so that the picture can be read without
telling colours apart. The page brings its own background.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from cotenant.controller.cli.demo import drawing
from cotenant.controller.cli.demo.drawing import element, text, tooltip
from cotenant.controller.cli.demo.layout import (
    AXIS,
    HEADER,
    LEFT,
    RIGHT,
    WIDTH,
    Label,
    TimelineBar,
    TimelineLayout,
    TimelineRow,
    job_colour,
    lay_out,
)
from cotenant.controller.cli.demo.timeline import Timeline, tick_step_s

_LIGHT = """
.page { fill: #fbfcfe; stroke: #d5dbe5; }
.title, .device { fill: #10161f; }
.subtitle, .about, .tick { fill: #566072; }
.strip { fill: #eceff5; }
.grid { stroke: #d9dfe8; }
.axis { stroke: #8b95a5; }
.note { fill: #a3170f; }
.mark { fill: #c3251b; }
.mark-line { stroke: #c3251b; }
.wait { fill: #ffffff; stroke: #aab3c2; }
.wait-label { fill: #303a49; }
.policy { fill: #dfe6f2; }
.policy-name { fill: #2c3e63; }
.policy-line { stroke: #5b6f99; }
.edge { stroke: #fbfcfe; }
"""
_DARK = """
.page { fill: #151a22; stroke: #2d3644; }
.title, .device { fill: #eef2f8; }
.subtitle, .about, .tick { fill: #a9b4c4; }
.strip { fill: #1f2631; }
.grid { stroke: #2d3644; }
.axis { stroke: #6b7788; }
.note { fill: #ff9d94; }
.mark { fill: #ff7a6e; }
.mark-line { stroke: #ff7a6e; }
.wait { fill: #1b212b; stroke: #5d6878; }
.wait-label { fill: #d3dae5; }
.policy { fill: #263450; }
.policy-name { fill: #cfdcf5; }
.policy-line { stroke: #8fa4cf; }
.edge { stroke: #151a22; }
"""
_STYLE = f"""
text {{ font-family: {drawing.FONTS}; }}
.title {{ font-size: 20px; font-weight: 600; }}
.subtitle {{ font-size: 13px; }}
.device {{ font-size: 14px; font-weight: 600; }}
.about, .note, .extra, .wait-label {{ font-size: 11.5px; }}
.name {{ font-size: 13px; font-weight: 600; }}
.tick {{ font-size: 12px; }}
.policy-name {{ font-size: 12.5px; font-weight: 600; }}
.grid {{ stroke-width: 1; }}
.edge {{ stroke-width: 1.2; }}
.mark-line {{ stroke-width: 2; }}
.wait {{ stroke-dasharray: 4 3; }}
.policy-line {{ stroke-width: 1.5; stroke-dasharray: 5 4; }}
{_LIGHT}@media (prefers-color-scheme: dark) {{{_DARK}}}
"""
_PHASES = ("loading", "running", "checkpointing")


def render(timeline: Timeline) -> str:
    """The whole picture."""
    layout = lay_out(timeline)
    about = f"{timeline.title}. {timeline.subtitle}".strip()
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": WIDTH,
            "height": layout.height,
            "viewBox": f"0 0 {WIDTH:g} {layout.height:g}",
            "role": "img",
            "aria-label": about,
        },
        tooltip(about),
        element("style", {}, _STYLE),
        _patterns(),
        element(
            "rect",
            {"x": 0.5, "y": 0.5, "width": WIDTH - 1, "height": layout.height - 1, "rx": 14, "class": "page"},
        ),
        text(drawing.shortened(timeline.title, 20, WIDTH - 56, bold=True), 28, 38, "title"),
        text(drawing.shortened(timeline.subtitle, 13, WIDTH - 56), 28, 60, "subtitle"),
        *_policies(timeline, layout),
        *(part for row in layout.rows for part in _strip(row)),
        *_axis(timeline, layout),
        *_policy_lines(timeline, layout),
        *(part for row in layout.rows for part in _row(timeline, row)),
        *_legend(layout),
    )


def _patterns() -> str:
    """Overlays that say the phase whatever the colour below them is."""
    diagonal = element(
        "pattern",
        {"id": "loading", "width": 7, "height": 7, "patternUnits": "userSpaceOnUse"}
        | {"patternTransform": "rotate(45)"},
        element("rect", {"width": 7, "height": 7, "fill": "#ffffff", "fill_opacity": 0.45}),
        element("rect", {"width": 3, "height": 7, "fill": "#ffffff", "fill_opacity": 0.35}),
    )
    dots = element(
        "pattern",
        {"id": "checkpointing", "width": 5, "height": 5, "patternUnits": "userSpaceOnUse"},
        element("rect", {"width": 5, "height": 5, "fill": "#10161f", "fill_opacity": 0.45}),
        element("circle", {"cx": 2.5, "cy": 2.5, "r": 1.2, "fill": "#ffffff", "fill_opacity": 0.9}),
    )
    return element("defs", {}, diagonal, dots)


def _strip(row: TimelineRow) -> Iterator[str]:
    box = row.box
    middle = box.y + box.height / 2
    yield element(
        "rect",
        {"x": box.x, "y": box.y, "width": box.width, "height": box.height, "rx": 4, "class": "strip"},
    )
    room = LEFT - 22
    fits = drawing.text_width(row.about, 11.5) <= room
    about = [row.about] if fits else row.about.split(", ", 1)
    top = middle - 2 - 7 * (len(about) - 1)
    yield text(drawing.shortened(row.name, 14, room, bold=True), LEFT - 14, top, "device", text_anchor="end")
    for i, line in enumerate(about):
        shown = drawing.shortened(line, 11.5, room)
        yield text(shown, LEFT - 14, top + 17 + 15 * i, "about", text_anchor="end")


def _row(timeline: Timeline, row: TimelineRow) -> Iterator[str]:
    for bar in row.bars:
        yield _bar(bar, job_colour(timeline, bar.job))
    for label in row.labels:
        yield _label(label)
    for x, label, about in row.markers:
        yield _marker(x, row, label, about)


def _bar(bar: TimelineBar, colour: str) -> str:
    box = bar.box
    place: dict[str, object] = {"x": box.x, "y": box.y, "width": max(box.width, 1.0), "height": box.height}
    if bar.look == "waiting":
        frame = element("rect", {**place, "rx": 3, "class": "wait"})
        flag = element("rect", {**place, "width": min(5.0, box.width), "rx": 2, "fill": colour})
        return element("g", {}, tooltip(bar.about), frame, flag)
    parts = [element("rect", {**place, "rx": 2, "fill": colour})]
    if bar.look != "running":
        parts.append(element("rect", {**place, "rx": 2, "fill": f"url(#{bar.look})"}))
    parts.append(element("rect", {**place, "rx": 2, "fill": "none", "class": "edge"}))
    return element("g", {}, tooltip(bar.about), *parts)


def _label(label: Label) -> str:
    extra: dict[str, object] = {"fill": label.fill} if label.fill else {}
    return text(label.content, label.box.x, label.baseline, label.classes, **extra)


def _marker(x: float, row: TimelineRow, label: Label, about: str) -> str:
    """A line through the row, a triangle on top of it, and the note above."""
    top, bottom = row.box.y, row.box.y + row.box.height
    start = label.box.y + label.box.height - 4
    return element(
        "g",
        {},
        tooltip(about),
        element("line", {"x1": x, "y1": start, "x2": x, "y2": bottom + 3, "class": "mark-line"}),
        element("path", {"d": f"M{x - 6:.2f} {top - 7:.2f}h12l-6 9z", "class": "mark"}),
        _label(label),
    )


def _policies(timeline: Timeline, layout: TimelineLayout) -> Iterator[str]:
    """One band per policy, as long as it decided."""
    y = HEADER + 2
    starts = [layout.x(p.at_s) for p in timeline.policies] + [WIDTH - RIGHT]
    for policy, (start, end) in zip(timeline.policies, pairwise(starts), strict=True):
        width = max(end - start - 2, 0.0)
        band = element(
            "rect", {"x": start + 1, "y": y, "width": width, "height": 22, "rx": 4, "class": "policy"}
        )
        candidates = (f"policy {policy.policy}", policy.policy)
        name = drawing.longest_that_fits(candidates, 12.5, width - 16, bold=True)
        yield element(
            "g",
            {},
            tooltip(f"from {policy.at_s:.1f} s: policy {policy.policy}"),
            band,
            *([text(name, start + 9, y + 15.5, "policy-name")] if name else []),
        )


def _policy_lines(timeline: Timeline, layout: TimelineLayout) -> Iterator[str]:
    for policy in timeline.policies[1:]:
        x = layout.x(policy.at_s)
        ends = {"x1": x, "x2": x, "y1": HEADER + 2, "y2": layout.plot.y + layout.plot.height}
        yield element("line", {**ends, "class": "policy-line"})


def _axis(timeline: Timeline, layout: TimelineLayout) -> Iterator[str]:
    bottom = layout.plot.y + layout.plot.height
    step_s = tick_step_s(timeline.end_s)
    for tick_s in range(0, int(timeline.end_s) + 1, step_s):
        x = layout.x(tick_s)
        yield element("line", {"x1": x, "x2": x, "y1": layout.plot.y, "y2": bottom, "class": "grid"})
        yield text(f"{tick_s} s", x, bottom + 17, "tick", text_anchor="middle")
    yield element("line", {"x1": LEFT, "x2": WIDTH - RIGHT, "y1": bottom, "y2": bottom, "class": "axis"})
    yield text("since submission", LEFT - 14, bottom + 17, "about", text_anchor="end")


def _legend(layout: TimelineLayout) -> Iterator[str]:
    y = layout.plot.y + layout.plot.height + AXIS
    x = LEFT
    colour = drawing.JOB_COLOURS[0]
    for look, meaning in (
        ("loading", "loading, up to the first step"),
        ("running", "running"),
        ("checkpointing", "saving its state"),
        ("waiting", "waiting"),
    ):
        swatch = {"x": x, "y": y - 11, "width": 26, "height": 14, "rx": 2}
        if look == "waiting":
            yield element("rect", {**swatch, "class": "wait"})
        else:
            yield element("rect", {**swatch, "fill": colour})
        if look in ("loading", "checkpointing"):
            yield element("rect", {**swatch, "fill": f"url(#{look})"})
        yield text(meaning, x + 33, y, "about")
        x += 33 + drawing.text_width(meaning, 11.5) + 22
    yield element("path", {"d": f"M{x:.2f} {y - 9:.2f}h12l-6 9z", "class": "mark"})
    yield text("preempted", x + 19, y, "about")
    x += 19 + drawing.text_width("preempted", 11.5) + 22
    yield text("half a row: the device is shared", x, y, "about")
