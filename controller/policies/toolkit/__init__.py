"""What several policies use: victims, co-location, orders that look at the whole queue."""
