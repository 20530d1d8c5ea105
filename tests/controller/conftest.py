"""Fixtures of the controller's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.controller.station import Station


@pytest.fixture
def stations(tmp_path: Path) -> Iterator[Callable[..., Station]]:
    """Makes stations on one journal; each one is closed before the next is made, and at the end."""
    made: list[Station] = []

    def make(**more: object) -> Station:
        if made:
            made.pop().close()
        made.append(Station(tmp_path / "state", **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    if made:
        made[-1].close()


@pytest.fixture
def station(stations: Callable[..., Station]) -> Station:
    return stations()
