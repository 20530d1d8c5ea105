"""A storm: blows of `storm_plan.py` on two hosts that share checkpoints and train real DDP jobs.

`make chaos MINUTES=5 SEED=3` runs one, prints what happens as it does, and judges it (`storm_judge.py`).
Whatever was stopped is continued before the end, and nothing is left running.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from cotenant.controller.client.connection import Unreachable
from cotenant.controller.domain import ENDED
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.system import keys
from tests.building.limits import within_s
from tests.checkpoint.ranks import one_warm_process
from tests.live.cluster import SMALL, Cluster, References, Training
from tests.live.storm_blows import Striker
from tests.live.storm_plan import AT_ONCE, BLOWS_PER_MINUTE, HOSTS, Blow, Work, schedule, works
from tests.live.storm_world import ASK_S, World
from tests.live.wall_clock import NoShim, WallClocks
from tests.ports import free_port

LEASE_S = 10.0
TELL_EVERY_S = 5.0
CALM_S_MAX = within_s(600.0)
SLOT_MIB = 1000
"""Holds one whole batch of `BEHAVIOUR`, and beside it only half of another."""
BATCH = 4
BEHAVIOUR = Profile(
    points=(
        ProfilePoint(sub_batch=BATCH, accumulation_steps=1, step_s=0.05, memory_mib=600),
        ProfilePoint(sub_batch=BATCH // 2, accumulation_steps=2, step_s=0.052, memory_mib=350),
    ),
    duty_cycle=0.4,
)
PACE_S = 0.05
CLOCKS_OF = ("controller", *HOSTS, "jobs")


class Storm:
    def __init__(
        self,
        cluster: Cluster,
        clocks: WallClocks | None,
        jobs: Iterator[Work],
        lease_s: float,
        at_once: int,
    ) -> None:
        self.cluster, self._clocks, self._works, self._lease_s = cluster, clocks, jobs, lease_s
        self._at_once = at_once
        self.world = World(cluster)
        self._striker = Striker(self.world, clocks, lease_s)
        self._told_s = time.monotonic()

    # --- Before ------------------------------------------------------------------------------------

    def start(self) -> None:
        cluster = self.cluster
        cluster.endpoint = f"tcp://127.0.0.1:{free_port()}"
        cluster.keys = cluster.folder / "keys"
        keys.init_cluster(cluster.keys)
        cluster.add_controller(
            "policy.name=castor",
            "controller.eta_share=0.1",
            "policy.back_off_s=0.2",
            "checkpoint.every_s=1",
            f"controller.lease_s={self._lease_s}",
            "controller.silent_after_s=2",
            "controller.snapshot_every=50",
        )
        for host in HOSTS:
            cluster.add_agent(
                host,
                "agent.devices=cpu:2",
                f"agent.slot_memory_mib={SLOT_MIB}",
                "agent.heartbeat_s=0.5",
                "agent.address=localhost",  # Hosts at 127.x get no gangs with others.
                "agent.network=lo",
                f"agent.keys_dir={cluster.folder / 'keys' / keys.add_agent(cluster.keys, host).name}",
                f"checkpoint.root={cluster.folder / 'checkpoints'}",
            )
        assert cluster.controller is not None
        for name, daemon in (("controller", cluster.controller), *cluster.agents.items()):
            daemon.env.update(self._clocks.environment(name) if self._clocks else {})
            daemon.start()

    def submit(self, work: Work) -> None:
        """Accepted exactly once, however often the controller dies meanwhile."""
        number = len(self.cluster.trainings)
        training = Training(
            name=f"job-{number}",
            script=SMALL,
            steps=work.steps,
            batch_size=BATCH,
            workers=work.workers,
            nodes=work.nodes,
            seed=work.seed,
            profile=BEHAVIOUR,
            pace_s=PACE_S,
            options=("--loaders", str(work.loaders)),
            env=self._clocks.environment("jobs") if self._clocks else {},
            more={"expected_s": work.expected_s, "time_limit_s": 1800.0, "retries": 50},
        )
        key = uuid.uuid4().hex
        while True:
            with suppress(Unreachable):
                self.cluster.submit(training, idempotency_key=key, timeout_s=ASK_S)
                return
            self.world.pass_time()

    # --- During ------------------------------------------------------------------------------------

    def go(self, blows: Sequence[Blow]) -> None:
        """All blows, and on until every job has ended."""
        for number, blow in enumerate(blows):
            until_s = time.monotonic() + blow.after_s
            while time.monotonic() < until_s:
                self.world.look()
            self._look_and_submit()
            self._striker.strike(blow, self._look_and_submit)
            self._tell(f"blow {number + 1} of {len(blows)}")
        self.calm()

    def _look_and_submit(self) -> None:
        """So many jobs are open that there is always somebody to hit."""
        self.world.look()
        while sum(self.world.is_open(job_id) for job_id in self.cluster.trainings) < self._at_once:
            self.submit(next(self._works))

    def calm(self) -> None:
        """No more blows; what a person has to do is done, until every job has ended."""
        while self.world.is_anyone_stopped:
            self.world.look()
        for job_id in self.cluster.trainings:
            self.cluster.open_gate(job_id)
        until_s = time.monotonic() + CALM_S_MAX
        while any(map(self.world.is_open, self.cluster.trainings)):
            assert time.monotonic() < until_s, "jobs do not end: " + ", ".join(
                f"{j.job_id} {j.phase} {j.reason}" for j in self.world.jobs.values() if j.phase not in ENDED
            )
            self.world.look()
            self._tell("calm")
        self.world.await_daemons()

    def _tell(self, what: str) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            phases = Counter(job.phase.value for job in self.world.jobs.values())
            hosts = ", ".join(f"{host} {state.value}" for host, state in sorted(self.world.states.items()))
            jobs = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))
            self.world.say(f"{what}; jobs: {jobs}; hosts: {hosts}")


# --- From the command line -------------------------------------------------------------------------


@contextmanager
def a_storm(
    folder: Path, jobs: Iterator[Work], lease_s: float = LEASE_S, at_once: int = AT_ONCE
) -> Iterator[Storm]:
    """A cluster that is ready to be struck; nothing of it is left afterwards."""
    with closing(Cluster(folder)) as cluster:
        cluster.freezes = True
        clocks = None
        try:
            clocks = WallClocks(folder, CLOCKS_OF)
        except NoShim as why:
            print(f"no clock is moved: {why}")
        storm = Storm(cluster, clocks, jobs, lease_s, at_once)
        try:
            storm.start()
            yield storm
        except BaseException:
            storm.world.release()
            cluster.print_logs()
            raise


def main() -> int:
    from tests.live.storm_judge import complaints, table

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long blows fall")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    blows = schedule(options.seed, max(1, round(options.minutes * BLOWS_PER_MINUTE)))
    print(f"seed {options.seed}: {len(blows)} blows in about {options.minutes:g} min", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    with contextmanager(one_warm_process)() as warm, a_storm(folder, works(options.seed)) as storm:
        references = References(warm, folder / "references")
        storm.go(blows)
        print(table(storm))
        found = complaints(storm, references)
        if found:
            storm.cluster.print_logs()
    print("\n".join([f"seed {options.seed}: {len(found)} complaints", *found]), flush=True)
    if found:
        print(f"everything is kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
