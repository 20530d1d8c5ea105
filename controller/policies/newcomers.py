"""Newcomers: the only waiting jobs that preempt under `srtf`, `srsf` and `lazer`, by one rule with a name.

Source: Lazer (DAC '26): SRTF "can preempt a running job only when a shorter one arrives" (section 2), and
Algorithm 1 runs "on new job arrival" and puts preempted jobs into the queue, where they get what becomes
free. So `first`, the default: a job preempts before it has ever had devices, and not again. `every` lets
each return to the queue (after a preemption, or from a lost host) count as an arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from cotenant.controller.domain import Job
from cotenant.controller.policies.base import Parameters

NewcomerRule = Literal["first", "every"]


class NewcomerParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `srtf` and `srsf`."""

    newcomers: NewcomerRule = "first"

    @classmethod
    def parse(cls, parameters: Parameters) -> NewcomerParameters:
        """Raises ValueError for a wrong name or value."""
        return msgspec.convert(parameters, cls, strict=False)

    def as_parameters(self) -> Parameters:
        return {"newcomers": self.newcomers}


def newcomers(arrived: Sequence[Job], rule: NewcomerRule) -> Sequence[Job]:
    """The newcomers among the jobs that this event has put into the queue."""
    if rule == "every":
        return arrived
    return [job for job in arrived if not job.attempt and not job.aborted_preemptions]
