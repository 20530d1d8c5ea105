"""The style sheet of a timeline: inside a picture that is a file, beside one that is part of a page.

Rule: every selector begins with `.timeline`, so that nothing of the page around it is touched.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.timeline.drawing import FONTS

_LIGHT: Final = """
.timeline .page { fill: #fbfcfe; stroke: #d5dbe5; }
.timeline .title, .timeline .device { fill: #10161f; }
.timeline .subtitle, .timeline .about, .timeline .tick { fill: #566072; }
.timeline .strip { fill: #eceff5; }
.timeline .grid { stroke: #d9dfe8; }
.timeline .axis { stroke: #8b95a5; }
.timeline .note { fill: #a3170f; }
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
.timeline .note { fill: #ff9d94; }
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
