"""What would happen to a job if it came now: checked as a submission, rolled out elsewhere, answered later.

Rule: it changes nothing, and does not block: the question goes to the worker that rolls out, and the answer
leaves when it has come. A repeated question gets one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cotenant.controller.api.arrivals import checked
from cotenant.controller.api.etas import basis, times_of
from cotenant.controller.api.submissions import Denied
from cotenant.controller.api.views import Now
from cotenant.controller.domain import Phase
from cotenant.controller.engine import EtaAnswer, EtaQuestion, JobEta, policy_label, question_of
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import EtaView
from cotenant.controller.wire import clients as wire

SPECS_MAX: Final = 100
DELAYS_SHOWN: Final = 100

WITHIN_S: Final = 120.0
BUSY: Final = "it cannot be found out now: others ask, or controller.eta_share is 0"

Foresee = Callable[[Sequence[EtaQuestion], Callable[[Sequence[EtaAnswer]], None], float], bool]
"""Rolls the questions out in turn, within so many seconds, and passes the answers on later; False: too many
questions wait already, or roll-outs are turned off."""
Reply = Callable[[wire.Foreseen | Denied], None]


class ForesightRequests:
    """Questions that are not answered yet."""

    def __init__(self, core: Core, foresee: Foresee) -> None:
        self._core, self._foresee = core, foresee
        self._open: dict[tuple[bytes, int], str] = {}
        """By address and number of the request: who asked."""

    def ask(
        self, address: bytes, request_id: int, request: wire.ForeseeArrival, who: Identity, reply: Reply
    ) -> None:
        """Raises Denied: it would not be accepted, or too much is asked for."""
        key = (address, request_id)
        if key in self._open:
            return
        if who.name in self._open.values():
            raise Denied("refused", "such a question is being worked on", "ask again when it is answered")
        engine, core = self._core.state.engine, self._core
        specs = checked(engine, request.submission, who, self._core.state.allocations).specs
        if len(specs) > SPECS_MAX:
            raise Denied("usage", f"at most {SPECS_MAX} jobs at once, not {len(specs)}", "ask about fewer")
        seed = core.journal.last_seq
        question = question_of(engine, core.state.etas, seed=seed, arriving=specs)

        def told(answers: Sequence[EtaAnswer]) -> None:
            del self._open[key]
            answer = answers[0] if answers else EtaAnswer(error="it took too long")
            if answer.error or answer.arrival is None:
                reply(Denied("refused", f"nobody can say: {answer.error}", "ask again"))
            else:
                reply(wire.Foreseen(request_id=request_id, arrival=self._view(question, answer)))

        self._open[key] = who.name
        if not self._foresee([question], told, WITHIN_S):
            del self._open[key]
            raise Denied("refused", BUSY, "try again in some seconds")

    def _view(self, question: EtaQuestion, answer: EtaAnswer) -> wire.ArrivalView:
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

    def _eta(self, eta: JobEta, name: str, answer: EtaAnswer, now: Now) -> EtaView:
        return EtaView(
            job_id=eta.job_id,
            name=name,
            phase=Phase.QUEUED,
            start=times_of(eta.start, True, answer.now_s, now),
            finish=times_of(eta.finish, eta.is_length_known, answer.now_s, now),
            is_calibrated=eta.is_calibrated,
            basis=basis(Phase.QUEUED, eta, answer),
            policy=policy_label(self._core.state.engine),
            hit_rate=None,
            hits_of=0,
            told_at=now.utc(answer.now_s),
        )
