"""A storm over two controllers on PostgreSQL: blows of `failover_plan.py` while clients submit and jobs run.

`make chaos HA=1 MINUTES=20 SEED=3` runs one and judges it (`failover_judge.py`). `--unfenced` takes
controllers without their fence, and the judge has to find that.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cotenant.controller.client.connection import Unreachable
from cotenant.controller.domain import ENDED, JobId
from cotenant.controller.store import JournalReader, open_database
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.postgres import NoPostgres
from tests.checkpoint.ranks import one_warm_process
from tests.live.cluster import SMALL, References, Training
from tests.live.failover_blows import Striker
from tests.live.failover_judge import (
    Stretch,
    judge_attempts,
    judge_devices,
    judge_lists,
    judge_signs,
    judge_submissions,
    judge_writers,
)
from tests.live.failover_plan import KINDS, Blow, schedule
from tests.live.failover_world import Clients, FailoverCluster, a_failover_cluster, submit_trainings
from tests.live.network import NoNetwork
from tests.live.storm_judge import check_entries

CALM_S_MAX = within_s(120.0)
BLOW_S = 11.5
"""What a blow takes on the average, with the rest after it."""
BATCH = 4


class FailoverStorm:
    def __init__(self, cluster: FailoverCluster) -> None:
        self.cluster = cluster
        self.clients = Clients(cluster)
        self._unended: list[str] = []
        self._began_s = time.monotonic()
        self.striker = Striker(cluster, self.say)

    def say(self, text: str) -> None:
        found = f"{len(self.clients.submitted)} submitted, {self.clients.open} open"
        print(f"{time.monotonic() - self._began_s:7.1f} s  {text} ({found})", flush=True)

    def go(self, blows: Sequence[Blow], trainings: int, steps: int) -> None:
        """All blows, and on until every job has ended."""
        self.await_leader()
        wanted = [self._training(number, steps) for number in range(trainings)]
        submit_trainings(self.cluster, wanted)
        self.clients.start()
        try:
            for blow in blows:
                self.striker.strike(blow)
                assert not self.clients.failed, self.clients.failed
            self.cluster.net.heal()
            for job_id in self.cluster.trainings:
                self.cluster.open_gate(job_id)
        finally:
            self.clients.stop()
        self.calm()

    def await_leader(self) -> None:
        until_s = time.monotonic() + CALM_S_MAX
        while True:
            with suppress(Unreachable):
                self.cluster.client.ask(wire.ListJobs(), timeout_s=2.0)
                return
            assert time.monotonic() < until_s, "nobody leads"
            self.striker.look()

    def calm(self) -> None:
        """No more blows, until every job has ended; a complaint where some do not."""
        until_s = time.monotonic() + CALM_S_MAX
        while True:
            self.striker.look()
            with suppress(Unreachable):
                jobs = self.cluster.client.ask(wire.ListJobs(include_ended=True), timeout_s=5.0).jobs
                self.clients.jobs = {job.job_id: job for job in jobs}
                self.clients.help(self.cluster.client)
                if all(job.phase in ENDED for job in jobs):
                    return
            left = [f"{job.job_id} {job.phase} {job.reason}" for job in self.clients.jobs.values()
                    if job.phase not in ENDED]  # fmt: skip
            if time.monotonic() >= until_s:
                self._unended = [f"jobs do not end: {left}"]
                return
            time.sleep(0.5)

    def _training(self, number: int, steps: int) -> Training:
        return Training(
            name=f"training-{number}",
            script=SMALL,
            steps=steps,
            batch_size=BATCH,
            seed=number % 2,
            pace_s=1.0,
            more={"expected_s": steps * 0.2, "time_limit_s": 3600.0, "retries": 50},
        )

    # --- Afterwards --------------------------------------------------------------------------------

    def complaints(self, references: References | None) -> list[str]:
        """Everything that does not hold."""
        cluster, clients = self.cluster, self.clients
        found = list(judge_writers(cluster.written(), cluster.reigns()))
        found += judge_signs(cluster.signs(), cluster.reigns())
        arrived = cluster.arrived()
        of_clients = [each for each in arrived if JobId(each.job) not in cluster.trainings]
        ours = {each.job for each in of_clients}
        lists = [each._replace(jobs=each.jobs & ours | each.jobs - {e.job for e in arrived})
                 for each in clients.listed]  # fmt: skip
        found += judge_submissions(clients.submitted, of_clients)
        found += judge_lists(lists, clients.submitted, of_clients)
        if self._unended:
            return found + self._unended
        shown = {JobId(each.job): cluster.shown(JobId(each.job)) for each in arrived}
        stretches, ran, finished = self._noted(shown)
        found += judge_devices(stretches)
        done = [
            job for job, each in shown.items() if each.job.phase == "done" and job not in cluster.trainings
        ]
        found += [f"job {job} ended as {each.job.phase}: {each.job.reason}" for job, each in shown.items()
                  if each.job.phase != "done"]  # fmt: skip
        found += judge_attempts(ran, done, finished)
        for name, status, last in self.striker.ended:
            if status not in (0, 1) or "Traceback" in last:
                found.append(f"controller {name} ended with {status}: {last}")
        for job_id in cluster.trainings:
            found += self._check(f"training {job_id}", lambda job_id=job_id: self._exact(job_id, references))  # type: ignore[misc]
        found += self._check("the journal", lambda: check_shared_journal(cluster.local_journal))
        return found

    def _check(self, what: str, check: Callable[[], None]) -> list[str]:
        try:
            check()
        except AssertionError as wrong:
            return [f"{what}: {wrong}"]
        return []

    def _exact(self, job_id: JobId, references: References | None) -> None:
        shown = self.cluster.check_history(job_id)
        if references is not None:
            expected = references.sha256(self.cluster.trainings[job_id], shown.attempts)
            assert self.cluster.sha256(job_id) == expected, f"its parameters differ: {shown.attempts}"

    def _noted(
        self, shown: dict[JobId, wire.Shown]
    ) -> tuple[list[Stretch], dict[str, list[int]], dict[str, int]]:
        """What the small jobs wrote: how long each of their processes was there, starts, and ends."""
        stretches: list[Stretch] = []
        ran: dict[str, list[int]] = defaultdict(list)
        finished: dict[str, int] = defaultdict(int)
        for path in sorted(self.cluster.notes.glob("*.notes")):
            spans: dict[tuple[int, str], list[float]] = {}
            for line in path.read_text().splitlines():
                word, pid, number, at_s = line.split()
                spans.setdefault((int(number), pid), []).append(float(at_s))
                if word == "start":
                    ran[path.stem].append(int(number))
                finished[path.stem] += word == "end"
            devices = {each.attempt: each.devices for each in shown[JobId(path.stem)].attempts}
            for (attempt, _), times in spans.items():
                for device in devices.get(attempt, ("unknown",)):
                    stretches.append(Stretch(path.stem, attempt, device, times[0], times[-1]))
        return stretches, ran, finished

    def table(self) -> str:
        """What fell, and what came of it, for people."""
        reigns = self.cluster.rows("SELECT term, count(*) FROM storm.reigns GROUP BY 1 ORDER BY 1")
        more = sum(job.attempt > 1 for job in self.clients.jobs.values())
        lines = [f"{kind:<24}{count:>4}" for kind, count in sorted(self.striker.struck.items())]
        lines.append(f"terms {len(reigns)}, entries {len(self.cluster.written())}")
        lines.append(f"jobs {len(self.clients.jobs)}, started again {more}")
        lines.append(f"lists {len(self.clients.listed)}, submissions {len(self.clients.submitted)}")
        lines.append(f"refused meanwhile {len(self.clients.refusals)}")
        return "\n".join(lines)


def check_shared_journal(place: str) -> None:
    """The policies would decide the same again, and no invariant of the ledger was broken."""
    database = open_database(place)
    journal = JournalReader(database.open_reading(is_still=True), database.place)
    try:
        check_entries(journal)
    finally:
        journal.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long blows fall")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=KINDS, help="only blows of these kinds")
    parser.add_argument(
        "--trainings", type=int, default=3, help="real trainings, whose parameters are compared"
    )
    parser.add_argument("--unfenced", action="store_true", help="without the fence: the judge has to find it")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # So that all is taken down again.
    blows = schedule(options.seed, max(1, round(options.minutes * 60 / BLOW_S)), options.kinds)
    print(f"seed {options.seed}: {len(blows)} blows in about {options.minutes:g} min", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    try:
        with (
            contextmanager(one_warm_process)() as warm,
            a_failover_cluster(folder, is_fenced=not options.unfenced) as cluster,
        ):
            storm = FailoverStorm(cluster)
            try:
                storm.go(blows, options.trainings, round(options.minutes * 25) + 20)
                print(storm.table())
                found = storm.complaints(References(warm, folder / "references"))
            except BaseException:
                print(f"everything is kept in {folder}")
                raise
    except (NoNetwork, NoPostgres) as why:
        print(f"no storm: {why}")
        return 2
    print("\n".join([f"seed {options.seed}: {len(found)} complaints", *found]), flush=True)
    if found:
        print(f"everything is kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
