"""Behind results/lazer.md: the runs, what is counted from them, and the page."""
