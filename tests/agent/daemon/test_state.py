"""What the agent does about single events, told as a specification. Histories are in test_histories.py."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, TypeVar

import msgspec
import pytest

from cotenant.agent.daemon.core.edge import (
    Adopt,
    AgentConfig,
    AgentTicked,
    AnyAgentEffect,
    AnyAgentEvent,
    Booted,
    Connected,
    ControllerMessageCame,
    DevicesChanged,
    Disconnected,
    EndCame,
    EndLeftovers,
    FoundAttempt,
    GangMessageCame,
    Halt,
    IndicatorsRead,
    Keep,
    Reconnect,
    RemoveAttempt,
    RemoveCheckpoints,
    Send,
    StartFailed,
    StartSupervisor,
    StatusCame,
    SupervisorGone,
    Tell,
)
from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.ipc.channel import CoTenantsChanged, GangIn, LeaseNow, LimitNow, SaveNow, StopNow
from cotenant.agent.ipc.records import Durable, Order, Status
from cotenant.controller.domain import (
    AttemptNo,
    Capabilities,
    CommandId,
    Device,
    DeviceId,
    DeviceReading,
    ForgetJob,
    HostId,
    JobId,
    Launch,
    LimitAttempt,
    SaveAttempt,
    StartAttempt,
    StopAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.performance import Profile
from cotenant.controller.wire import (
    CommandAck,
    CommandDelivery,
    GangRelay,
    Heartbeat,
    Hello,
    HostRefused,
    Renew,
    Report,
    ReportAck,
    Welcome,
)
from tests.building import orders
from tests.building.hosts import agent_config, cpu, host
from tests.building.orders import gang
from tests.building.results import result

T = TypeVar("T")
HOST = HostId("h1")
DAY_S = 86_400.0


def device(slot: int, **other: Any) -> Device:
    return cpu(f"h1/cpu{slot}", cores=(2 * slot, 2 * slot + 1), **other)


def config(**changes: Any) -> AgentConfig:
    return agent_config(**{"report": host(HOST, device(0), device(1), cpus=4), "session": "s1", **changes})


def start(job: str = "7", attempt: int = 1, command: int = 1, **changes: Any) -> StartAttempt:
    launch = Launch(argv=("python", "train.py"), workdir="/w", uid=1000, gid=1000)
    plain = {"launch": launch, "gang": gang(("h1/cpu0",)), "checkpoint_every_s": 600.0}
    return orders.start(job, attempt, command, host=HOST, **{**plain, **changes})


def stop(job: str = "7", attempt: int = 1, command: int = 2, **more: Any) -> StopAttempt:
    return orders.stop(job, attempt, command, host=HOST, **more)


def status(job: str = "7", attempt: int = 1, **known: Any) -> Status:
    return Status(job_id=JobId(job), attempt=AttemptNo(attempt), **known)


KEY: dict[str, Any] = {"job_id": JobId("7"), "attempt": AttemptNo(1)}


class Agent:
    """A state machine with a clock of its own and a disk that holds what was kept."""

    def __init__(self, *, disk: list[Any] | None = None, **changes: Any) -> None:
        self.disk = disk if disk is not None else []
        self.now_s = 100.0
        self.state = AgentState(config(**changes), AgentMemory(self.disk))

    def say(self, *events: AnyAgentEvent) -> list[AnyAgentEffect]:
        effects = [effect for event in events for effect in self.state.handle(event, self.now_s)]
        self.disk += [effect.note for effect in effects if isinstance(effect, Keep)]
        return effects

    def hear(self, *messages: Any) -> list[AnyAgentEffect]:
        return self.say(*(ControllerMessageCame(message=message) for message in messages))

    def obey(self, *commands: Any) -> list[AnyAgentEffect]:
        return self.hear(*(CommandDelivery(command=command) for command in commands))

    def wait(self, seconds: float, *, answered: bool = False) -> list[AnyAgentEffect]:
        """Let time pass from alarm to alarm, as a runtime does; `answered`: heartbeats are renewed."""
        effects: list[AnyAgentEffect] = []
        until_s = self.now_s + seconds
        while self.state.next_alarm_s <= until_s:
            self.now_s = max(self.now_s, self.state.next_alarm_s)
            fresh = self.say(AgentTicked())
            if answered:
                fresh += self.hear(*(Renew(beat=beat.beat) for beat in sent(Heartbeat, fresh)))
            effects += fresh
        self.now_s = until_s
        return effects

    def restarted(self, *found: FoundAttempt, **changes: Any) -> tuple[Agent, list[AnyAgentEffect]]:
        """A new start of the agent on the same disk."""
        again = Agent(disk=self.disk, session="s2", **changes)
        again.now_s = self.now_s
        return again, again.say(Booted(found=found))


def welcomed(lease_s: float | None = None, **changes: Any) -> Agent:
    agent = Agent(**changes)
    agent.say(Booted())
    agent.hear(Welcome(session="s1", lease_s=lease_s, reports_seen=0, journal="j"), Renew(beat=1))
    return agent


def running(**changes: Any) -> Agent:
    agent = welcomed(**changes)
    agent.obey(start())
    agent.say(Connected(**KEY), StatusCame(status=status(started=True)))
    return agent


def only(kind: type[T], effects: Sequence[Any]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(kind: type[T], effects: Sequence[Any]) -> list[T]:
    return [effect.message for effect in only(Send, effects) if isinstance(effect.message, kind)]


def told(kind: type[T], effects: Sequence[Any]) -> list[T]:
    return [effect.message for effect in only(Tell, effects) if isinstance(effect.message, kind)]


def reported(effects: Sequence[Any]) -> list[Any]:
    return [report.event for report in sent(Report, effects)]


def seen(effects: Sequence[Any]) -> list[int]:
    return [message.command_id for message in sent(CommandAck, effects)]


# --- Starting --------------------------------------------------------------------------------------


def test_a_start_is_on_disk_before_the_supervisor_runs_and_confirmed_after() -> None:
    effects = welcomed().obey(start())
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Keep) < kinds.index(StartSupervisor) < kinds.index(Send)
    assert seen(effects) == [1]


def test_the_order_holds_all_that_a_supervisor_needs() -> None:
    both = gang(("h0/cpu0",), ("h1/cpu1", "h1/cpu0"))
    agent = welcomed(cgroup_root="/cg")
    agent.hear(CommandDelivery(command=start(gang=both, name="n"), secrets={"A_TOKEN": "x"}))
    [kept] = agent.state.running
    assert kept.devices == ("h1/cpu1", "h1/cpu0")

    agent = welcomed(cgroup_root="/cg")
    [effect] = only(
        StartSupervisor, agent.hear(CommandDelivery(command=start(gang=both), secrets={"A_TOKEN": "x"}))
    )
    order: Order = effect.order
    assert order.world_size == 3
    assert [(r.rank, r.local_rank, r.cores) for r in order.ranks] == [(1, 0, (2, 3)), (2, 1, (0, 1))]
    assert order.secrets == {"A_TOKEN": "x"}
    assert order.checkpoint_root == "/ckpt/j/7"
    assert order.cgroup == "/cg/7-a1"
    assert not order.is_first_host


def test_a_launcher_is_one_process_on_all_cores() -> None:
    launch = Launch(argv=("torchrun",), mode="host", uid=1000)
    [effect] = only(StartSupervisor, welcomed().obey(start(gang=gang(("h1/cpu0", "h1/cpu1")), launch=launch)))
    assert [(r.rank, r.cores) for r in effect.order.ranks] == [(0, (0, 1, 2, 3))]
    assert effect.order.world_size == 2


def test_a_repeated_start_is_confirmed_and_changes_nothing() -> None:
    agent = welcomed()
    agent.obey(start())
    again = agent.obey(start(), start(command=9))
    assert only(StartSupervisor, again) == []
    assert seen(again) == [1, 9]


OF_BOB = Launch(argv=("x",), uid=1001)
REFUSED = {
    "a device that is not here": (start(gang=gang(("h1/gpu",))), "no device h1/gpu"),
    "an order for another host": (start(host_id=HostId("h2")), "names no devices of h1"),
    "a gang without us": (start(gang=gang(("h2/cpu0",))), "names no devices of h1"),
    "a job of another user": (start(launch=OF_BOB), "uid 1000 and cannot run a job of uid 1001"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_here_is_refused_with_a_reason(case: str) -> None:
    command, why = REFUSED[case]
    agent = welcomed()
    effects = agent.obey(command)
    assert only(StartSupervisor, effects) == []
    [ended] = reported(effects)
    assert ended.verdict.outcome == "infra-failed"
    assert why in ended.verdict.detail
    assert seen(effects) == [1]
    assert agent.state.running == ()


def test_a_device_has_no_more_tenants_than_it_allows() -> None:
    agent = welcomed()
    effects = agent.obey(start("7"), start("8", command=2), start("9", command=3))
    assert [effect.order.job_id for effect in only(StartSupervisor, effects)] == ["7", "8"]
    [ended] = reported(effects)
    assert ended.job_id == "9"
    assert "already has 2 tenants (jobs 7, 8)" in ended.verdict.detail


def test_a_device_that_another_agent_holds_is_refused() -> None:
    agent = welcomed()
    agent.say(DevicesChanged(devices=(device(0, healthy=False, note="taken: by bob"), device(1))))
    agent.hear(Welcome(session="s1", lease_s=None, reports_seen=0, journal="j"))
    [ended] = reported(agent.obey(start()))
    assert "taken: by bob" in ended.verdict.detail


def test_a_root_agent_and_a_shared_account_run_jobs_of_others() -> None:
    of_bob = start(launch=OF_BOB)
    assert only(StartSupervisor, welcomed(uid=0).obey(of_bob))
    assert only(StartSupervisor, welcomed(shared_account=True).obey(of_bob))


def test_a_newer_attempt_is_refused_while_an_older_one_runs() -> None:
    agent = running()
    effects = agent.obey(start(attempt=2, command=5))
    assert only(StartSupervisor, effects) == []
    [ended] = reported(effects)
    assert (ended.attempt, ended.verdict.outcome) == (2, "infra-failed")
    assert "attempt 1 of job 7 still runs" in ended.verdict.detail


def test_an_older_attempt_never_starts_after_a_newer_one() -> None:
    agent = running()
    agent.say(EndCame(result=result()))
    agent.obey(start(attempt=3, command=5))
    agent.say(EndCame(result=result(attempt=3)))
    late = agent.obey(start(attempt=2, command=4))
    assert only(StartSupervisor, late) == []
    assert seen(late) == [4]


def test_a_start_that_is_impossible_ends_the_attempt() -> None:
    agent = welcomed()
    agent.obey(start())
    effects = agent.say(StartFailed(**KEY, why="no /w on h1", workdir_missing=True))
    [ended] = reported(effects)
    assert ended.verdict.workdir_missing
    assert ended.verdict.detail == "no /w on h1"
    assert agent.state.running == ()


# --- Stopping --------------------------------------------------------------------------------------


def test_a_stop_for_an_unknown_attempt_is_a_fence() -> None:
    agent = welcomed()
    effects = agent.obey(stop())
    [ended] = reported(effects)
    assert ended.verdict.outcome == "never-started"
    late = agent.obey(start())
    assert only(StartSupervisor, late) == []
    assert seen(late) == [1]
    again, _ = agent.restarted()
    again.hear(Welcome(session="s2", lease_s=None, reports_seen=0, journal="j"))
    assert only(StartSupervisor, again.obey(start(command=8))) == []


def test_a_stop_reaches_the_supervisor_once() -> None:
    agent = running()
    effects = agent.obey(stop())
    [message] = told(StopNow, effects)
    assert message == StopNow(save=True, deadline_s=60.0, reason="cancelled by ann")
    assert told(StopNow, agent.obey(stop(), stop(command=3))) == []


def test_a_stop_without_save_overrides_one_with() -> None:
    agent = running()
    agent.obey(stop())
    [message] = told(StopNow, agent.obey(stop(command=3, save=False)))
    assert not message.save
    assert told(StopNow, agent.obey(stop(command=4, save=True))) == []


def test_a_stop_after_sigint_overrides_one_with_a_save_and_is_overridden_by_one_at_once() -> None:
    agent = running()
    agent.obey(stop())
    gentle: dict[str, Any] = {"save": False, "interrupt": True, "deadline_s": 30.0}
    [message] = told(StopNow, agent.obey(stop(command=3, **gentle)))
    assert (message.save, message.interrupt, message.deadline_s) == (False, True, 30.0)
    assert told(StopNow, agent.obey(stop(command=4, **gentle), stop(command=5))) == []
    [message] = told(StopNow, agent.obey(stop(command=6, save=False, deadline_s=0.0)))
    assert (message.interrupt, message.deadline_s) == (False, 0.0)
    assert told(StopNow, agent.obey(stop(command=7, **gentle))) == []


def test_a_stop_survives_a_restart_of_the_agent() -> None:
    agent = running()
    agent.say(Disconnected(**KEY))
    assert told(StopNow, agent.obey(stop())) == []
    again, effects = agent.restarted(FoundAttempt(**KEY, alive=True))
    assert only(Adopt, effects) == [Adopt(**KEY)]
    [message] = told(StopNow, again.say(Connected(**KEY)))
    assert (message.save, message.deadline_s) == (True, 60.0)


def test_a_reconnected_supervisor_hears_the_stop_with_the_time_that_is_left() -> None:
    agent = running()
    agent.obey(stop())
    agent.wait(20.0)
    [message] = told(StopNow, agent.say(Disconnected(**KEY), Connected(**KEY)))
    assert message.deadline_s == pytest.approx(40.0)


def test_a_supervisor_that_does_not_obey_is_ended() -> None:
    agent = running()
    agent.obey(stop())
    assert only(EndLeftovers, agent.wait(119.0)) == []
    [effect] = only(EndLeftovers, agent.wait(2.0))
    assert effect.result.verdict.outcome == "infra-failed"
    assert agent.state.running != (), "its devices are held until its processes are gone"


def test_a_stop_for_an_attempt_whose_end_was_confirmed_repeats_the_end() -> None:
    agent = running()
    agent.say(EndCame(result=result()))
    agent.hear(ReportAck(sequence=agent.state.memory.sequence))
    [ended] = reported(agent.obey(stop()))
    assert ended.verdict.outcome == "finished"
    assert reported(agent.obey(stop())) == [], "the same command again says nothing new"


def test_a_save_is_passed_on_now_or_when_the_supervisor_is_back() -> None:
    agent = running()
    save = SaveAttempt(command_id=CommandId(4), host_id=HOST, **KEY)
    assert told(SaveNow, agent.obey(save)) == [SaveNow()]
    agent.say(Disconnected(**KEY))
    assert told(SaveNow, agent.obey(msgspec.structs.replace(save, command_id=CommandId(5)))) == []
    again, _ = agent.restarted(FoundAttempt(**KEY, alive=True))
    assert told(SaveNow, again.say(Connected(**KEY))) == [SaveNow()]
    assert told(SaveNow, again.say(Disconnected(**KEY), Connected(**KEY))) == []


def test_another_time_limit_is_passed_on_and_said_again_to_every_new_connection() -> None:
    agent = running()
    limit = LimitAttempt(command_id=CommandId(4), host_id=HOST, allowed_s=300.0, **KEY)
    assert told(LimitNow, agent.obey(limit)) == [LimitNow(allowed_s=300.0)]
    agent.say(Disconnected(**KEY))
    later = msgspec.structs.replace(limit, command_id=CommandId(5), allowed_s=inf)
    assert told(LimitNow, agent.obey(later)) == []
    again, _ = agent.restarted(FoundAttempt(**KEY, alive=True))
    for _ in range(2):
        assert told(LimitNow, again.say(Disconnected(**KEY), Connected(**KEY))) == [LimitNow(allowed_s=inf)]


def test_a_time_limit_of_an_attempt_that_is_not_here_is_nobodys() -> None:
    agent = welcomed()
    limit = LimitAttempt(command_id=CommandId(4), host_id=HOST, allowed_s=300.0, **KEY)
    assert told(LimitNow, agent.obey(limit)) == []
    assert agent.state.memory.attempts == {}


# --- Reports ---------------------------------------------------------------------------------------


def test_only_the_difference_to_what_was_said_is_reported() -> None:
    agent = welcomed()
    agent.obey(start())
    effects = agent.say(
        StatusCame(status=status(started=True)),
        StatusCame(status=status(started=True)),
        StatusCame(
            status=status(
                started=True,
                resumable=True,
                capabilities=Capabilities(accumulates=True),
                start_step=3,
                first_step=4,
                step=4,
            )
        ),
        StatusCame(
            status=status(
                started=True,
                resumable=True,
                capabilities=Capabilities(accumulates=True),
                first_step=4,
                step=20,
                durable=(
                    Durable(step=10, name="a1-s10", exact=True),
                    Durable(step=20, name="a1-s20", exact=False),
                ),
            )
        ),
    )
    base: dict[str, Any] = {**KEY, "host_id": HOST}
    assert reported(effects) == [
        ev.AttemptStarted(**base),
        ev.CapabilitiesSeen(**base, resumable=True, capabilities=Capabilities(accumulates=True), step=3),
        ev.FirstStepDone(**base, step=4),
        ev.CheckpointDurable(**base, step=10, exact=True),
        ev.CheckpointDurable(**base, step=20, exact=False),
    ]
    assert [report.sequence for report in sent(Report, effects)] == [1, 2, 3, 4, 5]


def test_a_result_says_what_no_status_had_time_to_say() -> None:
    agent = welcomed()
    agent.obey(start())
    last = (Durable(step=9, name="a1-s9", exact=True),)
    effects = agent.say(EndCame(result=result(resumable=True, first_step=1, durable=last)))
    kinds = [type(event) for event in reported(effects)]
    assert kinds == [ev.CapabilitiesSeen, ev.FirstStepDone, ev.CheckpointDurable, ev.AttemptEnded]
    assert agent.say(EndCame(result=result())) == [], "the end comes once"


def test_a_job_without_hello_runs_after_a_while() -> None:
    agent = running(quiet_start_s=10.0)
    agent.hear(ReportAck(sequence=agent.state.memory.sequence))
    assert reported(agent.wait(9.9, answered=True)) == []
    [event] = reported(agent.wait(0.2, answered=True))
    assert event == ev.FirstStepDone(**KEY, host_id=HOST, step=0, assumed=True)
    agent.hear(ReportAck(sequence=agent.state.memory.sequence))
    assert reported(agent.wait(100.0, answered=True)) == [], "told once"
    said = reported(agent.say(StatusCame(status=status(started=True, resumable=False, first_step=1))))
    assert said[-1] == ev.FirstStepDone(**KEY, host_id=HOST, step=1), "its own word is told as well"


def test_a_job_whose_first_step_will_be_seen_loads_for_as_long_as_that_is_waited_for() -> None:
    agent = running(quiet_start_s=10.0)
    agent.hear(ReportAck(sequence=agent.state.memory.sequence))
    agent.say(StatusCame(status=status(started=True, watched=True)))
    assert reported(agent.wait(1000.0, answered=True)) == []
    agent.say(StatusCame(status=status(started=True, watched=False)))
    [event] = reported(agent.wait(0.0, answered=True))
    assert event == ev.FirstStepDone(**KEY, host_id=HOST, step=0, assumed=True)


@pytest.mark.parametrize("how", ["it said hello", "it resumes from a checkpoint"])
def test_a_job_with_the_library_says_itself_when_it_runs(how: str) -> None:
    agent = welcomed()
    agent.obey(start(resume_step=5 if "resumes" in how else 0))
    agent.say(StatusCame(status=status(started=True, resumable=True if "hello" in how else None)))
    agent.hear(ReportAck(sequence=agent.state.memory.sequence))
    assert reported(agent.wait(100.0, answered=True)) == []


def test_reports_are_repeated_in_order_until_they_are_seen() -> None:
    agent = running()
    agent.say(EndCame(result=result()))
    agent.hear(Renew(beat=1))
    repeated = sent(Report, agent.wait(1.0, answered=True))
    assert [report.sequence for report in repeated][:2] == [1, 2]
    agent.hear(ReportAck(sequence=1))
    assert {report.sequence for report in sent(Report, agent.wait(1.0, answered=True))} == {2}
    agent.hear(ReportAck(sequence=2))
    assert sent(Report, agent.wait(1.0, answered=True)) == []


def test_reports_survive_a_restart_and_numbers_go_on() -> None:
    agent = running()
    agent.say(EndCame(result=result()))
    again, effects = agent.restarted(FoundAttempt(**KEY, alive=False, result=result()))
    assert sent(Report, effects) == [], "nothing but hello before the welcome"
    assert [a.running for a in sent(Hello, effects)[0].attempts] == [False]
    effects = again.hear(Welcome(session="s2", lease_s=None, reports_seen=1, journal="j"))
    assert [report.sequence for report in sent(Report, effects)] == [2]
    [ended] = reported(again.obey(stop("8", command=7)))
    assert ended.verdict.outcome == "never-started"
    assert again.state.memory.sequence == 3


def test_a_spool_that_was_lost_does_not_reuse_numbers() -> None:
    agent = Agent()
    agent.say(Booted(found=(FoundAttempt(**KEY, alive=False, result=result()),)))
    effects = agent.hear(Welcome(session="s1", lease_s=None, reports_seen=41, journal="j"))
    assert [(r.sequence, type(r.event)) for r in sent(Report, effects)] == [(42, ev.AttemptEnded)]


def test_no_more_than_a_window_of_reports_is_on_the_wire() -> None:
    agent = welcomed()
    for job in range(200):
        agent.obey(stop(str(job), command=100 + job))
    assert [report.sequence for report in sent(Report, agent.wait(1.0))] == list(range(1, 65))


# --- Supervisors that die --------------------------------------------------------------------------


def test_a_supervisor_that_dies_silently_leaves_a_result_written_for_it() -> None:
    agent = running()
    agent.say(StatusCame(status=status(started=True, step=17)))
    effects = agent.say(SupervisorGone(**KEY, why="its supervisor was killed (signal 9)"))
    [effect] = only(EndLeftovers, effects)
    assert (effect.result.verdict.outcome, effect.result.step) == ("infra-failed", 17)
    assert agent.state.running != ()
    [ended] = reported(agent.say(EndCame(result=effect.result)))
    assert "killed (signal 9)" in ended.verdict.detail
    assert agent.state.running == ()


AT_BOOT = {
    "its supervisor lives": (FoundAttempt(**KEY, alive=True), Adopt, None),
    "it ended while nobody looked": (FoundAttempt(**KEY, alive=False, result=result()), None, "finished"),
    "its supervisor is dead": (FoundAttempt(**KEY, alive=False), EndLeftovers, None),
    "the host was restarted": (FoundAttempt(**KEY, alive=False, rebooted=True), EndLeftovers, None),
    "it was never started": (None, None, "infra-failed"),
}


@pytest.mark.parametrize("case", AT_BOOT)
def test_after_a_restart_every_attempt_is_found_again(case: str) -> None:
    found, wanted, outcome = AT_BOOT[case]
    agent = welcomed()
    agent.obey(start())
    again, effects = agent.restarted(*([found] if found else []))
    assert [type(e) for e in effects if isinstance(e, Adopt | EndLeftovers)] == ([wanted] if wanted else [])
    welcome = Welcome(session="s2", lease_s=None, reports_seen=0, journal="j")
    ends = [e.verdict.outcome for e in reported(again.hear(welcome)) if isinstance(e, ev.AttemptEnded)]
    assert ends == ([outcome] if outcome else [])
    if case == "the host was restarted":
        assert only(EndLeftovers, effects)[0].result.verdict.detail == "the host restarted"


def test_an_attempt_that_the_spool_has_lost_is_adopted_with_its_devices() -> None:
    [effect] = only(StartSupervisor, welcomed().obey(start()))
    agent = Agent()
    agent.say(Booted(found=(FoundAttempt(**KEY, alive=True, order=effect.order),)))
    agent.hear(Welcome(session="s1", lease_s=None, reports_seen=0, journal="j"))
    assert [a.devices for a in agent.state.running] == [("h1/cpu0",)]
    assert only(StartSupervisor, agent.obey(start())) == []


# --- The controller --------------------------------------------------------------------------------


def test_hello_is_repeated_until_the_right_welcome() -> None:
    agent = Agent()
    assert len(sent(Hello, agent.say(Booted()))) == 1
    assert len(sent(Hello, agent.wait(2.5))) == 2
    agent.hear(Welcome(session="another", lease_s=None, reports_seen=0))
    assert sent(Heartbeat, agent.wait(2.0)) == []
    agent.hear(Welcome(session="s1", lease_s=None, reports_seen=0))
    effects = agent.wait(2.5)
    assert sent(Hello, effects) == []
    assert len(sent(Heartbeat, effects)) == 2


def test_three_unanswered_heartbeats_mean_a_fresh_socket_and_hello() -> None:
    agent = running()
    assert only(Reconnect, agent.wait(3.9)) == []
    effects = agent.wait(0.2)
    assert len(only(Reconnect, effects)) == 1
    [hello] = sent(Hello, effects)
    assert [(a.job_id, a.running) for a in hello.attempts] == [("7", True)]
    assert 2 <= len(only(Reconnect, agent.wait(60.0))) <= 5, "it does not hammer a controller that is away"


def test_an_agent_that_got_no_core_for_a_while_does_not_blame_the_controller() -> None:
    agent = running()
    agent.now_s += 20.0
    effects = agent.say(AgentTicked())
    assert only(Reconnect, effects) == []
    assert len(sent(Heartbeat, effects)) == 1


def test_a_refused_agent_stops_and_leaves_its_jobs_alone() -> None:
    agent = running()
    effects = agent.hear(HostRefused(why="wrong key"))
    assert only(Halt, effects) == [Halt(why="the controller refused this agent: wrong key")]
    assert agent.obey(stop()) == []
    assert agent.state.next_alarm_s == float("inf")


def test_heartbeats_carry_the_progress_of_what_runs() -> None:
    agent = running()
    agent.say(StatusCame(status=status(started=True, step=12, loss=0.5, memory_mib=300.0)))
    beats = sent(Heartbeat, agent.wait(1.0))
    assert [(p.step, p.loss, p.memory_mib) for p in beats[0].progress] == [(12, 0.5, 300.0)]


def test_gang_words_go_through() -> None:
    agent = running()
    [word] = sent(GangRelay, agent.say(GangMessageCame(**KEY, to_host=HostId("h2"), payload=b"x")))
    assert (word.from_host, word.to_host, word.payload) == ("h1", "h2", b"x")
    back = GangRelay(**KEY, to_host=HOST, from_host=HostId("h2"), payload=b"y")
    assert told(GangIn, agent.hear(back)) == [GangIn(from_host=HostId("h2"), payload=b"y")]


def test_another_journal_is_another_cluster() -> None:
    agent = welcomed()
    agent.obey(start())
    agent.say(EndCame(result=result()))
    other = Welcome(session="s2", lease_s=None, reports_seen=0, journal="k")
    again, _ = agent.restarted(FoundAttempt(**KEY, alive=False, result=result()))
    [halt] = only(Halt, again.hear(other))
    assert "belongs to another controller (journal j)" in halt.why

    agent.hear(ReportAck(sequence=agent.state.memory.sequence))
    again, _ = agent.restarted(FoundAttempt(**KEY, alive=False, result=result()))
    assert only(RemoveAttempt, again.hear(other)) == [RemoveAttempt(**KEY)]
    [effect] = only(StartSupervisor, again.obey(start()))
    assert effect.order.checkpoint_root == "/ckpt/k/7"


# --- Leases ----------------------------------------------------------------------------------------


def test_nothing_starts_before_the_lease_is_renewed_once() -> None:
    agent = Agent()
    agent.say(Booted())
    assert agent.obey(start()) == [], "neither started nor confirmed: it comes again"
    agent.hear(Welcome(session="s1", lease_s=300.0, reports_seen=0))
    assert agent.obey(start()) == []
    effects = agent.hear(Renew(beat=1))
    assert len(only(StartSupervisor, effects)) == 1
    assert seen(effects) == [1]


def test_a_heartbeat_carries_what_was_read_of_the_devices_since_the_last_and_how_old_it_is() -> None:
    agent = running()
    agent.say(StatusCame(status=status(started=True, memory_mib=300.0)))
    assert agent.state.tenants.memory_seen_mib() == {DeviceId("h1/cpu0"): 300.0}
    reading = DeviceReading(device_id=DeviceId("h1/cpu0"), source="cpu", values={"SMACT": 0.5})
    agent.say(IndicatorsRead(readings=(reading,)))
    [beat] = sent(Heartbeat, agent.wait(1.0))
    assert [(each.values, each.age_s) for each in beat.devices] == [({"SMACT": 0.5}, 1.0)]
    agent.hear(Renew(beat=beat.beat))
    assert sent(Heartbeat, agent.wait(1.0))[-1].devices == ()


def test_the_lease_counts_from_the_sending_of_the_heartbeat() -> None:
    agent = welcomed(lease_s=100.0)
    agent.wait(1.0)  # Sends the second heartbeat.
    agent.now_s += 1.5
    agent.hear(Renew(beat=2))
    assert agent.state.registration.lease.left_s(agent.now_s) == pytest.approx(98.5)
    agent.hear(Renew(beat=1))
    assert agent.state.registration.lease.left_s(agent.now_s) == pytest.approx(98.5), "a late answer is none"


def test_supervisors_hear_of_the_lease_when_they_are_a_tenth_behind() -> None:
    agent = welcomed(lease_s=100.0)
    agent.obey(start())
    [first] = told(LeaseNow, agent.say(Connected(**KEY)))
    assert first == LeaseNow(left_s=100.0, full_s=100.0)
    news: list[LeaseNow] = []
    for _ in range(25):
        [beat] = sent(Heartbeat, agent.wait(1.0))
        news += told(LeaseNow, agent.hear(Renew(beat=beat.beat)))
    assert [message.left_s for message in news] == [100.0, 100.0]
    [again] = told(LeaseNow, agent.say(Disconnected(**KEY), Connected(**KEY)))
    assert again.left_s == 100.0


def test_an_agent_that_has_just_started_passes_on_no_lease_before_its_first_renewal() -> None:
    """It knows of none yet, and a supervisor that is told "nothing left" ends its job."""
    agent = running()
    again, _ = agent.restarted(FoundAttempt(**KEY, alive=True))
    again.hear(Welcome(session=again.state.config.session, lease_s=100.0, reports_seen=0, journal="j"))
    assert told(LeaseNow, again.say(Connected(**KEY))) == []
    [news] = told(LeaseNow, again.hear(Renew(beat=1)))
    assert news.left_s == pytest.approx(100.0)


def test_without_a_lease_supervisors_hear_so_once() -> None:
    agent = welcomed()
    agent.obey(start())
    assert told(LeaseNow, agent.say(Connected(**KEY))) == [LeaseNow(left_s=None, full_s=None)]
    agent.wait(1.0)
    assert told(LeaseNow, agent.hear(Renew(beat=2))) == []


def test_a_start_that_was_delayed_past_its_lease_is_not_obeyed() -> None:
    agent = welcomed(lease_s=100.0)
    old = CommandDelivery(command=start(), session="s1", beat=1)
    newest = sent(Heartbeat, agent.wait(90.0, answered=True))[-1].beat
    assert agent.hear(old) == [], "the job may run elsewhere by now"
    assert agent.hear(msgspec.structs.replace(old, session="s0", beat=newest)) == []
    assert len(only(StartSupervisor, agent.hear(msgspec.structs.replace(old, beat=newest)))) == 1


# --- Throwing away ---------------------------------------------------------------------------------


def test_ended_attempts_and_checkpoints_go_after_their_time_and_fences_last() -> None:
    agent = running()
    agent.say(EndCame(result=result()))
    agent.hear(ReportAck(sequence=agent.state.memory.sequence))
    agent.obey(ForgetJob(command_id=CommandId(20), host_id=HOST, job_id=JobId("7")))

    def days(count: float) -> list[AnyAgentEffect]:
        agent.now_s += count * DAY_S
        return agent.say(AgentTicked())

    assert only(RemoveCheckpoints, days(6.0)) == []
    assert only(RemoveCheckpoints, days(1.5)) == [RemoveCheckpoints(folder="/ckpt/j/7")]
    assert only(RemoveAttempt, days(1.0)) == []
    assert only(RemoveAttempt, days(6.0)) == [RemoveAttempt(**KEY)]
    days(0.1)
    assert agent.state.memory.fences == {}
    assert agent.state.memory.forgotten == {}
    agent.hear(Welcome(session="s1", lease_s=None, reports_seen=0, journal="j"))
    assert only(StartSupervisor, agent.obey(start())) == [], "a start from before is still refused"
    assert only(StartSupervisor, agent.obey(start("9", command=21)))


def test_the_checkpoints_of_a_job_that_is_wanted_again_after_its_end_stay() -> None:
    agent = running()
    agent.say(EndCame(result=result()))
    agent.hear(ReportAck(sequence=agent.state.memory.sequence))
    agent.obey(ForgetJob(command_id=CommandId(20), host_id=HOST, job_id=JobId("7")))
    assert len(only(StartSupervisor, agent.obey(start(attempt=2, command=21)))) == 1
    last = result()
    of_second = msgspec.structs.replace(last.status, attempt=AttemptNo(2))
    agent.say(EndCame(result=msgspec.structs.replace(last, status=of_second)))
    agent.hear(ReportAck(sequence=agent.state.memory.sequence))
    agent.now_s += 30 * DAY_S
    assert only(RemoveCheckpoints, agent.say(AgentTicked())) == [], "it waits for its third attempt"
    folded = AgentMemory()
    for note in agent.state.memory.as_notes():
        folded.fold(note)
    assert folded.forgotten == {}


def test_what_the_controller_has_not_heard_is_kept() -> None:
    agent = running()
    agent.say(EndCame(result=result()))
    agent.now_s += 100 * DAY_S
    assert only(RemoveAttempt, agent.say(AgentTicked())) == []


def test_the_age_goes_on_over_restarts_and_not_in_between() -> None:
    agent = welcomed()
    agent.wait(7200.0)
    age_s = agent.state.memory.age_s
    assert age_s == pytest.approx(7200.0, abs=3600.0)
    again, _ = agent.restarted()
    again.now_s += 3600.0
    assert again.state.age_s(again.now_s) == pytest.approx(age_s + 3600.0)


# --- Profiles --------------------------------------------------------------------------------------

LEARNED = Profile(duty_cycle=0.5, memory_mib_peak=300.0, source="in place")


def test_a_profiled_jobs_supervisor_hears_of_company_before_the_newcomer_starts_and_when_it_left() -> None:
    agent = welcomed()
    agent.obey(start(profile_s=60.0))
    agent.say(Connected(**KEY), StatusCame(status=status(started=True)))
    effects = agent.obey(start("8", command=2))
    kinds = [type(effect) for effect in effects]
    assert told(CoTenantsChanged, effects) == [CoTenantsChanged(alone=False)]
    assert kinds.index(Tell) < kinds.index(StartSupervisor)
    again = agent.say(Disconnected(**KEY), Connected(**KEY))
    assert told(CoTenantsChanged, again) == [CoTenantsChanged(alone=False)], (
        "a fresh connection knows nothing"
    )
    assert told(CoTenantsChanged, agent.say(EndCame(result=result("8")))) == [CoTenantsChanged(alone=True)]


def test_any_other_jobs_supervisor_hears_of_it_as_well_but_only_of_company_on_its_own_devices() -> None:
    agent = running()
    assert told(CoTenantsChanged, agent.obey(start("8", command=2))) == [CoTenantsChanged(alone=False)]
    other = gang(("h1/cpu1",))
    agent = welcomed()
    agent.obey(start(profile_s=60.0))
    agent.say(Connected(**KEY))
    assert told(CoTenantsChanged, agent.obey(start("8", command=2, gang=other))) == []


def test_each_profile_is_reported_once_with_the_type_of_its_devices() -> None:
    agent = running()
    news = status(started=True, profile=LEARNED, profile_no=1)
    [learned] = reported(agent.say(StatusCame(status=news), StatusCame(status=news)))
    assert learned == ev.ProfileLearned(
        job_id=JobId("7"),
        profile=LEARNED,
        attempt=AttemptNo(1),
        host_id=HOST,
        device_type="cpu",
        is_complete=False,
    )
    last = result(profile=LEARNED, profile_no=2, profile_complete=True)
    agent.hear(ReportAck(sequence=2))
    events = reported([*agent.say(EndCame(result=last)), *agent.wait(60.0, answered=True)])
    assert [each.is_complete for each in events if isinstance(each, ev.ProfileLearned)][:1] == [True]
    kinds = [type(each) for each in events]
    assert kinds.index(ev.ProfileLearned) < kinds.index(ev.AttemptEnded)
