"""Draws a timeline as one SVG that needs nothing else and reads on dark and on light pages, with an axis of
time whose steps people like to count in. Pure.

Rule: phases differ by pattern and jobs by name as well as by colour, so that the picture can be read without
telling colours apart. The picture brings its own background. It has no script and no `style` attribute, so
that it can stand in a page with a strict content security policy, which brings the style sheet itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from cotenant.controller.timeline import drawing
from cotenant.controller.timeline.drawing import CSS, element, text, tooltip
from cotenant.controller.timeline.layout import (
    AXIS,
    HEADER,
    LEFT,
    LINE,
    RIGHT,
    WIDTH,
    Label,
    TimelineBar,
    TimelineLayout,
    TimelineRow,
    lay_out,
)
from cotenant.controller.timeline.timeline import Timeline

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
NICE_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(n * MINUTE_S for n in (1, 2, 5, 10, 30)),
    *(n * HOUR_S for n in (1, 2, 3, 6, 12)),
)
"""Steps that people like to count in."""


def render(timeline: Timeline) -> str:
    """The whole picture, as a file of its own."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _svg(timeline, element("style", {}, CSS))


def fragment(timeline: Timeline, href: Callable[[str], str] | None = None) -> str:
    """The picture inside a page that has `CSS` as a style sheet; `href`: where a job is told of."""
    return _svg(timeline, href=href)


def _svg(timeline: Timeline, *style: str, href: Callable[[str], str] | None = None) -> str:
    layout = lay_out(timeline)
    about = f"{timeline.title}. {timeline.subtitle}".strip()
    return element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": WIDTH,
            "height": layout.height,
            "viewBox": f"0 0 {WIDTH:g} {layout.height:g}",
            "role": "group" if href else "img",
            "class": "timeline",
            "aria-label": about,
        },
        tooltip(about),
        *style,
        _patterns(),
        element(
            "rect",
            {"x": 0.5, "y": 0.5, "width": WIDTH - 1, "height": layout.height - 1, "rx": 14, "class": "page"},
        ),
        text(drawing.shorten_text(timeline.title, 20, WIDTH - 56, bold=True), 28, 38, "title"),
        text(drawing.shorten_text(timeline.subtitle, 13, WIDTH - 56), 28, 60, "subtitle"),
        *_policies(timeline, layout),
        *(part for row in layout.rows for part in _strip(row)),
        *_axis(timeline, layout),
        *_policy_lines(timeline, layout),
        *(part for row in layout.rows for part in _row(row, href)),
        *_legend(layout),
    )


def _patterns() -> str:
    """Overlays that say the phase whatever the colour below them is."""
    diagonal = element(
        "pattern",
        {"id": "timeline-loading", "width": 7, "height": 7, "patternUnits": "userSpaceOnUse"}
        | {"patternTransform": "rotate(45)"},
        element("rect", {"width": 7, "height": 7, "fill": "#ffffff", "fill_opacity": 0.45}),
        element("rect", {"width": 3, "height": 7, "fill": "#ffffff", "fill_opacity": 0.35}),
    )
    dots = element(
        "pattern",
        {"id": "timeline-checkpointing", "width": 5, "height": 5, "patternUnits": "userSpaceOnUse"},
        element("rect", {"width": 5, "height": 5, "fill": "#10161f", "fill_opacity": 0.45}),
        element("circle", {"cx": 2.5, "cy": 2.5, "r": 1.2, "fill": "#ffffff", "fill_opacity": 0.9}),
    )
    crossed = element(
        "pattern",
        {"id": "timeline-futile", "width": 8, "height": 8, "patternUnits": "userSpaceOnUse"},
        element("rect", {"width": 8, "height": 8, "fill": "#ffffff", "fill_opacity": 0.6}),
        element("path", {"d": "M0 0l8 8M8 0l-8 8", "stroke": "#10161f", "stroke_opacity": 0.75}),
    )
    return element("defs", {}, diagonal, dots, crossed)


def _strip(row: TimelineRow) -> Iterator[str]:
    box = row.box
    middle = box.y + box.height / 2
    strip = element("rect", {**box.attributes(), "rx": 4, "class": "strip"})
    yield element("g", {}, tooltip(f"{row.name}: {row.about}"), strip)
    room = LEFT - 22
    fits = drawing.text_width(row.about, 11.5) <= room
    about = [row.about] if fits or box.height < 60 else row.about.split(", ", 1)
    if box.height < 40:
        about = []
    top = middle - 2 - 7 * (len(about) - 1)
    host, slash, device = row.name.rpartition("/")
    kept = slash + device  # Of a long name the host is cut.
    name = drawing.shorten_text(host, 14, room - drawing.text_width(kept, 14, bold=True), bold=True) + kept
    yield text(name, LEFT - 14, top, "device", text_anchor="end")
    for i, line in enumerate(about):
        shown = drawing.shorten_text(line, 11.5, room)
        yield text(shown, LEFT - 14, top + 17 + 15 * i, "about", text_anchor="end")


def _row(row: TimelineRow, href: Callable[[str], str] | None) -> Iterator[str]:
    for bar in row.bars:
        # Thousands of bars are no stops of the Tab key: the page names their jobs in words, too.
        link: dict[str, object] = {"href": href(bar.job), "tabindex": -1} if href else {}
        yield element("a", link, _bar(bar)) if href else _bar(bar)
    for label in row.labels:
        yield _label(label)
    for x, note, about in row.markers:
        yield _marker(x, row, note, about)


def _bar(bar: TimelineBar) -> str:
    box, colour = bar.box, bar.colour
    place = {**box.attributes(), "width": max(box.width, 1.0)}
    if bar.look == "waiting":
        frame = element("rect", {**place, "rx": 3, "class": "wait"})
        flag = element("rect", {**place, "width": min(5.0, box.width), "rx": 2, "fill": colour})
        return element("g", {}, tooltip(bar.about), frame, flag)
    parts = [element("rect", {**place, "rx": 2, "fill": colour})]
    if bar.look != "running":
        parts.append(element("rect", {**place, "rx": 2, "fill": f"url(#timeline-{bar.look})"}))
    parts.append(element("rect", {**place, "rx": 2, "fill": "none", "class": "edge"}))
    return element("g", {}, tooltip(bar.about), *parts)


def _label(label: Label) -> str:
    extra: dict[str, object] = {"fill": label.fill} if label.fill else {}
    return text(label.content, label.box.x, label.baseline, label.classes, **extra)


def _marker(x: float, row: TimelineRow, label: Label | None, about: str) -> str:
    """A line through the row, a triangle on top of it, and the note above."""
    top, bottom = row.box.y, row.box.y + row.box.height
    rise = min(7.0, row.box.height / 7)  # No farther than the row above.
    start = top - rise if label is None else label.box.y + label.box.height - 4
    return element(
        "g",
        {},
        tooltip(about),
        element("line", {"x1": x, "y1": start, "x2": x, "y2": bottom + 3, "class": "mark-line"}),
        element("path", {"d": f"M{x - 6:.2f} {top - rise:.2f}h12l-6 9z", "class": "mark"}),
        *([] if label is None else [_label(label)]),
    )


def _policies(timeline: Timeline, layout: TimelineLayout) -> Iterator[str]:
    """Yields one band per policy, as long as the policy decided."""
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
    for tick_s, shown in ticks(timeline.end_s, timeline.local_zero_s):
        x = layout.x(tick_s)
        yield element("line", {"x1": x, "x2": x, "y1": layout.plot.y, "y2": bottom, "class": "grid"})
        yield text(shown, x, bottom + 17, "tick", text_anchor="middle")
    yield element("line", {"x1": LEFT, "x2": WIDTH - RIGHT, "y1": bottom, "y2": bottom, "class": "axis"})
    since = "since submission" if timeline.local_zero_s is None else "local time"
    yield text(since, LEFT - 40, bottom + 17, "about", text_anchor="end")


def _legend(layout: TimelineLayout) -> Iterator[str]:
    y = layout.plot.y + layout.plot.height + AXIS
    x = LEFT
    colour = drawing.JOB_COLOURS[0]
    for look, meaning in (
        ("loading", "loading, up to the first step"),
        ("futile", "a load for nothing"),
        ("running", "running"),
        ("checkpointing", "saving its state"),
        ("waiting", "waiting"),
    ):
        swatch = {"x": x, "y": y - 11, "width": 26, "height": 14, "rx": 2}
        if look == "waiting":
            yield element("rect", {**swatch, "class": "wait"})
        else:
            yield element("rect", {**swatch, "fill": colour})
        if look in ("loading", "futile", "checkpointing"):
            yield element("rect", {**swatch, "fill": f"url(#timeline-{look})"})
        yield text(meaning, x + 33, y, "about")
        x += 33 + drawing.text_width(meaning, 11.5) + 22
    yield element("path", {"d": f"M{x:.2f} {y - 9:.2f}h12l-6 9z", "class": "mark"})
    yield text("preempted", x + 19, y, "about")
    x += 19 + drawing.text_width("preempted", 11.5) + 22
    yield text("half a row: the device is shared", x, y, "about")
    if layout.left_out:
        yield text(drawing.shorten_text(layout.left_out, 11.5, WIDTH - 56), 28, y + LINE, "note")


def tick_step_s(span_s: float, ticks_max: int = 12) -> int:
    """A step of the axis with at most `ticks_max` steps over the span."""
    whole_days = DAY_S * (1 + int(span_s / DAY_S / ticks_max))
    return next((step for step in NICE_S if span_s / step <= ticks_max), whole_days)


def ticks(end_s: float, local_zero_s: float | None) -> Iterator[tuple[float, str]]:
    """(seconds from the axis's beginning, what stands there); with a clock at its round times."""
    step_s = tick_step_s(end_s)
    first_s = 0.0 if local_zero_s is None else -local_zero_s % step_s
    for number in range(int((end_s - first_s) / step_s) + 1):
        at_s = first_s + number * step_s
        if local_zero_s is None:
            yield at_s, elapsed_text(at_s, end_s)
        else:
            yield at_s, clock(local_zero_s + at_s, step_s)


def elapsed_text(at_s: float, end_s: float) -> str:
    for unit_s, unit in drawing.UNITS:
        if end_s > 4 * unit_s:
            return f"{at_s / unit_s:.3g} {unit}"
    return f"{at_s:.0f} s"


def clock(local_s: float, step_s: float) -> str:
    """A date at midnight, and where steps are days."""
    at = datetime.fromtimestamp(round(local_s), UTC)
    if step_s >= DAY_S or round(local_s) % DAY_S == 0:
        return at.strftime("%b %d")
    return at.strftime("%H:%M:%S" if step_s < MINUTE_S else "%H:%M")
