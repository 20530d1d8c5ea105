"""Behind results/gfs-forecast.md: forecasters judged on real demand, and the page."""
