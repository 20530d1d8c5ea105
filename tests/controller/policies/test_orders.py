"""f1, wfp3, unicep, qssf and slurm-multifactor: who starts first, and what each remembers."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import ExitVerdict, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.policies import registry
from cotenant.controller.policies.multifactor import Multifactor, MultifactorParameters
from tests.controller.building import Desk, report

DAY_S = 86_400.0


def desk(policy: str, devices: int = 4, **parameters: Any) -> Desk:
    found = Desk("fifo", report("a", devices), ageing_s=0.0)
    found.tell(ev.PolicyChanged(name=policy, parameters=parameters))
    return found


def first(at: Desk, *jobs: tuple[float, float, int]) -> list[str]:
    """Who starts of these (seconds since the one before, expected seconds, GPUs) once all devices are free:
    jobs 1, 2, ... in the order in which they start."""
    at.run("block", gpus=4, expected_s=1e6)
    for number, (after_s, expected_s, gpus) in enumerate(jobs, 1):
        at.wait(after_s)
        at.submit(number, expected_s=expected_s, gpus=gpus)
    started = []
    at.end("block")
    for _ in jobs:
        now = [job for job in map(str, range(1, len(jobs) + 1)) if at.phase(job) == "loading"]
        started += sorted((job for job in now if job not in started), key=lambda job: at.why(job))
        for job in now:
            at.start(job)
        for job in now:
            at.end(job)
    return started


FOUR = 4
# fmt: off
ORDERS = [
    ("f1 goes by arrival at first", "f1", [(10, 9e5, FOUR), (10_000, 10, FOUR)], ["1", "2"]),
    ("f1 goes by size where arrivals are far back", "f1",
     [(9e6, 9e5, FOUR), (10, 10, FOUR)], ["2", "1"]),
    ("wfp3: ten minutes' wait of a short job count more than an hour's of a long one", "wfp3",
     [(0, 9e4, FOUR), (3000, 60, FOUR), (600, 50, FOUR)], ["2", "1", "3"]),
    ("wfp3 looks at the wait", "wfp3", [(0, 100, FOUR), (3000, 90, FOUR), (1, 1e5, FOUR)], ["1", "2", "3"]),
    ("wfp3: of equal ones the wider first", "wfp3",
     [(0, 100, 1), (0, 100, FOUR), (50, 9e4, 2)], ["2", "1", "3"]),
    ("unicep: of equal ones the narrower first", "unicep",
     [(0, 100, FOUR), (0, 100, 1), (50, 9e4, FOUR)], ["2", "1", "3"]),
    ("qssf goes by time x GPUs", "qssf", [(0, 100, 3), (0, 110, 2)], ["2", "1"]),
    ("slurm-multifactor: of equal ones the older first", "slurm-multifactor",
     [(0, 100, FOUR), (DAY_S, 10, FOUR)], ["1", "2"]),
    ("slurm-multifactor: the wider first, unless a day's wait says otherwise", "slurm-multifactor",
     [(0, 100, 3), (DAY_S, 10, FOUR)], ["2", "1"]),
]
# fmt: on


@pytest.mark.parametrize(
    ("policy", "jobs", "wanted"), [row[1:] for row in ORDERS], ids=[row[0] for row in ORDERS]
)
def test_who_starts_first(policy: str, jobs: list[tuple[float, float, int]], wanted: list[str]) -> None:
    assert first(desk(policy), *jobs) == wanted


def test_an_order_that_changes_while_jobs_wait() -> None:
    """A queue key could not say this: the same two jobs, seen early and late."""
    third = 1e5  # It has just come, and goes last.
    early, late = (first(desk("wfp3"), (0, 1000, FOUR), (60, 100, FOUR), (s, third, FOUR)) for s in (1, 600))
    assert early == ["1", "2", "3"]
    assert late == ["2", "1", "3"]


def test_a_job_of_unknown_length_goes_last() -> None:
    for policy in ("wfp3", "unicep", "qssf"):
        at = desk(policy, devices=1)
        at.run("block", expected_s=10.0)
        at.submit(1)
        at.wait(500.0)
        at.submit(2, expected_s=100.0)
        at.wait(500.0)
        at.end("block")
        assert at.phase(2) == "loading", policy


def test_what_waits_says_behind_whom() -> None:
    at = desk("wfp3", devices=1)
    at.run("block", expected_s=10.0)
    at.submit(1, expected_s=9e4)
    at.wait(60.0)
    at.submit(2, expected_s=10.0)
    at.wait(60.0)
    assert at.why(1) == "behind job 2 in wfp3 order; it needs 1 device, and 0 are free"
    assert at.why(2) == "first in wfp3 order; it needs 1 device, and 0 are free"


def test_qssf_believes_what_this_users_jobs_took_more_than_what_is_said() -> None:
    """Ann's jobs are said to take 100 s and take 9,000; those of Bob take what he says."""
    at = desk("qssf", devices=1, history=0.8)
    for number, (user, took_s) in enumerate((("ann", 9000.0), ("bob", 150.0)) * 2):
        at.run(f"past{number}", user=user, expected_s=100.0, argv=("python", f"{user}.py"))
        at.wait(took_s)
        at.end(f"past{number}")
    at.run("block", expected_s=10.0)
    at.submit(1, user="ann", expected_s=100.0, argv=("python", "ann.py"))
    at.submit(2, user="bob", expected_s=150.0, argv=("python", "bob.py"))
    at.end("block")
    assert at.phase(2) == "loading"


def test_an_account_that_has_used_much_goes_after_one_that_has_not_until_its_use_has_faded() -> None:
    at = desk("slurm-multifactor", devices=1, half_life_s=DAY_S, weight_age=0.0)
    at.run("heavy", organisation="rich", expected_s=10.0)
    at.wait(DAY_S)
    at.end("heavy")
    for number, days in enumerate((0, 3)):
        at.wait(days * DAY_S)
        at.run(f"block{number}", organisation="third", expected_s=10.0)
        rich, poor = (
            at.submit(f"rich{number}", organisation="rich"),
            at.submit(f"poor{number}", organisation="poor"),
        )
        if (
            number
        ):  # The other has used the cluster since, for longer than what is left of the first one's use.
            at.wait(60.0)
        at.end(f"block{number}")
        assert at.phase(poor) == "loading"
        at.start(poor)
        at.wait(DAY_S / 2)
        at.end(poor)
        assert at.phase(rich) == "loading"
        at.start(rich)
        at.end(rich)
    at.run("block9", organisation="third", expected_s=10.0)
    poor, rich = at.submit("poor9", organisation="poor"), at.submit("rich9", organisation="rich")
    at.end("block9")
    assert at.phase(rich) == "loading", "half a day just now is more than a day half forgotten"


def test_an_attempt_is_charged_once_however_often_its_end_is_told() -> None:
    at = desk("slurm-multifactor", devices=1)
    policy = Multifactor(MultifactorParameters(half_life_s=1e9))
    job_id = at.run("1", organisation="lab", gpus=1, expected_s=10.0)
    at.wait(1000.0)
    host_id, attempt = at.hosts("1")[0], at.job("1").attempt.number
    at.end("1")
    event = ev.AttemptEnded(
        job_id=JobId(job_id), attempt=attempt, host_id=host_id, verdict=ExitVerdict(outcome="finished")
    )
    for _ in range(2):
        policy.observe(at.engine.ledger, event, at.engine.decision)
    used = policy._usage.now(at.engine.ledger)
    assert used == {"lab/ann": pytest.approx(1000.0, rel=0.01)}


@pytest.mark.parametrize(
    "policy", ["fifo", "sjf", "ssf", "f1", "wfp3", "unicep", "qssf", "slurm-multifactor"]
)
def test_every_order_takes_backfill_and_refuses_what_it_does_not_know(policy: str) -> None:
    for value in ("none", "easy", "any"):
        assert registry.make(policy, {"backfill": value}).name == policy
    with pytest.raises(ValueError, match="backfill"):
        registry.make(policy, {"backfill": "some"})
