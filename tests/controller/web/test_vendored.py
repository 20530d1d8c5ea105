"""Files of others are as they were published, and come with their licences."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "controller" / "web" / "static"
OURS = {"site.css", "site.js", "plot.js", "icon.svg"}


def test_they_are_as_they_were_published() -> None:
    told = dict(
        re.findall(r"\| `([\w.-]+)` \|.*\| `([0-9a-f]{64})` \|", (ROOT / "docs" / "web.md").read_text())
    )
    there = {path.name: path for path in STATIC.iterdir()}
    licences = {name for name in there if name.endswith("-LICENSE.txt")}
    assert set(told) == set(there) - OURS - licences
    assert {name: hashlib.sha256(there[name].read_bytes()).hexdigest() for name in told} == told
    assert {name.removesuffix("-LICENSE.txt") for name in licences} == {"htmx", "htmx-ext-sse", "uPlot"}


def test_they_are_in_the_notice() -> None:
    notice = (ROOT / "NOTICE").read_text()
    assert [path.name for path in STATIC.iterdir() if path.name not in OURS and path.name not in notice] == []
