"""The columns of `cotenant history -o csv` and `-o parquet`.

Rule: this table is the only place that says which there are; headers, the types in a file and the table in
`docs/history.md` come from it.
"""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec

from cotenant.controller.wire import clients as wire

ColumnKind = Literal["text", "words", "whole", "number", "time"]
"""words: a list of texts; time: a moment, in UTC."""


class PastColumn(msgspec.Struct, frozen=True):
    """A column about jobs that have ended."""

    name: str
    """As the field of the JSON is called."""
    kind: ColumnKind
    unit: str
    meaning: str
    field: str = ""
    """Of the view; empty: as the name."""

    def value(self, job: wire.PastJobView) -> Any:
        """A moment is in RFC 3339, names with values are a JSON object; None: unknown, or it never
        happened."""
        found = attrgetter(self.field or self.name)(job)
        if self.name == "metrics":
            found = {each.name: each.value for each in found}
        if isinstance(found, dict):
            return json.dumps(found) if found else None
        return found


PAST_COLUMNS: Final = (
    PastColumn("job", "text", "", "its number; `38_4` is a task of array 38", "job_id"),
    PastColumn("name", "text", "", "name"),
    PastColumn("user", "text", "", "who submitted it"),
    PastColumn("organisation", "text", "", "for whom"),
    PastColumn("class", "text", "", "hp or spot", "job_class"),
    PastColumn("priority", "whole", "", "priority"),
    PastColumn("state", "text", "", "done, failed or cancelled", "phase"),
    PastColumn("reason", "text", "", "why it ended"),
    PastColumn("reason_code", "text", "", "the same as a word for scripts"),
    PastColumn("exit_code", "whole", "", "negative: ended by that signal"),
    PastColumn("gpus", "whole", "devices", "devices it had, or asked for"),
    PastColumn("gpu_fraction", "number", "devices", "below 1: the part of its one device"),
    PastColumn("devices", "words", "", "its last devices"),
    PastColumn("co_tenants_ever", "words", "", "jobs beside which it trained"),
    PastColumn("attempts", "whole", "", "launches"),
    PastColumn("preemptions", "whole", "", "how often it had to leave"),
    PastColumn("accumulation_steps", "whole", "", "micro-batches per step, at the end"),
    PastColumn("step", "whole", "steps", "optimizer steps done"),
    PastColumn("iterations", "whole", "steps", "steps in all, as submitted"),
    PastColumn("durable_step", "whole", "steps", "step of its last save"),
    PastColumn("loss", "number", "", "last loss that was seen"),
    PastColumn("metrics", "text", "", "last values of what it told, as a JSON object"),
    PastColumn("parameters", "text", "", "its values of a grid, as a JSON object"),
    PastColumn("link", "text", "", "its page at W&B, MLflow or elsewhere"),
    PastColumn("submitted_at", "time", "UTC", "submission"),
    PastColumn("started_at", "time", "UTC", "first launch"),
    PastColumn("ended_at", "time", "UTC", "end"),
    PastColumn("wait_s", "number", "s", "without devices"),
    PastColumn("load_s", "number", "s", "from launches to first steps"),
    PastColumn("futile_s", "number", "s", "of `load_s`: before a preemption that came before the first step"),
    PastColumn("run_s", "number", "s", "training, by the clock"),
    PastColumn("pause_s", "number", "s", "from stop requests until its devices were free"),
    PastColumn("budget_s", "number", "s", "its training budget (`--budget`)"),
    PastColumn("trained_s", "number", "s", "what it used of that: training counted as alone"),
    PastColumn("held_device_s", "number", "device-s", "held, each second of a device once"),
    PastColumn("shared_device_s", "number", "device-s", "of it: while training beside others"),
    PastColumn("lost_device_s", "number", "device-s", "what having to leave cost"),
    PastColumn("won_device_s", "number", "device-s", "its part of what sharing won"),
    PastColumn("energy_kwh", "number", "kWh", "energy of GPUs, as far as it is known"),
    PastColumn("energy_unknown_attempts", "whole", "", "attempts of which it is not"),
)


def past_row(job: wire.PastJobView) -> dict[str, Any]:
    """A job as the columns have it."""
    return {column.name: column.value(job) for column in PAST_COLUMNS}
