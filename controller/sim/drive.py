"""The one loop of simulations, of whole traces as of roll-outs: the engine of production, and a world that
obeys it under a virtual clock.

    what happens next -> the engine -> its commands, which the world carries out

Rule: the loop decides nothing and keeps nothing of what happened. A caller reads engine and world after each
step, and leaves the loop when it knows enough.

Rule: every `ComputeRequest` is answered exactly once with `Computed`, as in production, with a result or with
what went wrong; there is no child process here. The answer comes after a fixed time of the virtual clock.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from cotenant.controller.domain import AnyCommand, ComputeRequest
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.sim.world.world import World
from cotenant.controller.wire import ComputeResult, Payload

Computes = Callable[[str, Payload], ComputeResult]
"""Kind and payload of a request -> the hash of the model that was used, and numbers; or it raises."""

TIMED_FIRST: Final = 500
TIMED_EVERY: Final = 19
"""The first decisions are timed, then a fixed share: reading a processor clock twice costs more than a light
decision. A prime has no factor in common with the three or four events of a job's life."""
IDLE_EVENTS_MAX: Final = 10_000
"""After so many events in a row without a command, in a cluster where nothing is under way, what still waits
will never start."""


def drive(
    engine: Engine,
    world: World,
    answer: Callable[[ComputeRequest], ev.Computed],
    *,
    idle_events_max: int = IDLE_EVENTS_MAX,
    decision_ns: array[int] | None = None,
) -> Iterator[tuple[ev.AnyEvent, Sequence[AnyCommand]]]:
    """Yields each event with the engine's commands after the world has obeyed them, until nothing will happen
    any more. `decision_ns`: gets the processor time of the decisions that are timed."""
    clock_ns, handle, next_event = time.thread_time_ns, engine.handle, world.next_event
    events = idle = 0
    while (event := next_event(engine.next_alarm_s)) is not None:
        events += 1
        if decision_ns is not None and (events <= TIMED_FIRST or not events % TIMED_EVERY):
            began_ns = clock_ns()
            commands = handle(event, world.now_s)
            decision_ns.append(clock_ns() - began_ns)
        else:
            commands = handle(event, world.now_s)
        if commands:
            idle = 0
            world.obey(commands)
            if world.compute_requests:
                requests, world.compute_requests = world.compute_requests, []
                for request in requests:
                    world.tell_at(world.now_s + world.charge_s, answer(request))
        else:
            idle += 1
        yield event, commands
        if idle > idle_events_max and world.is_idle:
            return


def nothing(kind: str, payload: Payload) -> ComputeResult:
    """Refuses every request to compute, for runs in which nothing is computed."""
    raise ValueError(f"this simulation was given nothing that computes {kind!r}")


def answer_inline(command: ComputeRequest, compute: Computes) -> ev.Computed:
    """Computes what was asked for, here and now."""
    try:
        found = compute(command.kind, command.payload)
    except Exception as failure:  # noqa: BLE001 - whatever a computation raises is its answer
        found = ComputeResult(error=f"{type(failure).__name__}: {failure}")
    return ev.Computed(
        request_id=command.request_id,
        model_sha256=found.model_sha256,
        values=found.values,
        error=found.error,
        job_id=command.job_id,
        document=found.document or None,
    )
