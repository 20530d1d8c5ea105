"""What cannot be exact is refused with its reason before the first optimizer step, never silently wrong."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant import gradaccum
from cotenant.gradaccum import Refused, exactness
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
    with pytest.raises(Refused, match=r"changes the buffer 0\.mean"):
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


def test_the_check_leaves_no_trace() -> None:
    net = network(nn.Dropout(0.5))
    net[0].eval()
    state = torch.get_rng_state()
    gradients = [torch.full_like(p, 3.0) for p in net.parameters()]
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        parameter.grad = gradient
    x, y = rows()
    assert (
        exactness.difference(net, lambda: mean_loss(net)(x, y), lambda: iter([mean_loss(net)(x, y)])) is None
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert (net.training, net[0].training) == (True, False)
    assert all(p.grad is g for p, g in zip(net.parameters(), gradients, strict=True))
    assert not net._forward_pre_hooks


def test_dropout_is_noise_and_no_reason_to_refuse() -> None:
    net = network(nn.Dropout(0.5), nn.Linear(6, 6), nn.Dropout(0.5))
    gradaccum.backward(net, mean_loss(net), *rows(), steps=3)
    assert gradaccum.refusal(net) is None


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
