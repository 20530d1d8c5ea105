"""Policies for jobs that take any number of devices in a range: how many each gets, and what that takes."""

from cotenant.controller.policies.elastic.division import Claim, Sizes, held_by
from cotenant.controller.policies.elastic.policy import AfsL, Elastic, ElasticParameters, MaxMin, Themis

__all__ = ["AfsL", "Claim", "Elastic", "ElasticParameters", "MaxMin", "Sizes", "Themis", "held_by"]
