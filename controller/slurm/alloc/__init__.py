"""Hosts from a Slurm cluster, asked for and given back as ordinary jobs of its user's."""

# fmt: off
from cotenant.controller.slurm.alloc.allocator import SlurmAllocator
from cotenant.controller.slurm.alloc.deciding import could_be_asked

__all__ = ["SlurmAllocator", "could_be_asked"]
# fmt: on
