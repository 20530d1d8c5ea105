"""castor-cost, sjf-ffs and lucid: whom they share with, whom not, and what they say of it."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import JobId, Share
from cotenant.controller.domain import events as ev
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters
from tests.controller.building import Desk, profile, report

LIGHT = profile(32, (1, 1.0, 300.0), (2, 1.1, 160.0), (32, 3.0, 20.0), duty=0.4)
BUSY = profile(32, (1, 1.0, 300.0), duty=1.0)
LARGE = profile(32, (1, 1.0, 700.0), (2, 1.2, 400.0), (4, 1.5, 250.0), duty=0.3)
SHARING = ("castor", "castor-cost", "sjf-ffs", "lucid")


def with_(profile: object, expected_s: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"profile": profile, "batch_size": 32, "expected_s": expected_s, **more}


def shared(desk: Desk) -> list[str]:
    assert desk.engine.refusals == []
    return [
        " ".join((action.job_id, *action.devices, f"s={action.accumulation_steps}"))
        for action in desk.engine.decision.actions
        if isinstance(action, Share)
    ]


Row = tuple[str, str, list[Any], list[dict[str, Any]], dict[str, Any], list[str]]

# fmt: off
TABLE: list[Row] = [
    # castor-cost: the real wait, and all whom it touches.
    ("castor-cost", "a short wait elsewhere is better than a busy partner",
     [report("a", 2)], [with_(BUSY, 1000.0), with_(BUSY, 5.0)], with_(BUSY, 20.0), []),
    ("castor-cost", "a long wait is worse than a light partner",
     [report("a", 2)], [with_(LIGHT, 1000.0), with_(LIGHT, 900.0)], with_(LIGHT, 20.0), ["9 a/cpu0 s=1"]),
    ("castor-cost", "two busy jobs get no more done than taking turns, however long the wait",
     [report("a", 1)], [with_(BUSY, 1000.0)], with_(BUSY, 10.0), []),
    ("castor-cost", "a gang on free devices and the one partner who loses least",
     [report("a", 3)], [with_(BUSY, 5000.0), with_(LIGHT, 5000.0)], with_(LIGHT, 50.0, gpus=2),
     ["9 a/cpu2 a/cpu1 s=1"]),
    ("castor-cost", "a gang of which one partner would set too slow a pace",
     [report("a", 2)], [with_(LIGHT, 5000.0), with_(BUSY, 5000.0)], with_(BUSY, 400.0, gpus=2), []),
    ("castor-cost", "a gang wider than any host",
     [report("a", 1), report("b", 1)], [with_(LIGHT, 500.0), with_(LIGHT, 500.0)],
     with_(LIGHT, 50.0, gpus=2), ["9 a/cpu0 b/cpu0 s=1"]),
    ("castor-cost", "the whole batch does not fit, half of it does",
     [report("a", 1)], [with_(LIGHT, 1000.0)], with_(LARGE, 50.0), ["9 a/cpu0 s=1"]),
    ("castor-cost", "no length, no balance",
     [report("a", 1)], [with_(LIGHT, 1000.0)], {"profile": LIGHT, "batch_size": 32}, []),
    # sjf-ffs: the first that has the memory.
    ("sjf-ffs", "free devices first", [report("a", 2)], [with_(LIGHT)], with_(LIGHT), []),
    ("sjf-ffs", "whatever it costs", [report("a", 1)], [with_(BUSY, 10.0)], with_(BUSY, 1000.0),
     ["9 a/cpu0 s=1"]),
    ("sjf-ffs", "lengths do not matter", [report("a", 1)], [{"memory_mib": 300}],
     {"memory_mib": 300}, ["9 a/cpu0 s=1"]),
    ("sjf-ffs", "the first that fits, not the best", [report("a", 2)], [with_(BUSY), with_(LIGHT)],
     with_(LIGHT), ["9 a/cpu0 s=1"]),
    ("sjf-ffs", "the batch is split as far as it must be", [report("a", 1)], [with_(LARGE)], with_(LARGE),
     ["9 a/cpu0 s=4"]),
    ("sjf-ffs", "unknown memory is never shared", [report("a", 1)], [with_(LIGHT)], {"expected_s": 1.0}, []),
    ("sjf-ffs", "the partner's memory is not known", [report("a", 1)], [{"expected_s": 9.0}],
     with_(LIGHT), []),
    ("sjf-ffs", "a gang fills up with what is free", [report("a", 2)], [with_(BUSY)], with_(BUSY, gpus=2),
     ["9 a/cpu1 a/cpu0 s=1"]),
    ("sjf-ffs", "a gang is whole or not there", [report("a", 2)], [with_(BUSY), {"expected_s": 1.0}],
     with_(BUSY, gpus=2), []),
    ("sjf-ffs", "a gang of two hosts asked for is not spread over guests", [report("a", 1), report("b", 1)],
     [with_(BUSY), with_(BUSY)], with_(BUSY, gpus=2, nodes=2), []),
    ("sjf-ffs", "a gang wider than any host", [report("a", 1), report("b", 1)],
     [with_(BUSY), with_(BUSY)], with_(BUSY, gpus=2), ["9 a/cpu0 b/cpu0 s=1"]),
    # lucid: equal widths, labels, no split, not much longer than the partner.
    ("lucid", "two light jobs are packed", [report("a", 1)], [with_(LIGHT)], with_(LIGHT), ["9 a/cpu0 s=1"]),
    ("lucid", "two heavy ones are not", [report("a", 1)], [with_(BUSY)], with_(BUSY), []),
    ("lucid", "twice as long as the partner is allowed", [report("a", 1)], [with_(LIGHT)],
     with_(LIGHT, 200.0), ["9 a/cpu0 s=1"]),
    ("lucid", "and no more than twice", [report("a", 1)], [with_(LIGHT)], with_(LIGHT, 200.5), []),
    ("lucid", "only jobs of one width", [report("a", 2)], [with_(LIGHT, gpus=2)], with_(LIGHT), []),
    ("lucid", "gangs of one width", [report("a", 2)], [with_(LIGHT, gpus=2)], with_(LIGHT, gpus=2),
     ["9 a/cpu0 a/cpu1 s=1"]),
    ("lucid", "no gang takes devices of two partners", [report("a", 2)], [with_(LIGHT), with_(LIGHT)],
     with_(LIGHT, gpus=2), []),
    ("lucid", "nothing wider than eight", [report("a", 9)], [with_(LIGHT, gpus=9)], with_(LIGHT, gpus=9), []),
    ("lucid", "batches are not split", [report("a", 1)], [with_(LIGHT)], with_(LARGE, 90.0),
     ["9 a/cpu0 s=1"]),
    ("lucid", "what does not fit whole is not packed", [report("a", 1)], [with_(LARGE)], with_(LARGE), []),
    ("lucid", "the first match", [report("a", 2)], [with_(LIGHT, 10.0), with_(LIGHT)], with_(LIGHT, 50.0),
     ["9 a/cpu1 s=1"]),
]
# fmt: on


@pytest.mark.parametrize("row", TABLE, ids=[f"{row[0]}-{row[1]}".replace(" ", "-") for row in TABLE])
def test_the_plan(row: Row) -> None:
    policy, _, hosts, before, newcomer, wanted = row
    desk = Desk(policy, *hosts)
    for number, more in enumerate(before, 1):
        desk.submit(number, **more)
        assert desk.phase(number) == "loading"
        desk.start(number)
    desk.submit(9, **newcomer)
    assert shared(desk) == wanted


BUSIER = profile(32, (1, 1.0, 300.0), duty=0.9)
TOO_LARGE = {"memory_mib": 900, "expected_s": 1.0}
NO_ROOM = "even its whole batch does not fit beside 1: 900 MiB needed, 700 MiB left"
COSTS_MORE = (
    "sharing with 1 does not pay: compared with waiting about 10 s, this job would gain about 2 s, and job 1 "
    "would lose about 8 s"
)
TOO_HEAVY = (
    "no packing with 1: labels 2 and 2 by the mean speeds 0.50 and 0.50 beside others; their sum is above 2"
)
Why = tuple[str, dict[str, Any], dict[str, Any], str]

# fmt: off
WHY: list[Why] = [
    ("castor-cost", with_(BUSY, 1000.0), with_(BUSY, 10.0),
     "sharing with 1 does not pay: slowed 2.00 and 2.00 times, the two get less done than taking turns"),
    ("castor-cost", with_(BUSIER, 10.0), with_(BUSIER, 500.0), COSTS_MORE),
    ("castor-cost", with_(LIGHT), TOO_LARGE, NO_ROOM),
    ("sjf-ffs", with_(LIGHT), TOO_LARGE, NO_ROOM),
    ("sjf-ffs", with_(LIGHT), {"expected_s": 1.0},
     "cannot share with 1: the memory that job 9 needs is not known: give --mem, or run its like alone"),
    ("lucid", with_(BUSY), with_(BUSY), TOO_HEAVY),
    ("lucid", with_(LIGHT), with_(LIGHT, 300.0),
     "no packing with 1: this job has 5m00s of GPU time left, more than 2.00 times the 1m40s of job 1"),
    ("lucid", with_(LIGHT), with_(LIGHT, share="never"), "this job was submitted with --share never"),
]
# fmt: on


@pytest.mark.parametrize("row", WHY, ids=[f"{row[0]}-{number}" for number, row in enumerate(WHY)])
def test_the_reasons_of_those_that_wait(row: Why) -> None:
    policy, before, newcomer, wanted = row
    desk = Desk(policy)
    desk.run(1, **before)
    desk.submit(9, **newcomer)
    assert desk.phase(9) == "queued"
    assert desk.why(9) == wanted


def test_the_reason_of_a_share_says_what_was_weighed() -> None:
    told = {}
    for policy in ("castor-cost", "sjf-ffs", "lucid"):
        desk = Desk(policy)
        desk.run(1, **with_(LIGHT, 1000.0))
        desk.submit(9, **with_(LIGHT, 50.0))
        told[policy] = str(desk.job(9).reason)
    assert told == {
        "castor-cost": "sharing with 1 gains more than it costs: it should end in about 50 s instead of "
        "waiting about 17 min and running about 50 s, and 1 should end less than 1 s later in all (whole "
        "batches of 32, not slowed down)",
        "sjf-ffs": "shares with 1, the first that leaves room (sub-batch 32, 1 accumulation step, 300 MiB "
        "needed, 700 MiB left)",
        "lucid": "packed with 1: labels 0 and 0 by the mean speeds 1.00 and 1.00 beside others, and it has "
        "50s of GPU time left against 16m40s",
    }


def test_lucid_labels_a_kind_by_its_mean_speed_beside_all_that_it_was_seen_with() -> None:
    desk = Desk("lucid", report("a", 3))
    for number, name in enumerate("xyz", 1):
        desk.run(number, **with_(LIGHT, argv=("python", f"{name}.py")))
    for other, xi in (("2", 1.0), ("3", 1.5)):
        for _ in range(3):
            pair = ev.PairObserved(first=JobId("1"), second=JobId(other), first_xi=xi, second_xi=1.0)
            desk.tell(pair)
    seen = desk.engine.ledger.pairs.interference(desk.job(1), desk.job(2))
    assert seen.first_speed == pytest.approx((1.0 + 1 / 1.5) / 2)
    assert (seen.second_speed, seen.swap().first_speed) == (1.0, 1.0)
    desk.submit(9, **with_(LIGHT, argv=("python", "x.py")))
    assert shared(desk) == ["9 a/cpu1 s=1"], "x has label 2: with another x that is 4, with y 2 + 0"


@pytest.mark.parametrize("policy", SHARING)
def test_a_pair_that_ran_out_of_memory_is_made_by_no_policy(policy: str) -> None:
    desk = Desk(policy)
    desk.run(1, **with_(LIGHT, 1000.0, argv=("python", "x.py")), resumable=True)
    desk.submit(2, **with_(LIGHT, 50.0, argv=("python", "y.py")))
    assert desk.phase(2) == "loading"
    desk.start(2)
    desk.end(2, "user-failed", out_of_memory=True)
    assert desk.phase(2) == "queued"
    desk.submit(3, **with_(LIGHT, 50.0, argv=("python", "y.py")))
    assert desk.phase(3) == "queued"
    assert desk.why(3) == "no sharing with 1: jobs of these two kinds have run out of device memory together"
    desk.submit(4, **with_(LIGHT, 50.0, argv=("python", "z.py")))
    assert desk.phase(4) == "loading", "another kind may still"


@pytest.mark.parametrize("policy", SHARING)
def test_the_parameters_are_named_and_checked(policy: str) -> None:
    assert {"lookahead", "part", "observations"} <= set(registry.defaults(policy))
    for name in ("lookahead", "observations"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1"):
            registry.make(policy, {name: 0})
    with pytest.raises(ValueError, match="has no parameter parts"):
        registry.make(policy, {"parts": True})


def test_lucids_own_parameters_are_checked() -> None:
    wrongs: list[Parameters] = [{"tiny": 0.5}, {"gpus_max": 0}, {"longer_max": 0.0}, {"labels_max": -1}]
    wrongs.append({"unknown_label": 3})
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"must be|at least"):
            registry.make("lucid", wrong)
