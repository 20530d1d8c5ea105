"""A policy in the shadow: it is asked about the record, differs where it should, and never from itself."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Decision, ExitVerdict, Job, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.planning import View
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Stateless
from cotenant.controller.sim.past.shadow import ShadowFollower
from cotenant.controller.sim.past.shadowing import Shadowing
from cotenant.controller.store import RecoveredState, digest
from cotenant.controller.wire import ShadowQuestion, ShadowTally, pack, unpack
from tests.building.journals import a_journal
from tests.controller.building import profile, report, spec
from tests.controller.engine.test_histories import examples, fresh
from tests.controller.histories import HOSTS, STEPS, WAITS_S, Step, event_of

POLICIES = ("fifo", "sjf", "srtf", "castor", "tiresias", "lucid", "patient", "gfs")


def written(
    folder: Path, engine: Engine, steps: Sequence[tuple[float, ev.AnyEvent | Step]], snapshot_at: int = 0
) -> Path:
    """The journal of a controller to which this happened; with a snapshot after so many entries."""
    journal = a_journal(folder)
    state = RecoveredState(engine)
    try:
        journal.begin_run(pack(engine.config), "0", 0.0)
        for number, (wait_s, step) in enumerate(steps, 1):
            event = (
                event_of(engine, step, (engine.current.name,))
                if isinstance(step, tuple)
                else unpack(pack(step), ev.AnyEvent)
            )
            now_s = engine.now_s + wait_s
            commands = state.handle(event, now_s)
            journal.append(now_s, now_s, pack(event), pack(engine.decision), digest(commands))
            if number == snapshot_at:
                journal.keep_snapshot(state.save())
        journal.seal()
        journal.flush()
    finally:
        journal.close()
    return folder / "journal.sqlite"


def followed(path: Path, policy: str, begin_s: float = 0.0, slice_of: int = 10_000) -> ShadowTally:
    follower = ShadowFollower(registry.make(policy, {}), begin_s, registry.make)
    while not follower.advance(path, slice_of):
        pass
    return follower.tally()


@given(name=st.sampled_from(POLICIES), people=st.booleans(), steps=STEPS)
@settings(max_examples=examples(0.25))
def test_a_policy_in_its_own_shadow_never_differs(name: str, people: bool, steps: list[Step]) -> None:
    """Whatever happened; and the record is followed to the letter."""
    events: list[tuple[float, ev.AnyEvent | Step]] = [(0.0, ev.HostJoined(report=host)) for host in HOSTS]
    events += [(float(WAITS_S[step[3] % len(WAITS_S)]), step) for step in steps]
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), fresh(name, people=people), events)
        tally = followed(path, name)
        other = followed(path, "srtf" if name == "fifo" else "fifo", slice_of=7)
    assert (tally.differing, tally.failed, tally.unfollowed) == ({}, "", 0)
    assert tally.alike == tally.decisions
    assert (other.failed, other.unfollowed) == ("", 0)


ALONE = profile(8, (1, 0.1, 100.0), duty=0.4)


def story() -> list[tuple[float, ev.AnyEvent | Step]]:
    """A long job runs; a middling one and a short one wait, and run in order of arrival."""
    of = {"attempt": 1, "host_id": "a"}

    def arrives(number: int, expected_s: float) -> ev.AnyEvent:
        return ev.JobArrived(spec=spec(number, expected_s=expected_s, profile=ALONE, batch_size=8))

    def step(number: int) -> ev.AnyEvent:
        return ev.FirstStepDone(job_id=str(number), step=1, **of)  # type: ignore[arg-type]

    def end(number: int) -> ev.AnyEvent:
        return ev.AttemptEnded(job_id=str(number), verdict=ExitVerdict(outcome="finished"), **of)  # type: ignore[arg-type]

    return [
        (0.0, ev.HostJoined(report=report("a", 1))),
        (0.0, arrives(1, 100.0)), (1.0, step(1)), (1.0, arrives(2, 50.0)), (1.0, arrives(3, 5.0)),
        (97.0, end(1)), (1.0, step(2)), (49.0, end(2)), (1.0, step(3)), (4.0, end(3)),
    ]  # fmt: skip


def test_it_tells_what_it_would_have_done_and_how_much_sooner(tmp_path: Path) -> None:
    tally = followed(written(tmp_path, fresh("fifo"), story()), "sjf")
    assert tally.differing == {"starts": 1, "waits": 1}
    newest, before = tally.last
    assert (before.job_id, before.done, before.instead) == ("3", "", "place on a/cpu0")
    assert (newest.job_id, newest.done, newest.instead) == ("2", "place on a/cpu0", "")
    assert (tally.sooner_jobs, tally.sooner_s) == (1, 50.0)


def test_sharing_shows_at_once(tmp_path: Path) -> None:
    tally = followed(written(tmp_path, fresh("fifo"), story()), "castor")
    assert tally.differing["starts"] == 2 and tally.sooner_jobs == 2
    assert tally.last[-1].instead.startswith("share on a/cpu0")


@pytest.mark.parametrize("begin_s", [0.0, 50.0])
def test_in_slices_and_from_a_snapshot_it_comes_to_the_same(tmp_path: Path, begin_s: float) -> None:
    path = written(tmp_path, fresh("fifo"), story(), snapshot_at=5)
    whole = followed(path, "sjf", begin_s)
    assert followed(path, "sjf", begin_s, slice_of=1) == whole
    follower = ShadowFollower(registry.make("sjf", {}), begin_s, registry.make)
    follower.advance(path, 1)
    assert follower.reached == (1 if begin_s == 0.0 else 6), (
        "it begins with the snapshot before its beginning"
    )


class Broken(Stateless):
    name = "broken"

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return (job.number,)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        raise ZeroDivisionError("nonsense")

    def explain(self, view: View, job: Job) -> Reason:
        return because("next-event")


def test_a_shadow_that_fails_is_asked_no_more_and_the_record_goes_on(tmp_path: Path) -> None:
    follower = ShadowFollower(Broken(), 0.0, registry.make)
    assert follower.advance(written(tmp_path, fresh("fifo"), story()), 1_000)
    tally = follower.tally()
    assert (tally.failed, tally.unfollowed, tally.decisions) == ("ZeroDivisionError: nonsense", 0, 0)


def test_the_child_answers_simulates_and_leaves_the_journal_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, fresh("fifo"), story())
    before = path.read_bytes()
    child = Shadowing()
    question = ShadowQuestion(
        journal=str(path), policy="sjf", parameters={}, begin_s=0.0, entries_max=4, simulate=True
    )
    first = child.answer(question)
    assert (first.reached, first.is_caught_up, first.simulated) == (4, False, None)
    child.answer(question)
    last = child.answer(question)
    assert last.is_caught_up and last.simulated is not None
    assert [run["policy"] for run in last.simulated["runs"]] == ["fifo", "sjf"]
    assert last.simulated["calibration"]["jct_error"]["p50"] < 0.2, "the error of the policy in force"
    assert path.read_bytes() == before
