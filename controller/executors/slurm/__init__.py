"""Hosts from a Slurm cluster, asked for and given back as ordinary jobs of its user's."""

# fmt: off
from cotenant.controller.executors.slurm.allocator import SlurmAllocator, endpoint_for_others
from cotenant.controller.executors.slurm.deciding import could_be_asked

__all__ = ["SlurmAllocator", "could_be_asked", "endpoint_for_others"]
# fmt: on
