"""Whatever the loss, the labels and the masks: a step in parts is the whole batch's, or it is not taken.

The later batches of a run hold what its first ones do not: a rare class, labels that are ignored, masks. Some
losses change while the model trains: by a switch, by other weights, or because they choose rows by what the
model says of them.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant import gradaccum
from cotenant.gradaccum import Refused

CLASSES, WIDTH, STEPS = 4, 6, 6
IGNORED = -100
EXACT = 1e-9


class Batch:
    """Rows with a label each, a mask over their tokens, and a weight each."""

    def __init__(self, generator: torch.Generator, rows: int, *, is_late: bool, trait: str) -> None:
        self.x = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
        self.y = torch.randint(0, CLASSES - 1, (rows,), generator=generator)
        self.mask = torch.ones(rows, 3, dtype=torch.float64)
        self.weight = torch.ones(rows, dtype=torch.float64)
        if is_late and trait == "rare class":
            self.y[int(torch.randint(rows, (), generator=generator))] = CLASSES - 1
        elif is_late and trait == "ignored":
            self.y[torch.rand(rows, generator=generator) < 0.3] = IGNORED
        elif is_late and trait == "one ignored":
            self.y[int(torch.randint(rows, (), generator=generator))] = IGNORED
        elif is_late and trait == "masked":
            self.mask[torch.rand(rows, 3, generator=generator) < 0.4] = 0.0
        elif is_late and trait == "weighted":
            self.weight = torch.rand(rows, generator=generator, dtype=torch.float64)
        elif trait == "evenly masked":  # As many in each row at first, and then not.
            self.mask[:, 0] = 0.0
            if is_late:
                self.mask[int(torch.randint(rows, (), generator=generator)), 1] = 0.0

    def parts(self) -> tuple[Tensor, ...]:
        return self.x, self.y, self.mask, self.weight


TRAITS = ("none", "rare class", "ignored", "one ignored", "masked", "weighted", "evenly masked")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


class Losses:
    """Losses by name. `late`: what begins to matter at a later step."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.late = False
        self.class_weights = torch.ones(CLASSES, dtype=torch.float64)
        self.criterion: nn.Module = nn.CrossEntropyLoss()

    def begin(self) -> None:
        self.late = True
        self.class_weights = torch.tensor([1.0, 2.0, 1.0, 30.0], dtype=torch.float64)
        self.criterion = nn.CrossEntropyLoss(weight=self.class_weights)

    def squares(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out**2

    def each(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(x), y.clamp(min=0), reduction="none")

    def mean(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return self.each(x, y).mean()

    def twice(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        apart: Tensor = self.model(-x) - self.model(x)
        return self.each(x, y).mean() + apart.square().mean()

    def focal(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        each = self.each(x, y)
        return ((1 - torch.exp(-each)) ** 2 * each).mean()

    def smoothed(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(x), y.clamp(min=0), label_smoothing=0.1)

    def ignoring(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(x), y)

    def weighted_classes(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        weights = torch.tensor([1.0, 1.0, 1.0, 40.0], dtype=torch.float64)
        return functional.cross_entropy(self.model(x), y.clamp(min=0), weight=weights)

    def other_class_weights(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(x), y.clamp(min=0), weight=self.class_weights)

    def other_criterion(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return self.criterion(self.model(x), y.clamp(min=0))  # type: ignore[no-any-return]

    def masked_mean(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return (self.squares(x)[:, :3] * mask).sum() / mask.sum()

    def weighted_rows(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return (self.each(x, y) * weight).sum() / weight.sum()

    def contrastive(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        out = self.model(x)
        return functional.cross_entropy(out @ out.T, torch.arange(len(out)))

    def contrastive_later(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        loss = self.each(x, y).mean()
        return loss + 0.5 * self.contrastive(x, y, mask, weight) if self.late else loss

    def hardest(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return self.each(x, y).topk(max(1, len(x) // 4)).values.mean()

    def hard_enough(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        """All rows at first; with training some are easy."""
        each = self.each(x, y)
        return each[each > 0.9].mean() if bool((each > 0.9).any()) else each.mean()

    def active_only(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        margin = functional.relu(1.5 - self.model(x)[:, 0])
        return margin.sum() / (margin > 0).sum().clamp(min=1)

    def balanced(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        each = self.each(x, y)
        return torch.stack([each[y == kind].mean() for kind in torch.unique(y)]).mean()

    def dice(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        found, wanted = torch.sigmoid(self.model(x)[:, 0]), (y == CLASSES - 1).double()
        return 1 - (2 * (found * wanted).sum() + 1) / (found.sum() + wanted.sum() + 1)

    def root_of_mean(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return torch.sqrt(self.squares(x).mean())

    def with_penalty(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return self.each(x, y).mean() + 0.01 * sum(p.square().sum() for p in self.model.parameters())

    def spread(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return self.each(x, y).mean() + self.squares(x).var()

    def by_constant(self, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        return self.each(x, y).sum() / 24


NAMES = [name for name, value in vars(Losses).items() if callable(value) and name[0] != "_"][3:]
EXACT_ALWAYS = {"mean", "twice", "focal", "smoothed", "with_penalty"}


def whole_gradients(losses: Losses, name: str, batches: list[Batch], late: int) -> Iterator[list[Tensor]]:
    """Of the whole batches, in one model that trains."""
    optimizer = torch.optim.SGD(losses.model.parameters(), lr=0.3)
    for number, batch in enumerate(batches):
        if number == late:
            losses.begin()
        optimizer.zero_grad()
        getattr(losses, name)(*batch.parts()).backward()
        yield gradients(losses.model)
        optimizer.step()


def gradients(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def split_gradients(
    losses: Losses, name: str, batches: list[Batch], late: int, steps: int, how: str
) -> Iterator[list[Tensor]]:
    optimizer = torch.optim.SGD(losses.model.parameters(), lr=0.3)
    loss_of = getattr(losses, name)
    for number, batch in enumerate(batches):
        if number == late:
            losses.begin()
        optimizer.zero_grad()
        if how == "backward":
            gradaccum.backward(losses.model, loss_of, *batch.parts(), steps=steps)
        else:
            for *part, weight in gradaccum.split(losses.model, *batch.parts(), steps=steps):
                (loss_of(*part) * weight).backward()
        yield gradients(losses.model)
        optimizer.step()


def draw(number: int) -> tuple[str, str, int, int, list[Batch]]:
    choice = random.Random(number)
    generator = torch.Generator().manual_seed(number)
    trait, late = choice.choice(TRAITS), choice.randrange(1, STEPS)
    rows = choice.choice((8, 13, 24, 40))
    batches = [Batch(generator, rows, is_late=at >= late, trait=trait) for at in range(STEPS)]
    return choice.choice(NAMES), trait, late, choice.choice((2, 3, 4, 8)), batches


def outcome(number: int, how: str) -> tuple[str, float, str]:
    """(what was drawn, the largest difference of a step's gradient, why it was refused)."""
    name, trait, late, steps, batches = draw(number)
    torch.manual_seed(number)
    model = net()
    plain, split = Losses(model), Losses(copy.deepcopy(model))
    worst, reason = 0.0, ""
    try:
        pairs = zip(
            whole_gradients(plain, name, batches, late),
            split_gradients(split, name, batches, late, steps, how),
            strict=True,
        )
        for wanted, found in pairs:
            largest = max(float(each.abs().max()) for each in wanted)
            apart = max(float((a - b).abs().max()) for a, b in zip(wanted, found, strict=True))
            if not apart <= worst * largest:
                worst = apart / largest if largest else apart
    except Refused as error:
        reason = str(error)
    return f"{how}: {name}, {trait} from step {late}, s = {steps}", worst, reason


@pytest.mark.parametrize("how", ["backward", "split"])
def test_a_step_in_parts_is_that_of_the_whole_batch_or_is_not_taken(how: str, seed: int) -> None:
    for number in range(seed, seed + 15):
        with ThreadPoolExecutor(1) as apart:  # With no frame below it but its own, as in a script.
            drawn, worst, reason = apart.submit(outcome, number, how).result()
        assert worst <= EXACT, f"{drawn} (number {number}): {worst:.1e} away"
        if drawn.split()[1].strip(",") in EXACT_ALWAYS:
            assert not reason, f"{drawn} (number {number}): {reason}"
