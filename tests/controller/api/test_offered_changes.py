"""What the live page offers is what the controller takes."""

from __future__ import annotations

import pytest

from cotenant.controller.api.changes import POSSIBLE as TAKEN
from cotenant.controller.domain import Phase
from cotenant.controller.web.pages.job import POSSIBLE, consequence, offered
from tests.controller.cli import replies


@pytest.mark.parametrize("phase", list(Phase))
def test_in_each_phase_the_same(phase: Phase) -> None:
    job = replies.job_view(phase=phase)
    assert set(offered(job)) == {verb for verb, phases in TAKEN.items() if phase in phases}
    for verb in offered(job):
        assert consequence(verb, job)


def test_all_that_can_be_asked_for() -> None:
    assert set(POSSIBLE) == set(TAKEN)
