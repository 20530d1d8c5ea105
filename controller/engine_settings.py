"""What the engine decides by, from the settings of this machine."""

from __future__ import annotations

import logging
from pathlib import Path

from cotenant.controller.engine import EngineConfig, load_foresight, models_offered
from cotenant.controller.performance import InterferenceModel
from cotenant.controller.system.sections import Settings
from cotenant.controller.system.settings import SettingsError

log = logging.getLogger("cotenant.controller")


def engine_config(settings: Settings, began_s: float = 0.0) -> EngineConfig:
    """The configuration of the engine by the settings; a change takes effect at the next start. `began_s`:
    when time was 0 for the journal, by the wall clock; 0: that is not known.

    Raises:
        SettingsError: the interference model cannot be used.
    """
    return EngineConfig(
        limits=settings.limits,
        organisations=settings.organisations,
        policy=settings.policy,
        sharing=settings.sharing,
        reservations=settings.reservations,
        idle=settings.idle,
        checkpoint_every_s=settings.checkpoint.every_s,
        profile_s=settings.profiler.seconds,
        keep_ended=settings.controller.keep_ended,
        predictor=interference_model(settings.controller.predictor),
        began_hour=int(began_s // 3600),
    )


def interference_model(path: str) -> InterferenceModel | str | None:
    """The model in a file, or the name itself where an installed package offers a model by it; None for no
    path.

    Raises:
        SettingsError: no such file, or no usable model in it, or the package's cannot be made.
    """
    if not path:
        return None
    if path in models_offered():
        try:
            load_foresight(path)
        except ValueError as error:
            raise SettingsError(f"controller.predictor: {error}") from None
        return path
    from cotenant.controller.models.interference import model_file

    try:
        model = model_file.read(Path(path).expanduser().read_bytes(), path)
    except OSError as error:
        raise SettingsError(f"controller.predictor: {path}: {error.strerror}") from None
    except model_file.ModelProblem as error:
        raise SettingsError(f"controller.predictor: {error}") from None
    for file in model.training.files:
        log.info("interference model %s: trained on %s, licence: %s", path, file.name, file.licence)
    return model
