"""Calls of the API against a stand-in controller: what they ask, wait for, show and leave behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pwd
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cotenant
from cotenant.agent.host import jobside
from cotenant.controller.domain import Dependency, JobId, Phase
from cotenant.controller.python.connection import watch
from cotenant.controller.python.handle import cancel
from cotenant.controller.python.submitting import options_of
from cotenant.controller.submission.options import OPTIONS
from cotenant.controller.submission.quantities import GpuRange
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.stand_in import refusal
from tests.controller.cli import replies

if TYPE_CHECKING:
    from tests.controller.python.conftest import FakeCluster


def double(x: int) -> int:
    return 2 * x


def fails(x: int) -> int:
    raise RuntimeError(f"{x} failed")


def watchers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "cotenant-watch"]


def no_thread_is_left() -> None:
    for each in watchers():
        each.join(within_s(10.0))
    assert watchers() == []


# --- Options -----------------------------------------------------------------------------------------

SAID = {
    "numbers": ({"gpus": 2, "iterations": 100}, {"gpus": GpuRange(2, 2), "iterations": 100}),
    "a part of one": ({"gpus": 0.5}, {"gpus": GpuRange(1, 1, 0.5)}),
    "a range of devices": ({"gpus": "1-4"}, {"gpus": GpuRange(1, 4)}),
    "text as typed": ({"time": "1h30m", "mem": "8G"}, {"time": 5400.0, "mem": 8192}),
    "a duration": ({"time": timedelta(hours=2)}, {"time": 7200.0}),
    "yes and no": ({"hold": True, "cold": False, "resumable": False}, {"hold": True, "resumable": False}),
    "not given": ({"gpus": None, "env": {}}, {}),
    "variables": ({"env": {"A": "1", "B": 2}}, {"env": (("A", "1"), ("B", "2"))}),
    "a list of words": ({"constraint": ["ib", "nvlink"]}, {"constraint": ("ib", "nvlink")}),
    "class": ({"class_": "hp"}, {"class": "hp"}),
    "a folder": ({"workdir": Path("/tmp")}, {"workdir": "/tmp"}),
    "a job": (
        {"after": cotenant.JobHandle("7")},
        {"after": ((Dependency(job_id=JobId("7")),),)},
    ),
}


@pytest.mark.parametrize(("given", "wanted"), SAID.values(), ids=SAID.keys())
def test_keywords_are_the_command_lines_options(given: dict[str, object], wanted: dict[str, Any]) -> None:
    assert {key: each.value for key, each in options_of(given).items()} == wanted


def test_every_option_of_the_table_is_a_keyword() -> None:
    import inspect

    for call in (cotenant.submit, cotenant.map):
        known = {name.removesuffix("_") for name in inspect.signature(call).parameters}
        assert {option.key for option in OPTIONS} <= known


NO_FUNCTIONS: dict[str, tuple[Any, str]] = {
    "a script": ("train.py", r"submit\(command=\['python', 'train.py'\]\)"),
    "a line": ("python train.py", r"submit\(command=\['python', 'train.py'\]\)"),
    "a list": (["python", "train.py"], r"submit\(command=\['python', 'train.py'\]\)"),
    "a number": (5, "5 is no function"),
}


@pytest.mark.parametrize(("given", "says"), NO_FUNCTIONS.values(), ids=NO_FUNCTIONS.keys())
def test_what_is_no_function_is_refused_with_the_call_that_was_meant(
    cluster: FakeCluster, given: Any, says: str
) -> None:
    for call in (cotenant.submit, cotenant.map):
        with pytest.raises(cotenant.BadCall, match=f"is no function.*{says}" if "5" not in says else says):
            call(given, [1])
    assert cluster.submissions == []


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "unknown": (lambda: cotenant.submit(double, 1, gpu=2), r"'gpu', and double\(\) no such.*mean gpus"),
    "a script with a NUL": (lambda: cotenant.submit(command=["./a\0"]), "has a NUL"),
    "a wrong value": (lambda: cotenant.submit(double, 1, gpus="two"), r"submit\(\): gpus must be a whole"),
    "nothing": (lambda: cotenant.submit(), "needs a function"),  # type: ignore[call-overload]
    "both": (lambda: cotenant.submit(double, command=["a"]), "not both"),
    "a text": (lambda: cotenant.submit(command="python train.py"), "list of words"),
    "an array": (lambda: cotenant.submit(command=["true"], array="0-9"), "cotenant.map"),
    "a series": (lambda: cotenant.submit(command=["true"], profile="full"), "cotenant profile"),
    "a lost command": (lambda: cotenant.submit(command=["no-such-program"]), "no command"),
    "results": (lambda: cotenant.submit(double, 1, results="some"), "first"),  # type: ignore[call-overload]
    "at_once": (lambda: cotenant.map(double, [1], at_once=-1), "must not be negative"),
    "a folder": (lambda: cotenant.submit(double, 1, folder="/proc/none"), "folder="),
}


@pytest.mark.parametrize(("call", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_and_nothing_is_sent(
    cluster: FakeCluster, call: Callable[[], object], says: str
) -> None:
    with pytest.raises(cotenant.BadCall, match=says):
        call()
    assert cluster.submissions == []


def test_without_a_cluster_it_says_what_to_do(at_home: Path) -> None:
    with pytest.raises(cotenant.NoController, match="start one with `cotenant up`") as caught:
        cotenant.submit(command=["true"])
    assert isinstance(caught.value, ConnectionError)
    with pytest.raises(cotenant.NoController):
        cotenant.submit(double, 1)
    assert list(at_home.rglob("function.pickle")) == [], "what was packed for nothing is gone"


def test_the_controllers_no_is_told_apart(cluster: FakeCluster) -> None:
    with pytest.raises(cotenant.RequestRefused, match="no job 99") as caught:
        cotenant.job(99)
    assert caught.value.code == "not-found"


# --- Several at once ---------------------------------------------------------------------------------


def test_a_batch_is_one_request_and_its_jobs_may_wait_for_each_other(cluster: FakeCluster) -> None:
    with cotenant.batch() as jobs:
        first = cotenant.submit(double, 1)
        second = cotenant.submit(command=["true"], after=first)
        mapped = cotenant.map(double, [3, 4], after=[second, "5"])
        with pytest.raises(cotenant.BadCall, match="has no number"):
            assert first.id
    assert [job.id for job in jobs] == ["7", "8", "9", "10"]
    (request,) = cluster.submissions
    waits = [[str(each.job_id) for each in spec.after] for spec in request.specs]
    assert waits == [[], ["new-0"], ["5", "new-1"], ["5", "new-1"]]
    assert cotenant.gather([first, *mapped]) == [2, 6, 8]


def test_an_error_in_a_batch_submits_nothing(cluster: FakeCluster, at_home: Path) -> None:
    def half() -> None:
        with cotenant.batch():
            cotenant.submit(double, 1)
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert cluster.submissions == []
    assert list(at_home.rglob("function.pickle")) == []
    with cotenant.batch(), pytest.raises(cotenant.BadCall, match="open already"), cotenant.batch():
        pass


def test_map_is_one_array_with_a_limit(cluster: FakeCluster) -> None:
    jobs = cotenant.map(double, [1, 2, 3], at_once=2)
    (request,) = cluster.submissions
    assert ([job.id for job in jobs], request.array_indices) == (["7_0", "7_1", "7_2"], (0, 1, 2))
    assert {spec.array_limit for spec in request.specs} == {2}
    assert cotenant.gather(jobs) == [2, 4, 6]
    assert cotenant.map(double, []) == []


def test_an_array_is_refused_as_one_job_and_has_its_tasks(cluster: FakeCluster) -> None:
    tasks = cotenant.map(double, [1, 2, 3])
    with pytest.raises(
        cotenant.RequestRefused, match=r"7 is an array, .*cotenant.jobs\(array=7\)"
    ) as refused:
        cotenant.job(7)
    assert "cotenant.job('7_0')" in str(refused.value)
    cluster.is_now("7_1", Phase.CANCELLED)
    assert [job.id for job in cotenant.jobs(array="7")] == [job.id for job in tasks]
    with pytest.raises(cotenant.RequestRefused, match="no job 8"):
        cotenant.job(8)


def test_what_one_request_cannot_hold_is_refused_where_it_must_be_one(cluster: FakeCluster) -> None:
    padding = {"PADDING": "x" * 100_000}
    with pytest.raises(cotenant.BadCall, match="at_once= holds within one request"):
        cotenant.map(double, range(60), env=padding, at_once=2)

    def many() -> None:
        with cotenant.batch():
            for each in range(60):
                cotenant.submit(command=["true", str(each)], env=padding)

    with pytest.raises(cotenant.BadCall, match="a batch is one request, and 60 jobs are more"):
        many()
    assert cluster.submissions == []


def test_jobs_come_as_they_end(cluster: FakeCluster) -> None:
    cluster.runs = False
    one, two, three = (cotenant.submit(double, each) for each in (1, 2, 3))
    cluster.run(two.id)
    coming = cotenant.as_completed([one, two, three, two])
    assert [next(coming), next(coming)] == [two, two]
    cluster.run(one.id)
    cluster.run(three.id)
    assert {next(coming).id, next(coming).id} == {one.id, three.id}
    assert list(coming) == []
    with pytest.raises(cotenant.StillRunning, match="2 jobs have not ended"):
        list(cotenant.as_completed([cotenant.submit(double, 1), cotenant.submit(double, 2)], timeout=0))


def test_the_rest_is_cancelled_when_one_fails_and_not_unasked(cluster: FakeCluster) -> None:
    cluster.runs = False
    bad, rest = cotenant.submit(fails, 1), cotenant.submit(double, 1)
    cluster.run(bad.id)
    with pytest.raises(RuntimeError, match="1 failed"):
        cotenant.gather([rest, bad])
    assert rest.state == "queued"
    with pytest.raises(RuntimeError, match="1 failed"):
        cotenant.gather([rest, cotenant.job(bad.id)], cancel_rest=True)
    assert rest.state == "cancelled"
    other = cotenant.submit(double, 1)
    ended = list(cotenant.as_completed([cotenant.job(bad.id), other], cancel_rest=True))
    assert [each.id for each in ended] == [bad.id, other.id]
    assert cluster.views[JobId(other.id)].phase is Phase.CANCELLED
    cancel([cotenant.job(other.id)])  # It has ended: nothing to say.


@pytest.mark.parametrize("call", [lambda jobs: list(cotenant.as_completed(jobs, cancel_rest=True)),
                                  lambda jobs: cotenant.gather(jobs, cancel_rest=True)])  # fmt: skip
def test_ctrl_c_cancels_the_rest_on_request(cluster: FakeCluster, call: Callable[[Any], object]) -> None:
    import signal

    cluster.runs = False
    job = cotenant.submit(double, 1)

    def wait(request: wire.WaitJobs) -> wire.Jobs:
        signal.raise_signal(signal.SIGINT)
        return replies.jobs()

    cluster.controller.says(wire.WaitJobs, wait)
    with pytest.raises(KeyboardInterrupt):
        call([job])
    assert cluster.views[JobId(job.id)].phase is Phase.CANCELLED


# --- Questions ---------------------------------------------------------------------------------------


def test_a_job_answers_what_the_command_line_does(cluster: FakeCluster) -> None:
    cluster.log = "naïve\nlast".encode()
    job = cotenant.submit(command=["true"])
    explained = replies.explained(cluster.views[JobId(job.id)], "behind job 3", "5 s ago: submitted")
    cluster.controller.says(wire.Explain, explained)
    cluster.controller.says(wire.ListEtas, wire.Etas(request_id=0, etas=(), scores=(), now=replies.NOW))
    assert (job.explain(), job.eta(), job.preemptions) == ("behind job 3\n5 s ago: submitted", None, 0)
    assert job.details().spec.launch.argv == ("true",)
    assert job.result() == 0
    assert job.logs() == "naïve\nlast"
    assert list(job.logs(follow=True)) == ["naïve\n", "last"]
    assert not job.cancel(), "it has ended"
    running = cotenant.submit(command=["true"])
    assert running.cancel()
    with pytest.raises(cotenant.JobCancelled) as caught:
        running.result()
    assert isinstance(caught.value, concurrent.futures.CancelledError)


def test_a_job_is_changed_as_the_command_line_does(cluster: FakeCluster) -> None:
    job = cotenant.submit(command=["true"])
    changes: list[wire.SetJobs] = []

    def change(request: wire.SetJobs) -> wire.Done:
        changes.append(request)
        return wire.Done(request_id=0, lines=())

    cluster.controller.says(wire.SetJobs, change)
    job.set(priority=5, time=timedelta(hours=2), class_="hp", expect=None, gpus=2)
    assert (changes[0].job_ids, changes[0].changes) == (
        ("7",),
        {"priority": 5, "time": 7200.0, "class": "hp", "expect": None, "gpus": 2},
    )
    for wrong, says in (
        ({"prio": 5}, "prio"),
        ({"gpus": "1-2"}, "cannot be set later"),
        ({"gpus": "x"}, "x"),
    ):
        with pytest.raises(cotenant.BadCall, match=says):
            job.set(**wrong)
    cluster.is_now(job.id, Phase.RUNNING, step=120, loss=0.25)
    assert (job.steps, job.loss) == (120, 0.25)
    cluster.controller.says(wire.ChangeJobs, wire.Done(request_id=0, lines=()))
    for verb in ("preempt", "release", "hold"):
        getattr(job, verb)()
        assert cluster.controller.asked_for(wire.ChangeJobs)[-1].verb == verb


def test_jobs_are_listed(cluster: FakeCluster) -> None:
    first, second = cotenant.submit(command=["true"], name="a"), cotenant.submit(command=["true"], name="b")
    cluster.controller.says(wire.ListJobs, lambda request: replies.jobs(*cluster.views.values()))
    assert [(job.id, job.name) for job in cotenant.jobs()] == [(first.id, "a"), (second.id, "b")]
    cotenant.jobs(ended=True, user="")
    asked = cluster.controller.asked_for(wire.ListJobs)
    me = pwd.getpwuid(os.getuid()).pw_name
    assert [(each.user, each.include_ended) for each in asked] == [(me, False), ("", True)]


def test_dir_shows_the_face_alone() -> None:
    assert sorted(dir(cotenant)) == sorted(cotenant.__all__)


def test_no_error_has_a_character_that_nobody_sees(cluster: FakeCluster, tmp_path: Path) -> None:
    script = tmp_path / "a\x1b.sh"
    script.write_text("true")
    calls = (
        lambda: cotenant.submit(command=[str(script)]),
        lambda: cotenant.submit(command=["true"], workdir="/a\x1b"),
    )
    cluster.controller.says(wire.ShowJob, refusal("not-found", "no job 7\0"))
    for call in (*calls, lambda: cotenant.job(7)):
        with pytest.raises(cotenant.CotenantError) as caught:
            call()
        assert str(caught.value).isprintable(), str(caught.value)


def test_the_card_of_a_notebook_is_escaped(cluster: FakeCluster) -> None:
    job = cotenant.submit(command=["true"])
    evil = "<script>alert(1)</script>&\"'"
    cluster.is_now(job.id, Phase.RUNNING, evil, step=50, iterations=200, preemptions=1)
    cluster.views[JobId(job.id)] = replies.job_view(
        job.id,
        name=evil,
        reason=evil,
        devices=(evil,),
        co_tenants=(evil,),
        step=50,
        iterations=200,
        preemptions=1,
    )
    shown = job._repr_html_()
    assert "<script>" not in shown
    assert "width:25%" in shown
    assert all(text in shown for text in ("step 50 of 200", "preempted 1 x", "&lt;script&gt;"))
    nowhere = cotenant.JobHandle[int]("7", endpoint="ipc:///nowhere/<b>.sock")
    assert "&lt;b&gt;" in nowhere._repr_html_()
    assert "cotenant up" in nowhere._repr_html_()


# --- await -------------------------------------------------------------------------------------------


def test_jobs_are_awaited_in_a_running_loop_and_no_thread_is_left(cluster: FakeCluster) -> None:
    async def main() -> list[int]:
        jobs = cotenant.map(double, [1, 2, 3])
        results = await asyncio.gather(*jobs)
        with pytest.raises(RuntimeError, match="9 failed"):
            await cotenant.submit(fails, 9)
        return results

    async def blocks() -> int:
        return cotenant.submit(double, 4).result()  # As in a notebook, whose loop runs.

    assert asyncio.run(main()) == [2, 4, 6]
    assert asyncio.run(blocks()) == 8
    no_thread_is_left()


def test_an_await_that_is_cancelled_leaves_job_and_no_thread(cluster: FakeCluster) -> None:
    cluster.runs = False

    async def main() -> None:
        job = cotenant.submit(double, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job, timeout=0.05)
        assert job.state == "queued"

    asyncio.run(main())
    no_thread_is_left()


def test_each_controller_has_its_own_watch(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is configured may change while somebody waits: the wait goes on where it began."""
    ours = watch(None)
    assert watch(cluster.controller.endpoint) is ours
    monkeypatch.setenv("COTENANT_CONTROLLER__ENDPOINT", "ipc:///nowhere/other.sock")
    assert watch(None) is not ours


def test_an_await_hears_that_nobody_answers(cluster: FakeCluster) -> None:
    async def main() -> None:
        with pytest.raises(cotenant.RequestRefused, match="no job 99"):
            await cotenant.JobHandle[int]("99")
        with pytest.raises(cotenant.NoController):
            await cotenant.JobHandle[int]("7", endpoint="ipc:///nowhere/c.sock")

    asyncio.run(main())
    no_thread_is_left()


# --- The executor, as the standard library documents it ----------------------------------------------


def test_submit_map_and_shutdown(cluster: FakeCluster) -> None:
    with cotenant.JobExecutor(gpus=1, time="1h") as executor:
        future = executor.submit(double, x=4)
        assert list(executor.map(double, [1, 2, 3])) == [2, 4, 6]
        assert future.result() == 8
        assert isinstance(future, concurrent.futures.Future)
        failed = executor.submit(fails, 5)
        assert isinstance(failed.exception(), RuntimeError)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(double, 1)
    assert {spec.time_limit_s for request in cluster.submissions for spec in request.specs} == {3600.0}
    assert [len(request.specs) for request in cluster.submissions] == [1, 3, 1], "map is one request"
    no_thread_is_left()


def test_what_takes_an_executor_takes_this_one(cluster: FakeCluster) -> None:
    async def main() -> int:
        with cotenant.JobExecutor() as executor:
            return await asyncio.get_running_loop().run_in_executor(executor, double, 21)

    assert asyncio.run(main()) == 42
    with cotenant.JobExecutor() as executor:
        futures = [executor.submit(double, each) for each in range(3)]
        done, left = concurrent.futures.wait(futures)
        assert (len(done), len(left)) == (3, 0)
        assert {each.result() for each in concurrent.futures.as_completed(futures)} == {0, 2, 4}


def test_waiting_calls_can_be_cancelled_and_running_ones_cannot(cluster: FakeCluster) -> None:
    cluster.runs = False
    executor = cotenant.JobExecutor()
    waiting, running = executor.submit(double, 1), executor.submit(double, 2)
    heard: list[object] = []
    waiting.add_done_callback(heard.append)
    cluster.is_now(running.job.id, Phase.RUNNING)
    assert (waiting.running(), running.running()) == (False, True)
    assert (waiting.cancel(), running.cancel()) == (True, False)
    assert (waiting.cancelled(), waiting.done(), heard) == (True, True, [waiting])
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result()
    with pytest.raises(TimeoutError):
        running.result(timeout=0.01)
    cluster.run(running.job.id)
    assert running.result() == 4
    executor.shutdown()
    no_thread_is_left()


def test_map_in_time_or_not_at_all(cluster: FakeCluster) -> None:
    cluster.runs = False
    executor = cotenant.JobExecutor()
    with pytest.raises(TimeoutError):
        list(executor.map(double, [1, 2], timeout=0.05))
    assert {view.phase for view in cluster.views.values()} == {Phase.CANCELLED}, (
        "those that wait are cancelled"
    )
    executor.shutdown()
    no_thread_is_left()


def test_an_exception_in_the_block_cancels_the_rest_on_request(cluster: FakeCluster) -> None:
    cluster.runs = False

    def breaks() -> None:
        with cotenant.JobExecutor(cancel_rest=True) as executor:
            cluster.is_now(executor.submit(double, 1).job.id, Phase.RUNNING)
            raise KeyError

    with pytest.raises(KeyError):
        breaks()
    assert cluster.views[JobId("7")].phase is Phase.CANCELLED
    with cotenant.JobExecutor() as executor:
        future = executor.submit(double, 1)
        executor.shutdown(wait=False, cancel_futures=True)
        assert future.cancelled()
    no_thread_is_left()


# --- The package -------------------------------------------------------------------------------------


def test_importing_it_imports_nothing() -> None:
    """Every training script does: `from cotenant import checkpoint`."""
    loaded = "import sys, cotenant; dir(cotenant); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    heavy = {"typing", "importlib.metadata", "msgspec", "zmq", "click", "numpy", "torch", "cloudpickle"}
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    more = set(done.stdout.split()) - set(bare.stdout.split())
    assert more & heavy == set()


def test_submitting_needs_no_heavy_library() -> None:
    script = "import sys, cotenant; cotenant.submit; cotenant.JobExecutor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & {"torch", "scipy", "pandas", "matplotlib", "cloudpickle"} == set()


def test_every_public_name_is_there() -> None:
    assert cotenant.__all__ == sorted(cotenant.__all__)
    homes = {name: getattr(cotenant, name).__module__ for name in cotenant.__all__}
    assert {home for home in homes.values() if not home.startswith("cotenant.controller.python.")} == set()
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        cotenant.sumbit  # noqa: B018  # type: ignore[attr-defined]


def test_a_job_side_folder_comes_first_and_hides_nothing(tmp_path: Path) -> None:
    """In a job: the supervisor's own `checkpoint`, and the API of what is installed."""

    folder = jobside.prepare_jobside(tmp_path / "jobside")
    script = (
        "import cotenant, cotenant.checkpoint as c; print(cotenant.__file__, c.__file__, cotenant.submit)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
    )
    face, ours, submit = done.stdout.split()[:3]
    assert (face, ours) == (f"{folder}/cotenant/__init__.py", f"{folder}/cotenant/checkpoint/__init__.py")
    assert submit == "<function"
