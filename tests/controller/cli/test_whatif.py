"""`cotenant whatif` and `cotenant sim replay`: a real journal, found, read, simulated and shown."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn


@pytest.fixture(scope="module")
def told() -> ModuleType:
    path = Path(__file__).parents[1] / "sim" / "journals.py"
    spec = importlib.util.spec_from_file_location("sim_journals_for_cli", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def journal(told: ModuleType, tmp_path: Path) -> Path:
    written: Path = told.write_journal(tmp_path / "state", told.TWO_IN_TURN)
    return written


def status(journal: str) -> wire.ControllerStatus:
    return wire.ControllerStatus(
        request_id=0, version="0", pid=1, now_s=0.0, wall_s=0.0, uptime_s=0.0, policy="fifo",
        jobs_by_phase={}, hosts=1, devices=1, counters={}, journal=journal, endpoint="ipc:///x",
    )  # fmt: skip


def test_replay_shows_what_happened_beside_the_simulation(cotenant: Cotenant, journal: Path) -> None:
    result = cotenant("sim", "replay", str(journal))
    assert result.code == 0
    about, _, happened, simulated, *notes = result.out.splitlines()
    assert about.startswith("2 jobs that arrived from")
    assert happened.startswith("what happened")
    assert simulated.startswith("fifo")
    assert notes[0].startswith("trust: fifo, simulated, misses a job's real JCT by 0 %")


def test_whatif_asks_the_controller_that_answers_for_its_journal(
    cotenant: Cotenant, controller: StandIn, journal: Path
) -> None:
    controller.says(wire.GetStatus, status(f"{journal / 'journal.sqlite'}, 7 entries"))
    value = json.loads(cotenant("whatif", "--policy", "srtf", "--json").out)
    assert value["schema"] == "whatif/1"
    assert [run["policy"] for run in value["runs"]] == ["fifo", "srtf"]
    assert value["calibration"]["jct_error"]["p50"] == pytest.approx(0.0, abs=1e-6)
    assert value["actual"]["jct_s"]["mean"] == 150.0
    assert value["begin_at"].startswith("2025-11-13T")


def test_whatif_says_where_to_run_it_when_the_journal_is_elsewhere(
    cotenant: Cotenant, controller: StandIn
) -> None:
    controller.says(wire.GetStatus, status("/elsewhere/journal.sqlite, 7 entries"))
    result = cotenant("whatif", "--policy", "srtf")
    assert (result.code, "is not on this machine" in result.err, "--journal" in result.err) == (3, True, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_a_journal_that_is_closed_to_an_ordinary_account_is_one_line(
    cotenant: Cotenant, controller: StandIn, journal: Path
) -> None:
    controller.says(wire.GetStatus, status(f"{journal / 'journal.sqlite'}, 7 entries"))
    journal.chmod(0)
    try:
        results = [cotenant("whatif"), cotenant("sim", "replay", str(journal))]
    finally:
        journal.chmod(0o700)
    for result in results:
        assert (result.code, result.err.count("\n")) == (4, 1), result.err
        assert "run this as the controller's account" in result.err


def test_without_a_controller_the_settings_say_where_the_journal_is(
    cotenant: Cotenant, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTENANT_CONTROLLER__STATE_DIR", str(journal))
    assert cotenant("whatif", "--policies", "sjf,srtf", "-o", "id").out.split("\n")[1:4] == [
        "fifo",
        "sjf",
        "srtf",
    ]


def test_more_gpus_are_simulated_beside_the_ones_there_are(cotenant: Cotenant, journal: Path) -> None:
    words = ("whatif", "--journal", str(journal), "--policy", "sjf", "--add-gpus", "1")
    runs = json.loads(cotenant(*words, "-o", "json").out)["runs"]
    assert [run["label"] for run in runs] == ["fifo", "sjf", "fifo, 1 more GPU", "sjf, 1 more GPU"]
    waits_s = {run["label"]: run["wait_s"]["mean"] for run in runs}
    assert waits_s["fifo, 1 more GPU"] < waits_s["fifo"], "two jobs in turn, and then at once"
    table = cotenant(*words).out
    assert "fifo, 1 more GPU" in table
    assert "trust: fifo, simulated" in table, "what is believed rests on the cluster that there was"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--since", "soon"), 2, "--since must be a duration"),
        (("--since", "1s"), 1, "take more with a longer --since"),
        (("--policy", "srft"), 2, "did you mean srtf?"),
        (("--add-gpus", "few"), 2, "--add-gpus"),
    ],
)
def test_a_mistake_is_one_line(
    cotenant: Cotenant, journal: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    result = cotenant("whatif", "--journal", str(journal), *words)
    assert (result.code, message in result.err) == (code, True), result.err


def test_no_journal_is_not_found(cotenant: Cotenant, tmp_path: Path) -> None:
    result = cotenant("sim", "replay", str(tmp_path))
    assert (result.code, "there is no journal" in result.err) == (3, True)


def test_out_has_the_jobs_as_they_were_and_a_plot(cotenant: Cotenant, journal: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    assert cotenant("whatif", "--journal", str(journal), "--policy", "srtf", "--out", str(out)).code == 0
    names = {path.name for path in out.iterdir()}
    assert names >= {"result.json", "jobs-what_happened.csv", "jct.svg"}


@pytest.mark.parametrize("verb", [("whatif", "--journal"), ("sim", "replay")])
def test_a_past_can_be_played_with_less_said_beforehand(
    cotenant: Cotenant, journal: Path, verb: tuple[str, ...]
) -> None:
    """By default policies are told what the journal says that was expected."""
    flags = ("--known", "progress:20", "--resumable", "0")
    result = cotenant(*verb, str(journal), *flags)
    assert result.out.splitlines()[1] == (
        "lengths: told 20 s after the first step by 100 % of the jobs; 0 % of the jobs can resume"
    )
    told = json.loads(cotenant(*verb, str(journal), *flags, "--json").out)
    assert (told["known"], told["resumable"], "tells" in told) == ("progress:20", 0.0, False)
    assert "known" not in json.loads(cotenant(*verb, str(journal), "--json").out)


def test_what_is_known_of_lengths_is_no_question_about_a_job_now(cotenant: Cotenant) -> None:
    result = cotenant("whatif", "--known", "none", "--", "true")
    assert (result.code, "leave the other options out" in result.err) == (2, True), result.err
