"""Devices on which an MPS client was killed without its daemon's help. Pure.

Rule: such a kill can leave the daemon's server, and whoever else is its client, in an undefined state. The
device takes nobody new until every co-client that was training there has made a step again, or is gone.
Co-clients that have never been heard to make a step cannot prove anything, and are not waited for."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cotenant.agent.memory import Key


class Doubt(msgspec.Struct, kw_only=True):
    """About one device."""

    after: str
    """The job whose client was killed."""
    steps: dict[Key, int]
    """Of each co-client that has to prove itself: the last step before."""

    @property
    def text(self) -> str:
        jobs = ", ".join(sorted({key[0] for key in self.steps}))
        return (
            f"an MPS client of job {self.after} was killed without its daemon's help: waiting for job {jobs} "
            "to make a step"
        )


class Doubts:
    def __init__(self) -> None:
        self._by_uuid: dict[str, Doubt] = {}

    def raised(self, uuid: str, after: str, steps: Mapping[Key, int]) -> None:
        """`steps`: of the co-clients that train there. None of them: there is nobody to be harmed."""
        if steps:
            self._by_uuid[uuid] = Doubt(after=after, steps=dict(steps))

    def stepped(self, key: Key, step: int) -> None:
        for uuid, doubt in list(self._by_uuid.items()):
            if step > doubt.steps.get(key, step):
                self._settle(uuid, key)

    def gone(self, key: Key) -> None:
        for uuid in list(self._by_uuid):
            self._settle(uuid, key)

    def _settle(self, uuid: str, key: Key) -> None:
        doubt = self._by_uuid[uuid]
        doubt.steps.pop(key, None)
        if not doubt.steps:
            del self._by_uuid[uuid]

    @property
    def texts(self) -> dict[str, str]:
        """By UUID, for a person."""
        return {uuid: doubt.text for uuid, doubt in self._by_uuid.items()}
