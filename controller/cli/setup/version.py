"""`cotenant version`: of this command, and of the controller if one answers."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any

from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, OutputFlag, chosen, show_one
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.wire.clients import GetStatus
from cotenant.controller.wire.codec import WIRE_VERSION
from cotenant.controller.wire.job import PROTOCOL_VERSION


def version(output: OutputFlag = None, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Versions of this command and of the controller.

    For example:

      cotenant version --json
    """
    form = chosen(output, as_json)
    controller: str | None = None
    why = ""
    if form != "id":
        try:
            with asking(endpoint, timeout_s=2.0) as client:
                controller = client.ask(GetStatus()).version
        except Problem as problem:
            why = "none answers" if problem.code == "unreachable" else problem.message
    value: dict[str, Any] = {
        "schema": "version/1",
        "version": own_version(),
        "controller": controller,
        "wire": WIRE_VERSION,
        "job_protocol": PROTOCOL_VERSION,
        "python": platform.python_version(),
    }
    show_one(form, value, own_version(), value, lambda shown: page(shown, why))


def own_version() -> str:
    try:
        return installed("cotenant")
    except PackageNotFoundError:
        return "unknown (not installed)"


def page(value: dict[str, Any], why: str) -> str:
    """`why`: no controller has answered."""
    controller = value["controller"] or f"({why})"
    return f"cotenant {value['version']}\ncontroller {controller}\nPython {value['python']}"
