"""The socket between the supervisor and the job's own library, in the `select` loop.

Rule: datagrams may be lost both ways, and what a job says is foreign (`words.py`): nothing here waits for a
rank, and a flood of words leaves others their turn.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.agent.attempt.processes.premises import give_socket, make_job_folder
from cotenant.agent.attempt.words import AnyRankWord, parse
from cotenant.agent.folder import JOB_SOCKET
from cotenant.agent.records import Order
from cotenant.controller.wire.job import DATAGRAM_BYTES_MAX

DATAGRAMS_MAX: Final = 64
"""Taken in one go, before others get their turn."""


class Datagrams:
    def __init__(
        self,
        folder: Path,
        order: Order,
        selector: selectors.BaseSelector,
        heard: Callable[[AnyRankWord], None],
    ) -> None:
        self._folder = make_job_folder(folder, order)
        self._heard = heard
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(self.path))
        give_socket(self._folder, order)
        selector.register(self._socket, selectors.EVENT_READ, self._read)

    @property
    def path(self) -> Path:
        """What ranks are told."""
        return self._folder / JOB_SOCKET

    def tell(self, rank: int, data: bytes) -> None:
        try:
            self._socket.sendto(data, str(self._folder / f"rank-{rank}.sock"))
        except OSError:
            return  # Gone, or its queue is full: the agreement says it again.

    def close(self) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _read(self) -> None:
        for _ in range(DATAGRAMS_MAX):
            try:
                data = self._socket.recv(DATAGRAM_BYTES_MAX + 1)
            except BlockingIOError:
                return
            word = parse(data)
            if word is not None:
                self._heard(word)
