"""`usage`, `history` and `set` as people and scripts see them; csv; `queue --watch`."""

from __future__ import annotations

import csv
import io
import json
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cotenant.controller.cli.jobs.queue import watch_page
from cotenant.controller.client.connection import Unreachable
from cotenant.controller.present.problem import Problem
from cotenant.controller.slurm.aliases.programs import scontrol
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn


def past(replies: ModuleType, **more: Any) -> wire.PastJobView:
    fields = msgspec.structs.asdict(replies.done(**more))
    return wire.PastJobView(
        **fields, attempts=2, held_device_s=7200.0, shared_device_s=360.0, lost_device_s=0.0
    )


def test_who_held_most_stands_first_over_all_pages(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    last = replies.usage(replies.use("bob", 2.5, energy_kwh=1.5, energy_unknown_attempts=1))
    unknown = replies.use("ann", 1.0, energy_unknown_attempts=4)
    pages = {None: replies.usage(unknown, next="ann"), "ann": last}
    controller.says(wire.GetUsage, lambda asked: pages[asked.after])
    result = cotenant("usage", "--since", "7d", "--by", "organisation")
    lines = [line.split() for line in result.out.splitlines()]
    assert lines == [
        ["ORGANISATION", "JOBS", "ATTEMPTS", "DEVICE-H", "SHARED", "IDLE", "LOST", "WAITED", "KWH"],
        ["bob", "3", "4", "2.5", "0.5", "0", "0.01", "1m30s", "1.5+"],
        ["ann", "3", "4", "1", "0.5", "0", "0.01", "1m30s", "?"],
    ]
    assert [asked.since_s for asked in controller.asked_for(wire.GetUsage)] == [7 * 86_400.0] * 2
    assert cotenant("usage", "--limit", "1").err == "1 more row: see --limit\n"


def test_where_fair_share_is_on_usage_says_what_it_counts(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    rows = (replies.use("ann", 1.0, decayed_device_s=900.0), replies.use("bob", 0.5, decayed_device_s=0.0))
    controller.says(wire.GetUsage, replies.usage(*rows, half_life_s=604_800.0))
    lines = [line.split() for line in cotenant("usage").out.splitlines()]
    assert [line[-1] for line in lines] == ["DECAYED", "0.25", "0"]


def test_usage_as_json_and_csv(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    controller.says(wire.GetUsage, replies.usage(replies.use("ann", 1.0), forgotten_jobs=2))
    value = json.loads(cotenant("usage", "-o", "json").out)
    assert (value["schema"], value["by"], value["forgotten_jobs"]) == ("usage/1", "user", 2)
    assert value["usage"][0]["schema"] == "use/1"
    (read,) = csv.DictReader(io.StringIO(cotenant("usage", "-o", "csv").out))
    assert (read["name"], read["held_device_s"], read["wait_s"]) == ("ann", "3600.0", "90.0")


def test_history_is_a_table_and_filters_are_asked_for(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    answer = wire.PastJobs(request_id=0, jobs=(past(replies),), now=replies.NOW, since=None, forgotten_jobs=5)
    controller.says(wire.ListPastJobs, answer)
    result = cotenant("history", "--state", "done,failed", "--user", "ada", "--since", "2h")
    head, job = result.out.splitlines()
    assert head.split()[:8] == ["JOB", "NAME", "USER", "STATE", "EXIT", "GPUS", "ATTEMPTS", "ENDED"]
    assert "done" in job and " 2 " in job
    assert result.err == (
        "5 older jobs in no list (controller.keep_ended): `show` and `logs` answer by number\n"
    )
    (asked,) = controller.asked_for(wire.ListPastJobs)
    assert (asked.user, asked.since_s, [str(each) for each in asked.states]) == (
        "ada", 7200.0, ["done", "failed"],
    )  # fmt: skip
    value = json.loads(cotenant("history", "--json").out)
    assert (value["schema"], value["past-jobs"][0]["held_device_s"]) == ("past-jobs/1", 7200.0)
    refused = cotenant("history", "--state", "running")
    assert (refused.code, "no state of jobs that have ended" in refused.err) == (2, True)


def test_queue_as_csv_has_the_jsons_names_and_one_line_per_job(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    controller.says(wire.ListJobs, replies.jobs(replies.job_view("7", name="a,\nb"), replies.job_view("8")))
    out = cotenant("queue", "-o", "csv").out
    assert len(out.splitlines()) == 3
    first, second = csv.DictReader(io.StringIO(out))
    assert (first["job"], first["name"], first["devices"]) == ("7", "a,\\nb", "laptop/cpu0")
    assert (first["ended_at"], first["eta"], second["left_s"]) == ("", "", "15.0")
    refused = cotenant("nodes", "-o", "csv")
    assert (refused.code, "there is no format 'csv'" in refused.err) == (2, True)


def test_set_reads_values_as_submit_does(controller: StandIn, cotenant: Cotenant) -> None:
    controller.says(wire.SetJobs, wire.Done(request_id=0, lines=("job 7: priority 0 -> 5",)))
    result = cotenant("set", "7", "12", "priority=5", "expect=2h", "host-mem=8G", "iterations=-", "name=a b")
    assert (result.code, result.out) == (0, "job 7: priority 0 -> 5\n")
    (asked,) = controller.asked_for(wire.SetJobs)
    assert asked.job_ids == ("7", "12")
    assert asked.changes == {
        "priority": 5, "expect": 7200.0, "host_mem": 8192, "iterations": None, "name": "a b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("7",), "it needs jobs and KEY=VALUE"),
        (("priority=5",), "it needs jobs and KEY=VALUE"),
        (("7", "prioritty=5"), "unknown key 'prioritty'; did you mean priority"),
        (("7", "priority=much"), "priority must be"),
        (("7", "priority=1", "priority=2"), "a key is given twice"),
        (("7", "after=3"), "after cannot be set later"),
    ],
)
def test_set_says_what_is_wrong_before_it_asks(cotenant: Cotenant, words: tuple[str, ...], says: str) -> None:
    result = cotenant("set", *words)
    assert result.code == 2 and says in result.err, result.err


def test_watching_goes_on_while_the_controller_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter(("one", Unreachable("it restarts"), "two"))

    def ask() -> str:
        answer = next(answers, None)
        if answer is None:
            raise KeyboardInterrupt
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    paused: list[float] = []
    with pytest.raises(KeyboardInterrupt):
        watch_page(ask, 3.0, paused.append)
    shown = [line for line in capsys.readouterr().out.splitlines() if line]
    assert (shown[0], shown[2], paused) == ("one", "two", [3.0, 3.0, 3.0])
    assert shown[1].startswith("no answer for ") and shown[1].endswith("it restarts")


def test_watching_is_for_people(controller: StandIn, cotenant: Cotenant) -> None:
    result = cotenant("queue", "--watch", "-o", "json")
    assert (result.code, "--watch is for people" in result.err) == (2, True)


# --- The same by Slurm's name -----------------------------------------------------------------------


def test_scontrol_changes_and_updates_jobs(controller: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    controller.says(wire.SetJobs, wire.Done(request_id=0, lines=("job 7: priority 0 -> 5",)))
    controller.says(wire.ChangeJobs, wire.Done(request_id=0, lines=("job 7 queues again",)))
    assert scontrol(["update", "JobId=7", "TimeLimit=4:00:00", "Priority=5", "Account=vision"]) == 0
    assert scontrol(["requeue", "7,9"]) == 0
    (updated,), (again,) = controller.asked_for(wire.SetJobs), controller.asked_for(wire.ChangeJobs)
    assert updated.changes == {"time": 14_400.0, "priority": 5, "organisation": "vision"}
    assert (updated.job_ids, again.verb, again.job_ids) == (("7",), "requeue", ("7", "9"))
    assert capsys.readouterr().out == "", "scripts read what Slurm's prints: nothing"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "scontrol is not possible here"),
        (["reconfigure"], "scontrol reconfigure is not possible"),
        (["hold"], "no job was named"),
        (["update", "JobId=7"], "JobId=JOB and what is to be changed"),
        (["update", "JobId=7", "Partition=gpu"], "partition is not known here"),
        (["update", "JobId=7", "Priority"], "is not KEY=VALUE"),
    ],
)
def test_scontrol_refuses_by_name(words: list[str], says: str) -> None:
    with pytest.raises(Problem, match=says):
        scontrol(words)
