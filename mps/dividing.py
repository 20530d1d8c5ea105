"""Dividing the devices of a daemon into static partitions, and reading back that it was done.

Rule: partitions are made and removed only while nobody can be on them or be sent to them (`idle`); otherwise
what is there is read and left as it is. A device counts as divided when the table shows the wanted number of
parts; half a division is begun again at the next idle look. Partitions are a wish: what an idle device
refuses once is not asked for again in the owner's life, and its daemon is one without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cotenant.mps import commands
from cotenant.mps.channel import Channel, Wedged
from cotenant.mps.partitions import Layout, Partition, shares
from cotenant.mps.replies import Rejected

FIRST_ANSWER_S = 30.0
"""The first question about partitions starts the driver for the daemon."""

Divided = dict[str, tuple[Partition, ...]]
"""By device UUID, those with the most multiprocessors first."""


class Division:
    """What the owner of a daemon wants of static partitions, and what there is."""

    def __init__(self, uuids: Sequence[str], parts: int) -> None:
        self._uuids, self._parts = uuids, parts
        self._refused = ""
        self.in_force = False
        """The daemon was started for partitions: each of its clients needs one."""
        self.divided: Divided = {}

    @property
    def wanted(self) -> bool:
        return self._parts > 0 and not self._refused

    @property
    def fits(self) -> bool:
        """Whether the daemon is of the wanted kind."""
        return self.in_force == self.wanted

    @property
    def why_not(self) -> str:
        """Where they were asked for: why there are none, for a person."""
        if self.wanted and not self.in_force:
            return "its MPS daemon was started without, and is replaced when the jobs on it have ended"
        return self._refused

    def found(self, in_force: bool) -> None:
        """The daemon that is there now is of this kind."""
        self.in_force = in_force
        if not in_force:
            self.divided = {}

    def refuse(self, why: str) -> str:
        """For the log."""
        self._refused = why
        return f"MPS daemon: static partitions are not used: {why}"

    def settle(self, channel: Channel, *, idle: bool) -> str:
        """Divide what is not divided, or read what is there. A line for the log where it is refused for good.

        Raises:
            Rejected: there is no complete division, for now.
            ChannelError, Incomplete: no answer.
        """
        first = not self.divided
        if first:
            channel = replace(channel, answer_s=max(channel.answer_s, FIRST_ANSWER_S))
        try:
            self.divided = divide(channel, self._uuids, self._parts, idle=idle)
        except Rejected as error:
            self.divided = {}
            if idle and self.wanted:
                return self.refuse(str(error))
            raise
        except Wedged as error:
            if first and idle and self.wanted:  # Else it would be replaced by another that hangs as well.
                return self.refuse(f"{error} when it is asked for them")
            raise
        return ""


def divide(channel: Channel, uuids: Sequence[str], parts: int, *, idle: bool) -> Divided:
    """The partitions of each device. Blocks for some questions' time.

    `parts`: 0 takes what there is, if it is anything: a daemon from before the wish was taken back.

    Raises:
        Rejected: one is not divided as wanted, and why. When idle, nothing of ours is left of it.
        ChannelError, Incomplete: no answer.
    """
    table = _table(channel, uuids)
    counts = {uuid: len(table[uuid].partitions) for uuid in uuids}
    wrong = [uuid for uuid, count in counts.items() if not count or count != (parts or count)]
    if wrong and not (idle and parts):
        raise Rejected(f"{wrong[0]} is not divided into static partitions, and jobs may be on it")
    for uuid in wrong:
        _clear(channel, uuid, table[uuid])
    for uuid in wrong:
        _fill(channel, uuid, parts)
    table = _table(channel, uuids) if wrong else table
    return {uuid: table[uuid].partitions for uuid in uuids}


def _table(channel: Channel, uuids: Sequence[str]) -> dict[str, Layout]:
    table = commands.partition_table(channel, uuids)
    missing = [uuid for uuid in uuids if uuid not in table]
    if missing:
        raise Rejected(f"the MPS daemon does not offer static partitions on {missing[0]}")
    return table


def _clear(channel: Channel, uuid: str, layout: Layout) -> None:
    said = [commands.remove_partition(channel, uuid, each.identifier) for each in layout.partitions]
    left = _table(channel, (uuid,))[uuid].partitions
    if left:
        raise Rejected(next(filter(None, said), f"{left[0].name} could not be removed"))


def _fill(channel: Channel, uuid: str, parts: int) -> None:
    """All or nothing: half of them would keep multiprocessors from everybody."""
    free = _table(channel, (uuid,))[uuid].free_chunks
    try:
        told = {commands.add_partition(channel, uuid, chunks) for chunks in shares(free, parts)}
        listed = {each.name for each in _table(channel, (uuid,))[uuid].partitions}
        if len(told) < parts or told != listed:  # A question that was asked twice may have made two.
            raise Rejected(f"{uuid}: the partitions that were made are not those that are listed")
    except Rejected:
        _clear(channel, uuid, _table(channel, (uuid,))[uuid])
        raise
