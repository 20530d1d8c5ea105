"""NCCL and torch's process groups: the few settings that are ours.

Rule: we leave alone what torch does well by itself
(TORCH_NCCL_ASYNC_ERROR_HANDLING tears a hung job down by default). Each variable has its reason beside it;
where a fact about the library is not verified, the setting is the one that works either way.
"""

from __future__ import annotations

from typing import Final

from cotenant.agent.ipc.records import Order

HEARTBEAT_S: Final = 600
"""For torch's NCCL watchdog thread to show that it is alive; torch's own default is 8 or 10 minutes, by
version."""
RECORDS: Final = 2000
"""Collectives kept by torch's flight recorder, a few hundred bytes each."""
NOT_DIRECT: Final = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
"""For ranks of one host that are clients of different MPS daemons."""
TRACE: Final = "nccl-trace-a{attempt}-rank-"
"""In the job's checkpoint folder; torch adds the rank. Its own default in /tmp is one file per rank for all
jobs of a host, so that co-tenants would overwrite each other's."""


def nccl_environment(order: Order) -> dict[str, str]:
    """Variables for a rank, or a launcher, of this order; empty without GPUs."""
    if not any(rank.cuda_uuids for rank in order.ranks):
        return {}
    return _records(order) | _patience(order) | _transport(order)


def _records(order: Order) -> dict[str, str]:
    """A collective that times out leaves what each rank was waiting for."""
    return {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": str(RECORDS),
        "TORCH_FR_DUMP_TEMP_FILE": f"{order.checkpoint_root}/{TRACE.format(attempt=order.attempt)}",
    }


def _patience(order: Order) -> dict[str, str]:
    """The watchdog thread's calls wait behind the co-tenant's work; torch must not take it for dead."""
    if order.collective_scale <= 1.0:
        return {}
    return {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(round(HEARTBEAT_S * order.collective_scale))}


def _transport(order: Order) -> dict[str, str]:
    """Ranks of one host that are clients of different daemons: whether CUDA IPC, which NCCL's peer-to-peer
    transport is made of, works between them is not known. Shared memory does not need it. The same holds for
    multicast (NVLS): newer NCCL ends the job where binding fails, instead of going on without.

    A host-mode launcher never comes here with several daemons (see `orders.py`).
    """
    return dict(NOT_DIRECT) if len(order.mps) > 1 else {}
