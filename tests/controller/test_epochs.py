"""Epochs: whose history an agent has followed, and what becomes of what a restored journal does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from cotenant.controller.domain import (
    AttemptNo,
    Decision,
    Epoch,
    ExitVerdict,
    Followed,
    HostId,
    JobId,
    Past,
    Phase,
    StartAttempt,
    standing,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import VERDICTS, AttemptIs, JobIs, StateIs
from cotenant.controller.planning import View
from cotenant.controller.policies.ordered import Ordered, remaining_key
from cotenant.controller.policies.toolkit import OrderParameters
from cotenant.controller.wire import (
    CommandAck,
    CommandDelivery,
    HostRefused,
    NotFollowed,
    Report,
    Welcome,
    clients,
)
from tests.building.journals import connection_of
from tests.controller.station import Station, hello, run_one

# --- Whose history ----------------------------------------------------------------------------------

NOW, PAST = Epoch(number=3, token="c"), (Past(token="a", reached=10), Past(token="b", reached=20))
STANDINGS: dict[str, tuple[dict[str, Any], str]] = {
    "it follows the present epoch": ({"epoch": NOW, "reached": 25}, "follows"),
    "it followed the one before to its end": (
        {"epoch": Epoch(number=2, token="b"), "reached": 20},
        "follows",
    ),
    "it followed an earlier one, not to its end": ({"epoch": Epoch(number=1, token="a")}, "follows"),
    "it has obeyed nobody": ({"journal": ""}, "follows"),
    "its notes were cut off before the first epoch": ({"confirmed": 7}, "follows"),
    "it belongs to another journal": ({"journal": "k", "epoch": Epoch(number=9, token="z")}, "follows"),
    "it followed the one before beyond its end": (
        {"epoch": Epoch(number=2, token="b"), "reached": 21},
        "restored",
    ),
    "it followed one that we do not know": ({"epoch": Epoch(number=3, token="x")}, "restored"),
    "it followed a much later one": ({"epoch": Epoch(number=30, token="x")}, "restored"),
    "it was confirmed what we never heard": ({"confirmed": 8}, "restored"),
    "it left us for another": ({"epoch": Epoch(number=4, token="x"), "past": ("b", "c")}, "superseded"),
}


@pytest.mark.parametrize("case", STANDINGS)
def test_an_agent_shows_which_history_it_has_followed(case: str) -> None:
    said, wanted = STANDINGS[case]
    followed = Followed(**{"journal": "j", **said})
    assert standing(followed, "j", NOW, PAST, reports_seen=7) == wanted


Make = Callable[..., Station]

# --- The table --------------------------------------------------------------------------------------


def test_the_table_has_every_cell() -> None:
    assert set(VERDICTS) == set(product(get_args(JobIs), get_args(AttemptIs), get_args(StateIs)))


@pytest.mark.parametrize("cell", VERDICTS, ids=" ".join)
def test_each_cell_is_what_its_rules_say(cell: tuple[JobIs, AttemptIs, StateIs]) -> None:
    (job, attempt, state), verdict = cell, VERDICTS[cell]
    ours = job == "open" and attempt == "ours"
    lost = job in ("unknown", "other") or (job == "open" and attempt in ("twin", "newer"))
    assert verdict.ours == ours, "adopted where number, arrival and launch are ours, and nowhere else"
    assert verdict.stop == (state == "running" and not ours), "what is not ours does not run on"
    assert verdict.skip == lost, "a number of a lost history is never used again"
    assert verdict.forget == (job != "open"), "what no open job needs is cleaned up"
    assert verdict.save == (verdict.stop and job == "open" and lost), "the same job goes on from it"


# --- A restored journal ------------------------------------------------------------------------------


class Story:
    """A controller whose journal is copied and put back, with one host, h1, that lived on meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives = 0
        self.station = self._begin()
        self.lost: Epoch = self.epoch

    def _begin(self) -> Station:
        self._lives += 1
        return Station(self._folder / str(self._lives), wall_s=1000.0 * self._lives)

    @property
    def epoch(self) -> Epoch:
        return self.station.core.state.engine.ledger.epoch

    def copy(self) -> None:
        """A backup, as `.backup` makes one."""
        folder = self._folder / str(self._lives + 1)
        folder.mkdir()
        connection_of(self.station.journal).execute(f"VACUUM INTO '{folder / 'journal.sqlite'}'")

    def put_back(self) -> None:
        self.lost = self.epoch
        self.station.close()
        self.station = self._begin()

    def followed(self, reached: int = 1000) -> Followed:
        return Followed(journal=self.station.journal.name, epoch=self.lost, reached=reached)

    def greet(self, *attempts: ev.AttemptSeen, kept: tuple[ev.JobKept, ...] = ()) -> list[Any]:
        """The agent greets, hears that the journal was restored, and greets again: what it is told then."""
        plain = msgspec.structs.replace(hello("h1", 3), attempts=attempts, kept=kept)
        self.station.agent_says(b"agent-h1", msgspec.structs.replace(plain, followed=self.followed()))
        [first] = self.station.told(b"agent-h1", Welcome)
        assert first.restored and self.station.told(b"agent-h1", CommandDelivery) == [], (
            "it is told before anything else"
        )
        again = Followed(journal=self.station.journal.name, epoch=first.epoch, past=(self.lost.token,))
        self.station.agent_says(b"agent-h1", msgspec.structs.replace(plain, followed=again, number=1))
        assert not self.station.told(b"agent-h1", Welcome)[-1].restored
        return [obey.command for obey in self.station.told(b"agent-h1", CommandDelivery)]

    def seen(self, job: str, attempt: int = 1, *, running: bool = True, **more: Any) -> ev.AttemptSeen:
        token = self.lost.token
        plain = {"epoch": token, "job_epoch": token, **more}
        return ev.AttemptSeen(job_id=JobId(job), attempt=AttemptNo(attempt), running=running, **plain)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    yield made
    made.station.close()


def kinds(commands: list[Any]) -> list[tuple[str, str, int]]:
    return [(type(c).__name__, c.job_id, getattr(c, "attempt", 0)) for c in commands]


def test_every_start_is_another_epoch_and_the_journal_knows_how_far_each_got(stations: Make) -> None:
    station = stations()
    station.join("h1")
    first, reached = station.core.state.engine.ledger.epoch, station.journal.last_seq
    station = stations()
    engine = station.core.state.engine
    assert (first.number, engine.ledger.epoch.number) == (1, 2) and engine.ledger.epoch.token != first.token
    assert list(engine.ledger.epochs_past) == [Past(token=first.token, reached=reached)]


def test_an_ordinary_restart_is_no_restored_journal(stations: Make) -> None:
    station = stations()
    station.join("h1")
    epoch, reached = station.core.state.engine.ledger.epoch, station.core.durable_seq
    station = stations()
    followed = Followed(journal=station.journal.name, epoch=epoch, reached=reached)
    station.agent_says(b"agent-h1", hello("h1", followed=followed))
    [welcome] = station.told(b"agent-h1", Welcome)
    assert not welcome.restored and welcome.epoch.number == 2


def test_what_a_restored_journal_knows_goes_on_and_what_it_lost_ends(story: Story) -> None:
    story.station.join("h1", devices=3)
    run_one(story.station, b"agent-h1", story.station.submit(name="known"), until="step")
    story.copy()
    for name in ("lost", "lost too"):
        story.station.submit(name=name)
    story.put_back()
    assert story.station.submit(name="new") == "2", "nobody has told us yet that this number is in use"

    commands = story.greet(
        story.seen("1"), story.seen("2"), kept=(ev.JobKept(job_id=JobId("3"), job_epoch="e"),)
    )
    token = story.epoch.token
    assert kinds(commands) == [
        ("StopAttempt", "2", 1),
        ("ForgetJob", "2", 0),
        ("ForgetJob", "3", 0),
        ("StartAttempt", "2", 2),
    ]
    stop, forget, _, start = commands
    assert stop.job_epoch == forget.job_epoch == story.lost.token and not stop.save
    assert start.epoch == token and start.job_epoch not in ("", story.lost.token)
    jobs = story.station.core.state.engine.jobs
    assert jobs[JobId("1")].phase is Phase.RUNNING and jobs[JobId("1")].attempt.number == 1
    assert story.station.submit(name="newer") == "4", "no number of a lost job is used again once it is known"
    ended = story.station.ask(clients.ListJobs(ended=True))
    assert ended.forgotten_jobs == 0, "a number that was skipped is no older job"
    again = msgspec.msgpack.encode(story.station.core.state.engine.snapshot())
    assert b"numbers_skipped" in again


def test_a_job_that_ended_in_the_lost_history_is_billed_until_its_end(story: Story) -> None:
    """Its host says when that was; the clock of the restored journal has gone on."""
    station = story.station
    station.join("h1", devices=3)
    run_one(station, b"agent-h1", station.submit(name="known"), until="step")
    station.tick(100.0)
    story.copy()
    story.put_back()
    after = story.station
    story.greet(story.seen("1", running=False))
    after.tick(500.0)
    ended = ev.AttemptEnded(
        job_id=JobId("1"),
        attempt=AttemptNo(1),
        host_id=HostId("h1"),
        verdict=ExitVerdict(outcome="finished", exit_code=0),
        ended_unix_s=after.wall_s + after.time_s - 450.0,
    )
    token = story.lost.token
    number = after.journal.reports()[HostId("h1")] + 1
    after.agent_says(b"agent-h1", Report(sequence=number, event=ended, epoch=token, job_epoch=token))
    (past,) = after.ask(clients.ListPastJobs()).jobs
    shown = after.ask(clients.ShowJob(job_id=JobId("1"))).job
    away_s = 1000.0 - 100.0  # From one life to the next, by the wall clock.
    assert shown.phase is Phase.DONE
    assert shown.run_s == pytest.approx(100.0 + away_s + 50.0)
    assert past.held_device_s == pytest.approx(shown.load_s + shown.run_s)
    (usage,) = after.ask(clients.GetUsage()).rows
    assert usage.held_device_s == pytest.approx(past.held_device_s)


def test_a_report_of_a_lost_job_is_confirmed_and_not_taken_for_the_new_ones(story: Story) -> None:
    story.station.join("h1", devices=3)
    story.copy()
    story.station.submit(name="lost")
    story.put_back()
    story.station.submit(name="new")
    story.greet(story.seen("1", running=False))
    named: dict[str, Any] = {"job_id": JobId("1"), "attempt": AttemptNo(1), "host_id": HostId("h1")}
    lost = {"epoch": story.lost.token, "job_epoch": story.lost.token}
    ended = ev.AttemptEnded(**named, verdict=ExitVerdict(outcome="finished", exit_code=0), step=9)
    story.station.agent_says(b"agent-h1", Report(sequence=1, event=ended, **lost))
    assert story.station.journal.reports() == {"h1": 1}, "it is not said again"
    job = story.station.core.state.engine.jobs[JobId("1")]
    assert (job.phase, job.attempt.number) == (Phase.LOADING, 2)
    assert story.station.core.counters["reports_of_lost_history"] == 1


def test_a_job_waits_until_an_attempt_that_its_journal_has_lost_is_gone(story: Story) -> None:
    story.station.join("h1", devices=3)
    job_id = story.station.submit(name="known", hold=True)
    story.copy()
    story.station.ask(clients.ChangeJobs(verb="release", job_ids=(job_id,)))
    story.put_back()
    story.station.ask(clients.ChangeJobs(verb="release", job_ids=(job_id,)))

    commands = story.greet(story.seen("1"))
    assert kinds(commands) == [("StopAttempt", "1", 1)] and commands[0].save, "the same job goes on from it"
    job = story.station.core.state.engine.jobs[job_id]
    assert job.reason.code == "restored", "others may run it that have not joined"
    story.station.time_s += 301.0
    story.station.core.happen(ev.AlarmRang())
    assert (job.phase, job.reason.code) == (Phase.BLOCKED, "stray")
    named: dict[str, Any] = {"job_id": job_id, "attempt": AttemptNo(1), "host_id": HostId("h1")}
    tokens = {"epoch": story.lost.token, "job_epoch": story.lost.token}
    stopped = ev.AttemptEnded(**named, verdict=ExitVerdict(outcome="stopped"), step=9)
    story.station.agent_says(b"agent-h1", Report(sequence=1, event=stopped, **tokens))
    assert (job.phase, job.attempt.number) == (Phase.LOADING, 2), "a number that nobody has had"


def test_each_agent_of_a_lost_history_is_told_and_the_epoch_goes_beyond_all_of_theirs(story: Story) -> None:
    story.station.join("h1", devices=3)
    story.copy()
    story.put_back()
    story.greet()
    assert story.epoch.number == 3
    far = Followed(journal=story.station.journal.name, epoch=Epoch(number=8, token="far"), reached=1)
    story.station.agent_says(b"agent-h2", hello("h2", followed=far))
    assert story.epoch.number == 9
    assert story.station.told(b"agent-h1", Welcome)[-1].epoch == story.epoch, "who is here follows, too"


def test_an_agent_that_has_left_for_another_controller_is_refused(station: Station) -> None:
    now = station.core.state.engine.ledger.epoch
    gone = Followed(
        journal=station.journal.name, epoch=Epoch(number=9, token="other"), past=("old", now.token)
    )
    station.agent_says(b"agent-h1", hello("h1", followed=gone))
    [refused] = station.told(b"agent-h1", HostRefused)
    assert "stop the older one" in refused.why and not station.core.state.engine.hosts


def test_an_agent_that_does_not_follow_greets_again(station: Station) -> None:
    address = station.join("h1")
    now = station.core.state.engine.ledger.epoch
    station.agent_says(address, NotFollowed(epoch="a late one"))
    assert list(station.link.connected_hosts()) == ["h1"]
    station.agent_says(address, NotFollowed(epoch=now.token))
    assert list(station.link.connected_hosts()) == []


def test_a_word_about_a_command_of_another_epoch_confirms_none(station: Station) -> None:
    address = station.join("h1")
    station.submit()
    [start] = station.commands(address, StartAttempt)
    station.agent_says(address, CommandAck(command_id=start.command_id, epoch="lost"))
    assert station.link.undelivered == 1
    station.agent_says(
        address, CommandAck(command_id=start.command_id, epoch=station.core.state.engine.ledger.epoch.token)
    )
    assert station.link.undelivered == 0


def test_a_policy_that_breaks_keeps_no_epoch_from_its_beginning(tmp_path: Path) -> None:
    class Broken(Ordered):
        def decide(self, view: View, event: ev.AnyEvent) -> Decision:
            raise RuntimeError("a mistake of somebody's")

    station = Station(tmp_path, make_policy=lambda name, _: Broken(name, remaining_key, OrderParameters()))
    assert station.core.state.engine.ledger.epoch.number == 1
    station.close()


def test_a_start_whose_epoch_could_not_be_written_begins_it_when_the_disk_works_again(
    station: Station,
) -> None:
    before = station.core.state.engine.ledger.epoch
    station.core._own_epochs.clear()  # As if the state were what a start has read, and no more.
    station.core.stuck = "the disk is full"
    assert station.core.try_again()
    assert station.core.state.engine.ledger.epoch.number == before.number + 1


def test_nobody_pushes_numbers_to_where_they_cannot_be_written(story: Story) -> None:
    story.station.join("h1", devices=3)
    story.station.submit(name="known", hold=True)
    story.copy()
    story.put_back()
    story.greet(story.seen("1", attempt=2**62), story.seen(str(2**62)))
    assert story.station.core.state.engine.jobs[JobId("1")].attempts_taken == 0
    assert story.station.submit(name="next") == "2"
    with pytest.raises(ValueError, match="there is no epoch"):
        Epoch(number=2**62)
