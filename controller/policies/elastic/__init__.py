"""Policies for jobs that take any number of devices in a range: how many each gets, and what that takes."""

from cotenant.controller.policies.elastic.policy import AfsL, Elastic, ElasticParameters, MaxMin, Themis

__all__ = ["AfsL", "Elastic", "ElasticParameters", "MaxMin", "Themis"]
