"""MIG instances, under every policy: one job each, and only jobs that ask for them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import events as ev
from tests.building.hosts import gpu, host
from tests.controller.building import spec
from tests.controller.engine.test_histories import POLICIES, examples, fresh
from tests.controller.histories import HOSTS, STEPS, WAITS_S, Step, event_of

TYPE = "MIG-1g.10gb"
PART = {"type": TYPE, "parent": "GPU-1", "max_tenants": 1, "memory_mib": 1000}
DIVIDED = host(
    "m",
    gpu("m/gpu-1", "GPU-1", healthy=False, note="divided into 2 MIG instances"),
    gpu("m/gpu-1-mig-a", "MIG-a", **PART),
    gpu("m/gpu-1-mig-b", "MIG-b", **PART),
    cpus=8,
    address="10.0.0.9",
)


def asking(event: ev.AnyEvent, step: Step) -> ev.AnyEvent:
    """Half of the jobs for one device ask for a MIG instance."""
    if not isinstance(event, ev.JobArrived) or step[1] % 2 or not event.spec.size == event.spec.gpus_max == 1:
        return event
    return msgspec.structs.replace(event, spec=msgspec.structs.replace(event.spec, gpu_type=TYPE))


@given(name=st.sampled_from(POLICIES), steps=STEPS)
@settings(max_examples=examples(1.0))
def test_a_mig_instance_never_has_two_jobs_nor_one_that_did_not_ask_for_it(
    name: str, steps: list[Step]
) -> None:
    engine = fresh(name)
    for report in (DIVIDED, *HOSTS):
        engine.handle(ev.HostJoined(report=report), 0.0)
    for step in steps:
        event = asking(event_of(engine, step, POLICIES), step)
        engine.handle(event, engine.now_s + float(WAITS_S[step[3] % len(WAITS_S)]))
        for device in DIVIDED.devices[1:]:
            tenants = [engine.jobs[job_id].spec for job_id in engine.tenants(device.device_id)]
            assert [job.gpu_type for job in tenants] in ([], [TYPE]), (name, device.device_id, tenants)


def test_a_job_gets_one_instance_and_no_part_of_one() -> None:
    for more in ({"gpus": 2}, {"gpus_max": 2}, {"gpu_fraction": 0.5}):
        with pytest.raises(ValueError, match=f"one {TYPE} per job"):
            spec(1, gpu_type=TYPE, **more)


@pytest.mark.parametrize(
    "wrong", [{"max_tenants": 2}, {"divides": True}, {"sharing": "mps"}, {"type": "H200"}]
)
def test_no_device_is_a_mig_instance_that_is_shared(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="MIG"):
        gpu("m/gpu-1-mig-a", "MIG-a", **{**PART, **wrong})
