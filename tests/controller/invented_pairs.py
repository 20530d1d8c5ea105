"""Pairs that nobody measured: a small world with a known law, as the CSV that the predictor reads."""

from __future__ import annotations

import csv
import io
import random

MODELS = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "oak")


def law(mine_pct: float, theirs_pct: float) -> float:
    """xi of a job of this utilisation beside one of that, without noise."""
    return max(1.0, (mine_pct + theirs_pct) / 100.0)


def invented(seed: int, *, models: int = 8, batches: int = 3, noise: float = 0.02) -> str:
    """Every pair of models at every batch: `law` and a little noise; a model's utilisation grows with its
    batch."""
    chance = random.Random(seed)
    jobs = [
        (model, 16 * 2**batch, min(99.0, 25.0 + 8.0 * number + 12.0 * batch), 10.0 + 5.0 * number)
        for number, model in enumerate(MODELS[:models])
        for batch in range(batches)
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("model1", "batch1", "model2", "batch2", "xi1", "xi2", "solo1_gpu_util_pct", "solo1_mem_util_pct",
         "solo2_gpu_util_pct", "solo2_mem_util_pct", "pair_gpu_util_pct")
    )  # fmt: skip
    for at, (model, batch, util, memory) in enumerate(jobs):
        for other_model, other_batch, other_util, other_memory in jobs[at:]:
            xi = [law(util, other_util) * chance.gauss(1.0, noise) for _ in range(2)]
            writer.writerow(
                (model, batch, other_model, other_batch, *(f"{each:.5f}" for each in xi), util, memory,
                 other_util, other_memory, 99)
            )  # fmt: skip
    return text.getvalue()
