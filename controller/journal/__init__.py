"""What outlives the controller: events with their decisions, snapshots, and the way back from them."""
