"""Which model answers for pairs that were never seen: ours, from a file, or another package's, by its name.

A package offers one by an entry point in the group `cotenant.interference_models`:

    [project.entry-points."cotenant.interference_models"]
    roofline = "my_models:Roofline"

What the name stands for is called without arguments and returns a `PairModel`. It stands in the configuration
by its name alone, so it has to answer equal questions equally: a replay asks them again.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import cast

from cotenant.controller.knowledge import PairModel
from cotenant.controller.performance import INTERFERENCE_MODELS, InterferenceModel


def models_offered() -> tuple[str, ...]:
    """The names of what installed packages offer. Imports nothing of them."""
    return tuple(sorted(entry_points(group=INTERFERENCE_MODELS).names))


@cache
def load_foresight(name: str) -> PairModel:
    """The model that an installed package offers by this name.

    Raises:
        ValueError: none does, or it cannot be made, or it is no such model; the text says which.
    """
    if name not in models_offered():
        there = ", ".join(models_offered()) or "none"
        raise ValueError(f"no installed package offers an interference model {name!r}; there are: {there}")
    try:
        made = entry_points(group=INTERFERENCE_MODELS)[name].load()()
    except Exception as error:  # Their code may fail in any way, and here we can still report it.
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"interference model {name} cannot be made: {why}") from error
    if not callable(getattr(made, "ratios_beside", None)):
        raise ValueError(f"interference model {name} lacks ratios_beside; PairModel says what a model has")
    return cast(PairModel, made)


def find_foresight(model: InterferenceModel | str | None) -> PairModel | None:
    """The model of a configuration. None where it names none, and where the package of the one it names is
    gone: running jobs need a controller that starts. A start whose settings name such a one is refused."""
    if model is None:
        return None
    if isinstance(model, str):
        try:
            return load_foresight(model)
        except ValueError:
            return None
    from cotenant.controller.models.interference.predictor import Predictor  # numpy, for those who use it

    return Predictor(model)
