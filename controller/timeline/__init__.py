"""Timelines of devices: who held which device when, one renderer to SVG, and one export for Perfetto.

Rule: pure. The demo, `cotenant timeline`, the page and the simulator say what happened in the same values,
and nobody else draws it.
"""

# fmt: off
from cotenant.controller.timeline.attempts import (
    AttemptTimes, JobTimes, TimeWindow, attempt_times, timeline_of,
)
from cotenant.controller.timeline.chrome import chrome_trace
from cotenant.controller.timeline.picture import fragment, render
from cotenant.controller.timeline.drawing import CSS
from cotenant.controller.timeline.timeline import (
    AttemptSpan, DeviceRow, JobName, SegmentKind, PolicyChange, Preemption, Segment, Timeline, WaitSpan,
)
from cotenant.controller.timeline.attempts import timeline_of_view

__all__ = [
    "CSS", "AttemptSpan", "AttemptTimes", "DeviceRow", "JobName", "JobTimes", "SegmentKind", "PolicyChange",
    "Preemption", "Segment", "TimeWindow", "Timeline", "WaitSpan", "attempt_times", "chrome_trace",
    "fragment", "render", "timeline_of", "timeline_of_view",
]
# fmt: on
