"""What the agent decides, from events and the time alone. Pure."""
