"""From the controller's answers to the picture: phases on devices, waits, and whom a preemption was for."""

from __future__ import annotations

from cotenant.controller.domain import DeviceId, HostId, HostState, JobId, Phase
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import utc
from experiments.castor.live_sharing.picture import picture_of

CPU0, CPU1 = "h/cpu0", "h/cpu1"


def attempt(
    number: int, devices: tuple[str, ...], at: tuple[float, float, float | None, float], **more: object
) -> wire.AttemptView:
    launched_s, first_step_s, stop_s, ended_s = at
    fields: dict[str, object] = {
        "attempt": number,
        "devices": devices,
        "co_tenants": (),
        "accumulation_steps": 1,
        "launched_at": utc(launched_s),
        "first_step_at": utc(first_step_s),
        "first_step": 1,
        "stop_requested_at": utc(stop_s),
        "ended_at": utc(ended_s),
        "outcome": "finished",
        "reason": "",
    }
    return wire.AttemptView(**{**fields, **more})  # type: ignore[arg-type]  # Checked by msgspec's own constructor.


def shown(job_id: str, name: str, submitted_s: float, *attempts: wire.AttemptView) -> wire.Shown:
    job = wire.JobDetails(
        job_id=JobId(job_id),
        name=name,
        user="",
        phase=Phase.DONE,
        reason="",
        reason_code="finished",
        attempt=len(attempts),
        gpus=1,
        devices=(),
        co_tenants=(),
        co_tenants_ever=(),
        sub_batch=None,
        accumulation_steps=1,
        accumulation_steps_ever=(1,),
        step=0,
        iterations=None,
        step_s=None,
        loss=None,
        resumable=True,
        left_s=None,
        left_source=None,
        durable_step=0,
        submitted_at=utc(submitted_s),
        started_at=None,
        ended_at=None,
        wait_s=0,
        load_s=0,
        run_s=0,
        pause_s=0,
        preemptions=0,
        exit_code=0,
        job_class="spot",
        share="auto",
        spec=wire.SpecView(job_id=JobId(job_id)),
        attempts=attempts,
    )
    return wire.Shown(request_id=1, job=job, now=utc(100))


def node() -> wire.NodeView:
    devices = tuple(
        wire.DeviceView(
            device_id=DeviceId(d),
            kind="cpu",
            type="cpu",
            memory_mib=9,
            reserve_mib=0,
            planned_mib=0,
            max_tenants=2,
            sharing="time-slicing",
            sharing_note="",
            cores=(0,),
            state="ok",
            healthy=True,
            note="",
            jobs_planned_mib=(),
        )
        for d in (CPU0, CPU1)
    )
    return wire.NodeView(
        host=HostId("h"),
        state=HostState.OK,
        reason="",
        heartbeat_age_s=None,
        version="",
        address="127.0.0.1",
        cpus=1,
        memory_mib=0,
        features=(),
        checkpoint_domain="",
        devices=devices,
    )


LONG = shown(
    "1",
    "long",
    10.0,
    attempt(1, (CPU0, CPU1), (10.0, 12.0, 20.0, 22.0), outcome="preempted"),
    attempt(2, (CPU0, CPU1), (30.0, 33.0, None, 40.0), start_step=57, accumulation_steps=2),
)
SHORT = shown("2", "short", 20.0, attempt(1, (CPU0,), (22.0, 24.0, None, 30.0)))


def test_a_preempted_gang_is_drawn_on_both_devices_with_all_its_phases() -> None:
    picture = picture_of([LONG, SHORT], [node()], [(9.0, "srtf")], "")
    first = [
        (s.device, s.phase, s.start_s, s.end_s) for s in picture.segments if (s.job, s.attempt) == ("long", 1)
    ]
    one = [("loading", 0.0, 2.0), ("running", 2.0, 10.0), ("checkpointing", 10.0, 12.0)]
    assert first == [(device, *span) for device in (CPU0, CPU1) for span in one]
    assert [(w.job, w.start_s, w.end_s) for w in picture.waits] == [
        ("long", 12.0, 20.0),
        ("short", 10.0, 12.0),
    ]
    assert [(p.at_s, p.victim, p.newcomer) for p in picture.preemptions] == [(10.0, "long", "short")]
    assert [a.resumed_from_step for a in picture.attempts] == [None, 57, None]
