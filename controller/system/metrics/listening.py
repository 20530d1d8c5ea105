"""Opens the endpoint where the setting asks for one; only then is it loaded, with its HTTP server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cotenant.controller.system.metrics.address import parse

if TYPE_CHECKING:
    from cotenant.controller.system.metrics.endpoint import Endpoint


def opened(text: str, key: str) -> Endpoint | None:
    """The endpoint, listening and not yet answering; None where the setting is empty.

    Raises:
        MetricsProblem: a bad or taken address, or prometheus-client is missing.
    """
    if not text:
        return None
    address = parse(text, key)
    from cotenant.controller.system.metrics.endpoint import Endpoint

    return Endpoint(address, key)
