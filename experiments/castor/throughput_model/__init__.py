"""Behind results/throughput.md: what is held out, live measurements, the page and its pictures."""
