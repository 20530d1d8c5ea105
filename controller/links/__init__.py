"""The controller's side of the agents: commands out until seen, reports in, leases, logs passed through."""
