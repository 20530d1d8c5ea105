"""The agent's decisions, pure: what it starts, ends, reports and remembers, from events and time alone."""

__all__ = [
    "disk_shares",
    "edge",
    "memory",
    "notes",
    "remembered",
    "reporting",
    "state",
    "tenants",
]
