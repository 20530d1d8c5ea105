"""The default, `cotenant` that hears of lengths only from running jobs, beside fifo, EASY and tiresias."""
