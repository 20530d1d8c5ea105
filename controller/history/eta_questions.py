"""The question when every job ends, with its answer, for the process that makes the roll-outs.

Rule: the question holds all that the answer depends on, the seed too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.history.etas import EtaBook, LengthClaim, plain, policy_label
from cotenant.controller.models.eta import ENOUGH, Pools
from cotenant.controller.policies.base import Parameters

ROLL_OUTS: Final = 12


class SupposedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that nobody has submitted, as if it came."""

    spec: domain.JobSpec
    after_s: float = 0.0
    """It comes in so many seconds."""
    policy: str = ""
    """As if this policy were set now; empty: the one in force."""
    parameters: Parameters = {}


class EtaQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """All that the answer depends on."""

    image: bytes
    """The engine's state, from `image_of`."""
    config: EngineConfig
    pools: Pools
    """They hold errors of the policy in force only."""
    policy: str
    claims: dict[domain.JobId, list[LengthClaim]]
    revisits: frozenset[domain.JobId]
    """Jobs that have been told of before: what is told of them now is a revisit."""
    seed: int
    count: int = ROLL_OUTS
    jobs: frozenset[domain.JobId] | None = None
    """Only these; None: all that have not ended."""
    arriving: tuple[domain.JobSpec, ...] = ()
    """Jobs that might come now: the question is about these instead of those that are there."""
    supposed: SupposedJob | None = None
    """The answer is about this job alone."""
    is_exact: bool = False
    """Users' estimates are exact, as a simulation can have them."""


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """How much later a job would end, in the same futures."""

    job_id: domain.JobId
    by: domain.EtaInterval


class ArrivalEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What follows if jobs come now."""

    at_once: bool
    """The first of them would start at once."""
    reasons: tuple[str, ...] = ()
    """Why it would start, or wait."""
    ahead: tuple[domain.JobId, ...] = ()
    """Who would stand before it in the queue."""
    waits_for: tuple[domain.JobId, ...] = ()
    """Whose devices it would take, the first to leave before the others."""
    delays: tuple[Delay, ...] = ()
    """Jobs that would end later, the longest delay first."""


class JobEta(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said of one job, in seconds from when it was asked."""

    job_id: domain.JobId
    kind: domain.EtaKind
    finish: domain.ToldInterval | None = None
    """None: nobody can say."""
    start: domain.ToldInterval | None = None
    """None: nobody can say, or it has started."""
    errors: int = 0
    """How many earlier errors of this policy and kind correct it."""
    is_length_known: bool = True
    """False: no estimate is about this job itself."""
    is_limit: bool = False
    """Nothing is known of its end but that its time limit ends it by the latest time of `finish`."""
    grounds: str
    """What this rests on (`grounds_of`)."""

    @property
    def is_calibrated(self) -> bool:
        return self.errors >= ENOUGH


class EtaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question."""

    now_s: float = 0.0
    policy: str = ""
    count: int = 0
    """Number of roll-outs."""
    arrival: ArrivalEffect | None = None
    """Set if the question had `arriving` jobs; then `etas` are theirs."""
    etas: list[JobEta] = []
    cpu_s: float = 0.0
    error: str = ""
    """Why there is no answer."""


def question_of(
    engine: Engine,
    book: EtaBook,
    *,
    seed: int,
    count: int = ROLL_OUTS,
    jobs: Collection[domain.JobId] | None = None,
    arriving: tuple[domain.JobSpec, ...] = (),
    is_exact: bool = False,
) -> EtaQuestion:
    """A question about the engine as it is now."""
    policy, pools = policy_label(engine), book.pools
    return EtaQuestion(
        image=image_of(engine),
        config=engine.config,
        pools=msgspec.structs.replace(pools, errors={policy: pools.errors.get(policy, {})}),
        policy=policy,
        claims={job_id: list(claims) for job_id, claims in book.claims.items()},
        revisits=book.told_of,
        seed=seed,
        count=count,
        jobs=None if jobs is None else frozenset(jobs),
        arriving=tuple(plain(spec) for spec in arriving),
        is_exact=is_exact,
    )


def image_of(engine: Engine) -> bytes:
    """The engine as it is now, encoded, without what no future depends on: ended jobs, and environments."""
    snapshot = engine.snapshot()
    jobs = [
        msgspec.structs.replace(job, spec=plain(job.spec))
        for job in snapshot.ledger.jobs
        if job.phase not in domain.ENDED
    ]
    snapshot.ledger = msgspec.structs.replace(snapshot.ledger, jobs=jobs, ended=[])
    return msgspec.msgpack.encode(snapshot)


def comparable_eta(eta: JobEta) -> domain.ToldEta | None:
    """The interval as it will be compared with the job's end; None where there is nothing to compare."""
    if eta.finish is None or not eta.is_length_known:
        return None
    return domain.ToldEta(
        job_id=eta.job_id, kind=eta.kind, finish=eta.finish, start=eta.start, is_calibrated=eta.is_calibrated
    )
