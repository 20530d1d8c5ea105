"""Who may wait for devices, and before whom: fair share (`fair_share.py`) ranks jobs, then limits admit them
in that order (`limits.py`), before any policy is asked.

Rule: where neither is configured, this module does nothing. Both follow from the state and the time alone, so
that recovery arrives at the same; a controller with other settings admits by those.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller import domain
from cotenant.controller.engine.stages.fair_share import FairShare, rank_of
from cotenant.controller.engine.stages.limits import Limits, is_over_limit, quotas_of
from cotenant.controller.engine.stages.stages import AdmissionStage
from cotenant.controller.engine.state.dispatch import Dispatch, EngineConfig
from cotenant.controller.engine.state.ledger import Ledger

USERS_SHOWN: Final = 5


class Admission:
    """Fair share ranks, then limits admit the first in that order."""

    def __init__(self, dispatch: Dispatch, config: EngineConfig) -> None:
        half_life_s = config.policy.fair_share_half_life_s
        self._dispatch, self._ledger, self._config = dispatch, dispatch.ledger, config
        by = config.policy.fair_share_by
        self.fair_share = FairShare(dispatch, half_life_s, by) if half_life_s else None
        limited = config.limits.any or quotas_of(config.organisations)
        self.limits = Limits(dispatch, config.limits, config.organisations) if limited else None
        if self.fair_share is not None or self.limits is not None:
            self._ledger.phases.entered = []

    @property
    def stages(self) -> tuple[AdmissionStage, ...]:
        """Fair share and limits, in this order, as far as they are configured."""
        return tuple(each for each in (self.fair_share, self.limits) if each is not None)

    def never(self, spec: domain.JobSpec) -> domain.Reason | None:
        """Why a job would be over a limit all by itself."""
        return None if self.limits is None else self.limits.never(spec)

    def explain(self, ledger: Ledger, job: domain.Job) -> list[domain.Reason]:
        """Who is before a queued job, and because of whom it waits, beyond what its policy says."""
        found: list[domain.Reason] = []
        first = next(ledger.queue.heads(), None)
        if first is not None and not first.aged and first.rank < job.rank:
            if first.spec.priority > job.spec.priority:
                found.append(domain.because("priority", first.job_id, first.spec.priority, job.spec.priority))
            elif self.fair_share is not None:
                found.append(self.fair_share.why_behind(ledger, job, first))
        held: dict[str, int] = {}
        for other in ledger.running.jobs_by_end():
            user = other.spec.user or "somebody"
            held[user] = held.get(user, 0) + len(other.placement.devices if other.placement else ())
        if held.keys() - {job.spec.user}:
            most_first = sorted(held.items(), key=lambda each: (-each[1], each[0]))
            shown = [f"{user} ({devices})" for user, devices in most_first[:USERS_SHOWN]]
            more = len(held) - len(shown)
            found.append(
                domain.because("held-by-users", ", ".join(shown) + (f" and {more} more" if more else ""))
            )
        return found

    def restore(self) -> None:
        """The ledger has taken over a saved state, perhaps one of other settings."""
        ledger = self._ledger
        if self.limits is None and any(is_over_limit(job) for job in ledger.jobs.values()):
            self.limits, ledger.phases.entered = (
                Limits(self._dispatch, self._config.limits),
                [],
            )  # It lets them all in.
        if ledger.phases.entered is not None:
            ledger.phases.entered = [job for job in ledger.jobs.values() if job.phase not in domain.ENDED]
        if self.fair_share is not None:
            self.fair_share.restore()
        else:
            ledger.rank_again_s = None
            for job in list(ledger.jobs.values()):
                if job.phase not in domain.ENDED:
                    ledger.records.rank(job, rank_of(job.spec.priority))
