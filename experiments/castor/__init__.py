"""Behind results/castor.md: the runs, what is counted from them, and the page."""
