"""GFS (ASPLOS '26): forecast what hp jobs will need, give the rest to spot jobs, preempt at the least cost."""
