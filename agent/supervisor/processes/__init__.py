"""How the supervisor acts: workers, their environment, their output, their end."""
