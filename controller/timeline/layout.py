"""Where everything of a timeline stands on the page. Pure.

Rule: a text is placed only where it fits, so that none overlaps another; everything a label leaves out is in
the tooltip of its bar. What is too much for one picture is left out, and counted in a line below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.timeline import drawing
from cotenant.controller.timeline.lanes import Piece, pieces, waiting_lanes
from cotenant.controller.timeline.timeline import AttemptSpan, Preemption, Segment, Timeline, WaitSpan

WIDTH = 1240.0
LEFT = 148.0
RIGHT = 28.0
HEADER = 78.0


class RowSize(NamedTuple):
    """How the rows of at most so many devices look."""

    devices_max: int
    height: float
    gap: float
    has_notes: bool
    """Above it, on preemptions; without, their tooltips tell them."""


ROWS: Final = (RowSize(8, 76.0, 14.0, True), RowSize(16, 48.0, 10.0, True), RowSize(64, 21.0, 4.0, False))
DEVICES_MAX: Final = ROWS[-1].devices_max
SEGMENTS_MAX: Final = 3_000
WAIT_LANES_MAX: Final = 12
LANE_GAP = 3.0
NOTE = 24.0
"""The height of one line of notes above a row, and of the mark below it."""
NOTE_TEXT = 17.0
WAIT_LANE = 22.0
AXIS = 50.0
LEGEND = 24.0
LABEL = 13.0
SMALL = 11.5
LINE = 17.0
PAD = 7.0


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A rectangle of the picture."""

    x: float
    y: float
    width: float
    height: float

    def attributes(self) -> dict[str, object]:
        """As those of an SVG element."""
        return {"x": self.x, "y": self.y, "width": self.width, "height": self.height}


class TimelineBar(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a stay, or a wait, on the page."""

    box: Box
    job: str
    colour: str
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
    markers: tuple[tuple[float, Label | None, str], ...] = ()
    """Where a preemption happened (x), its note where there is room for one, and its tooltip."""


class TimelineLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The page before it is markup."""

    height: float
    rows: tuple[TimelineRow, ...]
    plot: Box
    """From the first device row to the axis."""
    second_width: float
    left_out: str = ""
    """What is not in the picture."""

    def x(self, at_s: float) -> float:
        return LEFT + at_s * self.second_width


class JobTexts:
    """What there is to say about jobs and attempts, found by their names."""

    def __init__(self, timeline: Timeline) -> None:
        self.names = {each.job: each.name for each in timeline.jobs}
        self.colours = job_colours(timeline)
        self._attempts = {(each.job, each.attempt): each for each in timeline.attempts}
        self._devices = Counter(row.device.rpartition("/")[2] for row in timeline.devices)

    def attempt(self, job: str, attempt: int) -> AttemptSpan:
        return self._attempts.get((job, attempt)) or AttemptSpan(job=job, attempt=attempt)

    def name(self, job: str) -> str:
        return self.names.get(job, job)

    def job(self, job: str) -> str:
        name = self.name(job)
        return f"job {name}" if name == job else f"job {job} {name}"

    def colour(self, job: str) -> str:
        return self.colours.get(job, drawing.JOB_COLOURS[0])

    def device(self, device: str) -> str:
        """The name of a device without the host where that is clear: there is little room beside the row."""
        name = device.rpartition("/")[2]
        return name if self._devices[name] == 1 else device


def job_colours(timeline: Timeline) -> dict[str, str]:
    """Colours in turn, so that jobs that meet on a device have different ones as long as there are enough."""
    met: dict[str, set[str]] = {each.job: set() for each in timeline.jobs}
    for segments in timeline.segments_by_device().values():
        here: dict[str, float] = {}
        for segment in sorted(segments, key=lambda s: s.start_s):
            # Whoever has left long before is no neighbour; the one that was there last still is.
            latest_s = max(here.values(), default=0.0)
            here = {job: end_s for job, end_s in here.items() if end_s >= min(segment.start_s, latest_s)}
            for other in here.keys() - {segment.job}:
                met[segment.job].add(other)
                met[other].add(segment.job)
            here[segment.job] = max(segment.end_s, here.get(segment.job, 0.0))
    found: dict[str, str] = {}
    palette = drawing.JOB_COLOURS
    for number, each in enumerate(timeline.jobs):
        turn = [palette[(number + n) % len(palette)] for n in range(len(palette))]
        taken = {found.get(other) for other in met[each.job]}
        found[each.job] = next((colour for colour in turn if colour not in taken), turn[0])
    return found


def lay_out(timeline: Timeline) -> TimelineLayout:
    """Rows from top to bottom: a strip per device with its notes above it, then those who wait."""
    known = JobTexts(timeline)
    second_width = (WIDTH - LEFT - RIGHT) / timeline.end_s
    top = HEADER + (34.0 if timeline.policies else 8.0)
    y = top
    rows = []
    devices = timeline.devices[:DEVICES_MAX]
    size = next(size for size in ROWS if len(devices) <= size.devices_max)
    by_device, left_out = _drawn_segments(timeline)
    for device in devices:
        here = [p for p in timeline.preemptions if p.device == device.device]
        markers = tuple(_markers(known, here, y, second_width))
        if not size.has_notes:
            markers = tuple((x, None, about) for x, _, about in markers)
        y += NOTE if any(note for _, note, _ in markers) else 0.0
        box = Box(x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=size.height)
        bars, labels = _device_bars(known, by_device.get(device.device, ()), box, second_width)
        rows.append(
            TimelineRow(
                name=known.device(device.device),
                about=device.about,
                box=box,
                bars=bars,
                labels=labels,
                markers=markers,
            )
        )
        y += size.height + size.gap
    if timeline.waits:
        row, more = _waiting_row(known, timeline.waits, y, second_width)
        rows.append(row)
        left_out += more
        y += row.box.height + size.gap
    plot = Box(x=LEFT, y=top, width=WIDTH - LEFT - RIGHT, height=y - size.gap / 2 - top)
    return TimelineLayout(
        height=y + AXIS + LEGEND + (LINE if left_out else 0.0),
        rows=tuple(rows),
        plot=plot,
        second_width=second_width,
        left_out=f"not in the picture: {', '.join(left_out)}" if left_out else "",
    )


def _drawn_segments(timeline: Timeline) -> tuple[dict[str, list[Segment]], list[str]]:
    """Segments by device, the shortest left out where there are too many; and what else is left out."""
    drawn, left_out = timeline, []
    if len(timeline.segments) > SEGMENTS_MAX:
        longest = sorted(timeline.segments, key=lambda s: s.start_s - s.end_s)
        shortest_s = longest[SEGMENTS_MAX].end_s - longest[SEGMENTS_MAX].start_s
        kept = tuple(s for s in timeline.segments if s.end_s - s.start_s > shortest_s)
        drawn = msgspec.structs.replace(timeline, segments=kept)
        count = len(timeline.segments) - len(kept)
        left_out.append(f"{count:,} phases of {shortest_s:.3g} s and less (choose a shorter time)")
    if len(timeline.devices) > DEVICES_MAX:
        left_out.append(f"{len(timeline.devices) - DEVICES_MAX:,} more devices")
    return drawn.segments_by_device(), left_out


def _device_bars(
    known: JobTexts, segments: Sequence[Segment], box: Box, second_width: float
) -> tuple[tuple[TimelineBar, ...], tuple[Label, ...]]:
    bars = []
    room: dict[tuple[str, int], Box] = {}
    for piece in pieces(segments):
        bar = _bar(known, piece, segments[0].device, box, second_width)
        bars.append(bar)
        key = (piece.stay.job, piece.stay.attempt)
        if piece.phase == "running" and (key not in room or bar.box.width > room[key].width):
            room[key] = bar.box
    labels = [
        label
        for (job, attempt), where in room.items()
        for label in _bar_labels(known, known.attempt(job, attempt), where)
    ]
    return tuple(bars), tuple(labels)


def _bar(known: JobTexts, piece: Piece, device: str, box: Box, second_width: float) -> TimelineBar:
    height = (box.height - LANE_GAP * (piece.tenants - 1)) / piece.tenants
    stay = piece.stay
    doing = "loading for nothing" if piece.phase == "futile" else piece.phase
    about = f"{known.job(stay.job)}, attempt {stay.attempt} on {device}: "
    about += f"{doing} from {piece.start_s:.1f} s to {piece.end_s:.1f} s"
    about += f", beside job {' and '.join(piece.beside)}" if piece.beside else ", alone"
    steps = known.attempt(stay.job, stay.attempt).accumulation_steps
    return TimelineBar(
        box=Box(
            x=LEFT + piece.start_s * second_width,
            y=box.y + piece.rank * (height + LANE_GAP),
            width=(piece.end_s - piece.start_s) * second_width,
            height=height,
        ),
        job=stay.job,
        colour=known.colour(stay.job),
        look=piece.phase,
        about=about + (f", {steps} accumulation steps" if steps > 1 else ""),
    )


def _bar_labels(known: JobTexts, attempt: AttemptSpan, box: Box) -> list[Label]:
    """A name, and below or behind it what is special about the attempt; as much as fits."""
    fill = drawing.text_colour(known.colour(attempt.job))
    extras = [f"s = {attempt.accumulation_steps}"] if attempt.accumulation_steps > 1 else []
    if attempt.resumed_from_step is not None:
        extras.append(f"resumed at step {attempt.resumed_from_step}")
    extra, short = ", ".join(extras), extras[0] if extras else ""
    name, number = known.name(attempt.job), attempt.job
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
    known: JobTexts, preemptions: Sequence[Preemption], y: float, second_width: float
) -> Iterator[tuple[float, Label | None, str]]:
    """Preemptions at one device; the line that begins at `y` has as many notes as fit beside each other."""
    free_from = LEFT
    for each in sorted(preemptions, key=lambda p: p.at_s):
        at = LEFT + each.at_s * second_width
        is_clear = known.name(each.victim) != known.name(each.newcomer)
        content = each.describe(known.name if is_clear else known.job)
        width = drawing.text_width(content, SMALL)
        x = at + 10 if at + 10 + width <= WIDTH - RIGHT else at - 10 - width
        note = None
        if x >= free_from:
            free_from = max(x + width, at) + 12
            box = Box(x=x, y=y, width=width, height=NOTE_TEXT)
            note = Label(content=content, box=box, size=SMALL, classes="note")
        yield at, note, f"{each.device}, {each.at_s:.1f} s: {each.describe(known.job)}"


def _waiting_row(
    known: JobTexts, waits: Sequence[WaitSpan], y: float, second_width: float
) -> tuple[TimelineRow, list[str]]:
    placed = [each for each in waiting_lanes(waits) if each[1] < WAIT_LANES_MAX]
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
        about = f"{known.job(wait.job)} waits from {wait.start_s:.1f} s to {wait.end_s:.1f} s"
        colour = known.colour(wait.job)
        bars.append(TimelineBar(box=box, job=wait.job, colour=colour, look="waiting", about=about))
        labels.extend(_wait_label(known, wait, box))
    box = Box(x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=lanes * WAIT_LANE - LANE_GAP)
    more = len(waits) - len(placed)
    row = TimelineRow(name="waiting", about="no device", box=box, bars=tuple(bars), labels=tuple(labels))
    return row, [f"{more:,} more that wait at the same time"] if more else []


def _wait_label(known: JobTexts, wait: WaitSpan, box: Box) -> list[Label]:
    name = known.name(wait.job)
    length = drawing.duration(wait.end_s - wait.start_s)
    titles = [f"{wait.job}  {name}"] if wait.job != name else []
    candidates = [*(f"{title}, {length}" for title in (*titles, name)), *titles, name, wait.job, length]
    content = drawing.longest_that_fits(candidates, SMALL, box.width - 2 * PAD - 5)
    if not content:
        return []
    width = drawing.text_width(content, SMALL)
    room = Box(x=box.x + PAD + 5, y=box.y + 1, width=width, height=box.height - 2)
    return [Label(content=content, box=room, size=SMALL, classes="wait-label")]
