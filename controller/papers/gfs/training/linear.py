"""OrgLinear (GFS, section 3.2) and DLinear in torch, and the way from them to plain weights.

Rule: same demand and seed, same weights: one thread, one generator. The last part of the training chooses the
number of passes, then the model trains on all of it for so long. Departures from the paper:
the loss is the whole Gaussian likelihood (eq. 8 lacks log sigma, without which sigma grows without end),
inputs are differences from the last value over the series' deviation, and the calendar is that of the first
hour ahead.

An organisation's attributes are the parts of its name between slashes (`cluster/gpu-model/team`); attention
runs over their embeddings. A name without a slash is one attribute.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cotenant.controller.papers.gfs import forecast

KERNEL_H: Final = 25
EMBEDDING: Final = 8
BATCH: Final = 256
RATE: Final = 5e-4
PASSES_MAX: Final = 20
PATIENCE: Final = 4
EXAMPLES_MAX: Final = 40_000
"""The most examples; more are thinned out at random."""
HOLD_OUT: Final = 0.2
LOG_2PI: Final = math.log(2 * math.pi)
STEP_NORM_MAX: Final = 1.0
SPREAD_MIN: Final = 1e-4


class Examples(NamedTuple):
    """Examples of all series and origins."""

    inputs: Tensor
    targets: Tensor
    """NaN: unknown."""
    series: Tensor
    hour: Tensor
    weekday: Tensor
    holiday: Tensor

    def part(self, rows: Tensor) -> Examples:
        return Examples(*(each[rows] for each in self))


class OrgLinear(nn.Module):
    """Mean and spread of the scaled demand; without `spread` and context it is DLinear."""

    def __init__(self, names: tuple[str, ...], input_h: int, horizon_h: int, *, organised: bool) -> None:
        super().__init__()
        self.organised, self.input_h, self.horizon_h = organised, input_h, horizon_h
        size = EMBEDDING if organised else 0
        self.by_hour, self.by_weekday, self.by_holiday = (
            nn.Embedding(count, size) for count in (forecast.DAY_H, 7, 2)
        )
        codes, vocabulary = attributes(names)
        self.register_buffer("codes", codes)
        if organised:
            self.attributes = nn.Embedding(vocabulary, size, padding_idx=0)
            self.query, self.key, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))
        width = input_h + 4 * size
        self.cycle, self.trend = nn.Linear(width, horizon_h), nn.Linear(width, horizon_h)
        self.spread = nn.Linear(width, horizon_h) if organised else None
        with torch.no_grad():  # Begin at "as now": the weights of the inputs learn what deviates from it.
            for each in (self.cycle, self.trend):
                each.weight.zero_()
                each.bias.zero_()

    def organisations(self) -> Tensor:
        """c_o of every series: attention over the embeddings of its attributes, then their mean."""
        codes = self.codes
        assert isinstance(codes, Tensor)
        if not self.organised:
            return torch.zeros(len(codes), 0)
        embedded = self.attributes(codes)
        there = codes != 0
        match = self.query(embedded) @ self.key(embedded).transpose(1, 2) / math.sqrt(EMBEDDING)
        weights = match.masked_fill(~there[:, None, :], -torch.inf).softmax(dim=-1)
        mixed = (weights @ self.value(embedded)) * there[..., None]
        found: Tensor = mixed.sum(dim=1) / there.sum(dim=1, keepdim=True)
        return found

    def forward(self, given: Examples) -> tuple[Tensor, Tensor | None]:
        trend = input_trend(given.inputs)
        context = torch.cat(
            (
                self.organisations()[given.series],
                self.by_hour(given.hour),
                self.by_weekday(given.weekday),
                self.by_holiday(given.holiday),
            ),
            dim=1,
        )
        mean = self.cycle(torch.cat((given.inputs - trend, context), dim=1))
        mean = mean + self.trend(torch.cat((trend, context), dim=1))
        if self.spread is None:
            return mean, None
        return mean, nn.functional.softplus(self.spread(torch.cat((given.inputs, context), dim=1)))


def attributes(names: tuple[str, ...]) -> tuple[Tensor, int]:
    """Numbers of each name's attributes, 0 for none, and how many numbers there are."""
    split = [name.split("/") for name in names]
    known: dict[tuple[int, str], int] = {}
    codes = torch.zeros(len(names), max(map(len, split)), dtype=torch.long)
    for row, parts in enumerate(split):
        for place, part in enumerate(parts):
            codes[row, place] = known.setdefault((place, part), len(known) + 1)
    return codes, len(known) + 1


def input_trend(inputs: Tensor) -> Tensor:
    """The trend of each row of `inputs` (eq. 1)."""
    half = KERNEL_H // 2
    padded = nn.functional.pad(inputs[:, None, :], (half, half), mode="reflect")
    return nn.functional.avg_pool1d(padded, KERNEL_H, stride=1)[:, 0]


def likelihood(targets: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """The mean negative log likelihood of the targets that are known (not NaN)."""
    known, sigma = torch.isfinite(targets), spread.clamp_min(SPREAD_MIN)
    each = 0.5 * ((targets.nan_to_num() - mean) / sigma) ** 2 + torch.log(sigma) + 0.5 * LOG_2PI
    return (each * known).sum() / known.sum().clamp_min(1)


def squared_loss(targets: Tensor, mean: Tensor) -> Tensor:
    """The mean squared error of the targets that are known."""
    known = torch.isfinite(targets)
    return (known * (targets.nan_to_num() - mean) ** 2).sum() / known.sum().clamp_min(1)


def loss_of(model: OrgLinear, given: Examples) -> Tensor:
    mean, spread = model(given)
    return squared_loss(given.targets, mean) if spread is None else likelihood(given.targets, mean, spread)


def fit(
    demand: forecast.Demand, horizon_h: int, seed: int, calendar: forecast.Calendar, *, organised: bool = True
) -> forecast.LinearWeights:
    """OrgLinear, or DLinear where not `organised`."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    input_h = min(forecast.MONTH_H, demand.hours // 2 // forecast.DAY_H * forecast.DAY_H)
    deviations = np.array([max(float(np.std(series)), 1e-3) for series in demand.fill_gaps()])
    given, origins = examples(demand, horizon_h, input_h, deviations, calendar, seed)
    later = torch.from_numpy(origins >= np.quantile(origins, 1 - HOLD_OUT))
    earlier = torch.from_numpy(origins + horizon_h < np.quantile(origins, 1 - HOLD_OUT))

    def fresh() -> OrgLinear:
        torch.manual_seed(seed)
        return OrgLinear(demand.names, input_h, horizon_h, organised=organised)

    trial = fresh()
    passes = _passes(trial, given.part(earlier), given.part(later))
    model = fresh()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(passes):
        one_pass(model, optimizer, given)
    return plain(model, deviations)


def _passes(model: OrgLinear, given: Examples, later: Examples) -> int:
    """How many passes did best on the later part."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    best, best_loss = 1, math.inf
    for number in range(1, PASSES_MAX + 1):
        one_pass(model, optimizer, given)
        with torch.no_grad():
            loss = float(loss_of(model, later))
        if loss < best_loss:
            best, best_loss = number, loss
        if number - best >= PATIENCE:
            break
    return best


def one_pass(model: OrgLinear, optimizer: torch.optim.Optimizer, given: Examples) -> None:
    order = torch.randperm(len(given.series))
    for rows in torch.split(order, BATCH):
        optimizer.zero_grad()
        loss = loss_of(model, given.part(rows))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), STEP_NORM_MAX)
        optimizer.step()


def examples(
    demand: forecast.Demand,
    horizon_h: int,
    input_h: int,
    deviations: forecast.Floats,
    calendar: forecast.Calendar,
    seed: int,
) -> tuple[Examples, forecast.Hours]:
    """All windows of all series, and their origins."""
    every = np.arange(input_h - 1, demand.hours - horizon_h)
    share = EXAMPLES_MAX / (len(every) * len(demand.names))
    chosen = np.random.default_rng(seed)
    inputs, targets, series, origins = [], [], [], []
    for number, (values, filled) in enumerate(zip(demand.values, demand.fill_gaps(), strict=True)):
        some = every if share >= 1 else every[chosen.random(len(every)) < share]
        last = filled[some][:, None]
        inputs.append((forecast.windows(filled, some, input_h) - last) / deviations[number])
        ahead = some[:, None] + np.arange(1, horizon_h + 1)
        targets.append((values[ahead] - last) / deviations[number])
        series.append(np.full(len(some), number))
        origins.append(some)
    at = np.concatenate(origins)
    found = Examples(
        inputs=torch.from_numpy(np.concatenate(inputs)).float(),
        targets=torch.from_numpy(np.concatenate(targets)).float(),
        series=torch.from_numpy(np.concatenate(series)),
        hour=torch.from_numpy(calendar.hour_of_day(at + 1)),
        weekday=torch.from_numpy(calendar.weekday(at + 1)),
        holiday=torch.from_numpy(calendar.holiday(at + 1)),
    )
    return found, at


def plain(model: OrgLinear, deviations: forecast.Floats) -> forecast.LinearWeights:
    """Everything that predicting needs."""

    def table(values: Tensor) -> forecast.WeightTable:
        return tuple(tuple(row) for row in values.detach().double().numpy().tolist())

    def mapped(layer: nn.Linear) -> forecast.WeightTable:
        return table(torch.cat((layer.weight, layer.bias[:, None]), dim=1))

    return forecast.LinearWeights(
        input_h=model.input_h,
        kernel_h=KERNEL_H,
        deviations=tuple(deviations.tolist()),
        organisations=table(model.organisations()),
        by_hour=table(model.by_hour.weight),
        by_weekday=table(model.by_weekday.weight),
        by_holiday=table(model.by_holiday.weight),
        cycle=mapped(model.cycle),
        trend=mapped(model.trend),
        spread=() if model.spread is None else mapped(model.spread),
    )
