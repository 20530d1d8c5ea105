"""Policies for jobs that take any number of devices in a range: how many each gets, and what that takes."""

# fmt: off
from cotenant.controller.papers.literature.elastic.division import (
    SizeClaim, DeviceCounts, afs_l, claim_of, held_by, max_min, themis,
)
from cotenant.controller.papers.literature.elastic.policy import (
    AFS_L, MAX_MIN, THEMIS, Elastic, ElasticParameters,
)

__all__ = [
    "AFS_L", "MAX_MIN", "THEMIS", "Elastic", "ElasticParameters",
    "SizeClaim", "DeviceCounts", "afs_l", "claim_of", "held_by", "max_min", "themis",
]
# fmt: on
