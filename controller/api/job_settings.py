"""Which options of a waiting job may be changed: when, by whom, within which bounds.

Rule: `SETTABLE` is the only place that says so. A request changes everything that it asks for, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import NODEFAULT

from cotenant.controller.api.arrivals import check_fit, check_priority
from cotenant.controller.api.permissions import jobs_named, may_touch, must_own
from cotenant.controller.api.submissions import Denied, job_words
from cotenant.controller.domain import WAITING, Job, JobSpec
from cotenant.controller.domain import events as ev
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import FROM_CLIENTS, admit
from cotenant.controller.wire import clients as wire

When = Literal["waits", "waits, without a save"]
SettingValue = str | int | float | None


class Settable(NamedTuple):
    """An option of a job that may be set later. A spec checks its values' bounds itself."""

    fields: tuple[str, ...]
    """Fields of the specification that get the value."""
    when: When = "waits"
    """A save fits only the number of ranks and kind of device that wrote it."""


SETTABLE: Final[Mapping[str, Settable]] = {
    "iterations": Settable(("iterations",)),
    "expect": Settable(("expected_s",)),
    "time": Settable(("time_limit_s",)),
    "budget": Settable(("budget_s",)),
    "priority": Settable(("priority",)),  # Users: up to limits.user_priority, as at submission.
    "class": Settable(("job_class",)),
    "organisation": Settable(("organisation",)),
    "mem": Settable(("memory_mib",)),
    "cpus": Settable(("cpus",)),
    "host_mem": Settable(("host_memory_mib",)),
    "share": Settable(("share",)),
    "idle": Settable(("idle",)),
    "retries": Settable(("retries",)),
    "name": Settable(("name",)),
    "gpus": Settable(("gpus_min", "gpus_max", "gpu_fraction"), "waits, without a save"),
    "nodes": Settable(("nodes",), "waits, without a save"),
    "gpu_type": Settable(("gpu_type",), "waits, without a save"),
}
"""By the name of the option."""
TYPES: Final[dict[str, Any]] = {
    name: kind for name, kind in get_type_hints(JobSpec).items() if name in JobSpec.__struct_fields__
}
UNSAID: Final[dict[str, Any]] = {
    field.name: field.default
    for field in msgspec.structs.fields(JobSpec)
    if field.default is not NODEFAULT and field.name not in SETTABLE["gpus"].fields
}
"""Defaults of a specification; the number of devices has none."""


class JobSettings:
    """Sets options of jobs that wait."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def set(self, request_id: int, request: wire.SetJobs, who: Identity) -> wire.Done:
        """All of it or nothing. An array's number stands for its tasks that wait.

        Raises:
            Denied, Inadmissible: something in it is not possible, or not allowed.
        """
        core, engine = self._core, self._core.state.engine
        named, found = set(map(str, job_words(request.job_ids))), jobs_named(core, request.job_ids)
        jobs = [job for job in found if job.job_id in named or job.phase in WAITING] or found
        if not jobs or not request.changes:
            raise Denied("usage", "nothing was to be set", "as in: cotenant set 7 priority=5")
        for job in jobs:
            must_own(who, job, "set options of")
        planned = [(job, admit(change_spec(job, request.changes), FROM_CLIENTS)) for job in jobs]
        for job, spec in planned:
            if spec.priority != job.spec.priority:
                check_priority(engine, who, (spec,))
        check_fit(engine, [spec for job, spec in planned if spec != job.spec], self._core.state.allocations)
        lines = []
        for job, spec in planned:
            changed = {name: getattr(spec, name) for name in fields_of(request.changes)}
            changed = {name: value for name, value in changed.items() if value != getattr(job.spec, name)}
            told = describe_changes(job.spec, spec, request.changes)
            lines.append(f"job {job.job_id}: {told or 'it is so already'}")
            if changed:
                core.happen(ev.SpecChanged(job_id=job.job_id, changes=changed, by=who.name))
                core.audit(who, "set", job.job_id, told)
        return wire.Done(request_id=request_id, lines=tuple(lines))


def settings_open(job: Job, who: Identity) -> dict[str, SettingValue]:
    """The options that this user may set now, with their present values."""
    if job.phase not in WAITING or not may_touch(who, job):
        return {}
    has_save = job.durable_step > 0
    return {
        key: present(job.spec, key)
        for key, known in SETTABLE.items()
        if known.when == "waits" or not has_save
    }


def present(spec: JobSpec, key: str) -> SettingValue:
    if key == "gpus":
        return f"{spec.gpus_min}-{spec.gpus_max}" if spec.is_elastic else spec.size
    value: SettingValue = getattr(spec, SETTABLE[key].fields[0])
    return value


def fields_of(keys: Mapping[str, SettingValue]) -> list[str]:
    return [name for key in keys for name in SETTABLE[key].fields]


def change_spec(job: Job, changes: Mapping[str, SettingValue]) -> JobSpec:
    """The job's specification with these changes.

    Raises:
        Denied: a key cannot be set, not now, or not so.
    """
    fields: dict[str, SettingValue] = {}
    for key, value in changes.items():
        known = SETTABLE.get(key)
        if known is None:
            raise Denied("usage", f"{key} cannot be set", f"there are {', '.join(SETTABLE)}")
        if job.phase not in WAITING:
            raise Denied("refused", f"job {job.job_id} is {job.phase}: only jobs that wait can be changed")
        if known.when == "waits, without a save" and job.durable_step > 0:
            raise Denied(
                "refused",
                f"job {job.job_id} has a save at step {job.durable_step}, which is of its present {key}",
                "submit it anew to begin without the save",
            )
        of_part = key == "gpus" and isinstance(value, float) and 0.0 < value < 1.0
        for name in known.fields:
            whole = 1.0 if name == "gpu_fraction" else value
            part = value if name == "gpu_fraction" else 1
            fields[name] = convert_value(key, name, part if of_part else whole)
    try:
        return msgspec.structs.replace(job.spec, **fields)
    except ValueError as error:
        raise Denied("usage", str(error)) from None


def convert_value(key: str, name: str, value: SettingValue) -> Any:
    try:
        return msgspec.convert(UNSAID.get(name) if value is None else value, TYPES[name])
    except msgspec.ValidationError as error:
        raise Denied("usage", f"{key}: {error}") from None


def describe_changes(
    before: JobSpec, after: JobSpec, keys: Sequence[str] | Mapping[str, SettingValue]
) -> str:
    """`priority 0 -> 5, expect - -> 60`; empty where nothing is different."""
    told = []
    for key in keys:
        old, new = present(before, key), present(after, key)
        if old != new:
            told.append(f"{key} {value_text(old)} -> {value_text(new)}")
    return ", ".join(told)


def value_text(value: SettingValue) -> str:
    return "-" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)
