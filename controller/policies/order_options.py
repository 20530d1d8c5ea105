"""The option of every order of waiting jobs: who may pass a job that does not fit."""

from __future__ import annotations

from typing import Self

import msgspec

from cotenant.controller.policies.base import Parameters
from cotenant.controller.policies.toolkit import Backfill


class OrderParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Named options of an order."""

    backfill: Backfill = "none"
    """Who may start ahead of a job that does not fit. `none`: nobody. `easy`: whoever does not delay the
    first such job, by the expected times. `any`: whoever fits."""

    @classmethod
    def parse(cls, parameters: Parameters) -> Self:
        """Raises ValueError for a wrong name, type or value."""
        return msgspec.convert(parameters, cls)

    def as_parameters(self) -> Parameters:
        return {name: getattr(self, name) for name in self.__struct_fields__}


class PassingParameters(OrderParameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of an order that lets whoever fits pass."""

    backfill: Backfill = "any"
