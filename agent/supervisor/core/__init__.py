"""What the supervisor decides, from events and the time alone. Pure."""
