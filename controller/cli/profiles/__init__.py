"""`cotenant profile`: series of measurements, and what is known of kinds of jobs."""
