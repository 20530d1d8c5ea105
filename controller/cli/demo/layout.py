"""Where everything of a timeline stands on the page. Pure.

Rule: a text is placed only where it fits, so that none overlaps another; everything a label leaves out is in
the tooltip of its bar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cotenant.controller.cli.demo import drawing
from cotenant.controller.cli.demo.timeline import (
    AttemptSpan,
    Piece,
    Preemption,
    Segment,
    Timeline,
    WaitSpan,
    pieces,
    waiting_lanes,
)

WIDTH = 1240.0
LEFT = 148.0
RIGHT = 28.0
HEADER = 78.0
ROW = 76.0
ROW_GAP = 14.0
LANE_GAP = 3.0
NOTE = 21.0
"""The height of one line of notes above a row."""
WAIT_LANE = 22.0
AXIS = 50.0
LEGEND = 24.0
LABEL = 13.0
SMALL = 11.5
LINE = 17.0
PAD = 7.0


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        tolerance = 0.01
        return (
            self.x + self.width > other.x + tolerance
            and other.x + other.width > self.x + tolerance
            and self.y + self.height > other.y + tolerance
            and other.y + other.height > self.y + tolerance
        )


class TimelineBar(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a stay, or a wait, on the page."""

    box: Box
    job: str
    look: str
    """The phase, or `waiting`."""
    about: str


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """A text on the page and the room it takes at most."""

    content: str
    box: Box
    size: float
    classes: str
    fill: str = ""

    @property
    def baseline(self) -> float:
        return self.box.y + self.box.height - 0.28 * self.size


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """A device's strip, its bars, and the notes above it."""

    name: str
    about: str
    box: Box
    bars: tuple[TimelineBar, ...]
    labels: tuple[Label, ...]
    markers: tuple[tuple[float, Label, str], ...] = ()
    """Where a preemption happened (x), its note, and its tooltip."""


class TimelineLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The page before it is markup."""

    height: float
    rows: tuple[TimelineRow, ...]
    plot: Box
    """From the first device row to the axis."""
    second_width: float

    def x(self, at_s: float) -> float:
        return LEFT + at_s * self.second_width

    def bars(self) -> Iterator[TimelineBar]:
        return (bar for row in self.rows for bar in row.bars)

    def labels(self) -> Iterator[Label]:
        for row in self.rows:
            yield from row.labels
            yield from (label for _, label, _ in row.markers)


def lay_out(timeline: Timeline) -> TimelineLayout:
    """Rows from top to bottom: a strip per device with its notes above it, then those who wait."""
    second_width = (WIDTH - LEFT - RIGHT) / timeline.end_s
    top = HEADER + (34.0 if timeline.policies else 8.0)
    y = top
    rows = []
    for device in timeline.devices:
        markers, note_lines = _markers(timeline, device.device, y, second_width)
        y += note_lines * NOTE
        segments = [s for s in timeline.segments if s.device == device.device]
        box = Box(x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=ROW)
        bars, labels = _device_bars(timeline, segments, box, second_width)
        rows.append(
            TimelineRow(
                name=_device_name(timeline, device.device),
                about=device.about,
                box=box,
                bars=bars,
                labels=labels,
                markers=markers,
            )
        )
        y += ROW + ROW_GAP
    if timeline.waits:
        rows.append(_waiting_row(timeline, y, second_width))
        y += rows[-1].box.height + ROW_GAP
    plot = Box(x=LEFT, y=top, width=WIDTH - LEFT - RIGHT, height=y - ROW_GAP / 2 - top)
    return TimelineLayout(height=y + AXIS + LEGEND, rows=tuple(rows), plot=plot, second_width=second_width)


def _device_bars(
    timeline: Timeline, segments: Sequence[Segment], box: Box, second_width: float
) -> tuple[tuple[TimelineBar, ...], tuple[Label, ...]]:
    bars = []
    room: dict[tuple[str, int], Box] = {}
    for piece in pieces(segments):
        bar = _bar(timeline, piece, segments, box, second_width)
        bars.append(bar)
        key = (piece.stay.job, piece.stay.attempt)
        if piece.phase == "running" and (key not in room or bar.box.width > room[key].width):
            room[key] = bar.box
    labels = [
        label
        for (job, attempt), where in room.items()
        for label in _bar_labels(timeline, _attempt(timeline, job, attempt), where)
    ]
    return tuple(bars), tuple(labels)


def _bar(
    timeline: Timeline, piece: Piece, segments: Sequence[Segment], box: Box, second_width: float
) -> TimelineBar:
    height = (box.height - LANE_GAP * (piece.tenants - 1)) / piece.tenants
    stay = piece.stay
    with_whom = sorted(
        {s.job for s in segments if s.job != stay.job and s.start_s < piece.end_s and piece.start_s < s.end_s}
    )
    about = f"{_job(timeline, stay.job)}, attempt {stay.attempt} on {segments[0].device}: "
    about += f"{piece.phase} from {piece.start_s:.1f} s to {piece.end_s:.1f} s"
    about += f", beside job {' and '.join(with_whom)}" if with_whom else ", alone"
    steps = _attempt(timeline, stay.job, stay.attempt).accumulation_steps
    return TimelineBar(
        box=Box(
            x=LEFT + piece.start_s * second_width,
            y=box.y + piece.rank * (height + LANE_GAP),
            width=(piece.end_s - piece.start_s) * second_width,
            height=height,
        ),
        job=stay.job,
        look=piece.phase,
        about=about + (f", {steps} accumulation steps" if steps > 1 else ""),
    )


def _bar_labels(timeline: Timeline, attempt: AttemptSpan, box: Box) -> list[Label]:
    """A name, and below or behind it what is special about the attempt; as much as fits."""
    fill = drawing.text_colour(job_colour(timeline, attempt.job))
    extras = [f"s = {attempt.accumulation_steps}"] if attempt.accumulation_steps > 1 else []
    if attempt.resumed_from_step is not None:
        extras.append(f"resumed at step {attempt.resumed_from_step}")
    extra, short = ", ".join(extras), extras[0] if extras else ""
    name, number = _name(timeline, attempt.job), attempt.job
    width = box.width - 2 * PAD
    two_lines = box.height > 3.2 * LABEL
    titles = [f"{number}  {name}"] if number != name else []
    names = [*titles, name, number]
    if extra and not two_lines:
        full = [f"{title}, {extra}" for title in (*titles, name)]
        names = [*full, *(f"{title}, {short}" for title in (*titles, name)), *names]
    lines = [drawing.longest_that_fits(names, LABEL, width, bold=True)]
    lines += [drawing.longest_that_fits([extra, short], SMALL, width)] if extra and two_lines else []
    # A slice lower than a line (five tenants and more) shows no name; its tooltip has it.
    shown = [line for line in lines if line] if box.height >= LINE else []
    top = box.y + (box.height - len(shown) * LINE) / 2
    return [
        Label(
            content=line,
            box=Box(
                x=box.x + PAD,
                y=top + LINE * i,
                width=drawing.text_width(line, LABEL if i == 0 else SMALL, bold=i == 0),
                height=LINE,
            ),
            size=LABEL if i == 0 else SMALL,
            classes="name" if i == 0 else "extra",
            fill=fill,
        )
        for i, line in enumerate(shown)
    ]


def _markers(
    timeline: Timeline, device: str, y: float, second_width: float
) -> tuple[tuple[tuple[float, Label, str], ...], int]:
    """The notes on preemptions at one device, on as few lines as keep them apart."""
    here = sorted((p for p in timeline.preemptions if p.device == device), key=lambda p: p.at_s)
    line_ends: list[float] = []
    placed: list[tuple[float, str, float, float, int, Preemption]] = []
    for each in here:
        at = LEFT + each.at_s * second_width
        content = f"{_name(timeline, each.victim)} saves and makes room for {_name(timeline, each.newcomer)}"
        width = drawing.text_width(content, SMALL)
        x = at + 10 if at + 10 + width <= WIDTH - RIGHT else max(LEFT, at - 10 - width)
        line = next((i for i, end in enumerate(line_ends) if end + 12 <= min(x, at)), len(line_ends))
        line_ends[line : line + 1] = [max(x + width, at)]
        placed.append((at, content, x, width, line, each))
    lines = len(line_ends)
    return (
        tuple(
            (
                at,
                Label(
                    content=content,
                    # The first line is the one next to the row.
                    box=Box(x=x, y=y + (lines - 1 - line) * NOTE, width=width, height=NOTE - 4),
                    size=SMALL,
                    classes="note",
                ),
                f"{each.at_s:.1f} s: job {each.newcomer} preempts job {each.victim} on {device}",
            )
            for at, content, x, width, line, each in placed
        ),
        lines,
    )


def _waiting_row(timeline: Timeline, y: float, second_width: float) -> TimelineRow:
    placed = waiting_lanes(timeline.waits)
    lanes = 1 + max(lane for _, lane in placed)
    bars = []
    labels = []
    for wait, lane in placed:
        box = Box(
            x=LEFT + wait.start_s * second_width,
            y=y + lane * WAIT_LANE,
            width=(wait.end_s - wait.start_s) * second_width,
            height=WAIT_LANE - LANE_GAP,
        )
        bars.append(TimelineBar(box=box, job=wait.job, look="waiting", about=_about_wait(timeline, wait)))
        labels.extend(_wait_label(timeline, wait, box))
    box = Box(x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=lanes * WAIT_LANE - LANE_GAP)
    return TimelineRow(name="waiting", about="no device", box=box, bars=tuple(bars), labels=tuple(labels))


def _wait_label(timeline: Timeline, wait: WaitSpan, box: Box) -> list[Label]:
    name = _name(timeline, wait.job)
    length = f"{wait.end_s - wait.start_s:.0f} s"
    titles = [f"{wait.job}  {name}"] if wait.job != name else []
    candidates = [*(f"{title}, {length}" for title in (*titles, name)), *titles, name, wait.job, length]
    content = drawing.longest_that_fits(candidates, SMALL, box.width - 2 * PAD - 5)
    if not content:
        return []
    width = drawing.text_width(content, SMALL)
    room = Box(x=box.x + PAD + 5, y=box.y + 1, width=width, height=box.height - 2)
    return [Label(content=content, box=room, size=SMALL, classes="wait-label")]


def _about_wait(timeline: Timeline, wait: WaitSpan) -> str:
    return f"{_job(timeline, wait.job)} waits from {wait.start_s:.1f} s to {wait.end_s:.1f} s"


def _device_name(timeline: Timeline, device: str) -> str:
    """Without the host where that is clear: there is little room beside the row."""
    names = [row.device.rpartition("/")[2] for row in timeline.devices]
    name = device.rpartition("/")[2]
    return name if names.count(name) == 1 else device


def _attempt(timeline: Timeline, job: str, attempt: int) -> AttemptSpan:
    found = (a for a in timeline.attempts if (a.job, a.attempt) == (job, attempt))
    return next(found, AttemptSpan(job=job, attempt=attempt))


def _name(timeline: Timeline, job: str) -> str:
    return next((each.name for each in timeline.jobs if each.job == job), job)


def _job(timeline: Timeline, job: str) -> str:
    name = _name(timeline, job)
    return f"job {name}" if name == job else f"job {job} {name}"


def job_colour(timeline: Timeline, job: str) -> str:
    order = [each.job for each in timeline.jobs]
    return drawing.JOB_COLOURS[order.index(job) % len(drawing.JOB_COLOURS)]
