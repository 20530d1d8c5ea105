"""Templates: how a page and its parts become HTML.

Rule: every text is escaped, whoever wrote it; a template that names what it was not given fails. A part is a
block of its page's template, so that what is sent later looks as what came first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cotenant.controller.cli.frame.screen import duration, local_time, plural, size
from cotenant.controller.wire import wall_s

FOLDER: Final = Path(__file__).parent


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(about=about, duration=duration, size=size, at=lambda at: local_time(wall_s(at)))
    made.globals.update(plural=plural)
    made.globals["ui"] = made.get_template("macros.html").module
    return made


def about(seconds: float | None) -> str:
    """A duration in its largest units, so that a page need not change every second: `45s`, `12m`, `2h05m`."""
    if seconds is None or seconds < 60.0:
        return duration(seconds)
    return duration(seconds - seconds % 60.0).removesuffix("00s")


def whole(name: str, context: Mapping[str, Any]) -> str:
    return environment().get_template(f"{name}.html").render(context)


def part(name: str, block: str, context: Mapping[str, Any]) -> str:
    template = environment().get_template(f"{name}.html")
    return "".join(template.blocks[block](template.new_context(dict(context)))).strip()
