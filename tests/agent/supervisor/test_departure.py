"""How processes are made to go: MPS clients are taken back first, everybody else is signalled at once."""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from cotenant.agent.ipc.channel import StopNow
from cotenant.agent.ipc.records import MpsClient, WatchRule
from cotenant.agent.supervisor.core.edge import (
    ClearLeftovers,
    ClientsTerminated,
    DumpStacks,
    EndRanks,
    OverMemory,
    RankExited,
    Started,
    TellRank,
    TerminateClients,
)
from cotenant.agent.supervisor.core.rank_messages import (
    FirstStepReached,
    RankHello,
    StackReply,
    StepDone,
    look,
)
from cotenant.agent.supervisor.core.stopping import KILL_GRACE_S, TERMINATE_S, TERMINATE_SLACK_S
from cotenant.agent.supervisor.processes.termination import ClientTermination, group_by_pipe, terminate
from tests.agent.supervisor.test_supervision import Story
from tests.building.limits import within_s
from tests.building.orders import order_of

CLIENT = (MpsClient(pipe_directory="/run/c/mps/1", device_uuid="GPU-a"),)
STOP = StopNow(save=False, deadline_s=0.0, reason="cancelled by ann")


def client(ranks: int = 1, **fields: object) -> Story:
    story = Story(ranks, mps=CLIENT, **fields)
    story.happens(Started())
    return story


# --- The order ---------------------------------------------------------------------------------------


def test_a_client_is_taken_back_by_its_daemon_before_anybody_signals_it() -> None:
    story = client()
    assert story.happens(STOP) == [TerminateClients(timeout_s=TERMINATE_S)]
    new = story.happens(ClientsTerminated(outcomes={11: "done", 12: "gone"}))
    assert new[0] == EndRanks(force=False)
    story.exits(0)
    assert story.new[0] == TerminateClients(timeout_s=TERMINATE_S), "what it left behind is a client as well"
    assert story.happens(ClientsTerminated())[0] == ClearLeftovers()
    result = story.result()
    assert result.verdict.outcome == "stopped"
    assert result.status.farewell == ("terminate_client: 1 done, 1 gone", "SIGTERM")
    assert story.supervision.status.failed == () and not result.unclean


def test_each_step_has_its_own_deadline_and_an_edge_that_does_not_answer_is_not_waited_for() -> None:
    story = client()
    story.happens(STOP)
    story.until(TERMINATE_S + TERMINATE_SLACK_S - 0.1)
    assert not [each for each in story.all if isinstance(each, EndRanks)]
    story.until(TERMINATE_S + TERMINATE_SLACK_S)
    assert EndRanks(force=False) in story.all
    story.happens(ClientsTerminated(outcomes={11: "done"}))
    assert story.all.count(EndRanks(force=False)) == 1, "an answer that comes late changes nothing"
    story.until(story.now_s + 31.0)
    assert EndRanks(force=True) in story.all
    assert story.supervision.status.farewell == ("terminate_client: no answer", "SIGTERM", "SIGKILL")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ClientsTerminated(outcomes={11: "done", 12: "refused"}), "process 12: refused"),
        (ClientsTerminated(outcomes={}, problem="the MPS daemon did not answer in time"), "did not answer"),
        (ClientsTerminated(outcomes={11: "no-daemon"}), "process 11: no-daemon"),
    ],
)
def test_a_client_that_goes_without_its_daemons_help_is_a_trouble_that_shows(
    answer: ClientsTerminated, said: str
) -> None:
    story = client()
    story.happens(STOP)
    story.happens(answer)
    assert any(said in each for each in story.supervision.status.failed)
    assert EndRanks(force=False) in story.all
    story.exits(0)
    story.happens(ClientsTerminated())
    assert story.result().unclean


@pytest.mark.parametrize(
    ("codes", "is_unclean"), [((-9,), True), ((137,), True), ((-11, 0), True), ((1,), False), ((0, 0), False)]
)
def test_a_client_that_a_signal_from_elsewhere_ended_went_without_its_daemons_help(
    codes: tuple[int, ...], is_unclean: bool
) -> None:
    for story, expected in ((client(len(codes)), is_unclean), (Story(ranks=len(codes)).runs(), False)):
        story.exits(*codes)
        story.happens(ClientsTerminated())
        assert story.result().unclean == expected


def test_a_job_without_mps_is_signalled_at_once_on_every_way_out() -> None:
    story = Story().runs()
    story.happens(STOP)
    story.exits(0)
    assert not [each for each in story.all if isinstance(each, TerminateClients)]
    assert EndRanks(force=False) in story.all and ClearLeftovers() in story.all


WAYS_OUT = {
    "a stop": lambda story: story.happens(STOP),
    "the lease": lambda story: story.until(81.0),
    "too much memory": lambda story: story.happens(OverMemory(used_mib=9.0)),
    "a start that hangs": lambda story: story.until(1001.0),
    "a failed peer": lambda story: (
        story.happens(RankExited(rank=1, exit_code=1)), story.until(story.now_s + 21.0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS_OUT.values(), ids=WAYS_OUT.keys())
def test_every_way_out_asks_the_daemon_first(way: object) -> None:
    has_lease = way is WAYS_OUT["the lease"]
    story = client(2, lease_s=100.0 if has_lease else None, resume_step=5 if has_lease else 0)
    assert callable(way)
    way(story)
    asked = next(no for no, each in enumerate(story.all) if isinstance(each, TerminateClients))
    assert not [each for each in story.all[:asked] if isinstance(each, EndRanks)]
    story.happens(ClientsTerminated())
    assert any(isinstance(each, EndRanks) for each in story.all[asked:])


def test_a_short_lease_leaves_time_for_every_step_before_it_ends() -> None:
    story = client(lease_s=10.0)
    story.until(8.0)
    [asked] = [each for each in story.all if isinstance(each, TerminateClients)]
    assert asked.timeout_s == pytest.approx(0.5)
    story.happens(ClientsTerminated())
    story.until(9.5)
    assert EndRanks(force=True) in story.all


def test_a_job_that_uses_too_much_memory_is_killed_without_a_grace_once_its_daemon_has_answered() -> None:
    story = client()
    story.happens(OverMemory(used_mib=9.0))
    assert story.happens(ClientsTerminated())[:2] == [EndRanks(force=False), EndRanks(force=True)]


def test_a_cancel_in_the_middle_of_leaving_does_not_skip_the_daemon() -> None:
    story = client(start_deadline_s=10.0)
    story.until(10.0)
    story.happens(STOP)
    assert not [each for each in story.all if isinstance(each, EndRanks)]
    story.happens(ClientsTerminated())
    story.until(story.now_s + KILL_GRACE_S)
    assert EndRanks(force=True) in story.all


def test_a_normal_end_asks_about_leftovers_and_then_clears() -> None:
    story = client()
    story.exits(0)
    assert story.new[0] == TerminateClients(timeout_s=TERMINATE_S)
    story.happens(ClientsTerminated())
    assert story.result().verdict.outcome == "finished"


# --- A hang ------------------------------------------------------------------------------------------


def hung(**fields: object) -> Story:
    """Two ranks that have made some steps, and now wait for each other."""
    story = Story(2, watch=WatchRule(floor_s=60.0, multiple=20.0), **fields)
    story.happens(Started())
    for rank in (0, 1):
        hello = RankHello(v=1, rank=rank, world_size=2, resumable=True, accumulates=False, step=0, looks=True)
        story.says(hello)
        story.says(FirstStepReached(v=1, rank=rank, step=1))
    for step in range(2, 9):
        story.now_s += 0.5
        for rank in (0, 1):
            story.says(StepDone(v=1, rank=rank, step=step, count=1, elapsed_s=0.5))
    return story


def wait(story: Story, seconds: float, *, places: dict[int, int] | None = None) -> None:
    """Alarms ring, and ranks say where they are when they are asked; None: they stay where they are."""
    until_s = story.now_s + seconds
    while story.supervision.next_alarm_s <= until_s and not story.supervision.is_done:
        before = len(story.all)
        story.until(max(story.now_s, story.supervision.next_alarm_s))
        for effect in story.all[before:]:
            number = next(
                (n for n in range(200) if isinstance(effect, TellRank) and effect.data == look(n)), None
            )
            if number is not None and isinstance(effect, TellRank):
                place = 7 if places is None else places.setdefault(effect.rank, 0) + number
                story.says(StackReply(v=1, rank=effect.rank, look=number, place=place))
    story.now_s = until_s


def test_a_job_that_hangs_shows_its_stacks_is_ended_and_is_not_its_users_fault() -> None:
    story = hung()
    wait(story, 75.0)
    kinds = [each for each in story.all if isinstance(each, DumpStacks | EndRanks)]
    assert kinds[:3] == [DumpStacks(), DumpStacks(abort=True), EndRanks(force=False)]
    story.exits(-15, -15)
    result = story.result()
    assert result.verdict.outcome == "infra-failed"
    assert "no step for 6" in result.verdict.detail and "(usually 0.5 s)" in result.verdict.detail


def test_an_mps_client_that_hangs_is_aborted_only_after_its_daemon_has_taken_it_back() -> None:
    story = hung(mps=CLIENT)
    wait(story, 68.0)
    assert [each for each in story.all if isinstance(each, DumpStacks | EndRanks)] == [DumpStacks()]
    story.happens(ClientsTerminated(outcomes={1: "done"}))
    assert story.new[:2] == [DumpStacks(abort=True), EndRanks(force=False)]


def test_ranks_that_move_between_steps_are_left_alone() -> None:
    story = hung()
    wait(story, 1000.0, places={})
    assert not [each for each in story.all if isinstance(each, DumpStacks | EndRanks)]


def test_a_gang_of_which_one_rank_does_not_answer_looks_any_more_is_not_watched() -> None:
    story = hung()
    story.says(RankHello(v=1, rank=1, world_size=2, resumable=True, accumulates=False, step=8))
    wait(story, 1000.0)
    assert not [each for each in story.all if isinstance(each, DumpStacks | EndRanks)]


def test_whoever_is_asked_to_stop_is_not_said_to_hang() -> None:
    story = hung()
    story.happens(StopNow(save=True, deadline_s=1000.0, reason="preempted"))
    wait(story, 900.0)
    assert not [each for each in story.all if isinstance(each, DumpStacks)]


# --- Asking the daemons ------------------------------------------------------------------------------


def program(folder: Path, body: str) -> tuple[str, str]:
    """Stands in for `python -m cotenant.mps.terminate`."""
    path = folder / "terminate.py"
    path.write_text(f"import json, sys, time\npipe, *pids = sys.argv[1:-2]\n{body}\n")
    return (sys.executable, str(path))


def outcomes_of(round_: ClientTermination) -> dict[int, str]:
    until_s = time.monotonic() + within_s(30.0)
    while (found := round_.poll(time.monotonic())) is None:
        assert time.monotonic() < until_s
        os.sched_yield()
    return found


def test_each_daemon_is_asked_about_its_own_processes(tmp_path: Path) -> None:
    tell = program(
        tmp_path, "print(json.dumps({pid: 'done' if pipe == '/p/a' else 'refused' for pid in pids}))"
    )
    round_ = ClientTermination({"/p/a": [1, 2], "/p/b": [3], "/p/c": []}, 5.0, time.monotonic(), tell)
    assert outcomes_of(round_) == {1: "done", 2: "done", 3: "refused"}
    assert round_.problem == ""


@pytest.mark.parametrize("body", ["", "print('nonsense')", "print('[]')", "sys.exit(3)", "print('{}')"])
def test_an_answer_that_says_nothing_of_a_process_is_unclear(tmp_path: Path, body: str) -> None:
    round_ = ClientTermination({"/p": [1]}, 5.0, time.monotonic(), program(tmp_path, body))
    assert outcomes_of(round_) == {1: "unclear"}


def test_why_a_client_could_not_be_terminated_stands_in_the_supervisors_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tell = program(tmp_path, "sys.exit('MPS: the lock is held by pid 7')")
    assert outcomes_of(ClientTermination({"/p": [1]}, 5.0, time.monotonic(), tell)) == {1: "unclear"}
    assert "held by pid 7" in capfd.readouterr().err


def test_a_program_that_hangs_is_killed_at_its_deadline_and_that_is_an_answer(tmp_path: Path) -> None:
    round_ = ClientTermination({"/p": [1]}, 0.0, time.monotonic(), program(tmp_path, "time.sleep(1000)"))
    [pid] = round_.pids
    assert round_.poll(round_.deadline_s - 0.01) is None
    assert round_.poll(round_.deadline_s) == {1: "unclear"}
    assert "did not answer in time" in round_.problem
    assert not Path(f"/proc/{pid}").exists()


def test_a_program_that_is_not_there_is_a_problem_and_no_crash() -> None:
    round_ = ClientTermination({"/p": [1]}, 1.0, time.monotonic(), ("/no/such/program",))
    assert round_.poll(time.monotonic()) == {}
    assert "cannot ask the MPS daemon" in round_.problem


@pytest.mark.skipif(find_spec("cotenant.mps.terminate") is None, reason="cotenant.mps.terminate is not there")
def test_the_program_itself_keeps_the_contract(tmp_path: Path) -> None:
    assert terminate({str(tmp_path): [os.getpid()]}, 5.0) == {os.getpid(): "no-daemon"}


def test_nobody_to_ask_about_is_answered_at_once() -> None:
    assert terminate({"/p": []}, 1.0) == {}


def test_processes_are_asked_about_at_the_daemon_of_their_rank_and_strays_at_every_one() -> None:
    two = (*CLIENT, MpsClient(pipe_directory="/run/c/mps/2", device_uuid="GPU-b"))
    order = msgspec.structs.replace(order_of(2), mps=two)
    trees = {0: [10, 11], 1: [20]}
    assert group_by_pipe(order, trees, [10, 11, 20, 99]) == {
        "/run/c/mps/1": [10, 11, 99],
        "/run/c/mps/2": [20, 99],
    }
    one = msgspec.structs.replace(order, mps=CLIENT)
    assert group_by_pipe(one, trees, [99]) == {"/run/c/mps/1": [10, 11, 20, 99]}
