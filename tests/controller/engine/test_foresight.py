"""An interference model from another package: found by its name in settings and simulations, or refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cotenant.controller.domain import Job
from cotenant.controller.engine import Engine, EngineConfig, load_foresight, models_offered
from cotenant.controller.engine_settings import engine_config
from cotenant.controller.performance import Interference
from cotenant.controller.policies import registry
from cotenant.controller.sim import Scenario, policies_named, run_all, tasks
from cotenant.controller.system.sections import ControllerSettings, Settings
from cotenant.controller.system.settings import SettingsError
from cotenant.controller.wire import pack, unpack
from tests.controller.building import Desk

SOURCE = '''
from cotenant.controller.performance import Interference


class Rooflines:
    """Says of every pair that it is slowed by a tenth, and of none that it is unknown."""

    def ratios_beside(self, job, partners):
        return [Interference(first=1.1, second=1.1, source="predicted") for _ in partners]


class Apart(Rooflines):
    def ratios_beside(self, job, partners):
        return [Interference(first=9.0, second=9.0, source="predicted") for _ in partners]


class Empty:
    pass


def broken():
    raise RuntimeError("no  licence")
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs a package that offers some, good and bad."""
    (tmp_path / "own_models.py").write_text(SOURCE)
    info = tmp_path / "own_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-models\nVersion: 1.0\n")
    places = {
        "rooflines": "Rooflines",
        "apart": "Apart",
        "empty": "Empty",
        "broken": "broken",
        "gone": "Nowhere",
    }
    lines = [f"{name} = own_models:{place}" for name, place in places.items()]
    (info / "entry_points.txt").write_text("\n".join(["[cotenant.interference_models]", *lines, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    load_foresight.cache_clear()
    yield
    sys.modules.pop("own_models", None)
    load_foresight.cache_clear()


class Handed:
    """A model that is handed in."""

    def ratios_beside(self, job: Job, partners: Sequence[Job]) -> Sequence[Interference | None]:
        return [Interference(first=1.2, second=1.3, source="predicted") for _ in partners]


def xi_of(engine: Engine) -> Interference:
    at = Desk("fifo")
    one, two = (at.job(at.submit(number)) for number in (1, 2))
    return engine.ledger.pairs.interference(one, two)


def test_an_engine_takes_any_model_of_pairs() -> None:
    assert xi_of(Engine(registry.make)).source == "default"
    given = xi_of(Engine(registry.make, foresight=Handed()))
    assert (given.first, given.second, given.source) == (1.2, 1.3, "predicted")


@pytest.mark.usefixtures("package")
def test_a_setting_names_the_model_of_an_installed_package() -> None:
    assert models_offered() == ("apart", "broken", "empty", "gone", "rooflines")
    settings = Settings(controller=ControllerSettings(predictor="rooflines"))
    config = engine_config(settings)
    assert config.predictor == "rooflines"
    assert xi_of(Engine(registry.make, config)).first == 1.1
    assert unpack(pack(config), EngineConfig) == config, "the journal has the name"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("empty", "interference model empty lacks ratios_beside"),
        ("broken", "interference model broken cannot be made: RuntimeError: no licence"),
        ("gone", "interference model gone cannot be made: AttributeError"),
    ],
)
def test_one_that_cannot_be_used_stops_a_controller_before_it_starts(name: str, said: str) -> None:
    with pytest.raises(SettingsError, match=f"^controller.predictor: {said}"):
        engine_config(Settings(controller=ControllerSettings(predictor=name)))


def test_a_journal_whose_model_is_gone_is_read_without_it() -> None:
    with pytest.raises(ValueError, match="no installed package offers an interference model 'rooflines'"):
        load_foresight("rooflines")
    assert xi_of(Engine(registry.make, EngineConfig(predictor="rooflines"))).source == "default"


@pytest.mark.usefixtures("package")
def test_a_simulation_names_it_too() -> None:
    """What it says of pairs changes who shares, and so when jobs end."""

    def ends(xi: str) -> list[float]:
        asked = Scenario(trace="philly/ee9e8c", jobs=60, hosts=1, gpus_per_host=2, load_scale=4.0, xi=xi)
        (run,) = run_all(tasks(asked, policies_named("castor"), [0]), workers=1, keep=True)
        assert run.outcome is not None
        return [float(jct_s) for jct_s in run.outcome.jct_s]

    assert ends("rooflines") == ends("rooflines")
    assert len({tuple(ends(xi)) for xi in ("learned", "rooflines", "apart")}) == 3
    with pytest.raises(
        ValueError, match=r"--xi must be one of 'learned', 'measured', 'apart', .*, got 'nobody'"
    ):
        Scenario(trace="philly/ee9e8c", xi="nobody")
