"""`pcs:elastic=true`: classes share the devices by weight, and jobs get what their class's share allows.

Source: PCS (NSDI '24) section 3.1, with `wfq.py`: within a class first come, first served, each job up to the
number of devices of which each still does `zeta_min` of what one alone does.

Departs from the paper in that devices are whole. A class's share is rounded down; the devices that are left
by that go one by one to the class that is owed most, which over time gives each its share. A job that would
get fewer than it takes gets none, and what that leaves goes to the first who can use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cotenant.controller.domain import Job, JobId
from cotenant.controller.papers.literature import elastic
from cotenant.controller.papers.pcs.policy import ClassTotals, KeepsAccounts, Pcs, PcsParameters
from cotenant.controller.papers.pcs.standing import size_gpu_s
from cotenant.controller.papers.pcs.wfq import LEFT_OVER, class_shares, divide, published_named
from cotenant.controller.planning import View
from cotenant.controller.policies.base import Policy
from cotenant.controller.policies.entries import KEPT, PolicyEntry


class CappedClaim:
    """A claim as the division within a class needs it."""

    def __init__(self, claim: elastic.SizeClaim) -> None:
        self.claim = claim

    def cap(self, zeta: float) -> int:
        """The most devices up to which each does `zeta` of what each of the fewest does."""
        claim = self.claim
        found = claim.least
        for size in claim.sizes[1:]:
            if claim.speedup(size) * claim.least / size < zeta:
                break
            found = size
        return found


class ElasticPcs(KeepsAccounts, elastic.Elastic):
    """Weighted fair queueing of elastic jobs."""

    def __init__(self, parameters: PcsParameters) -> None:
        leases = elastic.ElasticParameters(
            min_lease_s=parameters.min_lease_s, lease_factor=parameters.lease_factor
        )
        elastic.Elastic.__init__(self, "pcs", self._divide_by_class, leases)
        self._config = parameters.config()

    def _divide_by_class(
        self, claims: Sequence[elastic.SizeClaim], gpus: int, now_s: float
    ) -> elastic.DeviceCounts:
        members, shares = self._classes(claims, gpus, now_s)
        credits_gpu_s = self._accounts.now(now_s, len(self._config.weights))
        whole = [int(share + LEFT_OVER) for share in shares]
        over = round(sum(shares)) - sum(whole)
        owed = sorted(range(len(shares)), key=lambda n: (-credits_gpu_s[n], whole[n] - shares[n], n))
        for number in [n for n in owed if shares[n] - whole[n] > LEFT_OVER][:over]:
            whole[number] += 1
        given: dict[JobId, int] = {}
        left = gpus
        for share, here in zip(whole, members, strict=True):
            capped = [CappedClaim(claim) for claim in here]
            parts = divide(share, capped, self._config.zeta_min, self._config.delta) if share else []
            for claim, part in zip(here, parts, strict=False):
                size = claim.cap(int(part))
                if size:
                    given[claim.job_id] = size
                    left -= size
        self._use_up([members[n] for n in owed], given, left)
        return {claim.job_id: given[claim.job_id] for claim in claims if claim.job_id in given}

    def jobs_in_reach(self, view: View, gpus: int) -> Iterator[Job]:
        """Yields as many jobs of each class as could have a device each; the classes of small jobs have a
        share however many large ones came before them."""
        taken = [0] * len(self._config.weights)
        for job in view.queue.jobs_in_order():
            number = self._config.class_of(size_gpu_s(job, view.now_s))
            taken[number] += 1
            if taken[number] <= gpus:
                yield job
            elif min(taken) > gpus:
                return

    def _use_up(
        self, members: Sequence[Sequence[elastic.SizeClaim]], given: dict[JobId, int], left: int
    ) -> None:
        """Gives what rounding has left to the first job that can use it, classes that are owed most first."""
        for here in members:
            for claim in here:
                has = given.get(claim.job_id, 0)
                size = claim.cap(has + left)
                if size > has:
                    given[claim.job_id], left = size, left - (size - has)

    def _classes(
        self, claims: Sequence[elastic.SizeClaim], gpus: int, now_s: float
    ) -> tuple[list[list[elastic.SizeClaim]], list[float]]:
        """The members of each class in order of arrival, and its share."""
        members: list[list[elastic.SizeClaim]] = [[] for _ in self._config.weights]
        for claim in sorted(claims, key=lambda c: c.job.number):
            members[self._config.class_of(size_gpu_s(claim.job, now_s))].append(claim)
        demands = [sum(claim.sizes[-1] for claim in here) for here in members]
        return members, class_shares(demands, self._config.weights, gpus)

    def totals(self, view: View) -> ClassTotals:
        claims, gpus = self.claims(view)
        members, shares = self._classes(claims, gpus, view.now_s)
        held = [sum(elastic.held_by(claim.job) for claim in here) for here in members]
        return ClassTotals(shares, held, [not here for here in members], gpus)


def _make_pcs(parameters: PcsParameters) -> Policy:
    return ElasticPcs(parameters) if parameters.elastic else Pcs(parameters)


PCS: Final = PolicyEntry(
    "classes by size share the devices by weight; between speed and predictions that hold (PCS)",
    _make_pcs,
    PcsParameters.parse,
    group=KEPT,
    choose="it matters more to people when their job ends than that it ends early",
    from_file=lambda document, name: published_named(document, name).as_parameters(),
    tools={"tune": "cotenant.controller.papers.pcs.verbs:tune"},
)
