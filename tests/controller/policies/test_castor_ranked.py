"""What is worked out for all rooms at once is what working them out one by one gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Job, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan
from cotenant.controller.policies.castor.cost import (
    Beside,
    CastorCost,
    balances,
    best_set,
    describe_beside,
    outcome,
)
from cotenant.controller.policies.castor.policy import Castor, CastorParameters, paying, places_of
from cotenant.controller.policies.castor.sharing import rank_slots
from cotenant.controller.policies.cotenant import Sharing
from cotenant.controller.policies.sharing import ColocationParameters
from cotenant.controller.policies.sharing.shareable_slots import ShareableSlot
from cotenant.controller.policies.sharing.sub_batches import sub_batches
from tests.controller.building import Desk, profile, report

SECONDS = st.floats(1.0, 5000.0)
KINDS = st.sampled_from(["a", "b", "c", "d"])
XI = st.floats(1.0, 4.0)
FEWER = int(settings().max_examples * 0.35)


@st.composite
def tenants(draw: st.DrawFn) -> dict[str, Any]:
    batch = draw(st.sampled_from([None, 1, 8, 12]))
    memory = draw(st.integers(50, 650))
    more: dict[str, Any] = {
        "gpus": draw(st.sampled_from([1, 1, 1, 2, 3])),
        "expected_s": draw(SECONDS) if draw(st.integers(0, 7)) else None,
        "argv": ("python", f"{draw(KINDS)}.py"),
        "batch_size": batch,
        "uid": draw(st.sampled_from([1, 2])),
        "share": draw(st.sampled_from([*["auto"] * 7, "never"])),
    }
    if batch is not None and draw(st.booleans()):
        grows = draw(st.floats(0.0, 0.5))
        points = [(s, 1.0 + grows * (s - 1), memory / s**0.7) for s in (1, 2, batch) if s <= batch]
        more["profile"] = profile(batch, *dict.fromkeys(points), duty=draw(st.sampled_from([0.2, 0.6, 1.0])))
    elif draw(st.integers(0, 5)):
        more["memory_mib"] = memory
    return more


@st.composite
def clusters(draw: st.DrawFn) -> Desk:
    """Some hosts with tenants, some pairs observed; the last job waits."""
    mps: dict[str, Any] = {"kind": "cuda", "type": "T4", "device": {"sharing": "mps"}}
    hosts = [report("a", 3), report("b", 2), report("c", 2), report("d", 1, **mps)]
    desk = Desk("fifo", *hosts)
    for number, more in enumerate(draw(st.lists(tenants(), min_size=6, max_size=10)), 1):
        desk.submit(number, **more)
        if desk.phase(number) == "loading" and draw(st.integers(0, 3)):
            desk.start(number)
    for first, second, one, two in draw(
        st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8), XI, XI), max_size=6)
    ):
        for _ in range(3):
            pair = ev.PairObserved(
                first=JobId(str(first)), second=JobId(str(second)), first_xi=one, second_xi=two
            )
            desk.tell(pair)
    desk.tell(ev.PolicyChanged(name="fifo"), after_s=draw(st.sampled_from([0.0, 30.0, 900.0])))
    for host in draw(st.sets(st.sampled_from("abcd"), max_size=1)):
        desk.tell(ev.HostDrained(host_id=hosts["abcd".index(host)].host_id, by="root"))
    desk.submit(99, **{**draw(tenants()), "hold": False, "after": ()})
    return desk


def waiting(desk: Desk) -> tuple[Plan, Job]:
    return Plan(desk.engine.ledger), desk.job(99)


@settings(max_examples=FEWER)
@given(desk=clusters(), shared_first=st.booleans())
def test_castor_ranks_as_algorithm_2_does_one_room_after_the_other(desk: Desk, shared_first: bool) -> None:
    plan, job = waiting(desk)
    if desk.phase(99) != "queued" or plan.find_free(job) is not None:
        return  # Whom free devices alone can hold is never asked about.
    castor = Castor(CastorParameters(shared_first=shared_first))
    slots = castor.slots(plan)
    offers, _ = paying(plan.view, job, slots)
    together = [slot for slot in offers if slot.devices]
    here = [slots[number] for number in rank_slots(plan.view, job, slots)]
    # Where those that pay and what is free cannot hold the gang anywhere, none is named.
    assert here == together or (not here and castor._gather(plan, job, offers) is None)
    found = castor.join(plan, job, slots)
    assert found == castor._gather(plan, job, offers)
    assert (castor.why_not(plan, job, slots) is None) == (found is not None)


@settings(max_examples=FEWER)
@given(desk=clusters())
def test_the_balance_beside_each_tenant_is_that_of_the_plain_reckoning(desk: Desk) -> None:
    plan, job = waiting(desk)
    if desk.phase(99) != "queued" or (mine_s := job.known_left_s(plan.view.now_s)) is None:
        return
    slots, choices = CastorCost(ColocationParameters()).slots(plan), sub_batches(job)
    if not choices or choices[0].accumulation_steps != 1:
        return
    waits_s, balance = slots.wait_s(job), balances(plan.view, (job,), slots)
    for slot, net_s in zip(slots, (balance.gain_s - balance.cost_s)[0].tolist(), strict=True):
        fitting = [choice for choice in choices if choice.needed_mib <= slot.left_mib]
        left_s = slot.partner.known_left_s(plan.view.now_s)
        allowed = slots.why_not_again(job, slot.partner) is None
        if (
            not (fitting and allowed and slot.admits(plan.view, job, plan.view.queue.class_of(job)))
            or left_s is None
        ):
            assert np.isnan(net_s)
            continue
        slowdown = min(choice.slowdown for choice in fitting)
        one = describe_beside(plan.view, job, slots, slot)
        if 1.0 / (one.mine * slowdown) + 1.0 / one.theirs <= 1.0:
            assert np.isnan(net_s)
        else:
            assert net_s == pytest.approx(outcome(mine_s, slowdown, waits_s, [one]).net_s)


@settings(max_examples=FEWER)
@given(desk=clusters())
def test_cotenant_judges_unknown_lengths_by_the_mean_over_their_quartiles(desk: Desk) -> None:
    """Each of both sides a third, all or three times of what is expected, the longer one beside the
    shorter."""
    plan, job = waiting(desk)
    slots, choices, now_s = Sharing(ColocationParameters()).slots(plan), sub_batches(job), plan.view.now_s
    if desk.phase(99) != "queued" or not choices or choices[0].accumulation_steps != 1:
        return
    waits_s, balance = slots.wait_s(job), balances(plan.view, (job,), slots)
    for slot, net_s in zip(slots, (balance.gain_s - balance.cost_s)[0].tolist(), strict=True):
        if np.isnan(net_s):
            continue
        fitting = [choice for choice in choices if choice.needed_mib <= slot.left_mib]
        slowdown = min(choice.slowdown for choice in fitting)
        one = describe_beside(plan.view, job, slots, slot)
        mine_is_known = job.known_left_s(now_s) is not None
        theirs_is_known = slot.partner.known_left_s(now_s) is not None
        nets = []
        for mine, theirs in ((1 / 3, 3.0), (1.0, 1.0), (3.0, 1 / 3)):
            partner = one._replace(left_s=one.left_s * (1.0 if theirs_is_known else theirs))
            left_s = (job.estimate.remaining_s or 0.0) * (1.0 if mine_is_known else mine)
            nets.append(outcome(left_s, slowdown, waits_s, [partner]).net_s)
        assert net_s == pytest.approx(sum(nets) / 3)


@settings(max_examples=FEWER)
@given(desk=clusters())
def test_pruning_loses_no_better_set(desk: Desk) -> None:
    """As `join` finds it, against all places and all rooms, whatever their bounds say."""
    plan, job = waiting(desk)
    policy = CastorCost(ColocationParameters())
    slots, choices = policy.slots(plan), sub_batches(job)
    if desk.phase(99) != "queued" or job.spec.gpus == 1 or job.known_left_s(0.0) is None or not choices:
        return
    found = policy.join(plan, job, slots)
    if choices[0].accumulation_steps != 1:
        assert found is None
        return
    balance = balances(plan.view, (job,), slots)
    both = zip(slots, balance.gain_s[0].tolist(), balance.cost_s[0].tolist(), strict=True)
    alone = {
        slot.devices[0]: describe_beside(plan.view, job, slots, slot)._replace(gain_s=gain_s, cost_s=cost_s)
        for slot, gain_s, cost_s in both
        if not np.isnan(gain_s)
    }
    worth: list[ShareableSlot] = [slot for slot in slots if slot.devices[0] in alone]
    sets = [
        best_set(plan, job, choices, where, slots.wait_s(job), alone)
        for where in places_of(plan.view, job, worth)
    ]
    nets_s = [one.together.net_s for one in sets if one is not None]
    if nets_s:
        assert found is not None
        ends_s, waits_s, alone_s, cost_s, *_ = (x for x in found.reason.operands if isinstance(x, float))
        net_s = waits_s + alone_s - ends_s - cost_s
        assert net_s >= max(nets_s) - 1e-6
        assert len(set(found.devices)) == job.spec.gpus


@given(
    mine_s=SECONDS,
    slowdown=st.floats(1.0, 3.0),
    others=st.lists(st.tuples(SECONDS, XI, XI), min_size=1, max_size=4),
)
def test_a_further_partner_never_makes_it_better(
    mine_s: float, slowdown: float, others: list[tuple[float, float, float]]
) -> None:
    """What the bound of `castor-cost` rests on."""
    nowhere: Any = None
    partners = [Beside(nowhere, *other) for other in others]
    together = outcome(mine_s, slowdown, 100.0, partners).net_s
    for partner in partners:
        assert together <= outcome(mine_s, slowdown, 100.0, [partner]).net_s + 1e-6


@settings(max_examples=FEWER)
@given(desk=clusters(), cost=st.booleans(), more=st.lists(tenants(), min_size=2, max_size=5))
def test_many_newcomers_asked_together_get_what_each_gets_alone(
    desk: Desk, cost: bool, more: list[dict[str, Any]]
) -> None:
    """Also when rooms are taken by those before them."""
    for number, each in enumerate(more, 100):
        desk.submit(number, **each)
    policy: Castor | CastorCost = CastorCost(ColocationParameters()) if cost else Castor(CastorParameters())
    plan, apart = Plan(desk.engine.ledger), Plan(desk.engine.ledger)
    slots, rooms_apart = policy.slots(plan), policy.slots(apart)
    waiting_jobs = list(plan.view.queue.jobs_in_order())
    policy.expect(plan, waiting_jobs, slots)
    for job in waiting_jobs:
        found, alone = policy.join(plan, job, slots), policy.join(apart, job, rooms_apart)
        assert found == alone
        if found is not None:
            for each_plan, each_rooms in ((plan, slots), (apart, rooms_apart)):
                each_plan.share(job, found.devices, found.reason, found.accumulation_steps)
                each_rooms.take(found.devices)
