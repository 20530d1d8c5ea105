"""What is submitted: jobs of a dozen kinds that come again and again, three times as much work as fits.

Time is scaled: a second here stands for ten minutes. A job sleeps for its length; its limit, which Slurm
takes in minutes, is two to six minutes for each of its seconds, as people overestimate. That makes every
limit far too long for Slurm's backfilling, by the same factor in each arm.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

import msgspec

KINDS: Final = 12
MEDIAN_S: Final = 9.0
SPREAD_OF_KINDS: Final = 1.0
SPREAD_WITHIN: Final = 0.35
LENGTHS_S: Final = (1.0, 60.0)
SIZES: Final = (1, 1, 1, 2, 2, 4)


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    name: str
    length_s: float
    limit_min: int
    cpus: int


def arrivals(seed: int, *, cpus: int, load: float, window_s: float) -> list[Arrival]:
    """As many as bring `load` times what so many processors can do within the window."""
    random = Random(seed)
    kinds = [
        (
            random.lognormvariate(math.log(MEDIAN_S), SPREAD_OF_KINDS),
            random.choice(SIZES),
            random.uniform(2, 6),
        )
        for _ in range(KINDS)
    ]
    drawn: list[tuple[str, float, int, int]] = []
    work = 0.0
    while work < load * cpus * window_s:
        kind = random.randrange(KINDS)
        middle_s, size, over = kinds[kind]
        length_s = min(max(middle_s * random.lognormvariate(0.0, SPREAD_WITHIN), LENGTHS_S[0]), LENGTHS_S[1])
        drawn.append((f"kind{chr(97 + kind)}-{len(drawn)}", length_s, math.ceil(middle_s * over), size))
        work += length_s * size
    times = sorted(random.uniform(0.0, window_s) for _ in drawn)
    return [
        Arrival(at_s=at_s, name=name, length_s=length_s, limit_min=limit, cpus=size)
        for at_s, (name, length_s, limit, size) in zip(times, drawn, strict=True)
    ]
