"""A trained model among the sources of xi: below what was observed, above the rules, the same in a replay."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cotenant.controller.domain import Job, JobId, JobMeasurements, JobSpec, Launch, because
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.engine_settings import engine_config
from cotenant.controller.knowledge import PairTable
from cotenant.controller.models.interference import model_file
from cotenant.controller.models.interference.features import (
    VOCABULARY,
    columns_of,
    job_features,
    names_in,
    pair_features,
)
from cotenant.controller.models.interference.model_file import ModelProblem
from cotenant.controller.models.interference.predictor import Predictor
from cotenant.controller.performance import (
    INDICATOR_NAMES,
    MODEL_SCHEMA,
    Indicators,
    IndicatorStats,
    Interference,
    Profile,
    ProfilePoint,
)
from cotenant.controller.policies import registry
from cotenant.controller.store import digest, recover, replay
from cotenant.controller.system.sections import ControllerSettings, Settings
from cotenant.controller.system.settings import SettingsError
from cotenant.controller.wire import pack, unpack
from tests.building.journals import a_journal
from tests.controller.building import Desk, profile
from tests.controller.invented_model import FULL, a_model


def job(name: str, duty: float | None = None, **profile: Any) -> Job:
    known = Profile(duty_cycle=duty, **profile) if duty is not None or profile else None
    return Job(
        spec=JobSpec(job_id=JobId(name), launch=Launch(argv=("python", f"{name}.py"))),
        number=1,
        submitted_s=0.0,
        reason=because("submitted", "ann"),
        measured=JobMeasurements(profile=known),
    )


def of_pair(predictor: Predictor, first: Job, second: Job) -> Interference | None:
    (found,) = predictor.ratios_beside(first, (second,))
    return found


# --- What it answers ---------------------------------------------------------------------------------


def test_the_answer_is_the_same_whichever_job_is_named_first() -> None:
    predictor, x, y = Predictor(a_model()), job("x", 0.4), job("y", 0.9)
    there, back = of_pair(predictor, x, y), of_pair(predictor, y, x)
    assert there is not None and back is not None
    assert (there.first, there.second) == pytest.approx((1.5, 1.8))
    assert there == back.swap()
    assert there.source == "predicted"


def test_a_policy_gets_at_least_one_but_a_judge_gets_the_raw_answer() -> None:
    predictor, x = Predictor(a_model()), job("x", 0.2)
    found = of_pair(predictor, x, job("y", 0.3))
    assert found is not None and (found.first, found.second) == (1.0, 1.0)
    assert predictor.ratios(
        np.array([[20.0]], np.float32), np.array([[30.0]], np.float32)
    ).tolist() == pytest.approx([0.9])


def test_a_stranger_job_widens_the_margin_of_its_pair() -> None:
    predictor, known, strange = Predictor(a_model()), job("x", 0.5), job("y", 0.05)
    near, far = of_pair(predictor, known, known), of_pair(predictor, known, strange)
    assert near is not None and far is not None
    assert near.margins is not None and far.margins is not None
    assert [wide / (0.2 + near.first - 1.0) for wide in near.margins] == pytest.approx([0.1, 0.1])
    assert far.margins[0] / (0.2 + far.first - 1.0) == pytest.approx(0.3)
    back = far.swap().margins
    assert back == (far.margins[1], far.margins[0])


def test_a_job_that_shows_too_little_gets_no_answer() -> None:
    predictor = Predictor(a_model())
    known, unknown = job("x", 0.5), job("y", indicators=Indicators())
    assert of_pair(predictor, known, unknown) is None
    assert of_pair(predictor, unknown, known) is None
    assert [each is None for each in predictor.ratios_beside(known, (unknown, known))] == [True, False]


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    jobs = [job(str(number), number / 50.0) for number in range(50)]
    together, alone = Predictor(a_model()), Predictor(a_model())
    assert together.ratios_beside(jobs[7], jobs) == [of_pair(alone, jobs[7], each) for each in jobs]


def test_what_it_remembers_is_bounded() -> None:
    jobs = [job(str(number), number / 20.0) for number in range(20)]
    small, fresh = Predictor(a_model(), kinds_max=5, answers_max=12), Predictor(a_model())
    for one in jobs:
        assert small.ratios_beside(one, jobs) == fresh.ratios_beside(one, jobs)
        assert len(small._kinds) <= 5
        assert len(small._answers) <= len(jobs), "what one question needs, at most"


# --- What it is told of a job ------------------------------------------------------------------------


def test_a_profile_in_the_words_of_the_vocabulary() -> None:
    profile = Profile(
        points=(ProfilePoint(sub_batch=32, accumulation_steps=1, step_s=0.5, memory_mib=900.0),),
        duty_cycle=0.7,
        indicators=Indicators(
            FP32A=IndicatorStats(mean=0.3, variance=0.01, source="gpm"),
            DRAMA=IndicatorStats(mean=0.2, source="nvml"),
        ),
    )
    one = msgspec.structs.replace(job("x").spec, batch_size=32)
    known = Job(
        spec=one,
        number=1,
        submitted_s=0.0,
        reason=because("submitted", "ann"),
        measured=JobMeasurements(profile=profile),
    )
    values = dict(zip(VOCABULARY, job_features(known, VOCABULARY), strict=True))
    said = {name: value for name, value in values.items() if not math.isnan(value)}
    assert said == {
        "gpu_util_pct": pytest.approx(70.0),
        "mem_util_pct": pytest.approx(20.0),
        "mem_mib": 900.0,
        "steps_per_s": 2.0,
        "samples_per_s": 64.0,
        "batch": 32.0,
        "FP32A_mean": 0.3,
        "FP32A_variance": 0.01,
        "DRAMA_mean": 0.2,
    }


def test_a_job_of_which_nothing_is_known_is_all_holes() -> None:
    assert all(map(math.isnan, job_features(job("x"), VOCABULARY)))


def test_table_2_is_whole() -> None:
    assert len(INDICATOR_NAMES) == 14
    assert {f"{name}_{part}" for name in INDICATOR_NAMES for part in ("mean", "variance")} <= {*VOCABULARY}
    assert Indicators().measured == ()


@pytest.mark.parametrize("value", [math.nan, None])
def test_an_indicator_that_is_missing_is_none_and_equal_to_itself(value: Any) -> None:
    stats = IndicatorStats(mean=0.5, variance=value)
    assert stats.variance is None
    assert msgspec.json.decode(msgspec.json.encode(stats), type=IndicatorStats) == stats
    assert unpack(pack(stats), IndicatorStats) == stats


def test_columns_are_made_of_the_two_jobs() -> None:
    names = ("gpu_util_pct", "batch")
    columns = columns_of(names)
    assert columns == (
        "self.gpu_util_pct", "self.batch", "other.gpu_util_pct", "other.batch", "sum.gpu_util_pct",
    )  # fmt: skip
    rows = pair_features(
        names, np.array([[40.0, 8.0]], np.float32), np.array([[70.0, math.nan]], np.float32), columns
    )
    np.testing.assert_array_equal(rows, np.array([[40.0, 8.0, 70.0, math.nan, 110.0]], np.float32))
    assert names_in(columns) == names
    for wrong in ("self.model", "pair.gpu_util_pct", "gpu_util_pct"):
        with pytest.raises(ValueError, match="there is no feature"):
            names_in((wrong,))


# --- Among the sources -------------------------------------------------------------------------------


def test_observed_beats_predicted_and_predicted_beats_the_rule() -> None:
    table, x, y = PairTable(foresight=Predictor(a_model())), job("x", 0.4), job("y", 0.9)
    assert table.interference(x, y).source == "predicted"
    assert table.interference(x, job("z")).source == "default"
    table.observe(x, y, 1.1)
    half = table.interference(x, y)
    assert half.source == "observed"
    assert (half.first, half.second) == pytest.approx((1.1, 1.8))
    assert PairTable().interference(job("v", 0.4), job("w", 0.9)).source == "duty-cycle"


def test_the_engine_asks_the_model_it_was_configured_with() -> None:
    desk = Desk("castor", predictor=a_model())
    x, y = job("x", 0.4), job("y", 0.9)
    view = desk.engine.ledger
    assert view.pairs.interferences((x,), (y,))[0][0].source == "predicted"
    assert view.pairs.interference(x, y).source == "predicted"
    restored = Engine(registry.make, EngineConfig(predictor=a_model()))
    restored.restore(desk.engine.snapshot())
    assert restored.ledger.pairs.interference(x, y).source == "predicted", (
        "a snapshot holds no model; it stays"
    )


@pytest.mark.parametrize(("model", "phase"), [(None, "queued"), ("mild", "loading")])
def test_castor_shares_where_the_model_knows_better_than_the_rule(model: str | None, phase: str) -> None:
    """Two jobs that keep the device busy: by their duty cycles sharing would only slow them down."""
    mild = msgspec.structs.replace(FULL, base=1.1, threshold=(100.0, 0.0, 0.0, 50.0, 0.0, 0.0))
    desk = Desk("castor", predictor=None if model is None else a_model(trees=mild))
    busy = profile(8, (1, 1.0, 100.0), duty=0.99)
    desk.run(1, profile=busy, batch_size=8, expected_s=500.0)
    desk.submit(2, profile=busy, batch_size=8, expected_s=500.0)
    assert desk.phase(2) == phase
    if model is None:
        assert desk.why(2).startswith("sharing with 1 does not pay")


def test_a_configuration_of_before_has_no_model() -> None:
    old = msgspec.to_builtins(EngineConfig())
    del old["predictor"]
    assert msgspec.convert(old, EngineConfig).predictor is None


def test_recovery_and_replay_find_the_model_in_the_journal(tmp_path: Path) -> None:
    from tests.controller.sim.journals import TWO_IN_TURN

    config = EngineConfig(predictor=a_model())
    engine, journal = Engine(registry.make, config), a_journal(tmp_path)
    try:
        journal.begin_run(pack(config), "0", 0.0)
        for now_s, event in TWO_IN_TURN:
            commands = engine.handle(event, now_s)
            journal.append(now_s, now_s, pack(event), pack(engine.decision), digest(commands))
        journal.seal([])
        assert replay(journal, registry.make, "0").differences == ()
        state = recover(journal, registry.make, config)
        assert state.engine.config.predictor == a_model()
        x, y = job("x", 0.4), job("y", 0.9)
        assert state.engine.ledger.pairs.interference(x, y).source == "predicted"
    finally:
        journal.close()


# --- The file ----------------------------------------------------------------------------------------


def test_a_model_comes_back_as_it_was_written_and_is_written_the_same_again() -> None:
    data = model_file.write(a_model())
    assert model_file.read(data, "m.json") == a_model()
    assert model_file.write(model_file.read(data, "m.json")) == data


def changed(**parts: Any) -> bytes:
    whole = msgspec.json.decode(model_file.write(a_model()))
    return msgspec.json.encode({name: value for name, value in {**whole, **parts}.items() if value != "gone"})


BROKEN = {
    "no JSON": (b"xi1,xi2\n", r"not a model; `python -m experiments.castor.predictor train` makes one"),
    "something else": (b'{"schema": "trace/1"}', r"its schema is 'trace/1', this version reads"),
    "a newer schema": (changed(schema="interference-model/2"), "upgrade cotenant"),
    "a part that is missing": (changed(trees="gone"), "a damaged model: .*`trees`"),
    "a part too many": (changed(opinion=1), "a damaged model: .*`opinion`"),
    "words for numbers": (changed(mean_xi=["high", "low"]), r"a damaged model: .*`\$.mean_xi\[0\]`"),
    "trees that are none": (
        changed(trees={**msgspec.to_builtins(FULL), "left": [0, -1, -1] * 2}),
        "a damaged model: .*not later nodes",
    ),
    "a feature of another version": (
        changed(features=["self.gpu_util_pct", "other.gpu_util_pct", "sum.charm"]),
        "there is no feature 'sum.charm'",
    ),
    "too few features": (changed(features=["self.batch"], importances=[1.0]), "feature 2 of 1"),
    "margins without an end": (
        changed(bands=[{"novelty_max": 1.0, "factor": 0.1, "rows": 9}]),
        "must be open",
    ),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_is_no_usable_model_is_refused_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(ModelProblem, match=message) as caught:
        model_file.read(data, "m.json")
    assert str(caught.value).startswith("m.json: ")


def test_the_schema_is_the_first_thing_in_the_file() -> None:
    assert model_file.write(a_model()).startswith(f'{{\n"schema": "{MODEL_SCHEMA}"'.encode())


# --- The controller's setting ------------------------------------------------------------------------


def test_the_controller_takes_the_model_its_setting_names(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(model_file.write(a_model()))
    assert engine_config(Settings()).predictor is None
    named = Settings(controller=ControllerSettings(predictor=str(path)))
    assert engine_config(named).predictor == a_model()


def test_a_controller_with_a_model_that_cannot_be_used_does_not_start(tmp_path: Path) -> None:
    damaged = tmp_path / "m.json"
    damaged.write_bytes(b"{}")
    for path, message in ((damaged, "not a model"), (tmp_path / "none.json", "No such file")):
        with pytest.raises(SettingsError, match=message) as caught:
            engine_config(Settings(controller=ControllerSettings(predictor=str(path))))
        assert str(caught.value).startswith("controller.predictor: ")
