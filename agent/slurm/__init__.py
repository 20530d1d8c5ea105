"""Slurm on a host of ours: scripts with `#SBATCH` lines (`environment.py`, `steps/`), and hosts that a Slurm
job brings (`allocation.py`).

Rule: nothing else imports this package. A supervisor finds `environment` by name when a job has such a
script; a batch script of `cotenant alloc` runs `allocation` as a program.
"""
