"""GFS (ASPLOS '26): forecast what hp jobs will need, give spot jobs the rest, preempt at the least cost."""
