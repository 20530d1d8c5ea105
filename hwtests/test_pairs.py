"""Pairs of training jobs on one device: how much each slows the other down, and whether sharing paid.

Rule: measured through a controller and an agent, recorded, written as a table; bounds only where physics sets
them. `--pairs language+input` measures these alone. The tables are `pairs-mps.csv` and
`pairs-time-slicing.csv` beside the report.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hwtests import host, pair_runs, pair_table
from hwtests.device import Device
from hwtests.jobs import JOBS, PAIRS, jobs
from hwtests.measuring import Measure
from hwtests.pair_table import Mode, Sharing, Solo

pytestmark = pytest.mark.gpu

MODES: tuple[Mode, ...] = ("mps", "time-slicing")
NOISE = 0.15
"""Two runs of one thing on a shared machine may differ by this share."""
BOTH_S_MIN = 6.0
"""With `--seconds` of at least so much, a pair is measured in both orders."""


class Measured:
    """Solos are measured once; every run of two is kept for the table."""

    def __init__(self, device: Device, folder: Path, seconds: float, tables: Path | None) -> None:
        self.device, self.folder, self.seconds = device, folder, seconds
        self._tables = tables
        self._before = {mode: _text(tables, mode) for mode in MODES}
        self._jobs = jobs(device)
        self._runs = 0
        self.solos: dict[str, Solo] = {}
        self.runs: list[Sharing] = []

    def next_folder(self) -> Path:
        """Short: sockets are made in it."""
        self._runs += 1
        return self.folder / f"{self._runs}"

    def alone(self, model: str, *, again: bool = False) -> Solo:
        if again or model not in self.solos:
            host.skip_if(host.lacks_cluster())
            solo = pair_runs.alone(self._jobs[model], self.device, self.next_folder(), self.seconds)
            return solo if again else self.solos.setdefault(model, solo)
        return self.solos[model]

    def shared(self, first: str, second: str, mode: Mode) -> Sharing:
        solos = (self.alone(first), self.alone(second))
        run = pair_runs.shared(*solos, self.device, self.next_folder(), mode, self.seconds)
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
        wanted = chosen or list(PAIRS)
        metafunc.parametrize("pair", wanted, ids=["+".join(pair) for pair in wanted])
    if "model" in metafunc.fixturenames:
        models = {model for pair in chosen for model in pair} or {job.name for job in JOBS}
        metafunc.parametrize("model", sorted(models))


def test_a_model_alone(model: str, pairs: Measured, measured: Measure) -> None:
    solo = pairs.alone(model)
    measured(f"{model} alone: step", solo.step_s * 1e3, "ms")
    measured(f"{model} alone: load", solo.load_s, "s", "launch to first step")
    measured(f"{model} alone: samples", solo.job.batch_size / solo.step_s, "1/s")
    measured(f"{model} alone: device memory", solo.memory_mib, "MiB", "of one worker, at its peak")
    for name in solo.indicators.measured:
        stats = solo.indicators.stats_of(name)
        note = f"{stats.source}, variance {stats.variance or 0.0:.3g}, {stats.count} samples"
        measured(f"{model} alone: {name}", stats.mean, "", note)
    assert solo.step_s > 0


def test_time_slicing(pair: tuple[str, str], pairs: Measured, measured: Measure) -> None:
    host.skip_if(host.lacks_time_slicing())
    _measure(pair, pairs, "time-slicing", measured)


def test_under_mps(pair: tuple[str, str], pairs: Measured, mps_problem: str, measured: Measure) -> None:
    host.skip_if(f"MPS does not work here: {mps_problem}" if mps_problem else "")
    _measure(pair, pairs, "mps", measured)


def orders(pair: tuple[str, str], seconds: float) -> list[tuple[str, str]]:
    """Who comes first: in a hurry the first of the given order, else both, one after the other."""
    return list(dict.fromkeys((pair,) if seconds < BOTH_S_MIN else (pair, pair[::-1])))


def _measure(pair: tuple[str, str], pairs: Measured, mode: Mode, measured: Measure) -> None:
    for first, second in orders(pair, pairs.seconds):
        run = pairs.shared(first, second, mode)
        who = f"{first} then {second}, {mode}"
        measured(f"{who}: xi of {first}", run.first_xi)
        measured(f"{who}: xi of {second}", run.second_xi)
        measured(f"{who}: speed together", run.speed, "", "sum of both, in solo speeds")
        measured(f"{who}: sharing benefit of {second}", run.benefit, "", "if it had waited / shared")
        measured(f"{who}: delay of {first}", run.first_delay, "", "time shared / alone")
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
    after = pairs.alone(model, again=True)
    drift = after.step_s / before.step_s
    measured(f"{model} alone, later / earlier", drift, "", f"load {os.getloadavg()[0]:.1f}")
    dry = pairs.device.kind == "cpu"
    assert dry or 1 / (1 + NOISE) < drift < 1 + NOISE, (
        "the device is not as fast as it was: do not use the pairs"
    )
