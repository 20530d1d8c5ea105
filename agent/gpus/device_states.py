"""The states of a device, as a table. Pure.

    ok        work may come
    suspect   something happened to it: no new work until it has proven itself
    draining  what runs may go on, nothing new comes; it wants a reset
    lost      it does not work any more: what ran there is ended

Rule: a device gets worse by itself and better only by proof. From suspect it comes back when NVML answers,
those whom the trouble concerned are gone and it has been quiet for long enough, or when a person says
`nodes resume`. From draining a person may bring it back too, who knows better; from lost nobody but the
device: it must have begun anew (a boot of the host, a reset), and then it proves itself like a suspect.
"""

from __future__ import annotations

from typing import Final, Literal

from cotenant.agent.gpus.xid import Bucket
from cotenant.controller.domain.cluster import DeviceState

Happening = Literal["restart", "suspect", "drain", "lost", "hung", "proven", "trusted", "renewed"]
"""hung: a question about it was never answered. proven: it answers, and all that is asked of a suspect is
true. trusted: a person said so. renewed: it was reset, or the host was booted."""

TABLE: Final[dict[tuple[DeviceState, Happening], DeviceState]] = {
    ("ok", "restart"): "suspect",
    ("ok", "suspect"): "suspect",
    ("ok", "drain"): "draining",
    ("ok", "lost"): "lost",
    ("ok", "hung"): "suspect",
    ("ok", "proven"): "ok",
    ("ok", "trusted"): "ok",
    ("ok", "renewed"): "ok",
    ("suspect", "restart"): "suspect",
    ("suspect", "suspect"): "suspect",
    ("suspect", "drain"): "draining",
    ("suspect", "lost"): "lost",
    ("suspect", "hung"): "suspect",
    ("suspect", "proven"): "ok",
    ("suspect", "trusted"): "ok",
    ("suspect", "renewed"): "suspect",
    ("draining", "restart"): "draining",
    ("draining", "suspect"): "draining",
    ("draining", "drain"): "draining",
    ("draining", "lost"): "lost",
    ("draining", "hung"): "draining",
    ("draining", "proven"): "draining",
    ("draining", "trusted"): "ok",
    ("draining", "renewed"): "suspect",
    ("lost", "restart"): "lost",
    ("lost", "suspect"): "lost",
    ("lost", "drain"): "lost",
    ("lost", "lost"): "lost",
    ("lost", "hung"): "lost",
    ("lost", "proven"): "lost",
    ("lost", "trusted"): "lost",
    ("lost", "renewed"): "suspect",
}

QUIET_S: Final[dict[Happening, float]] = {"restart": 0.0, "suspect": 600.0, "hung": 300.0, "renewed": 60.0}
"""How long a suspect must be without trouble, by what made it one."""

BY_BUCKET: Final[dict[Bucket, Happening | None]] = {
    "restart": "restart",
    "suspect": "suspect",
    "drain": "drain",
    "lost": "lost",
    "note": None,
}


def after(state: DeviceState, happening: Happening) -> DeviceState:
    return TABLE[state, happening]
