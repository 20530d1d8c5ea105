"""A job with a bound beside one without, on the device under test: its step times alone and together."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Final
from unittest.mock import patch

from cotenant.controller.client.connection import Client
from cotenant.controller.wire import clients as wire
from experiments.shared.live.beside import SETTINGS, Beside, Lengths, quantile, run_beside
from experiments.shared.live.run import no_job_left
from hwtests import clusters
from hwtests.pair_runs import agents
from hwtests.slices import Run, Unit, Values

PAIRS: Final = ("compute:compute", "compute:loader", "memory:compute", "loader:memory")
"""Protected job : guest."""
REHEARSED: Final = ("compute:loader",)
MEMORY_MIB: Final = {"cuda": 4096, "cpu": 1024}
LENGTHS: Final = Lengths(alone_s=12.0, settle_s=10.0, together_s=60.0)
LENGTHS_REHEARSED: Final = Lengths(alone_s=2.0, settle_s=2.0, together_s=3.0)


def list_bounds(bound: float, run: Run) -> Mapping[str, Unit]:
    """`bound` 0: none."""
    pairs = REHEARSED if run.rehearse else PAIRS
    return {pair: partial(measure_bound, run, pair, bound) for pair in pairs}


def measure_bound(run: Run, pair: str, bound: float) -> Values:
    """One run of a pair; ratios are to the protected job's own step times alone."""
    kind, guest_kind = pair.split(":")
    lengths = LENGTHS_REHEARSED if run.rehearse else LENGTHS
    memory_mib = MEMORY_MIB[run.device.kind]
    with (
        tempfile.TemporaryDirectory(prefix="gs-", ignore_cleanup_errors=True) as name,
        patch.dict(os.environ, SETTINGS),
        agents("mps" if run.is_on_gpu else "time-slicing"),
        clusters.cluster(Path(name) / "c", run.device) as cluster,
        Client(cluster.endpoint) as client,
        no_job_left(client),
    ):
        seen = run_beside(client, (kind, guest_kind), Path(name), bound, memory_mib, lengths)
        (device,) = (each for node in client.ask(wire.ListNodes()).nodes for each in node.devices)
    return {
        "sharing": device.sharing,
        "bound": bound,
        **compare(seen),
        "told_p50": seen.bound.ratio_p50 if seen.bound is not None else None,
    }


def compare(seen: Beside) -> Values:
    """Step times in the stretch alone and in the stretch together.

    Raises:
        ValueError: a stretch has too few steps to say anything.
    """
    alone_s, shared_s = (stretch.step_times(seen.mine) for stretch in (seen.alone, seen.together))
    if min(len(alone_s), len(shared_s)) < 2:
        raise ValueError(f"too few steps: {len(alone_s)} alone, {len(shared_s)} together")
    return {
        "alone_step_s": median(alone_s),
        "steps": len(shared_s),
        "p50": median(shared_s) / median(alone_s),
        "mean": fmean(shared_s) / fmean(alone_s),
        "p99": quantile(shared_s, 0.99) / quantile(alone_s, 0.99),
        "guest_steps_per_s": seen.guest_steps_per_s,
    }
