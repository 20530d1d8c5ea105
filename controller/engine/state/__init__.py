"""What the engine knows: the ledger with its indexes, the phases of jobs, the commands of one event."""
