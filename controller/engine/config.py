"""What the engine is told once."""

from __future__ import annotations

import msgspec

from cotenant.controller.domain import InterferenceModel, LimitSettings, OrganisationSettings, PolicySettings


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is told once; part of the configuration hash."""

    policy: PolicySettings = PolicySettings()
    limits: LimitSettings = LimitSettings()
    organisations: dict[str, OrganisationSettings] = {}
    checkpoint_every_s: float = 600.0
    profile_s: float = 0.0
    """T_prof of the profile in place; 0 = none."""
    keep_ended: int = 10_000
    began_hour: int = 0
    """The hour, counted from 1970 in UTC, in which the journal's time began; 0 = unknown."""
    predictor: InterferenceModel | None = None
    """The whole model, so that a replay needs no file; None = the duty-cycle rule."""
