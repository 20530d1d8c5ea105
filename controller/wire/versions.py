"""Where version 1 of the wire differs: bodies of its frames to ours, and ours to its. Rule: only this module
knows a version before ours. Its tables are by a message's name; a message in none of them is the same in both
versions. A controller understands requests and agents of version 1 as they are: it translates nothing that it
receives. What is wrong with a controller's answer is found here as an
ordinary error of Python's (a missing name, a wrong type), or later, where it is validated.

Version 1 gave views in a shape of their own, which the command line mapped to its JSON. Its times were
seconds of the journal beside `now_s` and `wall_s`, the same moment by both clocks; here `now_s` is the wall
clock's as well. A command of version 1 is told no model of the time of a step: a view keeps only what that
predicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from cotenant.controller.domain import INDICATOR_NAMES, NOTES, Gang, Profile
from cotenant.controller.wire.times import utc, wall_s
from cotenant.controller.wire.views import profile_view, throughput_view

Body = dict[str, Any]
Table = dict[str, Callable[[Body], Body]]

NAMES: Final = {
    "job_id": "job",
    "phase": "state",
    "job_class": "class",
    "remaining_s": "left_s",
    "estimate_source": "left_source",
}
"""Fields of a job: the name in version 1, and ours."""
JOB_TIMES: Final = ("submitted", "started", "ended")
ATTEMPT_TIMES: Final = ("launched", "first_step", "stop_requested", "ended")
NULLS: Final = ("left_source", *NOTES)
"""Fields of a job that were empty in version 1 where ours are null."""
OPEN: Final = ("left_s", "left_source", "expected_load_s", "expected_pause_s")
"""Fields of a job that version 1 also gave for one that had ended."""
NODE: Final = ("version", "address", "cpus", "memory_mib", "features", "checkpoint_domain")
DEVICE: Final = (
    "kind", "type", "memory_mib", "reserve_mib", "max_tenants", "sharing", "sharing_note", "cores", "state",
    "healthy", "note",
)  # fmt: skip
KNOWN: Final = (
    "key",
    "kind",
    "user",
    "name",
    "command",
    "gpus",
    "hosts",
    "device_type",
    "batch_size",
    "used",
)
READING: Final = ("age_s", "lasted_s", "memory_used_mib")
PROFILE: Final = ("points", "accumulates", "memory_mib_peak", "duty_cycle", "load_s", "steps")


def heard(body: Any) -> Any:
    """A version 1 controller's answer as a body of ours."""
    return _translated(body, FROM_1)


def said(body: Any) -> Any:
    """A body of ours as a peer of version 1 expects it."""
    return _translated(body, TO_1)


def _translated(body: Any, table: Table) -> Any:
    translate = table.get(str(body.get("m"))) if isinstance(body, dict) else None
    return body if translate is None else translate(dict(body))


# --- As we say it ----------------------------------------------------------------------------------


def _now(body: Body) -> Callable[[float | None], str | None]:
    """Takes the clocks out of a reply, and reads its times by them."""
    offset_s = body["wall_s"] - body.pop("now_s")
    body["now"] = utc(body.pop("wall_s"))
    return lambda at_s: None if at_s is None else utc(offset_s + at_s)


def _job(job: Body, at: Callable[[float | None], str | None]) -> Body:
    now = {NAMES.get(name, name): value for name, value in job.items()}
    for name in JOB_TIMES:
        now[f"{name}_at"] = at(now.pop(f"{name}_s"))
    for name in NULLS:
        now[name] = now.get(name) or None
    if now["ended_at"] is not None:
        now.update(dict.fromkeys(OPEN))
    return now


def _jobs(body: Body) -> Body:
    at = _now(body)
    return {**body, "jobs": [_job(job, at) for job in body["jobs"]]}


def _shown(body: Body) -> Body:
    at, spec = _now(body), body.pop("spec")
    profile = msgspec.convert(body.pop("profile", None), Profile | None, strict=False)
    details = {
        "spec": spec,
        "attempts": [_attempt(each, at) for each in body.pop("attempts")],
        "profile": None if profile is None else profile_view(profile),
        "profile_given": body.pop("profile_given", False),
        "throughput": throughput_view(
            profile, spec["batch_size"], Gang(devices=spec["gpus_min"], hosts=spec["nodes"] or 1)
        ),
    }
    return {**body, "job": {**_job(body["job"], at), **msgspec.to_builtins(details)}}


def _attempt(attempt: Body, at: Callable[[float | None], str | None]) -> Body:
    now = dict(attempt)
    for name in ATTEMPT_TIMES:
        now[f"{name}_at"] = at(now.pop(f"{name}_s"))
    return now


def _explained(body: Body) -> Body:
    job = _job(body["job"], _now(body))
    explanation = {name: job[name] for name in ("job", "state", "reason", "reason_code")}
    return {
        **body,
        "job": job,
        "explanation": {**explanation, "lines": body.pop("lines"), "now": body["now"]},
    }


def _nodes(body: Body) -> Body:
    _now(body)
    return {**body, "nodes": [_node(node) for node in body["nodes"]]}


def _node(node: Body) -> Body:
    report, readings = node["report"], node.get("readings", {})
    return {
        "host": report["host_id"],
        **{name: node[name] for name in ("state", "reason", "heartbeat_age_s")},
        **{name: report[name] for name in NODE},
        "devices": [
            {
                "device": device["device_id"],
                **{name: device[name] for name in DEVICE},
                "planned_mib": node["planned_mib"].get(device["device_id"], 0),
                "indicators": _reading(readings.get(device["device_id"])),
                "jobs": node["tenants"].get(device["device_id"], ()),
            }
            for device in report["devices"]
        ],
    }


def _reading(reading: Body | None) -> Body | None:
    """Its defaults were left out."""
    if reading is None:
        return None
    values = reading.get("values", {})
    return {
        "age_s": 0.0,
        **{name: reading.get(name) for name in READING if name in reading or name != "age_s"},
        "source": reading.get("source") or None,
        "values": {name: values.get(name) for name in INDICATOR_NAMES},
        "note": reading.get("why", ""),
    }


def _pairs(body: Body) -> Body:
    _now(body)
    return body


def _profiles(body: Body) -> Body:
    at = _now(body)
    return {**body, "profiles": [_known(each, at) for each in body["profiles"]]}


def _known(known: Body, at: Callable[[float | None], str | None]) -> Body:
    profile = msgspec.convert(known["profile"], Profile, strict=False)
    gang = Gang(devices=max(known["gpus"], known["hosts"]), hosts=known["hosts"])
    throughput = throughput_view(profile, known["batch_size"], gang)
    return {
        **{name: known[name] for name in KNOWN if name in known},
        "complete": known["is_complete"],
        "learned_at": at(known["learned_s"]),
        "job": known["job_id"],
        **msgspec.to_builtins(profile_view(profile)),
        "throughput": msgspec.to_builtins(throughput),
    }


def _policies(body: Body) -> Body:
    name, given, defaults = body["name"], body["parameters"], body["defaults"]
    offers = [
        {"policy": each, "about": about, "available": True, "defaults": defaults.get(each, {})}
        for each, about in sorted(body["available"].items())
    ]
    offers += [
        {"policy": each, "about": f"not available: {lacks}", "available": False, "defaults": {}}
        for each, lacks in sorted(body.get("unavailable", {}).items())
    ]
    return {
        "m": body["m"],
        "request_id": body["request_id"],
        "current": {
            "policy": name,
            "about": body["available"].get(name, ""),
            "parameters": {**defaults.get(name, {}), **given},
        },
        "given": given,
        "offers": [{**offer, "current": offer["policy"] == name} for offer in offers],
    }


# --- As version 1 said it --------------------------------------------------------------------------


def _clocks(body: Body) -> None:
    body["now_s"] = body["wall_s"] = wall_s(body.pop("now"))


def _job_1(job: Body) -> Body:
    names = {now: then for then, now in NAMES.items()}
    then = {names.get(name, name): value for name, value in job.items() if name != "schema"}
    for name in JOB_TIMES:
        then[f"{name}_s"] = wall_s(then.pop(f"{name}_at"))
    for name in NULLS:
        then[names.get(name, name)] = job[name] or ""
    return then


def _jobs_1(body: Body) -> Body:
    _clocks(body)
    return {**body, "jobs": [_job_1(job) for job in body["jobs"]]}


def _shown_1(body: Body) -> Body:
    _clocks(body)
    job = dict(body["job"])
    details = {name: job.pop(name) for name in ("spec", "attempts", "profile", "profile_given", "throughput")}
    return {
        **body,
        "job": _job_1(job),
        "spec": details["spec"],
        "attempts": [_attempt_1(each) for each in details["attempts"]],
        "profile": None if details["profile"] is None else _profile_1(details["profile"]),
        "profile_given": details["profile_given"],
    }


def _attempt_1(attempt: Body) -> Body:
    then = dict(attempt)
    for name in ATTEMPT_TIMES:
        then[f"{name}_s"] = wall_s(then.pop(f"{name}_at"))
    return then


def _profile_1(profile: Body) -> Body:
    indicators = {
        name: {field: value for field, value in stats.items() if value is not None}
        for name, stats in profile["indicators"].items()
    }
    measured = any("mean" in stats or "variance" in stats for stats in indicators.values())
    return {
        **{name: profile[name] for name in PROFILE},
        "source": profile["source"] or "unknown",
        "indicators": indicators if measured else None,
    }


def _explained_1(body: Body) -> Body:
    explanation = body.pop("explanation")
    body["now"] = explanation["now"]
    _clocks(body)
    return {**body, "job": _job_1(body["job"]), "lines": explanation["lines"]}


def _nodes_1(body: Body) -> Body:
    _clocks(body)
    return {**body, "nodes": [_node_1(node) for node in body["nodes"]]}


def _node_1(node: Body) -> Body:
    host, devices = node["host"], node["devices"]
    return {
        "report": {
            "host_id": host,
            **{name: node[name] for name in NODE},
            "devices": [
                {
                    "device_id": device["device"],
                    "host_id": host,
                    "local": device["device"].rpartition("/")[2],
                    **{name: device[name] for name in DEVICE},
                }
                for device in devices
            ],
        },
        **{name: node[name] for name in ("state", "reason", "heartbeat_age_s")},
        "tenants": {device["device"]: device["jobs"] for device in devices},
        "planned_mib": {device["device"]: device["planned_mib"] for device in devices},
        "readings": {
            device["device"]: _reading_1(device["device"], device["indicators"])
            for device in devices
            if device["indicators"] is not None
        },
    }


def _reading_1(device_id: str, reading: Body) -> Body:
    return {
        "device_id": device_id,
        **{name: reading[name] for name in READING},
        "source": reading["source"] or "",
        "values": {name: value for name, value in reading["values"].items() if value is not None},
        "why": reading["note"],
    }


def _pairs_1(body: Body) -> Body:
    _clocks(body)
    return body


def _profiles_1(body: Body) -> Body:
    """The reply has no time of its own any more: each profile has that at which it was learned."""
    return {**body, "now_s": 0.0, "wall_s": 0.0, "profiles": [_known_1(each) for each in body["profiles"]]}


def _known_1(known: Body) -> Body:
    return {
        **{name: known[name] for name in KNOWN},
        "is_complete": known["complete"],
        "learned_s": wall_s(known["learned_at"]),
        "job_id": known["job"],
        "profile": _profile_1(known),
    }


def _policies_1(body: Body) -> Body:
    there = [offer for offer in body["offers"] if offer["available"]]
    return {
        "m": body["m"],
        "request_id": body["request_id"],
        "name": body["current"]["policy"],
        "parameters": body["given"],
        "available": {offer["policy"]: offer["about"] for offer in there},
        "defaults": {offer["policy"]: offer["defaults"] for offer in there},
        "unavailable": {
            offer["policy"]: offer["about"].removeprefix("not available: ")
            for offer in body["offers"]
            if not offer["available"]
        },
    }


def _not_followed_1(body: Body) -> Body:
    """Version 1 had to fill it, and nobody has ever read it."""
    return {**body, "follows": {}}


def _obey_1(body: Body) -> Body:
    """It had to be there."""
    is_start = body["command"]["command"] == "StartAttempt"
    return {**body, "command": {"resume_attempt": None, **body["command"]}} if is_start else body


FROM_1: Final[Table] = {
    "job-list": _jobs,
    "shown": _shown,
    "explained": _explained,
    "node-list": _nodes,
    "pair-list": _pairs,
    "profile-list": _profiles,
    "policy-view": _policies,
}
TO_1: Final[Table] = {
    "job-list": _jobs_1,
    "shown": _shown_1,
    "explained": _explained_1,
    "node-list": _nodes_1,
    "pair-list": _pairs_1,
    "profile-list": _profiles_1,
    "policy-view": _policies_1,
    "obey": _obey_1,
    "not-followed": _not_followed_1,
}
