"""Our agents as executors: commands out, reports in, leases."""

# fmt: off
from cotenant.controller.executors.agents.link import AgentExecutor
from cotenant.controller.executors.agents.log_relay import LogQuestion

__all__ = ["AgentExecutor", "LogQuestion"]
# fmt: on
