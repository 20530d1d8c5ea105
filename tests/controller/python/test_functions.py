"""Functions as jobs: what goes in, what comes out, and how each kind of end is told apart."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cotenant
from cotenant.controller.domain import JobId, Phase
from cotenant.controller.python import folders, inside
from cotenant.controller.python.errors import RemoteError, RemoteTraceback
from cotenant.controller.python.packing import pack_calls, place_of
from cotenant.controller.python.results import outcome

if TYPE_CHECKING:
    from tests.controller.python.conftest import FakeCluster


def add(one: int, two: int = 0) -> int:
    return one + two


def raises(text: str) -> None:
    raise ValueError(text)


def test_a_function_comes_back_with_its_result(cluster: FakeCluster) -> None:
    job = cotenant.submit(add, 1, kwargs={"two": 2}, gpus=1, time="4h", name="sum")
    assert (job.id, job.name, job.state) == ("7", "sum", "queued")
    assert job.notes == ("it is the first",)
    assert job.result() == 3
    assert (job.state, job.done(), job.exception(), job.wait()) == ("done", True, None, "done")
    (spec,) = cluster.submissions[0].specs
    assert (spec.name, spec.time_limit_s, spec.launch.argv[:3]) == (
        "sum",
        4 * 3600.0,
        (sys.executable, "-m", inside.MODULE),
    )


def test_what_it_raises_is_raised_here_with_the_remote_traceback(cluster: FakeCluster) -> None:
    job = cotenant.submit(raises, "bad luck")
    with pytest.raises(ValueError, match="bad luck") as caught:
        job.result()
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert "in raises" in cause.text
    assert inside.__file__ not in cause.text, "our frames are not shown"
    assert isinstance(job.exception(), ValueError)


def test_an_exception_that_cannot_be_brought_is_told_in_words(cluster: FakeCluster) -> None:
    class Locked(Exception):
        def __init__(self) -> None:
            super().__init__("it holds a lock")
            self.lock = threading.Lock()

    def fails() -> None:
        raise Locked

    with pytest.raises(RemoteError, match="Locked: it holds a lock"):
        cotenant.submit(fails).result()


def test_an_exception_whose_class_cannot_be_made_again_is_told_in_words(cluster: FakeCluster) -> None:
    class Picky(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(f"{one} {two}")

    def fails() -> None:
        raise Picky("a", "b")

    with pytest.raises(RemoteError, match="Picky: a b"):
        cotenant.submit(fails).result()


@pytest.mark.parametrize("function", [threading.Lock, lambda: {"lock": threading.Lock()}])
def test_a_result_that_cannot_be_pickled_fails_the_job_and_says_which(
    cluster: FakeCluster, function: Callable[[], object]
) -> None:
    kind = type(function()).__qualname__
    job = cotenant.submit(function, options={})
    with pytest.raises(cotenant.NoResult, match=rf"job 7 returned a value of type (_thread\.)?{kind}, which"):
        job.result()
    assert job.state == "failed"


def test_a_gang_gives_the_first_ranks_result_or_all(cluster: FakeCluster) -> None:
    assert cotenant.submit(add, 4, gpus=2).result() == 4
    assert list(Path(os.environ["XDG_STATE_HOME"]).rglob("result-1.pickle")) == []
    assert cotenant.submit(add, 4, gpus=2, results="all").result() == [4, 4]


def test_the_error_of_another_rank_is_found(cluster: FakeCluster) -> None:
    job = cotenant.submit(add, 1, gpus=2)
    cluster.run(job.id)
    ended = job.view()
    folder = folder_of(cluster, job.id)
    (folder / "result-0.pickle").unlink()
    inside._tell(folder, 1, {"version": 1, "attempt": 1, "rank": 1, "ranks": 2}, KeyError("rank 1"), "text")
    cluster.is_now(job.id, Phase.FAILED, "exit code 1", attempt=ended.attempt)
    with pytest.raises(KeyError, match="rank 1"):
        cotenant.job(job.id).result()


def folder_of(cluster: FakeCluster, job_id: Any) -> Path:
    place = place_of(cluster.specs[job_id].launch.argv)
    assert place is not None
    return place.folder


# --- Ends --------------------------------------------------------------------------------------------

ENDS = {
    "its own time limit": (Phase.FAILED, "time-limit", cotenant.JobTimedOut),
    "cancelled": (Phase.CANCELLED, "cancelled-by", cotenant.JobCancelled),
    "what it depends on failed": (Phase.CANCELLED, "after-failed", cotenant.JobCancelled),
    "hosts failed too often": (Phase.HELD, "held-infra", cotenant.JobLost),
    "its folder is nowhere": (Phase.HELD, "workdir-missing", cotenant.JobLost),
    "killed": (Phase.FAILED, "user-failed", cotenant.JobFailed),
    "without a result": (Phase.DONE, "finished", cotenant.NoResult),
}


@pytest.mark.parametrize(("phase", "code", "kind"), ENDS.values(), ids=ENDS.keys())
def test_each_end_has_its_class(cluster: FakeCluster, phase: Phase, code: str, kind: type[Exception]) -> None:
    cluster.log = b"one\nlast words\n"
    job = cotenant.submit(add, 1)
    cluster.is_now(job.id, phase, "because", code, exit_code=137 if phase is Phase.FAILED else None)
    with pytest.raises(cotenant.JobFailed, match=r"because|no result") as caught:
        outcome(cluster.views[job.id], job._results(), job._log_tail, arrives_within_s=0.0)  # type: ignore[index]
    assert type(caught.value) is kind
    if phase is Phase.FAILED:
        assert (caught.value.exit_code, "last words" in str(caught.value)) == (137, True)
    assert not isinstance(caught.value, TimeoutError), "that is for time that is up for who waits"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.job_id) == (kind, "7")


def test_a_wait_that_is_over_tells_preempted_from_running(cluster: FakeCluster) -> None:
    cluster.runs = False
    job = cotenant.submit(add, 1)
    cluster.is_now(job.id, Phase.RUNNING, "free devices")
    with pytest.raises(cotenant.StillRunning, match="running") as running:
        job.result(timeout=0)
    assert not isinstance(running.value, cotenant.JobPreempted)
    cluster.is_now(job.id, Phase.QUEUED, "behind job 9", preemptions=1)
    with pytest.raises(cotenant.JobPreempted, match="behind job 9") as preempted:
        job.result(timeout=0)
    assert isinstance(preempted.value, TimeoutError)
    cluster.run(job.id, attempt=2)
    assert (job.result(), job.exception()) == (1, None)


def test_an_earlier_attempts_result_or_error_does_not_count(cluster: FakeCluster) -> None:
    job = cotenant.submit(raises, "first try")
    cluster.run(job.id, attempt=1)
    cluster.is_now(job.id, Phase.FAILED, "killed by signal 9", "user-failed", attempt=2)
    with pytest.raises(cotenant.JobFailed, match="signal 9"):
        job.result()
    done = cotenant.submit(add, 1)
    cluster.run(done.id, attempt=1)
    cluster.is_now(done.id, Phase.DONE, "finished", attempt=2)
    with pytest.raises(cotenant.NoResult, match="of attempt 1, and attempt 2 ended"):
        outcome(cluster.views[done.id], done._results(), str, arrives_within_s=0.0)  # type: ignore[index]


def test_leaving_the_process_leaves_it(cluster: FakeCluster) -> None:
    """As a Session does that has to make room: nothing is taken for a result."""

    def leaves() -> None:
        raise SystemExit(0)

    job = cotenant.submit(leaves)
    with pytest.raises(SystemExit):
        inside.main(cluster.specs[job.id].launch.argv[3:], {"RANK": "0"})  # type: ignore[index]
    assert not folder_of(cluster, job.id).exists()


# --- What submitit is asked for ---------------------------------------------------------------------


def test_results_after_the_shell_is_gone(cluster: FakeCluster) -> None:
    kept = cotenant.submit(add, 20, 3, gpus=2, results="all").id
    cluster.run(kept)
    assert cotenant.job(kept).result() == [23, 23]
    assert cotenant.job(int(kept)).name == "add"
    handed_on = pickle.loads(pickle.dumps(cotenant.job(kept)))
    assert (handed_on.id, handed_on.result()) == (kept, [23, 23])


def test_an_array_past_a_limit_is_several_requests(cluster: FakeCluster) -> None:
    cluster.runs = False
    jobs = cotenant.map(add, range(4_000), env={"PADDING": "x" * 1_000})
    assert len({job.id for job in jobs}) == 4_000
    assert len(cluster.submissions) > 1
    assert all(each.array_indices == tuple(range(len(each.specs))) for each in cluster.submissions)
    last = jobs[-1]
    cluster.run(last.id)
    assert last.result() == 3_999, "each task has its own arguments"


def test_a_key_suppresses_duplicates(cluster: FakeCluster) -> None:
    first = cotenant.submit(add, 1, key="once")
    second = cotenant.submit(add, 1, key="once")
    assert (first.id, second.id) == ("7", "7")
    assert second.result() == 1, "it is the first one's"
    calls = Path(os.environ["XDG_STATE_HOME"]) / "cotenant" / "functions"
    assert len(list(calls.iterdir())) == 1, "what was packed for nothing is gone"
    with pytest.raises(cotenant.RequestRefused, match="used for 1 jobs, not 2"):
        cotenant.map(add, [1, 2], key="once")


OTHERS: dict[str, Callable[[], object]] = {
    "an argument": lambda: cotenant.submit(add, 99, key="k"),
    "a keyword": lambda: cotenant.submit(add, 1, two=3, key="k"),
    "a function": lambda: cotenant.submit(raises, 1, key="k"),
    "a body": lambda: cotenant.submit(written("return one * 2"), 1, key="k"),
    "a command": lambda: cotenant.submit(command=["true"], key="k"),
    "all ranks": lambda: cotenant.submit(add, 1, results="all", key="k"),
}


@pytest.mark.parametrize("again", OTHERS.values(), ids=OTHERS.keys())
def test_a_key_with_another_payload_is_refused(cluster: FakeCluster, again: Callable[[], object]) -> None:
    cotenant.submit(add, 1, key="k")
    says = "used for job 7 .add.: another function, command or arguments; use another key"
    with pytest.raises(cotenant.RequestRefused, match=says) as no:
        again()
    assert (no.value.code, len(cluster.specs)) == ("usage", 1)


def test_a_command_with_a_key_is_the_same_job_only_as_the_same_command(cluster: FakeCluster) -> None:
    first, again = (cotenant.submit(command=["echo", "1"], key="k") for _ in range(2))
    assert (first.id, again.id, again.result()) == ("7", "7", 0)
    with pytest.raises(cotenant.RequestRefused, match="another function, command"):
        cotenant.submit(command=["echo", "2"], key="k")


def test_each_call_of_a_map_and_each_job_of_a_batch_counts_for_its_key(cluster: FakeCluster) -> None:
    def both(last: int) -> None:
        with cotenant.batch(key="b"):
            cotenant.submit(command=["true"])
            cotenant.map(add, [1, last])

    cotenant.map(add, [1, 2, 3], key="m")
    cotenant.map(add, [1, 2, 3], key="m")
    both(2)
    both(2)
    assert len(cluster.specs) == 6
    with pytest.raises(cotenant.RequestRefused, match=r"job 7_0 .*command or arguments"):
        cotenant.map(add, [1, 2, 4], key="m")
    with pytest.raises(cotenant.RequestRefused, match="command or arguments"):
        both(3)


def written(body: str, above: str = "", file: str = "<somewhere>") -> Any:
    """A function as if it stood in a file of its own, below `above`."""
    lines = (
        "class Box:",
        "    size = 1",
        "def add(one, two=0):",
        "    Box, one in {'a', 'b'}",
        f"    {body}",
    )
    text = "\n".join((above, *lines))
    module: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), module)
    return module["add"]


def test_a_function_is_the_same_wherever_it_stands_in_its_file(cluster: FakeCluster) -> None:
    """Somebody writes a line above it, or the notebook is another one: what it does is the same."""
    cotenant.submit(written("return one"), 1, key="k")
    moved = written("return one", above="# One line\n# more.", file="<elsewhere>")
    assert cotenant.submit(moved, 1, key="k").id == "7"


def test_arguments_are_compared_as_values(cluster: FakeCluster) -> None:
    """An array has no single truth, nan is not nan, and names of arguments have no order."""
    numpy = pytest.importorskip("numpy")
    for key, value in {"array": numpy.arange(3.0), "nan": float("nan")}.items():
        cotenant.submit(returns, a=value, b=1, options={}, key=key)
        cotenant.submit(returns, b=1, a=copy.deepcopy(value), options={}, key=key)
    assert len(cluster.specs) == 2


SEEN: set[Any] = set()


class Registered:
    def others(self) -> set[Any]:
        return SEEN - {self}


def test_what_refers_to_itself_by_way_of_a_set_is_sent_as_well(cluster: FakeCluster) -> None:
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        SEEN.add(Registered())
        assert cotenant.submit(lambda: len(SEEN), key="k").result() == 1
    finally:
        SEEN.clear()
        cloudpickle.unregister_pickle_by_value(module)


SWEEP = """
import dataclasses, enum, functools, sys
from cotenant.controller.python.packing import fingerprint

@dataclasses.dataclass
class Settings:
    rate: float

class Mode(enum.Enum):
    FAST = 1

TABLE = {"a": Settings(1.0), "b": Mode.FAST}

def known(word):
    return word in {"aa", "bb", "cc", "dd"}

def train(settings, words):
    return known("aa"), TABLE, [each for each in words], train, lambda rate: rate + settings.rate

words = {f"w{number}" for number in range(50)}
print(fingerprint((functools.partial(train, Settings(0.5)), words, [words, {"deep": (frozenset(words),)}])))
"""


def test_a_fingerprint_is_the_same_in_each_process() -> None:
    """Another process orders sets otherwise, and cloudpickle marks classes otherwise."""
    found = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", SWEEP]
        done = subprocess.run(
            command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        found.append(done.stdout)
    assert found[0] == found[1] != b""


# --- Keywords ---------------------------------------------------------------------------------------


def returns(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def trains(rate: float, batch_size: int = 32, *, name: str = "") -> tuple[float, int, str]:
    return rate, batch_size, name


def test_keywords_that_are_no_options_are_the_functions(cluster: FakeCluster) -> None:
    assert cotenant.submit(add, 1, two=5).result() == 6
    assert cotenant.submit(returns, 1, gpus=2, b=5, kwargs={"c": 6}).result() == ((1,), {"b": 5, "c": 6})
    assert [job.result() for job in cotenant.map(add, [1, 2], two=5, gpus=1)] == [6, 7]
    assert [spec.gpus for spec in cluster.specs.values()] == [1, 2, 1, 1]


def test_with_options_every_keyword_is_the_functions(cluster: FakeCluster) -> None:
    job = cotenant.submit(trains, 0.1, batch_size=64, name="mine", options={"gpus": 2, "name": "theirs"})
    assert (job.result(), job.name) == ((0.1, 64, "mine"), "theirs")
    assert cluster.submissions[0].specs[0].gpus == 2
    with cotenant.JobExecutor(gpus=1) as executor:
        assert executor.submit(trains, 0.1, batch_size=8, name="x").result() == (0.1, 8, "x")
    assert cotenant.submit(command=["true"], options={"name": "c"}).name == "c"


def test_a_name_that_could_be_both_is_asked_about(cluster: FakeCluster) -> None:
    says = r"batch_size= is an option of submit.. and a parameter of trains.*kwargs="
    with pytest.raises(cotenant.BadCall, match=says):
        cotenant.submit(trains, 0.1, batch_size=64)
    assert cotenant.submit(trains, 0.1, 64, batch_size=128).result()[1] == 64, "its place is taken"
    assert cotenant.submit(trains, 0.1, kwargs={"name": "f"}, name="j").result()[2] == "f"
    assert [spec.batch_size for spec in cluster.specs.values()] == [128, None]
    assert cluster.specs[JobId("8")].name == "j"


NOBODYS: dict[str, tuple[Callable[[], object], str]] = {
    "a slip": (lambda: cotenant.submit(add, 1, tow=2), "no option 'tow', and add.. no such.*mean two"),
    "all in options": (
        lambda: cotenant.submit(add, 1, gpus=2, options={}),
        "no parameter 'gpus'; options= has all",
    ),
    "twice": (lambda: cotenant.submit(add, 1, two=2, kwargs={"two": 3}), "two= is given twice"),
    "its place": (lambda: cotenant.submit(add, 1, one=2), "no option 'one'"),
    "map": (lambda: cotenant.map(add, [1], tow=2), "did you mean two"),
}


@pytest.mark.parametrize(("call", "says"), NOBODYS.values(), ids=NOBODYS.keys())
def test_a_keyword_that_is_nobodys_is_refused(
    cluster: FakeCluster, call: Callable[[], object], says: str
) -> None:
    with pytest.raises(cotenant.BadCall, match=says):
        call()
    assert cluster.submissions == []


# --- Jobs as arguments ------------------------------------------------------------------------------


def waits_of(cluster: FakeCluster, job: cotenant.JobHandle[Any]) -> list[str]:
    return [each.job_id for each in cluster.specs[JobId(job.id)].after]


def test_a_job_among_the_arguments_becomes_its_result_and_is_waited_for(cluster: FakeCluster) -> None:
    first, second = cotenant.submit(add, 1), cotenant.submit(add, 10)
    command = cotenant.submit(command=["true"])
    nested = {"deep": [second, {"er": (command,)}], "again": first}
    job = cotenant.submit(returns, first, 5, named=nested, after=command)
    assert set(waits_of(cluster, job)) == {"7", "8", "9"}
    for each in (first, second, command):
        cluster.run(each.id)
    assert job.result() == ((1, 5), {"named": {"deep": [10, {"er": (0,)}], "again": 1}})


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda each: st.lists(each) | st.dictionaries(st.text(), each) | st.tuples(each, each)
    )


@settings(max_examples=20)
@given(st.lists(nested(st.sampled_from("0123") | st.integers()), min_size=1))
def test_wherever_a_job_stands_its_result_does(calls: list[Any]) -> None:
    """Digits are jobs here, and the result of each is its number."""
    with tempfile.TemporaryDirectory() as base:
        made = pack_calls(returns, [((each,), {}) for each in calls], Path(base) / "calls", job_of_a_digit)
        for at, given_by in enumerate(calls):
            task = made.folder / str(at)
            args, _ = inside.arguments_of(task, lambda reference: int(reference[0].removeprefix("job ")))
            assert args == (with_results(given_by),)


def job_of_a_digit(at: int, value: Any) -> folders.ResultReference | None:
    return (f"job {value}", None) if isinstance(value, str) and value in DIGITS else None


def with_results(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(with_results(each) for each in value)
    if isinstance(value, dict):
        return {with_results(key): with_results(each) for key, each in value.items()}
    return int(value) if value in DIGITS else value


DIGITS = ("0", "1", "2", "3")


def test_each_call_of_a_map_waits_for_its_own(cluster: FakeCluster) -> None:
    first, second = cotenant.map(add, [1, 2])
    jobs = cotenant.map(add, [first, second], two=cotenant.job(first.id))
    assert [waits_of(cluster, each) for each in jobs] == [["7_0"], ["7_1", "7_0"]]
    assert cotenant.gather([first, second, *jobs]) == [1, 2, 2, 3]


def test_jobs_of_a_batch_may_be_arguments_of_each_other(cluster: FakeCluster) -> None:
    with cotenant.batch():
        first = cotenant.submit(add, 1)
        command = cotenant.submit(command=["true"])
        last = cotenant.submit(add, first, command)
    (request,) = cluster.submissions
    assert [each.job_id for each in request.specs[2].after] == ["new-0", "new-1"]
    assert cotenant.gather([first, command, last]) == [1, 0, 1]


def test_the_results_of_all_ranks_are_a_list_there_too(cluster: FakeCluster) -> None:
    first = cotenant.submit(add, 4, gpus=2, results="all")
    job = cotenant.submit(returns, first)
    cluster.run(first.id)
    assert job.result() == (([4, 4],), {})


def test_a_batch_with_a_key_may_have_jobs_among_arguments(cluster: FakeCluster) -> None:
    """Sent again, the first job's folder is another one, and what is in it the same."""

    def pipeline(start: int) -> list[str]:
        with cotenant.batch(key="b") as jobs:
            first = cotenant.submit(add, start)
            cotenant.submit(add, 5, first)
        return [job.id for job in jobs]

    assert pipeline(1) == pipeline(1) == ["7", "8"]
    with pytest.raises(cotenant.RequestRefused, match="command or arguments"):
        pipeline(2)


def test_one_that_has_finished_is_not_waited_for_again(cluster: FakeCluster) -> None:
    """The controller may have forgotten it; its result is there."""
    first = cotenant.submit(add, 1)
    first.wait()
    job = cotenant.submit(add, first)
    assert (waits_of(cluster, job), job.result()) == ([], 1)


def test_a_job_without_a_result_fails_those_that_need_it_by_name(cluster: FakeCluster) -> None:
    first = cotenant.submit(add, 1)
    job = cotenant.submit(add, first)
    cluster.run(first.id)
    (folder_of(cluster, first.id) / "result-0.pickle").write_text("damaged\n")
    cluster.run(job.id)
    with pytest.raises(cotenant.NoResult, match="job 7 finished, but the file of its result is damaged"):
        job.result()


def test_what_an_earlier_attempt_left_does_not_pass_for_a_result(cluster: FakeCluster) -> None:
    """The last attempt may end the process without one: nobody must be given the other's."""
    first = cotenant.submit(raises, "attempt 2")
    folder = folder_of(cluster, first.id)
    folder.mkdir(mode=0o700)
    (folder / "result-0.pickle").write_text("of attempt 1")
    cluster.run(first.id, attempt=2)
    assert not (folder / "result-0.pickle").exists()


def test_another_controllers_job_is_no_argument(cluster: FakeCluster) -> None:
    with pytest.raises(cotenant.BadCall, match="is of another controller; pass its result"):
        cotenant.submit(add, cotenant.JobHandle[int]("7", endpoint="ipc:///nowhere/c.sock"))
    assert cluster.submissions == []


def test_commands_queue_again_at_their_time_limit(cluster: FakeCluster) -> None:
    cotenant.submit(command=["sleep", "9"], time="1h", requeue_at_limit=3)
    (spec,) = cluster.submissions[0].specs
    assert (spec.time_limit_s, spec.requeues) == (3600.0, 3)
    with pytest.raises(cotenant.BadCall, match="needs one"):
        cotenant.submit(command=["sleep", "9"], requeue_at_limit=3)


def test_a_job_is_asked_to_queue_again(cluster: FakeCluster) -> None:
    cotenant.submit(command=["sleep", "9"]).requeue()
    (change,) = cluster.controller.asked[-1:]
    assert change.verb == "requeue"


# --- What goes along --------------------------------------------------------------------------------


def test_a_module_of_the_users_goes_by_value(tmp_path: Path) -> None:
    """It could not be imported in the job: only this process has it."""
    module = ModuleType("mine_alone")
    module.__file__ = str(tmp_path / "mine_alone.py")
    exec("FACTOR = 3\n\ndef times(x):\n    return x * FACTOR\n", module.__dict__)
    sys.modules["mine_alone"] = module
    try:
        calls = pack_calls(functools.partial(module.times, 5), [((), {})], tmp_path / "calls")
    finally:
        del sys.modules["mine_alone"]
    assert calls.name == "times"
    assert inside.main(calls.argv(0, False)[3:], {}) == 0
    with (
        folders.task_folder(calls.folder / "0") as folder,
        folders.reading(folder, "result-0.pickle", 1000) as file,
    ):
        file.readline()
        assert pickle.load(file) == 15


def test_the_function_makes_a_kind_and_its_arguments_do_not(cluster: FakeCluster) -> None:
    for value in (1, 2):
        cotenant.submit(add, value)
    cotenant.submit(raises, "x")
    one, two, other = (request.specs[0].code_sha256 for request in cluster.submissions)
    assert one == two != other


LARGE = b"x" * 500_000


def test_what_is_too_large_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(cotenant.BadCall, match="arguments takes more than 400000 bytes"):
        pack_calls(add, [((LARGE,), {})], tmp_path / "calls", bytes_max=400_000)
    assert list((tmp_path / "calls").iterdir()) == []


def test_what_cannot_be_pickled_is_refused_before_anything_is_sent(cluster: FakeCluster) -> None:
    with pytest.raises(cotenant.BadCall, match="arguments cannot be pickled"):
        cotenant.submit(add, threading.Lock())
    assert cluster.submissions == []


def test_without_cloudpickle_it_says_what_to_install(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(cotenant.BadCall, match=r"pip install '\.\[api\]'"):
        cotenant.submit(add, 1)
    assert cotenant.submit(command=["true"]).result() == 0, "commands need none"


# --- Whom to believe ---------------------------------------------------------------------------------


def test_only_private_files_in_private_folders_are_loaded(cluster: FakeCluster) -> None:
    job = cotenant.submit(add, 1)
    cluster.run(job.id)
    folder = folder_of(cluster, job.id)
    modes = [
        (each, each.stat().st_mode & 0o777) for each in (folder / "result-0.pickle", folder, folder.parent)
    ]
    assert [mode for _, mode in modes] == [0o600, 0o700, 0o700]
    for path, mode in modes:
        path.chmod(mode | 0o020)
        with pytest.raises(cotenant.NoResult, match="can be written by others"):
            cotenant.job(job.id).result()
        path.chmod(mode)
    assert cotenant.job(job.id).result() == 1
    (folder / "result-0.pickle").rename(folder / "elsewhere")
    (folder / "result-0.pickle").symlink_to("elsewhere")
    with pytest.raises(cotenant.NoResult, match="symbolic links"):
        cotenant.job(job.id).result()


def test_files_of_another_user_are_not_loaded(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, to make a file another's")
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 1001, 1001)
    with (
        pytest.raises(folders.NotPrivate, match="belongs to uid 1001"),
        folders.open_folder(tmp_path / "theirs"),
    ):
        pass


def test_another_users_job_is_not_loaded(cluster: FakeCluster) -> None:
    import msgspec

    job = cotenant.submit(add, 1)
    cluster.run(job.id)
    spec = cluster.specs[job.id]  # type: ignore[index]
    theirs = msgspec.structs.replace(spec.launch, uid=os.getuid() + 1)
    cluster.specs[job.id] = msgspec.structs.replace(spec, launch=theirs)  # type: ignore[index]
    with pytest.raises(cotenant.RequestRefused, match="its result is not loaded"):
        cotenant.job(job.id).result()


def test_old_calls_go_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    old, fresh = folders.make(tmp_path), folders.make(tmp_path)
    (tmp_path / "mine").mkdir()
    for each in (old, fresh):
        (each / "0").mkdir()
        (each / "0" / "result-0.pickle").write_bytes(b"")
    began_s = fresh.stat().st_mtime
    for each in (old, old / "0" / "result-0.pickle"):
        os.utime(each, (0, began_s - folders.KEPT_S - 1))
    folders.remove_old(tmp_path, began_s + 1)
    assert {each.name for each in tmp_path.iterdir()} == {fresh.name, "mine"}
    folders.remove_old(tmp_path, began_s + folders.KEPT_S + 10)
    assert {each.name for each in tmp_path.iterdir()} == {"mine"}
