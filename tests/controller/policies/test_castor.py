"""castor (SJF-BSBF): when it shares, with whom, on what, with which sub-batch; and when it does not."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import (
    Capabilities,
    HostId,
    Job,
    JobId,
    JobProgress,
    Place,
    Share,
    StartAttempt,
    because,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.policies import registry
from cotenant.controller.policies.sharing.sub_batches import accumulation_choices
from tests.controller.building import Desk, profile, report, spec

LIGHT = profile(32, (1, 1.0, 300.0), (2, 1.1, 160.0), (32, 3.0, 20.0), duty=0.4)
HEAVY = profile(32, (1, 1.0, 700.0), (2, 1.2, 400.0), (4, 1.5, 250.0), (32, 6.0, 50.0), duty=0.4)
BUSY = profile(32, (1, 1.0, 300.0), duty=1.0)


def decided(desk: Desk) -> list[str]:
    assert desk.engine.refusals == []
    said = []
    for action in desk.engine.decision.actions:
        assert isinstance(action, Place | Share)
        where = " ".join(action.devices)
        s = action.accumulation_steps
        said.append(
            f"{type(action).__name__.lower()} {action.job_id} on {where}" + (f" s={s}" if s > 1 else "")
        )
    return said


def with_(profile: object, expected_s: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"profile": profile, "batch_size": 32, "expected_s": expected_s, **more}


# fmt: off
TABLE: list[tuple[str, list[Any], list[dict[str, Any]], dict[str, Any], list[str]]] = [
    ("free devices first, whatever sharing would bring", [report("a", 2)], [with_(LIGHT)], with_(LIGHT),
     ["place 9 on a/cpu1"]),
    ("two light jobs share", [report("a", 1)], [with_(LIGHT)], with_(LIGHT), ["share 9 on a/cpu0"]),
    ("the whole batch does not fit beside the partner, half of it does", [report("a", 1)],
     [with_(HEAVY)], with_(HEAVY), ["share 9 on a/cpu0 s=4"]),
    ("two jobs that keep the device busy do not share", [report("a", 1)], [with_(BUSY)], with_(BUSY), []),
    ("a long newcomer beside a partner that has almost done", [report("a", 1)], [with_(BUSY, 10.0)],
     with_(BUSY, 1000.0), []),
    ("a short newcomer beside a long busy partner", [report("a", 1)], [with_(BUSY, 1000.0)],
     with_(BUSY, 10.0), ["share 9 on a/cpu0"]),
    ("the newcomer said never", [report("a", 1)], [with_(LIGHT)], with_(LIGHT, share="never"), []),
    ("the partner said never", [report("a", 1)], [with_(LIGHT, share="never")], with_(LIGHT), []),
    ("the newcomer's memory is not known", [report("a", 1)], [with_(LIGHT)], {"expected_s": 50.0}, []),
    ("the partner's memory is not known", [report("a", 1)], [{"expected_s": 50.0}], with_(LIGHT), []),
    ("the newcomer's length is not known", [report("a", 1)], [with_(LIGHT)],
     {"profile": LIGHT, "batch_size": 32}, []),
    ("declared memory is enough to know", [report("a", 1)], [{"memory_mib": 300, "expected_s": 50.0}],
     {"memory_mib": 300, "expected_s": 1.0}, ["share 9 on a/cpu0"]),
    ("declared memory that does not fit beside the partner", [report("a", 1)],
     [{"memory_mib": 600, "expected_s": 50.0}], {"memory_mib": 600, "expected_s": 1.0}, []),
    ("a job of unknown batch is never accumulated", [report("a", 1)], [with_(HEAVY)],
     {"memory_mib": 600, "expected_s": 1.0}, []),
    ("hp jobs share as well", [report("a", 1)], [with_(LIGHT, job_class="hp")], with_(LIGHT, job_class="hp"),
     ["share 9 on a/cpu0"]),
    ("a device never has three tenants", [report("a", 1)], [with_(LIGHT), with_(LIGHT)], with_(LIGHT), []),
    ("a device for one tenant is not shared", [report("a", 1, device={"max_tenants": 1})], [with_(LIGHT)],
     with_(LIGHT), []),
    ("under MPS tenants have one uid",
     [report("a", 1, kind="cuda", type="T4", device={"sharing": "mps"})], [with_(LIGHT, uid=1)],
     with_(LIGHT, uid=2), []),
    ("under MPS one user's jobs share",
     [report("a", 1, kind="cuda", type="T4", device={"sharing": "mps"})], [with_(LIGHT, uid=1)],
     with_(LIGHT, uid=1), ["share 9 on a/0"]),
    ("only a device of the type asked for is shared", [report("a", 1), report("b", 1, type="T4")],
     [with_(LIGHT, gpu_type="cpu"), with_(LIGHT, gpu_type="T4")], with_(LIGHT, gpu_type="T4"),
     ["share 9 on b/cpu0"]),
    ("only a host with the features is shared", [report("a", 1), report("b", 1, features=("ib",))],
     [with_(LIGHT), with_(LIGHT)], with_(LIGHT, features=("ib",)), ["share 9 on b/cpu0"]),
    ("a gang shares with a gang", [report("a", 2)], [with_(LIGHT, gpus=2)], with_(LIGHT, gpus=2),
     ["share 9 on a/cpu0 a/cpu1"]),
    ("a gang fills up with free devices of the partner's host", [report("a", 2)], [with_(LIGHT)],
     with_(LIGHT, gpus=2), ["share 9 on a/cpu1 a/cpu0"]),
    ("a gang shares with two partners", [report("a", 2)], [with_(LIGHT), with_(LIGHT)], with_(LIGHT, gpus=2),
     ["share 9 on a/cpu0 a/cpu1"]),
    ("a gang with one paying partner and one that does not pay stays whole in the queue", [report("a", 2)],
     [with_(LIGHT), with_(BUSY)], with_(BUSY, gpus=2), []),
    ("free devices on another host do not keep a gang from sharing on its partner's",
     [report("a", 3), report("b", 2)], [with_(LIGHT, gpus=2), with_(LIGHT, gpus=2)], with_(LIGHT, gpus=2),
     ["share 9 on b/cpu0 b/cpu1"]),
    ("a gang larger than any host shares on several", [report("a", 2), report("b", 2)],
     [with_(LIGHT, gpus=2), with_(LIGHT, gpus=2)], with_(LIGHT, gpus=4),
     ["share 9 on a/cpu0 a/cpu1 b/cpu0 b/cpu1"]),
    ("a gang larger than any host is never shared in part", [report("a", 2), report("b", 2)],
     [with_(LIGHT, gpus=2), with_(LIGHT, gpus=2, share="never")], with_(LIGHT, gpus=4), []),
    ("a gang larger than any host does not go where others cannot reach it",
     [report("a", 2), report("b", 2, address="127.0.0.1")],
     [with_(LIGHT, gpus=2), with_(LIGHT, gpus=2)], with_(LIGHT, gpus=4), []),
    ("`--nodes 2` does not share", [report("a", 2), report("b", 2)],
     [with_(LIGHT, gpus=2), with_(LIGHT, gpus=2)], with_(LIGHT, gpus=2, nodes=2), []),
    ("the partner with which the pair ends first", [report("a", 2)],
     [with_(LIGHT, 300.0), with_(LIGHT, 50.0)], with_(LIGHT, 40.0), ["share 9 on a/cpu1"]),
]
# fmt: on


@pytest.mark.parametrize("row", TABLE, ids=[row[0].replace(" ", "-") for row in TABLE])
def test_the_plan(row: tuple[str, list[Any], list[dict[str, Any]], dict[str, Any], list[str]]) -> None:
    _, hosts, before, newcomer, wanted = row
    desk = Desk("castor", *hosts)
    for number, more in enumerate(before, 1):
        desk.run(number, **more)
    desk.submit(9, **newcomer)
    assert decided(desk) == wanted


def test_a_shared_job_is_told_its_sub_batch_and_its_cap() -> None:
    desk = Desk("castor")
    desk.run(1, **with_(HEAVY))
    desk.submit(2, **with_(HEAVY))
    (start,) = desk.commands
    assert isinstance(start, StartAttempt)
    assert (start.accumulation_steps, start.sub_batch, start.memory_cap_mib) == (4, 8, 250)
    assert desk.job(2).placement.slowdown == pytest.approx(1.5)
    assert desk.job(2).estimate.slowdown == pytest.approx(1.5)  # 0.4 + 0.4 < 1: only the accumulation costs.


def test_the_reason_of_a_share_has_both_completion_times_and_where_the_ratio_comes_from() -> None:
    desk = Desk("castor")
    desk.run(1, **with_(BUSY, 1000.0))
    desk.submit(2, **with_(BUSY, 10.0))
    assert desk.why(2) == (
        "sharing with job 1 pays: on average the two end after about 9 min, one after the other after about "
        "17 min (sub-batch 32, 1 accumulation step, own slowdown 2.00, partner's 2.00, source: duty-cycle)"
    )


def test_the_reasons_of_those_that_wait() -> None:
    desk = Desk("castor")
    desk.run(1, **with_(BUSY, 10.0))
    desk.submit(2, **with_(BUSY, 1000.0))
    assert desk.why(2) == (
        "sharing with 1 does not pay: on average the two would end after about 9 min, and one after the "
        "other after about 8 min"
    )
    desk.submit(3, memory_mib=900, expected_s=1.0)
    assert desk.why(3) == "even its whole batch does not fit beside 1: 900 MiB needed, 700 MiB left"
    desk.submit(4, expected_s=1.0)
    assert desk.why(4).startswith("cannot share with 1: the memory that job 4 needs is not known: give --mem")


def test_a_pair_seen_live_overrules_the_rule() -> None:
    desk = Desk("castor", report("a", 2))
    desk.run(1, **with_(LIGHT, argv=("python", "x.py")))
    desk.run(2, **with_(LIGHT, argv=("python", "y.py")))
    desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("2"), first_xi=2.5, second_xi=2.5))
    desk.submit(3, **with_(LIGHT, argv=("python", "y.py"), gpus=1))
    assert decided(desk) == ["share 3 on a/cpu1"]  # Not with 1, which slows it down.
    assert desk.engine.decision.actions[0].reason.operands[-1] == "duty-cycle"


def test_several_partners_share_one_sub_batch_and_the_slowest_sets_the_pace() -> None:
    desk = Desk("castor", report("a", 2))
    desk.run(1, **with_(LIGHT, 400.0))
    desk.run(2, **with_(HEAVY, 400.0))
    desk.submit(3, **with_(HEAVY, 60.0, gpus=2))
    assert decided(desk) == ["share 3 on a/cpu0 a/cpu1 s=4"]
    action = desk.engine.decision.actions[0]
    assert action.reason.operands[3:6] == (8, 4, 1.5)


def test_sharing_with_each_alone_would_pay_but_not_with_both() -> None:
    desk = Desk("castor", report("a", 2))
    slow = profile(32, (1, 1.0, 700.0), (2, 3.9, 100.0), duty=0.1)
    desk.run(1, profile=profile(32, (1, 1.0, 100.0), duty=0.1), batch_size=32, expected_s=60.0)
    desk.run(2, profile=profile(32, (1, 1.0, 850.0), duty=0.1), batch_size=32, expected_s=2000.0)
    desk.submit(3, profile=slow, batch_size=32, expected_s=100.0, gpus=2)
    assert decided(desk) == []
    assert desk.why(3) == "sharing with 1 alone would pay, but not with all who hold the 2 devices it needs"


def test_shared_first_fills_the_gang_from_shareable_devices() -> None:
    desk = Desk("castor", report("a", 3))
    desk.tell(ev.PolicyChanged(name="castor", parameters={"shared_first": True}, by="root"))
    desk.run(1, **with_(LIGHT, gpus=2))
    desk.submit(9, **with_(LIGHT, gpus=3))
    assert decided(desk) == ["share 9 on a/cpu0 a/cpu1 a/cpu2"]


def test_nobody_is_made_a_guest_while_an_aged_job_waits_for_those_devices() -> None:
    desk = Desk("castor", report("a", 2), ageing_s=100.0)
    for number in (1, 4):
        desk.run(number, **with_(LIGHT, 5000.0))
    desk.submit(2, gpus=2, expected_s=10.0)  # Its memory is not known: it cannot share.
    desk.wait(200)
    desk.submit(3, **with_(LIGHT, 6000.0), resumable=False)
    assert desk.phase(3) == "queued"
    assert desk.why(3).startswith("behind job 2, which has waited 3m20s and goes first")
    desk.end(1)
    assert (desk.phase(2), desk.phase(3)) == ("queued", "queued"), "the device is kept"
    desk.end(4)
    assert (desk.phase(2), desk.phase(3)) == ("loading", "queued")


def test_an_aged_job_that_becomes_a_guest_lets_the_next_ones_go() -> None:
    desk = Desk("castor", report("a", 2), ageing_s=100.0)
    desk.run(1, gpus=2, profile=BUSY, batch_size=32, expected_s=300.0)
    desk.submit(2, **with_(BUSY, 10_000.0))
    desk.submit(3, **with_(BUSY, 10_000.0))
    desk.wait(150)
    assert desk.phase(2) == desk.phase(3) == "queued"
    desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("2"), first_xi=1.0, second_xi=1.0))
    desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("3"), first_xi=1.0, second_xi=1.0))
    assert desk.phase(2) == desk.phase(3) == "loading"


def test_a_silent_or_drained_host_is_not_shared() -> None:
    for event in (ev.HostSilent(host_id=HostId("a")), ev.HostDrained(host_id=HostId("a"), by="root")):
        desk = Desk("castor")
        desk.run(1, **with_(LIGHT))
        desk.tell(event)
        desk.submit(2, **with_(LIGHT))
        assert decided(desk) == []


def test_at_most_lookahead_jobs_are_tried_and_the_shortest_first() -> None:
    desk = Desk("castor")
    desk.tell(ev.PolicyChanged(name="castor", parameters={"lookahead": 2}, by="root"))
    desk.run(1, **with_(LIGHT, 1000.0))
    for number in (2, 3):
        desk.submit(number, expected_s=1.0)  # Cannot share: memory unknown.
    desk.submit(4, **with_(LIGHT, 50.0))
    assert desk.phase(4) == "queued"
    desk.tell(ev.CancelRequested(job_id=JobId("2"), by="ann"))
    assert desk.phase(4) == "loading"


@pytest.mark.parametrize(
    ("batch", "wanted"), [(1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12]), (None, [1])]
)
def test_the_sub_batches_go_down_to_one_sample(batch: int | None, wanted: list[int]) -> None:
    job = Job(
        spec=spec(1, batch_size=batch),
        number=1,
        submitted_s=0.0,
        reason=because("submitted", "ann"),
        progress=JobProgress(capabilities=Capabilities(accumulates=True)),
    )
    assert list(accumulation_choices(job)) == wanted


def test_the_parameters_have_the_papers_values_and_names() -> None:
    assert registry.defaults("castor") == {
        "lookahead": 64,
        "part": True,
        "observations": 2,
        "shared_first": False,
        "placement": "best-fit",
    }


@pytest.mark.parametrize("policy", ["castor", "castor-cost", "lucid"])
def test_nothing_is_shared_by_a_guess_at_a_length(policy: str) -> None:
    """Both are light, and as long as most jobs here: that is no ground to share."""
    desk = Desk(policy, report("a", 1))
    desk.run(1, argv=("python", "x.py"))
    desk.wait(100.0)
    desk.end(1)
    like = {"profile": LIGHT, "batch_size": 32}
    desk.run(2, argv=("python", "y.py"), **like)
    desk.submit(3, argv=("python", "z.py"), **like)
    assert desk.phase(3) == "queued"
    if policy != "lucid":
        said = " ".join(str(each) for each in desk.engine.explain(JobId("3"), desk.now_s))
        assert "lengths unknown: give --iterations or --expect (jobs 3 and 2)" in said
    desk.submit(4, argv=("python", "y.py"), expected_s=50.0, **like)
    if policy == "castor":
        assert desk.why(4).endswith("the length of job 2 is unknown: give --iterations or --expect")
