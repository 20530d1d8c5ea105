"""One process per attempt: it starts the workers, stays when the agent goes, and writes how they ended."""
