"""The outputs of all ranks in the supervisor's `select` loop.

Rule: a pipe that was just emptied is out of the selector until its pause is over (`output.py` says why), and
back in it then; nothing else decides when a rank's output is read, but its end.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cotenant.agent.ipc.folder import LOGS
from cotenant.agent.ipc.records import Order, RankOrder
from cotenant.agent.supervisor.processes.attempt_folder import open_output, owner_of
from cotenant.agent.supervisor.processes.logs import LogWriter
from cotenant.agent.supervisor.processes.output import Output, output_path


class UnusableOutput(Exception):
    """What the user wants the output in is no name that a file can have."""


class Outputs:
    def __init__(
        self, folder: Path, order: Order, selector: selectors.BaseSelector, note: Callable[[str], None]
    ) -> None:
        """`note` takes what does not work and ends nobody."""
        self._folder, self._order, self._selector, self._note = folder, order, selector, note
        self._by_rank: dict[int, Output] = {}

    def open(self, rank: RankOrder) -> Output:
        """The rank's pipe and log, and the file that its user wanted. Not read before `listen`.

        Raises:
            UnusableOutput: see there. A file that cannot be written now is a note.
        """
        order = self._order
        extra = None
        if order.launch.output:
            path = output_path(
                order.launch.output, order.launch.workdir, order.job_id, order.attempt, rank.rank
            )
            try:
                extra = open_output(path, order)
            except OSError as error:
                self._note(f"output: cannot write {path}: {error.strerror}")
            except ValueError as error:
                raise UnusableOutput(f"{order.launch.output!r}: {error}") from None
        log = LogWriter(self._folder / LOGS, rank.rank, order.log_bytes_max, owner_of(order))
        output = self._by_rank[rank.rank] = Output(log, extra)
        return output

    def listen(self, rank: int) -> None:
        """Read it whenever there is something."""
        fd = self._by_rank[rank].fd
        self._selector.register(fd, selectors.EVENT_READ, lambda: self.drain(rank))

    def drain(self, rank: int) -> None:
        """Read, and let the pipe fill for a moment before the next time."""
        output = self._by_rank[rank]
        if not output.is_open:
            return
        fd = output.fd
        output.drain(time.monotonic())
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def drain_all(self) -> None:
        for rank in self._by_rank:
            self.drain(rank)

    def listen_again(self, now_s: float) -> None:
        """To those whose pause is over."""
        for rank, output in self._paused():
            if now_s >= output.resume_s:
                self.listen(rank)

    @property
    def next_alarm_s(self) -> float:
        return min((output.resume_s for _, output in self._paused()), default=float("inf"))

    def _paused(self) -> Iterator[tuple[int, Output]]:
        watched = self._selector.get_map()
        for rank, output in self._by_rank.items():
            if output.is_open and output.fd not in watched:
                yield rank, output

    @property
    def bytes_seen(self) -> int:
        return sum(each.bytes_seen for each in self._by_rank.values())

    @property
    def tails(self) -> dict[int, str]:
        """The end of each rank's log."""
        return {rank: output.tail for rank, output in self._by_rank.items()}

    def close(self) -> None:
        for output in self._by_rank.values():
            output.close()
