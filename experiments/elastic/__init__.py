"""Elastic jobs on whole devices: policies that resize beside rigid ones, on the same jobs."""
