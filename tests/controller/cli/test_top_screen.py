"""The screen of `top` under its keys, with a controller that a test plays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from cotenant.controller.cli.cluster.top_screen import TopScreen
from cotenant.controller.cli.cluster.top_widgets import ChangeQuestion, PaneTable
from cotenant.controller.client.connection import Refusal, Unreachable
from cotenant.controller.domain import JobId
from cotenant.controller.present.consequences import JobVerb
from cotenant.controller.present.top_page import Moment
from cotenant.controller.wire import clients as wire

LONG_S = 3600.0
HOSTILE = "[bold red]x[/] \\x1b[31m"


class Played:
    """A controller: its looks, and what it was asked for."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.silent = False
        self.changes: list[tuple[str, str]] = []
        self.shown: list[str] = []
        self.looks = 0
        self.threads: set[int] = set()

    def look(self) -> Moment:
        self.threads.add(threading.get_ident())
        self.looks += 1
        if self.silent:
            raise Unreachable("gone")
        return self.moment

    def show(self, job_id: JobId, width: int) -> str:
        self.threads.add(threading.get_ident())
        if self.silent:
            raise Unreachable("gone")
        self.shown.append(job_id)
        return f"all about job {job_id}"

    def log(self, job_id: JobId) -> str:
        self.threads.add(threading.get_ident())
        return f"the end of log {job_id}"

    def change(self, verb: JobVerb, job_id: JobId) -> str:
        self.changes.append((verb, job_id))
        if job_id == "2":
            raise Refusal(wire.Failure(request_id=0, code="not-allowed", message="it is not yours"))
        return f"job {job_id}: {verb} was asked for"


@pytest.fixture
def played(replies: ModuleType) -> Played:
    tenants = {"h/cpu0": (JobId("1"), JobId("2"))}
    node = replies.node("h", replies.device("cpu0", "h"), replies.device("cpu1", "h"), tenants=tenants)
    waiting = [replies.waiting(str(each), "behind 1", name=HOSTILE) for each in range(3, 60)]
    jobs = [replies.job_view("1", durable_step=30), replies.job_view("2"), *waiting]
    return Played(
        Moment(
            status=replies.status(),
            nodes=replies.nodes(node),
            jobs=replies.jobs(*jobs),
            decisions=wire.Decisions(request_id=0, decisions=(), now_s=0.0, wall_s=0.0),
        )
    )


Scene = Callable[[TopScreen, Pilot[int]], Awaitable[None]]


def act(played: Played, scene: Scene, size: tuple[int, int] = (80, 24)) -> TopScreen:
    app = TopScreen(played, played.moment, LONG_S)

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await settled(app, pilot)
            await scene(app, pilot)

    try:
        asyncio.run(run())
    finally:
        app.close()
    return app


async def settled(app: TopScreen, pilot: Pilot[int]) -> None:
    """All that was asked for has been answered and drawn; looks go on, and a question to a person."""
    while True:
        await pilot.pause()
        await pilot.pause()  # What a first pause has drawn may have another size.
        waits = {"_follow", *(("action_change",) if isinstance(app.screen, ChangeQuestion) else ())}
        if not [each for each in app.workers if each.name not in waits and each.is_running]:
            return


async def pressed(app: TopScreen, pilot: Pilot[int], *keys: str) -> None:
    await pilot.press(*keys)
    await settled(app, pilot)


async def looked(app: TopScreen, pilot: Pilot[int], played: Played) -> None:
    before = played.looks
    await pilot.press("space")
    while played.looks == before:
        await pilot.pause(0.01)
    await settled(app, pilot)


def text_of(app: TopScreen) -> str:
    rows = app.screen_stack[-1]._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in row) for row in rows)


def table(app: TopScreen, name: str) -> PaneTable:
    return app.screen_stack[0].query_one(f"#{name}", PaneTable)


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (60, 12), (40, 10)])
def test_devices_jobs_and_keys_are_seen_on_any_screen(played: Played, size: tuple[int, int]) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        text = text_of(app)
        for wanted in ("Devices (2", "h/cpu0", "Jobs (2 on devices", "running", "q Quit"):
            assert wanted in text, wanted
        assert "policy cas" in text

    act(played, scene, size)


def test_another_size_is_followed(played: Played) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        narrow = table(app, "jobs").pane.titles
        await pilot.resize_terminal(200, 50)
        await settled(app, pilot)
        assert set(narrow) < set(table(app, "jobs").pane.titles), "more columns where there is room"
        assert table(app, "decisions").display

    act(played, scene)


def test_names_are_no_markup(played: Played) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        assert "[bold red]" in text_of(app)
        await pressed(app, pilot, "G", "c")
        assert "[bold red]x[/]" in text_of(app)

    act(played, scene, (120, 24))


def test_details_follow_the_cursor_and_escape_closes_them(played: Played) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, "enter")
        assert "all about job 1" in text_of(app)
        await pressed(app, pilot, "down")
        assert "all about job 2" in text_of(app) and "all about job 1" not in text_of(app)
        await pressed(app, pilot, "escape")
        assert "all about job" not in text_of(app)
        asked = len(played.shown)
        await pressed(app, pilot, "down")
        assert len(played.shown) == asked, "nobody sees it, so nobody asks"
        await pressed(app, pilot, "shift+tab", "enter")
        assert "h/cpu0" in text_of(app) and played.shown[-2:] == ["1", "2"], "a device's tenants"

    act(played, scene)
    assert threading.get_ident() not in played.threads and len(played.threads) == 1


def test_the_end_of_a_log_stands_in_place_of_the_details(played: Played) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, "l")
        assert "log of job 1, its end" in text_of(app) and "the end of log 1" in text_of(app)
        await pressed(app, pilot, "down")
        assert "the end of log 2" in text_of(app), "it follows the cursor"
        await pressed(app, pilot, "enter")
        assert "all about job 2" in text_of(app) and "the end of log" not in text_of(app)

    act(played, scene)


def test_a_legend_says_what_columns_mean(played: Played) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        words = app.query_one("#legend", Static)
        assert "SMACT: multiprocessors (cores) at work" in str(words.render())
        assert "WITH: who shares the job's devices" in str(words.render())
        shown = words.display
        await pressed(app, pilot, "i")
        assert words.display is not shown

    act(played, scene, (140, 40))


def test_a_filter_is_kept_until_escape(played: Played) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, "slash", *"behind", "enter")
        assert len(table(app, "jobs").pane.rows) == 57
        await looked(app, pilot, played)
        assert len(table(app, "jobs").pane.rows) == 57 and app.query_one("#filter", Input).display
        await pressed(app, pilot, "escape")
        assert len(table(app, "jobs").pane.rows) == 59
        assert app.focused is table(app, "jobs"), "keys work again"

    act(played, scene)


def test_sorting_by_key_and_by_a_click(played: Played) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        jobs = table(app, "jobs")
        await pressed(app, pilot, "s", "r")
        assert [row.key for row in jobs.pane.rows][:2] == ["59", "58"]
        assert jobs.selected == "1", "the cursor stays on its job"
        await pilot.click("#jobs", offset=(2, 1))
        await settled(app, pilot)
        assert [row.key for row in jobs.pane.rows][:2] == ["1", "2"]

    act(played, scene)


def test_the_cursor_stays_on_its_job_when_others_go(played: Played, replies: ModuleType) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, "G")
        assert table(app, "jobs").selected == "59" and table(app, "jobs").scroll_y > 0
        at = table(app, "jobs").scroll_y
        played.moment = played.moment._replace(jobs=replies.jobs(*played.moment.jobs.jobs[1:]))
        await looked(app, pilot, played)
        assert table(app, "jobs").selected == "59" and table(app, "jobs").scroll_y >= at - 1

    act(played, scene)


ANSWERS = {
    "yes": (("c", "y"), [("cancel", "1")]),
    "no": (("c", "n"), []),
    "escape": (("c", "escape"), []),
    "enter, which is no": (("c", "enter"), []),
    "hold what waits": (("G", "h", "y"), [("hold", "59")]),
    "hold what runs": (("h", "y"), []),
    "cancel a device": (("shift+tab", "c", "y"), []),
    "somebody else's": (("down", "c", "y"), [("cancel", "2")]),
}


@pytest.mark.parametrize(("keys", "wanted"), ANSWERS.values(), ids=ANSWERS.keys())
def test_nothing_is_changed_without_a_yes(
    played: Played, keys: tuple[str, ...], wanted: list[tuple[str, str]]
) -> None:
    said: list[str] = []

    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        await settled(app, pilot)
        said.append(text_of(app))
        assert not isinstance(app.screen, ChangeQuestion)

    act(played, scene)
    assert played.changes == wanted
    told = {
        "cancel 1": "cancel was asked for",
        "hold 59": "hold was asked for",
        "cancel 2": "it is not yours",
    }
    for verb, job in wanted:
        assert told[f"{verb} {job}"] in said[0]


def test_the_question_says_what_will_happen(played: Played) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        await pilot.press("c")
        await pilot.pause()
        text = " ".join(text_of(app).split())
        assert "Cancel job 1 (train) of ada?" in text and "checkpoint of step 30" in text

    act(played, scene)


def test_a_lost_connection_is_said_and_the_screen_stays(played: Played) -> None:
    async def scene(app: TopScreen, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, "enter")
        played.silent = True
        await looked(app, pilot, played)
        assert "! no answer from the controller" in text_of(app)
        assert "all about job 1" in text_of(app) and "running" in text_of(app)
        played.silent = False
        await looked(app, pilot, played)
        assert "no answer" not in text_of(app)
        assert not app.screen.query_one("#trouble", Static).display

    act(played, scene)


def test_q_quits_and_ctrl_c_interrupts(played: Played) -> None:
    results: list[Any] = []
    for key in ("q", "ctrl+c"):

        async def scene(app: TopScreen, pilot: Pilot[int], key: str = key) -> None:
            await pilot.press(key)

        app = act(played, scene)
        results.append((app.return_code, app.return_value))
    assert results == [(0, None), (0, 2)]
