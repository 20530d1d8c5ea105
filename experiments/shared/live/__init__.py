"""Real DDP jobs on CPU slots beside the simulator: schedules, runs, their errors, the page."""
