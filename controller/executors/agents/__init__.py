"""Our agents as executors: commands out, reports in, leases."""

from cotenant.controller.executors.agents.link import AgentExecutor

__all__ = ["AgentExecutor"]
