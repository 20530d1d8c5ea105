"""What each event changes: requests of users, reports of agents, hosts that come and go."""
