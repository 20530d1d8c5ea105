"""The surrogate and the acquisition function, against BoTorch and scipy where these are installed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cotenant.controller.papers.lazer.improvement import FANTASIES, Improvement, log_h
from cotenant.controller.papers.lazer.surrogate import (
    DIMENSIONS,
    Array,
    Context,
    Hyperparameters,
    Surrogate,
    SurrogateSample,
    inverse_of_lower,
    prior,
    product,
    scaled_context,
    scaled_inputs,
)

X_MAX_S = 100.0
SEEDS = range(6)


def drawn(seed: int, count: int = 60) -> list[SurrogateSample]:
    """Contexts with heavy tails; F is 0 more often than not."""
    draw = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        context = Context(*(float(v) for v in draw.lognormal((4.0, 7.0, 3.0, 1.5), 1.0)))
        x_s = float(draw.uniform(0.0, X_MAX_S))
        f_s = 0.0 if draw.random() < 0.6 else float(draw.uniform(0.0, context.load_s + context.pause_s))
        samples.append(SurrogateSample(x_s, context, abs(x_s - f_s)))
    return samples


def hyper_of(seed: int, samples: list[SurrogateSample]) -> Hyperparameters:
    """Random, within what SingleTaskGP allows."""
    draw = np.random.default_rng((seed, 1))
    known = prior([s.f_s for s in samples])
    return Hyperparameters(
        lengthscales=tuple(float(v) for v in draw.uniform(0.05, 2.0, DIMENSIONS)),
        noise=float(10.0 ** draw.uniform(-3.0, 0.0)),
        constant=float(draw.normal(0.0, 0.5)),
        mean_s=known.mean_s,
        deviation_s=known.deviation_s,
    )


def made(seed: int, count: int = 60) -> tuple[Surrogate, list[SurrogateSample]]:
    samples = drawn(seed, count)
    return Surrogate(samples, hyper_of(seed, samples), X_MAX_S), samples


def points(seed: int, count: int = 40) -> Array:
    return np.random.default_rng((seed, 2)).random((count, DIMENSIONS))


# --- Against BoTorch ------------------------------------------------------------------------------------


def reference(model: Surrogate, samples: list[SurrogateSample], *, known_noise: bool) -> Any:
    """BoTorch's own model with the same data and hyperparameters."""
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("botorch.models")
    from botorch.models.transforms.outcome import Standardize

    hyper = model.hyper
    x = torch.tensor(scaled_inputs(samples, X_MAX_S))
    y = torch.tensor([[s.f_s] for s in samples], dtype=torch.double)
    noise = torch.full_like(y, hyper.noise * hyper.deviation_s**2) if known_noise else None
    theirs = models.SingleTaskGP(x, y, train_Yvar=noise, outcome_transform=Standardize(m=1))
    theirs.covar_module.lengthscale = torch.tensor([hyper.lengthscales], dtype=torch.double)
    theirs.mean_module.constant.data.fill_(hyper.constant)
    if not known_noise:
        theirs.likelihood.noise = hyper.noise
    theirs.eval()
    return theirs


@pytest.mark.parametrize("seed", SEEDS)
def test_mean_and_variance_are_those_of_botorch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    model, samples = made(seed)
    theirs = reference(model, samples, known_noise=False).posterior(torch.tensor(points(seed)))
    mean_s, variance = model.posterior(points(seed))
    np.testing.assert_allclose(mean_s, theirs.mean.detach().numpy().ravel(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(variance, theirs.variance.detach().numpy().ravel(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_log_noisy_expected_improvement_is_that_of_botorch_over_the_same_fantasies(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("botorch")
    from botorch.acquisition.analytic import LogNoisyExpectedImprovement

    model, samples = made(seed, 40)
    ours = Improvement(model, (seed,))
    fantasies = torch.tensor((model.hyper.mean_s + model.hyper.deviation_s * ours.fantasies).T)

    def sampler(sample_shape: Any) -> Any:
        assert tuple(sample_shape) == (FANTASIES,)
        return lambda posterior: fantasies.unsqueeze(-1)

    monkeypatch.setattr("botorch.sampling.normal.SobolQMCNormalSampler", sampler)
    theirs = LogNoisyExpectedImprovement(
        reference(model, samples, known_noise=True),
        torch.tensor(scaled_inputs(samples, X_MAX_S)),
        num_fantasies=FANTASIES,
        maximize=False,
    )
    where = points(seed)
    with torch.no_grad():
        wanted = theirs(torch.tensor(where).unsqueeze(-2)).numpy()
    context = [row[1:] for row in where]
    got = [
        ours.log_value(model.x_kernel(row[:1]) * model.context_kernel(c))[0]
        for row, c in zip(where, context, strict=True)
    ]
    # Theirs is of f in seconds, ours of standardised f.
    np.testing.assert_allclose(
        np.array(got) + math.log(model.hyper.deviation_s), wanted, rtol=1e-4, atol=1e-4
    )


def test_log_h_is_botorchs_over_forty_orders_of_magnitude() -> None:
    torch = pytest.importorskip("torch")
    analytic = pytest.importorskip("botorch.acquisition.analytic")
    u = np.concatenate((np.linspace(-60.0, 12.0, 20_001), (-1e6, -1e3, 1e3)))
    wanted = analytic._log_ei_helper(torch.tensor(u)).numpy()
    np.testing.assert_allclose(log_h(u), wanted, rtol=1e-9, atol=1e-9)


# --- Without it -----------------------------------------------------------------------------------------


def test_fantasies_have_the_mean_and_the_covariance_of_the_posterior() -> None:
    model, _ = made(3, 8)
    draws = np.hstack([Improvement(model, (0, k)).fantasies for k in range(2_000)])
    gain = np.linalg.solve(model.kernel + model.hyper.noise * np.eye(8), model.kernel).T
    mean = model.hyper.constant + gain @ (model.y - model.hyper.constant)
    covariance = model.kernel - gain @ model.kernel
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.02)


@pytest.mark.parametrize("seed", range(8))
def test_the_minimum_over_x_is_that_of_l_bfgs_from_many_starts(seed: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    model, samples = made(seed, 100)
    context = samples[seed].context
    c = scaled_context(context)

    def mean_s(x_s: float) -> float:
        return float(model.posterior(np.array([[x_s / X_MAX_S, *c]]))[0][0])

    found = [
        optimize.minimize(lambda x: mean_s(x[0]), [start], method="L-BFGS-B", bounds=[(0.0, X_MAX_S)])
        for start in np.linspace(0.0, X_MAX_S, 21)
    ]
    best = min(found, key=lambda result: float(result.fun))
    ours_s = model.best_x_s(context)
    assert abs(ours_s - best.x[0]) <= 0.05 or mean_s(ours_s) <= best.fun + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_the_chosen_x_has_as_much_to_gain_as_the_best_of_a_fine_scan(seed: int) -> None:
    model, samples = made(seed, 50)
    acquisition = Improvement(model, (seed,))
    chosen = acquisition.choose(samples[0].context)
    near = model.context_kernel(scaled_context(samples[0].context))
    scan = acquisition.log_value(model.x_kernel(np.linspace(0.0, 1.0, 5_001)) * near)
    at_chosen = acquisition.log_value(model.x_kernel(np.array([chosen.x_s / X_MAX_S])) * near)
    assert at_chosen[0] >= scan.max() - 1e-3
    assert chosen.gain_s == pytest.approx(model.hyper.deviation_s * math.exp(scan.max()), rel=1e-3)


def test_inputs_stay_within_the_unit_cube_whatever_the_context() -> None:
    wild = [
        SurrogateSample(1e9, Context(1e12, 1e12, 1e12, 1e12), 0.0),
        SurrogateSample(-1.0, Context(0.0, -1.0, 0.0, 0.0), 1.0),
    ]
    inputs = scaled_inputs(wild, X_MAX_S)
    assert inputs.min() == 0.0
    assert inputs.max() == 1.0
    np.testing.assert_array_equal(scaled_context(wild[0].context), inputs[0, 1:])


def test_the_prior_is_where_the_fit_of_botorch_begins() -> None:
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("botorch.models")
    samples = drawn(0, 12)
    f_s = [s.f_s for s in samples]
    theirs = models.SingleTaskGP(
        torch.tensor(scaled_inputs(samples, X_MAX_S)), torch.tensor(f_s).double()[:, None]
    )
    ours = prior(f_s)
    np.testing.assert_allclose(ours.lengthscales, theirs.covar_module.lengthscale.detach().numpy().ravel())
    assert ours.noise == pytest.approx(theirs.likelihood.noise.item())
    assert ours.mean_s == pytest.approx(theirs.outcome_transform.means.item())
    assert ours.deviation_s == pytest.approx(theirs.outcome_transform.stdvs.item())


@pytest.mark.parametrize("shape", [(3, 4, 5), (110, 110, 101), (300, 300, 20), (20, 400, 300)])
def test_a_product_in_parts_is_the_product(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    draw = np.random.default_rng(0)
    a, b = draw.random((rows, inner)), draw.random((inner, columns))
    np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 24, 25, 110, 300])
def test_an_inverse_by_halves_is_the_inverse(count: int) -> None:
    lower = np.tril(np.random.default_rng(0).random((count, count))) + count * np.eye(count)
    np.testing.assert_allclose(inverse_of_lower(lower) @ lower, np.eye(count), atol=1e-12)


def test_equal_observations_are_not_divided_by_nothing() -> None:
    samples = [SurrogateSample(float(x), Context(60.0, 100.0, 30.0, 5.0), 7.0) for x in range(5)]
    model = Surrogate(samples, prior([s.f_s for s in samples]), X_MAX_S)
    assert 0.0 <= model.best_x_s(samples[0].context) <= X_MAX_S
    assert math.isfinite(Improvement(model, (0,)).choose(samples[0].context).gain_s)
