"""What a job is expected to take, and to need, as its like did."""

from __future__ import annotations

from typing import Any

import msgspec

from cotenant.controller.domain import AttemptNo, HostId, JobId, ResumeCounts, StartAttempt
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Snapshot
from cotenant.controller.knowledge import Resumes
from cotenant.controller.performance import Profile, SeenBatch
from tests.controller.building import Desk, profile, report

CODE = "c0de" * 16
MEASURED = profile(8, (1, 2.0, 300.0), duty=0.4, source="in place")


def sweep(lr: float, *more: str, **fields: Any) -> dict[str, Any]:
    return {"argv": ("python", "train.py", "--lr", str(lr), *more), "code_sha256": CODE, **fields}


def ended(desk: Desk, job: str, seconds: float, **fields: Any) -> None:
    desk.run(job, **fields)
    desk.wait(seconds)
    desk.end(job)


def measured(desk: Desk, job: str, found: Profile = MEASURED, device_type: str = "cpu") -> None:
    attempt = AttemptNo(desk.job(job).attempt.number)
    told = ev.ProfileLearned(
        job_id=JobId(job), profile=found, device_type=device_type, host_id=HostId("a"), attempt=attempt
    )
    desk.tell(told)


def expected(desk: Desk, job: str) -> tuple[float, str]:
    return round(desk.job(job).estimate.remaining_s, 3), desk.job(job).estimate.source


UNKNOWN = (300.0, "unknown length")


def test_the_second_task_of_a_sweep_knows_what_its_first_took_and_needs() -> None:
    desk = Desk("fifo", profile_s=60.0)
    desk.run("7_0", **sweep(0.1))
    desk.submit("7_1", **sweep(0.2), hold=True)
    desk.submit("7_2", **sweep(0.3), hold=True)
    assert expected(desk, "7_1") == UNKNOWN and desk.job("7_1").needed_mib(1) is None
    measured(desk, "7_0")
    assert desk.job("7_1").needed_mib(1) == 330, "also while it is held"
    desk.submit("7_3", **sweep(0.4), hold=True)
    job = desk.job("7_3")
    assert job.needed_mib(1) == 330 and job.measured.solo_step_s == 2.0
    assert job.measured.profile.source == "as 1 other of this sweep"
    desk.wait(40.0)
    desk.end("7_0")
    assert expected(desk, "7_1") == (40.0, "as 1 other of this sweep")
    assert desk.job("7_1").estimate.low_s < 20.0 < 80.0 < desk.job("7_1").estimate.high_s
    desk.submit("8", **sweep(0.1), hold=True)
    assert desk.job("8").measured.profile == MEASURED
    assert expected(desk, "8") == (40.0, "as 1 earlier run of this command")
    desk.submit("9", **sweep(0.5), hold=True)
    assert expected(desk, "9") == (40.0, "as 1 run of this program with other numbers")
    assert desk.job("9").needed_mib(1) == 330


def test_other_words_are_another_program_in_memory_and_other_users_in_everything() -> None:
    desk = Desk("fifo", profile_s=60.0)
    desk.run("1", **sweep(0.1))
    measured(desk, "1")
    desk.wait(40.0)
    desk.end("1")
    desk.submit("2", **sweep(0.1, "--opt", "adam"), hold=True)
    assert expected(desk, "2") == (40.0, "as 1 run of this program")
    assert desk.job("2").measured.profile is None
    desk.submit("3", **sweep(0.1), user="bob", hold=True)
    assert expected(desk, "3") == UNKNOWN and desk.job("3").measured.profile is None


def test_loads_and_pauses_are_those_of_the_family_before_those_of_anybody() -> None:
    desk = Desk("fifo")
    desk.submit("1", **sweep(0.1))
    desk.wait(50.0)
    desk.start("1")
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="ann"))
    desk.wait(9.0)
    desk.end("1", "infra-failed")
    desk.tell(ev.CancelRequested(job_id=JobId("1"), by="ann"))
    desk.end("1")
    desk.submit("2", argv=("python", "other.py"))
    desk.wait(7.0)
    desk.start("2")
    desk.submit("4", **sweep(0.2), hold=True)
    assert (desk.job("4").estimate.load_s, desk.job("4").estimate.pause_s) == (50.0, 9.0)


def test_running_siblings_are_judged_by_what_they_have_had_when_one_ends() -> None:
    desk = Desk("fifo", report("a", 3))
    for task in ("7_0", "7_1"):
        desk.run(task, **sweep(float(task[-1])))
    desk.wait(200.0)
    desk.run("7_2", **sweep(3.0))
    desk.wait(20.0)
    desk.end("7_2")
    likely_s, source = expected(desk, "7_1")
    assert source == "as 1 other of this sweep" and likely_s > 100.0
    assert desk.job("7_1").ran_s(desk.now_s) == 220.0
    desk.submit("7_3", **sweep(4.0), hold=True)
    assert desk.job("7_3").estimate.remaining_s > 20.0, "two have had 220 s"


def test_a_job_that_outlives_what_its_siblings_took_is_judged_again() -> None:
    desk = Desk("fifo")
    ended(desk, "1", 20.0, **sweep(1.0))
    desk.run("2", **sweep(2.0))
    left_s = []
    for _ in range(4):
        desk.wait(25.0)
        left_s.append(desk.job("2").remaining_now_s(desk.now_s))
        desk.progress("2", len(left_s), 1.0)
        assert desk.job("2").remaining_now_s(desk.now_s) > 0.0
    assert left_s[-1] > 20.0 and "overrun" not in desk.job("2").estimate.source


def test_told_and_seen_lengths_go_before_siblings() -> None:
    desk = Desk("fifo")
    ended(desk, "1", 20.0, **sweep(1.0))
    desk.submit("2", **sweep(2.0), expected_s=70.0, hold=True)
    assert expected(desk, "2") == (70.0, "user") and desk.job("2").estimate.low_s is None


def test_a_size_among_the_numbers_or_batches_that_differ_leave_the_memory_unknown() -> None:
    desk = Desk("fifo", report("a", 2), profile_s=60.0)
    desk.run("1", **sweep(0.1, "--hidden", "64"))
    measured(desk, "1")
    desk.submit("2", **sweep(0.1, "--hidden", "128"), hold=True)
    assert desk.job("2").needed_mib(1) is None
    for job, rows in (("3", 8), ("4", 16)):
        desk.submit(f"{job}0", **sweep(float(job), "--cut", "1"), hold=True)
        desk.run(job, **sweep(float(job), "--cut", "2"))
        seen = SeenBatch(rows=rows)
        measured(desk, job, Profile(step_s=1.0, memory_mib_peak=100.0, batch=seen))
        desk.submit(f"{job}1", **sweep(float(job) + 0.5, "--cut", "2"), hold=True)
        assert (desk.job(f"{job}1").needed_mib(1) is None) is (job == "4")
        if job == "3":
            desk.end("1")


def test_the_largest_of_the_family_counts_and_every_task_alone_is_measured() -> None:
    desk = Desk("fifo", profile_s=60.0)
    for lr, mib in ((0.1, 300.0), (0.2, 500.0), (0.3, 200.0)):
        job = str(round(lr * 10))
        desk.submit(job, **sweep(lr))
        assert [each.profile_s for each in desk.commands if isinstance(each, StartAttempt)] == [60.0]
        desk.start(job)
        measured(desk, job, profile(8, (1, 2.0, mib)))
        assert desk.job(job).needed_mib(1) == mib
        desk.end(job)
    desk.submit("4", **sweep(0.4), hold=True)
    assert desk.job("4").needed_mib(1) == 550
    assert desk.job("4").measured.profile.source == "as 3 runs of this program with other numbers"


def test_a_newcomer_is_capped_at_what_its_like_took_and_the_next_gets_more_once_that_was_too_little() -> None:
    desk = Desk("castor", report("a", 1, type="t4", kind="cuda"), profile_s=60.0)
    known = {**sweep(0.1), "expected_s": 4000.0, "batch_size": 8}
    desk.run("1", **known)
    measured(desk, "1", device_type="t4")
    desk.submit("2", **{**known, **sweep(0.2), "expected_s": 100.0})
    (start,) = [each for each in desk.commands if isinstance(each, StartAttempt)]
    assert (start.job_id, start.memory_cap_mib) == ("2", 330)
    desk.start("2")
    desk.end("2", "user-failed", out_of_memory=True)
    assert desk.phase("1") == "running" and desk.phase("2") in ("queued", "loading")
    assert desk.job("2").reason.code == "crowded-out"
    desk.submit("3", **{**known, **sweep(0.3)}, hold=True)
    assert desk.job("3").needed_mib(1) == 495


def test_what_is_known_of_families_outlives_the_controller_and_older_journals_say_less() -> None:
    desk = Desk("fifo", profile_s=60.0)
    desk.run("1", **sweep(0.1))
    measured(desk, "1")
    desk.wait(40.0)
    desk.end("1")
    desk.submit("2", **sweep(0.2), hold=True)
    kept = desk.restart()
    assert expected(desk, "2") == (40.0, "as 1 run of this program with other numbers")
    ended(desk, "3", 90.0, **sweep(0.3))
    assert desk.job("2").estimate.source == "as 2 runs of this program with other numbers"
    old = msgspec.msgpack.decode(kept)
    for each in old["ledger"]["profiles"]["known"].values():
        del each["numbers"], each["like"]
    del old["ledger"]["profiles"]["outgrown_mib"], old["ledger"]["resumes"]["families"]
    for each in old["ledger"]["jobs"]:
        del each["estimate"]["low_s"], each["estimate"]["high_s"]
    taken = old["ledger"]["estimates"]["by_command"]
    old["ledger"]["estimates"] |= {"by_command": dict([next(iter(taken.items()))]), "recent": [40.0]}
    older = Desk("fifo", profile_s=60.0)
    older.engine = type(older.engine)(older._make, older.engine.config, validate=True)
    older.engine.restore(msgspec.convert(old, type=Snapshot))
    older.now_s = desk.now_s
    older.submit("5", **sweep(0.1), hold=True)
    older.submit("6", **sweep(0.4), hold=True)
    assert expected(older, "5") == (40.0, "as 1 earlier run of this command")
    assert expected(older, "6") == UNKNOWN and older.job("6").measured.profile is None


def test_resumes_with_other_numbers_are_a_prior_and_prove_or_refute_nothing() -> None:
    desk = Desk("cotenant", report("a", 3))
    for job, lr in (("1", 0.1), ("2", 0.2), ("3", 0.3)):
        desk.submit(job, **sweep(lr), hold=True)
    resumes, (one, two, three) = Resumes(), map(desk.job, "123")
    resumes.note(one, is_proven=True)
    resumes.note(two, is_proven=False)
    assert resumes.counts(three).proof == "unproven" and resumes.others(three) == ResumeCounts(1, 1)
    assert resumes.counts(two).proof == "refuted" and resumes.others(two).refuted == 0
