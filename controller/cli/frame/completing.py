"""What a shell can complete from a running controller.

Rule: it never shows an error and never takes long: a controller that does not answer at once completes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cotenant.controller.client.asking import asking
from cotenant.controller.domain import texts
from cotenant.controller.present.problem import Problem
from cotenant.controller.wire import clients as wire

ANSWER_WITHIN_S: Final = 1.0


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    jobs = _quietly(lambda client: client.ask(wire.ListJobs(include_ended=True, limit=200)).jobs)
    return [(j.job_id, f"{j.name} {j.phase.value}") for j in jobs if j.job_id.startswith(incomplete)]


def complete_host(incomplete: str) -> list[str]:
    nodes = _quietly(lambda client: client.ask(wire.ListNodes()).nodes)
    return [n.host for n in nodes if n.host.startswith(incomplete)]


def complete_policy(incomplete: str) -> list[tuple[str, str]]:
    policies = _quietly(lambda client: client.ask(wire.GetPolicy()).offers)
    return [(p.policy, p.about) for p in policies if p.available and p.policy.startswith(incomplete)]


def _quietly(question: Callable[[Any], Any]) -> Any:
    try:
        with asking(timeout_s=ANSWER_WITHIN_S) as client:
            return texts.escape_texts(question(client))
    except Problem:
        return ()
