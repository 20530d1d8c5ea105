"""The demo's report: the published schema, the table, and when the demo must not exit with 0."""

from __future__ import annotations

import json

import msgspec
import pytest

from cotenant.controller.cli.demo.cluster import reason_in_names
from cotenant.controller.cli.demo.others import CpuTimes, OthersLoad, OthersWatch
from cotenant.controller.cli.demo.report import (
    JOBS,
    BesideReport,
    DemoReport,
    JobReport,
    PromiseReport,
    failures,
    job_table,
    not_shown,
    to_json,
    what_sharing_brought,
)
from cotenant.controller.cli.demo.run import DemoClock
from cotenant.controller.domain import JobId, because

ALONE = JobReport(
    job="compute-bound", devices=("cpu0",), load_s=3.1, run_s=20.0, final_loss=0.1, parameters_sha256="aa"
)
SHARED = JobReport(
    job="memory-heavy",
    devices=("cpu1",),
    co_tenants=("loader-bound",),
    accumulation_steps=2,
    final_loss=0.2,
    parameters_sha256="bb",
)
RESUMED = JobReport(
    job="sonnets",
    devices=("cpu0", "cpu1"),
    preemptions=1,
    wait_s=12.34,
    pause_s=0.8,
    final_loss=1.5,
    parameters_sha256="cc",
    uninterrupted_sha256="cc",
)
WHOLE = DemoReport(jobs=(ALONE, SHARED, RESUMED))


def test_report_json_has_exactly_the_published_fields() -> None:
    content = json.loads(to_json(WHOLE))
    assert content["schema"] == "demo/1"
    assert set(content) == {"schema", "jobs", "shared", "promises", "others", "left_out"}
    assert list(content["jobs"][0]) == [
        "job",
        "devices",
        "co_tenants",
        "accumulation_steps",
        "preemptions",
        "wait_s",
        "load_s",
        "run_s",
        "pause_s",
        "final_loss",
        "parameters_sha256",
        "uninterrupted_sha256",
    ]
    assert content["jobs"][0]["uninterrupted_sha256"] is None
    assert content["jobs"][2]["devices"] == ["cpu0", "cpu1"]


def test_a_good_run_has_no_failures() -> None:
    assert failures(WHOLE) == ()


def changed(job: JobReport, **fields: object) -> DemoReport:
    other = msgspec.structs.replace(job, **fields)
    return DemoReport(jobs=tuple(other if each.job == job.job else each for each in WHOLE.jobs))


BAD = {
    "a job without a result": (changed(ALONE, final_loss=None), "compute-bound did not finish"),
    "other parameters": (changed(RESUMED, uninterrupted_sha256="dd"), "resumed to other parameters (cc)"),
    "nothing to compare with": (changed(RESUMED, uninterrupted_sha256=None), "no uninterrupted run"),
}


@pytest.mark.parametrize(("report", "reason"), BAD.values(), ids=BAD.keys())
def test_the_demo_does_not_pass_with(report: DemoReport, reason: str) -> None:
    (failure,) = failures(report)
    assert reason in failure


def test_what_the_jobs_did_not_do_is_left_out_and_is_no_failure() -> None:
    report = changed(RESUMED, preemptions=0)
    assert failures(report) == ()
    assert [sentence.partition(":")[0] for sentence in not_shown(report)] == [
        "no two jobs trained together",
        "no job was preempted, so no resume was shown",
    ]


def test_the_table_is_aligned_and_complete() -> None:
    lines = job_table(WHOLE).splitlines()
    assert len(lines) == 4
    assert all(column.title in lines[0] for column in JOBS)
    starts = [line.index(cell) for line, cell in zip(lines, ("devices", "cpu0", "cpu1", "cpu0"), strict=True)]
    assert len(set(starts)) == 1
    assert "12.3 s" in lines[3]
    assert lines[3].endswith("yes")


def test_a_job_that_did_not_finish_is_red() -> None:
    colour = JOBS[0].colour
    assert colour is not None
    assert [colour(job) for job in changed(SHARED, final_loss=None).jobs] == ["", "red", ""]


BROKEN_WORD = DemoReport(
    jobs=(ALONE, SHARED),
    shared=(
        BesideReport(
            job="loader", beside=("digits",), steps=120.0, predicted_s=11.0, measured_s=15.0, alone_s=10.0,
            won_device_s=2.5,
        ),
        BesideReport(
            job="digits", beside=("loader", "sonnets"), steps=80.0, predicted_s=None, measured_s=15.0,
            alone_s=4.0, won_device_s=-3.5,
        ),
    ),
    promises=(
        PromiseReport(
            job="loader", beside="digits",
            promised_s=29.1, took_s=40.7, load_s=3.0, sequential_s=36.9,
        ),
        PromiseReport(
            job="heavy", beside="sonnets",
            promised_s=9.0, took_s=None, load_s=2.0, sequential_s=12.0,
        ),
    ),
)  # fmt: skip


def test_a_promise_that_was_not_kept_is_told() -> None:
    told = what_sharing_brought(BROKEN_WORD).splitlines()
    assert told[1].split() == ["job", "beside", "steps", "predicted", "measured", "alone", "device-s", "won"]
    row = "loader digits 120 11.0 s 15.0 s 10.0 s +2.5"
    assert " ".join(told[2].split()) == row
    assert "digits  loader and sonnets" in told[3] and told[3].endswith("-3.5")
    assert told[4] == "in all 1.0 device-seconds lost against taking turns"
    assert told[5] == "loader beside digits: 1.50 times as long as alone, 1.10 predicted"
    assert told[6] == "digits beside loader and sonnets: 3.75 times as long as alone"
    assert told[7] == (
        "average completion of loader and digits: promised 29.1 s, took 39.2 s, and 40.7 s with the "
        "load of loader; one after the other, 36.9 s expected"
    )
    assert "took -, and - with" in told[8]
    assert json.loads(to_json(BROKEN_WORD))["promises"][0]["took_s"] == 40.7


def test_where_nobody_shared_no_table_is_made_up() -> None:
    assert what_sharing_brought(WHOLE) == ""


def test_the_log_counts_as_the_picture_does_from_the_first_submission() -> None:
    now_s = 50.0
    clock = DemoClock(lambda: now_s)
    assert clock.clock_text().strip() == "", "before it no time of the log is one of the picture"
    clock.start()
    now_s = 62.5
    clock.start()
    assert clock.clock_text() == "  12.5 s"


def test_cores_time_that_is_not_the_demos_is_others() -> None:
    """Process 2 keeps a core busy and ends; others keep 1.6 cores busy."""
    at = [
        CpuTimes(0.0, 50.0, {1: 7.0}),
        CpuTimes(10.0, 50.0 + 26.0, {1: 8.0, 2: 9.0}),
        CpuTimes(20.0, 50.0 + 26.0 + 16.0, {1: 8.0}),
    ]
    watch = OthersWatch(lambda: at.pop(0), lambda: 1e9)
    assert watch.busy_cores == 0.0
    for _ in range(3):
        watch.look()
    assert watch.busy_cores == 1.6


def test_figures_of_a_busy_machine_are_told_as_such() -> None:
    busy, quiet = (OthersLoad(cores=2, before=0.1, during=during) for during in (1.6, 0.2))
    assert busy.is_busy and not quiet.is_busy
    told = what_sharing_brought(msgspec.structs.replace(BROKEN_WORD, others=busy)).splitlines()[-1]
    assert told == (
        "other programs kept 0.1 of 2 cores busy before the first job, 1.6 while the jobs ran: they took "
        "time from the jobs, and on a quiet machine these figures are better"
    )
    report = msgspec.structs.replace(BROKEN_WORD, others=quiet)
    assert what_sharing_brought(report).endswith("0.2 while the jobs ran: a quiet machine\n")
    assert json.loads(to_json(report))["others"] == {"cores": 2, "before": 0.1, "during": 0.2}


def test_the_log_has_names_where_reasons_have_numbers() -> None:
    names = {JobId("2"): "digits"}
    pays = because("sharing-pays", "2", 22.78, 36.8, 16, 2, 1.2, 1.3, "duty-cycle")
    assert reason_in_names(str(pays), names) == (
        "sharing with digits pays: on average the two end after about 20 s, one after the other after "
        "about 40 s"
    )
    assert reason_in_names("preempted for job 3, which has 1 s left", names).startswith("preempted for job 3")
