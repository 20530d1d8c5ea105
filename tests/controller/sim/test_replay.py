"""A journal becomes a workload: what is taken from it, what is left out, and that it is only read."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest

from cotenant.controller.domain import NO_BOUNDS, HostId, JobId, SharingSettings
from cotenant.controller.domain import events as ev
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.sim.choices import PolicyChoice
from cotenant.controller.sim.compare import run_all
from cotenant.controller.sim.past.journal import NothingToReplay
from cotenant.controller.sim.past.replay import NEVER_TRAINED, STILL_THERE, read_journal
from cotenant.controller.sim.past.what_if import (
    HAPPENED,
    actual_summary,
    calibration,
    grow_cluster,
    replay_tasks,
)
from cotenant.controller.sim.world.workload import Cluster
from cotenant.controller.store import (
    JOURNAL_NAME,
    Journal,
    JournalDamaged,
    JournalError,
    SqliteDatabase,
    archive_journal,
)


@pytest.fixture(scope="module")
def told() -> ModuleType:
    """`journals.py` beside this file: tests have no packages to import it from."""
    spec = importlib.util.spec_from_file_location("sim_journals", Path(__file__).with_name("journals.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_waits_loads_and_lengths_are_those_that_happened(told: ModuleType, tmp_path: Path) -> None:
    record = read_journal(told.write_journal(tmp_path, told.TWO_IN_TURN))
    a, b = record.jobs
    assert (a.wait_s, a.load_s, a.run_s, a.pause_s, a.jct_s) == (0.0, 30.0, 100.0, 0.0, 130.0)
    assert (b.wait_s, b.load_s, b.run_s, b.jct_s) == (120.0, 20.0, 30.0, 170.0)
    assert (b.length_s, b.expected_s, b.one_load_s) == (30.0, 30.0, 20.0)
    assert record.setting.policy == "fifo"
    assert (record.cluster.hosts, record.cluster.gpus_per_host) == (1, 1)
    workload = record.workload()
    np.testing.assert_allclose(workload.submit_s, [0.0, 10.0])
    assert workload.job_ids == ("a", "b")


def test_a_past_that_was_archived_is_read_with_the_journal(told: ModuleType, tmp_path: Path) -> None:
    folder = told.write_journal(tmp_path, told.TWO_IN_TURN)
    before = read_journal(folder)
    database = SqliteDatabase(folder)
    last = database.maintain("UPDATE entries SET wall_s = wall_s", ())
    database.maintain("INSERT INTO snapshots VALUES(?, ?, ?)", (last - 1, b"", 0))
    done = archive_journal(database, folder, 1e12)
    assert done.files[-1].last_seq == last - 1
    assert read_journal(folder) == before


def test_what_a_profile_let_expect_counts_also_where_a_job_was_placed_at_once(
    told: ModuleType, tmp_path: Path
) -> None:
    point = ProfilePoint(sub_batch=4, accumulation_steps=1, step_s=0.5, memory_mib=10.0)
    known = {"profile": Profile(points=(point,)), "batch_size": 4, "iterations": 80}
    story = [(0.0, told.joined()), (0.0, told.arrived("a", **known)), (9.0, told.arrived("b", **known))]
    story += [(30.0, told.first_step("a")), (130.0, told.ended("a"))]
    story += [(150.0, told.first_step("b")), (180.0, told.ended("b"))]
    record = read_journal(told.write_journal(tmp_path, story))
    assert [job.expected_s for job in record.jobs] == [40.0, 40.0]
    assert not any("no length" in note for note in record.notes)


def test_the_policy_of_the_time_simulated_is_what_happened(told: ModuleType, tmp_path: Path) -> None:
    record = read_journal(told.write_journal(tmp_path, told.TWO_IN_TURN))
    runs = run_all(replay_tasks(record, [], pairs="none", seed=0), workers=1, keep=True)
    found = calibration(record, runs)
    assert found is not None
    assert found["jct_error"] == pytest.approx({"p50": 0.0, "p90": 0.0}, abs=1e-6)
    assert found["jct_mean_ratio"] == pytest.approx(1.0)


def test_failures_and_missing_devices_are_said_because_no_simulation_has_them(
    told: ModuleType, tmp_path: Path
) -> None:
    story = [
        (0.0, told.joined()),
        (0.0, told.joined(host="z")),
        (0.0, told.arrived("a", expected_s=100.0)),
        (10.0, told.first_step("a")),
        (20.0, told.ended("a", "infra-failed")),
        (20.0, ev.HostDrained(host_id=HostId("z"), by="ann")),
        (60.0, ev.AlarmRang()),
        (70.0, told.first_step("a", attempt=2)),
        (100.0, told.arrived("b")),
        (200.0, told.ended("a", attempt=2)),
    ]
    notes = read_journal(told.write_journal(tmp_path, story)).notes
    assert notes[0].startswith("1 attempt of 1 job failed by the infrastructure: ")
    assert notes[1].startswith("45 % of the devices' time they took no work")
    assert any(
        note.startswith("the devices that 1 job without an end or any training yet held") for note in notes
    )


def test_where_nothing_failed_nothing_is_said_of_it(told: ModuleType, tmp_path: Path) -> None:
    notes = read_journal(told.write_journal(tmp_path, told.TWO_IN_TURN)).notes
    assert not any("simulations" in note for note in notes)


@pytest.mark.parametrize(
    ("sharing", "bounds"),
    [
        (NO_BOUNDS, (0.0, 0.0)),
        (SharingSettings(), (1.5, 0.0)),
        (SharingSettings(max=0, hp=True), (0.0, 1.05)),
    ],
)
def test_what_would_have_been_is_under_the_bounds_of_the_time(
    told: ModuleType, tmp_path: Path, sharing: SharingSettings, bounds: tuple[float, float]
) -> None:
    record = read_journal(told.write_journal(tmp_path, told.TWO_IN_TURN, sharing=sharing))
    tasks = replay_tasks(record, [PolicyChoice("castor", {})], pairs="gavel-v100", seed=0)
    assert {(task.physics.share_max, task.physics.share_hp) for task in tasks} == {bounds}


def test_another_policy_would_have_done_otherwise(told: ModuleType, tmp_path: Path) -> None:
    late = told.arrived("c", expected_s=5.0)
    story = [*told.TWO_IN_TURN[:3], (25.0, late), *told.TWO_IN_TURN[3:]]
    story += [(200.0, told.first_step("c")), (205.0, told.ended("c"))]
    record = read_journal(told.write_journal(tmp_path, story))
    tasks = replay_tasks(record, [PolicyChoice("sjf", {})], pairs="none", seed=0)
    fifo, sjf = run_all(tasks, workers=1, keep=True)
    assert fifo.summary["jct_s"]["mean"] == pytest.approx(actual_summary(record)["jct_s"]["mean"])
    assert sjf.summary["jct_s"]["mean"] < fifo.summary["jct_s"]["mean"]


def test_a_preempted_job_has_the_length_it_trained_and_what_one_load_takes(
    told: ModuleType, tmp_path: Path
) -> None:
    story = [
        (0.0, told.joined()),
        (10.0, told.arrived("a", expected_s=1000.0, resumable=True)),
        (20.0, told.first_step("a")),
        (100.0, told.arrived("b", expected_s=10.0)),
        (105.0, told.durable("a", 80)),
        (105.0, told.ended("a", "stopped", step=80)),
        (110.0, told.first_step("b")),
        (120.0, told.ended("b")),
        (130.0, told.first_step("a", attempt=2, step=81)),
        (1000.0, told.ended("a", attempt=2)),
    ]
    record = read_journal(told.write_journal(tmp_path, story, policy="srtf"))
    a = record.jobs[0]
    assert (a.preemptions, a.load_s, a.one_load_s, a.pause_s, a.one_pause_s) == (1, 20.0, 10.0, 5.0, 5.0)
    assert (a.length_s, a.run_s, a.preemptible) == (950.0, 950.0, True)
    assert a.jct_s == pytest.approx(a.wait_s + a.load_s + a.run_s + a.pause_s)
    assert record.jobs[1].preemptible is False


def test_a_load_that_was_longer_than_assumed_counts_whole(told: ModuleType, tmp_path: Path) -> None:
    assumed = msgspec.structs.replace(told.first_step("a", step=0), assumed=True)
    story = [(0.0, told.joined()), (10.0, told.arrived("a")), (20.0, assumed), (100.0, told.first_step("a"))]
    (job,) = read_journal(told.write_journal(tmp_path, [*story, (130.0, told.ended("a"))])).jobs
    assert (job.length_s, job.one_load_s, job.load_s, job.run_s) == (30.0, 90.0, 90.0, 30.0)


def test_a_job_that_was_done_before_its_first_step_was_seen_has_worked(
    told: ModuleType, tmp_path: Path
) -> None:
    story = [(0.0, told.joined()), (10.0, told.arrived("a")), (13.0, told.ended("a"))]
    (job,) = read_journal(told.write_journal(tmp_path, story)).jobs
    assert (job.length_s, job.one_load_s, job.load_s, job.run_s) == (3.0, 0.0, 0.0, 3.0)


def test_what_never_trained_or_has_not_ended_is_counted(told: ModuleType, tmp_path: Path) -> None:
    gone = ev.CancelRequested(job_id=JobId("c"), by="ada")
    story = [*told.TWO_IN_TURN, (191.0, told.arrived("d")), (192.0, told.arrived("c")), (193.0, gone)]
    record = read_journal(told.write_journal(tmp_path, story))
    assert record.excluded == {NEVER_TRAINED: 1, STILL_THERE: 1}
    assert len(record.jobs) == 2


def test_who_has_not_ended_counts_with_what_it_has_had(told: ModuleType, tmp_path: Path) -> None:
    """Else those that were preempted again and again are left out, and the past looks best."""
    story = [
        *told.TWO_IN_TURN,
        (200.0, told.arrived("d")),
        (210.0, told.first_step("d")),
        (260.0, told.joined()),
    ]
    record = read_journal(told.write_journal(tmp_path, story))
    assert record.excluded == {}
    (job,) = [each for each in record.jobs if each.job_id == "d"]
    assert (job.jct_s, job.wait_s, job.load_s, job.run_s, job.length_s) == (60.0, 0.0, 10.0, 50.0, 50.0)
    assert "1 job without an end yet count with what they had trained by the journal's end" in record.notes


def test_time_held_back_is_no_waiting(told: ModuleType, tmp_path: Path) -> None:
    story = [
        (0.0, told.joined()),
        (10.0, told.arrived("a", hold=True)),
        (500.0, ev.ReleaseRequested(job_id=JobId("a"), by="ada")),
        (510.0, told.first_step("a")),
        (540.0, told.ended("a")),
    ]
    (job,) = read_journal(told.write_journal(tmp_path, story)).jobs
    assert (job.arrived_s, job.jct_s, job.wait_s) == (500.0, 40.0, 0.0)


def test_since_takes_the_last_part_only(told: ModuleType, tmp_path: Path) -> None:
    record = read_journal(told.write_journal(tmp_path, told.TWO_IN_TURN), since_s=175.0)
    assert [job.job_id for job in record.jobs] == ["b"]
    with pytest.raises(NothingToReplay, match="0 not ended yet"):
        read_journal(tmp_path, since_s=5.0)


def test_a_journal_in_use_is_read_and_left_as_it_is(told: ModuleType, tmp_path: Path) -> None:
    told.write_journal(tmp_path, told.TWO_IN_TURN)
    journal = Journal(tmp_path)
    try:
        before = (tmp_path / JOURNAL_NAME).read_bytes()
        assert len(read_journal(tmp_path).jobs) == 2
        assert (tmp_path / JOURNAL_NAME).read_bytes() == before
    finally:
        journal.close()


def test_a_damaged_entry_is_named_and_nothing_is_skipped(told: ModuleType, tmp_path: Path) -> None:
    import sqlite3

    told.write_journal(tmp_path, told.TWO_IN_TURN)
    database = sqlite3.connect(tmp_path / JOURNAL_NAME)
    database.execute("UPDATE entries SET now_s = now_s + 1 WHERE seq = 3")
    database.commit()
    database.close()
    with pytest.raises(JournalDamaged, match="entry 3 was changed"):
        read_journal(tmp_path)


def test_no_journal_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        read_journal(tmp_path)


def test_hosts_that_differ_are_said_to(told: ModuleType, tmp_path: Path) -> None:
    story = [*told.TWO_IN_TURN[:3], (21.0, told.joined(2, "later")), *told.TWO_IN_TURN[3:5]]
    record = read_journal(told.write_journal(tmp_path, story))
    assert (record.cluster.hosts, record.cluster.gpus_per_host) == (3, 1)
    assert any("the hosts differ: 3 devices" in note for note in record.notes)


def test_what_happened_has_the_fields_of_a_run(told: ModuleType, tmp_path: Path) -> None:
    record = read_journal(told.write_journal(tmp_path, told.TWO_IN_TURN))
    summary = actual_summary(record)
    assert (summary["label"], summary["finished"], summary["gpu_busy_ratio"]) == (HAPPENED, 2, None)
    assert summary["jct_s"]["mean"] == 150.0


@pytest.mark.parametrize(
    ("hosts", "each", "more", "wanted"),
    [(2, 4, 4, (3, 4)), (2, 4, 8, (4, 4)), (1, 2, 4, (3, 2)), (1, 8, 4, (1, 12))],
)
def test_more_gpus_are_hosts_like_those_there_are(
    hosts: int, each: int, more: int, wanted: tuple[int, int]
) -> None:
    larger = grow_cluster(Cluster(hosts=hosts, gpus_per_host=each), more)
    assert (larger.hosts, larger.gpus_per_host) == wanted


def test_a_part_of_a_host_cannot_be_added() -> None:
    with pytest.raises(ValueError, match="hosts have 4 GPUs each here"):
        grow_cluster(Cluster(hosts=2, gpus_per_host=4), 3)
