"""What is known of an attempt once no process of it is left."""

from __future__ import annotations

from typing import Any

from cotenant.agent.ipc.records import RankOrder, Status
from cotenant.agent.supervisor.core.edge import AllGone
from cotenant.agent.supervisor.core.exit_classifier import Ending
from cotenant.agent.supervisor.core.exits import Exit
from cotenant.agent.supervisor.core.stopping import StopWish
from cotenant.controller.domain import HostId, Launch
from tests.building.orders import changed, gang, order_of


def ending_of(
    *exits: Exit,
    reason: str = "",
    on_cuda: bool = True,
    start: dict[str, Any] = {},  # noqa: B006
    status: dict[str, Any] = {},  # noqa: B006
    gone: dict[str, Any] = {},  # noqa: B006
    host_no: int = 0,
    terminal: bool = False,
    **fields: Any,
) -> Ending:
    """The end of a job on GPUs of gpu07, in a gang of two hosts where it is not the first."""
    of = order_of(
        hosts=1 + host_no,
        host_no=host_no,
        launch=Launch(argv=("python",), workdir="/home/ada/run", terminal=terminal),
        master_port=29511,
        start_deadline_s=60.0,
        ranks=(RankOrder(rank=0, local_rank=0, cuda_uuids=("GPU-1",) if on_cuda else ()),),
        **start,
    )
    if not host_no:
        of = changed(of, host_id=HostId("gpu07"), gang=gang(("gpu07/0",)))
    stop = StopWish(save=True, asked_s=0.0, until_s=60.0, allowed_s=60.0, reason=reason)
    return Ending(
        order=of,
        status=Status(job_id=of.job_id, attempt=of.attempt, **status),
        gone=AllGone(**gone),
        exits=exits,
        stop=stop,
        **fields,
    )
