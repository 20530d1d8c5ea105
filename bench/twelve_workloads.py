"""One state of the code under every policy on twelve workloads: a digest of all that is decided and told.

    python bench/twelve_workloads.py [--names 'srtf;pcs:elastic=true']
    python bench/twelve_workloads.py --names srtf --workload drawn-late --tell FILE

Rule: a digest covers what people and agents get: each decision with its reasons, each refusal and command,
the explanations of waiting jobs now and then, what the policy remembers, and how each job stands at the end,
its priority, its part of a device and its promise included. `side_by_side.py --twelve` compares two states
line by line; `--tell` writes what one digest covers, to be compared by eye.

Four workloads are like those of published clusters, eight are drawn: jobs of two classes, with priorities, of
unknown length, on parts of devices, on two hosts, late, promised, elastic, and such as cannot resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import same_decisions

EVENTS_MAX: Final = 6_000
"""A run is cut off there: some policies ask to be woken every few minutes of a trace of weeks."""
EXPLAINED_EVERY: Final = 7
"""Events from one look at the explanations to the next."""
EXPLAINED_MAX: Final = 8
"""Waiting jobs that are explained at a look: the first and some behind them."""

VARIANTS: Final = (
    *("fifo:backfill=easy", "fifo:backfill=any", "sjf:backfill=none", "sjf:backfill=easy"),
    *("ssf:backfill=none", "ssf:backfill=easy", "srtf:newcomers=every", "srsf:newcomers=every"),
    *("slurm-multifactor:backfill=easy", "slurm-multifactor:backfill=any,favor_small=true"),
    *(
        "tiresias:thresholds_gpu_s=three-queues",
        "patient:gang=each,width_power=1",
        "patient:waits_load=victim",
    ),
    *("castor:shared_first=true", "castor:lookahead=1,part=false", "castor-cost:part=false"),
    *("cotenant:earned=false", "cotenant:gang=each,part=false"),
    *("wfp3:backfill=any", "unicep:backfill=easy", "f1:backfill=any", "qssf:backfill=easy,history=0.9"),
    *("interval:interval_s=30", "yarn-cs:backfill=none", "fgd:backfill=none", "lyra:backfill=none"),
    *("chronus:spot_lease_s=60", "max-min:min_lease_s=30,lease_factor=0", "afs-l:min_lease_s=30"),
    *("themis:min_lease_s=30", "pcs:elastic=true", "lazer:x_max_s=0", "lazer:reserve_head=true"),
    *("gfs:order=srtf,retrain_h=0", "gfs-rise:order=sjf,share=castor-cost"),
)
"""Beside the plain names: what else a parameter makes of a policy."""


class Circumstances(NamedTuple):
    """A workload: a scenario, and what is drawn for its jobs besides."""

    scenario: dict[str, Any]
    late_share: float | None = None
    priorities: bool = False
    unknown: float = 0.0
    """This share of the jobs says nothing of its length."""
    on_two_hosts: float = 0.0
    """This share of the jobs of an even number of GPUs asks for two hosts."""
    hp: float = 0.0
    parts: float = 0.0
    """This share of the jobs of one GPU asks for a part of it."""


def _scenario(trace: str, jobs: int, **more: Any) -> dict[str, Any]:
    return {"trace": trace, "jobs": jobs, "hosts": 2, "gpus_per_host": 8, "load_scale": 2.0} | more


WORKLOADS: Final = {
    "philly": Circumstances(_scenario("philly/6214e9", 90)),
    "philly-failing": Circumstances(_scenario("philly/b436b2", 80, failures_mtbf_h=20.0, noise=0.8)),
    "earth": Circumstances(_scenario("synth:earth:90", 90, load_scale=6.0, hosts=3)),
    "saturn-limits": Circumstances(_scenario("synth:saturn:80", 80, load_scale=6.0, limits=True)),
    "drawn-classes": Circumstances(_scenario("synth:uranus:120", 120, load_scale=9.0), hp=0.6),
    "drawn-priorities": Circumstances(
        _scenario("synth:earth:100", 100, load_scale=9.0), priorities=True, unknown=0.15, hp=0.2
    ),
    "drawn-late": Circumstances(
        _scenario("synth:earth:80", 80, load_scale=9.0, noise=0.6), late_share=0.5, priorities=True
    ),
    "drawn-parts": Circumstances(
        _scenario("synth:earth:90", 90, load_scale=9.0, hosts=1), parts=0.5, priorities=True
    ),
    "drawn-promises": Circumstances(_scenario("synth:saturn:80", 80, load_scale=5.0, promise_share=0.4)),
    "drawn-elastic": Circumstances(
        _scenario("synth:earth:80", 80, load_scale=9.0, world="elastic"), unknown=0.1, priorities=True
    ),
    "drawn-wide": Circumstances(
        _scenario("synth:saturn:80", 80, load_scale=9.0, hosts=4, gpus_per_host=4),
        on_two_hosts=0.6,
        unknown=0.1,
        hp=0.3,
        late_share=0.3,
    ),
    "drawn-silent": Circumstances(
        _scenario("synth:earth:100", 100, load_scale=9.0, resumable=0.7, tells=0.6), priorities=True
    ),
}


def draw(spec: Any, what: Circumstances) -> Any:
    """The spec of a job, with what is drawn for it: the same whenever the job is the same."""
    import msgspec

    chance, more = Random(f"{spec.job_id} {what.scenario['trace']}"), dict[str, Any]()
    rolls = [chance.random() for _ in range(4)]
    if what.priorities:
        more["priority"] = chance.choice((0, 0, 0, 0, 7, -5))
    if rolls[0] < what.unknown:
        more |= {"expected_s": None, "iterations": None}
    if rolls[1] < what.on_two_hosts and spec.gpus_max % 2 == 0 and spec.gpus_min == spec.gpus_max:
        more["nodes"] = 2
    if rolls[2] < what.hp:
        more["job_class"] = "hp"
    return msgspec.structs.replace(spec, **more)


class Said:
    """Everything that one run says, as lines."""

    def __init__(self, what: Circumstances) -> None:
        self._what, self._events = what, 0
        self.lines: list[bytes] = []
        self.engine: Any = None

    def handle(self, handle: Any, engine: Any, event: Any, now_s: float) -> Any:
        import msgspec

        if type(event).__name__ == "JobArrived":
            event = msgspec.structs.replace(event, spec=draw(event.spec, self._what))
        commands = handle(engine, event, now_s)
        if self.engine is None:
            self.engine = engine
        if engine is not self.engine:  # Of a roll-out into the future.
            return commands
        said = (now_s, type(event).__name__, engine.decision, engine.refusals, commands)
        self.lines.append(msgspec.json.encode(said))
        self._events += 1
        if self._events % EXPLAINED_EVERY == 0:
            self._explain(now_s)
        if self._events == EVENTS_MAX:
            raise KeyboardInterrupt
        return commands

    def _explain(self, now_s: float) -> None:
        """Ask after the first waiting job, and after others at equal distances behind it."""
        waiting = [job_id for job_id, job in self.engine.jobs.items() if str(job.phase) == "queued"]
        step = max(1, len(waiting) // EXPLAINED_MAX)
        for job_id in islice(waiting, 0, None, step):
            told = self.engine.explain(job_id, now_s)
            self.lines.append(same_decisions.encode((str(job_id), str(told))))

    def close(self) -> list[bytes]:
        """Add how everything stands at the end, and what the policy remembers."""
        if self.engine is not None:
            for job in self.engine.jobs.values():
                self.lines.append(f"{job.job_id} {job.spec.priority} {job.rank} {job.counts}".encode())
                self.lines.append(f"{job.job_id} {job.spec.gpu_fraction} {job.promise}".encode())
            self.lines += map(str.encode, map(str, same_decisions.standing_of_all(self.engine)))
            self.lines.append(self.engine.current.policy.save())
        return self.lines


def run(name: str, workload: str, seed: int = 0) -> list[bytes]:
    """What is said in one simulation, or why there is none."""
    from cotenant.controller import engine
    from cotenant.controller.sim import Scenario, policies_named, simulate, tasks

    what = WORKLOADS[workload]
    asked = dict(what.scenario)
    shares = {key: asked.pop(key) for key in ("resumable", "tells") if key in asked}
    if shares:
        from cotenant.controller.sim import Knowledge

        asked["knowledge"] = Knowledge.parse("progress", **shares)
    kind: Any = engine.Engine
    said = Said(what)
    handle = kind.handle
    (task,) = tasks(Scenario(**asked), policies_named(name), [seed])

    def heard(self: Any, event: Any, now_s: float) -> Any:
        return said.handle(handle, self, event, now_s)

    kind.handle = heard
    try:
        simulate(
            divide(task.workload, what.parts) if what.parts else task.workload,
            task.cluster,
            task.policy.name,
            task.policy.parameters,
            seed=seed,
            physics=task.physics,
            failures=task.failures,
            promise_share=task.promise_share,
            late_share=what.late_share,
        )
    except (ValueError, AssertionError) as problem:  # The same in both states, or one of them is wrong.
        said.lines.append(f"{type(problem).__name__}: {str(problem)[:300]}".encode())
    finally:
        kind.handle = handle
    return said.close()


def divide(workload: Any, share: float) -> Any:
    """The workload with parts of devices for this share of the jobs of one GPU."""
    from dataclasses import replace

    if workload.speedups:
        return workload
    chance = Random("parts")
    parts = [chance.choice((0.25, 0.5)) if chance.random() < share else 1.0 for _ in range(len(workload))]
    whole = [1.0 if gpus > 1 else part for gpus, part in zip(workload.gpus.tolist(), parts, strict=True)]
    return replace(workload, fractions=tuple(whole))


def every_name() -> list[str]:
    return [*same_decisions.every_policy(), *VARIANTS]


def digests(names: Sequence[str], workloads: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(what was run, its digest), one after the other."""
    for name in names:
        for workload in workloads:
            lines = run(name, workload)
            yield f"{name}, {workload}, {len(lines):,} lines", sha256(b"\n".join(lines)).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--names", default="", help="with semicolons between them; without it all, with variants"
    )
    parser.add_argument("--workload", choices=WORKLOADS, help="this one alone")
    parser.add_argument("--tell", type=Path, help="write all that is said to this file")
    flags = parser.parse_args()
    names = [each for each in flags.names.split(";") if each] if flags.names else every_name()
    workloads = [flags.workload] if flags.workload else list(WORKLOADS)
    if flags.tell:
        flags.tell.write_bytes(b"\n".join(run(names[0], workloads[0])))
        return
    for what, digest in digests(names, workloads):
        print(f"{digest}\t{what}", flush=True)


if __name__ == "__main__":
    main()
