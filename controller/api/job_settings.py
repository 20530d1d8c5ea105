"""Which options of a job may be changed: when, by whom, within which bounds.

Rule: `SETTABLE` is the only place that says so, and `SET_ON_DEVICES` what of it while a job holds devices. A
request changes everything that it asks for, or nothing. While a job runs, its owner may only shorten its time
limit: others have planned with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import NODEFAULT

from cotenant.controller import domain
from cotenant.controller.api.arrivals import TellsOwners, check_fit, check_priority
from cotenant.controller.api.permissions import jobs_named, may_touch, must_own
from cotenant.controller.api.submissions import Denied, job_words
from cotenant.controller.domain import events as ev
from cotenant.controller.domain import texts
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
    "notify": Settable(("notify",)),
    "gpus": Settable(("gpus_min", "gpus_max", "gpu_fraction"), "waits, without a save"),
    "nodes": Settable(("nodes",), "waits, without a save"),
    "gpu_type": Settable(("gpu_type",), "waits, without a save"),
}
"""By the name of the option."""
TYPES: Final[dict[str, Any]] = {
    name: kind
    for name, kind in get_type_hints(domain.JobSpec).items()
    if name in domain.JobSpec.__struct_fields__
}
UNSAID: Final[dict[str, Any]] = {
    field.name: field.default
    for field in msgspec.structs.fields(domain.JobSpec)
    if field.default is not NODEFAULT and field.name not in SETTABLE["gpus"].fields
}
"""Defaults of a specification; the number of devices has none."""


class JobSettings:
    """Sets options of jobs that have not ended."""

    def __init__(self, core: Core, tells: TellsOwners | None = None) -> None:
        """Takes the `core`. `tells`: who tells owners of their jobs; None: nobody."""
        self._core, self._tells = core, tells

    def set(self, request_id: int, request: wire.SetJobs, who: Identity) -> wire.Done:
        """All of it or nothing. An array's number stands for its tasks that wait; where none does, for those
        that hold devices.

        Raises:
            Denied, Inadmissible: something in it is not possible, or not allowed.
        """
        core, engine = self._core, self._core.state.engine
        named, found = set(map(str, job_words(request.job_ids))), jobs_named(core, request.job_ids)
        waiting = [job for job in found if job.job_id in named or job.phase in domain.WAITING]
        jobs = waiting or [job for job in found if job.phase not in domain.ENDED] or found
        if not jobs or not request.changes:
            raise Denied("usage", "nothing was to be set", "as in: cotenant set 7 priority=5")
        for job in jobs:
            must_own(who, job, "set options of")
        planned = [(job, admit(change_spec(job, request.changes), FROM_CLIENTS)) for job in jobs]
        for job, spec in planned:
            if spec.priority != job.spec.priority:
                check_priority(engine, who, (spec,))
            if spec.time_limit_s != job.spec.time_limit_s and job.phase not in domain.WAITING:
                check_limit(who, job, spec.time_limit_s, core.clock.now_s())
            if spec.notify != job.spec.notify and self._tells is not None:
                self._tells.check(spec, {})
        waits = [spec for job, spec in planned if spec != job.spec and job.phase in domain.WAITING]
        check_fit(engine, waits, self._core.state.allocations)
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


def settings_open(job: domain.Job, who: Identity) -> dict[str, SettingValue]:
    """The options that this user may set now, with their present values."""
    if job.phase in domain.ENDED or not may_touch(who, job):
        return {}
    return {key: present(job.spec, key) for key in SETTABLE if not why_not_now(job, key)}


def why_not_now(job: domain.Job, key: str) -> str:
    """Why an option cannot be set of a job as it is now; empty if it can."""
    known = SETTABLE[key]
    if job.phase in domain.ENDED:
        return f"job {job.job_id} has ended ({job.phase})"
    if job.phase not in domain.WAITING and not set(known.fields) <= set(domain.SET_ON_DEVICES):
        now = ", ".join(
            name for name, each in SETTABLE.items() if set(each.fields) <= set(domain.SET_ON_DEVICES)
        )
        return f"job {job.job_id} is {job.phase}: its {key} can be set while it waits; now only {now}"
    if known.when == "waits, without a save" and job.durable_step > 0:
        return f"job {job.job_id} has a save at step {job.durable_step}, which is of its present {key}"
    return ""


def check_limit(who: Identity, job: domain.Job, limit_s: float | None, now_s: float) -> None:
    """Checks a new time limit of a job that holds devices. Raises Denied: it is not the asker's to give, or
    has passed."""
    before_s = job.spec.time_limit_s
    if who.role != "admin" and before_s is not None and (limit_s is None or limit_s > before_s):
        raise Denied(
            "not-allowed",
            f"job {job.job_id} is {job.phase}: only an admin may lengthen its time limit now",
            "ask one; you may shorten it, or requeue the job with a longer one",
        )
    if job.phase in domain.LEAVING and job.attempt.stop_cause == "time-limit":
        raise Denied(
            "refused",
            f"job {job.job_id} has reached its time limit and leaves its devices",
            f"once it has gone, `cotenant requeue {job.job_id}` queues it again",
        )
    used_s = job.limit_used_s(now_s)
    if limit_s is not None and limit_s <= used_s:
        raise Denied(
            "refused",
            f"job {job.job_id} has run for {texts.duration(used_s)}: "
            f"a time limit of {texts.duration(limit_s)} has passed",
            f"`cotenant cancel {job.job_id}` ends it now; or give a longer one",
        )


def present(spec: domain.JobSpec, key: str) -> SettingValue:
    if key == "gpus":
        return f"{spec.gpus_min}-{spec.gpus_max}" if spec.is_elastic else spec.size
    if key == "notify":
        return ",".join(spec.notify)
    value: SettingValue = getattr(spec, SETTABLE[key].fields[0])
    return value


def fields_of(keys: Mapping[str, SettingValue]) -> list[str]:
    return [name for key in keys for name in SETTABLE[key].fields]


def change_spec(job: domain.Job, changes: Mapping[str, SettingValue]) -> domain.JobSpec:
    """The job's specification with these changes.

    Raises:
        Denied: a key cannot be set, not now, or not so.
    """
    fields: dict[str, Any] = {}
    for key, value in changes.items():
        known = SETTABLE.get(key)
        if known is None:
            raise Denied("usage", f"{key} cannot be set", f"there are {', '.join(SETTABLE)}")
        if why := why_not_now(job, key):
            anew = "submit it anew to begin without the save" if job.phase in domain.WAITING else ""
            raise Denied("refused", why, anew)
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
        if name == "notify" and value is not None:
            return domain.read_notify([word for word in str(value).split(",") if word])
        return msgspec.convert(UNSAID.get(name) if value is None else value, TYPES[name])
    except ValueError as error:
        raise Denied("usage", f"{key}: {error}") from None


def describe_changes(
    before: domain.JobSpec, after: domain.JobSpec, keys: Sequence[str] | Mapping[str, SettingValue]
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
