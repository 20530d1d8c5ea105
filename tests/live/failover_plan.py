"""What happens in a storm over two controllers and their database, out of a seed. Pure.

Rule: nothing is drawn while a storm runs; who leads when a blow falls is what differs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

AGENTS = ("a", "b", "c")
CONTROLLERS = ("one", "two")
LEASE_S = 4.0
"""Of the leader; a host's lease is LEASES_OF_HOST of it."""
LEASES_OF_HOST = 2.5
KILLS = ("kill_leader", "kill_standby", "kill_both", "kill_agent", "kill_database")
FREEZES = ("freeze_leader", "freeze_standby", "freeze_database")
CUTS = (
    "cut_leader_database", "cut_leader_to_database", "cut_database_to_leader", "cut_leader_agents",
    "cut_leader_to_agents", "cut_agents_to_leader", "cut_leader_clients", "cut_leader_all", "cut_standby_all",
    "cut_standby_database", "cut_database_all", "cut_agent_all",
)  # fmt: skip
OTHERS = ("restart_database", "fill_disk", "clock_leader", "clock_standby", "hand_over")
KINDS = (*KILLS, *FREEZES, *CUTS, *OTHERS)
JUMPS_S = (-7200.0, -30.0, 45.0, 5400.0, 86_400.0)
HOLDS_LEASES = (0.3, 1.6, 1.6, 3.5)
"""How long a blow lasts: shorter than a lease, longer, and longer than that of a host."""
REST_S = (2.0, 9.0)
"""Between a blow's end and the next; now and then the next comes at once."""


@dataclass(frozen=True, kw_only=True)
class Blow:
    kind: str
    pick: int
    """Chooses among agents, and among ways of doing it."""
    lasts_s: float
    jump_s: float
    """Of a clock."""
    rest_s: float

    def __str__(self) -> str:
        return f"{self.kind} for {self.lasts_s:.1f} s"


def schedule(seed: int, count: int, kinds: Sequence[str] = KINDS) -> list[Blow]:
    """Each kind comes up before one comes up again."""
    rng = random.Random(f"failover {seed}")
    deck: list[str] = []
    while len(deck) < count:
        deck += rng.sample(kinds, len(kinds))
    return [
        Blow(
            kind=kind,
            pick=rng.randrange(1 << 16),
            lasts_s=LEASE_S * rng.choice(HOLDS_LEASES) * rng.uniform(0.9, 1.1),
            jump_s=rng.choice(JUMPS_S),
            rest_s=0.0 if rng.random() < 0.25 else rng.uniform(*REST_S),
        )
        for kind in deck[:count]
    ]
