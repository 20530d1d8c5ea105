"""Recovery and replay: the journal leads back to the same state, and the policies would decide the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import ENDED, Decision, HostId, JobId, Phase
from cotenant.controller.domain import events as ev
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.planning import View
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.store import archive_journal, recover
from cotenant.controller.store.recovery import RecoveredState, replay
from cotenant.controller.wire import clients
from tests.controller.station import Station, job, report, run_one

Make = Callable[..., Station]


def image(state: RecoveredState) -> dict[str, Any]:
    """A state as a plain value, for comparing."""
    return msgspec.msgpack.decode(state.save(), type=dict[str, Any])


def live_through(station: Station, rng: random.Random, steps: int) -> None:
    """A random but possible life: submissions, changes of mind, hosts that come, go and work."""
    agents_by_host = {f"h{at}": f"agent-h{at}".encode() for at in range(3)}
    for _ in range(steps):
        station.tick(rng.uniform(0.0, 8.0))
        engine = station.core.state.engine
        alarm_s = engine.next_alarm_s
        if alarm_s is not None and station.core.ring():
            station.core.happen(ev.AlarmRang())
            station.settle()
        choice = rng.random()
        if choice < 0.35:
            station.submit(
                gpus_min=(gpus := rng.choice([1, 1, 2])),
                gpus_max=gpus,
                memory_mib=rng.choice([1_000, 3_000, None]),
                expected_s=rng.choice([10.0, 100.0, 1_000.0, None]),
                batch_size=8,
                resumable=rng.choice([True, None]),
                profile=rng.choice([PROFILE, None]),
            )
        elif choice < 0.5 and engine.jobs:
            verb = rng.choice(["cancel", "hold", "release", "preempt", "checkpoint"])
            station.ask(clients.ChangeJobs(verb=verb, job_ids=(rng.choice(list(engine.jobs)),)))  # type: ignore[arg-type]
        elif choice < 0.6:
            name = rng.choice(list(agents_by_host))
            station.join(name, devices=2)
        elif choice < 0.65:
            station.ask(clients.SetPolicy(name=rng.choice(["fifo", "sjf", "srtf", "castor"])))
        else:
            running = [j for j in engine.jobs.values() if j.attempt.hosts_left]
            if running:
                chosen = rng.choice(running)
                address = agents_by_host[chosen.attempt.hosts_left[0]]
                if address in station.link._addresses:
                    run_one(station, address, chosen.job_id, until=rng.choice(["start", "step", "end"]))


PROFILE = Profile(
    points=(
        ProfilePoint(sub_batch=8, accumulation_steps=1, step_s=0.1, memory_mib=3_000),
        ProfilePoint(sub_batch=4, accumulation_steps=2, step_s=0.12, memory_mib=2_000),
    ),
    duty_cycle=0.6,
)


def without_epoch(image: dict[str, Any]) -> dict[str, Any]:
    """A start is an event, and begins an epoch of its own."""
    image["engine"].pop("now_s")
    for name in ("epoch", "epochs_past", "epochs_of_run"):
        image["engine"]["ledger"].pop(name)
    return image


@pytest.mark.parametrize("snapshot_every", [7, 20_000])
def test_a_restart_leads_to_the_same_state(stations: Make, seed: int, snapshot_every: int) -> None:
    rng = random.Random(seed)
    station = stations(snapshot_every=snapshot_every, policy="castor")
    for _ in range(4):
        live_through(station, rng, 30)
        before = without_epoch(image(station.core.state))
        at_s = station.wall_s + station.time_s
        station = stations(snapshot_every=snapshot_every, policy="castor", wall_s=at_s)
        assert without_epoch(image(station.core.state)) == before
        if snapshot_every == 7:
            assert station.core.recovered_entries < 7 + 3, "a snapshot spares the entries before it"


def test_replay_decides_the_same_byte_for_byte(stations: Make, seed: int) -> None:
    rng = random.Random(seed)
    station = stations(snapshot_every=50, policy="srtf")
    live_through(station, rng, 60)
    station = stations(snapshot_every=50, policy="srtf", wall_s=9_000.0)
    live_through(station, rng, 60)
    entries = station.journal.last_seq
    assert entries > 100
    replayed = replay(station.journal, registry.make, "1.2.3")
    assert replayed.differences == () and replayed.entries == entries and replayed.note == ""


def test_with_an_archived_past_replay_and_a_start_without_snapshots_come_to_the_same(
    stations: Make, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    station = stations(snapshot_every=50, policy="srtf")
    live_through(station, rng, 60)
    database = station.journal.database
    before = replay(station.journal, registry.make, "1.2.3")
    done = archive_journal(database, tmp_path, 1e12)
    assert done.files and done.files[-1].last_seq < station.journal.last_seq
    assert replay(station.journal, registry.make, "1.2.3") == before
    live_through(station, rng, 20)
    state = image(station.core.state)
    with closing(database.open_reading()) as reading:
        last = reading.rows("SELECT max(seq) FROM snapshots")[0][0]
    station.journal.flush()
    for known in (last, 0):
        database.maintain("UPDATE snapshots SET data = ? WHERE seq > ?", (b"of a later version", known))
        recovered = recover(station.journal, registry.make, station.core._config)
        assert image(recovered) == state


def test_replay_says_where_another_policy_would_differ(stations: Make, seed: int) -> None:
    station = stations(policy="fifo")
    station.join("h1", devices=1)
    for expected_s in (500.0, 1_000.0, 10.0):
        station.submit(expected_s=expected_s)
    run_one(station, b"agent-h1", JobId("1"))  # fifo starts 2, sjf would start 3

    def make(name: str, parameters: Parameters) -> Policy:
        return registry.make("sjf" if name == "fifo" else name, parameters)

    replayed = replay(station.journal, make, "9.9.9")
    # The first placement differs in its reason only, which names the order; the second in the job.
    assert [difference.event for difference in replayed.differences] == ["JobArrived", "AttemptEnded"]
    assert "job_id='3'" in replayed.differences[1].what.partition("recorded")[0]
    assert "job_id='2'" in replayed.differences[1].what.partition("recorded")[2]
    assert replayed.note == "written by cotenant 1.2.3, replayed by 9.9.9"


class Mute:
    """A policy that must not be asked."""

    name = "fifo"

    def __init__(self, real: Policy) -> None:
        self._real = real
        self.queue_key, self.save, self.load = real.queue_key, real.save, real.load
        self.explain, self.observe, self.traits = real.explain, real.observe, real.traits

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        raise AssertionError("recovery asked the policy")


def test_recovery_asks_no_policy_and_reads_only_what_a_snapshot_lacks(stations: Make) -> None:
    station = stations(snapshot_every=4_000)
    station.ask(clients.Submit(specs=tuple(job(job_id=JobId(f"new-{at}")) for at in range(10_000))))
    assert len(station.core.state.engine.jobs) == 10_000
    for _ in range(25):
        station.submit()
    station = stations(make_policy=lambda name, parameters: Mute(registry.make(name, parameters)))
    assert len(station.core.state.engine.jobs) == 10_025
    assert station.core.recovered_entries == 25, "only what came after the newest snapshot"
    assert station.core.state.engine.ledger.next_number == 10_026


def test_a_changed_configuration_takes_over_the_state(stations: Make, tmp_path: Path) -> None:
    station = stations(policy="sjf")
    station.join("h1", devices=1)
    job_id = station.submit()
    station.submit()
    station = stations(policy="castor")  # another default policy: the journal's own goes on
    assert station.core.state.engine.current.name == "sjf"
    assert station.core.state.engine.jobs[job_id].phase is Phase.LOADING
    run_one(station, station.join("h1", devices=1), job_id)
    assert replay(station.journal, registry.make, "1.2.3").differences == ()
    assert len({run.configuration for run in station.journal.runs()}) == 2


def test_what_was_never_sealed_never_happened(stations: Make, tmp_path: Path) -> None:
    """A crash between deciding and committing: nobody has heard of it, so it may be forgotten."""
    station = stations()
    station.submit()
    station.core.happen(ev.HostJoined(report=report("h9")))
    assert HostId("h9") in station.core.state.engine.hosts
    station.journal.rewind()
    station = stations()
    assert HostId("h9") not in station.core.state.engine.hosts and len(station.core.state.engine.jobs) == 1


def test_ids_go_on_after_a_restart(stations: Make) -> None:
    station = stations()
    first = station.submit()
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(first,)))
    assert station.core.state.engine.jobs[first].phase in ENDED
    station = stations()
    assert station.submit() == "2"
    assert station.journal.submission("alice", "unused") is None


def test_history_is_recovered_with_the_state(stations: Make) -> None:
    station = stations()
    address = station.join("h1", devices=1)
    job_id = station.submit()
    run_one(station, address, job_id)
    before = station.ask(clients.ShowJob(job_id=job_id)).attempts
    assert before[0].outcome == "finished" and before[0].ended_s is not None and before[0].first_step == 1
    station = stations()
    assert station.ask(clients.ShowJob(job_id=job_id)).attempts == before
