"""How many rows a worker takes in a step of an elastic job: the step's batch stays what it is.

Rule: a step is made of `rows x workers` samples, as the user has said it of the most workers that the job
takes. On fewer of them each takes as many more rows, in as many more micro-batches as keep each as small.
"""

from __future__ import annotations

import os
import sys

from cotenant.gradaccum.protocol import ENV_STEP_BATCH


def batch_size(rows: int) -> int:
    """What to give a DataLoader whose batches have `rows` rows when the job runs on all of its workers.

    Outside an elastic job that is `rows`. Call it once torch.distributed is set up, or after the launcher has
    set WORLD_SIZE.

    Raises:
        ValueError: the step's batch cannot be divided equally among these workers.
    """
    said = os.environ.get(ENV_STEP_BATCH)
    if not said:
        return rows
    _, _, most = said.partition("x")
    workers = _workers()
    part, rest = divmod(rows * int(most), workers)
    if rest:
        raise ValueError(f"{rows} rows on each of {most} workers cannot be divided equally among {workers}")
    return part


def _workers() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1"))
