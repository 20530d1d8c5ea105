"""The object in the training script, in this process with one rank: loops, counts, resumes, refusals."""

from __future__ import annotations

import copy
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from cotenant import checkpoint, gradaccum
from cotenant.checkpoint import CheckpointError, Session, TooNew, parameters_sha256
from cotenant.gradaccum.schedule import PROGRESS, Progress


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("COTENANT_") and "TEST" not in name]:
        monkeypatch.delenv(name)
    PROGRESS.__dict__.update(vars(Progress()))
    yield
    PROGRESS.__dict__.update(vars(Progress()))


class Augmented(Dataset[Any]):
    """Draws from a generator of its own, from Python's, numpy's and torch's."""

    def __init__(self, rows: int = 22) -> None:
        self.own = numpy.random.default_rng(5)
        self.older = numpy.random.RandomState(6)
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = self.own.random() + self.older.rand() + random.random() + numpy.random.rand()
        return torch.full((4,), index + noise) + torch.rand(()), torch.tensor(index % 3)


class Setting:
    """Everything a small script has; made anew for each attempt."""

    def __init__(self, *, loader: DataLoader[Any] | None = None, seed: int = 1) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=30)
        order = torch.Generator().manual_seed(4)
        self.loader = loader or DataLoader(Augmented(), 4, shuffle=True, generator=order)
        self.seen: list[float] = []

    def session(self, root: Path | None, **more: Any) -> Session:
        return Session(self.model, self.optimizer, self.schedule, root=root, **more)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.seen.append(float(x.sum()))
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.schedule.step()

    def run(self, state: Session, epochs: int = 3, save_at: int = 0, until: int = 0, **how: Any) -> None:
        for _ in state.epochs(epochs):
            for x, y in state.batches(self.loader, **how):
                self.step(x, y)
                if state.step + 1 == save_at:
                    assert state.save()
                if until and state.step + 1 >= until:
                    return


def uninterrupted(epochs: int = 3, **more: Any) -> Setting:
    setting = Setting(**more)
    setting.run(setting.session(None), epochs)
    return setting


@pytest.mark.parametrize("step", [1, 4, 5, 6, 11, 12, 17, 18])
def test_a_run_saved_at_any_step_and_resumed_equals_an_uninterrupted_one(tmp_path: Path, step: int) -> None:
    """6 batches an epoch: in the middle, at the last batch, at the first of an epoch."""
    whole = uninterrupted()
    first = Setting()
    first.run(first.session(tmp_path), save_at=step, until=step)
    second = Setting(seed=99)
    state = second.session(tmp_path)
    assert state.resumed is not None
    assert (state.resumed.name, state.resumed.step, state.resumed.exact) == (f"a1-s{step}", step, True)
    torch.rand(3), random.random(), numpy.random.rand()  # what a script draws before its loop
    second.run(state)
    assert first.seen[:step] + second.seen == whole.seen
    assert parameters_sha256(second.model) == parameters_sha256(whole.model)
    assert second.schedule.state_dict() == whole.schedule.state_dict()
    assert random.random() == _after(whole, random.random)
    state.close()


def _after(whole: Setting, draw: Any) -> Any:
    """What `draw` gives after the uninterrupted run, run again for its random state."""
    uninterrupted()
    return draw()


@pytest.mark.parametrize("skip", ["replay", "indices", "auto"])
def test_every_way_to_skip_gives_the_same_batches(tmp_path: Path, skip: str) -> None:
    whole = uninterrupted()
    first = Setting()
    first.run(first.session(tmp_path), save_at=8, until=8)
    second = Setting()
    second.run(second.session(tmp_path), skip=skip)
    assert first.seen + second.seen == whole.seen
    assert parameters_sha256(second.model) == parameters_sha256(whole.model)


def test_a_plain_loop_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    setting = Setting()
    state = setting.session(None)
    setting.run(state, epochs=2)
    by_hand = Setting()
    for _ in range(2):
        for x, y in by_hand.loader:
            by_hand.step(x, y)
    assert parameters_sha256(setting.model) == parameters_sha256(by_hand.model)
    assert (state.step, state.epoch, state.resumed, state.save()) == (12, 1, None, False)
    assert list(tmp_path.iterdir()) == []


def test_a_loop_without_batches_counts_steps_itself(tmp_path: Path) -> None:
    def attempt(until: int) -> tuple[Setting, Session]:
        setting = Setting()
        state = setting.session(tmp_path)
        generator = torch.Generator()
        while state.step < until:
            generator.manual_seed(state.step)
            x = torch.randn(4, 4, generator=generator)
            setting.step(x, torch.zeros(4, dtype=torch.long))
            state.step_done()
        return setting, state

    _, state = attempt(5)
    assert state.save()
    resumed, state = attempt(9)
    assert state.resumed is not None
    assert state.resumed.step == 5
    for path in tmp_path.glob("a*"):
        path.rename(tmp_path / f".{path.name}")
    whole, _ = attempt(9)
    assert parameters_sha256(resumed.model) == parameters_sha256(whole.model)


def test_the_scripts_own_accumulation_makes_no_boundary_between_its_steps(tmp_path: Path) -> None:
    setting = Setting()
    state = setting.session(tmp_path)
    counts = []
    for _ in state.epochs(1):
        for number, (x, y) in enumerate(state.batches(setting.loader)):
            nn.functional.cross_entropy(setting.model(x), y).backward()  # type: ignore[no-untyped-call]
            if number % 3 == 2:
                setting.optimizer.step()
                setting.optimizer.zero_grad()
            elif number == 3:
                with pytest.raises(CheckpointError, match=r"before optimizer\.step"):
                    state.save()
            counts.append(state.step)
    assert counts == [0, 0, 0, 1, 1, 1]
    assert state.step == 2


def test_saving_at_the_end_of_an_epoch_goes_on_with_the_next(tmp_path: Path) -> None:
    whole = uninterrupted()
    first = Setting()
    state = first.session(tmp_path)
    for epoch in state.epochs(3):
        for x, y in state.batches(first.loader):
            first.step(x, y)
        if epoch == 1:
            assert state.save()
            break
    second = Setting()
    state = second.session(tmp_path)
    assert (state.epoch, state.step) == (2, 12)
    second.run(state)
    assert first.seen + second.seen == whole.seen
    assert parameters_sha256(second.model) == parameters_sha256(whole.model)


def test_worker_processes_replay_their_random_state(tmp_path: Path) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Augmented(12), 4, shuffle=True, num_workers=1)

    whole = uninterrupted(2, loader=loader())
    first = Setting(loader=loader())
    first.run(first.session(tmp_path), epochs=2, save_at=4, until=4)
    second = Setting(loader=loader())
    state = second.session(tmp_path)
    second.run(state, epochs=2)
    assert first.seen + second.seen == whole.seen
    assert parameters_sha256(second.model) == parameters_sha256(whole.model)
    assert state.resumed is not None
    assert state.resumed.exact


def test_skipping_indices_with_workers_is_called_equivalent(tmp_path: Path) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.randn(12, 4), torch.zeros(12).long()), 4, num_workers=1)

    first = Setting(loader=loader())
    first.run(first.session(tmp_path), epochs=1, save_at=2, until=2)
    second = Setting(loader=loader())
    state = second.session(tmp_path)
    second.run(state, epochs=1, skip="indices")
    assert len(second.seen) == 1
    assert state.resumed is not None
    assert not state.resumed.exact
    assert "worker processes" in state.resumed.note


def test_extras_come_back(tmp_path: Path) -> None:
    def extra(model: nn.Module) -> dict[str, Any]:
        return {
            "ema": torch.optim.swa_utils.AveragedModel(model),
            "noise": torch.Generator().manual_seed(3),
            "dice": random.Random(4),
            "best": 1.5,
            "log": [1, 2],
        }

    first = Setting()
    mine = extra(first.model)
    state = first.session(tmp_path, extra=mine)
    first.run(state, epochs=1, until=3)
    mine["ema"].update_parameters(first.model)
    mine.update(best=0.25, log=[1, 2, 3])
    draws = torch.rand(2, generator=mine["noise"]), mine["dice"].random()
    state.save()
    expected = torch.rand(2, generator=mine["noise"]), mine["dice"].random()
    second = Setting()
    again = extra(second.model)
    second.session(tmp_path, extra=again)
    assert parameters_sha256(again["ema"]) == parameters_sha256(mine["ema"])
    assert (again["best"], again["log"]) == (0.25, [1, 2, 3])
    assert torch.equal(torch.rand(2, generator=again["noise"]), expected[0])
    assert again["dice"].random() == expected[1] != draws[1]


def test_buffers_that_no_state_dict_has_come_back(tmp_path: Path) -> None:
    def setting() -> Setting:
        made = Setting()
        for name in ("seen", "grows", "goes"):
            made.model.register_buffer(name, torch.zeros(2), persistent=False)
        return made

    first = setting()
    state = first.session(tmp_path)
    first.run(state, epochs=1, until=3)
    # torch counts no writes of its own kernels to running statistics.
    statistics = first.model.get_buffer("seen"), torch.ones(2)
    nn.functional.batch_norm(torch.randn(4, 2), *statistics, training=True)
    first.model.grows = torch.ones(3)
    first.model._buffers["goes"] = None
    state.save()
    second = setting()
    held = second.model.get_buffer("seen")
    second.session(tmp_path)
    assert torch.equal(held, first.model.get_buffer("seen")), "who holds it sees it"
    assert held.abs().sum() > 0
    assert second.model.get_buffer("grows").tolist() == [1, 1, 1]
    assert second.model.goes is None


def saved(root: Path, *steps: int) -> Setting:
    setting = Setting()
    state = setting.session(root, keep=10)
    for step in steps:
        setting.run(state, epochs=9, save_at=step, until=step)
        state._loops = 0
    state.close()
    return setting


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 2, 4)
    damage(tmp_path / "a1-s4" / "model.pt")
    with caplog.at_level(logging.WARNING, "cotenant.checkpoint"):
        state = Setting().session(tmp_path)
    assert state.resumed is not None
    assert state.resumed.step == 2
    assert "a1-s4 skipped" in caplog.text
    assert "does not match its sha256" in caplog.text


def test_going_back_to_step_0_is_an_error_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 2)
    damage(tmp_path / "a1-s2" / "rank-0.pt")
    with pytest.raises(CheckpointError, match=r"going back to step 0.*COTENANT_RESUME=none"):
        Setting().session(tmp_path)
    monkeypatch.setenv("COTENANT_RESUME", "none")
    assert Setting().session(tmp_path).step == 0


def test_an_older_attempt_than_the_checkpoints_does_not_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 2)
    (tmp_path / "a1-s2").rename(tmp_path / "a5-s2")
    monkeypatch.setenv("COTENANT_ATTEMPT", "4")
    with pytest.raises(CheckpointError, match="a5-s2 belongs to a later attempt"):
        Setting().session(tmp_path)


def test_the_supervisor_may_name_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 2, 4)
    monkeypatch.setenv("COTENANT_RESUME", "a1-s2")
    assert Setting().session(tmp_path).step == 2
    monkeypatch.setenv("COTENANT_RESUME", "a1-s3")
    assert Setting().session(tmp_path).step == 4, "one that is gone is only tried first"


def test_a_named_checkpoint_that_is_gone_with_all_others_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTENANT_RESUME", "a1-s3")
    with pytest.raises(CheckpointError, match="a1-s3, named by COTENANT_RESUME, is not there"):
        Setting().session(tmp_path)


def test_another_environment_is_named_and_called_equivalent(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        state = Setting().session(tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert state.resumed is not None
    assert not state.resumed.exact
    assert f"threads per process: {threads} then, {threads + 1} now" in state.resumed.note
    assert state.save()
    manifest = checkpoint.verify(tmp_path / "a2-s2")
    assert not manifest.exact, "and so are all that descend from it"
    assert "threads per process" in manifest.note


def test_a_changed_script_is_an_error_that_says_so(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    other = Setting()
    other.model = nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.5), nn.Linear(9, 3))
    with pytest.raises(CheckpointError, match=r"(?s)does not fit this Sequential.*was the script changed"):
        other.session(tmp_path)
    with pytest.raises(CheckpointError, match="1 schedulers, the script gives 0"):
        Session(other.model, other.optimizer, root=tmp_path)
    converted = Setting()
    converted.model.to(torch.float64)
    state = converted.session(tmp_path)
    assert state.resumed is not None
    assert "converted: torch.float32 then, torch.float64 now" in state.resumed.note


def test_accumulation_goes_on_where_it_was_and_its_history_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(until: int) -> Session:
        setting = Setting()
        state = setting.session(tmp_path)
        for _ in state.epochs(5):
            for x, y in state.batches(setting.loader):
                setting.optimizer.zero_grad()
                gradaccum.backward(
                    setting.model, lambda a, b: nn.functional.cross_entropy(setting.model(a), b), x, y
                )
                setting.optimizer.step()
                if state.step + 1 >= until:
                    assert state.save()
                    return state
        return state

    monkeypatch.setenv("COTENANT_ZERO_CODE", "equivalent")  # It has dropout.
    monkeypatch.setenv("COTENANT_ACCUMULATION_SCHEDULE", "0:1,2:2,5:4")
    assert attempt(4).accumulation_history == "0:1,2:2"
    PROGRESS.__dict__.update(vars(Progress()))
    state = attempt(7)
    assert state.accumulation_history == "0:1,2:2,5:4"
    assert state.resumed is not None
    assert state.resumed.exact
    PROGRESS.__dict__.update(vars(Progress()))
    monkeypatch.setenv("COTENANT_ACCUMULATION_SCHEDULE", "0:3")
    third = attempt(8)
    assert third.resumed is not None
    assert "accumulation steps: 4 then, 3 now" in third.resumed.note
    assert third.accumulation_history == "0:1,2:2,5:4,7:3"


def test_an_old_protocol_reader_runs_as_a_plain_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COTENANT_PROTOCOL", "2")
    monkeypatch.setenv("COTENANT_CHECKPOINT_ROOT", str(tmp_path / "root"))
    assert not Setting().session(None).save()
    assert not (tmp_path / "root").exists()
    assert "upgrade cotenant in this environment" in caplog.text


def test_two_loops_in_one_epoch_are_refused() -> None:
    setting = Setting()
    state = setting.session(None)
    next(state.epochs(1))
    assert list(state.batches([1, 2])) == [1, 2]
    with pytest.raises(CheckpointError, match="one `batches` loop per epoch"):
        next(state.batches([1, 2]))


def test_what_cannot_be_saved_is_refused_at_once() -> None:
    class ZeroRedundancyOptimizer(torch.optim.SGD):
        pass

    model = nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match="ZeroRedundancyOptimizer"):
        Session(model, ZeroRedundancyOptimizer(model.parameters(), lr=0.1))


def test_one_number_tells_models_apart_bit_for_bit() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    same = copy.deepcopy(model)
    assert parameters_sha256(model) == parameters_sha256(same)
    compiled: Any = torch.compile(same, backend="eager")
    assert parameters_sha256(model) == parameters_sha256(compiled)
    with torch.no_grad():
        same.weight.view(torch.int32)[0, 0] ^= 1
    assert parameters_sha256(model) != parameters_sha256(same)
    assert parameters_sha256(model) != parameters_sha256(copy.deepcopy(model).to(torch.float64))


def test_a_newer_checkpoint_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 2, 4)
    (tmp_path / "a1-s4" / "manifest.json").write_text('{"version": 9}')
    with pytest.raises(TooNew, match="upgrade cotenant"):
        Setting().session(tmp_path)


def test_a_step_of_an_elastic_job_with_another_batch_is_an_error_before_it_trains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COTENANT_STEP_BATCH", "4x2")
    setting = Setting()  # Its loader has 4 rows, and there is one worker.
    session = Session(setting.model, setting.optimizer, root=tmp_path)
    with pytest.raises(
        CheckpointError, match=r"4 x 1 rows here, and 4 x 2 as this elastic job was submitted"
    ):
        next(iter(session.batches(setting.loader)))
    session.close()


def test_a_step_of_an_elastic_job_with_its_batch_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COTENANT_STEP_BATCH", "2x2")
    setting = Setting()
    session = Session(setting.model, setting.optimizer, root=tmp_path)
    assert next(iter(session.batches(setting.loader)))
    session.close()
