"""The controller's journal is put back from a backup, and work goes on: with real processes throughout."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import textwrap
from contextlib import closing
from pathlib import Path

from cotenant.controller.domain import ENDED, JobId, Phase
from tests.live.cluster import PATIENCE_S, Cluster, wait_for_exit

JOB = textwrap.dedent(
    """
    import os, pathlib, sys, time
    folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    with (folder / name).open("a") as notes:
        print("begin", os.getpid(), file=notes, flush=True)
        while not (folder / f"{name}.gate").exists():
            time.sleep(0.05)
        print("end", os.getpid(), file=notes)
    """
)


class Jobs:
    """Jobs that say when they begin, and end when they may."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._folder = cluster.results

    def submit(self, name: str, *, may_end: bool = False) -> JobId:
        if may_end:
            self.let_end(name)
        argv = (sys.executable, "-c", JOB, str(self._folder), name)
        return self._cluster.send(name, argv, workdir=self._folder)

    def let_end(self, name: str) -> None:
        (self._folder / f"{name}.gate").touch()

    def said(self, name: str) -> list[tuple[str, int]]:
        """What its processes noted, with their pids."""
        path = self._folder / name
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(word, int(pid)) for word, pid in lines]

    def until_begun(self, name: str) -> int:
        """Its first process."""
        self._cluster.until(lambda _: self.said(name))
        return self.said(name)[0][1]

    def until_over(self, job_id: JobId) -> None:
        self._cluster.until(lambda jobs: jobs[job_id].phase in ENDED)
        assert self._cluster.look()[job_id].phase is Phase.DONE


def back_up(journal: Path, copy: Path) -> None:
    """As `sqlite3 JOURNAL ".backup COPY"` does."""
    with closing(sqlite3.connect(journal)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def test_a_restored_journal_runs_new_jobs_goes_on_with_known_ones_and_ends_lost_ones(
    cluster: Cluster,
) -> None:
    controller, jobs = cluster.add_controller(), Jobs(cluster)
    journal, copy = cluster.folder / "controller" / "journal.sqlite", cluster.folder / "backup.sqlite"
    controller.start()
    agent = cluster.add_agent("h1", "agent.devices=cpu:4")
    agent.start()
    jobs.until_over(jobs.submit("before", may_end=True))
    known = jobs.submit("known")
    known_pid = jobs.until_begun("known")
    cluster.until(lambda all: all[known].phase is Phase.RUNNING)
    back_up(journal, copy)
    lost_number = jobs.submit("lost", may_end=True)
    jobs.until_over(lost_number)
    jobs.submit("lost-running")
    lost_pid = jobs.until_begun("lost-running")

    os.kill(agent.pid, signal.SIGSTOP)  # Till it greets the restored controller, nobody knows what was lost.
    controller.stop()
    for path in journal.parent.glob("journal.sqlite*"):
        path.unlink()
    copy.rename(journal)
    controller.start()

    new = jobs.submit("new", may_end=True)
    assert new == lost_number, "so soon nobody can know that a lost job had its number"
    os.kill(agent.pid, signal.SIGCONT)
    jobs.until_over(new)
    assert [word for word, _ in jobs.said("new")] == ["begin", "end"], "it is done because it ran"
    wait_for_exit(lost_pid, PATIENCE_S)
    assert jobs.said("lost-running") == [("begin", lost_pid)], "ended, and not by itself"
    assert jobs.said("known") == [("begin", known_pid)]
    jobs.let_end("known")
    jobs.until_over(known)
    assert jobs.said("known") == [("begin", known_pid), ("end", known_pid)]
    jobs.until_over(jobs.submit("later", may_end=True))
    assert [word for word, _ in jobs.said("later")] == ["begin", "end"]
    cluster.await_no_process()
