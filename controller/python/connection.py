"""One question to the controller, or a few over one connection.

Rule: every failure leaves as an error of `errors.py`; the code that opens a connection closes it. A
controller that answered before and is silent now may be starting again: a wait for a job waits for it as
well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from cotenant.controller.cli.frame.asking import PATIENCE_S, asking
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.client import Client
from cotenant.controller.python.errors import CotenantError, NoController, RequestRefused
from cotenant.controller.wire import clients

Answer = TypeVar("Answer")


@contextmanager
def connected(endpoint: str | None, *, patient: bool = False) -> Iterator[Client]:
    """`patient`: for waits that last as long as a job. Raises NoController, RequestRefused."""
    with translated(), asking(endpoint, patience_s=PATIENCE_S if patient else 0.0) as client:
        client.on_silence = lambda text: None  # A library prints nothing.
        yield client


def asked(question: clients.Question[Answer], endpoint: str | None, timeout_s: float | None = None) -> Answer:
    """Raises NoController, RequestRefused."""
    with connected(endpoint) as client:
        return client.ask(question, timeout_s)


@contextmanager
def translated() -> Iterator[None]:
    """Of the command line's problems, our errors."""
    try:
        yield
    except Problem as problem:
        raise error_of(problem) from None


def error_of(problem: Problem) -> CotenantError:
    if problem.code == "unreachable":
        return NoController(problem.message, problem.hint)
    return RequestRefused(problem.code, problem.message, problem.hint)
