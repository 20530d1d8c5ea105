"""What a supervisor's edge tells its state machine, and what the state machine asks of the edge.

Rule: `supervision.py` knows nothing but these and the agent's `ToSupervisor` words. Effects are carried
out in order.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cotenant.agent.ipc import channel, records
from cotenant.agent.supervisor.core.exits import StartProblem
from cotenant.agent.supervisor.core.printed import PrintedFacts
from cotenant.agent.supervisor.core.rank_messages import AnyRankWord
from cotenant.controller.domain import LaunchKind
from cotenant.profiler.indicators.sources import Timed

# --- Edge -> state machine -------------------------------------------------------------------------


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what the edge says."""


class Started(Happening, frozen=True, kw_only=True):
    """Every process of `Order.ranks` has been started."""

    launch: LaunchKind = "cold"
    launch_why: str = ""


class CouldNotStart(Happening, frozen=True, kw_only=True):
    """A process could not be started; the processes before it may run and have to be ended."""

    problem: StartProblem


class RankMessageCame(Happening, frozen=True, kw_only=True):
    word: AnyRankWord


class RankExited(Happening, frozen=True, kw_only=True):
    """A process that we started is gone; its children may not be. Exactly one of the two is set."""

    rank: int
    exit_code: int | None = None
    signal: int | None = None


class Sampled(Happening, frozen=True, kw_only=True):
    """Measured about once a second; None = not known (never 0 instead)."""

    memory_mib: float | None = None
    """Of the rank that uses most."""
    duty_cycle: float | None = None
    cpu_s: float = 0.0
    """Of all processes together, since the start."""
    read_bytes: int = 0
    """Of all processes together, through any file, as far as the kernel tells it."""
    input_bytes: int = 0
    """Typed into its terminal so far; 0: nothing, or it has none."""
    output_bytes: int = 0
    printed: PrintedFacts = PrintedFacts()
    samples: tuple[Timed, ...] = ()
    """Indicators since the last time; only while the attempt is profiled."""
    is_stopped: bool = False
    """A process is stopped (SIGSTOP, a debugger): it cannot make steps, and that is somebody's wish."""
    others_mib: float = 0.0
    """Private memory of processes beside the worker's own (data loaders), where that is most."""


class OutsideSignal(Happening, frozen=True, kw_only=True):
    """The supervisor itself was signalled, from outside of the job."""

    number: int


class OverMemory(Happening, frozen=True, kw_only=True):
    """The processes use more host memory than the job asked for, where no cgroup enforces it."""

    used_mib: float


class Noted(Happening, frozen=True, kw_only=True):
    """Something does not work as it should, and the attempt goes on."""

    text: str


class ClientsTerminated(Happening, frozen=True, kw_only=True):
    """The answer to `TerminateClients`: what became of each process, in the words of
    `cotenant.mps.terminate`: done, refused, unclear, gone, no-daemon."""

    outcomes: Mapping[int, str] = {}
    problem: str = ""
    """Why it could not be asked at all, or not to the end."""


class AllGone(Happening, frozen=True, kw_only=True):
    """The answer to `ClearLeftovers`: no process of the attempt is left."""

    tails: Mapping[int, str] = {}
    """The end of each process's log."""
    printed: PrintedFacts = PrintedFacts()
    oom_kills: int = 0
    host_oom_kills: int = 0
    counts_oom: bool = False
    """As `Ending` says."""


class SupervisorTicked(Happening, frozen=True, kw_only=True):
    """The alarm at `next_alarm_s` has come; early or late does not matter."""


AnyHappening = (
    Started
    | CouldNotStart
    | RankMessageCame
    | RankExited
    | Sampled
    | OutsideSignal
    | OverMemory
    | Noted
    | ClientsTerminated
    | AllGone
    | SupervisorTicked
    | channel.StopNow
    | channel.LimitNow
    | channel.SaveNow
    | channel.LeaseNow
    | channel.CoTenantsChanged
    | channel.PaceNow
    | channel.TellNow
    | channel.GangIn
)

# --- State machine -> edge -------------------------------------------------------------------------


class SupervisorEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what the state machine asks for."""


class TellRank(SupervisorEffect, frozen=True, kw_only=True):
    """Send a datagram to a rank of this host; may be lost."""

    rank: int
    data: bytes


class WriteWord(SupervisorEffect, frozen=True, kw_only=True):
    """Write a line of ours where the job's user looks: into the log of its first rank here."""

    text: str


class SetPace(SupervisorEffect, frozen=True, kw_only=True):
    """Tell all ranks of this host when they may train."""

    pace: channel.PaceNow


class InterruptRanks(SupervisorEffect, frozen=True, kw_only=True):
    """SIGINT to the processes that we started and their groups, as Ctrl-C on a terminal sends it. Of a client
    of an MPS daemon only those that handle it get it: to any other it is death in the middle of its work."""


class EndRanks(SupervisorEffect, frozen=True, kw_only=True):
    """SIGTERM to the processes that we started and their groups; SIGKILL to everything if `force`."""

    force: bool


class TerminateClients(SupervisorEffect, frozen=True, kw_only=True):
    """Have the MPS daemons take back what the attempt's processes hold, before anybody signals them; answer
    `ClientsTerminated` within `timeout_s` and a little."""

    timeout_s: float


class DumpStacks(SupervisorEffect, frozen=True, kw_only=True):
    """Have every process write the stacks of its threads into its log, and go on; with `abort`, those that
    could not are aborted, which writes them as well."""

    abort: bool = False


class Publish(SupervisorEffect, frozen=True, kw_only=True):
    """Send the status to the agent, if there is one; write it into `status.json` as well if `keep`."""

    status: records.Status
    keep: bool


class ClearLeftovers(SupervisorEffect, frozen=True, kw_only=True):
    """All that we started is gone: end whatever else is left, then answer `AllGone`."""


class Finish(SupervisorEffect, frozen=True, kw_only=True):
    """Write `result.json`, tell the agent, and leave."""

    result: records.Result


AnySupervisorEffect = (
    TellRank
    | WriteWord
    | SetPace
    | InterruptRanks
    | EndRanks
    | TerminateClients
    | DumpStacks
    | Publish
    | ClearLeftovers
    | Finish
    | channel.GangOut
)
