"""How the processes of an attempt ended, or could not be started, and why a supervisor ended them."""

from __future__ import annotations

from typing import Literal

import msgspec

from cotenant.agent.supervisor.core.exit_rules import SIGNALS_OF_SHELLS

ExitCause = Literal[
    "", "stop", "no-agreement", "deadline", "lease", "start-deadline", "peer", "memory", "linger", "hang"
]
"""Why the supervisor ended the processes; empty if they ended by themselves."""

LaunchStage = Literal["workdir", "command", "user", "process"]


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one started process; exits are kept in the order in which they came."""

    rank: int
    exit_code: int | None = None
    signal: int | None = None
    was_told: bool = False
    """It ended after we had told it to."""

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0

    @property
    def shell_code(self) -> int:
        """The exit code as a shell would give it: 128 + n on a signal."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 0

    @property
    def by_signal(self) -> int | None:
        """The signal, also where a shell in between turned it into 128 + n."""
        code = self.exit_code or 0
        return self.signal or (code - 128 if code - 128 in SIGNALS_OF_SHELLS else None)


class StartProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A process could not be started at all."""

    rank: int
    stage: LaunchStage
    code: int
    """errno."""
    text: str
