"""Behind docs/results/patient.md: the runs and the page."""
