"""What a script with `#SBATCH` lines calls inside its job: `srun` and `scontrol`.

Rule: this runs in the user's job, from a copy that nobody's PYTHONPATH has: Python 3.9 syntax, the standard
library, and nothing of ours.
"""
