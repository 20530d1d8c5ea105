"""Properties over random histories, under every policy and under one that answers nonsense."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, Snapshot
from cotenant.controller.engine.stages.fair_share import rank_of
from cotenant.controller.engine.stages.limits import TAKES, Limits, Owner, is_over_limit
from cotenant.controller.planning import Plan
from cotenant.controller.policies import registry
from cotenant.controller.wire import pack, unpack
from tests.controller.building import engine as made
from tests.controller.histories import HOSTS, STEPS, WAITS_S, Step, event_of
from tests.controller.hostile import make_hostile
from tests.controller.watching import Watcher

POLICIES = tuple(registry.ours_available())
Told = tuple[ev.AnyEvent, float]
CHANGES_POLICY = 14
"""The kind of step that would change the policy."""
ALARMS_MAX = 60
"""At one moment: each job may be looked at again, and each class of jobs."""


def examples(share: float) -> int:
    """A share of what the profile says: `make soak` draws many more than `make test`."""
    return int(settings().max_examples * share)


LIMITS = domain.LimitSettings(
    user_devices=6, user_jobs=3, organisation_devices=8, exceptions=("user bob devices=0 jobs=0",)
)
ORGANISATIONS = {"vision": domain.OrganisationSettings(quota_devices=2)}


def fresh(name: str, *, ageing_s: float = 5000.0, people: bool = False) -> Engine:
    """`people`: limits and fair share are configured."""
    limits, organisations = (LIMITS, ORGANISATIONS) if people else (domain.LimitSettings(), {})
    make = make_hostile if name == "hostile" else registry.make
    share_s = 900.0 if people else 0.0
    return made(
        name,
        make=make,
        limits=limits,
        organisations=organisations,
        keep_ended=6,
        ageing_s=ageing_s,
        fair_share_half_life_s=share_s,
    )


def play(engine: Engine, steps: Sequence[Step], *, watch: bool = True) -> list[Told]:
    """Let the steps happen; returns the events that they meant, with their times."""
    watcher = Watcher(engine)
    told: list[Told] = []
    names = POLICIES if engine.current.name != "hostile" else ("hostile",)
    events: list[tuple[ev.AnyEvent | Step, float]] = [(ev.HostJoined(report=host), 0.0) for host in HOSTS]
    events += [(step, float(WAITS_S[step[3] % len(WAITS_S)])) for step in steps]
    for each, wait_s in events:
        event = event_of(engine, each, names) if isinstance(each, tuple) else unpack(pack(each), ev.AnyEvent)
        now_s = engine.now_s + wait_s
        commands = engine.handle(event, now_s)
        told.append((event, now_s))
        if watch:
            watcher.saw(event, commands)
    return told


@pytest.mark.parametrize("name", [*POLICIES, "hostile"])
@given(steps=STEPS)
@settings(max_examples=examples(0.6))
def test_nothing_that_can_happen_breaks_a_promise(name: str, steps: list[Step]) -> None:
    play(fresh(name), steps)


@pytest.mark.parametrize("name", POLICIES)
@given(seed=st.integers(0, 2**32))
@example(seed=13)
@settings(max_examples=examples(0.1))
def test_nobody_asks_for_ever_at_one_moment(name: str, seed: int) -> None:
    """Over long histories, in which queues and reservations form."""
    engine, chance = fresh(name, ageing_s=300.0), Random(seed)
    for host in HOSTS:
        engine.handle(ev.HostJoined(report=host), 0.0)
    for _ in range(90):
        kind, x, y, z = (chance.randrange(100) for _ in range(4))
        kind -= kind % 16 == CHANGES_POLICY
        until_s = engine.now_s + WAITS_S[z % len(WAITS_S)]
        moments = Counter[float]()
        while engine.next_alarm_s is not None and engine.next_alarm_s <= until_s:
            engine.handle(ev.AlarmRang(), max(engine.now_s, engine.next_alarm_s))
            moments[engine.now_s] += 1
            assert moments[engine.now_s] <= ALARMS_MAX, (engine.now_s, engine.decision)
        engine.handle(event_of(engine, (kind, x, y, z), (name,)), until_s)


@given(name=st.sampled_from(POLICIES), steps=STEPS, booked_at=st.sets(st.integers(0, 40), max_size=3))
@settings(max_examples=examples(1.0))
def test_nobody_is_ever_over_a_limit(name: str, steps: list[Step], booked_at: set[int]) -> None:
    """Nor is a job kept waiting that would be within it, nor one that could start now for others that could
    not."""
    engine = fresh(name, people=True)
    watcher, limits = Watcher(engine), engine._admission.limits
    assert limits is not None
    events: list[ev.AnyEvent | Step] = [*(ev.HostJoined(report=host) for host in HOSTS), *steps]
    for at, each in enumerate(events):
        event = (
            event_of(engine, each, POLICIES) if isinstance(each, tuple) else unpack(pack(each), ev.AnyEvent)
        )
        now_s = engine.now_s + (WAITS_S[each[3] % len(WAITS_S)] if isinstance(each, tuple) else 0)
        watcher.saw(event, engine.handle(event, now_s))
        if at in booked_at:
            booking = domain.Booking(
                booking_id=f"r{engine.ledger.bookings.saved.next_number}",
                user="zoe",
                gpus=2,
                from_s=now_s + 90.0,
                until_s=now_s + 400.0,
            )
            if isinstance(engine.bookings.offer(booking, now_s), tuple):
                made = ev.BookingMade(booking=booking, by="zoe")
                watcher.saw(made, engine.handle(made, now_s))
        for _ in range(2):  # Whoever waits has had another look at what the event has left.
            watcher.saw(ev.AlarmRang(), engine.handle(ev.AlarmRang(), now_s))
        check_limits(engine, limits)


def check_limits(engine: Engine, limits: Limits) -> None:
    finds = {
        job.job_id: Plan(engine.ledger).find_free(job) is not None
        for job in engine.jobs.values()
        if job.phase is domain.Phase.QUEUED or is_over_limit(job)
    }

    def within(owner: Owner, counted: list[domain.Job], more: float = 0.0) -> bool:
        most, theirs = limits.limit(owner), [job for job in counted if owner in limits.owners(job.spec)]
        devices, jobs = round(sum(job.devices_due for job in theirs) + more, 6), len(theirs) + (more > 0)
        return devices <= (most.devices or devices) and jobs <= (most.jobs or jobs)

    taking = [job for job in engine.jobs.values() if job.phase in TAKES]
    holding = [job for job in taking if job.phase is not domain.Phase.QUEUED]
    for owner in {owner for job in taking for owner in limits.owners(job.spec)}:
        assert within(owner, holding), f"{owner} holds too much"
    for job in filter(is_over_limit, engine.jobs.values()):
        counted = [each for each in taking if finds.get(each.job_id, True)] if finds[job.job_id] else taking
        is_within = all(within(owner, counted, job.spec.size) for owner in limits.owners(job.spec))
        assert not is_within, f"job {job.job_id} is kept out, and would be within all limits"


@given(name=st.sampled_from(POLICIES), steps=STEPS, people=st.booleans())
@settings(max_examples=examples(0.5))
def test_what_explains_a_job_is_of_one_moment(name: str, steps: list[Step], people: bool) -> None:
    """What makes all else moot stands alone, and who goes before others is who stands before them."""
    engine = fresh(name, people=people)
    for host in HOSTS:
        engine.handle(ev.HostJoined(report=host), 0.0)
    for step in steps:
        engine.handle(event_of(engine, step, POLICIES), engine.now_s + WAITS_S[step[3] % len(WAITS_S)])
        view, why, order = (
            engine.ledger,
            engine.explaining(engine.now_s),
            [*engine.ledger.queue.jobs_in_order()],
        )
        takes_work = any(host.takes_work for host in engine.hosts.values())
        for job in engine.jobs.values():
            causes, reason = why.causes(job), why.reason_now(job)
            codes = [each.code for each in causes.lines]
            assert "next-event" not in codes or (codes == ["next-event"] and causes.is_whole)
            if job.phase is not domain.Phase.QUEUED:
                placed = job.placement if job.phase in (domain.Phase.LOADING, domain.Phase.RUNNING) else None
                is_there = placed is not None and job.reason == placed.reason
                assert causes == ([reason], True) and reason.code.startswith("holds-") == is_there
                continue
            assert takes_work or (len(codes) == 1 and causes.is_whole), (
                "no host takes work, and no more is said"
            )
            assert reason.code != "submitted", "that is no reason"
            ahead = [
                other.job_id
                for other in order[: order.index(job)]
                if "" in (job.spec.gpu_type, other.spec.gpu_type) or job.spec.gpu_type == other.spec.gpu_type
                if view.sizes.now(view.queue.class_of(other)) >= other.spec.gpus_min
            ]
            assert [each.job_id for each in why.line.list_ahead(job)] == ahead
            if ahead and why.line.is_possible(job):
                more = f" and {len(ahead) - 1} more" if ahead[1:] else ""
                assert reason == causes.lines[0] == domain.because("behind-others", ahead[0], more)


@example(steps=[(0, 0, 6, 1), (0, 0, 0, 27), (0, 16, 6, 1), (0, 7, 1, 1), (4, 1, 7, 74), (0, 0, 0, 29)])
@example(steps=[(0, 0, 1, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 5), (0, 32, 1, 0)])
@given(steps=STEPS)
@settings(max_examples=examples(0.3))
def test_who_is_over_a_limit_that_is_gone_is_let_in(steps: list[Step]) -> None:
    limited = fresh("fifo", people=True)
    told = play(limited, steps, watch=False)
    free = fresh("fifo")
    free.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(limited.snapshot()), type=Snapshot))
    free.handle(ev.AlarmRang(), told[-1][1])
    assert not any(is_over_limit(job) for job in free.jobs.values())
    assert {job.rank for job in free.jobs.values() if job.phase is domain.Phase.QUEUED} <= {
        rank_of(job.spec.priority) for job in free.jobs.values()
    }


def bytes_of(engine: Engine, told: Sequence[Told]) -> list[bytes]:
    return [pack(engine.handle(event, now_s)) for event, now_s in told]


@given(name=st.sampled_from(POLICIES), steps=STEPS, cut=st.integers(0, 80), people=st.booleans())
@settings(max_examples=examples(0.6))
def test_the_same_inputs_give_the_same_commands_in_whatever_way_the_state_was_reached(
    name: str, steps: list[Step], cut: int, people: bool
) -> None:
    told = play(fresh(name, people=people), steps, watch=False)
    first, decided = fresh(name, people=people), []
    commands = []
    for event, now_s in told:
        commands.append(pack(first.handle(event, now_s)))
        decided.append(pack(first.decision))
    assert bytes_of(fresh(name, people=people), told) == commands

    folded = fresh(name, people=people)
    for (event, now_s), decision, wanted in zip(told, decided, commands, strict=True):
        assert pack(folded.fold(event, unpack(decision, domain.Decision), now_s)) == wanted
    assert msgspec.msgpack.encode(folded.snapshot()) == msgspec.msgpack.encode(first.snapshot())

    cut = min(cut, len(told))
    before = fresh(name, people=people)
    bytes_of(before, told[:cut])
    restored = fresh(name, people=people)
    restored.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(before.snapshot()), type=Snapshot))
    assert bytes_of(restored, told[cut:]) == commands[cut:]
    assert msgspec.msgpack.encode(restored.snapshot()) == msgspec.msgpack.encode(first.snapshot())


@given(name=st.sampled_from(POLICIES), steps=STEPS)
@settings(max_examples=examples(0.4))
def test_a_repeated_report_changes_nothing(name: str, steps: list[Step]) -> None:
    engine = fresh(name)
    watched = (
        ev.AttemptEnded,
        ev.FirstStepDone,
        ev.AttemptStarted,
        ev.CapabilitiesSeen,
        ev.CheckpointDurable,
    )
    for event, now_s in play(fresh(name), steps, watch=False):
        engine.handle(event, now_s)
        if isinstance(event, watched):
            before = msgspec.msgpack.encode(engine.snapshot().ledger.jobs)
            assert engine.handle(event, now_s) == []
            assert msgspec.msgpack.encode(engine.snapshot().ledger.jobs) == before
