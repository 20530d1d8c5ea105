"""The supervisor of one attempt: it starts the workers, outlives the agent, and records how they ended."""
