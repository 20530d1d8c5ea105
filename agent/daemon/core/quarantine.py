"""Devices on which an MPS client was killed without its daemon's help. Pure.

Rule: such a kill can leave the daemon's server, and its other clients, in an undefined state. The device
takes no new attempt until every co-client that was training there has made a step again, or is gone.
Co-clients that never reported a step cannot prove anything, so the agent does not wait for them. A quarantine
is a note like any other: it outlives the agent, and ends with those it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from cotenant.agent.daemon.core.memory import DeviceQuarantine, Doubted, Key, StepBefore
from cotenant.agent.daemon.core.outbox import Outbox
from cotenant.controller.domain import Device, JobId


class Quarantine:
    def __init__(self, outbox: Outbox) -> None:
        self._out = outbox

    @property
    def _by_uuid(self) -> dict[str, DeviceQuarantine]:
        return self._out.memory.quarantined

    def raised(self, uuid: str, after: JobId, steps: Mapping[Key, int]) -> None:
        """`steps`: of the co-clients that train there. None of them: no other client can be harmed."""
        before = self._by_uuid.get(uuid)
        waits = {each.key: each for each in before.waits} if before is not None else {}
        waits |= {key: StepBefore(key=key, step=step) for key, step in steps.items()}
        if steps:
            doubt = DeviceQuarantine(after=after, waits=tuple(waits[key] for key in sorted(waits)))
            self._out.keep(Doubted(uuid=uuid, doubt=doubt))

    def stepped(self, key: Key, step: int) -> None:
        self._settle(lambda each: each.key == key and step > each.step)

    def gone(self, key: Key) -> None:
        self._settle(lambda each: each.key == key)

    def only(self, live: Collection[Key]) -> None:
        """No co-client is left."""
        self._settle(lambda each: each.key not in live)

    def _settle(self, is_over: Callable[[StepBefore], bool]) -> None:
        for uuid, doubt in list(self._by_uuid.items()):
            left = tuple(each for each in doubt.waits if not is_over(each))
            if left != doubt.waits:
                rest = msgspec.structs.replace(doubt, waits=left) if left else None
                self._out.keep(Doubted(uuid=uuid, doubt=rest))

    def laid_over(self, devices: Iterable[Device]) -> tuple[Device, ...]:
        """The devices, those in quarantine marked as suspect. Worse states and their notes stay."""
        texts = {uuid: _text(doubt) for uuid, doubt in self._by_uuid.items()}
        return tuple(
            msgspec.structs.replace(device, state="suspect", healthy=False, note=texts[device.local])
            if device.local in texts and device.state in ("ok", "suspect")
            else device
            for device in devices
        )


def _text(doubt: DeviceQuarantine) -> str:
    jobs = ", ".join(sorted({each.key[0] for each in doubt.waits}))
    return (
        f"an MPS client of job {doubt.after} was killed without its daemon's help: waiting for job {jobs} "
        "to make a step"
    )
