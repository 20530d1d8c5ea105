"""The child that answers questions about a shadow.

Rule: the child keeps its position between questions about the same shadow in memory only: a new child begins
again at the shadow's beginning, and finds the same.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.controller import wire
from cotenant.controller.policies.registry import make, make_or_stand_in
from cotenant.controller.sim.choices import PolicyChoice
from cotenant.controller.sim.compare import run_all
from cotenant.controller.sim.past import what_if
from cotenant.controller.sim.past.journal import NothingToReplay
from cotenant.controller.sim.past.replay import read_journal
from cotenant.controller.sim.past.shadow import ShadowFollower
from cotenant.controller.store import JournalError, place_of

JOBS_MAX: Final = 2_000
"""Only the last so many jobs are simulated."""
PAIRS: Final = "gavel-v100"


class Shadowing:
    """The shadow that was asked about last."""

    def __init__(self) -> None:
        self._key: object = None
        self._follower: ShadowFollower | None = None

    def answer_frame(self, frame: bytes) -> bytes:
        began_s = time.process_time()
        try:
            found = self.answer(wire.unpack_struct(frame, wire.ShadowQuestion))
        except JournalError as error:
            found = wire.ShadowAnswer(error=str(error))
        except Exception as error:  # noqa: BLE001 - what it follows may be of any policy
            self._key = None
            found = wire.ShadowAnswer(error=f"{type(error).__name__}: {error}")
        return msgspec.msgpack.encode(msgspec.structs.replace(found, cpu_s=time.process_time() - began_s))

    def answer(self, question: wire.ShadowQuestion) -> wire.ShadowAnswer:
        where, policy = place_of(question.journal), make(question.policy, question.parameters)
        key = (question.journal, question.policy, msgspec.json.encode(question.parameters), question.begin_s)
        if self._follower is None or key != self._key:
            self._follower = ShadowFollower(policy, question.begin_s, make_or_stand_in)
            self._key = key
        follower = self._follower
        is_caught_up = follower.advance(where, question.entries_max)
        simulated, why_not = None, ""
        if question.simulate and is_caught_up:
            try:
                since_s = max(1.0, follower.reached_s - question.begin_s)
                choice = PolicyChoice(question.policy, question.parameters)
                simulated = simulate(where, choice, since_s)
            except (NothingToReplay, ValueError) as error:
                why_not = str(error).removeprefix(f"{where}: ")  # Which journal it is goes without saying.
        return wire.ShadowAnswer(
            reached=follower.reached,
            reached_s=follower.reached_s,
            is_caught_up=is_caught_up,
            tally=follower.tally(),
            simulated=simulated,
            why_not=why_not,
        )


def simulate(where: Path | str, choice: PolicyChoice, since_s: float) -> dict[str, Any]:
    """The jobs that arrived since then and have ended, under the policy of the time and under this one, as
    `whatif` does it.

    Raises:
        NothingToReplay: there is none.
    """
    record = read_journal(where, since_s=since_s)
    if len(record.jobs) > JOBS_MAX:
        note = f"only the last {JOBS_MAX} of {len(record.jobs)} jobs are simulated"
        record = replace(record, jobs=record.jobs[-JOBS_MAX:], notes=(note, *record.notes))
    tasks = what_if.replay_tasks(record, [choice], pairs=PAIRS, seed=0)
    runs = run_all(tasks, workers=1, keep=True)
    begin, end = wire.utc(record.begin_wall_s), wire.utc(record.end_wall_s)
    return what_if.document(record, runs, pairs=PAIRS, begin=begin, end=end)
