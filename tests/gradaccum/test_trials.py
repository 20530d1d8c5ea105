"""Other s tried out for a profile: what would not be exact is left alone and never ends a job."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant import gradaccum
from cotenant.checkpoint.talk.agreement import WindowPlace
from cotenant.gradaccum import Refused
from cotenant.gradaccum.schedule import PROGRESS, Progress


@pytest.fixture(autouse=True)
def trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_TRIALS", "1")
    PROGRESS.__dict__.update(vars(Progress()))


class Stateful(nn.Module):
    """No list of types knows it; its buffer tells."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.mean


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(12, 6, generator=generator), torch.randint(0, 3, (12,), generator=generator)


def step(model: nn.Module, how: str = "mean") -> int:
    """One step's gradients; the s that was used."""
    model.zero_grad()
    reduction = "sum" if how == "sum" else "mean"
    gradaccum.backward(
        model, lambda x, y: functional.cross_entropy(model(x), y, reduction=reduction), *batch()
    )
    return PROGRESS.last_steps


def test_a_turn_is_used_where_it_is_exact() -> None:
    model = nn.Linear(6, 3)
    assert step(model) == 1
    PROGRESS.windows = (WindowPlace(1, 3, 4),)
    assert [step(model) for _ in range(3)] == [4, 4, 1]


def test_a_stateful_module_is_found_in_the_first_step_and_never_split() -> None:
    model = nn.Sequential(Stateful(), nn.Linear(6, 3))
    assert step(model) == 1
    PROGRESS.windows = (WindowPlace(1, 3, 4),)
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert [step(model) for _ in range(3)] == [1, 1, 1]
    assert before, "it has trained"


def test_a_loss_that_does_not_split_is_found_by_the_check_and_the_step_is_whole() -> None:
    model, undisturbed = nn.Linear(6, 3), nn.Linear(6, 3)
    undisturbed.load_state_dict(model.state_dict())
    step(model, "sum")
    PROGRESS.windows = (WindowPlace(1, 3, 4),)
    assert step(model, "sum") == 1
    step(undisturbed, "sum")
    for mine, theirs in zip(model.parameters(), undisturbed.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_what_was_found_by_a_trial_is_refused_when_it_is_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(Stateful(), nn.Linear(6, 3))
    step(model)
    monkeypatch.setenv("COTENANT_ACCUMULATION_STEPS", "2")
    PROGRESS.schedule = None
    with pytest.raises(Refused, match="the forward pass changes the buffer"):
        step(model)


def test_an_s_that_the_script_asks_for_itself_is_no_trial() -> None:
    model = nn.Linear(6, 3)
    model.zero_grad()
    with pytest.raises(Refused, match="does not split"):
        gradaccum.backward(
            model, lambda x, y: functional.cross_entropy(model(x), y, reduction="sum"), *batch(), steps=2
        )
