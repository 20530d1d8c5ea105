"""What Lazer learns: labels, time between arrivals, the three stages, fits that come, fail or never come."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import (
    NOTHING,
    AnyAction,
    Compute,
    Decision,
    Defer,
    Job,
    JobId,
    Phase,
    because,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.lazer.learning import DEFERRED, KIND, LearnedMemory, Learner, Prediction
from cotenant.controller.papers.lazer.parameters import LazerParameters
from cotenant.controller.policies import registry
from tests.controller.building import spec

VALUES = (0.1, 0.2, 20.0, 10.0, 0.3, 0.5, 0.6, 0.7, 0.8)


class Story:
    """A learner, and what it is told; jobs are numbered as they arrive."""

    def __init__(self, **options: Any) -> None:
        self.learner = Learner(LazerParameters(**options))
        self.jobs: dict[JobId, Job] = {}
        self.now_s = 0.0

    def tell(self, event: ev.AnyEvent, *actions: AnyAction) -> None:
        view: Any = SimpleNamespace(now_s=self.now_s, jobs=self.jobs)
        self.learner.observe(view, event, Decision(actions=actions) if actions else NOTHING)

    def arrives(self, at_s: float, remaining_s: float | None = None, found: Prediction | None = None) -> Job:
        """A job arrives, and is deferred as was predicted for it."""
        self.now_s = at_s
        number = len(self.jobs) + 1
        job = Job(spec=spec(number), number=number, submitted_s=at_s, reason=because("submitted", "ann"))
        job.estimate.remaining_s = remaining_s
        self.jobs[job.job_id] = job
        actions: list[AnyAction] = []
        if found is not None:
            reason = because(DEFERRED, *found.operands(), "1")
            actions.append(Defer(job_id=job.job_id, victims=(), until_s=at_s + found.x_s, reason=reason))
        self.tell(ev.JobArrived(spec=job.spec), *actions)
        return job

    def passes(self, until_s: float) -> None:
        self.now_s = until_s
        self.tell(ev.AlarmRang())

    def predicts(self, at_s: float, remaining_s: float = 100.0) -> Prediction:
        return self.learner.predict(at_s, remaining_s, 30.0, 5.0)

    def learns(self, at_s: float, count: int = 1) -> None:
        """Predictions, each deferred and each labelled before the next."""
        for i in range(count):
            self.arrives(at_s + 40.0 * i, 100.0, self.predicts(at_s + 40.0 * i))
        self.passes(at_s + 40.0 * count)


# --- Labels ---------------------------------------------------------------------------------------------

WINDOW = Prediction(10.0, "bootstrap", 0.0, load_s=30.0, pause_s=5.0)
"""Of a newcomer with 100 s left that comes at 50 s: its window is (50, 85]."""
# fmt: off
LABELS: list[tuple[str, list[tuple[float, float | None]], dict[str, Any], float]] = [
    ("nobody comes", [], {}, 10.0),
    ("a longer one comes", [(60.0, 200.0)], {}, 10.0),
    ("one of equal length comes", [(60.0, 100.0)], {}, 10.0),
    ("one of unknown length comes", [(60.0, None)], {}, 10.0),
    ("a shorter one comes", [(65.0, 20.0)], {}, 5.0),
    ("a shorter one comes at the same moment", [(50.0, 20.0)], {}, 10.0),
    ("a shorter one comes at the very end", [(85.0, 20.0)], {}, 25.0),
    ("a shorter one comes after the end", [(85.5, 20.0)], {}, 10.0),
    ("the first of several counts", [(55.0, 300.0), (58.0, 50.0), (70.0, 20.0)], {}, 2.0),
    ("the last of several counts if asked for", [(58.0, 50.0), (70.0, 20.0), (71.0, 300.0)],
     {"chain": "last"}, 10.0),
]
# fmt: on


@pytest.mark.parametrize("row", LABELS, ids=[row[0].replace(" ", "-") for row in LABELS])
def test_the_label(row: tuple[str, list[tuple[float, float | None]], dict[str, Any], float]) -> None:
    _, arrivals, options, wanted_s = row
    story = Story(**options)
    story.arrives(50.0, 100.0, WINDOW)
    for at_s, remaining_s in arrivals:
        story.arrives(at_s, remaining_s)
    story.passes(85.0)
    assert all(at_s > 85.0 for at_s, _ in arrivals) or story.learner.samples == ()
    story.passes(90.0)
    (sample,) = story.learner.samples
    assert sample.f_s == pytest.approx(wanted_s)
    assert sample.x_s == 10.0
    assert sample.context == (3600.0, 100.0, 30.0, 5.0)


def test_windows_close_in_the_order_of_their_ends() -> None:
    story = Story()
    story.arrives(0.0, 100.0, Prediction(1.0, "bootstrap", 0.0, load_s=90.0, pause_s=5.0))
    story.arrives(1.0, 100.0, Prediction(2.0, "bootstrap", 0.0, load_s=10.0, pause_s=5.0))
    story.passes(200.0)
    assert [sample.x_s for sample in story.learner.samples] == [2.0, 1.0]


# --- The time between arrivals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals", "now_s", "wanted_s"),
    [
        ([], 50.0, 3600.0),
        ([10.0], 50.0, 40.0),
        ([10.0, 20.0, 30.0], 40.0, 10.0),
        ([10.0, 3000.0], 3611.0, 611.0),  # The first is more than an hour ago.
        ([10.0, 20.0], 9000.0, 3600.0),
    ],
)
def test_mean_time_between_arrivals(arrivals: list[float], now_s: float, wanted_s: float) -> None:
    story = Story()
    for at_s in arrivals:
        story.arrives(at_s)
    assert story.learner.gap_s(now_s) == pytest.approx(wanted_s)
    story.passes(now_s)
    assert story.learner.gap_s(now_s) == pytest.approx(wanted_s), "what is forgotten was not counted"


def test_a_submission_told_twice_and_one_that_is_held_are_no_arrivals() -> None:
    story = Story()
    job = story.arrives(10.0)
    story.now_s = 20.0
    story.tell(ev.JobArrived(spec=job.spec))
    held = Job(spec=spec(9, hold=True), number=9, submitted_s=25.0, reason=because("held-by", "ann"))
    held.phase = Phase.HELD
    story.jobs[held.job_id] = held
    story.tell(ev.JobArrived(spec=held.spec))
    assert story.learner.gap_s(30.0) == 20.0


# --- Stages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_every_ten_predictions_of_the_bootstrap_fall_into_ten_equal_intervals(seed: int) -> None:
    learner = Learner(LazerParameters(seed=seed))
    for first in (0, 10, 20):
        drawn = [learner.predict(0.0, 100.0, 30.0, 5.0, first + i).x_s for i in range(10)]
        assert sorted(int(x_s // 10.0) for x_s in drawn) == list(range(10)), drawn


def test_another_seed_is_another_sample() -> None:
    drawn = {Learner(LazerParameters(seed=seed)).predict(0.0, 100.0, 30.0, 5.0).x_s for seed in range(8)}
    assert len(drawn) == 8


def test_the_stages_follow_each_other() -> None:
    story = Story(bootstrap=4, updates_min=8, ei_stop=0.999)
    seen = []
    for i in range(12):
        seen.append(story.learner.stage)
        story.learns(1000.0 * i)
    assert seen[:4] == ["bootstrap"] * 4
    assert seen[4:8] == ["acquisition"] * 4
    assert seen[10:] == ["exploitation"] * 2
    learned = len(story.learner.samples)
    assert 8 <= learned <= 10
    story.learns(90_000.0, 3)
    assert len(story.learner.samples) == learned, "no more updates once it exploits"


def test_the_acquisition_stage_goes_on_while_there_is_much_to_gain_and_ends_at_the_limit() -> None:
    story = Story(bootstrap=2, updates_min=3, updates_max=9, ei_stop=1e-9)
    for i in range(9):
        assert story.learner.stage != "exploitation"
        story.learns(1000.0 * i)
    assert story.learner.stage == "exploitation"
    assert len(story.learner.samples) == 9


def test_where_nobody_shorter_ever_comes_the_best_deferral_is_none() -> None:
    story = Story(updates_min=30, updates_max=30)
    story.learns(0.0, 45)
    assert story.learner.stage == "exploitation"
    assert story.predicts(5000.0).x_s == 0.0


def test_where_one_always_comes_half_a_minute_later_that_is_the_best_deferral() -> None:
    story = Story(updates_min=60, updates_max=60)
    at_s = 0.0
    while story.learner.stage != "exploitation":
        story.arrives(at_s, 100.0, story.predicts(at_s))
        story.arrives(at_s + 30.0, 20.0)
        story.passes(at_s + 36.0)
        at_s += 60.0
    assert story.predicts(at_s).x_s == pytest.approx(30.0, abs=3.0)


def test_predicting_changes_nothing() -> None:
    story = Story(bootstrap=2)
    story.learns(0.0, 5)
    before = msgspec.msgpack.encode(story.learner.save())
    first = story.predicts(500.0)
    assert story.predicts(500.0) == first
    assert msgspec.msgpack.encode(story.learner.save()) == before
    restored = Learner(story.learner.parameters, msgspec.msgpack.decode(before, type=LearnedMemory))
    assert restored.predict(500.0, 100.0, 30.0, 5.0) == first


# --- Fits -----------------------------------------------------------------------------------------------


def asked(story: Story) -> Compute:
    request = story.learner.request()
    assert request is not None
    assert (request.kind, len(request.payload["inputs"])) == (KIND, 5 * len(request.payload["targets"]))  # type: ignore[arg-type]
    story.tell(ev.AlarmRang(), request)
    return request


def test_a_fit_is_asked_for_once_and_again_after_ten_more_samples() -> None:
    story = Story()
    story.learns(0.0, 9)
    assert story.learner.request() is None
    story.learns(1000.0)
    request = asked(story)
    assert request.request_id == 1
    story.learns(2000.0, 12)
    assert story.learner.request() is None, "the first has not been answered"
    story.tell(ev.Computed(request_id=1, model_sha256="", values=VALUES))
    assert asked(story).request_id == 2
    story.tell(ev.Computed(request_id=2, model_sha256="", values=VALUES))
    story.learns(5000.0, 9)
    assert story.learner.request() is None
    story.learns(6000.0)
    assert asked(story).request_id == 3


def test_an_answer_counts_between_fits() -> None:
    story = Story()
    story.learns(0.0, 10)
    asked(story)
    story.tell(ev.Computed(request_id=1, model_sha256="", values=VALUES))
    hyper = story.learner.save().hyper
    assert hyper is not None
    assert (hyper.noise, hyper.constant, hyper.mean_s, hyper.deviation_s) == VALUES[:4]
    assert hyper.lengthscales == VALUES[4:]


@pytest.mark.parametrize(
    "wrong",
    [
        ev.Computed(request_id=1, model_sha256="", values=(), error="it broke"),
        ev.Computed(request_id=1, model_sha256="", values=VALUES, error="it broke"),
        ev.Computed(request_id=1, model_sha256="", values=VALUES[:-1]),
        ev.Computed(request_id=1, model_sha256="", values=(float("nan"), *VALUES[1:])),
        ev.Computed(request_id=1, model_sha256="", values=(-0.1, *VALUES[1:])),
        ev.Computed(request_id=1, model_sha256="", values=(*VALUES[:-1], 0.0)),
        ev.Computed(request_id=7, model_sha256="", values=VALUES),
    ],
)
def test_an_answer_that_is_none_leaves_what_was_known(wrong: ev.Computed) -> None:
    story = Story()
    story.learns(0.0, 10)
    asked(story)
    story.tell(wrong)
    assert story.learner.save().hyper is None
    story.learns(1000.0, 10)
    assert (story.learner.request() is None) == (wrong.request_id == 7)
    assert story.predicts(3000.0).stage == "acquisition"


def test_exploitation_begins_with_a_fit_over_all_samples() -> None:
    story = Story(updates_min=13, updates_max=13)
    story.learns(0.0, 10)
    asked(story)
    story.tell(ev.Computed(request_id=1, model_sha256="", values=VALUES))
    story.learns(1000.0, 3)
    assert story.learner.stage == "exploitation"
    assert len(asked(story).payload["targets"]) == 13  # type: ignore[arg-type]
    story.tell(ev.Computed(request_id=2, model_sha256="", values=VALUES))
    assert story.learner.request() is None


# --- The extra ------------------------------------------------------------------------------------------


def test_without_its_library_lazer_is_not_offered_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert registry.is_ours("lazer")  # Entry points are looked up once, by what is replaced next.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install ".[bo]"' in registry.lacks("lazer")
    assert registry.lacks("srtf") == ""
    with pytest.raises(ValueError, match=r'lazer is not available: .*pip install "\.\[bo\]"'):
        registry.make("lazer", {})


def test_making_it_imports_no_training_stack() -> None:
    code = (
        "import sys; from cotenant.controller.policies import registry\n"
        "registry.make('lazer', {})\n"
        "assert not {'torch', 'botorch', 'gpytorch', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
