"""Slurm beside or below cotenant: its scripts, its commands, its queue and its hosts.

- `sbatch.py`: what `#SBATCH` lines mean here; `cotenant submit` finds it by name when a script has some.
- `aliases/`: `sbatch`, `squeue`, `scancel` and others as commands of ours (`cotenant slurm-aliases`).
- `alloc/`: hosts that are asked of a Slurm cluster as jobs need them (`cotenant alloc`).
- `steer/`: the waiting jobs of a Slurm that stays, in the order of one of our policies (`cotenant steer`).

Rule: nothing outside imports this package; the verbs, the server and `submission` find its parts by name.
What the journal and the protocol must know of it stands in `domain.allocations` and `wire.clients.cluster`.
"""
