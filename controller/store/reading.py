"""The state that a journal leads to, for whoever only asks.

Rule: nothing is written here and no time passes: `Core` adds that. So the same questions have the same
answers whether a controller runs or not.
"""

from __future__ import annotations

from collections import Counter

from cotenant.controller.domain import JobId, array_of
from cotenant.controller.history import EtaAnswer, JobRecord
from cotenant.controller.store.clock import Clock
from cotenant.controller.store.journal import JournalReader
from cotenant.controller.store.recovery import RecoveredState
from cotenant.controller.wire import unpack_struct


class ReadingCore:
    """State, journal and clock, as far as answers need them."""

    journal: JournalReader

    def __init__(self, journal: JournalReader, state: RecoveredState, clock: Clock) -> None:
        self.journal = journal
        self.state = state
        self.clock = clock
        self.counters: Counter[str] = Counter()
        self.etas = EtaAnswer()
        """When jobs end, by the newest roll-outs; empty before the first."""
        self._on_their_way: dict[JobId, JobRecord] = {}
        """Forgotten jobs that are not on disk yet."""

    def record(self, job_id: JobId) -> JobRecord | None:
        """A job as it is, or as it was when the engine forgot it; None: there was none.

        Raises:
            BadMessage: another version wrote it, in a way that this one does not read.
        """
        job = self.state.engine.jobs.get(job_id)
        if job is not None:
            return self.state.history.record(job)
        if job_id in self._on_their_way:
            return self._on_their_way[job_id]
        data = self.journal.past_job(job_id)
        return None if data is None else unpack_struct(data, JobRecord)

    def forgotten_tasks(self, array: str) -> list[JobRecord]:
        """Returns the forgotten tasks of an array, in order of arrival. Raises BadMessage, as `record`."""
        fresh = self._on_their_way.items()
        found = {each.job.number: each for job_id, each in fresh if array_of(job_id) == array != job_id}
        for data in self.journal.past_tasks(array):
            record = unpack_struct(data, JobRecord)
            found.setdefault(record.job.number, record)
        return [found[number] for number in sorted(found)]
