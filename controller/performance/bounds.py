"""What sharing may cost a job: its bound, and what is left for its co-tenant while the bound is kept.

Rule: a bound is kept by pausing the co-tenant between micro-batches (`agent/daemon/core/pacing.py`), so that
it trains a part u of the time. While it pauses the job runs as if alone, so the job's ratio is

    1 + u (xi - 1)  <=  bound,    and the co-tenant's own is    its xi / u.

With its bound at 1.1 and xi at 1.5 a job leaves its co-tenant u = 0.2. Where the co-tenant has a bound as
well, or would keep less than `guest_min` of its speed, the two do not share.
"""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

from cotenant.controller.performance.perf import Interference


class ShareBound(msgspec.Struct, frozen=True, kw_only=True):
    """What sharing may cost a job."""

    max: float = inf
    """Step time beside others over step time alone, at most."""
    is_own: bool = False
    """The job, or its class, names it. Otherwise it is the cluster's, and gives way to a co-tenant's own."""


UNBOUNDED: Final = ShareBound()


def maxima(first: ShareBound, second: ShareBound) -> tuple[float, float]:
    """The bounds that count for a pair: where one of the two has a bound of its own, the other's counts only
    if it is its own as well."""
    if first.is_own != second.is_own:
        return (first.max, inf) if first.is_own else (inf, second.max)
    return first.max, second.max


def leaves_too_little(kept: Interference, first: ShareBound, second: ShareBound, guest_min: float) -> bool:
    """Whether one of the two, without a bound that counts, was measured to keep less than `guest_min` of its
    speed while the other's bound was kept."""
    first_max, second_max = maxima(first, second)
    if (first_max == inf) == (second_max == inf):
        return False
    return (kept.first if first_max == inf else kept.second) > 1.0 / guest_min


def keep_bounds(xi: Interference, first: ShareBound, second: ShareBound, guest_min: float) -> Interference:
    """The ratios of a pair while both bounds are kept; `over_bound` where they cannot be.

    At most one of the two is paused: pausing both would only slow both down.
    """
    first_max, second_max = maxima(first, second)
    if xi.first <= first_max and xi.second <= second_max:
        return xi
    if xi.first > first_max and xi.second > second_max:
        return msgspec.structs.replace(xi, over_bound=True)
    if xi.first > first_max:
        guest = xi.second * (xi.first - 1.0) / (first_max - 1.0)
        kept = msgspec.structs.replace(xi, first=first_max, second=guest)
        slowest = second_max if second_max != inf else 1.0 / guest_min
    else:
        guest = xi.first * (xi.second - 1.0) / (second_max - 1.0)
        kept = msgspec.structs.replace(xi, first=guest, second=second_max)
        slowest = first_max if first_max != inf else 1.0 / guest_min
    return kept if guest <= slowest else msgspec.structs.replace(kept, over_bound=True)


BUSY_ASSUMED: Final = 0.5
"""How much of its time a bounded job keeps its device busy, where that was not measured: an assumption."""


def trial_ratios(
    xi: Interference, first: ShareBound, second: ShareBound, busy: tuple[float | None, float | None]
) -> tuple[float, float]:
    """The ratios to expect of a pair that is tried under the bound of one of the two.

    The bounded job is taken to be at its bound, which the pace holds. At 1 / max of its speed it keeps its
    device busy for busy / max of the time; its guest gets the rest, and needs as much as it is busy alone.

    Args:
        busy: the measured duty cycle of each; None: the bounded job is `BUSY_ASSUMED`, its guest always busy.
    """
    first_max, second_max = maxima(first, second)
    if xi.first <= first_max and xi.second <= second_max:
        return xi.first, xi.second
    is_first_bounded = first_max != inf
    share_max = first_max if is_first_bounded else second_max
    host_busy, guest_busy = busy if is_first_bounded else busy[::-1]
    idle = 1.0 - min(1.0, BUSY_ASSUMED if host_busy is None else host_busy) / share_max
    guest = max(1.0, (1.0 if guest_busy is None else guest_busy) / idle)
    return (share_max, guest) if is_first_bounded else (guest, share_max)
