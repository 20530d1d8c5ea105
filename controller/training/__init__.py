"""What fits, trains or searches, in a process of its own; it may use the simulator, never the reverse."""
