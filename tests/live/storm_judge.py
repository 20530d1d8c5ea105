"""What must hold after a storm, and the table that says what happened in it.

Rule: judged is what jobs, witnesses, agents and the journal say each for itself; no judgement is about time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from cotenant.controller.domain import ENDED, JobId, Phase
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.policies import registry
from cotenant.controller.store import Journal, JournalReader, RecoveredState, read_entry, replay
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import unpack
from tests.live.cluster import References
from tests.live.storm import Storm
from tests.live.storm_plan import HOSTS

KEPT = ("phase", "attempt", "preemptions", "durable_step", "wait_s", "load_s", "run_s", "pause_s")
"""What the controller knows from its journal; telemetry is not in it."""


def complaints(storm: Storm, references: References) -> list[str]:
    """Everything that does not hold; the controller is stopped afterwards."""
    cluster = storm.cluster
    listed = {job.job_id for job in cluster.client.ask(wire.ListJobs(include_ended=True)).jobs}
    shown = {job_id: cluster.shown(job_id) for job_id in cluster.trainings}
    found: list[str] = []

    def judge(what: str, check: Callable[[], None]) -> None:
        try:
            check()
        except AssertionError as wrong:
            found.append(f"{what}: {wrong}")

    def accepted() -> None:
        assert listed == set(cluster.trainings), (
            f"listed {sorted(listed)}, accepted {sorted(cluster.trainings)}"
        )

    judge("accepted jobs", accepted)
    for job_id, each in shown.items():
        judge(f"job {job_id}", lambda job_id=job_id, each=each: check_job(storm, references, job_id, each))  # type: ignore[misc]
    found += [f"too many on a device: {crowd}" for crowd in dict.fromkeys(storm.world.deeds.crowds)]
    judge("processes", cluster.await_no_process)
    judge("the journal", lambda: check_records(storm, shown))
    return found


def check_job(storm: Storm, references: References, job_id: JobId, shown: wire.Shown) -> None:
    """Done exactly once, or as its own user asked; charged for what it did itself; right to the last bit."""
    cluster, attempts = storm.cluster, shown.attempts
    blamed = {(job_id, a.attempt) for a in attempts if a.outcome == "user-failed"}
    assert blamed <= storm.world.deeds.bereft, f"charged for what it did not do: {shown}"
    for later, a in enumerate(attempts):
        same_s = len({each.accumulation_steps for each in attempts[: later + 1]}) == 1
        # Split batches drew other dropout, as these jobs allow: that run says so, and counts as equivalent.
        is_told = a.exact is not False or a.equivalent or not same_s
        assert is_told, f"attempt {a.attempt} was not resumed exactly: {attempts}"
        assert a.start_step >= newest(storm, job_id, attempts[:later]), f"{a.attempt} went back: {attempts}"
        results = [cluster.result(host, job_id, a.attempt) for host in HOSTS]
        ends = {result.verdict.outcome for result in results if result is not None}
        assert a.outcome != "finished" or ends == {"finished"}, f"attempt {a.attempt}: {results}"
    check_witness(storm, job_id, attempts)
    if shown.job.phase is Phase.CANCELLED:
        assert job_id in storm.world.deeds.cancelled, f"nobody cancelled it: {shown.job.reason}"
        return
    cluster.check_history(job_id)
    expected = references.sha256(cluster.trainings[job_id], attempts)
    assert cluster.sha256(job_id) == expected, f"its parameters differ: {attempts}"


def check_witness(storm: Storm, job_id: JobId, attempts: Sequence[wire.AttemptView]) -> None:
    """Beside a rank that stands still, or after a later one, starts only what a lost host is about: its own
    attempt, or one after that."""
    storm.cluster.starts(job_id)
    lost = [a.attempt for a in attempts if a.outcome == "host-lost"]
    for path in storm.cluster.witness.glob(f"{job_id}-r*.starts"):
        for word, _, attempt, _ in map(str.split, path.read_text().splitlines()):
            assert word != "late" or int(attempt) in lost, f"{path.name}: {attempt} came late: {attempts}"
            assert word != "beside" or min(lost, default=int(attempt)) < int(attempt), (
                f"{path.name}: {attempts}"
            )


def newest(storm: Storm, job_id: JobId, attempts: Sequence[wire.AttemptView]) -> int:
    """The newest step that these attempts have saved, as far as their supervisors had known by their end. One
    that was frozen with its host may have said so when the next had begun."""
    ended = [a.attempt for a in attempts if a.outcome != "host-lost"]
    results = [storm.cluster.result(host, job_id, attempt) for attempt in ended for host in HOSTS]
    return max((each.step for result in results if result for each in result.status.durable), default=0)


def without_times(attempt: wire.AttemptView) -> dict[str, Any]:
    """Times are shown by the wall clock of the answer, and that may have jumped."""
    return {
        name: value for name, value in msgspec.structs.asdict(attempt).items() if not name.endswith("_at")
    }


def check_records(storm: Storm, shown: dict[JobId, wire.Shown]) -> None:
    """What the journal says is the same after one more crash; no attempt began or ended twice; the policies
    would decide the same again; and no invariant of the ledger (tenants, memory, whole gangs) was broken."""
    cluster = storm.cluster
    controller = cluster.controller
    assert controller is not None
    controller.kill()
    controller.start()
    for job_id, before in shown.items():
        after = cluster.shown(job_id)
        one, other = (list(map(without_times, each.attempts)) for each in (before, after))
        assert one == other, f"job {job_id}: {one} became {other}"
        kept = [[getattr(each.job, name) for name in KEPT] for each in (before, after)]
        assert kept[0] == kept[1], f"job {job_id}: {kept[0]} became {kept[1]}"
    controller.stop()
    check_journal(cluster.folder / "controller", shown)


def check_journal(folder: Path, shown: dict[JobId, wire.Shown]) -> None:
    journal = Journal(folder)
    try:
        check_entries(journal)
    finally:
        journal.close()
    open_jobs = [each.job for each in shown.values() if each.job.phase not in ENDED]
    assert not open_jobs, open_jobs


def check_entries(journal: JournalReader) -> None:
    """The policies would decide the same again; no attempt began or ended twice; no invariant was broken."""
    replayed = replay(journal, registry.make, version("cotenant"))
    assert (replayed.differences, replayed.note) == ((), ""), (replayed.differences, replayed.note)
    events = [event for event, _ in folded(journal)]
    for kind in (ev.AttemptStarted, ev.AttemptEnded):
        times = Counter((e.job_id, e.attempt, e.host_id) for e in events if isinstance(e, kind))
        twice = [each for each, count in times.items() if count > 1]
        assert not twice, f"{kind.__name__} of {twice}"


def folded(journal: JournalReader) -> Iterator[tuple[ev.AnyEvent, RecoveredState]]:
    """Every event, with all invariants checked after it."""
    config: EngineConfig = unpack(journal.runs()[0].configuration, EngineConfig)
    state = RecoveredState(Engine(registry.make, config, validate=True))
    for entry in journal.entries():
        event, decision = read_entry(journal, entry)
        state.fold(event, decision, entry.now_s)
        yield event, state


# --- For people ------------------------------------------------------------------------------------


def table(storm: Storm) -> str:
    """What fell on the cluster, and what became of its jobs."""
    cluster, deeds = storm.cluster, storm.world.deeds
    lines = ["", f"{'blow':<22}{'struck':>8}{'missed':>8}"]
    for kind in sorted(deeds.struck | deeds.missed):
        lines.append(f"{kind:<22}{deeds.struck[kind]:>8}{deeds.missed[kind]:>8}")
    lines += ["", f"{'job':<6}{'GPUs':>5}{'steps':>7}  {'phase':<11}attempts (from..to, how each ended)"]
    for job_id in cluster.trainings:
        shown = cluster.shown(job_id)
        ran = ", ".join(f"{a.start_step}..{a.end_step} {a.outcome}" for a in shown.attempts)
        job = shown.job
        lines.append(f"{job_id:<6}{job.gpus:>5}{job.iterations or 0:>7}  {job.phase.value:<11}{ran}")
    return "\n".join(lines)
