"""An interference model as the bytes of a file.

Rule: a file is versioned JSON, written the same way every time and read strictly. We refuse a bad one with
the place and the reason, and never use a part of it. A model of another schema says what to do.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.controller import performance
from cotenant.controller.models.interference.predictor import Predictor
from cotenant.controller.wire import BadMessage, decode_json

BYTES_MAX: Final = 16 * 1024 * 1024
"""A model is configuration and is journalled with it."""


MAKES_ONE: Final = "`python -m experiments.castor.predictor train` makes one"


class ModelProblem(ValueError):
    """A file that is no usable model; the text says why, in one line."""


class _Tag(msgspec.Struct):
    schema: str


def write(model: performance.InterferenceModel) -> bytes:
    """Writes a model with one line per part; the same model gives the same bytes."""
    parts = msgspec.to_builtins(model)
    lines = [f"{_json(name)}: {_json(value)}" for name, value in parts.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def read(data: bytes, name: str) -> performance.InterferenceModel:
    """The model in a file's bytes, ready to be used by this version.

    Raises:
        ModelProblem: no JSON, no model, of another version, or with numbers that contradict each other.
    """
    if len(data) > BYTES_MAX:
        raise ModelProblem(f"{name}: more than {BYTES_MAX} bytes; is it a model?")
    try:
        tag: _Tag = decode_json(data, _Tag, bytes_max=BYTES_MAX)
    except BadMessage as error:
        raise ModelProblem(f"{name}: not a model; {MAKES_ONE} ({error})") from None
    schema = tag.schema
    if schema != performance.MODEL_SCHEMA:
        kind, _, version = schema.partition("/")
        newer = kind == performance.MODEL_SCHEMA.partition("/")[0] and version.isdecimal()
        hint = "upgrade cotenant" if newer else MAKES_ONE
        raise ModelProblem(
            f"{name}: its schema is {schema!r}, this version reads {performance.MODEL_SCHEMA!r}; {hint}"
        )
    try:
        model: performance.InterferenceModel = decode_json(
            data, performance.InterferenceModel, bytes_max=BYTES_MAX
        )
        Predictor(model)
    except ValueError as error:  # BadMessage is one.
        raise ModelProblem(f"{name}: a damaged model: {error}") from None
    return model


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
