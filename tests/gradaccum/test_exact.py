"""Promise 5: accumulated training equals whole-batch training to 1e-12 in float64."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant import gradaccum
from cotenant.checkpoint.talk.pace import FORMAT, RankPace
from cotenant.checkpoint.talk.protocol import PACE_FILE
from cotenant.gradaccum import Schedule
from cotenant.gradaccum.rows import cut, rows_of, sizes_of
from tests.building.limits import within_s

TOLERANCE = 1e-12
CLASSES = 5


def model() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, CLASSES)).double()


def batches(count: int = 6, rows: int = 30, tokens: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """The last one is smaller and not divisible. With `tokens`, 40 % of the labels do not count."""
    generator = torch.Generator().manual_seed(12)
    for position in range(count):
        size = rows if position < count - 1 else 13
        shape = (size, tokens) if tokens else (size,)
        x = torch.randn(*shape, 6, generator=generator, dtype=torch.float64)
        y = torch.randint(0, CLASSES, shape, generator=generator)
        if tokens:
            y[torch.rand(shape, generator=generator) < 0.4] = -100
        yield x, y


def flat_loss(net: nn.Module, reduction: str) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(net(x).flatten(0, -2), y.flatten(), reduction=reduction)

    return loss


def count(x: Tensor, y: Tensor) -> Tensor:
    return (y != -100).sum()


def trained(
    steps: int,
    kind: str,
    *,
    optimizer: str = "adam",
    clip: bool = False,
    scaler: bool = False,
    tokens: int = 0,
) -> tuple[nn.Module, list[float]]:
    """A few steps with everything a real script does after backward."""
    net = model()
    chosen: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=0.01),
    }
    opt = chosen[optimizer](net.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=20)
    amp = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaler else None
    loss_of = flat_loss(net, "sum" if kind in ("sum", "token_sum") else "mean")
    losses = []
    for x, y in batches(tokens=tokens):
        opt.zero_grad()
        kwargs: dict[str, Any] = {"loss": kind, "steps": steps}
        if kind.startswith("token"):
            kwargs["tokens"] = count
        losses.append(float(gradaccum.backward(net, loss_of, x, y, scaler=amp, **kwargs)))
        if amp is not None:
            amp.unscale_(opt)
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        if amp is not None:
            amp.step(opt)
            amp.update()
        else:
            opt.step()
        schedule.step()
    return net, losses


def apart(left: nn.Module, right: nn.Module) -> float:
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("steps", [2, 3, 4, 7])
@pytest.mark.parametrize(
    "options",
    [
        {"kind": "mean"},
        {"kind": "sum"},
        {"kind": "mean", "optimizer": "sgd", "clip": True},
        {"kind": "mean", "scaler": True, "clip": True},
        {"kind": "token_mean", "tokens": 7},
        {"kind": "token_sum", "tokens": 7, "clip": True},
    ],
    ids=str,
)
def test_accumulated_training_equals_whole_batches(steps: int, options: dict[str, Any]) -> None:
    whole, whole_losses = trained(1, **options)
    parts, parts_losses = trained(steps, **options)
    assert apart(whole, parts) <= TOLERANCE
    assert parts_losses == pytest.approx(whole_losses, abs=TOLERANCE)
    assert apart(whole, model()) > 1e-3, "nothing was trained"


def test_the_whole_batch_in_one_part_is_bit_for_bit_the_plain_loop() -> None:
    net = model()
    plain = copy.deepcopy(net)
    for x, y in batches():
        gradaccum.backward(net, flat_loss(net, "mean"), x, y)
        flat_loss(plain, "mean")(x, y).backward()  # type: ignore[no-untyped-call]
    for a, b in zip(net.parameters(), plain.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_split_leaves_the_loop_to_the_script() -> None:
    net, whole = model(), model()
    x, y = next(batches())
    for part_x, part_y, weight in gradaccum.split(net, x, y, steps=4):
        (flat_loss(net, "mean")(part_x, part_y) * weight).backward()
    flat_loss(whole, "mean")(x, y).backward()  # type: ignore[no-untyped-call]
    for a, b in zip(net.parameters(), whole.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert (a.grad - b.grad).abs().max() <= TOLERANCE


def test_parts_without_tokens_are_left_out_of_a_token_mean() -> None:
    net, whole = model(), model()
    x, y = next(batches(tokens=7))
    y[:8] = -100  # all of the first part
    gradaccum.backward(net, flat_loss(net, "mean"), x, y, loss="token_mean", tokens=count, steps=4)
    flat_loss(whole, "mean")(x, y).backward()  # type: ignore[no-untyped-call]
    for a, b in zip(net.parameters(), whole.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert (a.grad - b.grad).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    ("rows", "steps", "sizes"),
    [(30, 4, [8, 8, 7, 7]), (8, 2, [4, 4]), (3, 5, [1, 1, 1]), (5, 1, [5]), (1, 4, [1])],
)
def test_parts_differ_by_one_row_at_most(rows: int, steps: int, sizes: list[int]) -> None:
    assert sizes_of(rows, steps) == sizes


def test_batches_of_many_shapes_are_cut_by_rows() -> None:
    batch = ({"ids": torch.arange(6).view(6, 1), "names": list("abcdef")}, [torch.arange(6), torch.tensor(7)])
    assert rows_of(batch) == 6
    features, (numbers, constant) = cut(batch, 2, 4)
    assert features["ids"].tolist() == [[2], [3]]
    assert features["names"] == ["c", "d"]
    assert numbers.tolist() == [2, 3]
    assert int(constant) == 7


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (
            (torch.ones(4, 2), torch.ones(5)),
            r"differ in their number of rows \(4 in batch\[0\] and 5 in batch",
        ),
        ((torch.ones(()), "text"), "no tensor with rows"),
        ((nn.utils.rnn.pack_sequence([torch.ones(2)]),), "cannot be split by rows"),
    ],
)
def test_what_cannot_be_cut_is_refused(batch: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        list(gradaccum.split(model(), *batch, steps=2))


def test_the_schedule_is_followed_by_completed_steps() -> None:
    gradaccum.configure(Schedule(((0, 2), (2, 3), (4, 1))))
    used = []
    for x, y in batches():
        used.append(len(list(gradaccum.split(model(), x, y))))
    assert used == [2, 2, 3, 3, 1, 1]
    gradaccum.PROGRESS.counted_for_us = True
    gradaccum.PROGRESS.completed = 2  # as a resume does
    assert [len(list(gradaccum.split(model(), x, y))) for x, y in batches(2)] == [3, 3], (
        "the caller counts now"
    )


def test_waiting_for_a_co_tenant_between_the_parts_of_a_batch_changes_no_bit(tmp_path: Path) -> None:
    """A pace of .2, as a guest of a bounded job has it: it waits after each part but the last, which the end
    of the step follows."""
    (tmp_path / PACE_FILE).write_bytes(FORMAT.pack(0.2, time.monotonic() + within_s(60.0), 1.0, 0.0, 0.0))
    undisturbed, _ = trained(3, "mean")
    pace = RankPace(tmp_path)
    calls = []

    def wait() -> None:
        calls.append(1)
        pace.wait()

    gradaccum.PROGRESS.between_parts = wait
    waited, _ = trained(3, "mean")
    assert pace.waited_s > 0.0
    assert len(calls) == 2 * gradaccum.PROGRESS.completed // 2, "twice a step of three parts"
    for mine, theirs in zip(waited.parameters(), undisturbed.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_token_losses_need_a_count_and_kinds_are_checked() -> None:
    with pytest.raises(ValueError, match="needs tokens="):
        list(gradaccum.split(model(), torch.ones(2, 6), loss="token_sum"))
    with pytest.raises(ValueError, match="must be one of mean, sum"):
        list(gradaccum.split(model(), torch.ones(2, 6), loss="average"))
