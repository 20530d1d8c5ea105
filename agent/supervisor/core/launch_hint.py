"""The word about `--launch` for a script that ended because it was started once and needs a rank, or because
it was given a rank and is none.

Rule: only what torch and Python themselves say of that counts, in the last error of the log.
"""

from __future__ import annotations

import re
from typing import Final

from cotenant.agent.ipc.records import Order

_LACKS_RANK: Final = re.compile(
    r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected"
    r"|KeyError: '(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"
    r"|Default process group has not been initialized"
)
_HAS_RANK: Final = re.compile(
    r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in|Duplicate GPU detected"
    r"|make the Session after torch\.distributed\.init_process_group"
)


def launch_hint(error: str, order: Order) -> str:
    """What to try; empty: the error is of another kind. `error`: the last one in the log."""
    if order.launch.mode == "host" or order.launch.terminal:
        return ""
    if order.launch.gives_ranks(order.world_size):
        hint = "it was started once per GPU, with RANK set: --launch process starts it once, without"
        return hint if _HAS_RANK.search(error) else ""
    hint = "it was started once, without RANK: --launch worker starts it once per GPU, with RANK set"
    return hint if _LACKS_RANK.search(error) else ""
