"""The loop of simulations, with an engine and a world that do as they are told."""

from __future__ import annotations

from array import array
from itertools import islice
from types import SimpleNamespace
from typing import Any

from cotenant.controller.domain import ComputeRequest
from cotenant.controller.domain import events as ev
from cotenant.controller.sim import drive


def steps(commands: list[tuple[str, ...]], **options: Any) -> list[Any]:
    """What the loop yields, 2,000 steps at most; the engine returns these commands, then never one."""
    left = iter(commands)
    engine: Any = SimpleNamespace(next_alarm_s=None, handle=lambda event, now_s: next(left, ()))
    world: Any = SimpleNamespace(
        now_s=0.0, compute_requests=[], is_idle=True, obey=lambda _: None, next_event=lambda _: ev.AlarmRang()
    )

    def answer(request: ComputeRequest) -> ev.Computed:
        raise AssertionError("nothing is asked for")

    return list(islice(drive.drive(engine, world, answer, **options), 2_000))


def test_a_cluster_in_which_nothing_happens_any_more_is_left() -> None:
    assert len(steps([], idle_events_max=3)) == 4
    assert len(steps([(), ("place",), (), (), ("place",)], idle_events_max=3)) == 5 + 4, "each command counts"


def test_the_first_decisions_are_timed_and_then_a_fixed_share() -> None:
    timed = array("q")
    steps([], idle_events_max=699, decision_ns=timed)
    later = [number for number in range(501, 701) if number % 19 == 0]
    assert len(timed) == 500 + len(later)
