"""A job of default settings without its cluster: the real environment and the real supervisor's decisions, in
this process.

Rule: nobody asks anything of the job. The order is what `cotenant submit` and the agent make of the command
where nothing is said about it; what a rank says goes to the supervisor's own state machine, and what that
answers goes back. Only starting and measuring processes is done by whoever uses this.
"""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.agent.ipc.records import Order, WatchRule
from cotenant.agent.supervisor.core.edge import (
    AnyHappening,
    RankExited,
    RankMessageCame,
    Started,
    SupervisorTicked,
    TellRank,
)
from cotenant.agent.supervisor.core.rank_messages import AnyRankWord
from cotenant.agent.supervisor.core.supervision import Supervision
from cotenant.agent.supervisor.datagrams import Datagrams
from cotenant.agent.supervisor.processes.attempt_folder import remove_short_folder
from cotenant.agent.supervisor.processes.environment import environment_of
from cotenant.agent.supervisor.processes.ranks import account_of
from cotenant.controller.domain import Launch
from cotenant.controller.submission.build import Submitter, submission
from tests.building.orders import order_of
from tests.ports import free_port

PROFILE_S: Final = 0.8
"""The profile in place of a first job. The default of a cluster is longer than most of our scripts run."""
WATCH: Final = WatchRule(floor_s=600.0, multiple=10.0)
LIMIT_S: Final = 3600.0


@cache
def default_words() -> tuple[str, ...]:
    """What the hook is asked to do for a script of which nothing was said."""
    return launch_of([sys.executable, __file__], Path("/"), {}).zero_code


def launch_of(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> Launch:
    """What `cotenant submit -- ARGV` makes of the command. `env`: given with `--env`."""
    where = Submitter(folder=folder, environ={})
    (spec,) = submission(argv, {}, where, command_only=True).request.specs
    return msgspec.structs.replace(spec.launch, env={**spec.launch.env, **env})


class Attempt:
    """The attempt of one job; its process is somebody else's."""

    def __init__(
        self,
        folder: Path,
        argv: Sequence[str],
        workdir: Path,
        env: Mapping[str, str],
        jobside: Path,
        *,
        accumulation_steps: int = 1,
        profile_s: float = PROFILE_S,
        words: Sequence[str] | None = None,
    ) -> None:
        """Prepares the attempt. `words`: what the hook is asked to do, where that is not the usual;
        `profile_s` 0: the job's kind is known."""
        launch = launch_of(argv, workdir, env)
        if words is not None:
            launch = msgspec.structs.replace(launch, zero_code=tuple(words))
        self.order: Order = order_of(
            launch=launch,
            accumulation_steps=accumulation_steps,
            profile_s=profile_s,
            checkpoint_root=str(folder / "checkpoints"),
            jobside_path=str(jobside),
            watch=WATCH,
            collective_scale=2.0,
            start_deadline_s=LIMIT_S,
            master_port=free_port(),
        )
        folder.mkdir(parents=True)
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._datagrams = Datagrams(folder, self.order, self._selector, self._hear)
        self._supervision = Supervision(self.order, time.monotonic())
        self.heard: list[AnyRankWord] = []

    @property
    def env(self) -> dict[str, str]:
        """Of its only process."""
        order = self.order
        return environment_of(order, order.ranks[0], self._datagrams.path, account_of(order.launch.uid))

    def began(self) -> None:
        self._handle(Started())

    def attend_until(self, over: Callable[[], bool], source: Any, limit_s: float) -> None:
        """Listens and answers until it is over, which `source` can be read to tell, or the limit is."""
        self._selector.register(source, selectors.EVENT_READ)
        until_s = time.monotonic() + limit_s
        try:
            while not over() and (left_s := until_s - time.monotonic()) > 0:
                alarm_s = max(0.0, self._supervision.next_alarm_s - time.monotonic())
                self._selector.select(min(left_s, alarm_s))
                self._answer()
        finally:
            self._selector.unregister(source)

    def ended(self, code: int) -> None:
        """The process is gone; a negative code is a signal."""
        self._answer()
        self._handle(RankExited(rank=0, exit_code=code) if code >= 0 else RankExited(rank=0, signal=-code))

    def close(self) -> None:
        self._datagrams.close()
        self._selector.close()
        remove_short_folder(self._folder)

    def _answer(self) -> None:
        """Takes in what was said by now, without waiting for more."""
        for found, _ in self._selector.select(0):
            if callable(found.data):
                found.data()
        if time.monotonic() >= self._supervision.next_alarm_s:
            self._handle(SupervisorTicked())

    def _hear(self, word: AnyRankWord) -> None:
        self.heard.append(word)
        self._handle(RankMessageCame(word=word))

    def _handle(self, event: AnyHappening) -> None:
        for effect in self._supervision.handle(event, time.monotonic()):
            if isinstance(effect, TellRank):
                self._datagrams.tell(effect.rank, effect.data)


def user_environment(home: Path) -> dict[str, str]:
    """What a shell and `cotenant submit --env` give to both: the script, and the script as a job."""
    return {
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin")),
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
    }
