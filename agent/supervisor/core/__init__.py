"""The supervisor's decisions, pure: when an attempt stops, saves or hangs, and how it ended."""

# fmt: off
from cotenant.agent.supervisor.core import rank_messages
from cotenant.agent.supervisor.core.activity import CORE_SHARE_MIN, LOOK_S, READ_BYTES_MIN, ProcessActivity
from cotenant.agent.supervisor.core.edge import (
    AllGone, AnySupervisorEffect, AnyHappening, ClearLeftovers, ClientsTerminated, CouldNotStart, DumpStacks,
    EndRanks, Finish, Noted, OverMemory, Publish, RankExited, RankMessageCame, Sampled, Started,
    SetPace, SupervisorTicked, TellRank, TerminateClients, WriteWord,
)
from cotenant.agent.supervisor.core.exit_classifier import TAIL_BYTES, Ending, decide
from cotenant.agent.supervisor.core.exits import Exit, LaunchStage, StartProblem
from cotenant.agent.supervisor.core.printed import LINE_BYTES, LINK_MARK, PrintedFacts, link_in, metrics_in
from cotenant.agent.supervisor.core.rank_messages import (
    AnyRankWord, DurableSaid, FirstStepReached, MemorySeen, RankFailed, RankHello, Saving, StepConfirmed,
    StepDone, Stopped, parse,
)
from cotenant.agent.supervisor.core.stopping import TERMINATE_S, StopWish, unclean
from cotenant.agent.supervisor.core.supervision import Supervision

__all__ = [
    "CORE_SHARE_MIN", "LOOK_S", "READ_BYTES_MIN", "TAIL_BYTES", "TERMINATE_S", "AllGone",
    "AnySupervisorEffect", "AnyHappening", "AnyRankWord", "ClearLeftovers",
    "ClientsTerminated", "CouldNotStart", "DumpStacks", "DurableSaid", "EndRanks", "Ending", "Exit",
    "Finish", "FirstStepReached", "Noted", "OverMemory", "Publish", "RankExited", "RankFailed", "RankHello",
    "ProcessActivity", "RankMessageCame", "Sampled", "Saving", "LaunchStage",
    "StartProblem", "Started", "StepConfirmed", "StepDone",
    "SetPace",
    "StopWish", "Stopped", "Supervision", "SupervisorTicked", "TellRank", "TerminateClients",
    "LINE_BYTES", "LINK_MARK", "MemorySeen", "PrintedFacts", "WriteWord", "decide", "link_in", "metrics_in",
    "parse", "rank_messages", "unclean",
]
# fmt: on
