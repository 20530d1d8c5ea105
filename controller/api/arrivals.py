"""Checks, numbers and stores submissions; their jobs exist from then on.

Rule: secrets are on disk before the job is journalled, and the job is journalled before its number is
answered. A repeat of a submission gets the first one's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from cotenant.controller import domain
from cotenant.controller.api import moment, submissions, views
from cotenant.controller.api.trees import TreeRequests
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.executors.allocating import could_be_asked
from cotenant.controller.store import Core, Stuck
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.secrets import Secrets
from cotenant.controller.wire import clients as wire

PLANNED_ONLY: Final = (
    "on CPU slots --mem is planned with, and nothing holds the job to it; --host-mem limits its main memory"
)
NO_HOST: Final = "no host has joined yet: it waits for the first one"

COUNT_EVERY_S: Final = 5.0
"""All jobs are counted again at most this often for one user who is at the bound."""


class UserLoad(NamedTuple):
    """What a user's jobs take in memory."""

    at_most: int
    """Still includes jobs that have ended since the last count."""
    counted_s: float


class TellsOwners(Protocol):
    """Tells the owners of jobs what becomes of them (`notices.Notifier`)."""

    def check(self, spec: domain.JobSpec, secrets: Mapping[str, str]) -> str:
        """Checks that somebody can be told of a job; returns what speaks against it at present. Raises
        Denied."""

    def describe(self, job: domain.Job) -> str:
        """Of what a job's owner is told, and what became of it; empty: of nothing."""


SubmissionKey = tuple[str, str]
"""User and idempotency key."""


class Arrivals:
    """The handler that takes submissions."""

    def __init__(
        self,
        core: Core,
        secrets: Secrets,
        tells: TellsOwners | None,
        user_bytes_max: int = domain.USER_BYTES_MAX,
        trees: TreeRequests | None = None,
    ) -> None:
        """Takes submissions. `trees`: the trees that jobs may run in."""
        self._trees, self._tells = trees, tells
        self._user_bytes_max = user_bytes_max
        self._core = core
        self._secrets = secrets
        self._fresh: dict[SubmissionKey, tuple[domain.JobId, ...]] = {}
        """Submissions that are not durable yet."""
        self._held: dict[str, UserLoad] = {}
        """By user: what their jobs take."""

    def rebuilt(self) -> None:
        """Forget submissions that did not become durable."""
        self._fresh.clear()

    def submit(self, request_id: int, request: wire.Submit, who: Identity) -> wire.Submitted:
        """The answer, which must not leave before the commit.

        Raises:
            Denied: nothing of it was accepted.
        """
        core, engine = self._core, self._core.state.engine
        key = (who.name, request.idempotency_key)
        before = self._submitted_before(key)
        if before:
            return wire.Submitted(request_id=request_id, job_ids=before)
        accepted = check_submission(core, request, who)
        told = {spec.notify: spec for spec in accepted.specs}.values() if self._tells is not None else ()
        untold = {self._tells.check(spec, accepted.secrets) for spec in told if self._tells is not None} - {
            ""
        }
        specs, without = promising(engine, request.promise, accepted.specs, core.clock.now_s())
        accepted = msgspec.structs.replace(accepted, specs=specs)
        promised_at = self._promised_at(specs)
        notes: tuple[str, ...] = (*(() if engine.hosts else (NO_HOST,)), *without)
        promise = (*untold, *unheld_memory(engine, specs), *promise_notes(engine.promised_h, accepted))
        if request.dry_run:
            return wire.Submitted(
                request_id=request_id, job_ids=(), notes=(*notes, *promise), promised_at=promised_at
            )
        if self._trees is not None:
            self._trees.check(accepted.specs, who)
        self._check_memory(who, accepted.specs)
        self._check_disk()
        job_ids = tuple(spec.job_id for spec in accepted.specs)
        with_secrets = [spec.job_id for spec in accepted.specs if spec.launch.secrets]
        if with_secrets:
            self._secrets.keep(with_secrets, accepted.secrets)
        for spec in accepted.specs:
            core.happen(ev.JobArrived(spec=spec))
        if request.idempotency_key:
            core.journal.keep_submission(*key, job_ids)
            self._remember(key, job_ids)
        names = job_ids[0] if len(job_ids) == 1 else f"{job_ids[0]}..{job_ids[-1]}"
        core.audit(who, "submit", names, accepted.specs[0].name)
        notes = notes or self._first_reason(job_ids)
        return wire.Submitted(
            request_id=request_id, job_ids=job_ids, notes=(*notes, *promise), promised_at=promised_at
        )

    def _promised_at(self, specs: Sequence[domain.JobSpec]) -> str | None:
        ends = [spec.promised_s for spec in specs if spec.promised_s is not None]
        return moment.Now(self._core.clock.now_s(), self._core.clock.wall()).utc(max(ends)) if ends else None

    def _submitted_before(self, key: SubmissionKey) -> tuple[domain.JobId, ...] | None:
        if not key[1]:
            return None
        return self._fresh.get(key) or self._core.journal.submission(*key)

    def _remember(self, key: SubmissionKey, job_ids: tuple[domain.JobId, ...]) -> None:
        """Until it is durable, a repeat finds it here; afterwards in the journal."""
        self._fresh[key] = job_ids

        def forget() -> None:
            self._fresh.pop(key, None)

        self._core.run_after_commit(forget)

    def _check_memory(self, who: Identity, specs: Sequence[domain.JobSpec]) -> None:
        """Checks that one key's jobs do not take all of the controller's memory."""
        if who.role != "user":
            return
        now_s, size = self._core.clock.now_s(), sum(map(domain.held_bytes, specs))
        held = self._held.get(who.name)
        if held is None or (
            held.at_most + size > self._user_bytes_max and now_s - held.counted_s >= COUNT_EVERY_S
        ):
            jobs = self._core.state.engine.jobs.values()
            mine = (job.spec for job in jobs if job.spec.user == who.name and job.phase not in domain.ENDED)
            held = UserLoad(sum(map(domain.held_bytes, mine)), now_s)
        if held.at_most + size > self._user_bytes_max:
            self._held[who.name] = held
            raise submissions.Denied(
                "refused",
                f"your jobs and their variables would take {(held.at_most + size) >> 20} MiB of the "
                f"controller's memory, of {self._user_bytes_max >> 20} possible",
                "wait until some have ended",
            )
        self._held[who.name] = UserLoad(held.at_most + size, held.counted_s)

    def _check_disk(self) -> None:
        journal = self._core.journal
        if self._core.stuck:
            raise Stuck(self._core.stuck)
        if not journal.has_room():
            raise submissions.Denied(
                "refused", f"no new jobs: the disk of {journal.place} is nearly full", "make room there"
            )

    def _first_reason(self, job_ids: tuple[domain.JobId, ...]) -> tuple[str, ...]:
        """Why a single new job does not start at once, if it does not."""
        engine = self._core.state.engine
        job = engine.jobs[job_ids[0]]
        if len(job_ids) > 1 or job.phase in (domain.Phase.LOADING, domain.Phase.RUNNING):
            return ()
        now = moment.Now(self._core.clock.now_s(), self._core.clock.wall())
        reason = engine.explaining(now.now_s).reason_now(job)
        return (views.said_of(job, reason, now, whole=True).text,)


def unheld_memory(engine: Engine, specs: Sequence[domain.JobSpec]) -> tuple[str, ...]:
    """A note where device memory was asked for and all devices are CPU slots."""
    if specs[0].memory_mib is None:
        return ()
    kinds = (device.kind for host in engine.hosts.values() for device in host.report.devices)
    return (PLANNED_ONLY,) if next(kinds, "") == "cpu" and all(kind == "cpu" for kind in kinds) else ()


def check_submission(core: Core, request: wire.Submit, who: Identity) -> submissions.Accepted:
    """The submission's jobs as they would be accepted now. Raises Denied."""
    engine = core.state.engine
    config = engine.config
    accepted = submissions.accept(
        request,
        who,
        engine.ledger.next_number,
        engine.jobs,
        config.organisations,
        config.idle,
        config.sharing,
    )
    check_priority(engine, who, accepted.specs)
    check_fit(engine, accepted.specs, core.state.allocations)
    if all(spec.begin_s is None for spec in accepted.specs):
        return accepted
    now = moment.Now(core.clock.now_s(), core.clock.wall())
    begin = (now.journal_s(spec.begin_s) if spec.begin_s is not None else None for spec in accepted.specs)
    specs = (
        msgspec.structs.replace(spec, begin_s=at_s) for spec, at_s in zip(accepted.specs, begin, strict=True)
    )
    return msgspec.structs.replace(accepted, specs=tuple(specs))


def check_fit(engine: Engine, specs: Sequence[domain.JobSpec], allocations: domain.Allocations) -> None:
    """Every kind of job in it must be able to start on the hosts there are, or may be asked for, one day.

    Raises:
        Denied: one never can.
    """
    kinds = {
        (
            (s.size, s.nodes, s.gpu_type, s.features, s.memory_mib, s.cpus, s.host_memory_mib),
            s.organisation,
        ): s
        for s in specs
    }
    for spec in kinds.values():
        reason = engine.never_fits(spec)
        if reason is not None and not could_be_asked(allocations, spec):
            reports = [host.report for host in engine.hosts.values()]
            raise submissions.Denied(
                "never-fits",
                f"it can never run here: {domain.render_whole(reason)}",
                _what_to_do(reason, reports),
            )


def check_priority(engine: Engine, who: Identity, specs: Sequence[domain.JobSpec]) -> None:
    """Checks the priority that the jobs ask for. Raises Denied: a user asks for more than users may."""
    highest = engine.config.limits.user_priority
    asked = max(spec.priority for spec in specs)
    if who.role == "user" and asked > highest:
        raise submissions.Denied(
            "not-allowed",
            f"users may ask for a priority of up to {highest}, not for {asked}",
            "ask an admin, or take a lower one: below 0 others go first",
        )


def _what_to_do(reason: domain.Reason, reports: Sequence[domain.HostReport]) -> str:
    """Hosts that others cannot reach take no part in a job over several; no list of devices shows that."""
    lonely = [report.host_id for report in reports if report.address.startswith("127.")]
    devices = sum(len(report.devices) for report in reports)
    needed = next((each for each in reason.operands if isinstance(each, int)), 0)
    if reason.code == "never-fits" and lonely and len(reports) > 1 and needed <= devices:
        return (
            f"jobs over several hosts need agent.address set on each: it is not on {len(lonely)} of "
            f"{len(reports)} hosts ({lonely[0]}{', ...' if len(lonely) > 1 else ''})"
        )
    return "`cotenant nodes` lists what there is"


def promise_notes(hours: float | None, accepted: submissions.Accepted) -> tuple[str, ...]:
    """What spot jobs are told under a policy that guarantees them something."""
    if hours is None or all(spec.job_class == "hp" for spec in accepted.specs):
        return ()
    return (f"class spot: each run is guaranteed {hours:g} h; then it may have to give way to class hp",)


def promising(
    engine: Engine, asked: wire.PromiseAsked | None, specs: tuple[domain.JobSpec, ...], now_s: float
) -> tuple[tuple[domain.JobSpec, ...], tuple[str, ...]]:
    """The jobs with the ends that they are promised; or without, and why. Raises: Denied: no such end can be
    promised.
    """
    # Only the controller promises.
    specs = tuple(msgspec.structs.replace(spec, promised_s=None) for spec in specs)
    if asked is None:
        return specs, ()
    found = engine.promises.offer(specs, now_s)
    if isinstance(found, domain.Reason):
        why, hint = (
            f"no end can be promised: {domain.render(found)}",
            "submit it without, or with --if-possible",
        )
    elif asked.within_s is None:
        return add_promised_ends(specs, found), ()
    elif max(found) <= now_s + asked.within_s:
        return add_promised_ends(specs, [now_s + asked.within_s] * len(specs)), ()
    else:
        in_words = views.ago(max(found) - now_s).removesuffix(" ago")
        why = f"that end cannot be promised: the earliest that can be is {in_words} from now"
        hint = f"--by +{math.ceil((max(found) - now_s) / 60.0)}m, or --promise for the earliest"
    if asked.is_optional:
        return specs, (why,)
    raise submissions.Denied("refused", why, hint)


def add_promised_ends(
    specs: tuple[domain.JobSpec, ...], ends_s: Sequence[float]
) -> tuple[domain.JobSpec, ...]:
    return tuple(
        msgspec.structs.replace(spec, promised_s=float(end_s))
        for spec, end_s in zip(specs, ends_s, strict=True)
    )
