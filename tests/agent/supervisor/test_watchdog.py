"""When a silent job is said to hang, and when it is not: stories of one gang, second by second."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.ipc.records import WatchRule
from cotenant.agent.supervisor.core.watchdog import SAVE_PATIENCE_S, STEPS_MIN, Watchdog
from cotenant.controller.system.sections import AgentSettings

RULE = WatchRule(floor_s=600.0, multiple=20.0)
RANKS = frozenset((0, 1))


class Gang:
    """Two ranks that make steps, answer looks from where they stand, and can do neither."""

    def __init__(self, rule: WatchRule | None = RULE, *, judges: bool = True, **what: Any) -> None:
        self.dog = Watchdog(rule, judges=judges)
        self.now_s = 0.0
        self.step = 0
        self.places = dict.fromkeys(RANKS, 0)
        self.answering: frozenset[int] = RANKS
        self.moving: frozenset[int] = frozenset()
        self.cpu_s = 0.0
        self.cpu_per_s = 0.0
        self.said: list[tuple[str, float]] = []
        self.what: dict[str, Any] = {
            "ranks": RANKS, "step_s": 1.0, "steps": STEPS_MIN, "is_suspended": False, "is_alone": True,
            "far_still_s": {},
        } | what  # fmt: skip

    def steps(self, count: int = 1) -> Gang:
        self.step += count
        self.dog.note_step(self.step)
        return self

    def second(self, length_s: float = 1.0) -> None:
        self.now_s += length_s
        self.cpu_s += self.cpu_per_s * length_s
        self.dog.used(self.cpu_s)
        for rank in self.moving:
            self.places[rank] += 1
        for word in self.dog.advance(self.now_s, **self.what):
            self.said.append((word, self.now_s))
            if word == "look":
                for rank in self.answering:
                    self.dog.stands(rank, self.dog.look, self.places[rank])

    def runs(self, seconds: float) -> Gang:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.second()
        return self

    def when(self, word: str) -> float | None:
        return next((at_s for said, at_s in self.said if said == word), None)


def hanging(rule: WatchRule | None = RULE, **what: Any) -> Gang:
    return Gang(rule, **what).steps()


@pytest.mark.parametrize(
    ("name", "rule", "step_s", "alone", "wanted_s"),
    [
        ("the floor", RULE, 1.0, True, 600.0),
        ("twenty usual steps", RULE, 60.0, True, 1200.0),
        ("while sharing", RULE, 60.0, False, 2400.0),
        ("the floor while sharing", RULE, 1.0, False, 1200.0),
        ("declared", WatchRule(floor_s=90.0), 60.0, True, 90.0),
        ("declared, while sharing", WatchRule(floor_s=90.0), 60.0, False, 180.0),
    ],
)
def test_a_gang_that_stands_still_is_given_its_threshold_then_shows_its_stacks_then_hangs(
    name: str, rule: WatchRule, step_s: float, alone: bool, wanted_s: float
) -> None:
    gang = hanging(rule, step_s=step_s, is_alone=alone).runs(2 * wanted_s)
    dump_s, hang_s = gang.when("dump"), gang.when("hang")
    assert dump_s is not None and wanted_s <= dump_s <= 1.02 * wanted_s + 2, name
    assert hang_s is not None and dump_s + 5 <= hang_s <= dump_s + 7
    assert gang.when("look") == pytest.approx(wanted_s / 2, abs=2)
    assert [word for word, _ in gang.said].count("hang") == 1


NEVER: dict[str, dict[str, Any]] = {
    "ranks that do not understand looks": {"ranks": frozenset()},
    "too few measured steps": {"steps": STEPS_MIN - 1},
    "no step time": {"step_s": None},
    "suspended: it stops, its lease runs out, somebody stopped it": {"is_suspended": True},
}


@pytest.mark.parametrize("what", NEVER.values(), ids=NEVER.keys())
def test_it_is_not_armed_for(what: dict[str, Any]) -> None:
    gang = hanging(**what).runs(5000)
    assert gang.said == []


def test_nor_before_the_first_step_nor_without_a_rule() -> None:
    assert Gang().runs(5000).said == []
    assert hanging(None).runs(5000).said == []


@pytest.mark.parametrize("wrong", [{"watchdog_floor_s": -1.0}, {"watchdog_multiple": 0.5}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"agent\.watchdog"):
        AgentSettings(**wrong)  # type: ignore[arg-type]


def test_a_job_that_evaluates_moves_and_is_left_alone_for_as_long_as_it_likes() -> None:
    gang = hanging()
    gang.moving = frozenset((1,))
    gang.runs(20_000)
    assert gang.when("look") is not None
    assert gang.when("dump") is None, "rank 0 waits for rank 1, which is at work"
    gang.moving = frozenset()
    gang.runs(700)
    assert gang.when("hang") is not None, "and when it stands still after all"


def test_one_step_and_everything_begins_anew() -> None:
    gang = hanging().runs(595)
    gang.steps().runs(595)
    assert gang.when("dump") is None
    gang.runs(20)
    assert gang.when("hang") is not None


def test_stacks_that_were_shown_harm_nobody_who_goes_on() -> None:
    gang = hanging().runs(603)
    assert gang.when("dump") is not None
    gang.steps().runs(590)
    assert gang.when("hang") is None


def test_a_save_may_take_half_an_hour_and_not_for_ever() -> None:
    gang = hanging()
    gang.dog.saves(gang.now_s)
    gang.runs(SAVE_PATIENCE_S - 1)
    assert gang.said == []
    gang.runs(700)
    assert gang.when("hang") is not None
    done = hanging()
    done.dog.saves(0.0)
    done.runs(100)
    done.dog.note_save()
    assert done.runs(590).when("dump") is None


def test_a_rank_that_does_not_answer_is_believed_to_work_if_a_processor_is_busy() -> None:
    gang = hanging()
    gang.answering = frozenset((0,))
    gang.cpu_per_s = 1.0
    assert gang.runs(5000).when("dump") is None
    gang.cpu_per_s = 0.0
    assert gang.runs(700).when("hang") is not None


def test_while_all_ranks_answer_a_busy_processor_proves_nothing() -> None:
    gang = hanging()
    gang.cpu_per_s = 1.0  # NCCL waits with the processor at full speed.
    assert gang.runs(700).when("hang") is not None


def test_time_in_which_we_did_not_run_ourselves_does_not_count() -> None:
    gang = hanging().runs(100)
    for _ in range(5):
        gang.second(3600.0)
    assert gang.when("dump") is None


def test_a_member_shows_stacks_and_leaves_the_judgement_to_the_first_host() -> None:
    gang = hanging(judges=False).runs(5000)
    assert gang.when("dump") is not None and gang.when("hang") is None
    assert gang.dog.still_s is not None and gang.dog.still_s > 600


@pytest.mark.parametrize(
    ("far", "hangs"), [({"b": None}, False), ({"b": 10.0}, False), ({"b": 5000.0}, True), ({}, True)]
)
def test_the_first_host_judges_when_nobody_moves_anywhere(far: dict[str, float | None], hangs: bool) -> None:
    assert (hanging(far_still_s=far).runs(2000).when("hang") is not None) == hangs


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("step", "save", "saved", "move", "suspend", "gap", "mute")),
            st.floats(0.1, 290.0),
        ),
        max_size=30,
    ),
    st.booleans(),
    st.sampled_from((RULE, WatchRule(floor_s=600.0))),
)
def test_whoever_gives_a_sign_of_life_every_half_threshold_never_hangs(
    story: list[tuple[str, float]], alone: bool, rule: WatchRule
) -> None:
    """Between signs less than half of the least threshold passes."""
    gang = hanging(rule, is_alone=alone)
    for sign, pause_s in story:
        gang.what["is_suspended"] = sign == "suspend"
        gang.answering = RANKS if sign != "mute" else frozenset()
        gang.cpu_per_s = 1.0 if sign == "mute" else 0.0
        match sign:
            case "save":
                gang.dog.saves(gang.now_s)
            case "saved":
                gang.dog.note_save()
                gang.steps()
            case "gap":
                gang.second(10_000.0)
                gang.steps()
            case "step" | "mute":
                gang.steps()
        gang.moving = RANKS if sign in ("move", "save") else frozenset()
        if sign == "move":
            gang.runs(700.0)
            gang.moving = frozenset()
        gang.runs(pause_s)
        gang.steps()
        gang.what["is_suspended"] = False
    assert gang.when("hang") is None


@given(st.floats(0.01, 5000.0), st.floats(1.0, 5000.0), st.floats(0.0, 100.0), st.booleans())
def test_whatever_the_rule_a_gang_that_never_moves_again_is_found(
    step_s: float, floor_s: float, multiple: float, alone: bool
) -> None:
    gang = hanging(WatchRule(floor_s=floor_s, multiple=multiple), step_s=step_s, is_alone=alone)
    threshold_s = max(floor_s, multiple * step_s) * (1 if alone else 2)
    for _ in range(5000):
        alarm_s = gang.dog.next_alarm_s
        gang.second(max(0.01, alarm_s - gang.now_s) if alarm_s < 1e9 else 1.0)
        if gang.when("hang") is not None:
            break
    hang_s = gang.when("hang")
    if hang_s is not None:
        assert hang_s >= threshold_s
    else:
        assert gang.now_s < 1.3 * threshold_s + 60, "5000 alarms were not enough time"
