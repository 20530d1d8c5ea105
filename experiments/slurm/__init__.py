"""A live Slurm, steered, beside itself."""
