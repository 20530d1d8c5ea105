"""The session's hello to its supervisor, and what it finds out of itself later.

Rule: hello is said whole each time: whoever has heard only the last one knows all of it. What is promised
there (it can resume, it can be asked for another s) is only promised while somebody listens for the orders.
"""

from __future__ import annotations

from typing import Any

from cotenant.checkpoint.talk import gang, protocol
from cotenant.checkpoint.talk.agreement import Agreement
from cotenant.checkpoint.talk.channel import SupervisorChannel
from cotenant.checkpoint.talk.protocol import JobEnvironment
from cotenant.checkpoint.training.lineage import Resumed


class Introduction:
    """`channel` None: there is no supervisor, and nobody to introduce oneself to."""

    def __init__(self, channel: SupervisorChannel | None, agreement: Agreement, env: JobEnvironment) -> None:
        self._channel = channel
        self._agreement = agreement
        self._env = env
        self._fields: dict[str, Any] = {}

    def say(
        self,
        step: int,
        resumed: Resumed | None,
        accumulates: bool | str | None,
        models: list[Any],
        resumable_note: str,
    ) -> None:
        """Once all that it says is known. accumulates: the script's own word, a str is why not."""
        channel = self._channel
        if channel is None:
            return
        fields: dict[str, Any] = {"world_size": self._env.world_size, "step": step}
        is_open = channel.open()
        fields["turns"] = fields["looks"] = is_open
        # In a script that knows nothing of us, a later batch that cannot be split is an error: that is not
        # risked for a mere measurement.
        fields["trials"] = is_open and (accumulates is None or not self._env.zero_code)
        fields["resumable"] = is_open and self._agreement.can_save
        fields["accumulates"], fields["accumulates_note"] = _accumulates(accumulates, models)
        if resumed is not None:
            fields["resumed_from"] = resumed.name
            fields["exact"], fields["note"] = resumed.exact, resumed.note
        if not fields["resumable"] and resumable_note:
            fields["resumable_note"] = resumable_note
        channel.tell(protocol.HELLO, **fields)
        self._fields = fields

    def accumulation_known(self, reason: str | None) -> None:
        """Batches can be split (None), or why not."""
        self._correct(accumulates=reason is None, accumulates_note=reason or "")

    def cannot_resume(self, reason: str) -> None:
        self._correct(resumable=False, resumable_note=reason)

    def stops_looking(self) -> None:
        """Nobody is to ask any more whether it makes steps."""
        if self._fields:
            self._correct(looks=False)

    def over(self) -> None:
        self._fields = {}

    def _correct(self, **fields: Any) -> None:
        if self._channel is not None:
            self._fields.update(fields)
            self._channel.tell(protocol.HELLO, **self._fields)


def _accumulates(said: bool | str | None, models: list[Any]) -> tuple[bool, str]:
    if isinstance(said, str):
        return False, said
    accumulation = gang.accumulation()
    if said is not None or accumulation is None:
        return bool(said), ""
    reasons = [accumulation.refusal(model) for model in models]
    reason = "; ".join(reason for reason in reasons if reason)
    return not reason, reason
