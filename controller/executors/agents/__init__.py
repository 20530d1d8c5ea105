"""The executor for our agents: it delivers commands, takes reports and grants leases."""

from cotenant.controller.executors.agents.link import AgentExecutor, AgentNews

__all__ = ["AgentExecutor", "AgentNews"]
