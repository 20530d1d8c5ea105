"""A model like DeepAR (Salinas et al., IJF '20): an LSTM that reads a series hour by hour, with normal
outputs.

Rule: a baseline to be judged against, never used by a policy: it needs torch to predict. It gets the same
scaled inputs as OrgLinear and a week of them, and forecasts several hours ahead by sampled paths, each hour's
draw being the next hour's input. One thread; the same seed gives the same paths.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from cotenant.controller.papers.gfs.forecast import DAY_H, WEEK_H, Calendar, Demand, Floats, Hours
from cotenant.controller.papers.gfs.training.linear import EMBEDDING, STEP_NORM_MAX, likelihood

HIDDEN: Final = 40
BATCH: Final = 64
RATE: Final = 3e-3
PATHS: Final = 100
AT_ONCE: Final = 512
"""Series and origins that are sampled together."""


class DeepAr(nn.Module):
    def __init__(self, series: int) -> None:
        super().__init__()
        self.by_series = nn.Embedding(series, EMBEDDING)
        self.by_hour, self.by_weekday = nn.Embedding(DAY_H, EMBEDDING), nn.Embedding(7, EMBEDDING)
        self.by_holiday = nn.Embedding(2, EMBEDDING)
        self.lstm = nn.LSTM(1 + 4 * EMBEDDING, HIDDEN, batch_first=True)
        self.mean, self.spread = nn.Linear(HIDDEN, 1), nn.Linear(HIDDEN, 1)

    def forward(
        self, values: Tensor, covariates: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Mean and deviation of each hour's change, given the hour before."""
        hidden, state = self.lstm(torch.cat((values[..., None], covariates), dim=-1), state)
        spread = nn.functional.softplus(self.spread(hidden)[..., 0])
        assert state is not None
        return values + self.mean(hidden)[..., 0], spread, state

    def covariates(self, series: Tensor, places: Hours, calendar: Calendar) -> Tensor:
        """Covariates of the hours to forecast: `places` has shape (rows, hours)."""
        parts = (
            self.by_series(series)[:, None, :].expand(-1, places.shape[1], -1),
            self.by_hour(torch.from_numpy(calendar.hour_of_day(places))),
            self.by_weekday(torch.from_numpy(calendar.weekday(places))),
            self.by_holiday(torch.from_numpy(calendar.holiday(places))),
        )
        return torch.cat(parts, dim=-1)


class Trained:
    def __init__(self, model: DeepAr, deviations: Floats, context_h: int, seed: int) -> None:
        self._model, self._deviations, self._context_h, self._seed = model, deviations, context_h, seed

    def quantiles(
        self, demand: Demand, origins: Hours, horizon_h: int, levels: tuple[float, ...], calendar: Calendar
    ) -> Floats:
        """Shape (series, origins, hours ahead, levels), in GPUs."""
        torch.manual_seed(self._seed)
        filled = demand.fill_gaps()
        found = np.empty((len(filled), len(origins), horizon_h, len(levels)))
        for number, series in enumerate(filled):
            for start in range(0, len(origins), AT_ONCE):
                some = slice(start, start + AT_ONCE)
                paths = self._paths(number, series, origins[some], horizon_h, calendar)
                sampled = np.moveaxis(np.quantile(paths, levels, axis=0), 0, -1)
                found[number, some] = series[origins[some]][:, None, None] + sampled
        return found

    @torch.no_grad()
    def _paths(
        self, number: int, series: Floats, origins: Hours, horizon_h: int, calendar: Calendar
    ) -> Floats:
        """Shape (paths, origins, hours ahead): changes from the last value, in GPUs."""
        deviation, context_h = self._deviations[number], self._context_h
        places = origins[:, None] + np.arange(1 - context_h, 1)
        seen = (series[np.maximum(places, 0)] - series[origins][:, None]) / deviation
        who = torch.full((len(origins),), number)
        values = torch.from_numpy(seen).float()
        mean, spread, state = self._model(values, self._model.covariates(who, places + 1, calendar))
        hidden = (state[0].repeat(1, PATHS, 1), state[1].repeat(1, PATHS, 1))
        at = torch.normal(mean[:, -1].repeat(PATHS), spread[:, -1].repeat(PATHS))
        drawn = [at]
        for ahead in range(2, horizon_h + 1):
            next_hour = self._model.covariates(who, (origins + ahead)[:, None], calendar).repeat(PATHS, 1, 1)
            mean, spread, hidden = self._model(at[:, None], next_hour, hidden)
            at = torch.normal(mean[:, 0], spread[:, 0])
            drawn.append(at)
        paths = torch.stack(drawn, dim=-1).reshape(PATHS, len(origins), horizon_h)
        return np.asarray(paths.double().numpy() * deviation, np.float64)


def fit(demand: Demand, horizon_h: int, seed: int, calendar: Calendar, steps: int) -> Trained:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    drawn = np.random.default_rng(seed)
    context_h = min(WEEK_H, demand.hours // 2)
    filled = demand.fill_gaps()
    deviations = np.array([max(float(np.std(series)), 1e-3) for series in filled])
    model = DeepAr(len(demand.names))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    length = context_h + horizon_h - 1
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / steps)
        number = drawn.integers(len(filled), size=BATCH)
        start = drawn.integers(demand.hours - length, size=BATCH)
        places = start[:, None] + np.arange(length)
        last = filled[number, start + context_h - 1][:, None]
        scale = deviations[number][:, None]
        values = (filled[number[:, None], places] - last) / scale
        truth = (demand.values[number[:, None], places + 1] - last) / scale
        covariates = model.covariates(torch.from_numpy(number), places + 1, calendar)
        mean, spread, _ = model(torch.from_numpy(values).float(), covariates)
        optimizer.zero_grad()
        loss = likelihood(torch.from_numpy(truth).float(), mean, spread)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), STEP_NORM_MAX)
        optimizer.step()
    return Trained(model, deviations, context_h, seed)
