"""What cannot be exact is refused with its reason before the first optimizer step, never silently wrong."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant import gradaccum
from cotenant.gradaccum import Refused
from tests.building.limits import within_s


class Momentum(nn.Module):
    """A stateful layer that no list of types knows."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.mean


def network(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*layers, nn.Linear(6, 3))


def rows(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def mean_loss(net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: functional.cross_entropy(net(x), y)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.BatchNorm1d(6), "0: BatchNorm1d in training mode normalises over its whole batch"),
        (nn.SyncBatchNorm(6), "0: SyncBatchNorm in training mode"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), "power iteration"),
        (nn.InstanceNorm1d(6, track_running_stats=True), "running statistics"),
    ],
)
def test_modules_known_to_depend_on_the_batch_are_refused(layer: nn.Module, reason: str) -> None:
    net = network(layer)
    with pytest.raises(Refused, match=reason):
        gradaccum.backward(net, mean_loss(net), *rows(), steps=2)
    assert reason.split(": ")[-1] in str(gradaccum.refusal(net))


def test_a_frozen_batch_norm_is_fine_until_it_is_put_back_into_training_mode() -> None:
    frozen = nn.BatchNorm1d(6).eval()
    net = network(frozen)
    assert gradaccum.refusal(net) is None
    gradaccum.backward(net, mean_loss(net), *rows(), steps=2)
    net.train()
    with pytest.raises(Refused, match="BatchNorm1d in training mode"):
        gradaccum.backward(net, mean_loss(net), *rows(), steps=2)


def test_a_forward_pass_that_changes_a_buffer_is_refused_before_the_step() -> None:
    net = network(Momentum())
    with pytest.raises(Refused, match=r"computing the loss changes 0\.mean"):
        gradaccum.backward(net, mean_loss(net), *rows(), steps=2)


def contrastive(net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        out = functional.normalize(net(x))
        return functional.cross_entropy(out @ out.t() / 0.1, torch.arange(len(x)))

    return loss


def ignoring(net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: functional.cross_entropy(net(x), torch.where(torch.arange(len(y)) < 2, -100, y))


@pytest.mark.parametrize(
    "loss_of",
    [
        contrastive,
        ignoring,
        lambda net: lambda x, y: functional.cross_entropy(net(x), y, reduction="sum"),
        lambda net: lambda x, y: functional.cross_entropy(net(x), y) + net(x).var(),
    ],
    ids=["contrastive", "ignore_index", "sum", "variance over the batch"],
)
def test_a_loss_that_does_not_split_as_declared_is_found_on_a_few_rows(
    loss_of: Callable[[nn.Module], Callable[[Tensor, Tensor], Tensor]],
) -> None:
    net = network()
    with pytest.raises(Refused, match="does not split over rows as declared"):
        gradaccum.backward(net, loss_of(net), *rows(), steps=2)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_mean_declared_as_a_sum_is_found_too() -> None:
    net = network()
    with pytest.raises(Refused, match="does not split"):
        gradaccum.backward(net, mean_loss(net), *rows(), loss="sum", steps=2)


def test_random_numbers_are_refused_unless_others_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(nn.Dropout(0.5), nn.Linear(6, 6), nn.Dropout(0.5))
    gradaccum.PROGRESS.is_equivalent = False
    with pytest.raises(Refused, match=r"draws random numbers .* --accumulate equivalent allows that"):
        gradaccum.backward(net, mean_loss(net), *rows(), steps=3)
    monkeypatch.setenv("COTENANT_ZERO_CODE", "accumulate,equivalent")
    refused = gradaccum.PROGRESS.is_equivalent
    gradaccum.backward(net, mean_loss(net), *rows(), steps=3)
    assert (refused, gradaccum.PROGRESS.is_equivalent) == (False, True)
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert gradaccum.refusal(net) is None


def test_other_random_numbers_allow_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_ZERO_CODE", "accumulate,equivalent")
    net = network(nn.Dropout(0.5))
    with pytest.raises(Refused, match="does not split"):
        gradaccum.backward(net, contrastive(net), *rows(), steps=2)


class Drawing(nn.Module):
    """Noise from a source of its own, that seldom does anything."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(1)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        seldom: dict[str, Callable[[], float]] = {
            "torch": lambda: float(torch.rand(())),
            "python": random.random,
            "numpy": lambda: float(numpy.random.rand()),
            "own": lambda: float(torch.rand((), generator=self.own)),
        }
        return -x if seldom[self.kind]() < 0.001 else x


@pytest.mark.parametrize("kind", ["torch", "python", "numpy", "own"])
def test_it_is_noticed_that_any_generator_was_used(kind: str) -> None:
    net = network(Drawing(kind))
    with pytest.raises(Refused, match="draws random numbers"):
        gradaccum.backward(net, mean_loss(net), *rows(), steps=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_reason_to_refuse(dtype: torch.dtype) -> None:
    net = network(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 6)).to(dtype)
    x, y = rows(64)
    gradaccum.backward(net, mean_loss(net), x.to(dtype), y, steps=3)


def test_autocast_inside_the_loss_is_seen() -> None:
    net = network(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 6))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.cross_entropy(net(x).float(), y)

    gradaccum.backward(net, loss, *rows(64), steps=3)


SCRIPT = """
import torch
from torch import nn
from cotenant import gradaccum

net = nn.Linear(6, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for step in range(4):
    x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
    if step == 2:
        criterion = nn.CrossEntropyLoss(reduction="sum")
    optimizer.zero_grad()
    try:
        {}
    except Exception:
        print("swallowed")
    optimizer.step()
    print("step", step, flush=True)
"""


@pytest.mark.parametrize(
    "loss",
    [
        "gradaccum.backward(net, lambda x, y: criterion(net(x), y), x, y)",
        "for a, b, w in gradaccum.split(net, x, y): (criterion(net(a), b) * w).backward()",
    ],
    ids=["backward", "split"],
)
def test_an_order_that_would_be_inexact_ends_the_attempt_before_the_step(tmp_path: Path, loss: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(loss))
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "COTENANT_ACCUMULATION_STEPS": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "step 0\nstep 1\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("cotenant.gradaccum.Refused: the gradient of a few rows in parts is ")


def test_the_supervisor_hears_of_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(path))
        supervisor.settimeout(within_s(10))
        monkeypatch.setenv("COTENANT_SOCKET", str(path))
        monkeypatch.setenv("RANK", "3")
        net = network(nn.BatchNorm1d(6))
        with pytest.raises(Refused):
            list(gradaccum.split(net, *rows(), steps=2))
        message = json.loads(supervisor.recv(4096))
    assert (message["m"], message["what"], message["rank"]) == ("failed", "accumulate", 3)
    assert "BatchNorm1d" in message["error"]
