"""Rows of the screen of `top`: their order, what a filter leaves, and what a change of a job would do."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import HostState, JobId, Phase
from cotenant.controller.present import tables
from cotenant.controller.present.consequences import consequence
from cotenant.controller.present.top_page import Moment
from cotenant.controller.present.top_view import (
    Choice,
    decisions_pane,
    details,
    devices_pane,
    jobs_pane,
    natural,
    refusal,
)
from cotenant.controller.wire import clients as wire


@pytest.fixture
def moment(replies: ModuleType) -> Moment:
    """Two hosts of which one is silent; a device with two tenants, one that was lost, one never measured."""
    tenants = {"h/gpu-9": (JobId("1"), JobId("2"))}
    gpus = [
        replies.device(f"gpu-{at}", "h", kind="cuda", type="T", memory_mib=81_920, cores=()) for at in (9, 10)
    ]
    lost = replies.device(
        "gpu-1", "h", kind="cuda", type="T", cores=(), state="lost", healthy=False, note="Xid 79"
    )
    readings = {
        "h/gpu-9": replies.reading("gpm", {"SMACT": 0.09}, memory_used_mib=2048.0, age_s=1.0),
        "h/gpu-10": replies.reading("nvml", {"SMACT": 0.5}, memory_used_mib=512.0, age_s=30.0),
    }
    alive = replies.node("h", *gpus, lost, tenants=tenants, readings=readings)
    silent = replies.node("away", replies.device("cpu0", "away"), state=HostState.SILENT)
    running = [
        replies.job_view(each, name=f"train-{each}", run_s=float(each) * 100, user="ada") for each in "12"
    ]
    waiting = [replies.waiting(each, "behind 1", user="bob", run_s=0.0, left_s=None) for each in ("9", "10")]
    said = wire.DecisionView(
        at_s=990.0, event="x", job_id=JobId("2"), what="place on h/gpu-9", reason="it pays"
    )
    return Moment(
        status=replies.status(jobs_by_phase={"running": 2, "queued": 40, "done": 7}),
        nodes=replies.nodes(alive, silent),
        jobs=replies.jobs(waiting[1], *running, waiting[0]),
        decisions=wire.Decisions(request_id=0, decisions=(said,), now_s=1000.0, wall_s=0.0),
    )


def keys(moment: Moment, pane: str, choice: Choice) -> list[str]:
    made = {"devices": devices_pane, "jobs": jobs_pane, "decisions": decisions_pane}[pane]
    return [row.key for row in made(moment, choice, 200).rows]


SILENT = "away/cpu0"
ORDERS = {
    "trouble first, the rest as it comes": ("devices", Choice(), ["h/gpu-1", SILENT, "h/gpu-9", "h/gpu-10"]),
    "names by their numbers": ("devices", Choice("DEVICE"), [SILENT, "h/gpu-1", "h/gpu-9", "h/gpu-10"]),
    "what is not measured last": ("devices", Choice("SMACT"), ["h/gpu-9", "h/gpu-10", "h/gpu-1", SILENT]),
    "the other way round too": ("devices", Choice("SMACT", True), ["h/gpu-10", "h/gpu-9", "h/gpu-1", SILENT]),
    "sizes as numbers": ("devices", Choice("MEMORY"), ["h/gpu-10", "h/gpu-9", "h/gpu-1", SILENT]),
    "on devices, then waiting": ("jobs", Choice(), ["1", "2", "10", "9"]),
    "jobs by their numbers": ("jobs", Choice("JOB", True), ["10", "9", "2", "1"]),
    "durations as numbers": ("jobs", Choice("RUN", True), ["2", "1", "10", "9"]),
    "only what has it": ("jobs", Choice(pattern="BOB"), ["10", "9"]),
    "of devices too": ("devices", Choice(pattern="train-2"), ["h/gpu-9"]),
    "a column that there is not": ("jobs", Choice("SMACT"), ["1", "2", "10", "9"]),
}  # fmt: skip


@pytest.mark.parametrize(("pane", "choice", "wanted"), ORDERS.values(), ids=ORDERS.keys())
def test_order_and_filter(moment: Moment, pane: str, choice: Choice, wanted: list[str]) -> None:
    assert keys(moment, pane, choice) == wanted


def test_titles_count_what_is_not_shown(moment: Moment) -> None:
    assert devices_pane(moment, Choice(), 80).title == "Devices (4: 1 shared, 1 free, 1 lost, 1 silent)"
    filtered = jobs_pane(moment, Choice(pattern="ada"), 80).title
    assert filtered == "Jobs (2 on devices, 40 waiting; the first 4 of them): 2 of 4 with 'ada'"


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_columns_fit_and_cells_are_as_wide_as_their_column(moment: Moment, width: int) -> None:
    for make in (devices_pane, jobs_pane, decisions_pane):
        pane = make(moment, Choice(), width)
        assert width < 60 or sum(wide + len(tables.GAP) for _, wide in pane.heads) - len(tables.GAP) <= width
        assert all(
            tables.columns_of(cell) <= wide
            for row in pane.rows
            for cell, (_, wide) in zip(row.cells, pane.heads, strict=True)
        )


def test_the_sorted_column_is_marked(moment: Moment) -> None:
    up = Choice("JOB")
    assert jobs_pane(moment, up, 200).heads[0][0].strip() == "JOB ▲"
    assert jobs_pane(moment, up._replace(is_reversed=True), 200).heads[0][0].strip() == "JOB ▼"
    assert up.next_sort(("JOB", "NAME")).sort == "NAME" and up.next_sort(("JOB",)).sort == ""


@given(st.text(), st.text())
def test_any_two_texts_have_an_order(first: str, second: str) -> None:
    assert (natural(first) < natural(second)) or (natural(first) >= natural(second))


def test_details_of_a_row(moment: Moment) -> None:
    text, jobs = details(moment, "devices", "h/gpu-9")
    assert jobs == ("1", "2") and "SMACT    9%" in text and "DRAMA    -" in text
    assert details(moment, "jobs", "9") == ("", ("9",))
    decision = keys(moment, "decisions", Choice())[0]
    assert details(moment, "decisions", decision) == ("place on h/gpu-9: it pays", ("2",))
    assert details(moment, "devices", "gone/gpu-1") == ("", ())


def test_what_a_change_would_do_is_said(replies: ModuleType) -> None:
    running = replies.job_view("7", step=40, durable_step=30, co_tenants=(JobId("8"),))
    assert consequence("cancel", running) == (
        "It ends now on laptop/cpu0, and saves nothing more. Its checkpoint of step 30 stays for a while, "
        "10 steps after it are lost. Job 8 beside it keeps the devices."
    )
    assert "Its 40 steps (1m00s) are lost" in consequence("cancel", replies.job_view(step=40, durable_step=0))
    assert consequence("cancel", replies.waiting("9", "behind 7")).startswith("It leaves the queue")
    assert "until somebody releases it" in consequence("hold", replies.waiting("9", "behind 7"))


def test_what_cannot_be_done_is_not_asked_for(replies: ModuleType) -> None:
    assert refusal("hold", replies.job_view("7")) == "job 7 is on devices; only waiting jobs can be held"
    assert refusal("cancel", replies.done("7")) == "job 7 has ended already"
    for phase in (Phase.QUEUED, Phase.BLOCKED, Phase.RESERVED):
        assert not refusal("hold", replies.job_view(phase=phase))
    assert not refusal("cancel", replies.job_view())
