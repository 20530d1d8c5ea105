"""Each verb against a stand-in controller: what it asks, what it prints, with which exit code it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cotenant.controller.cli.jobs import queue
from cotenant.controller.cli.jobs.run import exit_code, standard_input
from cotenant.controller.cli.setup.owners import own
from cotenant.controller.client.connection import Client, Unreachable
from cotenant.controller.client.pages import pages as pages_of
from cotenant.controller.domain import InputFile, JobId, JobSpec, Launch, Phase
from cotenant.controller.performance import Profile
from cotenant.controller.policies import registry
from cotenant.controller.present import screen, tables, units
from cotenant.controller.present.terminal import WaitingLine
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn


def failure(code: Any) -> wire.Failure:
    return wire.Failure(request_id=0, code=code, message="because", hint="try something else")


@pytest.fixture
def queued(controller: StandIn, replies: ModuleType) -> StandIn:
    """Two jobs share a device, one waits."""
    views = (
        replies.job_view("7", co_tenants=("9",)),
        replies.job_view("9", user="bob", co_tenants=("7",), accumulation_steps=2),
        replies.waiting("10", "behind job 9 in sjf order"),
    )
    controller.says(wire.ListJobs, replies.jobs(*views))
    return controller


# --- queue ------------------------------------------------------------------------------------------


def test_queue_is_a_table_for_people(queued: StandIn, cotenant: Cotenant) -> None:
    result = cotenant("queue")
    assert result.code == 0
    head, first, second, third = result.out.splitlines()
    assert head.split()[:6] == ["JOB", "NAME", "USER", "STATE", "GPUS", "DEVICES"]
    assert first.split()[:8] == ["7", "train", "ada", "running", "1", "laptop/cpu0", "9", "1"]
    assert second.split()[7] == "2"
    assert third.endswith("behind job 9 in sjf order")
    assert "\x1b" not in result.out


def test_queue_json_says_what_each_object_is(queued: StandIn, cotenant: Cotenant) -> None:
    for flags in (("--json",), ("-o", "json")):
        value = json.loads(cotenant("queue", *flags).out)
        assert value["schema"] == "jobs/1"
        assert value["now"] == "2025-11-20T09:00:00.000Z"
        job = value["jobs"][0]
        assert job["schema"] == "job/1"
        assert (job["job"], job["state"], job["co_tenants"]) == ("7", "running", ["9"])
        assert job["submitted_at"] == "2025-11-20T08:45:00.000Z"
        assert (job["wait_s"], job["left_s"], job["ended_at"]) == (10.0, 15.0, None)


def test_queue_of_states_asks_for_those_and_says_which_there_are(queued: StandIn, cotenant: Cotenant) -> None:
    assert queue.states_of("running, Queued,") == ("running", "queued")
    assert cotenant("queue", "--state", "running").code == 0
    wrong = cotenant("queue", "--state", "runing")
    assert (wrong.code, "did you mean" in wrong.err or "running" in wrong.err) == (2, True)


def test_queue_jsonl_and_id(queued: StandIn, cotenant: Cotenant) -> None:
    lines = cotenant("queue", "-o", "jsonl").out.splitlines()
    assert [json.loads(line)["job"] for line in lines] == ["7", "9", "10"]
    assert all(json.loads(line)["schema"] == "job/1" for line in lines)
    assert cotenant("queue", "-o", "id").out == "7\n9\n10\n"


def test_queue_wide_cuts_nothing(queued: StandIn, cotenant: Cotenant) -> None:
    assert "PREEMPTED" in cotenant("queue", "-o", "wide").out


@pytest.fixture
def long_queue(controller: StandIn, replies: ModuleType) -> StandIn:
    """Ten jobs, of which a controller tells no more than four at once."""
    views = [replies.waiting(str(number), "behind job 7") for number in range(95, 105)]

    def page(request: wire.ListJobs) -> wire.Jobs:
        rest = [view for view in views if int(view.job_id) > request.after]
        shown = rest[: min(4, request.page, request.limit)]
        is_over = len(shown) == min(len(rest), request.limit)
        answer: wire.Jobs = replies.jobs(*shown)
        following = 0 if is_over else int(shown[-1].job_id)
        return msgspec.structs.replace(answer, more=len(rest) - len(shown), next=following)

    controller.says(wire.ListJobs, page)
    return controller


def test_a_long_queue_comes_page_by_page(long_queue: StandIn, cotenant: Cotenant) -> None:
    lines = cotenant("queue", "-o", "id").out.split()
    assert lines == [str(number) for number in range(95, 105)]
    assert [each.after for each in long_queue.asked_for(wire.ListJobs)] == [0, 98, 102], "one message a page"
    head, *rows = cotenant("queue").out.splitlines()
    assert [row.split()[0] for row in rows] == lines and head.split()[2] == "USER"
    value = json.loads(whole := cotenant("queue", "--json").out)
    assert [each["job"] for each in value["jobs"]] == lines and value["more"] == 0
    assert whole == msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
    assert len(cotenant("queue", "-o", "jsonl").out.splitlines()) == 10


def test_a_limit_counts_for_all_pages_together(long_queue: StandIn, cotenant: Cotenant) -> None:
    value = json.loads(cotenant("queue", "--json", "--limit", "6").out)
    assert len(value["jobs"]) == 6 and value["more"] == 4
    assert [each.limit for each in long_queue.asked_for(wire.ListJobs)] == [6, 2]
    result = cotenant("queue", "--limit", "6")
    assert len(result.out.splitlines()) == 7 and "4 more rows: see --limit" in result.err


def test_a_page_is_shown_before_the_next_one_is_asked_for(long_queue: StandIn) -> None:
    with Client(long_queue.endpoint) as client:
        pages = pages_of(client, wire.ListJobs())
        for count in (1, 2, 3):
            next(pages)
            assert len(long_queue.asked_for(wire.ListJobs)) == count


def test_a_controller_that_knows_no_pages_answers_whole(queued: StandIn, cotenant: Cotenant) -> None:
    assert cotenant("queue", "-o", "id").out == "7\n9\n10\n"
    assert len(queued.asked_for(wire.ListJobs)) == 1


def test_a_later_page_of_a_table_widens_its_columns() -> None:
    columns = (tables.Column("A", lambda row: row[0]), tables.Column("B", lambda row: row[1]))
    table = screen.Table(columns, None)
    assert table.lines([("1", "x")]) == ["A  B", "1  x"]
    assert table.lines([("10000", "y"), ("2", "z")]) == ["10000  y", "2      z"]
    assert table.lines([]) == []
    assert table.lines([("3", "w")]) == ["3      w"]


def test_an_empty_queue_is_no_error(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    controller.says(wire.ListJobs, replies.jobs())
    result = cotenant("queue")
    assert (result.code, result.out) == (0, "")
    assert "no jobs" in result.err
    assert json.loads(cotenant("queue", "--json").out)["jobs"] == []
    assert cotenant("queue", "-o", "id").out == ""


def test_queue_asks_for_what_was_meant(queued: StandIn, cotenant: Cotenant) -> None:
    cotenant("queue", "-u", "ada", "--all", "--limit", "5")
    cotenant("queue", "7", "9")
    first, second = queued.asked_for(wire.ListJobs)
    assert (first.user, first.include_ended, first.limit) == ("ada", True, 5)
    assert (second.job_ids, second.include_ended) == (("7", "9"), True)


# --- Problems and exit codes ------------------------------------------------------------------------

CODES = {
    "refused": 1,
    "usage": 2,
    "not-found": 3,
    "not-allowed": 4,
    "never-fits": 6,
    "version": 1,
    "internal": 1,
}


@pytest.mark.parametrize(("code", "exits"), CODES.items())
def test_a_refusal_is_one_line_and_its_exit_code(
    controller: StandIn, cotenant: Cotenant, code: str, exits: int
) -> None:
    controller.says(wire.ShowJob, failure(code))
    result = cotenant("show", "99")
    assert (result.code, result.out) == (exits, "")
    assert result.err == f"error[{code}]: because; try something else\n"


def test_no_controller_is_exit_code_5(at_home: Path, cotenant: Cotenant) -> None:
    result = cotenant("queue", "--endpoint", f"ipc://{at_home}/nowhere.sock")
    assert result.code == 5
    assert result.err.startswith("error[unreachable]: no controller at ipc://")
    assert "cotenant up" in result.err


MISTAKES = {
    "unknown verb": (("quee",), "did you mean `cotenant queue`?"),
    "unknown flag": (("queue", "--mien"), "did you mean --mine?"),
    "unknown job flag": (("submit", "--gpu", "2", "--", "true"), "did you mean --gpu"),
    "unknown format": (("queue", "-o", "yaml"), "formats are table, wide, json, jsonl, id"),
    "two formats": (("queue", "-o", "id", "--json"), "contradict"),
    "missing job": (("show",), "missing argument"),
    "unknown part": (("nodes", "drian", "x"), "no such command 'drian'"),
    "container": (("submit", "--container", "x", "--", "true"), "cotenant starts containers itself"),
    "no command": (("submit",), "no command was given"),
    "a bad endpoint": (("queue", "--endpoint", "http://x"), "neither ipc:///PATH nor tcp://HOST:PORT"),
    "array of a run": (("run", "--array", "0-3", "--", "true"), "--array is for submit"),
    "a bad wait": (("wait", "7", "--timeout", "soon"), "--timeout must be a duration"),
}


@pytest.mark.parametrize(("words", "says"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_and_exit_code_2(
    at_home: Path, cotenant: Cotenant, words: tuple[str, ...], says: str
) -> None:
    result = cotenant(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert says in result.err


def test_a_mistake_in_a_settings_file_is_exit_code_2(at_home: Path, cotenant: Cotenant) -> None:
    (at_home / "cotenant.toml").write_text("[controller]\nendpint = 'x'\n")
    result = cotenant("queue")
    assert result.code == 2
    assert "cotenant.toml:2: unknown setting `controller.endpint`; did you mean" in result.err


# --- submit -----------------------------------------------------------------------------------------


def accepts(controller: StandIn, *job_ids: str, notes: tuple[str, ...] = ()) -> None:
    controller.says(wire.Submit, wire.Submitted(request_id=0, job_ids=job_ids, notes=notes))  # type: ignore[arg-type]


def test_submit_prints_the_id_alone(controller: StandIn, cotenant: Cotenant) -> None:
    accepts(controller, "41", notes=("it needs 1 device, and 0 are free",))
    result = cotenant("submit", "-g", "2", "-t", "4h", "--", "python3", "-c", "pass", "--gpus", "9")
    assert (result.code, result.out) == (0, "41\n")
    assert result.err == (
        "note: one process that sees 2 GPUs of one host: the text behind -c makes no process group "
        "(--launch worker starts one per GPU)\n"
        "note: it needs 1 device, and 0 are free\n"
    )
    (request,) = controller.asked_for(wire.Submit)
    (spec,) = request.specs
    assert (spec.gpus_min, spec.time_limit_s) == (2, 14_400)
    assert spec.launch.argv == ("python3", "-c", "pass", "--gpus", "9")
    assert request.idempotency_key


def test_submit_an_array_prints_its_number(controller: StandIn, cotenant: Cotenant) -> None:
    accepts(controller, "41_0", "41_1")
    assert cotenant("submit", "--array", "0-1", "--", "python3", "-c", "pass").out == "41\n"


def test_submit_json(controller: StandIn, cotenant: Cotenant) -> None:
    accepts(controller, "41")
    value = json.loads(cotenant("submit", "--json", "--", "python3", "-c", "pass").out)
    nothing = {"promised_at": None, "foreseen": None}
    assert value == {"schema": "submission/1", "jobs": ["41"], "notes": [], "dry_run": False, **nothing}


def test_submit_print_shows_the_specification_and_asks_nobody(at_home: Path, cotenant: Cotenant) -> None:
    result = cotenant(
        "submit", "--print", "--mem", "2G", "--env", "MY_TOKEN=hush", "--", "python3", "-c", "pass"
    )
    value = json.loads(result.out)
    assert (value["schema"], value["memory_mib"]) == ("job-spec/1", 2048)
    assert value["launch"]["secrets"] == ["MY_TOKEN"]
    assert "hush" not in result.out


def test_dry_run_is_said_to_the_controller(controller: StandIn, cotenant: Cotenant) -> None:
    accepts(controller, "41")
    result = cotenant("submit", "--dry-run", "--", "python3", "-c", "pass")
    assert (result.code, result.out) == (0, "")
    assert "nothing was changed" in result.err
    assert controller.asked_for(wire.Submit)[0].dry_run


def test_a_job_that_can_never_run_here_is_exit_code_6(controller: StandIn, cotenant: Cotenant) -> None:
    controller.says(wire.Submit, failure("never-fits"))
    assert cotenant("submit", "-g", "64", "--", "python3", "-c", "pass").code == 6


# --- One job ----------------------------------------------------------------------------------------


@pytest.fixture
def shown(controller: StandIn, replies: ModuleType) -> StandIn:
    spec = JobSpec(
        job_id="7",  # type: ignore[arg-type]
        launch=Launch(argv=("python", "train.py", "a b"), workdir="/home/ada", secrets=("HF_TOKEN",)),
    )
    reply = replies.shown(
        replies.job_view(), spec, (replies.attempt(),), Profile(memory_mib_peak=300.0, source="in place")
    )
    controller.says(wire.ShowJob, lambda request: _over(reply, 2 if request.job_id == "8" else 0))
    return controller


def _over(reply: wire.Shown, nodes: int) -> wire.Shown:
    gpus = max(1, nodes)
    spec = msgspec.structs.replace(reply.job.spec, nodes=nodes, gpus_min=gpus, gpus_max=gpus)
    return msgspec.structs.replace(reply, job=msgspec.structs.replace(reply.job, spec=spec))


def test_a_profile_of_one_host_of_several_says_so(shown: StandIn, cotenant: Cotenant) -> None:
    assert "on its first host, which stands for all" in cotenant("show", "8").out
    assert "first host" not in cotenant("show", "7").out


def test_show_for_a_person(shown: StandIn, cotenant: Cotenant) -> None:
    out = cotenant("show", "7").out
    assert "python train.py 'a b'" in out
    assert "step 40 of 100, 250 ms per step, loss 1.5" in out
    assert "yes, from step 30" in out


def test_show_says_that_no_steps_are_seen_of_a_job_that_counts_as_running(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    spec = JobSpec(job_id=JobId("7"), launch=Launch(argv=("sleep", "100"), workdir="/home/ada"))
    attempt = replies.attempt(first_step_at=None, first_step=None, start_assumed_at=replies.at(110.0))
    controller.says(wire.ShowJob, replies.shown(replies.job_view(start_assumed=True), spec, (attempt,)))
    out = cotenant("show", "7").out
    assert "steps         none are seen: it counts as running" in out
    assert "first step" not in out
    *_, heads, row = out.splitlines()
    assert row[: heads.index("LOAD") + len("LOAD")].endswith("10s")


def test_show_json(shown: StandIn, cotenant: Cotenant) -> None:
    value = json.loads(cotenant("show", "7", "--json").out)
    assert (value["schema"], value["spec"]["schema"], value["attempts"][0]["schema"]) == (
        "job/1", "job-spec/1", "attempt/1",
    )  # fmt: skip
    assert value["attempts"][0]["first_step_at"] == "2025-11-20T08:45:02.000Z"


def test_explain(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    waiting = replies.waiting("10", "behind job 9 in sjf order")
    reply = replies.explained(waiting, "behind job 9 in sjf order", "submitted by ada")
    controller.says(wire.Explain, reply)
    out = cotenant("explain", "10").out
    assert out.splitlines()[:2] == ["job 10 (train): queued", "  behind job 9 in sjf order"]
    assert "submitted by ada" in out
    value = json.loads(cotenant("explain", "10", "--json").out)
    assert (value["schema"], value["reason"]) == ("explanation/1", "behind job 9 in sjf order")


def test_explain_says_how_the_bound_of_a_job_that_shares_stands(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    bound = wire.ShareBoundView(
        max=1.5, is_own=False, ratio_p50=1.21, ratio_p99=1.4, guest_pace=0.6, guests_in_phase=True
    )
    shares = replies.job_view("7", co_tenants=("8",), bound=bound)
    controller.says(wire.Explain, replies.explained(shares, "shares with job 8"))
    out = " ".join(cotenant("explain", "7").out.split())
    assert "1.5 times as long as alone (the cluster's); over the last minute 1.21 times, p99 1.40" in out
    assert "job 8 may train 60 % of the time" in out


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "preempt", "checkpoint"])
def test_changes(controller: StandIn, cotenant: Cotenant, verb: str) -> None:
    controller.says(wire.ChangeJobs, wire.Done(request_id=0, lines=(f"job 7: {verb}",)))
    assert cotenant(verb, "7", "9").out == f"job 7: {verb}\n"
    (request,) = controller.asked_for(wire.ChangeJobs)
    assert (request.verb, request.job_ids) == (verb, ("7", "9"))


@pytest.mark.parametrize(("phase", "exits"), [(Phase.DONE, 0), (Phase.FAILED, 1), (Phase.CANCELLED, 1)])
def test_wait_returns_whether_all_finished(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant, phase: Phase, exits: int
) -> None:
    running, ended = replies.job_view("9"), replies.done("9", phase=phase)
    answers = iter([running, ended])
    controller.says(wire.WaitJobs, lambda _request: replies.jobs(replies.done("7"), next(answers)))
    result = cotenant("wait", "7", "9")
    assert result.code == exits
    assert f"job 9 (train) {phase.value}" in result.out
    assert len(controller.asked_for(wire.WaitJobs)) == 2


def test_wait_gives_up_after_its_time(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    controller.says(wire.WaitJobs, replies.jobs(replies.job_view("7")))
    result = cotenant("wait", "7", "--timeout", "1s")
    assert result.code == 1
    assert "not ended within 1s: 7" in result.err
    assert controller.asked_for(wire.WaitJobs)[0].timeout_s <= 1.0


def test_who_waits_for_a_job_outlives_a_silence_of_the_controller(
    controller: StandIn, replies: ModuleType
) -> None:
    speaks, told = threading.Event(), []

    def later(_request: Any) -> Any:
        assert speaks.wait(within_s(60.0))
        return replies.jobs(replies.done("7"))

    def on_silence(text: str) -> None:
        told.append(text)
        speaks.set()

    controller.says(wire.WaitJobs, replies.jobs(replies.job_view("7")))
    request = wire.WaitJobs(job_ids=(JobId("7"),), timeout_s=0.0)
    with Client(controller.endpoint, timeout_s=within_s(30.0)) as client:
        client.patience_s, client.on_silence = 60.0, on_silence
        assert client.ask(request).jobs[0].phase is Phase.RUNNING
        controller.says(wire.WaitJobs, later)
        assert client.ask(request, timeout_s=0.2).jobs[0].phase is Phase.DONE
    assert told == ["no answer from the controller; waiting for it for up to 60 s more"]


def test_a_controller_that_never_answered_is_not_waited_for(controller: StandIn, replies: ModuleType) -> None:
    speaks = threading.Event()
    controller.says(wire.WaitJobs, lambda _request: (speaks.wait(within_s(60.0)), replies.jobs())[1])
    with Client(controller.endpoint) as client:
        client.patience_s = 60.0
        with pytest.raises(Unreachable):
            client.ask(wire.WaitJobs(job_ids=(JobId("7"),), timeout_s=0.0), timeout_s=0.2)
    speaks.set()


# --- Logs and run -----------------------------------------------------------------------------------


class Output:
    """A job's output by attempt, read through `ReadJobLog` in parts of a few bytes."""

    def __init__(self, replies: ModuleType, texts: dict[int, bytes], *views: wire.JobView) -> None:
        self._replies, self._texts, self._views = replies, texts, list(views)

    def of(self, controller: StandIn) -> None:
        controller.says(wire.ListJobs, self._jobs)
        controller.says(wire.WaitJobs, self._replies.jobs())
        controller.says(wire.ReadJobLog, self._part)

    def _jobs(self, _request: Any) -> wire.Jobs:
        view = self._views.pop(0) if len(self._views) > 1 else self._views[0]
        reply: wire.Jobs = self._replies.jobs(view)
        return reply

    def _part(self, request: wire.ReadJobLog) -> wire.LogPart | wire.Failure:
        attempt = request.attempt or 1
        if attempt not in self._texts:
            return failure("not-found")
        text = self._texts[attempt]
        end = min(len(text), request.offset + 4)
        closed = end == len(text) and (attempt < max(self._texts) or self._views[0].phase is Phase.DONE)
        return wire.LogPart(
            request_id=0, job_id=request.job_id, attempt=attempt, rank=request.rank,
            data=text[request.offset : end], next_offset=end, at_end=end == len(text), closed=closed,
            attempts=tuple(self._texts), ranks=1,
        )  # fmt: skip


def test_logs_joins_attempts_in_order(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    Output(replies, {1: b"one\n", 2: b"two\nthree"}, replies.job_view(attempt=2)).of(controller)
    result = cotenant("logs", "7")
    assert result.out == "one\ntwo\nthree"
    assert "--- attempt 2 ---" in result.err
    assert cotenant("logs", "7", "--attempt", "2").out == "two\nthree"
    assert cotenant("logs", "7", "--tail", "2").out == "two\nthree"
    assert cotenant("logs", "7", "--attempt", "3").code == 3


def test_logs_of_a_job_that_waits_says_why(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    Output(replies, {}, replies.waiting("10", "behind job 9 in sjf order")).of(controller)
    result = cotenant("logs", "10")
    assert (result.code, result.out) == (0, "")
    assert "has not started: behind job 9" in result.err


class Growing(Output):
    """Once all of it was read, there is more."""

    def _part(self, request: wire.ReadJobLog) -> wire.LogPart | wire.Failure:
        if request.offset == len(self._texts[1]) and not self._texts[1].endswith(b"five\n"):
            self._texts[1] += b"five\n"
        return super()._part(request)


def test_following_from_the_last_lines_shows_them_and_all_that_comes(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    views = [replies.job_view(attempt=1)] * 10 + [replies.done(attempt=1)]
    Growing(replies, {1: b"one\ntwo\nthree\nfour\n"}, *views).of(controller)
    assert cotenant("logs", "-f", "-n", "2", "7").out == "three\nfour\nfive\n"
    assert cotenant("logs", "-f", "--attempt", "1", "7").code == 2


class Away(Output):
    """Its host does not answer the first questions, as after a restart of the controller."""

    silent = 0

    def _part(self, request: wire.ReadJobLog) -> wire.LogPart | wire.Failure:
        part = super()._part(request)
        if self.silent and isinstance(part, wire.LogPart):
            self.silent -= 1
            away = {"data": b"", "next_offset": request.offset, "at_end": True, "closed": False}
            return msgspec.structs.replace(part, **away, missing="host vm is not connected")
        return part


@pytest.mark.parametrize(("silent", "said"), [(2, 0), (9, 1)])
def test_output_is_called_missing_only_where_its_host_stays_away(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant, silent: int, said: int
) -> None:
    output = Away(replies, {1: b"one\n"}, *[replies.job_view(attempt=1)] * 20, replies.done(attempt=1))
    output.silent = silent
    output.of(controller)
    result = cotenant("logs", "-f", "7")
    assert result.out == "one\n"
    assert result.err.count("--- missing: host vm is not connected ---") == said


def test_following_goes_on_over_a_preemption(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    views = [
        replies.waiting("7", "behind"),
        replies.job_view(attempt=1),
        replies.waiting("7", "preempted", attempt=1),
        replies.job_view(attempt=2),
        replies.done(attempt=2),
    ]
    Output(replies, {1: b"before\n", 2: b"after\n"}, *views).of(controller)
    assert cotenant("logs", "-f", "7").out == "before\nafter\n"


def test_run_shows_the_output_and_returns_the_jobs_code(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    accepts(controller, "7")
    controller.says(wire.GetStatus, replies.status())
    views = [replies.waiting("7", "behind job 3"), replies.job_view(), replies.done()]
    Output(replies, {1: b"hello\n"}, *views).of(controller)
    result = cotenant("run", "--", "python3", "-c", "pass")
    assert (result.code, result.out) == (0, "hello\n")
    assert "job 7 (train) queued: behind job 3" in result.err
    assert "job 7 (train) running on laptop/cpu0" in result.err
    Output(replies, {1: b""}, replies.done(phase=Phase.FAILED, exit_code=3, reason="failed: exit code 3")).of(
        controller
    )
    result = cotenant("run", "-q", "--", "python3", "-c", "pass")
    assert result.code == 3
    assert "failed: exit code 3" in result.err


class TwoStreams(Output):
    """What is in capitals was written to standard error."""

    def _part(self, request: wire.ReadJobLog) -> wire.LogPart | wire.Failure:
        part = super()._part(request)
        assert request.errors_apart and isinstance(part, wire.LogPart)
        return msgspec.structs.replace(part, is_error=part.data.isupper())


def test_run_keeps_the_jobs_streams_apart(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    accepts(controller, "7")
    controller.says(wire.GetStatus, replies.status())
    TwoStreams(replies, {1: b"one\nERR\ntwo\nMORE"}, replies.done()).of(controller)
    result = cotenant("run", "-q", "--", "true")
    assert (result.out, result.err) == ("one\ntwo\n", "ERR\nMORE")


def test_run_says_into_a_pipe_only_what_is_new(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    """Seconds that are others at each look, and ETAs that wander, are nothing new."""
    accepts(controller, "7")
    controller.says(wire.GetStatus, replies.status())
    views = []
    for left in range(6):
        when = replies.at(400.0 + left)
        eta = wire.EtaView(
            job_id=JobId("7"), name="train", phase=Phase.QUEUED, start=None, is_calibrated=True,
            finish=wire.EtaTimes(p10_at=when, p50_at=when, p90_at=when), basis="", policy="sjf",
            hit_rate=None, hits_of=0, told_at=when,
        )  # fmt: skip
        reason = f"behind job 3, which has {left}m25s left, about {left} min late"
        views.append(replies.waiting("7", reason, eta=eta if left else None))
    views += [replies.waiting("7", "first in sjf order"), replies.job_view(), replies.done()]
    Output(replies, {1: b""}, *views).of(controller)
    lines = cotenant("run", "--", "true").err.splitlines()
    assert [line.split(";")[0] for line in lines[:4]] == [
        "job 7 (train) queued: behind job 3, which has 0m25s left, about 0 min late",
        "job 7 (train) queued: behind job 3, which has 1m25s left, about 1 min late",
        "job 7 (train) queued: first in sjf order",
        "job 7 (train) running on laptop/cpu0",
    ]
    assert "ends about" in lines[1], "an ETA is told once, when it is known"


def spec_on(**more: Any) -> JobSpec:
    return JobSpec(job_id=JobId("new-0"), launch=Launch(argv=("cat",)), **more)


def test_what_run_passes_on_of_its_standard_input(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (at_home / "words").write_text("one\ntwo\n")
    here, there = "ipc:///tmp/c.sock", "tcp://h:7710"
    ours, theirs = socket.socketpair()
    with (at_home / "words").open("rb") as file, open("/dev/null", "rb") as nothing, ours, theirs:
        os.lseek(file.fileno(), 4, os.SEEK_SET)
        source, problem = standard_input(file.fileno(), spec_on(), here)
        assert isinstance(source, InputFile) and not problem
        assert (os.path.realpath(source.path), source.offset) == (str(at_home / "words"), 4)
        assert standard_input(nothing.fileno(), spec_on(), here) == (None, "")
        two = spec_on(gpus_min=2, gpus_max=2, nodes=1)
        assert "a job of one process" in standard_input(file.fileno(), two, here)[1]
        once = msgspec.structs.replace(two, launch=Launch(argv=("cat",), mode="process"))
        assert standard_input(file.fileno(), once, here)[0] == source
        assert "on another machine" in standard_input(file.fileno(), spec_on(), there)[1]
        assert "it is a socket" in standard_input(ours.fileno(), spec_on(), here)[1]


def test_the_line_of_a_terminal_is_written_over_and_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    line = WaitingLine()
    line.clear()
    line.rewrite("job 7 queued")
    line.rewrite("job 7 held")
    line.clear()
    line.clear()
    assert capsys.readouterr().err == "\r\x1b[Kjob 7 queu\u2026\r\x1b[Kjob 7 held\r\x1b[K"


ENDS = {
    "finished": ({"phase": Phase.DONE, "exit_code": 0}, False, 0),
    "its own code": ({"phase": Phase.FAILED, "exit_code": 17}, False, 17),
    "a signal": ({"phase": Phase.FAILED, "exit_code": -9}, False, 137),
    "a signal as a shell says it": ({"phase": Phase.FAILED, "exit_code": 139}, False, 139),
    "never started": ({"phase": Phase.FAILED, "exit_code": None, "started_at": None}, False, 125),
    "cancelled before it started": (
        {"phase": Phase.CANCELLED, "exit_code": None, "started_at": None},
        False,
        125,
    ),
    "cancelled from here before it ended": ({"phase": Phase.CANCELLED, "exit_code": None}, True, 130),
    "ended by Ctrl-C": ({"phase": Phase.CANCELLED, "exit_code": 130}, True, 130),
    "ended well after Ctrl-C": ({"phase": Phase.CANCELLED, "exit_code": 0}, True, 0),
    "failed after Ctrl-C": ({"phase": Phase.CANCELLED, "exit_code": 3}, True, 3),
    "failed without a code": ({"phase": Phase.FAILED, "exit_code": None}, False, 1),
}


@pytest.mark.parametrize(("more", "cancelled", "code"), ENDS.values(), ids=ENDS.keys())
def test_runs_exit_code(replies: ModuleType, more: dict[str, Any], cancelled: bool, code: int) -> None:
    assert exit_code(replies.done(**more), cancelled) == code


def test_ctrl_c_goes_to_the_job_then_cancels_it_then_leaves_it(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    accepts(controller, "7")
    controller.says(wire.GetStatus, replies.status())
    controller.says(wire.ChangeJobs, wire.Done(request_id=0, lines=("told so",)))
    output = Output(replies, {1: b"x\n"}, replies.job_view())
    output.of(controller)

    def pressed(request: wire.ReadJobLog) -> wire.LogPart | wire.Failure:
        """While it waits for more output."""
        if request.offset:
            os.kill(os.getpid(), signal.SIGINT)
        return output._part(request)

    controller.says(wire.ReadJobLog, pressed)
    result = cotenant("run", "--", "python3", "-c", "pass")
    assert result.code == 130
    asked = [(each.verb, each.interrupt) for each in controller.asked_for(wire.ChangeJobs)]
    assert asked == [("cancel", True), ("cancel", False)]
    assert result.err.count("told so") == 2 and "left to itself" in result.err


def test_run_starts_nothing_behind_another_endpoint(at_home: Path, cotenant: Cotenant) -> None:
    result = cotenant("run", "--endpoint", "tcp://127.0.0.1:1", "--", "python3", "-c", "pass")
    assert result.code in (4, 5), "no key, or nobody there: never a private controller"


# --- Hosts, policy, settings ------------------------------------------------------------------------


def test_nodes(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    view = replies.node(
        "laptop",
        replies.device(),
        replies.device("cpu1", healthy=False, note="locked by pid 3"),
        tenants={"laptop/cpu0": ("7", "9")},
        planned_mib={"laptop/cpu0": 3000},
    )
    controller.says(wire.ListNodes, replies.nodes(view))
    lines = cotenant("nodes").out.splitlines()
    assert "7,9" in lines[1] and "2.9G" in lines[1]
    assert lines[2].endswith("locked by pid 3")
    value = json.loads(cotenant("nodes", "--json").out)
    assert (value["schema"], value["nodes"][0]["schema"]) == ("nodes/1", "node/1")
    assert value["nodes"][0]["devices"][0]["jobs"] == ["7", "9"]
    assert cotenant("nodes", "-o", "id").out == "laptop\n"


def test_hosts_that_are_not_there_yet_are_said_to_be_starting(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    controller.says(wire.ListNodes, replies.nodes())
    assert "start an agent with: cotenant agent" in "".join(cotenant("nodes")[1:])
    lock = own(controller.endpoint, "up")
    try:
        said = "".join(cotenant("nodes")[1:])
    finally:
        lock.release()
    assert "the agent of `cotenant up` is starting" in said and "start an agent" not in said


def test_an_ended_job_still_says_whether_it_could_resume(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    controller.says(wire.ShowJob, replies.shown(replies.done(resumable=True, durable_step=40), spec_on()))
    assert "yes, from step 40" in cotenant("show", "7").out


@pytest.mark.parametrize(
    ("of_kind", "wanted"),
    [
        ({}, "not yet proven for this kind"),
        ({"resume_proof": "proven", "resumes_proven": 12}, "exact, proven for this kind 12 times"),
        ({"resume_proof": "refuted", "resumes_proven": 2}, "a resume of this kind came out differently"),
    ],
)
def test_show_and_explain_say_what_resumes_of_the_kind_have_shown(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant, of_kind: dict[str, Any], wanted: str
) -> None:
    job = replies.job_view(resumable=True, durable_step=40, **of_kind)
    controller.says(wire.ShowJob, replies.shown(job, spec_on()))
    controller.says(wire.Explain, replies.explained(job, "runs"))
    assert f"yes, from step 40; {wanted}" in cotenant("show", "7").out
    assert f"resume: {wanted}" in cotenant("explain", "7").out


def test_nodes_tell_what_is_the_matter_with_a_device(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    devices = (
        replies.device("gpu-1", healthy=False, state="lost", note="lost: Xid 79 (fallen off the bus)"),
        replies.device("gpu-2", healthy=False, note="in use by pid 3 of bob (python x.py, 9 MiB)"),
        replies.device("gpu-3"),
    )
    controller.says(wire.ListNodes, replies.nodes(replies.node("laptop", *devices)))
    lost, out, ok = cotenant("nodes").out.splitlines()[1:]
    assert "lost" in lost
    assert lost.endswith("Xid 79 (fallen off the bus)")
    assert " out " in out
    assert out.endswith("in use by pid 3 of bob (python x.py, 9 MiB)")
    assert " ok " in ok
    value = json.loads(cotenant("nodes", "--json").out)
    assert [device["state"] for device in value["nodes"][0]["devices"]] == ["lost", "ok", "ok"]


def test_nodes_name_whoever_holds_an_idle_gpu_outside_of_jobs(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    note = "in use by pid 3 of bob (python x.py, 9 MiB, since Nov 28 09:12)"
    devices = (replies.device("gpu-1", healthy=False, note=note), replies.device("gpu-2", note=""))
    quiet = {"laptop/gpu-1": replies.reading("nvml", {"GRACT": 0.0}, quiet_s=7200.0)}
    controller.says(wire.ListNodes, replies.nodes(replies.node("laptop", *devices, readings=quiet)))
    (row,) = cotenant("nodes", "--foreign").out.splitlines()[1:]
    assert row.endswith(f"{note}; nothing has run on it for 2h00m")
    assert len(cotenant("nodes").out.splitlines()) == 3
    controller.says(wire.ListNodes, replies.nodes(replies.node("laptop", devices[1])))
    assert "no device is held by a process that is no job's" in "".join(cotenant("nodes", "--foreign")[1:])


def test_queue_show_and_nodes_say_who_is_idle(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    idle = wire.IdleView(rule="warn:30m,share:1h", since_at=replies.NOW, stage="share", idle_s=4000.0)
    job = replies.job_view("7", idle=idle)
    controller.says(wire.ListJobs, replies.jobs(job))
    assert "running, idle" in cotenant("queue").out
    controller.says(wire.ShowJob, replies.shown(job, spec_on()))
    said = cotenant("show", "7").out
    assert "so far: share (warn:30m,share:1h; no kernel, step or input counts as idle)" in said
    device = msgspec.structs.replace(replies.device(jobs=("7",)), idle_jobs=("7",))
    view = replies.node("laptop", device, tenants={"laptop/cpu0": ("7",)})
    controller.says(wire.ListNodes, replies.nodes(view))
    assert "7 idle" in cotenant("nodes").out


def test_memory_that_nobody_knows_is_a_dash(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    part = replies.device("gpu-1-mig", type="MIG-1g", memory_mib=1, healthy=False, note="a MIG instance")
    controller.says(wire.ListNodes, replies.nodes(replies.node("laptop", part)))
    (row,) = cotenant("nodes").out.splitlines()[1:]
    assert " - " in row
    assert " 1M " not in row


def test_nodes_say_how_gpus_are_shared(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    why = "nvidia-cuda-mps-control is not on PATH"
    gpu: dict[str, Any] = {"kind": "cuda", "type": "H", "cores": ()}
    view = replies.node(
        "laptop",
        replies.device("gpu-a", **gpu, sharing="mps"),
        replies.device("gpu-b", **gpu, sharing_note=why),
    )
    controller.says(wire.ListNodes, replies.nodes(view))
    lines = cotenant("nodes").out.splitlines()
    assert lines[1].endswith("MPS")
    assert lines[2].endswith(f"time-slicing: {why}")
    shown = json.loads(cotenant("nodes", "--json").out)["nodes"][0]["devices"]
    assert [(each["sharing"], each["sharing_note"]) for each in shown] == [("mps", ""), ("time-slicing", why)]


@pytest.mark.parametrize("verb", ["drain", "resume", "lost"])
def test_nodes_can_be_changed(controller: StandIn, cotenant: Cotenant, verb: str) -> None:
    controller.says(wire.ChangeNode, wire.Done(request_id=0))
    assert cotenant("nodes", verb, "laptop").code == 0
    (request,) = controller.asked_for(wire.ChangeNode)
    assert (request.verb, request.host_id) == (verb, "laptop")


def test_policy_list_and_show(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    controller.says(wire.GetPolicy, replies.policy())
    assert cotenant("policy", "list").out.splitlines()[0].split()[:2] == ["*", "castor"]
    assert "ageing_s  3600  (set)" in cotenant("policy", "show").out
    assert cotenant("policy").out == cotenant("policy", "show").out
    value = json.loads(cotenant("policy", "show", "--json").out)
    assert (value["policy"], value["parameters"]["ageing_s"]) == ("castor", 3600.0)
    value = json.loads(cotenant("policy", "list", "--json").out)
    assert (value["schema"], [each["policy"] for each in value["policies"]]) == (
        "policies/1",
        ["castor", "fifo"],
    )


def test_policy_list_needs_no_controller(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists what is installed, and says so; a controller that is named and silent is an error."""
    controller.says(wire.GetPolicy, replies.policy())
    asked = json.loads(cotenant("policy", "list", "--json").out)
    monkeypatch.delenv("COTENANT_CONTROLLER__ENDPOINT")
    listed = cotenant("policy", "list", "--json")
    assert (listed.code, len(listed.err.splitlines())) == (0, 1)
    assert "no controller answers: these policies are installed here" in listed.err
    found = json.loads(listed.out)
    assert found["schema"] == asked["schema"]
    assert set(found["policies"][0]) == set(asked["policies"][0])
    offers = {each["policy"]: each for each in found["policies"]}
    assert set(registry.ours()) <= set(offers) and not any(each["current"] for each in offers.values())
    assert offers["castor"]["defaults"] == registry.defaults("castor")
    assert "when: " in cotenant("policy", "list").out
    assert cotenant("policy", "list", "--endpoint", "ipc:///none/none.sock").code == 5
    head = cotenant("policy", "list", "-o", "wide").out.splitlines()[0].split("  ")
    assert [each.strip() for each in head if each.strip()] == [
        "POLICY",
        "DEFAULTS",
        "ABOUT",
        "WHEN TO CHOOSE IT",
    ]


def test_policy_set_gives_parameters_the_type_of_their_default(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    controller.says(wire.GetPolicy, replies.policy())
    controller.says(wire.SetPolicy, wire.Done(request_id=0))
    assert cotenant("policy", "set", "castor", "ageing_s=60", "share=false", "pairs=4").code == 0
    (request,) = controller.asked_for(wire.SetPolicy)
    assert request.parameters == {"ageing_s": 60.0, "share": False, "pairs": 4}


POLICY_MISTAKES = {
    "unknown policy": (("castro",), "did you mean castor?"),
    "unknown parameter": (("castor", "aging_s=3"), "did you mean ageing_s?"),
    "wrong type": (("castor", "pairs=many"), "pairs must be a whole number"),
    "no value": (("castor", "pairs"), "is not KEY=VALUE"),
    "no number": (("castor", "ageing_s=nan"), "ageing_s must be a number, got 'nan'"),
    "twice": (("castor", "pairs=1", "pairs=2"), "pairs is given twice"),
}


@pytest.mark.parametrize(("words", "says"), POLICY_MISTAKES.values(), ids=POLICY_MISTAKES.keys())
def test_policy_mistakes(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant, words: tuple[str, ...], says: str
) -> None:
    controller.says(wire.GetPolicy, replies.policy())
    result = cotenant("policy", "set", *words)
    assert result.code == 2
    assert says in result.err
    assert not controller.asked_for(wire.SetPolicy)


def test_config_names_the_origin(at_home: Path, cotenant: Cotenant, monkeypatch: pytest.MonkeyPatch) -> None:
    (at_home / "cotenant.toml").write_text("[agent]\ndevices = 'cpu:2'\n")
    monkeypatch.setenv("COTENANT_POLICY__NAME", "sjf")
    value = json.loads(cotenant("config", "--json").out)
    origins = {each["key"]: each["origin"] for each in value["settings"]}
    assert origins["agent.devices"] == f"file {at_home}/cotenant.toml:2"
    assert origins["policy.name"] == "environment COTENANT_POLICY__NAME"
    assert all(each["meaning"] for each in value["settings"])
    (root,) = [each for each in value["settings"] if each["key"] == "checkpoint.root"]
    assert root["value"] == "" and root["effective"].startswith(str(at_home))
    assert [row["key"] for row in value["settings"] if not row["meaning"]] == []
    assert len(cotenant("config", "-o", "wide").out.splitlines()) == len(value["settings"]) + 1
    assert cotenant("config", "agent.devices", "-o", "id").out == "agent.devices\n"
    assert cotenant("config", "agent.device").code == 3


def test_top_once(queued: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    queued.says(wire.GetStatus, replies.status())
    queued.says(wire.GetDecisions, wire.Decisions(request_id=0, decisions=(), now_s=1.0, wall_s=1.0))
    queued.says(wire.GetPolicy, replies.policy())
    tenants = {"laptop/cpu0": ("7", "9")}
    queued.says(wire.ListNodes, replies.nodes(replies.node("laptop", replies.device(), tenants=tenants)))
    out = cotenant("top", "--once").out
    assert "policy castor" in out
    assert "7 train 40% 15s left  +  9 train 40% 15s left" in out
    assert "Waiting (1)" in out
    assert json.loads(cotenant("top", "--json").out)["schema"] == "top/1"


@pytest.fixture
def busy(queued: StandIn, replies: ModuleType) -> StandIn:
    """A GPU with all counters, one with plain NVML's, one whose reading is old, and one never read."""
    queued.says(wire.GetStatus, replies.status())
    queued.says(wire.GetDecisions, wire.Decisions(request_id=0, decisions=(), now_s=1.0, wall_s=1.0))
    queued.says(wire.GetPolicy, replies.policy())
    kinds = {"kind": "cuda", "type": "NVIDIA-H100", "memory_mib": 81_920, "cores": ()}
    devices = [
        replies.device(f"gpu-{name}", "gpu07", **kinds) for name in ("1a2b3c", "2b3c4d", "3c4d5e", "4d5e6f")
    ]
    all_of = {"SMACT": 0.534, "DRAMA": 0.25, "TENSO": 0.125, "PCITX": 1.5e9, "GRACT": 0.9}
    readings = {
        "gpu07/gpu-1a2b3c": replies.reading("gpm", all_of, memory_used_mib=40_960.0, age_s=0.4),
        "gpu07/gpu-2b3c4d": replies.reading(
            "nvml", {"GRACT": 0.75, "DRAMA": 0.1}, note="plain NVML has no SMACT"
        ),
        "gpu07/gpu-3c4d5e": replies.reading("gpm", {"SMACT": 0.0}, age_s=90.0),
    }
    tenants = {"gpu07/gpu-1a2b3c": ("7", "9")}
    node = replies.node("gpu07", *devices, tenants=tenants, readings=readings)
    queued.says(wire.ListNodes, replies.nodes(node))
    return queued


def test_top_shows_what_each_device_does(busy: StandIn, cotenant: Cotenant) -> None:
    lines = cotenant("top", "--once").out.splitlines()
    head = next(line for line in lines if line.startswith("DEVICE"))
    assert head.split()[:5] == ["DEVICE", "TYPE", "SMACT", "DRAMA", "TENSO"]
    one, two, three, four = (
        next(line for line in lines if name in line) for name in ("1a2b", "2b3c4d", "3c4d5e", "4d5e6f")
    )
    assert one.split()[2:5] == ["53%", "25%", "12%"] and "40.0G/80.0G" in one and "gpm" in one
    assert two.split()[2:5] == ["-", "10%", "-"], "what was not measured is not 0"
    assert three.split()[2] == "0%" and "1m30s" in three
    assert four.split()[2:5] == ["-", "-", "-"] and "free" in four


def test_top_wide_shows_every_indicator_with_its_source(busy: StandIn, cotenant: Cotenant) -> None:
    head, one, two, _, four = cotenant("top", "-o", "wide").out.splitlines()
    assert {"SMOCC", "FP16A", "NVLRX", "SOURCE", "AGE", "NOTE"} <= set(head.split())
    assert "1.5G" in one and "plain NVML has no SMACT" in two and "nothing was read yet" in four


def test_indicators_in_json_are_null_where_they_are_missing(busy: StandIn, cotenant: Cotenant) -> None:
    value = json.loads(cotenant("top", "-o", "json").out)
    known = {each["device"]: each["indicators"] for each in value["nodes"][0]["devices"]}
    assert (
        known["gpu07/gpu-1a2b3c"]["values"]["SMACT"] == 0.534 and known["gpu07/gpu-1a2b3c"]["source"] == "gpm"
    )
    assert known["gpu07/gpu-2b3c4d"]["values"]["SMACT"] is None and known["gpu07/gpu-4d5e6f"] is None
    assert json.loads(cotenant("top", "-o", "jsonl").out.splitlines()[2])["indicators"]["age_s"] == 90.0
    assert cotenant("top", "-o", "id").out.splitlines()[0] == "gpu07/gpu-1a2b3c"
    assert (
        json.loads(cotenant("nodes", "-o", "json").out)["nodes"][0]["devices"][1]["indicators"]["source"]
        == "nvml"
    )


@pytest.mark.parametrize("width", [80, 120, 200])
def test_top_keeps_to_the_screen_and_leaves_room_for_the_jobs(
    busy: StandIn, cotenant: Cotenant, terminal: Callable[[int], None], width: int
) -> None:
    terminal(width)
    lines = cotenant("top", "--once").out.splitlines()
    assert max(map(len, lines)) <= width
    one = next(line for line in lines if "1a2b3c" in line)
    assert "53%" in one and "7 train 40% 15s" in one


def test_version_without_a_controller(at_home: Path, cotenant: Cotenant) -> None:
    result = cotenant("version")
    assert result.code == 0
    assert "controller (none answers)" in result.out
    assert json.loads(cotenant("version", "--json").out)["controller"] is None


def test_keys_are_made_once(at_home: Path, cotenant: Cotenant) -> None:
    folder = str(at_home / "keys")
    assert cotenant("init", "--keys-dir", folder).code == 0
    again = cotenant("init", "--keys-dir", folder)
    assert again.code == 1
    assert "--force" in again.err
    made = cotenant("init", "--keys-dir", folder, "--host", "gpu07", "--json")
    assert json.loads(made.out)["file"] == f"{folder}/agent-gpu07.key"
    assert cotenant("init", "--keys-dir", folder, "--remove", "agent@gpu07").code == 0
    assert cotenant("init", "--keys-dir", folder, "--remove", "agent@gpu07").code == 3


def test_a_second_host_gets_files_and_the_admin_gets_commands(
    at_home: Path, cotenant: Cotenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = at_home / "keys"
    monkeypatch.setenv("COTENANT_CONTROLLER__KEYS_DIR", str(folder))
    monkeypatch.setenv("COTENANT_CONTROLLER__ENDPOINT", "tcp://head1:7070")
    assert cotenant("init").code == 0
    made = cotenant("init", "--standby", "head2")
    assert (made.code, made.out.splitlines()[0]) == (0, f"wrote {folder}/standby-head2")
    assert f"rsync -a {folder}/standby-head2/ head2:{folder}/" in made.out
    assert 'endpoint = ["tcp://head1:7070", "tcp://head2:7070"]' in made.out
    assert "cotenant controller --standby" in made.out
    again = cotenant("init", "--standby", "head2")
    assert (again.code, "--force" in again.err) == (1, True)
    as_json = cotenant("init", "--standby", "head2", "--force", "--json")
    assert json.loads(as_json.out)["file"] == f"{folder}/standby-head2"
    assert cotenant("init", "--standby", "head2", "--host", "gpu01").code == 2


# --- Tables -----------------------------------------------------------------------------------------


def test_a_narrow_screen_drops_columns_by_rank_and_cuts_the_last() -> None:
    columns = [
        tables.Column("A", lambda row: row[0]),
        tables.Column("B", lambda row: row[1], rank=1),
        tables.Column("C", lambda row: row[2], rank=2),
        tables.Column("LAST", lambda row: row[3]),
    ]
    rows = [("a" * 10, "b" * 10, "c" * 10, "d" * 100)]
    whole = screen.table(columns, rows, None)
    assert whole.splitlines()[1] == "  ".join(rows[0])
    for width, titles in ((70, "A B C LAST"), (50, "A B LAST"), (40, "A LAST")):
        head, line = screen.table(columns, rows, width).splitlines()
        assert head.split() == titles.split()
        assert len(line) <= width
        assert line.endswith("…")


def test_a_last_column_that_wraps_says_everything() -> None:
    columns = [tables.Column("A", lambda row: row[0]), tables.Column("NOTE", lambda row: row[1], wraps=True)]
    note = "in use by pid 4711 of bob (python train.py, 20480 MiB), which is not ours"
    assert screen.table(columns, [("gpu-1", note)], None).splitlines()[1] == f"gpu-1  {note}"
    _, *lines = screen.table(columns, [("gpu-1", note), ("gpu-2", "free")], 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[-1] == "gpu-2  free"
    assert " ".join(line[7:] for line in lines[:-1]) == note
    assert {line[:7] for line in lines[1:-1]} == {" " * 7}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (59.6, "1m00s"), (192, "3m12s"), (7500, "2h05m"), (273_600, "3d04h")],
)
def test_durations_on_screen(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


def test_a_standby_alone_says_where_the_leader_is(controller: StandIn, cotenant: Cotenant) -> None:
    message, hint = "tcp://b:1 is the standby; the leader is at tcp://a:1", "list both"
    failure = wire.Failure(request_id=0, code="standby", message=message, hint=hint, leader="tcp://a:1")
    for kind in (wire.GetStatus, wire.ListJobs):
        controller.says(kind, failure)
    assert f"controller ({message})" in cotenant("version").out
    asked = cotenant("status")
    assert asked.code == 5 and message in asked.err and hint in asked.err
