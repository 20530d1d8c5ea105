"""Behind results/patient.md: the runs and the page."""
