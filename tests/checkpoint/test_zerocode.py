"""Scripts that know nothing of us are stopped, resumed and proven; what cannot be is refused, or ends in
words.

The habits of many authors are the business of `test_habits.py`; here is what becomes of gangs, of checkpoints
that cannot be used, of a setup that does not repeat, and of faults of our own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.checkpoint.habits import INTERPRETER
from tests.checkpoint.ranks import Gang, Supervisor, Warm, launch

pytestmark = pytest.mark.usefixtures("warm")

SCRIPTS = Path(__file__).parent / "scripts"
GANG = Path(__file__).parents[1] / "gradaccum" / "scripts" / "gang.py"
PLAIN = SCRIPTS / "plain.py"
WORDS = "checkpoint,progress"


class Runs(NamedTuple):
    """A script and where it runs; its attempts share one folder, as those of a job do."""

    warm: Warm
    folder: Path
    script: Path
    ranks: int = 1
    env: Mapping[str, str] = {}

    def whole(self) -> None:
        self._start("whole", "logs-whole", 7, self.env).wait()

    def stopped(self, step: int, number: int = 1) -> int:
        """Attempt `number` is stopped after a step, which is returned."""
        with Supervisor(self.folder / f"s{number}", self.ranks) as supervisor:
            gang = self._attempt(supervisor, number, HABITS_HOLD="1")
            supervisor.wait_for("hello", self.ranks, gang=gang, resumable=True)
            stopped_at = supervisor.agree("stop_at", step)
            supervisor.wait_for("stopped", self.ranks, gang=gang)
            gang.wait()
        return stopped_at

    def resumed(self, number: int = 2) -> list[dict[str, Any]]:
        """What the ranks of an attempt said that ran to its end."""
        with Supervisor(self.folder / f"s{number}", self.ranks) as supervisor:
            gang = self._attempt(supervisor, number)
            supervisor.wait_for("hello", self.ranks, gang=gang)
            gang.wait()
            return supervisor.hear_all()

    def failed(self, number: int = 2) -> str:
        """What an attempt printed that must not go on."""
        with Supervisor(self.folder / f"s{number}", self.ranks) as supervisor:
            gang = self._attempt(supervisor, number)
            gang.wait(code=1)
            return gang.output()

    def saved(self, run: str, rank: int | None = None) -> Any:
        name = "saved.pt" if rank is None else f"saved.pt.{rank}"
        return torch.load(self.folder / run / name, weights_only=True)

    def _attempt(self, supervisor: Supervisor, number: int, **more: str) -> Gang:
        env = supervisor.env(
            self.folder / "root", number, **{"COTENANT_ZERO_CODE": WORDS, **self.env, **more}
        )
        return self._start("job", f"logs-{number}", number, env)

    def _start(self, cwd: str, logs: str, seed: int, env: Mapping[str, str]) -> Gang:
        (self.folder / cwd).mkdir(exist_ok=True)
        words = (str(self.folder / cwd), str(seed), str(self.script), "saved.pt", "snapshot.pt")
        return launch(self.warm, INTERPRETER, self.folder / logs, *words, ranks=self.ranks, env=env)


def assert_equal(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for key in left:
        assert torch.equal(left[key], right[key]), f"{key}: {left[key]} and {right[key]}"


@pytest.mark.parametrize(
    ("name", "stop"),
    [("plain", 3), ("plain", 14), ("toplevel", 8), ("trainer_class", 3), ("trainer_class", 18)],
    ids=["plain-3", "plain-end-of-epoch", "toplevel-8", "trainer-3", "trainer-18"],
)
def test_a_stopped_script_resumes_bit_for_bit(warm: Warm, tmp_path: Path, name: str, stop: int) -> None:
    runs = Runs(warm, tmp_path, SCRIPTS / f"{name}.py")
    runs.whole()
    assert runs.stopped(stop) == stop
    hello = next(word for word in runs.resumed() if word.get("m") == "hello")
    assert (hello["step"], hello["exact"], hello["note"]) == (stop, True, "")
    assert_equal(runs.saved("whole"), runs.saved("job"))


def test_one_batch_per_epoch_is_resumed_as_well(warm: Warm, tmp_path: Path) -> None:
    runs = changed(warm, tmp_path, PLAIN, ("batch_size=8", "batch_size=53"))
    runs.whole()
    runs.stopped(2)
    runs.resumed()
    assert_equal(runs.saved("whole"), runs.saved("job"))


def changed(warm: Warm, folder: Path, original: Path, *changes: tuple[str, str]) -> Runs:
    """A script with some of its text replaced."""
    text = original.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    script = folder / "script.py"
    script.write_text(text)
    return Runs(warm, folder, script)


PARTS = {"COTENANT_ZERO_CODE": f"accumulate,{WORDS}", "COTENANT_ACCUMULATION_STEPS": "2"}


@pytest.mark.parametrize(
    ("ranks", "env"), [(2, {}), (3, {}), (2, PARTS)], ids=["two", "three", "two-in-parts"]
)
def test_ranks_stop_and_resume_together(
    warm: Warm, tmp_path: Path, ranks: int, env: Mapping[str, str]
) -> None:
    """With three the order in which DDP adds gradients up shows in the last bits."""
    runs = changed(warm, tmp_path, GANG, ("in range(2)", "in range(4)"))._replace(ranks=ranks, env=env)
    runs.whole()
    step = runs.stopped(3)
    hellos = [word for word in runs.resumed() if word.get("m") == "hello"]
    assert [(hello["step"], hello["exact"]) for hello in hellos[:ranks]] == [(step, True)] * ranks
    for rank in range(ranks):
        assert_equal(runs.saved("whole", rank), runs.saved("job", rank))


def test_a_script_that_was_edited_does_not_begin_anew_over_its_checkpoints(
    warm: Warm, tmp_path: Path
) -> None:
    runs = changed(warm, tmp_path, PLAIN)
    runs.stopped(3)
    runs.script.write_text(runs.script.read_text().replace("lr=0.01", "lr=0.02"))
    assert "script.py was edited since" in runs.failed()
    assert not (tmp_path / "job" / "saved.pt").exists()


def test_checkpoints_that_cannot_be_used_are_an_error_and_no_fresh_start(warm: Warm, tmp_path: Path) -> None:
    runs = changed(warm, tmp_path, PLAIN)
    (tmp_path / "root" / "a1-s5").mkdir(parents=True)
    assert "going back to step 0 would lose the training so far" in runs.failed()
    assert not (tmp_path / "job" / "saved.pt").exists()


def test_a_setup_that_does_not_repeat_ends_the_attempt_and_names_what_differs(
    warm: Warm, tmp_path: Path
) -> None:
    """Plain values of another attempt are put back; data cannot be."""
    random_rows = "torch.randn(53, 6, generator=torch.Generator().manual_seed(os.getpid()))"
    runs = changed(
        warm, tmp_path, PLAIN, ("import sys", "import os, sys"), ("torch.randn(53, 6)", random_rows)
    )
    runs.stopped(3)
    said = runs.failed()
    assert "came out otherwise" in said and "data.tensors[0]" in said
    assert not (tmp_path / "job" / "saved.pt").exists()


UNKNOWN = """
import zlib
squeeze = zlib.compressobj()
"""


def test_what_cannot_be_known_is_refused_by_name_and_runs_on_undisturbed(warm: Warm, tmp_path: Path) -> None:
    more = "step += 1\n            squeeze.compress(bytes(step))"
    runs = changed(warm, tmp_path, PLAIN, ("step += 1", more))
    runs.script.write_text(UNKNOWN + runs.script.read_text())
    runs.whole()
    heard = runs.resumed(1)
    hello = [word for word in heard if word.get("m") == "hello"][-1]
    line = 1 + runs.script.read_text().splitlines().index("            squeeze.compress(bytes(step))")
    assert (hello["resumable"], hello["resumable_note"]) == (
        False,
        f"script.py line {line}: `squeeze` is a zlib.Compress, into which nobody can look",
    )
    assert_equal(runs.saved("whole"), runs.saved("job"))


OWN_NAMES = """
import torch

if "Names" not in globals():
    class Names(dict):
        pass

    exec(compile(open(__file__).read(), __file__, "exec"), globals(), Names())
else:
    def train(model, optimizer):
        for step in range(6):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()

    model = torch.nn.Linear(2, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""


def test_names_that_a_script_keeps_in_a_mapping_of_its_own_are_not_read(warm: Warm, tmp_path: Path) -> None:
    runs = Runs(warm, tmp_path, tmp_path / "script.py")
    runs.script.write_text(OWN_NAMES)
    hello = [word for word in runs.resumed(1) if word.get("m") == "hello"][-1]
    assert (hello["resumable"], hello["resumable_note"]) == (
        False,
        "code of it runs in a mapping of its own (`exec`, `__prepare__`)",
    )


FAULT = """
from cotenant.checkpoint.zerocode import state_writer
_write = state_writer.StateWriter.write
def _forget(self):
    tree = _write(self)
    del tree["changed"][FORGOTTEN % len(tree["changed"])]
    return tree
state_writer.StateWriter.write = _forget
"""


@pytest.mark.parametrize("seed", range(4))
def test_state_that_is_forgotten_is_found_before_the_next_step(warm: Warm, tmp_path: Path, seed: int) -> None:
    """One thing that changed is not written: the attempt that lacks it must not take a step."""
    runs = Runs(warm, tmp_path, tmp_path / "script.py")
    forgotten = random.Random(seed).randrange(1000)
    text = PLAIN.read_text()
    runs.script.write_text(FAULT.replace("FORGOTTEN", str(forgotten)) + text)
    runs.stopped(5)
    said = runs.failed()
    assert "CheckpointError" in said, f"seed {seed}: {said}"
    assert "step 6" not in said.split("--- rank 0")[-1]


def test_state_out_of_reach_is_found_by_the_steps_that_both_processes_make(
    warm: Warm, tmp_path: Path
) -> None:
    """Nobody looks into the interpreter for what a script keeps there: the loss tells."""
    keep = "step += 1\n            sys.setswitchinterval(sys.getswitchinterval() * 1.5)"
    runs = changed(
        warm,
        tmp_path,
        PLAIN,
        ("step += 1", keep),
        ("loss.backward()", "(loss * sys.getswitchinterval()).backward()"),
    )
    runs.stopped(5)
    said = runs.failed()
    assert "CheckpointError: step 6 was made otherwise than in the attempt that was left: `main()." in said
    assert not (tmp_path / "job" / "saved.pt").exists()
