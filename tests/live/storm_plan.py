"""What happens in a storm over two hosts, out of a seed: blows, and the jobs that they fall on. Pure.

Rule: nothing is drawn while a storm runs. A blow names a kind, a host, a number that chooses among the
victims of its moment, how long it lasts and how long after the last one it comes; so a seed is one schedule
on every machine, and what differs is only who is there when a blow falls.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

HOSTS = ("a", "b")
Lasts = Literal["short", "long"]
"""Of a freeze: a part of the lease, or until its host is lost."""
KILLS = ("kill_controller", "kill_agent", "kill_supervisor", "kill_rank", "kill_loader", "kill_saving")
STOPS = ("stop_controller", "stop_agent", "stop_supervisor", "stop_rank", "stop_loader", "freeze_host")
CLOCKS = ("clock_of_controller", "clock_of_host", "clock_of_jobs", "clock_over_restart")
WISHES = ("preempt", "cancel", "checkpoint", "hold", "set_policy")
KINDS = (*KILLS, *STOPS, *CLOCKS, *WISHES)
JUMPS_S = (-7200.0, -90.0, 45.0, 5400.0, 86_400.0)
POLICIES = ("castor", "srtf", "sjf-ffs", "fifo")
SPAN_S = (0.5, 4.0)
"""Between two blows; at 2.25 s on the average there are 26 a minute."""
BLOWS_PER_MINUTE = 60.0 / (sum(SPAN_S) / 2)
AT_ONCE = 5
"""So many jobs are open while blows fall."""
SHAPES = ((1, 0), (1, 0), (2, 0), (2, 2))
"""Workers, and hosts to spread them over (0: as few as possible)."""


@dataclass(frozen=True, kw_only=True)
class Blow:
    kind: str
    host: str
    pick: int
    """Chooses among those whom it may hit."""
    lasts: Lasts
    share: float
    """Of the lease, for what is short; of a moment more, for what is long."""
    jump_s: float
    """Of a clock, forwards or backwards."""
    after_s: float
    """Since the blow before."""

    def __str__(self) -> str:
        words = [self.kind, self.host]
        if self.kind in STOPS:
            words.append(self.lasts)
        if self.kind in CLOCKS:
            words.append(f"{self.jump_s:+.0f} s")
        return " ".join(words)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One job of a storm: what it trains is `small_job.py`."""

    steps: int
    workers: int
    nodes: int
    seed: int
    loaders: int
    """DataLoader processes of each rank."""
    expected_s: float


def schedule(
    seed: int, count: int, kinds: Sequence[str] = KINDS, span_s: tuple[float, float] = SPAN_S
) -> list[Blow]:
    """Each kind comes up before one comes up again."""
    rng = random.Random(f"blows {seed}")
    deck: list[str] = []
    while len(deck) < count:
        deck += rng.sample(kinds, len(kinds))
    return [
        Blow(
            kind=kind,
            host=rng.choice(HOSTS),
            pick=rng.randrange(1 << 16),
            lasts=rng.choice(("short", "short", "long")),
            share=rng.uniform(0.05, 0.5),
            jump_s=rng.choice(JUMPS_S),
            after_s=rng.uniform(*span_s),
        )
        for kind in deck[:count]
    ]


def works(seed: int, steps_max: int = 160) -> Iterator[Work]:
    """Job after job, without an end."""
    rng = random.Random(f"jobs {seed}")
    while True:
        workers, nodes = rng.choice(SHAPES)
        steps = rng.randint(40, steps_max)
        yield Work(
            steps=steps,
            workers=workers,
            nodes=nodes,
            seed=rng.randrange(4),
            loaders=rng.choice((0, 1)),
            expected_s=steps * rng.uniform(0.05, 0.3),
        )
