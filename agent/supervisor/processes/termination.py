"""Asking MPS daemons to take back what processes hold, before those are signalled.

Rule: children with a time limit ask, since a wedged daemon blocks whoever talks to it for ever; we kill a
child that is not done in time, and that is an answer as well. One child for each daemon, all at once.

The program is `python -m cotenant.mps.terminate PIPE_DIRECTORY PID... --timeout-s S`. It prints one JSON
object from pid to done, refused, unclear, gone or no-daemon, and ends within its timeout.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cotenant.agent.ipc.records import Order
from cotenant.controller.wire import BadMessage, decode_json

PROGRAM: Final = (sys.executable, "-m", "cotenant.mps.terminate")
START_S: Final = 2.0
"""For the child itself, beyond the time it is given."""
OUTPUT_BYTES_MAX: Final = 65_536


class ClientTermination:
    """A round of questions to MPS daemons. `deadline_s` and `poll` are for a loop that must not block."""

    def __init__(
        self,
        pids_by_pipe: Mapping[str, Sequence[int]],
        timeout_s: float,
        now_s: float,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.deadline_s = now_s + timeout_s + START_S
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._pids = dict(pids_by_pipe)
        self.problem = ""
        for pipe, pids in pids_by_pipe.items():
            if not pids:
                continue
            command = [*program, pipe, *map(str, pids), "--timeout-s", f"{timeout_s:g}"]
            try:
                self._children[pipe] = subprocess.Popen(  # Its complaints go into the supervisor's log.
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
                )
            except OSError as error:
                self.problem = f"cannot ask the MPS daemon: {error.strerror}"

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the children."""
        return tuple(child.pid for child in self._children.values())

    def poll(self, now_s: float) -> dict[int, str] | None:
        """Returns what became of each process; None while children work on it and there is time."""
        running = [child for child in self._children.values() if child.poll() is None]
        if running and now_s < self.deadline_s:
            return None
        for child in running:
            child.kill()
            child.wait()
            self.problem = "the MPS daemon did not answer in time"
        outcomes: dict[int, str] = {}
        for pipe, child in self._children.items():
            assert child.stdout is not None
            with child.stdout as out:  # One line, far below what a pipe holds.
                answer = _parse_answer(out.read(OUTPUT_BYTES_MAX))
            outcomes |= {pid: answer.get(str(pid), "unclear") for pid in self._pids[pipe]}
        self._children = {}
        return outcomes


class Terminations:
    """Rounds of questions, one after the other: a request during one starts another after it."""

    def __init__(self) -> None:
        self._round: ClientTermination | None = None
        self._again_s: float | None = None
        """Asked for anew while a round was under way: with this time limit."""

    @property
    def is_under_way(self) -> bool:
        return self._round is not None

    def ask(self, pids_by_pipe: Callable[[], Mapping[str, Sequence[int]]], timeout_s: float) -> None:
        if self._round is not None:
            self._again_s = timeout_s
            return
        self._round = ClientTermination(pids_by_pipe(), timeout_s, time.monotonic())

    def poll(
        self, pids_by_pipe: Callable[[], Mapping[str, Sequence[int]]], now_s: float
    ) -> tuple[dict[int, str], str] | None:
        """What became of each process, and why it could not be asked, once no round is under way any more."""
        outcomes = self._round.poll(now_s) if self._round is not None else None
        if self._round is None or outcomes is None:
            return None
        problem, self._round = self._round.problem, None
        if self._again_s is None:
            return outcomes, problem
        again_s, self._again_s = self._again_s, None
        self.ask(pids_by_pipe, again_s)
        return self.poll(pids_by_pipe, now_s)


def terminate(pids_by_pipe: Mapping[str, Sequence[int]], timeout_s: float) -> dict[int, str]:
    """Terminates MPS clients as `ClientTermination` does, for a caller that may block."""
    round_ = ClientTermination(pids_by_pipe, timeout_s, time.monotonic())
    while (outcomes := round_.poll(time.monotonic())) is None:
        time.sleep(0.02)
    return outcomes


def group_by_pipe(
    order: Order, trees: Mapping[int, Sequence[int]], others: Sequence[int]
) -> dict[str, list[int]]:
    """Whom to ask about which process. `trees`: processes by rank; `others`: of unknown rank, every daemon is
    asked about them."""
    ranks = {rank.rank: no for no, rank in enumerate(order.ranks)}
    asked: dict[str, list[int]] = {client.pipe_directory: [] for client in order.mps}
    for rank, pids in trees.items():
        asked[order.mps[ranks[rank] if len(order.mps) > 1 else 0].pipe_directory] += pids
    known = {pid for pids in trees.values() for pid in pids}
    for pids in asked.values():
        pids += [pid for pid in others if pid not in known]
    return asked


def _parse_answer(answer: bytes) -> Mapping[str, str]:
    try:
        read: dict[str, str] = decode_json(answer, dict[str, str])
    except BadMessage:
        return {}
    return read
