"""Progress reports are limited in rate, and the last step is told all the same."""

from __future__ import annotations

from typing import Any

from cotenant.checkpoint.talk import protocol
from cotenant.checkpoint.talk.reports import ProgressReporter


class Heard:
    """Stands in for the channel: keeps what is said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []

    def tell(self, message: str, /, **fields: Any) -> None:
        self.said.append((message, fields))

    report = tell


def test_what_the_rate_limit_held_back_is_told_at_the_end_and_only_once() -> None:
    heard = Heard()
    progress = ProgressReporter(heard, 0)  # type: ignore[arg-type]  # Two methods of the channel are used.
    for step in range(1, 6):
        if progress.due_at_s <= 100.0:
            progress.report(100.0, step, 1, 0.5)
    progress.flush(5, 1, 0.5)
    progress.flush(5, 1, 0.5)
    steps = [fields for name, fields in heard.said if name == protocol.STEP]
    assert [each["step"] for each in steps] == [1, 5]
    assert (steps[-1]["count"], steps[-1]["elapsed_s"], steps[-1]["loss"]) == (0, 0.0, 0.5)
