"""The settings in examples/deploy are those of a cluster whose units `cotenant service install` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.controller.system import paths, settings

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"


@pytest.mark.parametrize("name", ["controller", "agent"])
def test_the_example_settings_are_valid_and_keep_state_where_the_unit_makes_a_folder(name: str) -> None:
    loaded = settings.load(files=[DEPLOY / f"{name}.toml"], environ={})
    assert loaded.value(f"{name}.state_dir") == f"/var/lib/cotenant-{name}"


def test_both_examples_mean_the_same_port() -> None:
    listens = paths.controller_endpoint(
        settings.load(files=[DEPLOY / "controller.toml"], environ={}).settings
    )
    (looks,) = paths.agent_endpoints(settings.load(files=[DEPLOY / "agent.toml"], environ={}).settings)
    assert listens.rpartition(":")[2] == looks.rpartition(":")[2]
