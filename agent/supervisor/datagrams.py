"""Datagrams between the supervisor and the job's own library, in the `select` loop.

Rule: datagrams may be lost both ways, and what a job says is foreign (`rank_messages.py`): nothing here waits
for a rank, and a flood of datagrams does not starve the others. The folder is the job's user's from the
moment the socket is in it: a rank is written to only where the socket of its name is that user's own.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.agent.host.user_files import OpenFolder
from cotenant.agent.ipc.channel import PaceNow
from cotenant.agent.ipc.records import JOB, JOB_SOCKET, Order, attempt_folder
from cotenant.agent.supervisor.core.rank_messages import AnyRankWord, parse
from cotenant.agent.supervisor.processes.attempt_folder import give_job_folder, make_job_folder
from cotenant.checkpoint.talk import protocol

PACE: Final = struct.Struct("<ddddd")
BEAT: Final = struct.Struct("<d")
"""As `protocol.PACE_FILE` and `protocol.BEAT_FILE` say."""
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
        self.path = make_job_folder(folder, order) / JOB_SOCKET
        """What ranks are told."""
        self._folder = OpenFolder.open_path(self.path.parent)
        self._uid = order.launch.uid if os.geteuid() == 0 else os.geteuid()
        self._heard = heard
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            self._socket.bind(str(self.path))
        finally:
            os.umask(before)
        self._pace = self._folder.create(protocol.PACE_FILE, 0o644)
        os.pwrite(self._pace, PACE.pack(1.0, 0.0, 1.0, 0.0, 0.0), 0)
        self._folder.write(protocol.BEAT_FILE, BEAT.pack(0.0))
        self._attempts = folder.parent
        self._beside: tuple[str, int] | None = None
        give_job_folder(self._folder, order)
        selector.register(self._socket, selectors.EVENT_READ, self._read)

    def tell(self, rank: int, data: bytes) -> None:
        try:
            with self._folder.socket(f"rank-{rank}.sock", self._uid) as address:
                self._socket.sendto(data, address)
        except OSError:
            return  # Gone, not its own, or its queue is full: the agreement repeats it.

    def set_pace(self, pace: PaceNow, now_s: float) -> None:
        """Writes when the ranks may train, for those who look (`checkpoint/talk/pace.py`)."""
        data = PACE.pack(pace.pace, now_s + protocol.PACE_KEPT_S, pace.window, pace.phase, pace.step_s)
        with suppress(OSError):  # A full disk: the pace stays as it is, and soon counts no more.
            os.pwrite(self._pace, data, 0)
        if pace.beside is not None and pace.beside != self._beside:
            self._beside = pace.beside
            folder = attempt_folder(self._attempts, *pace.beside) / JOB
            # It may have gone, or its folder had to be elsewhere: then nothing is waited for.
            with suppress(OSError), OpenFolder.open_path(folder) as beside:
                beside.link_file(protocol.BEAT_FILE, self._folder, protocol.BEAT_BESIDE_FILE)

    def read_file(self, name: str, bytes_max: int) -> bytes:
        """What a rank has left in the folder. Raises OSError."""
        return self._folder.read(name, bytes_max)

    def close(self) -> None:
        self._socket.close()
        os.close(self._pace)
        with suppress(OSError):
            self._folder.unlink(JOB_SOCKET)
        self._folder.close()

    def _read(self) -> None:
        for _ in range(DATAGRAMS_MAX):
            try:
                data = self._socket.recv(protocol.DATAGRAM_BYTES_MAX + 1)
            except BlockingIOError:
                return
            word = parse(data)
            if word is not None:
                self._heard(word)
