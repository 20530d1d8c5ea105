"""The page of `top`, on small and large screens: whatever does not fit is counted, and trouble is shown."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cotenant.controller.cli.cluster import top, top_live
from cotenant.controller.cli.cluster.top_screen import TopScreen
from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.domain import HostState, JobId
from cotenant.controller.present import tables
from cotenant.controller.present.consequences import JobVerb
from cotenant.controller.present.devices import bar
from cotenant.controller.present.terminal import last_words
from cotenant.controller.present.top_page import Moment, lines_for, page
from cotenant.controller.wire import clients as wire

FAILURE = wire.Failure(request_id=0, code="not-allowed", message="not yours")
SIZES = [(80, 24), (200, 50), (60, 12), (40, 5)]


@pytest.fixture
def moment(replies: ModuleType) -> Moment:
    """Two hundred hosts with long names, eight GPUs each, one of them lost; more jobs than were told of."""
    hosts = []
    for number in range(200):
        name = f"gpu-node-{number:03}.cluster.example.org"
        kinds = {"kind": "cuda", "type": "NVIDIA-H100", "memory_mib": 81_920, "cores": ()}
        devices = [replies.device(f"gpu-{number:03x}{each:03x}", name, **kinds) for each in range(8)]
        if number == 150:
            devices[3] = replies.device(
                f"gpu-{number:03x}003", name, **kinds, state="lost", healthy=False, note="lost: Xid 79"
            )
        tenants = {device.device_id: (JobId("1"), JobId("700")) for device in devices[4:]}
        more = {"state": HostState.SILENT} if number == 170 else {}
        hosts.append(replies.node(name, *devices, tenants=tenants, **more))
    running = [replies.job_view(str(number)) for number in range(1, 301)]
    waiting = [replies.waiting(str(number), "behind 7") for number in range(301, 501)]
    phases = {"running": 900, "queued": 3000, "held": 5, "done": 12_345, "failed": 678, "cancelled": 90}
    status = replies.status(jobs_by_phase=phases, hosts=200, devices=1600)
    decided = [
        wire.DecisionView(at_s=float(at), event="x", job_id=JobId("7"), what="place", reason="r" * 300)
        for at in range(20)
    ]
    return Moment(
        status=status,
        nodes=replies.nodes(*hosts),
        jobs=replies.jobs(*running, *waiting),
        decisions=wire.Decisions(request_id=0, decisions=tuple(decided), now_s=60.0, wall_s=60.0),
    )


def screen_of(moment: Moment, width: int, height: int) -> str:
    """The screen as it is before anybody has pressed a key."""
    lines = TopScreen(Answers(), moment, lambda question: Future()).lines(width, height)
    return "\n".join(line.plain for line in lines)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_page_stays_within_its_screen(moment: Moment, width: int, height: int) -> None:
    lines = screen_of(moment, width, height).split("\n")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width, max(lines, key=len)


def test_a_device_in_trouble_is_shown_first_and_the_others_are_counted(moment: Moment) -> None:
    text = screen_of(moment, 80, 24)
    lines = text.split("\n")
    first = lines[next(at for at, line in enumerate(lines) if line.startswith("DEVICE")) + 1]
    assert "/gpu-096003" in first and " lost " in first, "of a long name the device's end stays"
    title = re.search(r"Devices \(1600: .*", screen_of(moment, 200, 24))
    assert title is not None and "8 silent" in title.group() and "shared" in title.group()
    assert re.search(r", rows 1 to \d$", title.group())


def test_counts_are_the_clusters_and_not_those_of_a_bounded_list(moment: Moment) -> None:
    text = page(moment, 120)
    assert "On devices (900)" in text and "Waiting (3005)" in text
    assert "  and 600 more" in text and "  and 2805 more" in text
    assert "Jobs (900 on devices, 3005 waiting; the first 500 of them)" in screen_of(moment, 120, 40)
    assert "job 700" in page(moment, None), "a tenant that was not told of is no free device"


def test_room_that_one_section_does_not_need_goes_to_the_others(moment: Moment, replies: ModuleType) -> None:
    one = replies.node("laptop", *(replies.device(f"cpu{each}") for each in range(12)))
    small = moment._replace(
        nodes=replies.nodes(one), jobs=replies.jobs(), status=replies.status(jobs_by_phase={})
    )
    lines = screen_of(small, 80, 34).split("\n")
    assert sum("laptop/cpu" in line for line in lines) == 12
    assert sum("rrrrr" in line for line in lines) > 6, "what nobody needs shows what was decided"


@given(st.lists(st.integers(4, 60), min_size=1, max_size=4), st.integers(0, 80))
def test_lines_are_shared_out_fairly(wants: list[int], lines: int) -> None:
    given_ = lines_for(wants, lines)
    assert all(room <= want for room, want in zip(given_, wants, strict=True))
    assert sum(given_) <= lines
    if sum(wants) <= lines:
        assert given_ == wants
    for room, want in zip(given_, wants, strict=True):
        assert room == want or room + 1 >= max(given_), "who gets less than it wants gets as much as anybody"


def test_what_goes_into_a_pipe_is_whole(moment: Moment) -> None:
    text = page(moment, None)
    assert "…" not in text and "and 1" not in text
    assert text.count("/gpu-") >= 1600 and "r" * 300 in text


def test_the_state_is_a_column_only_where_something_is_wrong(moment: Moment, replies: ModuleType) -> None:
    assert re.search(r"^DEVICE +STATE", page(moment, 80), re.MULTILINE)
    fine = replies.nodes(replies.node("laptop", replies.device()))
    assert "STATE" not in page(moment._replace(nodes=fine), 80).split("On devices")[0]


def test_a_note_stands_beside_the_jobs(moment: Moment, replies: ModuleType) -> None:
    note = "in use by pid 4711 of bob"
    device = replies.device("gpu-1", "h", kind="cuda", type="T", cores=(), healthy=False, note=note)
    node = replies.node("h", device, tenants={"h/gpu-1": (JobId("1"),)})
    (line,) = [
        line
        for line in page(moment._replace(nodes=replies.nodes(node)), 300).split("\n")
        if line.startswith("h/gpu-1")
    ]
    assert line.split()[1] == "out" and line.endswith(note)


def test_a_legend_stands_last_where_there_is_room(moment: Moment) -> None:
    words = "SMACT: multiprocessors (cores) at work; "
    whole = page(moment, None).splitlines()
    assert words in whole[-1] and whole[-1].endswith("-: not measured")
    high = screen_of(moment, 120, 40).splitlines()
    assert high[-2].endswith("-: not measured") and words in " ".join(high)
    assert "not measured" not in screen_of(moment, 120, 24), "on a low screen rows come first"


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (None, ""),
        (0.0, "········"),
        (0.5, "████····"),
        (0.07, "▌·······"),
        (1.0, "████████"),
        (1.7, "████████"),
    ],
)
def test_a_share_is_a_bar(share: float | None, shown: str) -> None:
    assert bar(share) == shown


def test_bars_are_for_screens_alone(moment: Moment) -> None:
    assert "BUSY" in page(moment, 200) and "BUSY" in screen_of(moment, 200, 40)
    assert "BUSY" not in page(moment, None).replace("BUSY:", "")


def test_the_end_of_a_log_is_what_a_terminal_would_show() -> None:
    data = b"one\nstep 1\rstep 2\rstep 3\n\x1b[2Jtwo \x1b[31mred\x1b[0m\n"
    assert last_words(data, 2) == "step 3\ntwo \x1b[31mred\x1b[0m\x1b[0m"


def test_without_a_terminal_there_is_no_colour(moment: Moment) -> None:
    assert "\x1b" not in page(moment, 80)


@given(st.text(st.characters(categories=["L"]), max_size=40), st.integers(2, 40))
def test_what_is_cut_inside_keeps_both_ends(text: str, limit: int) -> None:
    cut = tables.cut_inside(text, limit)
    wide = tables.columns_of
    if wide(text) > limit:
        head, tail = cut.split("…")
        # Where a character takes two columns one may stay empty at each end.
        spare = 0 if wide(text) == len(text) else 2
        assert text.startswith(head) and text.endswith(tail)
        assert limit - spare <= wide(cut) <= limit
        assert abs(2 * (wide(head) - wide(tail)) - 1) <= 1 + 2 * spare
    else:
        assert cut == text


def test_the_devices_of_a_job_are_told_apart_on_hosts_with_long_names(
    moment: Moment, replies: ModuleType
) -> None:
    name = "gpu-node-017.cluster.example.org/gpu-1a2b3c"
    jobs = replies.jobs(replies.job_view("1", devices=(name,)))
    assert "/gpu-1a2b3c" in page(moment._replace(jobs=jobs), 120).split("On devices")[1]


class Answers:
    """Looks as a test wants them: a moment, or what is raised."""

    def __init__(self, *looks: Moment | BaseException) -> None:
        self._looks = list(looks)

    def look(self) -> Moment:
        found = self._looks.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    def show(self, job_id: JobId, width: int) -> str:
        raise AssertionError("nobody has opened a job")

    def log(self, job_id: JobId) -> str:
        raise AssertionError("nobody has opened a log")

    def change(self, verb: JobVerb, job_id: JobId) -> str:
        raise AssertionError("nobody has changed a job")


def test_the_screen_outlives_the_controller_and_says_that_it_is_old(
    replies: ModuleType, moment: Moment
) -> None:
    """Keys do without a terminal to type on: the looks end it."""
    first = moment._replace(nodes=replies.nodes(replies.node("laptop", replies.device())))
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24)
    answers = Answers(first, Unreachable("gone"), Refusal(FAILURE), first, KeyboardInterrupt())
    with open(os.devnull) as none, pytest.raises(KeyboardInterrupt):
        top_live.run(answers, first, 0.0, console, none)
    shown = [text for text in out.getvalue().split("\x1b[H") if "cotenant" in text]
    assert "no answer" not in shown[0] and "no answer" not in shown[-1]
    assert any("no answer from the controller for 0s; this is old" in text for text in shown)
    assert any("not yours" in text for text in shown)


def test_it_looks_again_and_again_until_it_is_interrupted(
    controller: Any, replies: ModuleType, moment: Moment
) -> None:
    """The first look is the client's own; a stand-in that answers no second one ends it."""
    for kind, answer in (
        (wire.GetStatus, replies.status()), (wire.ListNodes, moment.nodes), (wire.ListJobs, replies.jobs()),
        (wire.GetPolicy, replies.policy()),
    ):  # fmt: skip
        controller.says(kind, answer)
    asked = []

    def decisions(request: wire.GetDecisions) -> wire.Decisions:
        asked.append(request)
        if len(asked) > 1:
            os.kill(os.getpid(), signal.SIGINT)
        return moment.decisions

    controller.says(wire.GetDecisions, decisions)
    with Client(controller.endpoint, None, timeout_s=20) as client, pytest.raises(KeyboardInterrupt):
        top.live(client, 0.01)
    assert len(asked) > 1


def test_json_lines_go_on_over_a_silence(
    replies: ModuleType,
    moment: Moment,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    node = replies.node("h", replies.device("gpu-1", "h", kind="cuda", type="T", cores=()))
    one = moment._replace(nodes=replies.nodes(node), jobs=replies.jobs())
    looks: list[Any] = [Unreachable("gone"), one, KeyboardInterrupt()]

    def look() -> Moment:
        found = looks.pop(0)
        if isinstance(found, BaseException):
            raise found
        assert isinstance(found, Moment)
        return found

    with pytest.raises(KeyboardInterrupt):
        top.stream(one, 0.0, look)
    out, err = capsysbinary.readouterr()
    lines = [json.loads(line) for line in out.decode().splitlines()]
    assert [(line["schema"], line["device"], line["state"]) for line in lines] == [
        ("device/1", "h/gpu-1", "ok")
    ] * 2
    assert all(line["now"].endswith("Z") for line in lines)
    assert err.decode() == "no lines for now: gone\n"


LAB = {"dgx-h100": (8, "NVIDIA-H100-80GB-HBM3"), "a100-1": (8, "NVIDIA-A100-SXM4-40GB"),
       "v100-lab": (8, "Tesla-V100-SXM2-16GB"), "box": (8, "NVIDIA-GeForce-RTX-4090")}  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(80, 50), (200, 50)])
def test_a_lab_of_32_gpus_fits_and_its_dead_agent_is_seen(
    moment: Moment, replies: ModuleType, width: int, height: int
) -> None:
    hosts = []
    for name, (count, kind) in LAB.items():
        devices = [
            replies.device(f"gpu-{at:08x}", name, kind="cuda", type=kind, memory_mib=81920, cores=())
            for at in range(count)
        ]
        read = {
            each.device_id: replies.reading("gpm", {"SMACT": 0.5, "DRAMA": 0.25, "memory_mib": 1000.0})
            for each in devices
        }
        more = {"state": HostState.SILENT, "heartbeat_age_s": 95.0} if name == "box" else {}
        hosts.append(replies.node(name, *devices, readings=read, **more))
    lab = moment._replace(nodes=replies.nodes(*hosts), jobs=replies.jobs(), status=replies.status(hosts=4))
    text = screen_of(lab, width, height)
    lines = text.split("\n")
    assert len(lines) <= height and max(map(len, lines)) <= width
    assert sum("/gpu-" in line for line in lines) == 32
    dead = [line for line in lines if line.startswith("box/")]
    assert len(dead) == 8 and all(" silent " in line for line in dead)
    assert ("SMACT" in text) and ("gpm" in text) == (width == 200), "sources stand where there is room"
    small = screen_of(lab, 80, 20)
    assert "box/gpu-00000000" in small and small.count("box/") == 1, "one line for what is gone"
    assert "dgx-h100/" in small and "8 silent" in small, "and those that work are still seen"
