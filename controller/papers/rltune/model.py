"""The file of a learned order: its weights, and its card: what it was trained on, how, and how good it was.

Rule: the policy reads, bounds and checks the whole file before it decides anything with it. A model that was
no better than ordering by size on its validation windows says so (`active` is false), and the better of `sjf`
and `ssf` orders in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

SCHEMA: Final = "order-model/1"
BYTES_MAX: Final = 2_000_000
WIDTH_MAX: Final = 4_096
BUNDLED: Final = "bundled"
Floats = NDArray[np.float64]


class OrderModelProblem(ValueError):
    """What is wrong with a model file, and where."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of shape inputs x outputs, and the bias of each output."""

    weights: tuple[tuple[float, ...], ...]
    biases: tuple[float, ...]


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The validation of a model on windows that it was not trained on: totals of its metric, its own and
    others', in seconds or slowdowns."""

    windows: int
    own: float
    sjf: float
    ssf: float


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The card that says where a model comes from."""

    traces: tuple[str, ...]
    licence: str
    """The licence of the data."""
    metric: Literal["wait", "bsld", "jct"]
    base: Literal["sjf", "ssf"]
    preset: str
    seed: int
    cluster: str
    estimates: str
    epochs: int
    cpu_s: float
    """CPU time of everything computed for it; 0: not measured."""
    version: str
    validation: Validation
    curve: tuple[float, ...]
    """By epoch: its metric on the validation windows / the base's. Below 1 it is better."""


class OrderModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of an order, which `python -m experiments.rltune.train` writes."""

    schema: Literal["order-model/1"] = SCHEMA
    policy: Literal["rltune", "scorer"]
    columns: tuple[str, ...]
    window: int = 256
    """How many waiting jobs it scores: the first ones of the base order."""
    layers: tuple[Layer, ...]
    active: bool
    fallback: Literal["sjf", "ssf"]
    """The order used where the model is not active: the better one on the validation windows."""
    card: ModelCard


def encode_model(model: OrderModel) -> bytes:
    return msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n"


def read_model(path: str, policy: str, columns: Sequence[str]) -> OrderModel:
    """Reads a file, or the model that comes with cotenant.

    Raises:
        OrderModelProblem: it cannot be read, or is not a model of this policy.
    """
    data = _read_bundled(policy) if path == BUNDLED else _contents(path)
    try:
        model = msgspec.json.decode(data, type=OrderModel)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OrderModelProblem(f"{path} is not a model of an order: {error}") from None
    if model.policy != policy:
        raise OrderModelProblem(f"{path} is a model of {model.policy}, not of {policy}")
    if model.columns != tuple(columns):
        raise OrderModelProblem(
            f"{path} looks at {', '.join(model.columns)}; {policy} has {', '.join(columns)}"
        )
    if not 2 <= model.window <= WIDTH_MAX:
        raise OrderModelProblem(f"{path}: it must look at 2 to {WIDTH_MAX} jobs, not {model.window}")
    width = len(columns)
    for number, layer in enumerate(model.layers, 1):
        outputs = len(layer.biases)
        if len(layer.weights) != width or any(len(row) != outputs for row in layer.weights):
            raise OrderModelProblem(f"{path}: layer {number} does not fit the one before it")
        if not all(np.isfinite(row).all() for row in (*layer.weights, layer.biases)):
            raise OrderModelProblem(f"{path}: a weight of layer {number} is not a number")
        width = outputs
    if not model.layers or width != 1:
        raise OrderModelProblem(f"{path}: its last layer must have one output")
    return model


def _read_bundled(policy: str) -> bytes:
    return (resources.files(__package__) / f"{policy}.json").read_bytes()


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        raise OrderModelProblem(f"{path}: there is no such file") from None
    except OSError as error:
        raise OrderModelProblem(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > BYTES_MAX:
        raise OrderModelProblem(f"{path} is larger than {BYTES_MAX} bytes")
    return data


Weights = Sequence[tuple[Floats, Floats]]


def arrays(layers: Sequence[Layer]) -> Weights:
    """Weights of shape (inputs, outputs) and biases of shape (outputs,)."""
    return [(np.array(layer.weights), np.array(layer.biases)) for layer in layers]


def forward(layers: Weights, rows: Floats) -> Floats:
    """A network with rectified hidden layers. `rows`: shape (n, inputs); returns shape (n,)."""
    for number, (weights, biases) in enumerate(layers, 1):
        rows = rows @ weights + biases
        if number < len(layers):
            np.maximum(rows, 0.0, out=rows)
    return rows[:, 0]
