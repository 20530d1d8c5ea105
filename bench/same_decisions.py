"""One state of the code says what it decides: a digest a run, of every policy on three Philly VCs and of
whole clusters from a seed, with their faults. `side_by_side.py --all` compares two states line by line.

    python bench/same_decisions.py [--policies fifo,castor] [--jobs 300] [--seeds 80]

Rule: a digest covers everything that is decided and nothing that is measured: each decision, refusal and
command of the engine, how each job stands at the end, and the trace of a whole cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from typing import Any, Final

VCS: Final = ("philly/6214e9", "philly/b436b2", "philly/0e4a51")
JOBS: Final = 300
SEEDS: Final = 80


class Digest:
    """The digest of a run while it happens."""

    def __init__(self) -> None:
        self._said = sha256()
        self._engine: Any = None

    def hear(self, engine: Any, commands: Any) -> None:
        """Take in what an engine has just decided; the state at the end is that of the first engine."""
        if self._engine is None:
            self._engine = engine
        self._said.update(encode((engine.decision, engine.refusals, commands)))

    def close(self) -> str:
        """Add the state at the end; the digest in hexadecimal digits."""
        if self._engine is not None:
            self._said.update(encode(list(standing_of_all(self._engine))))
        return self._said.hexdigest()


def standing_of_all(engine: Any) -> Iterator[tuple[str, ...]]:
    """Each job, its phase and all that is said of it: the state as people see it, whatever its shape is."""
    for job_id, job in engine.jobs.items():
        yield (job_id, str(job.phase), *map(str, engine.explain(job_id, engine.now_s)))
    yield tuple(f"{name}: {value}" for name, value in engine.policy_state().items())


def encode(value: Any) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(value)


def digest_of(run: Callable[[], object]) -> str:
    """The digest of every event that engines handle while `run` runs."""
    from cotenant.controller import engine

    kind: Any = engine.Engine
    digest, handle = Digest(), kind.handle

    def heard(self: Any, event: Any, now_s: float) -> Any:
        commands = handle(self, event, now_s)
        digest.hear(self, commands)
        return commands

    kind.handle = heard
    try:
        run()
    finally:
        kind.handle = handle
    return digest.close()


def simulate_once(policy: str, trace: str, jobs: int, seed: int, failures_mtbf_h: float | None) -> Any:
    """The outcome of one simulation."""
    from cotenant.controller.sim import Scenario, policies_named, simulate, tasks

    name = f"{trace}:{jobs}" if trace.startswith("synth:") else trace
    scenario = Scenario(trace=name, jobs=jobs, failures_mtbf_h=failures_mtbf_h)
    (task,) = tasks(scenario, policies_named(policy), [seed])
    return simulate(
        task.workload,
        task.cluster,
        task.policy.name,
        task.policy.parameters,
        seed=seed,
        physics=task.physics,
        failures=task.failures,
        compute=compute(),
    )


def compute() -> Any:
    """What answers the questions that a policy leaves to a worker: Lazer's search, RLTune's rollouts."""
    from cotenant.controller.training import compute as answer

    return answer


def cluster_digest(seed: int) -> str:
    """The digest of a whole cluster's trace: real engine, agents and supervisors, a fake network, faults."""
    from tests.simulation.cluster import Cluster

    return sha256("\n".join(Cluster(seed).run().clock.lines).encode()).hexdigest()


def every_policy() -> list[str]:
    from cotenant.controller.policies import registry

    return sorted(registry.available())


def digests(policies: list[str], jobs: int, seeds: int) -> Iterator[tuple[str, str]]:
    """(what was run, its digest), one after the other; without failures first, then with failing hosts."""
    for policy in policies:
        for number, trace in enumerate(VCS):
            mtbf_h = 200.0 if number == 0 else None
            what = f"{policy}, {trace}, {jobs} jobs" + (", failing hosts" if mtbf_h else "")
            try:
                yield what, digest_of(partial(simulate_once, policy, trace, jobs, 0, mtbf_h))
            except ValueError as error:  # A policy that this workload is not for says so in both states.
                yield what, str(error)
    for seed in range(seeds):
        yield f"cluster of seed {seed}", cluster_digest(seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policies", help="with commas between them; without it all that there are")
    parser.add_argument("--jobs", type=int, default=JOBS, help="the first jobs of each VC")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="whole clusters, from seed 0 on")
    flags = parser.parse_args()
    policies = flags.policies.split(",") if flags.policies is not None else every_policy()
    for what, digest in digests([name for name in policies if name], flags.jobs, flags.seeds):
        print(f"{digest}\t{what}", flush=True)


if __name__ == "__main__":
    main()
