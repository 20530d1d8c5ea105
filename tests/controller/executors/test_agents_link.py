"""The controller's side of agents: greeting, commands, reports, leases, gang words, rivals."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import pytest

from cotenant.controller.domain import (
    AttemptNo,
    CommandId,
    DeviceId,
    DeviceReading,
    HostId,
    JobId,
    Launch,
    Phase,
    StartAttempt,
    StopAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import (  # fmt: skip
    AttemptProgress,
    BadMessage,
    CommandAck,
    CommandDelivery,
    FromAgent,
    GangRelay,
    Heartbeat,
    HostRefused,
    Renew,
    Report,
    ReportAck,
    Welcome,
    clients,
    decode,
)
from tests.building.journals import file_of
from tests.controller.station import ALICE, Station, hello, job, run_one

AGENT_H1 = Identity(name="agent@h1", role="agent", uid=65534, gid=65534, host="h1")


def beat(number: int, session: str = "s1", *progress: AttemptProgress) -> Heartbeat:
    return Heartbeat(beat=number, session=session, progress=progress)


def started(job_id: str = "1", host: str = "h1", attempt: int = 1) -> ev.AttemptStarted:
    return ev.AttemptStarted(job_id=JobId(job_id), attempt=AttemptNo(attempt), host_id=HostId(host))


# --- Greeting --------------------------------------------------------------------------------------


def test_a_welcome_names_lease_reports_and_journal(station: Station) -> None:
    address = station.join("h1")
    (welcome,) = station.told(address, Welcome)
    assert welcome == Welcome(
        session="s1",
        lease_s=300.0,
        reports_seen=0,
        journal=station.journal.name,
        epoch=station.core.state.engine.ledger.epoch,
        reached=2,
    )


def test_a_repeated_hello_is_answered_and_changes_nothing(station: Station) -> None:
    address = station.join("h1")
    entries = station.journal.last_seq
    station.join("h1")
    assert len(station.told(address, Welcome)) == 2 and station.journal.last_seq == entries


def test_a_hello_from_before_the_one_we_know_is_not_heard(station: Station) -> None:
    station.agent_says(b"agent-h1", hello("h1", 2, number=5))
    entries = station.journal.last_seq
    station.agent_says(b"older-connection", hello("h1", 1, number=4))
    assert station.journal.last_seq == entries
    station.agent_says(b"agent-h1", hello("h1", 1, number=6))
    assert len(station.core.state.engine.hosts[HostId("h1")].report.devices) == 1


def test_a_hello_with_other_devices_is_a_new_fact(station: Station) -> None:
    station.join("h1", devices=1)
    station.agent_says(b"agent-h1", hello("h1", 3))
    assert len(station.core.state.engine.hosts[HostId("h1")].report.devices) == 3


def test_a_heartbeat_is_renewed_on_the_connection_that_greeted_only(station: Station) -> None:
    address = station.join("h1")
    station.agent_says(address, beat(4))
    station.agent_says(b"old-connection", beat(5))
    station.agent_says(address, beat(6, "another session"))
    assert [told.beat for told in station.told(address, Renew)] == [4] and station.told(
        b"old-connection", Renew
    ) == []


@pytest.mark.parametrize(
    ("who", "name", "why"),
    [
        (AGENT_H1, "h2", "this key belongs to host h1, not to h2"),
        (ALICE, "h1", "the key of alice is a user's"),
    ],
)
def test_a_key_speaks_for_its_own_host(station: Station, who: Identity, name: str, why: str) -> None:
    station.agent_says(b"a", hello(name), who)
    (refused,) = station.told(b"a", HostRefused)
    assert why in refused.why and not station.core.state.engine.hosts


# --- Rivals ----------------------------------------------------------------------------------------


def test_a_second_agent_is_refused_while_the_first_lives(station: Station) -> None:
    first = station.join("h1")
    for second in range(1, 6):
        station.tick(1.0)
        station.agent_says(first, beat(second))
        station.agent_says(b"rival", hello("h1", session="s2"))
    assert station.told(b"rival", Welcome) == []
    assert "another agent works for host h1" in station.told(b"rival", HostRefused)[0].why
    station.agent_says(first, beat(9))
    assert 9 in [told.beat for told in station.told(first, Renew)]


def test_a_restarted_agent_takes_over_at_once_when_its_old_connection_is_closed(station: Station) -> None:
    old = station.join("h1")
    station.agent_says(old, beat(1))
    station.gone.add(old)
    station.agent_says(b"new", hello("h1", session="s2"))
    assert len(station.told(b"new", Welcome)) == 1


def test_a_restarted_agent_takes_over_when_the_old_one_stays_silent(station: Station) -> None:
    station.join("h1")
    for _ in range(7):
        station.tick(1.0)
        station.agent_says(b"new", hello("h1", session="s2"))
    assert len(station.told(b"new", Welcome)) >= 1 and station.told(b"new", HostRefused) == []


# --- Commands --------------------------------------------------------------------------------------


def test_a_command_is_repeated_until_seen(station: Station) -> None:
    address = station.join("h1")
    station.submit()
    station.tick(1.0)
    commands = station.commands(address)
    assert len(commands) == 2 and commands[0] == commands[1]
    seen = CommandAck(command_id=commands[0].command_id, epoch=station.core.state.engine.ledger.epoch.token)
    station.agent_says(address, seen)
    station.tick(10.0)
    assert len(station.commands(address)) == 2


def test_a_host_that_joins_again_is_told_what_is_still_wanted(station: Station) -> None:
    station.join("h1")
    station.submit()
    station.gone.add(b"agent-h1")
    station.agent_says(b"again", hello("h1", session="s2"))
    (command,) = station.commands(b"again")
    assert command.job_id == "1"
    station.tick(0.5)
    assert len(station.commands(b"again")) == 1, "sent with the welcome, not a repeat later"


def test_commands_follow_the_welcome(station: Station) -> None:
    station.submit()
    address = station.join("h1")
    kinds = [type(m).__name__ for m in station.told(address, object)]
    assert kinds == ["Welcome", "CommandDelivery"]


def test_an_attempt_that_nobody_should_run_is_fenced(station: Station) -> None:
    station.submit()
    stray = ev.AttemptSeen(job_id=JobId("99"), attempt=AttemptNo(3), running=True)
    station.agent_says(b"a", msgspec.structs.replace(hello("h1"), attempts=(stray,)))
    fences = station.commands(b"a", StopAttempt)
    assert [(fence.job_id, fence.save) for fence in fences] == [("99", False)]


@pytest.mark.parametrize("data", [b'{"PIN": "12', b'{"PIN": "\xff"}', b"{}", None])
def test_a_job_whose_secrets_are_damaged_is_not_started_without_them(
    station: Station, data: bytes | None
) -> None:
    launch = Launch(argv=("x",), workdir="/tmp", secrets=("PIN",))
    station.ask(clients.Submit(specs=(job(launch=launch),), secrets={"PIN": "1234"}), ALICE)
    path = file_of(station.journal).parent / "secrets" / "1.json"
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    address = station.join("h1")
    assert station.commands(address) == []
    station.tick(1.0)
    shown = station.ask(clients.ShowJob(job_id=JobId("1")), ALICE)
    assert shown.job.phase == "failed"
    assert str(path) in repr(shown)
    assert station.commands(address) == []


def test_secrets_travel_with_the_start_and_nowhere_else(station: Station) -> None:
    address = station.join("h1")
    launch = Launch(argv=("x",), workdir="/tmp", env={"HF_TOKEN": "hush", "A": "b"}, secrets=("PIN",))
    request = clients.Submit(specs=(job(launch=launch),), secrets={"PIN": "1234", "UNUSED": "x"})
    job_id = station.ask(request, ALICE).job_ids[0]
    (obey,) = station.told(address, CommandDelivery)
    assert obey.secrets == {"HF_TOKEN": "hush", "PIN": "1234"}
    assert obey.command.launch.env == {"A": "b"}
    journalled = b"".join(e.event + e.decision for e in station.journal.entries())
    assert b"hush" not in journalled and b"1234" not in journalled
    shown = station.ask(clients.ShowJob(job_id=job_id), ALICE)
    assert "hush" not in repr(shown) and shown.job.spec.launch.secrets == ("HF_TOKEN", "PIN")


# --- Reports ---------------------------------------------------------------------------------------


def test_a_report_is_confirmed_when_durable_and_counted_once(station: Station) -> None:
    address = station.join("h1")
    station.submit()
    report = Report(sequence=1, event=started())
    station.link.heard(address, AGENT_H1, report)
    station.seal()
    assert station.told(address, ReportAck) == []
    station.settle()
    entries = station.journal.last_seq
    station.agent_says(address, report)
    assert station.told(address, ReportAck) == [ReportAck(sequence=1)] * 2
    assert station.journal.last_seq == entries, "a repeat is no new event"


def test_a_hole_in_the_reports_is_waited_for(station: Station) -> None:
    address = station.join("h1")
    station.submit()
    station.agent_says(address, Report(sequence=2, event=started()))
    assert station.told(address, ReportAck) == []
    station.agent_says(address, Report(sequence=1, event=started()))
    station.agent_says(address, Report(sequence=2, event=started()))
    assert station.told(address, ReportAck) == [ReportAck(sequence=1), ReportAck(sequence=2)]


def test_a_hole_that_stays_is_a_report_that_was_lost_with_its_disk(station: Station) -> None:
    address = station.join("h1")
    station.submit()
    for _ in range(12):
        station.agent_says(address, Report(sequence=58, event=started()))
        station.agent_says(address, Report(sequence=59, event=started()))
        station.tick(1.0)
    assert ReportAck(sequence=59) in station.told(address, ReportAck)
    assert station.core.counters["report_gaps"] == 1


def test_a_host_speaks_for_itself_only(station: Station) -> None:
    address = station.join("h1")
    station.join("h2")
    assert not station.agent_says(address, Report(sequence=1, event=started(host="h2")))
    assert station.told(address, ReportAck) == []


def test_reports_seen_survive_a_restart(stations: Any) -> None:
    station = stations()
    address = station.join("h1")
    station.submit()
    run_one(station, address, JobId("1"))
    station = stations()
    station.join("h1")
    assert station.told(address, Welcome)[0].reports_seen == 4


# --- Time ------------------------------------------------------------------------------------------


def test_silence_then_loss_then_a_new_start_elsewhere(station: Station) -> None:
    station.join("h1")
    job_id = station.submit(resumable=True)
    run_one(station, b"agent-h1", job_id, until="step")
    for _ in range(8):
        station.tick(2.0)
    assert station.core.state.engine.hosts[HostId("h1")].silent
    station.join("h2")
    for at in range(150):
        station.tick(2.0)
        station.agent_says(b"agent-h2", beat(at))
    engine = station.core.state.engine
    assert engine.hosts[HostId("h1")].lost
    station.agent_says(b"agent-h1", beat(1_000))
    assert 1_000 not in [told.beat for told in station.told(b"agent-h1", Renew)], (
        "a lost host must greet again"
    )
    assert engine.jobs[job_id].phase is not Phase.RUNNING


def test_a_restarted_controller_first_grants_a_full_lease(stations: Any) -> None:
    station = stations()
    station.join("h1")
    job_id = station.submit(resumable=True)
    run_one(station, b"agent-h1", job_id, until="step")
    station = stations(wall_s=100_000.0)  # a day later
    for _ in range(125):
        station.tick(2.0)
    assert not station.core.state.engine.hosts[HostId("h1")].lost
    for _ in range(50):
        station.tick(2.0)
    assert station.core.state.engine.hosts[HostId("h1")].lost


def test_progress_reaches_views_at_once_and_the_journal_seldom(station: Station) -> None:
    address = station.join("h1")
    job_id = station.submit(iterations=1_000)
    run_one(station, address, job_id, until="step")
    before = station.journal.last_seq
    for step in range(1, 40):
        station.tick(0.5)
        news = AttemptProgress(job_id=job_id, attempt=AttemptNo(1), step=step, step_s=0.5, loss=1 / step)
        station.agent_says(address, beat(step, "s1", news))
    (view,) = station.ask(clients.ListJobs()).jobs
    assert view.step == 39 and view.loss == pytest.approx(1 / 39) and view.step_s == 0.5
    assert station.journal.last_seq - before == 1


# --- Gangs -----------------------------------------------------------------------------------------


def word(to: str, sender: str = "h1", attempt: int = 1, payload: bytes = b"x") -> GangRelay:
    return GangRelay(
        job_id=JobId("1"),
        attempt=AttemptNo(attempt),
        to_host=HostId(to),
        from_host=HostId(sender),
        payload=payload,
    )


def test_gang_words_pass_between_hosts_of_one_attempt_only(station: Station) -> None:
    for name in ("h1", "h2", "h3"):
        far = hello(name)
        report = msgspec.structs.replace(far.report, address=f"10.0.0.{name[1]}")
        station.agent_says(f"agent-{name}".encode(), msgspec.structs.replace(far, report=report))
    station.submit(gpus_min=2, gpus_max=2, nodes=2)
    placement = station.core.state.engine.jobs[JobId("1")].placement
    assert placement is not None
    inside = [device.partition("/")[0] for device in placement.devices]
    (outside,) = {"h1", "h2", "h3"} - set(inside)
    one, two = (f"agent-{name}".encode() for name in inside)
    station.agent_says(one, word(inside[1], inside[0]))
    assert station.told(two, GangRelay) == [word(inside[1], inside[0])]
    station.agent_says(one, word(outside, inside[0]))
    station.agent_says(one, word(inside[1], inside[0], attempt=2))
    assert not station.agent_says(one, word(inside[1], outside)), "nobody speaks for another host"
    assert not station.agent_says(one, word(inside[1], inside[0], payload=b"x" * 100_000))
    assert (
        station.told(f"agent-{outside}".encode(), GangRelay) == [] and len(station.told(two, GangRelay)) == 1
    )


def test_the_start_of_a_gang_reaches_each_host(station: Station) -> None:
    station.join("h1", devices=2)
    station.submit(gpus_min=2, gpus_max=2)
    (command,) = station.commands(b"agent-h1", StartAttempt)
    assert command.command_id == CommandId(1) and command.gang[0].devices == ("h1/0", "h1/1")


# --- What devices do --------------------------------------------------------------------------------


def reading(device: str, smact: float = 0.5, **more: Any) -> DeviceReading:
    return DeviceReading(device_id=DeviceId(device), source="cpu", values={"SMACT": smact}, **more)


def shown(station: Station) -> dict[str, clients.ReadingView]:
    reply = station.ask(clients.ListNodes())
    assert isinstance(reply, clients.Nodes)
    return {each.device_id: each.reading for each in reply.nodes[0].devices if each.reading is not None}


def test_the_newest_reading_of_each_device_is_shown_with_its_age_and_never_journalled(
    station: Station,
) -> None:
    address = station.join("h1", devices=2)
    device, other = (each.device_id for each in station.core.state.engine.hosts[HostId("h1")].report.devices)
    entries = station.journal.last_seq
    station.agent_says(address, Heartbeat(beat=1, session="s1", devices=(reading(device, 0.1),)))
    station.agent_says(address, Heartbeat(beat=2, session="s1", devices=(reading(device, 0.4, age_s=0.5),)))
    station.time_s += 2.0
    (name, one), *more = shown(station).items()
    assert (name, one.values["SMACT"], one.values["TENSO"], one.age_s, more) == (device, 0.4, None, 2.5, [])
    assert other not in shown(station) and station.journal.last_seq == entries


def test_readings_of_other_hosts_devices_are_not_taken(station: Station) -> None:
    address = station.join("h1", devices=1)
    station.agent_says(address, Heartbeat(beat=1, session="s1", devices=(reading("h2/cpu0"),)))
    assert shown(station) == {} and not station.link.readings


def test_readings_of_devices_that_are_gone_are_forgotten(station: Station) -> None:
    address = station.join("h1", devices=3)
    ids = [each.device_id for each in station.core.state.engine.hosts[HostId("h1")].report.devices]
    beat_with = Heartbeat(beat=1, session="s1", devices=tuple(reading(each) for each in ids))
    station.agent_says(address, beat_with)
    station.agent_says(address, hello("h1", 1, number=9))
    station.tick(1.0)
    assert set(station.link.readings) == {ids[0]}


def test_a_heartbeat_of_before_has_no_readings_and_one_of_later_may_have_more() -> None:
    """An agent that knows nothing of readings, and one that says what this controller does not know."""
    old = {"m": "beat", "beat": 1, "session": "s1", "progress": [], "cpu_percent": None}
    assert decode(msgpack.packb([1, old]), FromAgent) == Heartbeat(beat=1, session="s1")
    said = {"device_id": "h1/cpu0", "values": {"NEWER": 0.5}, "of_later": 1}
    message: Heartbeat = decode(msgpack.packb([1, {**old, "devices": [said], "of_later": 2}]), FromAgent)
    assert message.devices[0].values == {"NEWER": 0.5}


@pytest.mark.parametrize(
    "said",
    [
        {"device_id": "h1/cpu0", "values": {"SMACT": -0.5}},
        {"device_id": "h1/cpu0", "values": {"SMACT": float("nan")}},
        {"device_id": "h1/cpu0", "values": {str(n): 0.0 for n in range(100)}},
        {"device_id": "h1/cpu0", "why": "x" * 1000},
    ],
)
def test_a_reading_that_makes_no_sense_is_a_bad_message(said: dict[str, Any]) -> None:
    frame = msgpack.packb([1, {"m": "beat", "beat": 1, "session": "s1", "devices": [said]}])
    with pytest.raises(BadMessage, match="h1/cpu0"):
        decode(frame, FromAgent)
