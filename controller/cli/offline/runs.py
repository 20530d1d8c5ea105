"""Runs, printed in any format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cotenant.controller.cli.frame.output import Format, json_text, write_json, write_lines
from cotenant.controller.present import screen
from cotenant.controller.whatif.table import PolicySummary


def show_runs(
    form: Format, value: dict[str, Any], rows: Sequence[PolicySummary], page: Callable[[bool], str]
) -> None:
    """Print the runs in any format; `page` is told whether all columns are wanted."""
    if form == "json":
        write_json(value)
    elif form == "jsonl":
        write_lines([json_text({"schema": "sim-run/1", **row}) for row in rows])
    elif form == "id":
        write_lines(list(dict.fromkeys(row["label"] for row in rows)))
    else:
        screen.say(page(form == "wide"))
