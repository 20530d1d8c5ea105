"""How much one user may ask for: a bucket of requests and one of bytes, filling at a steady rate."""

from __future__ import annotations

from typing import Final

PER_SECOND: Final = 200.0
BURST: Final = 10_000.0
"""One submission of the largest size, or as many questions at once."""
BYTES_PER_SECOND: Final = 1024.0 * 1024.0
BYTES_BURST: Final = 32.0 * 1024.0 * 1024.0
"""Eight messages of the largest size at once: some ten thousand jobs."""
USERS_MAX: Final = 10_000


class Rates:
    """One bucket per user. Time is the cluster's."""

    def __init__(self, per_second: float = PER_SECOND, burst: float = BURST) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}

    def allow(self, user: str, now_s: float, cost: int) -> bool:
        """Whether the user may have this now; if so it is paid for."""
        level, then_s = self._buckets.get(user, (self._burst, now_s))
        level = min(self._burst, level + (now_s - then_s) * self._per_second)
        allowed = cost <= level
        if len(self._buckets) >= USERS_MAX and user not in self._buckets:
            self._buckets.clear()
        self._buckets[user] = (level - cost if allowed else level, now_s)
        return allowed
