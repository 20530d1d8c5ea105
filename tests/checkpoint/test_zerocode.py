"""Scripts of the plain pattern are stopped and resumed without knowing it; others say why they cannot be."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import torch

from cotenant.checkpoint.talk.agreement import Agreement, Confirm
from cotenant.checkpoint.talk.protocol import SupervisorDatagram
from cotenant.checkpoint.zerocode.pattern import LoopPlan, plan_of
from cotenant.checkpoint.zerocode.refusals import NotPlain
from tests.checkpoint.ranks import Gang, Supervisor, Warm, launch

pytestmark = pytest.mark.usefixtures("warm")

HERE = Path(__file__).parent
HOOKED = HERE.parent / "gradaccum" / "hooked.py"


def start(warm: Warm, folder: Path, name: str, env: Mapping[str, str] | None = None) -> Gang:
    """A snapshot of the script's own is common to the attempts, and the whole run's is not."""
    script = HERE / "scripts" / f"{name}.py"
    snapshot = folder.with_name("whole.pt" if folder.name == "whole" else "snapshot.pt")
    return launch(warm, HOOKED, folder, str(script), str(folder / "saved.pt"), str(snapshot), env=env)


def assert_equal(left: Path, right: Path) -> None:
    a, b = torch.load(left, weights_only=True), torch.load(right, weights_only=True)
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), f"{key}: {a[key]} and {b[key]}"


@pytest.mark.parametrize(
    ("name", "stop"),
    [("plain", 3), ("plain", 16), ("toplevel", 8), ("trainer_class", 3), ("trainer_class", 18)],
    ids=["plain-3", "plain-16", "toplevel-8", "trainer-3", "trainer-18"],
)
def test_a_stopped_script_resumes_bit_for_bit(warm: Warm, tmp_path: Path, name: str, stop: int) -> None:
    start(warm, tmp_path / "whole", name).wait()
    root = tmp_path / "root"
    with Supervisor(tmp_path / "s", 1) as supervisor:
        zero = {"COTENANT_ZERO_CODE": "accumulate,checkpoint"}
        first = start(warm, tmp_path / "first", name, supervisor.env(root, 1, **zero, HOOKED_HOLD="1"))
        supervisor.wait_for("hello", gang=first)
        stopped_at = supervisor.agree("stop_at", stop)
        first.wait()
        second = start(warm, tmp_path / "second", name, supervisor.env(root, 2, **zero))
        hellos = supervisor.wait_for("hello", 3, gang=second)
        second.wait()
    assert [hello["resumable"] for hello in hellos] == [True] * 3
    resumed = hellos[-1]
    assert (resumed["step"], resumed["exact"], resumed["note"]) == (stopped_at, True, "")
    assert stopped_at == stop
    assert_equal(tmp_path / "whole" / "saved.pt", tmp_path / "second" / "saved.pt")


BEGINNING = """
model, optimizer, loader, best, seen = make()
def evaluate(model): return 1.0
"""
LOOP = """
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
"""


def plan(loop: str, beginning: str = BEGINNING) -> LoopPlan:
    return plan_of(beginning + loop)


def with_lines(inner: str = "", after: str = "", before: str = "") -> str:
    lines = LOOP.splitlines()
    lines[2:2] = [f"    {line}" for line in before.splitlines()]
    lines += [f"        {line}" for line in inner.splitlines()] + [
        f"    {line}" for line in after.splitlines()
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("loop", "carried"),
    [
        (with_lines(inner="step += 1"), ("step",)),
        (with_lines(inner="best = min(best, loss.item())"), ("best",)),
        (with_lines(inner="if loss < 1: best = loss.item()"), ("best",)),
        (with_lines(before="total = 0.0", inner="total += loss.item()"), ("total",)),
        (with_lines(after="if evaluate(model) > best:\n    best = evaluate(model)"), ("best",)),
        (with_lines(inner="with open('log') as log:\n    text = str(loss)\n    log.write(text)"), ("log",)),
        (with_lines(after="record()") + "\ndef record():\n    global best\n    best = 1", ("best",)),
        (with_lines(inner="hooks.run()") + "\nclass Hook:\n    def run(self): seen.append(1)", ("seen",)),
        (with_lines() + "\nscheduler = LambdaLR(optimizer, lambda epoch: factor)", ("factor",)),
    ],
)
def test_what_outlives_a_step_is_named(loop: str, carried: tuple[str, ...]) -> None:
    assert set(carried) <= set(plan(loop).names)


def test_what_is_used_is_followed_into_the_scripts_functions() -> None:
    inside = (
        "def evaluate(model):\n    return judge(model, table)\ndef judge(m, t): return m(t[0]) + offset\n"
    )
    found = plan(with_lines(after="evaluate(model)\nseen[0] = 1"), BEGINNING + inside)
    assert {"table", "offset", "judge", "model", "optimizer", "loader", "seen"} <= set(found.names)


TRAINER = """
class Trainer:
    def _run_batch(self, x, y):
        self.optimizer.zero_grad()
        self.model(x, y).backward()
        self.optimizer.step()
        self.step += 1
    def _run_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        for x, y in self.loader:
            self._run_batch(x, y)
    def _save_snapshot(self, epoch):
        save(self.model.state_dict(), self.path)
    def train(self, epochs):
        for epoch in range(self.epochs_run, epochs):
            self._run_epoch(epoch)
            if self.rank == 0:
                self._save_snapshot(epoch)
class Other:
    def train(self): self.hidden.backward()
"""


def test_a_trainer_class_is_followed_into_its_methods_and_attributes() -> None:
    found = plan_of(TRAINER)
    assert "self" in found.names and "self.step" not in found.names
    assert found.batch_lines is not None and "step" in found.stored
    assert (found.epoch_lines[0], found.batch_lines[0], found.line_of("self.path")) == (15, 10, 13)


CALLED = """
def train(loader, factor):
    total, meter = 0, Meter()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x)
        total += factor * loss
        meter.update(loss)
        loss.backward()
        optimizer.step()
    return total
for epoch in range(3):
    train(loader, 2)
"""


def test_what_a_called_function_keeps_is_named() -> None:
    found = plan(CALLED)
    assert (found.function, found.inner) == ("train", ("meter", "total"))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("print('no loop')", "no loop over range"),
        (LOOP.replace("range(10)", "epochs()"), "line 5: the loop around backward() is none over range"),
        ("while True:\n    loss.backward()\n    optimizer.step()", "line 4: the loop around backward()"),
        ("loss.backward()", "line 4: backward() is in no loop over batches"),
        (LOOP + LOOP, "more than one training loop (lines 5 and 12)"),
        (LOOP.replace("in loader", "in make()[2].batches"), "not over a loader with a name"),
        ("for epoch in range(3", "cannot be read"),
        (LOOP.replace("        optimizer.zero_grad()\n", ""), "line 5: nothing in this loop clears"),
        (with_lines(before="torch.save(model, 'a')"), "line 6: a file is written before the epoch's batches"),
        (with_lines(after="optimizer.add_param_group({})"), "the optimizer gets more parameters"),
        ("rng = numpy.random.default_rng()\n" + LOOP, "line 4: default_rng() takes another seed each time"),
        ("torch.manual_seed(int(time.time()))\n" + LOOP, "line 4: the seed is another one each time"),
        ("for fold in range(2):\n" + textwrap.indent(LOOP, "    "), "there are two around each step"),
    ],
)
def test_other_patterns_are_not_resumable_and_say_why(script: str, reason: str) -> None:
    with pytest.raises(NotPlain) as raised:
        plan_of(BEGINNING + script)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("replaced", "by", "reason"),
    [
        (
            "per_epoch = []",
            "per_epoch = Meter()",
            "line 40: per_epoch is a Meter, whose state only the script knows",
        ),
        (
            "Adam(model.parameters()",
            "Adam([torch.zeros(1, requires_grad=True)]",
            "Adam trains parameters of no module",
        ),
    ],
)
def test_a_script_with_an_unknown_object_runs_on_and_says_what_is_unknown(
    warm: Warm, tmp_path: Path, replaced: str, by: str, reason: str
) -> None:
    text = (HERE / "scripts" / "plain.py").read_text().replace(replaced, by)
    meter = (
        "slots = {'__slots__': ('a',), 'append': lambda self, row: None}\nMeter = type('Meter', (), slots)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(meter + text.replace("torch.tensor(per_epoch)", "torch.zeros(1)"))
    env = {"COTENANT_ZERO_CODE": "checkpoint"}
    with Supervisor(tmp_path / "s", 1) as supervisor:
        env = supervisor.env(tmp_path / "root", 1, **env)
        gang = launch(warm, HOOKED, tmp_path / "run", str(script), str(tmp_path / "saved.pt"), env=env)
        gang.wait()
        (hello,) = supervisor.wait_for("hello")
    assert hello["resumable"] is False
    assert reason in hello["resumable_note"]


def test_checkpoints_that_cannot_be_used_are_an_error_and_no_fresh_start(warm: Warm, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a1-s5").mkdir(parents=True)
    script = tmp_path / "script.py"
    script.write_text((HERE / "scripts" / "plain.py").read_text().replace("in range(4)", "in iter(range(4))"))
    env = {
        "COTENANT_ZERO_CODE": "checkpoint",
        "COTENANT_CHECKPOINT_ROOT": str(root),
        "COTENANT_ATTEMPT": "2",
    }
    gang = launch(warm, HOOKED, tmp_path / "run", str(script), str(tmp_path / "saved.pt"), env=env)
    gang.wait(code=1)
    assert "there are checkpoints of this job" in gang.output()
    assert not (tmp_path / "saved.pt").exists()


def test_two_ranks_in_parts_stop_and_resume_together(warm: Warm, tmp_path: Path) -> None:
    script = HERE.parent / "gradaccum" / "scripts" / "gang.py"
    zero = {"COTENANT_ZERO_CODE": "accumulate,checkpoint", "COTENANT_ACCUMULATION_STEPS": "2"}

    def begin(folder: str, env: Mapping[str, str]) -> Gang:
        saved = str(tmp_path / folder / "saved.pt")
        return launch(warm, HOOKED, tmp_path / folder, str(script), saved, ranks=2, env=env)

    begin("whole", zero).wait()
    with Supervisor(tmp_path / "s", 2) as supervisor:
        first = begin("first", supervisor.env(tmp_path / "root", 1, **zero, HOOKED_HOLD="1"))
        supervisor.wait_for("hello", 2, gang=first)
        stopped_at = supervisor.agree("stop_at", 2)
        first.wait()
        second = begin("second", supervisor.env(tmp_path / "root", 2, **zero))
        # Each rank says it twice: when its loop begins, and when it knows whether it can be split.
        hellos = supervisor.wait_for("hello", 8, gang=second)
        second.wait()
    resumed = [hello for hello in hellos if hello["step"]]
    assert [(hello["step"], hello["exact"]) for hello in resumed[:2]] == [(2, True)] * 2
    assert stopped_at == 2
    for rank in range(2):
        assert_equal(tmp_path / "whole" / f"saved.pt.{rank}", tmp_path / "second" / f"saved.pt.{rank}")


def test_a_script_is_never_stopped_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """What comes there, printing the last loss for example, needs a batch before it."""
    agreement = Agreement(completed=3)
    agreement.epoch = (7, 7)
    propose = partial(SupervisorDatagram, kind="stop_at", phase="propose")
    assert answered(agreement.receive(propose(proposal=1, step=7))), "short epochs are not looked at"
    agreement.epoch_batches_min = 2  # as `Session.keep_within_epochs` has it
    for proposal, step in ((2, 7), (3, 14)):
        assert not answered(agreement.receive(propose(proposal=proposal, step=step)))
    assert answered(agreement.receive(propose(proposal=4, step=8)))


def answered(confirm: Confirm | None) -> bool:
    assert confirm is not None
    return confirm.ok


def test_one_batch_per_epoch_cannot_be_resumed_and_says_so(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = (HERE / "scripts" / "plain.py").read_text()
    script.write_text(text.replace("batch_size=8", "batch_size=53"))
    with Supervisor(tmp_path / "s", 1) as supervisor:
        env = supervisor.env(tmp_path / "root", 1, COTENANT_ZERO_CODE="checkpoint")
        saved = str(tmp_path / "saved.pt")
        launch(warm, HOOKED, tmp_path / "run", str(script), saved, env=env).wait()
        supervisor.wait_for("first_step")
    hellos = [word for word in supervisor.heard if word["m"] == "hello"]
    assert (hellos[0]["resumable"], hellos[-1]["resumable"]) == (True, False)
    assert hellos[-1]["resumable_note"].startswith("its loader has one batch only")
