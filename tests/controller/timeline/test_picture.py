"""The picture: bars and texts never overlap, whatever happened, and the file is a well-formed SVG."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.timeline import (
    AttemptSpan,
    DeviceRow,
    JobName,
    PolicyChange,
    Preemption,
    Segment,
    SegmentKind,
    Timeline,
    WaitSpan,
    drawing,
    fragment,
    render,
)
from cotenant.controller.timeline.lanes import pieces, stays, waiting_lanes
from cotenant.controller.timeline.layout import LEFT, RIGHT, WIDTH, Box, lay_out
from cotenant.controller.timeline.picture import tick_step_s, ticks

SVG = "{http://www.w3.org/2000/svg}"
DEVICES = ("cpu0", "cpu1")
NAMES = ("loader-bound", "memory-heavy", 'a <job> & its "name"', "x", "language-model-with-a-long-name")
PHASES: tuple[SegmentKind, ...] = ("loading", "running", "checkpointing")
TIMES = st.floats(0, 200).map(lambda t: round(t, 2))


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Any jobs on any devices at any times, overlapping as they like."""
    segments: list[Segment] = []
    attempts: list[AttemptSpan] = []
    for number in range(draw(st.integers(1, 7))):
        job = str(draw(st.integers(1, 5)))
        marks = sorted(draw(st.lists(TIMES, min_size=4, max_size=4, unique=True)))
        phases = list(zip(PHASES, marks, marks[1:], strict=False))
        for device in draw(st.sets(st.sampled_from(DEVICES), min_size=1)):
            for phase, start_s, end_s in phases[: draw(st.integers(1, 3))]:
                segments.append(
                    Segment(job=job, attempt=number, device=device, phase=phase, start_s=start_s, end_s=end_s)
                )
        resumed = draw(st.none() | st.integers(0, 10**6))
        steps = draw(st.sampled_from((1, 2, 16)))
        attempts.append(
            AttemptSpan(job=job, attempt=number, accumulation_steps=steps, resumed_from_step=resumed)
        )
    waits = [
        WaitSpan(job=str(draw(st.integers(1, 5))), start_s=start_s, end_s=start_s + draw(st.floats(0, 90)))
        for start_s in draw(st.lists(TIMES, max_size=5))
    ]
    preemptions = [
        Preemption(at_s=at_s, device=draw(st.sampled_from(DEVICES)), victim="1", newcomer="2")
        for at_s in draw(st.lists(TIMES, max_size=4))
    ]
    return Timeline(
        title="Any <history>",
        devices=tuple(DeviceRow(device=device, about="1 core") for device in DEVICES),
        jobs=tuple(JobName(job=str(i + 1), name=name) for i, name in enumerate(NAMES)),
        segments=tuple(segments),
        attempts=tuple(attempts),
        waits=tuple(waits),
        preemptions=tuple(preemptions),
        policies=(PolicyChange(at_s=0.0, policy="castor"), PolicyChange(at_s=draw(TIMES), policy="srtf")),
    )


def overlapping(boxes: list[Box]) -> bool:
    """Whether one covers a part of another."""
    ends = [(box.x, box.x + box.width - 0.01, box.y, box.y + box.height - 0.01) for box in boxes]
    return any(a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3] for a, b in combinations(ends, 2))


@given(timelines())
@settings(max_examples=60)
def test_bars_never_overlap(timeline: Timeline) -> None:
    assert not overlapping([bar.box for row in lay_out(timeline).rows for bar in row.bars])


@given(timelines())
@settings(max_examples=60)
def test_texts_never_overlap_and_stay_on_the_page(timeline: Timeline) -> None:
    layout = lay_out(timeline)
    boxes = [label.box for row in layout.rows for label in row.labels]
    boxes += [note.box for row in layout.rows for _, note, _ in row.markers if note]
    assert not overlapping(boxes)
    assert all(box.x >= LEFT and box.x + box.width <= WIDTH - RIGHT + 0.01 for box in boxes)
    assert all(box.y >= 0 and box.y + box.height <= layout.height for box in boxes)


@given(timelines())
@settings(max_examples=60)
def test_no_line_of_a_preemption_crosses_a_note(timeline: Timeline) -> None:
    for row in lay_out(timeline).rows:
        notes = [note for _, note, _ in row.markers if note is not None]
        for x, own, _ in row.markers:
            top = row.box.y - 7 if own is None else own.box.y
            crossed = (n.box for n in notes if n.box.x <= x <= n.box.x + n.box.width)
            assert not [box for box in crossed if box.y + box.height > top]


@pytest.mark.parametrize(("devices", "height_max"), [(8, 1100), (16, 1500), (32, 1000), (64, 1800)])
def test_a_picture_of_many_devices_fits_a_page_or_two(devices: int, height_max: float) -> None:
    names = [f"a-host-with-a-long-name-{n // 8}/gpu{n % 8}" for n in range(devices)]
    timeline = Timeline(
        title="",
        devices=tuple(DeviceRow(device=name, about="NVIDIA A100-SXM4-80GB, 81920 MiB") for name in names),
        jobs=(JobName(job="1", name="first"), JobName(job="2", name="second")),
        segments=tuple(
            Segment(job="1", attempt=1, device=name, phase="running", start_s=0.0, end_s=90.0)
            for name in names
        ),
        preemptions=tuple(
            Preemption(at_s=at_s, device=name, victim="1", newcomer="2")
            for name in names
            for at_s in (10.0, 10.5, 11.0)
        ),
    )
    layout = lay_out(timeline)
    assert layout.height <= height_max
    boxes = [row.box for row in layout.rows]
    boxes += [n.box for row in layout.rows for _, n, _ in row.markers if n]
    assert not overlapping(boxes)
    texts = [each.text or "" for each in ElementTree.fromstring(render(timeline)).iter(f"{SVG}text")]
    assert sum(each.endswith("/gpu7") for each in texts) == devices // 8 or devices == 8, "hosts are cut"


@given(timelines())
@settings(max_examples=60)
def test_every_second_of_a_segment_is_drawn_once(timeline: Timeline) -> None:
    for device in DEVICES:
        segments = [s for s in timeline.segments if s.device == device]
        drawn_s = sum(piece.end_s - piece.start_s for piece in pieces(segments))
        assert drawn_s == pytest.approx(sum(s.end_s - s.start_s for s in segments))


@given(timelines())
@settings(max_examples=60)
def test_in_one_lane_a_stay_ends_before_the_next_begins(timeline: Timeline) -> None:
    for device in DEVICES:
        found = stays([s for s in timeline.segments if s.device == device])
        for a, b in combinations(found, 2):
            assert a.lane != b.lane or a.end_s <= b.start_s or b.end_s <= a.start_s
    for (a_wait, a_lane), (b_wait, b_lane) in combinations(waiting_lanes(timeline.waits), 2):
        assert a_lane != b_lane or a_wait.end_s <= b_wait.start_s


@given(timelines())
@settings(max_examples=30)
def test_any_picture_is_well_formed_and_needs_nothing_else(timeline: Timeline) -> None:
    content = render(timeline)
    root = ElementTree.fromstring(content)
    assert root.tag == f"{SVG}svg"
    tags = {each.tag for each in root.iter()}
    assert not tags & {f"{SVG}script", f"{SVG}image", f"{SVG}use", f"{SVG}foreignObject"}
    addresses = content.replace("http://www.w3.org/2000/svg", "")
    assert "http" not in addresses
    assert "@import" not in addresses


def test_alone_a_job_fills_the_row_and_shared_it_keeps_to_its_half() -> None:
    def segment(job: str, start_s: float, end_s: float) -> Segment:
        return Segment(job=job, attempt=1, device="cpu0", phase="running", start_s=start_s, end_s=end_s)

    found = pieces([segment("1", 0, 10), segment("2", 4, 20)])
    shown = [(p.stay.job, p.start_s, p.end_s, p.rank, p.tenants) for p in found]
    assert shown == [("1", 0, 4, 0, 1), ("1", 4, 10, 0, 2), ("2", 4, 10, 1, 2), ("2", 10, 20, 0, 1)]


def test_tooltips_carry_what_labels_leave_out() -> None:
    timeline = Timeline(
        title="Two tiny jobs",
        devices=(DeviceRow(device="cpu0"),),
        jobs=(JobName(job="1", name="first"), JobName(job="2", name="second")),
        segments=(
            Segment(job="1", attempt=1, device="cpu0", phase="running", start_s=0.0, end_s=900.0),
            Segment(job="2", attempt=3, device="cpu0", phase="running", start_s=1.0, end_s=1.5),
        ),
        attempts=(AttemptSpan(job="2", attempt=3, accumulation_steps=4),),
    )
    titles = [each.text for each in ElementTree.fromstring(render(timeline)).iter(f"{SVG}title")]
    wanted = (
        "job 2 second, attempt 3 on cpu0: running from 1.0 s to 1.5 s, beside job 1, 4 accumulation steps"
    )
    assert wanted in titles


def test_a_segment_of_an_unknown_device_is_refused() -> None:
    stray = Segment(job="1", attempt=1, device="gpu9", phase="running", start_s=0.0, end_s=1.0)
    with pytest.raises(ValueError, match="device row"):
        Timeline(
            title="",
            devices=(DeviceRow(device="cpu0"),),
            jobs=(JobName(job="1", name="x"),),
            segments=(stray,),
        )


@pytest.mark.parametrize("colour", drawing.JOB_COLOURS)
def test_names_can_be_read_on_every_job_colour(colour: str) -> None:
    """WCAG AA asks for 4.5 for small text and 3 for large or bold text."""
    assert drawing.contrast(drawing.text_colour(colour), colour) >= 4.5


@given(st.floats(1, 10**6))
def test_the_axis_has_a_readable_number_of_ticks(span_s: float) -> None:
    assert 0 < span_s / tick_step_s(span_s) <= 12


@given(timelines())
@settings(max_examples=20)
def test_inside_a_page_it_has_nothing_that_a_strict_policy_refuses(timeline: Timeline) -> None:
    """No style sheet, no `style` attribute, no handler; a file of its own has the style sheet."""
    root = ElementTree.fromstring(fragment(timeline))
    assert f"{SVG}style" not in {each.tag for each in root.iter()}
    named = {name for each in root.iter() for name in each.attrib}
    assert not {name for name in named if name == "style" or name.startswith("on")}
    assert f"{SVG}style" in {each.tag for each in ElementTree.fromstring(render(timeline)).iter()}


@given(timelines())
@settings(max_examples=20)
def test_in_a_page_every_bar_leads_to_its_job(timeline: Timeline) -> None:
    bars = [bar for row in lay_out(timeline).rows for bar in row.bars]
    links = list(ElementTree.fromstring(fragment(timeline, "/jobs/{}".format)).iter(f"{SVG}a"))
    assert [each.get("href") for each in links] == [f"/jobs/{bar.job}" for bar in bars]
    assert [each.findtext(f"{SVG}g/{SVG}title") for each in links] == [bar.about for bar in bars]
    assert f"{SVG}a" not in {each.tag for each in ElementTree.fromstring(render(timeline)).iter()}


@given(st.floats(1, 10**7), st.none() | st.floats(0, 2 * 10**9))
def test_ticks_stand_on_the_axis(end_s: float, local_zero_s: float | None) -> None:
    found = list(ticks(end_s, local_zero_s))
    assert 1 <= len(found) <= 13 or (local_zero_s is not None and end_s < tick_step_s(end_s))
    assert all(0.0 <= at_s <= end_s for at_s, _ in found)
