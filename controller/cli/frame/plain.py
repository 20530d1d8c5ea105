"""A command whose text stays text.

Rule: typer converts every value through pydantic, which takes as long to load as the rest of a short
command. Text and switches need no conversion. This reaches into typer; where a later version changes,
it does nothing, and a test says that pydantic is back.
"""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperCommand

UNCONVERTED: Final = (str, list[str], bool)


class PlainCommand(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        parameters: list[Any] = list(super().get_params(ctx))
        for parameter in parameters:
            kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
            if kind in UNCONVERTED:
                parameter._runtime_param = AsItIs()
        return parameters


class AsItIs:
    """What typer asks to convert a value."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        return value
