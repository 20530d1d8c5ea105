"""Pairs of training jobs on one device: how much each slows the other down, and whether sharing paid.

Rule: measured, recorded, written as a table; bounds only where physics sets them. `--pairs cnn+mlp` measures
these alone. The tables are `pairs-mps.csv` and `pairs-time-slicing.csv` beside the report.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hwtests import host, pair_runs, pair_table
from hwtests.device import Device
from hwtests.measuring import Measure
from hwtests.pair_table import Mode, Sharing, Solo
from hwtests.private_mps import PrivateMps

pytestmark = pytest.mark.gpu

MODES: tuple[Mode, ...] = ("mps", "time-slicing")
NOISE = 0.15
"""Two runs of one thing on a shared machine may differ by this share."""
BOTH_S_MIN = 6.0
"""With `--seconds` of at least so much, time-slicing is measured in both orders, too."""


class Measured:
    """Solos are measured once; every run of two is kept for the table."""

    def __init__(self, device: Device, folder: Path, seconds: float, tables: Path | None) -> None:
        self.device, self.folder, self.seconds = device, folder, seconds
        self._tables = tables
        self._before = {mode: _text(tables, mode) for mode in MODES}
        self._jobs = pair_runs.jobs(device)
        self.solos: dict[str, Solo] = {}
        self.runs: list[Sharing] = []

    def alone(self, model: str) -> Solo:
        if model not in self.solos:
            self.solos[model] = pair_runs.alone(self._jobs[model], self.device, self.folder, self.seconds)
        return self.solos[model]

    def shared(self, first: str, second: str, mode: Mode, mps: PrivateMps | None = None) -> Sharing:
        solos = (self.alone(first), self.alone(second))
        run = pair_runs.shared(*solos, self.device, self.folder, mode, mps)
        self.runs.append(run)
        if self._tables is not None:  # At once: a run that is killed keeps what it has.
            self.write(self._tables, mode)
        return run

    def write(self, folder: Path, mode: Mode) -> None:
        means = [mean for mean in pair_table.averaged(self.runs) if mean.mode == mode]
        if means:
            text = pair_table.table(means, self.solos, self.device.name)
            folder.mkdir(parents=True, exist_ok=True)
            whole = pair_table.merged(self._before[mode], text) if self._before[mode] else text
            _file(folder, mode).write_text(whole, encoding="utf-8")


def _file(folder: Path, mode: Mode) -> Path:
    return folder / f"pairs-{mode}.csv"


def _text(folder: Path | None, mode: Mode) -> str:
    path = None if folder is None else _file(folder, mode)
    return path.read_text(encoding="utf-8") if path is not None and path.exists() else ""


@pytest.fixture(scope="module")
def pairs(request: pytest.FixtureRequest, device: Device, seconds: float, work: Path) -> Measured:
    folder = work / "p"
    folder.mkdir()
    target = request.config.getoption("--tables")
    return Measured(device, folder, seconds, None if target is None else Path(target))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per pair of `--pairs`, else of the list."""
    chosen = [tuple(pair.split("+")) for pair in metafunc.config.getoption("--pairs").split(",") if pair]
    if "pair" in metafunc.fixturenames:
        wanted = chosen or list(pair_runs.PAIRS)
        metafunc.parametrize("pair", wanted, ids=["+".join(pair) for pair in wanted])
    if "model" in metafunc.fixturenames:
        models = {model for pair in chosen for model in pair} or {job.model for job in pair_runs.JOBS}
        metafunc.parametrize("model", sorted(models))


def test_a_model_alone(model: str, pairs: Measured, measured: Measure) -> None:
    solo = pairs.alone(model)
    measured(f"{model} alone: step", solo.step_s * 1e3, "ms")
    measured(f"{model} alone: hello", solo.hello_s, "s", "launch to the library's first word")
    measured(f"{model} alone: load", solo.load_s, "s", "launch to first step")
    measured(f"{model} alone: samples", solo.job.batch_size / solo.step_s, "1/s")
    measured(f"{model} alone: device memory", solo.memory_mib, "MiB", "above what was in use before")
    for name, summary in solo.indicators.items():
        note = f"{summary.source}, variance {summary.variance:.3g}, {summary.count} samples"
        measured(f"{model} alone: {name.value}", summary.mean, "", note, otherwise=summary.reason)
    assert solo.step_s > 0


def test_time_slicing(pair: tuple[str, str], pairs: Measured, measured: Measure) -> None:
    host.skip_if(host.lacks_time_slicing())
    _measure(pair, pairs, "time-slicing", measured, None)


def test_under_mps(pair: tuple[str, str], pairs: Measured, mps: PrivateMps, measured: Measure) -> None:
    _measure(pair, pairs, "mps", measured, mps)


def orders(pair: tuple[str, str], mode: Mode, seconds: float) -> list[tuple[str, str]]:
    """Who comes first. Both, one after the other; time-slicing in a hurry in the given order alone."""
    once = mode == "time-slicing" and seconds < BOTH_S_MIN
    return list(dict.fromkeys((pair,) if once else (pair, pair[::-1])))


def _measure(
    pair: tuple[str, str], pairs: Measured, mode: Mode, measured: Measure, mps: PrivateMps | None
) -> None:
    for first, second in orders(pair, mode, pairs.seconds):
        run = pairs.shared(first, second, mode, mps)
        who = f"{first} then {second}, {mode}"
        measured(f"{who}: xi of {first}", run.first_xi)
        measured(f"{who}: xi of {second}", run.second_xi)
        measured(f"{who}: speed together", run.speed, "", "sum of both, in solo speeds")
        measured(f"{who}: sharing benefit of {second}", run.benefit, "", "if it had waited / shared")
        measured(f"{who}: delay of {first}", run.first_delay, "", "completion shared / alone")
        if pairs.device.kind == "cuda":  # A dry run is made anywhere, also where others compute.
            # Company cannot make a job faster; more than that is a solo run that was disturbed.
            assert min(run.first_xi, run.second_xi) > 1 - NOISE, f"{who}: faster than alone: measure again"


def test_the_table_can_train_a_predictor(pairs: Measured, tmp_path: Path, measured: Measure) -> None:
    from cotenant.controller.training import pair_rows

    if not pairs.runs:
        pytest.skip("no pair was measured in this run")
    for mode in MODES:
        pairs.write(tmp_path, mode)
    found = sorted(tmp_path.iterdir())
    for path in found:
        rows = pair_rows.read(path.read_bytes(), path.name)
        measured(f"{path.name}: rows", len(rows), "", ", ".join(rows.names))
        assert set(rows.types) == {pairs.device.name}
    assert found


def test_drift_of_the_machine(pairs: Measured, measured: Measure) -> None:
    """The first model again, alone: by how much everything above may be off."""
    if not pairs.solos:
        pytest.skip("no model was measured in this run")
    model, before = next(iter(pairs.solos.items()))
    after = pair_runs.alone(before.job, pairs.device, pairs.folder, pairs.seconds)
    drift = after.step_s / before.step_s
    measured(f"{model} alone, later / earlier", drift, "", f"load {os.getloadavg()[0]:.1f}")
    dry = pairs.device.kind == "cpu"
    assert dry or 1 / (1 + NOISE) < drift < 1 + NOISE, (
        "the device is not as fast as it was: do not use the pairs"
    )
