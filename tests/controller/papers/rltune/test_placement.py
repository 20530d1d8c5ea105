"""placement=milp: never worse than best fit, within every limit, and what the program says is the least."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Decision, ExitVerdict, HostId, JobSpec
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.papers.rltune.placement import PlacedTogether, why_not
from cotenant.controller.papers.rltune.placement.candidates import (
    FreePlace,
    HostMix,
    JobGroup,
    Waiting,
    choices_of,
    free_places,
)
from cotenant.controller.papers.rltune.placement.program import Highs, PlacementProblem
from cotenant.controller.papers.rltune.placement.together import is_no_worse
from cotenant.controller.planning import HostType, Plan, SchedulingClass, View
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from tests.controller.building import Desk, engine, report, spec
from tests.controller.engine.test_host_limits import big
from tests.controller.watching import Watcher

MILP: Parameters = {"placement": "milp"}
UNLIMITED = Highs(limit_s=60.0)


def under_milp(at: Desk, name: str) -> Desk:
    at.tell(ev.PolicyChanged(name=name, parameters=MILP))
    return at


# --- Tables ---------------------------------------------------------------------------------------


def crowded(name: str) -> Desk:
    """Two hosts with memory for one large job; a drained third one, behind which jobs wait."""
    at = Desk(name, big("a", 2, memory_mib=16_000), big("b", 3, memory_mib=2_000))
    for host in "ab":
        at.tell(ev.HostDrained(host_id=HostId(host), by="root"))
    at.submit(1, gpus=1, expected_s=10.0)
    at.submit(2, gpus=2, host_memory_mib=12_000, expected_s=20.0)
    return at


def opened(at: Desk) -> Desk:
    """Both hosts take work again, in one event."""
    for host in at.engine.hosts.values():
        host.drained_by = ""
        at.engine.ledger.refresh_host(host)
    at.tell(ev.HostResumed(host_id=HostId("a"), by="root"))
    return at


@pytest.mark.parametrize("name", ["fifo", "sjf", "srtf", "patient", "wfp3"])
def test_a_job_makes_way_for_one_that_fits_nowhere_else(name: str) -> None:
    """Best fit puts the first one where the second one alone could go."""
    plain = opened(crowded(name))
    assert (plain.devices(1), plain.phase(2)) == (("a/cpu0",), "queued")
    both = opened(under_milp(crowded(name), name))
    assert (both.devices(1), both.devices(2)) == (("b/cpu0",), ("a/cpu0", "a/cpu1"))
    assert both.why(1).endswith("; where, was chosen together with 1 other job")


class Nothing:
    """Finds nothing in time."""

    def solve(self, problem: PlacementProblem) -> None:
        return None


class Recorded:
    """Must not be asked."""

    def solve(self, problem: PlacementProblem) -> None:
        raise AssertionError("a solver was asked on the way back")


def test_where_the_solver_finds_nothing_best_fit_decides() -> None:
    at = crowded("sjf")
    for host in at.engine.hosts.values():
        host.drained_by = ""
        at.engine.ledger.refresh_host(host)
    view, event = at.engine.ledger, ev.AlarmRang()
    plain = registry.make("sjf", {})
    assert PlacedTogether(plain, Nothing()).decide(view, event) == plain.decide(view, event)
    assert PlacedTogether(plain, UNLIMITED).decide(view, event) != plain.decide(view, event)


def test_one_waiting_job_is_no_question() -> None:
    at = Desk("fifo", big("a", 2), big("b", 2))
    at.engine.current.policy = PlacedTogether(registry.make("fifo", {}), Recorded())
    at.submit(1)
    assert at.devices(1) == ("a/cpu0",)


def test_a_gang_may_stay_in_one_rack() -> None:
    at = Desk("fifo", *(report(n, 2, features=(f"rack={r}",)) for n, r in zip("abcd", "1212", strict=True)))
    at.tell(ev.JobArrived(spec=spec(1, gpus=4, nodes=2, hold=True)))
    plan = Plan(at.engine.ledger)
    choices = choices_of(plan, free_places(plan), at.job(1))
    hosts = [tuple(host for (host, _), _ in choice) for choice in choices]
    assert hosts == [("a", "b"), ("c", "d"), ("a", "c"), ("b", "d")]


@pytest.mark.parametrize("name", registry.ours_available())
def test_every_order_takes_it(name: str) -> None:
    if name in ("fgd", "lyra") or name.startswith("gfs"):
        with pytest.raises(ValueError, match="places jobs by a rule of its own"):
            registry.make(name, MILP)
        return
    policy = registry.make(name, MILP)
    assert isinstance(policy, PlacedTogether) and policy.name == registry.make(name, {}).name
    assert not isinstance(registry.make(name, {"placement": "best-fit"}), PlacedTogether)


def test_a_layer_of_classes_takes_it_over_an_order() -> None:
    assert isinstance(registry.make("gfs-rise", {"order": "patient", **MILP}), PlacedTogether)


def test_roll_outs_place_by_best_fit() -> None:
    """They ask thousands of times."""
    assert not isinstance(registry.make_for_roll_outs("fifo", MILP), PlacedTogether)


def test_what_is_wrong_with_it_is_said() -> None:
    with pytest.raises(ValueError, match="placement is one of best-fit, milp, got 'worst'"):
        registry.make("fifo", {"placement": "worst"})
    assert why_not(registry.make("fifo", {}), library="no_such_library") == (
        "it is solved with no_such_library, which is not installed: "
        'pip install ".[milp]" in the source folder'
    )


# --- Properties -----------------------------------------------------------------------------------


class Compared(PlacedTogether):
    """Asserts at each decision that best fit would not have done better."""

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        decision = super().decide(view, event)
        assert is_no_worse(decision, self.inner.decide(view, event))
        return decision


def compared(name: str, parameters: Parameters) -> Policy:
    policy = registry.make(name, parameters)
    return policy if why_not(policy) else Compared(policy, UNLIMITED)


NAMES = ("fifo", "sjf", "srtf", "f1", "castor", "patient", "tiresias", "max-min", "wfp3", "pcs")


def happens(rng: random.Random, made: Engine) -> Iterator[ev.AnyEvent]:
    """A cluster of two types fills up behind a job that holds everything, empties, and goes on."""
    for name, devices in zip("abcd", rng.choices((2, 3, 4, 8), k=4), strict=True):
        yield ev.HostJoined(report=big(name, devices, type=rng.choice("TTU"), memory_mib=10_000))
    for name in "abcd":
        yield ev.HostDrained(host_id=HostId(name), by="root")
    for number in range(1, 25):
        yield ev.JobArrived(spec=a_spec(rng, number))
    for name in "abcd":
        yield ev.HostResumed(host_id=HostId(name), by="root")
    for number in range(25, 40):
        running = [job for job in made.jobs.values() if job.attempt.hosts_left]
        for job in rng.sample(running, len(running) // 2):
            for host_id in job.attempt.hosts_left:
                yield ev.AttemptEnded(
                    job_id=job.job_id,
                    attempt=job.attempt.number,
                    host_id=host_id,
                    verdict=ExitVerdict(outcome="finished"),
                )
        yield ev.JobArrived(spec=a_spec(rng, number))


def a_spec(rng: random.Random, number: int) -> JobSpec:
    gpus = rng.choice((1, 1, 1, 2, 2, 3, 4, 6))
    return spec(
        number,
        gpus=gpus,
        nodes=rng.choice((0, 0, 0, gpus if gpus < 4 else 2)),
        cpus=rng.choice((0, 0, 2, 5)),
        host_memory_mib=rng.choice((0, 0, 3_000, 7_000)),
        gpu_type=rng.choice(("", "", "T", "U")),
        memory_mib=rng.choice((None, 600)),
        expected_s=rng.choice((None, 10.0, 100.0, 1000.0)),
        resumable=True,
    )


@given(name=st.sampled_from(NAMES), number=st.integers(0, 1 << 32))
@example(
    name="tiresias", number=2631
)  # A victim that leaves one host of two, and keeps its cores on the other.
@settings(max_examples=settings().max_examples * 3 // 10)
def test_nobody_fails_to_start_who_would_with_best_fit_and_every_limit_holds(name: str, number: int) -> None:
    """Memory, cores, tenants, types and whole gangs are the watcher's; nothing is refused, and nobody asks a
    solver on the way back."""
    made = engine(name, make=compared, ageing_s=5000.0)
    watcher, recorded = Watcher(made), list[tuple[ev.AnyEvent, Decision, float]]()
    for event in happens(random.Random(number), made):
        watcher.saw(event, made.handle(event, made.now_s + 1.0), explain=False)
        recorded.append((event, made.decision, made.now_s))
    again = engine(name, make=on_the_way_back, ageing_s=5000.0)
    for event, decision, now_s in recorded:
        again.fold(event, decision, now_s)
    assert state_of(again) == state_of(made)


def on_the_way_back(name: str, parameters: Parameters) -> Policy:
    policy = registry.make(name, parameters)
    return policy if why_not(policy) else PlacedTogether(policy, Recorded())


def state_of(of: Engine) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(of.snapshot(), policy_state=b""))


PLACES: Sequence[HostType] = [(HostId(name), "T") for name in "abc"]
FREE = st.builds(
    lambda free, more, cpus, memory: FreePlace(free, free + more, cpus, memory),
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(0, 6),
    st.one_of(st.none(), st.integers(0, 6)),
)


@st.composite
def problems(draw: Any) -> tuple[list[JobGroup], dict[HostType, FreePlace], SchedulingClass | None]:
    """A few groups of jobs, of which best fit starts some: the first that fit."""
    places = {place: draw(FREE) for place in PLACES}
    left, groups, rank = dict(places), list[JobGroup](), 0
    for _ in range(draw(st.integers(1, 3))):
        wanted = a_class(draw)
        choices = choices_for(wanted, places, draw(st.booleans()))
        jobs, best_fit = list[Waiting](), dict[HostMix, int]()
        for _ in range(draw(st.integers(1, 2)) if choices else 0):
            first = next((choice for choice in choices if fits(choice, wanted, left)), None)
            if first is not None:
                take(first, wanted, left)
                best_fit[first] = best_fit.get(first, 0) + 1
            jobs.append(Waiting(None, rank, first is not None, draw(st.booleans())))  # type: ignore[arg-type]
            rank += 1
        jobs.sort(key=lambda job: not job.must_start)
        if jobs:
            groups.append(JobGroup(wanted, jobs, choices, best_fit))
    return groups, places, a_class(draw) if draw(st.booleans()) else None


def a_class(draw: Any) -> SchedulingClass:
    gpus, cpus, memory = draw(st.integers(1, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    return SchedulingClass(gpus, 0, "", (), 0, "", (), 1.0, cpus, memory)


def choices_for(
    wanted: SchedulingClass, places: Mapping[HostType, FreePlace], is_spread: bool
) -> list[HostMix]:
    alone: list[HostMix] = [((place, wanted.gpus),) for place in places]
    pairs = [((one, 1), (two, wanted.gpus - 1)) for one, two in itertools.permutations(places, 2)]
    every = [*alone, *(pairs if is_spread and wanted.gpus > 1 else ())]
    return [choice for choice in every if fits(choice, wanted, places)]


def fits(choice: HostMix, wanted: SchedulingClass, left: Mapping[HostType, FreePlace]) -> bool:
    return all(
        left[place].free >= count
        and left[place].cpus >= wanted.cpus
        and (left[place].memory_mib is None or (left[place].memory_mib or 0) >= wanted.host_memory_mib)
        for place, count in choice
    )


def take(choice: HostMix, wanted: SchedulingClass, left: dict[HostType, FreePlace]) -> None:
    for place, count in choice:
        here = left[place]
        memory = None if here.memory_mib is None else here.memory_mib - wanted.host_memory_mib
        left[place] = FreePlace(here.free - count, here.total, here.cpus - wanted.cpus, memory)


def least(
    groups: Sequence[JobGroup], places: Mapping[HostType, FreePlace], following: SchedulingClass | None
) -> float:
    """By trying everything."""
    jobs = [(group, job) for group in groups for job in group.jobs]

    def tried(number: int, left: dict[HostType, FreePlace], started: set[int]) -> Iterator[float]:
        if number == len(jobs):
            if is_in_order(jobs, started):
                yield cost(jobs, started, left, following)
            return
        group, job = jobs[number]
        if not job.must_start:
            yield from tried(number + 1, left, started)
        for choice in group.choices:
            if fits(choice, group.scheduling_class, left):
                after = dict(left)
                take(choice, group.scheduling_class, after)
                yield from tried(number + 1, after, started | {job.rank})

    return min(tried(0, dict(places), set()))


def is_in_order(jobs: Sequence[tuple[JobGroup, Waiting]], started: set[int]) -> bool:
    open_ = sorted((job for _, job in jobs if not job.must_start), key=lambda job: job.rank)
    return all(
        after.may_pass or after.rank not in started or before.rank in started
        for before, after in itertools.pairwise(open_)
    )


def cost(
    jobs: Sequence[tuple[JobGroup, Waiting]],
    started: set[int],
    left: Mapping[HostType, FreePlace],
    following: SchedulingClass | None,
) -> float:
    free = [here.free for here in left.values()]
    in_part = sum(0 < here.free < here.total for here in left.values())
    fitting = 0
    if following is not None:
        wanted = {place: min(following.gpus, here.total) for place, here in left.items()}
        fitting = sum(fits(((place, wanted[place]),), following, left) for place in left)
    more = sum(len(jobs) - job.rank for _, job in jobs if job.rank in started and not job.must_start)
    return in_part + 0.3 * (max(free) - min(free)) - 0.5 * fitting - 100.0 * more


@given(problem=problems())
def test_the_solution_is_the_least_there_is(
    problem: tuple[list[JobGroup], dict[HostType, FreePlace], SchedulingClass | None],
) -> None:
    groups, places, following = problem
    if not groups:
        return
    asked = PlacementProblem(groups, places, following)
    found = UNLIMITED.solve(asked)
    assert found is not None
    assert found.cost == pytest.approx(least(groups, places, following), abs=1e-5)
    assert found == UNLIMITED.solve(asked), "equal problems, equal answers"
    left = dict(places)
    for (number, choice), count in found.picked.items():
        for _ in range(count):
            assert fits(choice, groups[number].scheduling_class, left)
            take(choice, groups[number].scheduling_class, left)
    started = cost([], set(), left, following) - found.cost
    assert started == pytest.approx(100.0 * round(started / 100.0), abs=1e-5), "what is picked costs so much"
