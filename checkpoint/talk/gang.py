"""This process among the job's others: who it is, and how all of them leave together.

Rule: torch.distributed knows better than the environment, once it is set up.
"""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any, Final

import torch.distributed as dist

from cotenant.checkpoint.disk import layout
from cotenant.checkpoint.guard import ENDING
from cotenant.checkpoint.late_log import LateLog
from cotenant.checkpoint.talk.protocol import PROTOCOL_VERSION, JobEnvironment

LEAVE_S_MAX: Final = 30.0
SETTLE_S: Final = 0.1

log = LateLog("cotenant.checkpoint")


def is_set_up() -> bool:
    return dist.is_available() and dist.is_initialized()


def environment() -> JobEnvironment:
    """What the supervisor and torch.distributed say about this process."""
    env = JobEnvironment.read(os.environ)
    if env.protocol > PROTOCOL_VERSION:
        log.warning(
            "COTENANT_PROTOCOL=%d, but this cotenant speaks %d: running as a plain script; "
            "upgrade cotenant in this environment",
            env.protocol,
            PROTOCOL_VERSION,
        )
        env = replace(env, socket=None, root=None)
    if is_set_up():
        env = replace(env, rank=dist.get_rank(), world_size=dist.get_world_size())
    return env


def attempt_of(env: JobEnvironment, root: Path) -> int:
    """The number of the attempt: the supervisor's; for a plain script with a root the next one that is
    free."""
    if env.world_size > 1 and not is_set_up():
        raise layout.CheckpointError("make the Session after torch.distributed.init_process_group")
    if env.attempt is not None:
        return env.attempt
    box = [layout.newest_reader(root) + 1 if env.rank == 0 else 0]
    if env.world_size > 1:
        dist.broadcast_object_list(box, src=0)
    return box[0]


def accumulation() -> Any:
    """`cotenant.gradaccum`, if the script has imported it: this package never does."""
    return sys.modules.get(f"{__name__.partition('.checkpoint.')[0]}.gradaccum")


class NoAccumulation:
    """Stands in for `gradaccum`'s state where the script does not use it."""

    completed = 0
    last_steps = 1
    is_equivalent = False
    last_loss = None
    counted_for_us = True
    before_save = None

    def change_after(self, _: int) -> None:
        return None


def accumulation_counter() -> Any:
    """The object in which `gradaccum` keeps its count of steps, the latest s and the latest loss."""
    module = accumulation()
    return NoAccumulation() if module is None else module.PROGRESS


def settle() -> None:
    """After the last step: let gloo's worker thread drop its last piece of work.

    It needs the interpreter lock to do so. A script that destroys its process group (or lets go of its DDP)
    a moment after the last backward pass holds that lock while it waits for the thread, for ever (seen with
    torch 2.13, one run in ten). A pause without the lock is enough.
    """
    if is_set_up():
        sleep(SETTLE_S)


_settle: Final = ENDING.door(settle)


def settle_at_exit() -> None:
    """A script may also end in a collective's last moment. Once the interpreter is on its way out, a thread
    that asks for its lock is ended on the spot (before Python 3.14); inside a C++ destructor that aborts:
    "terminate called without an active exception".
    """
    atexit.unregister(_settle)  # Once is enough, and the earlier it is registered the later it runs.
    atexit.register(_settle)


def leave_together() -> None:
    """All ranks are here. Meet once more, so that nobody's peer is gone while it still shuts down.

    The group itself goes at the very end: a script may well destroy it in a `finally` on the way out.
    """
    if not is_set_up():
        return
    try:
        if dist.get_backend() == "gloo":
            dist.monitored_barrier(timeout=timedelta(seconds=LEAVE_S_MAX))
        else:
            dist.barrier()
    except RuntimeError as error:
        log.warning("the other ranks did not leave together with this one: %s", error)
    settle()
    atexit.register(ENDING.door(_destroy_process_group))


def _destroy_process_group() -> None:
    if is_set_up():
        dist.destroy_process_group()
