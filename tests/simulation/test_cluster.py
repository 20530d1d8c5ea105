"""A whole cluster from one seed: real engine, agents and supervisors, a fake network, every kind of crash."""

from __future__ import annotations

import os

import pytest

from tests.simulation.cluster import Cluster, Plan


def test_gentle_faults_are_not_noticed_by_running_jobs() -> None:
    Cluster(1, Plan(gentle=True)).run()
