"""Fits the hyperparameters of Lazer's surrogate: BoTorch's SingleTaskGP, its priors and its own fit.

Rule: the same payload gives the same numbers. One thread, one seed, double precision; nothing is kept from
one request to the next.
"""

from __future__ import annotations

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.outcome import Standardize
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from cotenant.controller.wire import ComputeResult, Payload

DIMENSIONS = 5


def answer(payload: Payload) -> ComputeResult:
    """Fits the model to the samples of a payload: `{"inputs": [n * 5 numbers in [0, 1]], "targets": [n],
    "seed": s}` -> noise, constant mean, mean and deviation of the targets, five lengthscales.

    Noise and constant are in units of standardised targets.

    Raises:
        ValueError: the payload is not of this shape.
        Exception: whatever the fit raises; it is the answer that the policy gets.
    """
    inputs, targets, seed = payload.get("inputs"), payload.get("targets"), payload.get("seed", 0)
    if not isinstance(inputs, list) or not isinstance(targets, list) or not isinstance(seed, int):
        raise ValueError("`inputs` and `targets` must be lists of numbers, `seed` a whole number")
    if len(targets) < 2 or len(inputs) != DIMENSIONS * len(targets):
        raise ValueError(f"{len(inputs)} inputs do not belong to {len(targets)} targets")
    return ComputeResult(values=fitted_values(fit_gaussian_process(inputs, targets, seed)))


def fit_gaussian_process(inputs: list[float], targets: list[float], seed: int) -> SingleTaskGP:
    """The fitted model, with inferred noise."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    x = torch.tensor(inputs, dtype=torch.double).reshape(len(targets), DIMENSIONS)
    y = torch.tensor(targets, dtype=torch.double).unsqueeze(-1)
    model = SingleTaskGP(x, y, outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    model.eval()
    return model


def fitted_values(model: SingleTaskGP) -> tuple[float, ...]:
    kernel = model.covar_module
    if not isinstance(kernel, RBFKernel):
        raise TypeError(f"this version of BoTorch has another kernel: {type(kernel).__name__}")
    standard = model.outcome_transform
    assert isinstance(standard, Standardize)
    return (
        float(model.likelihood.noise.item()),
        float(model.mean_module.constant.item()),
        float(standard.get_buffer("means")),
        float(standard.get_buffer("stdvs")),
        *(float(each) for each in kernel.lengthscale.detach().ravel()),
    )
