"""Who counts as a newcomer, by either rule; lazer that never defers is srtf, command by command."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import HostId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.sim import Scenario, World, policies_named, scenario, simulate
from cotenant.controller.wire import pack
from tests.controller.building import Desk, report, spec
from tests.controller.building import engine as made
from tests.controller.histories import HOSTS, STEPS, Step, event_of
from tests.controller.policies.test_classic import written

AT_ONCE: dict[str, dict[str, Any]] = {"lazer": {"x_max_s": 0.0}}


@pytest.mark.parametrize("policy", ["srtf", "srsf", "lazer"])
@pytest.mark.parametrize(("rule", "again"), [(None, False), ("first", False), ("every", True)])
def test_a_job_that_comes_back_to_the_queue_preempts_only_where_every_return_counts(
    policy: str, rule: str | None, again: bool
) -> None:
    desk = Desk(policy, report("a", 1), report("b", 1))
    given = AT_ONCE.get(policy, {}) | ({} if rule is None else {"newcomers": rule})
    desk.tell(ev.PolicyChanged(name=policy, parameters=given))
    desk.run(1, expected_s=100.0)
    desk.run(2, expected_s=500.0)
    desk.tell(ev.HostLost(host_id=HostId("a"), by="root"))
    assert desk.phase(1) == ("reserved" if again else "queued")
    assert desk.phase(2) == ("checkpointing" if again else "running")
    desk.submit(3, expected_s=1.0)
    assert desk.phase(2) == "checkpointing"


# --- lazer:x_max_s=0 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["first", "every"])
@pytest.mark.parametrize("trace", ["philly/6214e9", "philly/b436b2"])
def test_on_a_trace_lazer_that_never_defers_gives_the_commands_of_srtf_to_the_byte(
    trace: str, rule: str
) -> None:
    sent: list[bytes] = []

    class Recorded(World):
        def obey(self, commands: Any) -> None:
            sent.append(pack([self.now_s, commands]))
            super().obey(commands)

    asked = Scenario(trace=trace, jobs=500, hosts=3, load_scale=2.0)
    streams = []
    for task in scenario.tasks(
        asked, policies_named(f"srtf:newcomers={rule},lazer:x_max_s=0,newcomers={rule}"), [0]
    ):
        asked_of = task.workload, task.cluster, task.policy.name, task.policy.parameters
        outcome = simulate(*asked_of, make_world=Recorded)
        assert outcome.preemptions.sum() > 50
        streams.append(b"".join(sent))
        sent.clear()
    assert streams[0] == streams[1]


LENGTHS_S = (3.0, 10.0, 30.0, 100.0, 300.0)


def meaning(engine: Engine, step: Step) -> ev.AnyEvent:
    """Mostly short newcomers."""
    kind, x, y, z = step
    if kind % 8 < 3:
        gpus, expected_s = (1, 1, 1, 2)[x % 4], LENGTHS_S[y % 5] + x / 100.0
        newcomer = spec(engine.ledger.next_number, gpus=gpus, expected_s=expected_s, resumable=z % 8 > 0)
        return ev.JobArrived(spec=newcomer)
    return event_of(engine, step, ("srtf",))


@given(
    steps=STEPS,
    rule=st.sampled_from(("first", "every")),
    ageing_s=st.sampled_from((0.0, 20.0, 200.0)),
)
@settings(max_examples=60)
def test_over_any_history_lazer_that_never_defers_decides_as_srtf(
    steps: list[Step], rule: str, ageing_s: float
) -> None:
    given: dict[str, dict[str, Any]] = {"srtf": {}, "lazer": {"x_max_s": 0.0}}
    engines = []
    for name, more in given.items():
        engines.append(made(name, validate=False, ageing_s=ageing_s))
        changed = ev.PolicyChanged(name=name, parameters={"newcomers": rule, **more})
        engines[-1].handle(changed, 0.0)

    def tell(event: ev.AnyEvent, now_s: float) -> None:
        srtf, lazer = (pack(engine.handle(event, now_s)) for engine in engines)
        assert srtf == lazer, f"{event} at {now_s} s: {engines[0].decision} and {engines[1].decision}"
        planned = [[written(action) for action in engine.decision.actions] for engine in engines]
        assert planned[0] == planned[1]

    for host in HOSTS[:2]:
        tell(ev.HostJoined(report=host), 0.0)
    for number in range(1, 7):
        tell(ev.JobArrived(spec=spec(number, expected_s=1000.0 * number, resumable=True)), 0.0)
    for step in steps:
        event = meaning(engines[0], step)
        if not isinstance(event, ev.PolicyChanged):
            tell(event, engines[0].now_s + (0.0, 1.0, 5.0, 40.0)[step[3] % 4])
