"""The supervisor's actions: it starts workers with their environment, keeps their output, and ends them."""

# fmt: off
from cotenant.agent.supervisor.processes import ranks
from cotenant.agent.supervisor.processes.attempt_folder import (
    give_job_folder, make_job_folder, remove_short_folder,
)
from cotenant.agent.supervisor.processes.environment import (
    STACKS_SIGNAL, Account, command_of, environment_of,
)
from cotenant.agent.supervisor.processes.nccl import NOT_DIRECT
from cotenant.agent.supervisor.processes.launchers import NotLaunchable
from cotenant.agent.supervisor.processes.logs import LogWriter, log_end, read_log
from cotenant.agent.supervisor.processes.measuring import Measuring, host_oom_kills
from cotenant.agent.supervisor.processes.outputs import Output, Outputs
from cotenant.agent.supervisor.processes.outside_signals import block_signals, take_outside_signals
from cotenant.agent.supervisor.processes.ranks import (
    RankStartFailed, abort_others, account_of, catches, cuda_indices, dump, end_groups,
    has_children, interrupt, keep_files_to_ourselves, kill_children, reap, start,
)
from cotenant.agent.supervisor.processes.reaper import end_leftovers, end_others, leave_to_reaper
from cotenant.agent.supervisor.processes.terminal import Terminal
from cotenant.agent.supervisor.processes.termination import Terminations, group_by_pipe

__all__ = [
    "NOT_DIRECT", "STACKS_SIGNAL", "Account", "LogWriter", "Measuring", "NotLaunchable", "Output", "Outputs",
    "RankStartFailed", "Terminal", "Terminations", "abort_others", "account_of",
    "block_signals",
    "group_by_pipe", "catches", "command_of", "cuda_indices", "dump", "end_groups", "end_leftovers",
    "end_others",
    "environment_of", "give_job_folder", "has_children", "host_oom_kills", "keep_files_to_ourselves",
    "interrupt", "kill_children", "leave_to_reaper", "log_end", "make_job_folder",
    "ranks", "read_log", "reap", "remove_short_folder", "start",
    "take_outside_signals",
]
# fmt: on
