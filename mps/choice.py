"""One daemon per device, or one for the whole host. Pure; see docs/decisions/0017.

Rule: per device unless the operator asks for the other. A fault then reaches one device, and its settings
are its own; a process of several devices can then be no client at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["auto", "off", "per-device", "per-host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsChoice:
    groups: tuple[tuple[str, ...], ...]
    """The device UUIDs of each daemon; empty: no daemon at all."""
    per_host: bool
    reason: str
    """Why so, for `doctor` and the log."""


def choose(mode: Mode, uuids: Sequence[str], *, one_uid: bool) -> MpsChoice:
    """`uuids`: the devices that can be shared through MPS. `one_uid`: all jobs of this host have one uid."""
    single = tuple((uuid,) for uuid in uuids)
    if mode == "off":
        return MpsChoice(groups=(), per_host=False, reason="MPS is switched off (mps.mode = off)")
    if not uuids:
        return MpsChoice(groups=(), per_host=False, reason="no device here can be shared through MPS")
    if mode == "per-host" and not one_uid:
        return MpsChoice(
            groups=single,
            per_host=False,
            reason="one daemon per device, although mps.mode asks for one per host: jobs of several users "
            "run here, and a daemon serves one user at a time",
        )
    if mode == "per-host":
        return MpsChoice(
            groups=(tuple(uuids),),
            per_host=True,
            reason="one daemon for all devices (mps.mode = per-host): a fault on one device keeps new "
            "clients off all of them",
        )
    return MpsChoice(
        groups=single,
        per_host=False,
        reason="one daemon per device: a fault reaches one device only"
        + ("" if mode == "per-device" else " (the default; mps.mode = per-host changes it)"),
    )
