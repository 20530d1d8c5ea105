"""Real DDP jobs that may share a device, under one policy after the other: runs, counts, the page."""
