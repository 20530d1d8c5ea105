"""What people may change: jobs, hosts, the policy.

Rule: the tables say which verb means something in which phase; a verb that means nothing is refused with
the reason, never swallowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.api import permissions
from cotenant.controller.api.submissions import Denied
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.history import action_in_words
from cotenant.controller.policies import plugins, registry
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire

Make = Callable[[domain.JobId, str], ev.AnyEvent]
PREVIEWED_MAX: Final = 1_000
NAMED_MAX: Final = 20

EVENTS: Final[dict[str, Make]] = {
    "cancel": lambda job_id, by: ev.CancelRequested(job_id=job_id, by=by),
    "hold": lambda job_id, by: ev.HoldRequested(job_id=job_id, by=by),
    "release": lambda job_id, by: ev.ReleaseRequested(job_id=job_id, by=by),
    "preempt": lambda job_id, by: ev.PreemptRequested(job_id=job_id, by=by),
    "checkpoint": lambda job_id, by: ev.CheckpointRequested(job_id=job_id, by=by),
    "requeue": lambda job_id, by: ev.RequeueRequested(job_id=job_id, by=by),
}

NODE_EVENTS: Final[dict[str, Callable[[domain.HostId, str], ev.AnyEvent]]] = {
    "drain": lambda host_id, by: ev.HostDrained(host_id=host_id, by=by),
    "resume": lambda host_id, by: ev.HostResumed(host_id=host_id, by=by),
    "lost": lambda host_id, by: ev.HostLost(host_id=host_id, by=by),
}

ADVICE: Final[dict[str, str]] = {
    "hold": "only waiting jobs can be held",
    "release": "only held jobs can be released",
    "preempt": "only running jobs can be preempted",
    "checkpoint": "only running jobs can be saved",
    "requeue": "only jobs that run or have ended can go back to the queue",
}

DONE: Final[dict[str, str]] = {
    "cancel": "is cancelled",
    "hold": "is held",
    "release": "is released",
    "preempt": "saves its state and makes room",
    "checkpoint": "saves its state and goes on",
    "requeue": "leaves its devices and queues again",
}


TOO_OLD: Final = "job {} ended so long ago that only the journal knows it: submit it again"


def why_not(verb: domain.ChangeVerb, job: domain.Job) -> str:
    """Why the verb means nothing for this job now; empty if it does."""
    if job.phase in domain.ENDED and verb == "requeue":
        return why_not_again(job)
    if job.phase in domain.ENDED:
        return f"job {job.job_id} has already ended ({job.phase})"
    if job.phase not in domain.CHANGEABLE[verb]:
        return f"job {job.job_id} is {job.phase}: {ADVICE[verb]}"
    if verb in ("preempt", "checkpoint") and not job.progress.resumable:
        silent = "it does not use cotenant.checkpoint, and could not be made resumable without"
        early = "no optimizer of torch was seen to step in it, and it has not said so"
        why = job.resumable_note or (silent if job.progress.step else early)
        return f"job {job.job_id} cannot resume: {why}"
    if verb == "checkpoint" and not job.attempt.capable:
        return f"job {job.job_id} saves by itself when it is asked to leave, and cannot be saved before"
    return ""


def verbs_open(job: domain.Job, who: Identity) -> tuple[domain.ChangeVerb, ...]:
    """The changes that this user may ask for now, and that mean something."""
    if not permissions.may_touch(who, job):
        return ()
    offered = (verb for verb in domain.CHANGEABLE if verb != "preempt" or who.role == "admin")
    return tuple(verb for verb in offered if not why_not(verb, job))


def why_not_again(job: domain.Job) -> str:
    """Why a job that has ended cannot be queued again as itself; empty if it can."""
    if job.spec.profiling == "only":
        return f"job {job.job_id} was there for its profile: `cotenant profile` measures again"
    if job.spec.launch.secret_variables:
        names = ", ".join(job.spec.launch.secret_variables[:3])
        return f"job {job.job_id} had secret variables ({names}), deleted at its end: submit it again"
    return ""


def describe_change(verb: str, job: domain.Job, *, interrupt: bool = False) -> str:
    """The change, described before it is made."""
    if interrupt and job.phase in domain.ON_DEVICES and job.phase is not domain.Phase.STOPPING:
        left_s = f"{domain.INTERRUPT_S:.0f} s"
        return f"sent Ctrl-C to job {job.job_id}; it has {left_s} to end; press again to cancel now"
    if verb != "requeue" or job.phase not in domain.ENDED:
        return f"job {job.job_id} {DONE[verb]}"
    start = "from its beginning: there is no save"
    if job.durable_step:
        start = f"from its save at step {job.durable_step}, unless its hosts have deleted that since its end"
    return f"job {job.job_id} ({job.phase}) queues again as attempt {job.attempt.number + 1}, {start}"


def left_behind(jobs: Sequence[domain.Job], again: Sequence[domain.JobId], who: Identity) -> list[str]:
    """The line about jobs that were cancelled because one of these had failed, or one that waited for it;
    none where there are none."""
    children: dict[domain.JobId, list[domain.Job]] = {}
    for job in jobs:
        if (
            job.phase is domain.Phase.CANCELLED
            and job.reason.code == "after-failed"
            and permissions.may_touch(who, job)
        ):
            for dependency in job.spec.after:
                children.setdefault(dependency.job_id, []).append(job)
    found = dict.fromkeys(again)
    for job_id in (open_ids := list(found)):
        new = [child.job_id for child in children.get(job_id, ()) if child.job_id not in found]
        found |= dict.fromkeys(new)
        open_ids += new
    left = open_ids[len(dict.fromkeys(again)) :]
    if not left:
        return []
    more = f" (and {len(left) - NAMED_MAX} more)" if len(left) > NAMED_MAX else ""
    names = " ".join(left[:NAMED_MAX])
    return [
        f"cancelled when it failed, and not queued again: `cotenant requeue {names}`{more} queues these too"
    ]


class Changing:
    """Makes changes for those who may ask for them; the audit log has every one."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def jobs(self, request_id: int, request: wire.ChangeJobs, who: Identity) -> wire.Done:
        """All jobs named, or (if one is unknown or not theirs) none."""
        verb = request.verb
        jobs, in_memory = permissions.jobs_named(self._core, request.job_ids), self._core.state.engine.jobs
        if verb == "preempt":
            permissions.must_be_admin(who, "preempt jobs")
        for job in jobs:
            permissions.must_own(who, job, verb)
        lines: list[str] = []
        count = 0
        for job in jobs:
            problem = why_not(verb, job) or ("" if job.job_id in in_memory else TOO_OLD.format(job.job_id))
            lines.append(problem or describe_change(verb, job, interrupt=request.interrupt))
            if not problem:
                event = EVENTS[verb](job.job_id, who.name)
                if isinstance(event, ev.CancelRequested):
                    event = msgspec.structs.replace(event, interrupt=request.interrupt)
                self._core.happen(event)
                self._core.audit(who, verb, job.job_id)
                count += 1
        if not count:
            raise Denied("refused", "; ".join(lines[:10]) or "no jobs were named")
        if verb == "requeue":
            lines += left_behind(list(in_memory.values()), [job.job_id for job in jobs], who)
        return wire.Done(request_id=request_id, lines=tuple(lines))

    def node(self, request_id: int, request: wire.ChangeNode, who: Identity) -> wire.Done:
        verb, host_id = request.verb, request.host_id
        permissions.must_be_admin(who, f"{verb} hosts")
        host = self._core.state.engine.hosts.get(host_id)
        if host is None:
            raise Denied("not-found", f"no host {host_id}", "`cotenant nodes` lists them")
        if verb == "lost" and host.state not in (domain.HostState.SILENT, domain.HostState.LOST):
            raise Denied(
                "refused",
                f"host {host_id} answers (or did a moment ago): its jobs would run twice",
                f"`cotenant nodes drain {host_id}` keeps new work away",
            )
        self._core.happen(NODE_EVENTS[verb](host_id, who.name))
        self._core.audit(who, verb, host_id)
        state = self._core.state.engine.hosts[host_id].state
        return wire.Done(request_id=request_id, lines=(f"host {host_id} is {state}",))

    def policy(self, request_id: int, request: wire.SetPolicy, who: Identity) -> wire.Done:
        permissions.must_be_admin(who, "change the policy")
        engine = self._core.state.engine
        must_be_a_policy(engine, request.name, request.parameters)
        before = engine.current.name, engine.current.parameters
        self._core.happen(ev.PolicyChanged(name=request.name, parameters=request.parameters, by=who.name))
        self._core.audit(who, "policy", request.name, repr(request.parameters))
        lines = policy_change(*before, request.name, request.parameters)
        return wire.Done(request_id=request_id, lines=lines)

    def preview(self, request_id: int, request: wire.PreviewPolicy, who: Identity) -> wire.PolicyPreviewed:
        permissions.must_be_admin(who, "preview a policy: it copies the controller's whole state")
        engine = self._core.state.engine
        must_be_a_policy(engine, request.name, request.parameters)
        decision = self._core.preview(
            ev.PolicyChanged(name=request.name, parameters=request.parameters, by=who.name)
        )
        actions = [each for each in decision.actions if not isinstance(each, (domain.Wake, domain.Compute))]
        preview = wire.PolicyPreview(
            policy=request.name,
            actions=tuple(
                wire.PreviewedAction(
                    job_id=each.job_id,
                    name=engine.jobs[each.job_id].spec.name,
                    what=action_in_words(each),
                    reason=domain.render(each.reason),
                )
                for each in actions[:PREVIEWED_MAX]
            ),
            queued=sum(job.phase is domain.Phase.QUEUED for job in engine.jobs.values()),
            more=max(0, len(actions) - PREVIEWED_MAX),
        )
        return wire.PolicyPreviewed(request_id=request_id, preview=preview)


def must_be_a_policy(engine: Engine, name: str, parameters: wire.Parameters) -> None:
    """Checks that there is such a policy with such parameters. Raises Denied."""
    try:
        if plugins.is_path(name) and name not in permissions.policies_offered(engine):
            raise ValueError(
                f"policy {name} is not offered here: a controller imports policies of installed "
                "packages (entry point cotenant.policies), and the one that policy.name in its "
                "configuration names"
            )
        registry.make(name, parameters)
    except ValueError as error:
        raise Denied("usage", str(error), "`cotenant policy list` describes them") from None


def policy_change(old_name: str, old: wire.Parameters, name: str, given: wire.Parameters) -> tuple[str, ...]:
    """The lines that say what is different now: the policy, and each parameter as it was -> as it is. A
    parameter that was set before and is not given again goes back to its default; the answer says so."""
    known = registry.defaults(name)
    now = {**known, **given}
    then = {**known, **old} if name == old_name else known
    lines = [
        f"  {key}: {value_text(then[key])} -> {value_text(now[key])}"
        + (" (its default)" if key not in given else "")
        for key in sorted(now)
        if now[key] != then.get(key)
    ]
    if name != old_name:
        return (f"policy is {name} (it was {old_name})", *(line for line in lines))
    return (f"policy is {name}, as before" + ("" if lines else "; no parameter has changed"), *lines)


def value_text(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
