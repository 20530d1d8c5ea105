"""Lazer on a real cluster: a preemption is really put off, told in plain words, and survives the controller.

The jobs are real trainings. What they should take is said: so it is certain who may preempt whom.
"""

from __future__ import annotations

from importlib.util import find_spec

import msgspec
import pytest

from cotenant.controller.domain import LOAD_S, PAUSE_S, JobId, Phase, texts
from cotenant.controller.papers.lazer.learning import Learner
from cotenant.controller.papers.lazer.parameters import LazerParameters
from cotenant.controller.wire import clients as wire
from tests.live.cluster import SMALL, Cluster, Training

pytestmark = pytest.mark.skipif(
    find_spec("botorch") is None, reason="lazer is offered where the [bo] extra (botorch) is installed"
)

PARAMETERS = LazerParameters(x_max_s=6.0, bootstrap=2, updates_min=2, seed=4)
"""Its first two deferrals are drawn, not learned: 4.53 s and 2.93 s."""
LONG = Training(
    name="long", script=SMALL, steps=300, pace_s=0.2, more={"iterations": None, "expected_s": 900.0}
)
SHORT = Training(name="short", script=SMALL, steps=12, more={"iterations": None, "expected_s": 5.0})
SHORTER = Training(name="shorter", script=SMALL, steps=12, more={"iterations": None, "expected_s": 4.0})


def predictions(cluster: Cluster, job_id: JobId) -> list[str]:
    """What the predictor said of it, newest first."""
    decisions = cluster.client.ask(wire.GetDecisions(job_id=job_id)).decisions
    return [d.reason for d in decisions if d.what == "put off"]


def drawn_s(number: int) -> float:
    return round(Learner(PARAMETERS).predict(0.0, 1.0, 1.0, 1.0, already=number).x_s, 2)


def await_deferred(cluster: Cluster, training: Training) -> JobId:
    job_id = cluster.submit(training)
    cluster.until(lambda jobs: jobs[job_id].reason_code == "deferred-until" or jobs[job_id].attempt > 0)
    return job_id


def test_a_deferral_is_kept_explained_and_not_forgotten_with_the_controller(cluster: Cluster) -> None:
    controller = cluster.add_controller()
    controller.start()
    cluster.add_agent("a", "agent.devices=cpu:1", "agent.heartbeat_s=0.3", "launch.warm=true").start()
    long = cluster.submit(LONG)
    cluster.until(lambda jobs: jobs[long].phase is Phase.RUNNING and jobs[long].resumable)
    cluster.client.ask(wire.SetPolicy(name="lazer", parameters=msgspec.structs.asdict(PARAMETERS)))
    load_s = cluster.shown(long).job.expected_load_s
    if load_s == LOAD_S:
        pytest.skip("torch takes more than ten seconds to import here: a load that long is not measured")
    assert load_s is not None

    # A shorter job comes: it could preempt, and is told to wait for a drawn time instead.
    short = await_deferred(cluster, SHORT)
    (told,) = predictions(cluster, short)
    put_off = f"preempting {long} for it is put off by {texts.duration(drawn_s(0))} (bootstrap"
    assert told.startswith(put_off), told
    assert f"it would take {texts.duration(load_s)} to load" in told, "the predictor is fed the measured load"
    explained = cluster.client.ask(wire.Explain(job_id=short)).explanation.lines
    assert any(f"preempting {long} for it is put off" in line for line in explained)

    # The controller dies with the deferral open; the next one knows of it.
    controller.kill()
    controller.start()
    assert predictions(cluster, short) == [told]
    cluster.until(lambda jobs: jobs[short].phase is Phase.DONE)
    first = cluster.shown(long).attempts[0]
    assert first.stop_requested_s is not None
    waited_s = first.stop_requested_s - cluster.shown(short).job.submitted_s
    assert waited_s > drawn_s(0) - 0.01, "not before its time, which is said to the millisecond"
    assert first.outcome == "preempted" and f"preempted for job {short}" in first.reason
    pause_s = cluster.shown(long).job.expected_pause_s
    assert pause_s is not None and pause_s != PAUSE_S, "its first pause has been measured"

    # What was learned outlived it, too: the next draw is the second one.
    cluster.until(lambda jobs: jobs[long].phase is Phase.RUNNING)
    shorter = await_deferred(cluster, SHORTER)
    (told,) = predictions(cluster, shorter)
    assert told.startswith(f"preempting {long} for it is put off by {texts.duration(drawn_s(1))} (bootstrap")
    assert f"up to {texts.duration(pause_s)} to make room" in told, "the predictor is fed the measured pause"
    cluster.until(lambda jobs: jobs[shorter].phase is Phase.DONE)

    cluster.open_gate(long)
    cluster.until(lambda jobs: jobs[long].phase is Phase.DONE)
    assert cluster.check_history(long).job.preemptions == 2
