"""Programs with the names of Slurm's, for scripts that call them."""
