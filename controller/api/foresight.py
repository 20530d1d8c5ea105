"""What would happen to a job if it came: what follows if it came now, and when it would end on how many
devices, now or at the quietest hour, under the policy in force or another one.

Rule: it is checked as a submission, and changes nothing. It does not block: the question goes to the worker
that rolls out (`sim/eta`, in a process of its own, one request at a time), and the answer leaves when it has
come; this module builds the questions and words the answers. A repeated question gets one answer. What has no
records is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.controller import history
from cotenant.controller.api.arrivals import check_submission
from cotenant.controller.api.etas import basis, end_times, times_of
from cotenant.controller.api.moment import Now
from cotenant.controller.api.submissions import Denied
from cotenant.controller.domain import JobSpec, Phase
from cotenant.controller.engine import Engine
from cotenant.controller.policies import registry
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire

SPECS_MAX: Final = 100
DELAYS_SHOWN: Final = 100

ARRIVAL_WITHIN_S: Final = 120.0
BUSY: Final = "it cannot be found out now: others ask, or controller.eta_share is 0"

Foresee = Callable[
    [Sequence[history.EtaQuestion], Callable[[Sequence[history.EtaAnswer]], None], float], bool
]
"""Rolls the questions out in turn, within so many seconds, and passes the answers on later; False: too many
questions wait already, or roll-outs are turned off."""
SendsForeseen = Callable[[wire.Foreseen | Denied], None]


class ForesightRequests:
    """Questions that are not answered yet."""

    def __init__(self, core: Core, foresee: Foresee) -> None:
        self._core, self._foresee = core, foresee
        self._open: dict[tuple[bytes, int], str] = {}
        """By address and number of the request: who asked."""

    def ask(
        self,
        address: bytes,
        request_id: int,
        request: wire.ForeseeArrival,
        who: Identity,
        reply: SendsForeseen,
    ) -> None:
        """Takes a question about an arrival. Raises Denied: the submission would not be accepted, or too much
        is asked for."""
        key = (address, request_id)
        if key in self._open:
            return
        if who.name in self._open.values():
            raise Denied("refused", "such a question is being worked on", "ask again when it is answered")
        engine, core = self._core.state.engine, self._core
        specs = check_submission(core, request.submission, who).specs
        if len(specs) > SPECS_MAX:
            raise Denied("usage", f"at most {SPECS_MAX} jobs at once, not {len(specs)}", "ask about fewer")
        seed = core.journal.last_seq
        question = history.question_of(engine, core.state.etas, seed=seed, arriving=specs)

        def told(answers: Sequence[history.EtaAnswer]) -> None:
            del self._open[key]
            answer = answers[0] if answers else history.EtaAnswer(error="it took too long")
            if answer.error or answer.arrival is None:
                reply(Denied("refused", f"nobody can say: {answer.error}", "ask again"))
            else:
                reply(wire.Foreseen(request_id=request_id, arrival=self._view(question, answer)))

        self._open[key] = who.name
        if not self._foresee([question], told, ARRIVAL_WITHIN_S):
            del self._open[key]
            raise Denied("refused", BUSY, "try again in some seconds")

    def _view(self, question: history.EtaQuestion, answer: history.EtaAnswer) -> wire.ArrivalView:
        arrival, jobs = answer.arrival, self._core.state.engine.jobs
        assert arrival is not None
        now = Now(self._core.clock.now_s(), self._core.clock.wall())
        delays = [delay for delay in arrival.delays if delay.job_id in jobs]
        names = {spec.job_id: spec.name for spec in question.arriving}
        return wire.ArrivalView(
            policy=answer.policy,
            roll_outs=answer.count,
            at_once=arrival.at_once,
            reasons=arrival.reasons,
            ahead=arrival.ahead,
            waits_for=arrival.waits_for,
            etas=tuple(self._eta(eta, names[eta.job_id], answer, now) for eta in answer.etas),
            delays=tuple(
                wire.DelayView(
                    job_id=delay.job_id,
                    name=jobs[delay.job_id].spec.name,
                    user=jobs[delay.job_id].spec.user,
                    p10_s=delay.by.p10_s,
                    p50_s=delay.by.p50_s,
                    p90_s=delay.by.p90_s,
                )
                for delay in delays[:DELAYS_SHOWN]
            ),
            delayed=sum(delay.by.p50_s > 0.0 for delay in delays),
            now=now.at,
        )

    def _eta(self, eta: history.JobEta, name: str, answer: history.EtaAnswer, now: Now) -> wire.EtaView:
        return wire.EtaView(
            job_id=eta.job_id,
            name=name,
            phase=Phase.QUEUED,
            start=times_of(eta.start, True, answer.now_s, now),
            finish=end_times(eta, answer.now_s, now),
            is_calibrated=eta.is_calibrated,
            basis=basis(Phase.QUEUED, eta, answer),
            policy=history.policy_label(self._core.state.engine),
            hit_rate=None,
            hits_of=0,
            told_at=now.utc(answer.now_s),
            age_s=now.now_s - answer.now_s,
        )


WIDTHS_WITHIN_S: Final = 20.0
"""For all lines together: a person waits for them."""
WIDTHS_MAX: Final = 6
"""1, 2, 4 ... 32 devices."""
WIDTHS_ROLL_OUTS: Final = 6
DAY_S: Final = 86_400.0
HOUR_S: Final = 3_600.0
DAYS_LOOKED_AT: Final = 7


class Variant(NamedTuple):
    """A variant of the job, which is one line of the answer."""

    spec: JobSpec
    after_s: float
    note: str


class WidthRequests:
    """Requests of `submit --dry-run`."""

    def __init__(self, core: Core, foresee: Foresee) -> None:
        self._core, self._foresee = core, foresee

    def ask(
        self, request: wire.ForeseeWidths, who: Identity, reply: Callable[[wire.ForeseenWidths], None]
    ) -> None:
        """Takes a question about a job's widths. Raises Denied: the job would not be accepted, or cannot be
        asked for, or not now."""
        core, engine = self._core, self._core.state.engine
        now = Now(core.clock.now_s(), core.clock.wall())
        if len(request.submission.specs) != 1:
            raise Denied("usage", "only a single job can be asked about", "ask about one task of it")
        (spec,) = check_submission(core, request.submission, who).specs
        if request.policy:
            check_policy(request.policy, request.parameters)
        quiet_s = quietest_s(self._attempts(), now)
        variants = list(variants_of(engine, spec, quiet_s, request.gpus))
        question = history.question_of(
            engine, core.state.etas, seed=core.journal.last_seq, count=WIDTHS_ROLL_OUTS
        )
        questions = [
            msgspec.structs.replace(
                question,
                supposed=history.SupposedJob(
                    spec=each.spec,
                    after_s=each.after_s,
                    policy=request.policy,
                    parameters=request.parameters,
                ),
            )
            for each in variants
        ]

        def done(answers: Sequence[history.EtaAnswer]) -> None:
            rows = [
                row_of(each, answers[at] if at < len(answers) else None, now)
                for at, each in enumerate(variants)
            ]
            label = next((each.policy for each in answers if each.policy), history.policy_label(engine))
            reply(
                wire.ForeseenWidths(
                    request_id=0,
                    rows=tuple(rows),
                    policy=label,
                    quietest_at=None if quiet_s is None else now.utc(now.now_s + quiet_s),
                )
            )

        if not self._foresee(questions, done, WIDTHS_WITHIN_S):
            raise Denied("refused", BUSY, "try again in some seconds")

    def _attempts(self) -> Iterable[history.AttemptRecord]:
        state = self._core.state
        for job_id in state.engine.jobs:
            yield from state.history.attempts(job_id)


def check_policy(name: str, parameters: Mapping[str, str | int | float | bool]) -> None:
    """Accepts only our own policies: a controller imports nothing because a client names it.

    Raises:
        Denied: there is none, or it takes no such parameters.
    """
    try:
        if not registry.is_ours(name):
            raise ValueError(f"no policy {name!r}; there are {', '.join(registry.ours_available())}")
        registry.make(name, dict(parameters))
    except ValueError as error:
        raise Denied("usage", str(error), "`cotenant policy list` describes them") from None


def variants_of(
    engine: Engine, spec: JobSpec, quiet_s: float | None, gpus: Sequence[int] = ()
) -> list[Variant]:
    """The job as asked for, then on fewer and on more devices where a host has them; then all of it later."""
    widths = dict.fromkeys((spec.gpus, *(gpus or (2**power for power in range(WIDTHS_MAX)))))
    specs = [(resize_spec(spec, each), each) for each in widths]
    possible = [(sized, note) for (sized, note), _ in specs if engine.never_fits(sized) is None]
    found = [Variant(sized, 0.0, note) for sized, note in possible]
    if quiet_s is not None:
        found += [Variant(sized, quiet_s, note) for sized, note in possible]
    return found


def resize_spec(spec: JobSpec, gpus: int) -> tuple[JobSpec, str]:
    """Returns the spec of the same work on so many devices, and what its length then rests on."""
    if gpus == spec.gpus:
        return spec, ""
    share = spec.size / gpus
    length_s = None if spec.expected_s is None else spec.expected_s * share
    steps = None if spec.iterations is None else max(1, math.ceil(spec.iterations * share))
    sized = msgspec.structs.replace(
        spec,
        gpus_min=gpus,
        gpus_max=gpus,
        gpu_fraction=1.0,
        nodes=0,
        expected_s=length_s,
        iterations=steps,
    )
    if length_s is None and steps is not None:
        return sized, "with its steps shared out, at the step time that is known of so many"
    return sized, "as if it were faster in proportion: no curve of it is measured"


def quietest_s(attempts: Iterable[history.AttemptRecord], now: Now) -> float | None:
    """Seconds until the next hour of the day in which the fewest devices were held in the last days; None:
    less than a day is recorded."""
    held = [0.0] * 24
    since_s = max(0.0, now.now_s - DAYS_LOOKED_AT * DAY_S)
    if now.now_s - since_s < DAY_S:
        return None
    offset_s = now.wall_s - now.now_s
    for each in attempts:
        at_s = max(since_s, each.launched_s)
        end_s = now.now_s if each.ended_s is None else each.ended_s
        while at_s < end_s:
            wall_s = at_s + offset_s
            next_s = min(end_s, at_s + HOUR_S - wall_s % HOUR_S)
            held[int(wall_s // HOUR_S) % 24] += (next_s - at_s) * len(each.devices)
            at_s = max(next_s, at_s + 1e-3)
    this_hour = int(now.wall_s // HOUR_S)
    ahead = min(range(1, 25), key=lambda hours: held[(this_hour + hours) % 24])
    return (this_hour + ahead) * HOUR_S - now.wall_s


def row_of(variant: Variant, answer: history.EtaAnswer | None, now: Now) -> wire.ForeseenRow:
    eta = answer.etas[0] if answer is not None and answer.etas else None
    has_times = eta is not None and eta.finish is not None
    if answer is None:
        said = "not found out in time"
    elif eta is None:
        said = answer.error or "unknown"
    elif not has_times:
        said = basis(Phase.QUEUED, eta, answer)
    else:
        said = f"{answer.count} roll-outs{'' if eta.is_calibrated else ', uncalibrated'}"
    return wire.ForeseenRow(
        gpus=variant.spec.gpus,
        is_later=variant.after_s > 0.0,
        submit_at=now.utc(now.now_s + variant.after_s),
        start=times_of(eta.start, True, now.now_s, now) if eta is not None else None,
        finish=end_times(eta, now.now_s, now) if eta is not None else None,
        basis="; ".join(filter(None, (said, variant.note if has_times else ""))),
    )
