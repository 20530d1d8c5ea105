"""The shadow policy: sets it, serves the worker that follows it, and reports on it. Rule: the setting is in
the journal; the findings are not, since a worker that starts again finds the same.
"""

from __future__ import annotations

from typing import Any, Final

from cotenant.controller.api import changes, moment, permissions, submissions
from cotenant.controller.domain import events as ev
from cotenant.controller.history import policy_label
from cotenant.controller.store import Core, ShadowSet
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import ShadowAnswer, ShadowQuestion
from cotenant.controller.wire import clients as wire

ENTRIES_MAX: Final = 2_000
"""Entries that the worker reads for one question, before it rests."""


class ShadowRequests:
    """What people ask about the shadow, and what its worker asks and reports."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._of: ShadowSet | None = None
        """The shadow that all fields below are about."""
        self._answer = ShadowAnswer()
        self._simulated: dict[str, Any] | None = None
        self._simulated_s: float | None = None
        self._why_not = ""
        self.is_wanted = False
        """Somebody has asked for a simulation."""

    # --- For the worker ----------------------------------------------------------------------------

    def question(self) -> ShadowQuestion | None:
        shadow = self._current()
        if shadow is None:
            return None
        return ShadowQuestion(
            journal=self._core.journal.place,
            policy=shadow.policy,
            parameters=shadow.parameters,
            begin_s=shadow.begin_s,
            entries_max=ENTRIES_MAX,
            simulate=self.is_wanted,
        )

    def note_answer(self, question: ShadowQuestion, answer: ShadowAnswer) -> None:
        shadow = self._current()
        if shadow is None or (question.policy, question.parameters, question.begin_s) != (
            shadow.policy,
            shadow.parameters,
            shadow.begin_s,
        ):
            return  # Another was set meanwhile.
        if answer.error:
            self._answer = ShadowAnswer(error=answer.error, tally=self._answer.tally)
            self.is_wanted = False
            return
        self._answer = answer
        if question.simulate and answer.is_caught_up:
            self.is_wanted, self._why_not = False, answer.why_not
            if answer.simulated is not None:
                self._simulated, self._simulated_s = answer.simulated, answer.reached_s

    def _current(self) -> ShadowSet | None:
        """The shadow that is set; if it has changed, what was known of the last one is dropped."""
        shadow = self._core.state.shadow
        if shadow != self._of:
            self._of, self._answer, self.is_wanted = shadow, ShadowAnswer(), False
            self._simulated, self._simulated_s, self._why_not = None, None, ""
        return shadow

    # --- For people --------------------------------------------------------------------------------

    def set_shadow(self, request_id: int, request: wire.SetShadow, who: Identity) -> wire.Done:
        permissions.must_be_admin(who, "let a policy decide in the shadow")
        engine, before = self._core.state.engine, self._core.state.shadow
        if request.name:
            changes.must_be_a_policy(engine, request.name, request.parameters)
        elif before is None:
            raise submissions.Denied("refused", "no policy decides in the shadow")
        self._core.happen(ev.ShadowChanged(name=request.name, parameters=request.parameters, by=who.name))
        self._core.audit(who, "shadow", request.name or "off", repr(request.parameters))
        if request.name:
            line = f"from now on {request.name} decides beside {engine.current.name}, and changes nothing"
            return wire.Done(request_id=request_id, lines=(line, "`cotenant policy shadow report` tells"))
        assert before is not None
        return wire.Done(request_id=request_id, lines=(f"{before.policy} is no longer asked",))

    def shadow(self, request_id: int, request: wire.GetShadow, who: Identity) -> wire.Shadowed:
        shadow = self._current()
        if shadow is None:
            raise submissions.Denied(
                "not-found", "no policy decides in the shadow", "`cotenant policy shadow NAME` sets one"
            )
        if request.simulate:
            permissions.must_be_admin(who, "have the past simulated")
            self.is_wanted = True
        now = moment.Now(self._core.clock.now_s(), self._core.clock.wall())
        answer, tally = self._answer, self._answer.tally
        view = wire.ShadowView(
            policy=shadow.policy,
            parameters=shadow.parameters,
            in_force=policy_label(self._core.state.engine),
            set_by=shadow.by,
            since=now.utc(shadow.begin_s),
            followed_to=now.utc(answer.reached_s) if answer.reached else None,
            behind_entries=max(0, self._core.journal.last_seq - answer.reached),
            decisions=tally.decisions,
            alike=tally.alike,
            differing=tally.differing,
            sooner_jobs=tally.sooner_jobs,
            sooner_mean_s=tally.sooner_s / tally.sooner_jobs if tally.sooner_jobs else None,
            last=tuple(
                wire.ShadowDifference(
                    decided_at=now.utc(each.at_s),
                    job_id=each.job_id,
                    done=each.done,
                    instead=each.instead,
                    reason=each.reason,
                )
                for each in tally.last
            ),
            failed=tally.failed,
            unfollowed=tally.unfollowed,
            simulated=self._simulated,
            simulated_to=now.utc_if(self._simulated_s),
            why_not=self._why_not,
            is_simulating=self.is_wanted,
            error=answer.error,
        )
        return wire.Shadowed(request_id=request_id, shadow=view)
