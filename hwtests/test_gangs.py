"""What a way to share costs a gang on one host: NCCL's all-reduce, alone and beside a co-tenant.

Rule: the environment of each rank is what the product gives in that mode. Recorded, and hardly asserted:
which transport NCCL takes depends on the machine. The numbers tell whether one MPS daemon per host is rightly
the default.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import pytest

from cotenant.agent.supervisor.processes.nccl import NOT_DIRECT
from hwtests import host
from hwtests.busy import Busy
from hwtests.device import Device
from hwtests.host import skip_if
from hwtests.measuring import Measure
from hwtests.private_mps import PrivateMps

WORKERS = 2
MODES = ("off", "per-host", "per-device")


@pytest.fixture
def gang(device: Device) -> tuple[Device, ...]:
    """A device for each worker; in a dry run the slot, for both."""
    if device.kind == "cpu":
        return (device,) * WORKERS
    skip_if(host.lacks_two_gpus())
    found = [gpu for gpu in host.driver().gpus if not gpu.problem and not gpu.mig][:WORKERS]
    return tuple(msgspec.structs.replace(device, uuid=gpu.uuid, name=gpu.name) for gpu in found)


@contextmanager
def environments(
    mode: str, gang: tuple[Device, ...]
) -> Iterator[tuple[list[dict[str, str]], list[PrivateMps]]]:
    """Of each worker, and the daemons whose clients they are."""
    uuids = [device.uuid for device in gang]
    whole = {"CUDA_VISIBLE_DEVICES": ",".join(filter(None, uuids))}
    places = [{**whole, "LOCAL_RANK": str(no)} for no in range(len(gang))]
    if mode == "off":
        yield places, []
    elif mode == "per-host":
        with PrivateMps(",".join(uuids)) as daemon:
            yield [{**place, **daemon.environment()} for place in places], [daemon]
    else:
        with ExitStack() as stack:
            daemons = [stack.enter_context(PrivateMps(uuid)) for uuid in uuids]
            yield (
                [
                    {**NOT_DIRECT, "CUDA_VISIBLE_DEVICES": uuid, "LOCAL_RANK": "0", **daemon.environment()}
                    for uuid, daemon in zip(uuids, daemons, strict=True)
                ],
                daemons,
            )


@pytest.mark.parametrize("company", ["alone", "beside a co-tenant"])
@pytest.mark.parametrize("mode", MODES)
def test_all_reduce_of_a_gang(
    mode: str,
    company: str,
    device: Device,
    gang: tuple[Device, ...],
    seconds: float,
    measured: Measure,
    request: pytest.FixtureRequest,
) -> None:
    """The co-tenant multiplies matrices on the first worker's GPU, as its client where that is shared so."""
    if mode != "off":
        if device.kind == "cpu":
            pytest.skip("MPS needs a CUDA device, and this is a dry run (--device cpu)")
        problem = request.getfixturevalue("mps_problem")
        skip_if(f"MPS does not work here: {problem}" if problem else "")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(gang))}
    with environments(mode, gang) as (places, daemons), ExitStack() as stack:
        beside = None
        if company != "alone":
            first = {name: value for name, value in places[0].items() if name != "LOCAL_RANK"}
            beside = stack.enter_context(Busy("matmul", gang[0], env=first))
            beside.ready()
        ranks = [
            stack.enter_context(Busy("all-reduce", device, env={**place, **meeting, "RANK": str(rank)}))
            for rank, place in enumerate(places)
        ]
        for rank in ranks:
            rank.ready()
        for no, daemon in enumerate(daemons):
            daemon.await_clients(*(each.pid for each in (ranks if len(daemons) == 1 else [ranks[no]])))
        rate = ranks[0].rate(max(seconds, 1.0))
        measured(f"all-reduce, mps.mode {mode}, {company}", rate, "GiB/s", "bus bandwidth")
        if beside is not None:
            measured(f"the co-tenant meanwhile, mps.mode {mode}", beside.rate(seconds), "TFLOP/s")
        assert rate > 0, [rank.last_words() for rank in ranks]
        assert not any(rank.error() for rank in ranks)
