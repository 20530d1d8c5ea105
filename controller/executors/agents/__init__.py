"""Our agents as executors: commands out, reports in, leases."""

# fmt: off
from cotenant.controller.executors.agents.delivery import LogQuestion
from cotenant.controller.executors.agents.link import AgentExecutor

__all__ = [
    "AgentExecutor", "LogQuestion",
]
# fmt: on
