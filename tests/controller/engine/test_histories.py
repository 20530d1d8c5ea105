"""Properties over random histories, under every policy and under one that answers nonsense."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Decision, PolicySettings
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, Snapshot
from cotenant.controller.policies import registry
from cotenant.controller.wire import pack, unpack
from tests.controller.histories import HOSTS, STEPS, WAITS_S, Step, event_of
from tests.controller.hostile import make_hostile
from tests.controller.watching import Watcher

POLICIES = tuple(registry.AVAILABLE)
Told = tuple[ev.AnyEvent, float]


def examples(share: float) -> int:
    """A share of what the profile says: `make soak` draws many more than `make test`."""
    return int(settings().max_examples * share)


def fresh(name: str, *, ageing_s: float = 5000.0) -> Engine:
    config = EngineConfig(policy=PolicySettings(name=name, ageing_s=ageing_s), keep_ended=6)
    return Engine(make_hostile if name == "hostile" else registry.make, config, validate=True)


def play(engine: Engine, steps: Sequence[Step], *, watch: bool = True) -> list[Told]:
    """Let the steps happen; returns the events that they meant, with their times."""
    watcher = Watcher(engine)
    told: list[Told] = []
    names = POLICIES if engine.policy_name != "hostile" else ("hostile",)
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


def bytes_of(engine: Engine, told: Sequence[Told]) -> list[bytes]:
    return [pack(engine.handle(event, now_s)) for event, now_s in told]


@given(name=st.sampled_from(POLICIES), steps=STEPS, cut=st.integers(0, 80))
@settings(max_examples=examples(0.6))
def test_the_same_inputs_give_the_same_commands_in_whatever_way_the_state_was_reached(
    name: str, steps: list[Step], cut: int
) -> None:
    asked = fresh(name)
    told = play(asked, steps, watch=False)
    first, decided = fresh(name), []
    commands = []
    for event, now_s in told:
        commands.append(pack(first.handle(event, now_s)))
        decided.append(pack(first.decision))
    assert bytes_of(fresh(name), told) == commands

    folded = fresh(name)
    for (event, now_s), decision, wanted in zip(told, decided, commands, strict=True):
        assert pack(folded.fold(event, unpack(decision, Decision), now_s)) == wanted
    assert msgspec.msgpack.encode(folded.snapshot()) == msgspec.msgpack.encode(first.snapshot())

    cut = min(cut, len(told))
    before = fresh(name)
    bytes_of(before, told[:cut])
    restored = fresh(name)
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
