"""Jobs of a real cluster: `cotenant up` on one CPU slot, and `cotenant run` for each script.

Rule: a job gets no flag but the variables that the script by itself has as well. Beside another job it says
its memory and how long it expects to run: the scheduler shares no device without.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.building.limits import within_s
from tests.live.person import COTENANT, Person, at_home
from tests.unchanged.collection import Script
from tests.unchanged.runs import ENV_STATE, OBSERVER, Command, Ended, Runner
from tests.unchanged.verdicts import Verdict, judge

CHOSEN: Final = (
    "own/aborts",
    "own/ends_in_order",
    "own/environment_listed",
    "own/files_made",
    "own/plain_training",
    "own/processes_without_a_seed",
    "own/rank_as_a_sign",
    "traits/error_in_forward",
    "traits/exit_within_an_epoch",
    "traits/forward_counted_in_a_global",
    "traits/interrupted",
    "traits/lazy_modules",
    "traits/loader_with_workers",
    "traits/noise_of_a_generator_in_the_module",
    "traits/noise_of_two_dropouts",
    "traits/recurrent",
)
"""With two generated loops: a job takes ten seconds."""
LOOPS: Final = 2
RUNS: Final = 3
"""Of each script: the first of its kind, a later one, and one beside another job."""
BESIDE: Final = ("--mem", "300M", "--expect", "30s")
NOTES: Final = r"note: |job \d+ failed: "
"""What `run` says of the job on the job's standard error, if that is a pipe."""
PARTNER: Final = """
import time
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""


class Jobs:
    """Stands where a `Runner` does; its jobs are those of a cluster."""

    def __init__(self, runner: Runner, person: Person, flags: Sequence[str] = ()) -> None:
        self._runner = runner
        self._person = person
        self._flags = flags

    def bare(self, command: Command) -> Ended:
        return self._runner.bare(replace(command, cold=True))

    def write(self, text: str, name: str) -> Path:
        return self._runner.write(text, name)

    def forget(self) -> None:
        self._runner.forget()

    def job(self, command: Command, **_: Any) -> Ended:
        place = self._runner.place()
        env = {**place.env, **command.env}
        if command.state:
            path = [each for each in (env.get("PYTHONPATH", ""), str(OBSERVER)) if each]
            env |= {"PYTHONPATH": os.pathsep.join(path), ENV_STATE: str(place.state)}
        given = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
        argv = [sys.executable, *command.options, str(command.script), *command.args]
        with place.out.open("wb") as out, place.err.open("wb") as err:
            done = subprocess.run(
                [*COTENANT, "run", "--quiet", *self._flags, *given, "--", *argv],
                cwd=place.cwd,
                env=self._person.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                umask=command.umask,
                timeout=within_s(command.limit_s),
            )
        code = 128 - done.returncode if done.returncode > 128 else done.returncode
        return place.ended(code, ())


def verdicts(found: Sequence[Script], runner: Runner) -> Iterator[Verdict]:
    """Each script as the first job of its kind, as a later one (which may start warm), and beside another."""
    chosen = [replace(each, rules=replace(each.rules, dropped=(NOTES,))) for each in found]
    with _cluster(runner) as person:
        alone = Jobs(runner, person)
        for script in chosen:
            yield judge(alone, replace(script, name=f"{script.name}, first"))
            again = replace(script, command=replace(script.command, state=False))
            yield judge(alone, replace(again, name=f"{script.name}, again"))
        person.write("partner.py", PARTNER)
        words = ("--mem", "300M", "--expect", "1h", "--resumable", "no")
        partner = person.submit(*words, "--env", "OMP_NUM_THREADS=1", "--", sys.executable, "partner.py")
        person.until(partner, lambda seen: seen["step"] > 0)
        for script in chosen:
            yield judge(Jobs(runner, person, BESIDE), replace(script, name=f"{script.name}, beside"))
        shared = person.show(partner)["attempts"][0]["co_tenants"]
        print(f"beside job {partner} ran {len(shared)} jobs", flush=True)


@contextmanager
def _cluster(runner: Runner) -> Iterator[Person]:
    home = runner.folder / "h"
    home.mkdir()
    settings = {"launch__warm": "true", "profiler__seconds": "2", "agent__heartbeat_s": "0.3"}
    with at_home(home, agent__devices="cpu:1", **settings) as person:
        yield person
