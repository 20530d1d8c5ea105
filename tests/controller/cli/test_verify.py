"""`checkpoint verify`: two runs of a command, of which one is stopped and resumed again and again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.controller.cli.jobs import verify
from cotenant.controller.cli.jobs.attempt import RunProgress
from cotenant.controller.cli.jobs.scratch import ENTRIES_MAX, Scratch

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant

RANK = """
import json, os, select, socket, sys, time
from pathlib import Path
kind, path = sys.argv[1], os.environ["COTENANT_SOCKET"]
root, attempt = Path(os.environ["COTENANT_CHECKPOINT_ROOT"]), int(os.environ["COTENANT_ATTEMPT"])
place = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
assert place == (["0", "1", "0"] if kind == "gang" else [None] * 3), "whatever the shell has left there"
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
inbox.bind(os.path.join(os.path.dirname(path), "rank-0.sock"))
saved = sorted(root.glob("a*/manifest.json"), key=os.path.getmtime)
state = json.loads(saved[-1].read_text())["state"] if saved and kind != "forgets" else {"step": 0, "sum": 0}
began = state["step"]
asked = os.path.exists(os.path.join(os.path.dirname(path), "pace"))
to_prove = 2 if saved and kind != "unproven" else 0

def say(m, **fields):
    out.sendto(json.dumps({"v": 1, "m": m, "rank": 0, **fields}).encode(), path)

def greet(resumable, **more):
    say("hello", world_size=1, resumable=resumable, accumulates=False, step=began, **more)

def count():
    state["step"] += 1
    state["sum"] += state["step"] + (attempt == 3 and kind == "drifts") + os.getpid() * (kind == "unseeded")

if kind == "crashes" and attempt == 2:
    sys.exit(1)
greet(False, resumable_note="it carries best" if kind == "cannot" else "not yet")
say("length", total=20, note="loops seen", loops=[2, 10])
if kind == "loses" and attempt == 3:
    say("failed", what="resume", error="`model.beta` was 0.36, now 0.03")
    sys.exit(1)
if kind != "cannot":
    greet(True)
print("training")
stop = None
ends = {"short": 1, "fewer": 20 if attempt == 1 else 13}
while state["step"] < ends.get(kind, 20):
    while asked and stop is None and select.select([inbox], [], [], 20.0)[0]:
        word = json.loads(inbox.recv(4096))
        if word["phase"] == "propose":
            accepts = word["step"] > state["step"] and not (kind == "refuses" and word["step"] % 10 == 0)
            say("confirm", proposal=word["proposal"], step=state["step"], ok=accepts and kind != "never")
        stop = word["step"] if word["phase"] == "commit" else None
        asked = word["phase"] != "withdraw" or word["step"] < 15
    count()
    say("step", step=state["step"], count=1, elapsed_s=0.1, s=1, loss=None)
    if kind == "later" and state["step"] == 15:
        greet(False, resumable_note="line 7: it opens a database")
    if to_prove:
        to_prove -= 1
        if not to_prove:
            greet(True, proven=2)
    if stop == state["step"]:
        folder = root / f"a{attempt}-s{stop}"
        folder.mkdir()
        manifest = {"parameters_sha256": str(state["sum"]), "exact": True, "note": "", "state": state}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        count()
        shown = {"model.beta": state["sum"], "model.alpha": 1}
        (folder / "proof-0.json").write_text(json.dumps({"turns": [[shown, {}], [{}, {}]]}))
        say("stopped", step=stop)
        sys.exit(0)
if kind != "silent":
    Path("out.txt").write_text(str(state["sum"]))
if kind == "clocks":
    Path(f"events.{time.time_ns()}").write_text("")
    Path("log.txt").write_text(str(time.time_ns()))
sys.exit(3 if kind == "exits" and attempt > 1 else 0)
"""


@pytest.fixture
def command(at_home: Path) -> list[str]:
    script = at_home / "rank.py"
    script.write_text(RANK)
    return ["checkpoint", "verify", "--json", "--", sys.executable, "-S", str(script)]


def stops_of(told: dict[str, Any]) -> list[int]:
    return [stop["step"] for stop in told["stops"]]


EARLY = "stopped after step 3, in epoch 1"
AT_END = "stopped after step 10, at the end of epoch 1"
ABOVE = "its own words stand above"
LATE = "stopped after step 15, in epoch 2"


@pytest.mark.parametrize(
    ("kind", "reason", "stops"),
    [
        ("plain", "", [3, 10, 15]),
        ("gang", "", [3, 10, 15]),
        ("clocks", "", [3, 10, 15]),
        ("silent", "", [3, 10, 15]),
        ("refuses", "", [3, 15]),
        ("unseeded", verify.UNSEEDED, [3, 10, 15]),
        ("drifts", "files differ at the end: out.txt; after step 15: `model.beta`", [3, 10, 15]),
        ("fewer", "it made 13 steps, and 20 undisturbed", [3, 10]),
        (
            "crashes",
            f"{EARLY}, and resumed, it ended with exit code 1 before its first step; {ABOVE}",
            [3],
        ),
        ("forgets", f"{EARLY}, it resumed at step 0", [3]),
        (
            "loses",
            f"{AT_END}, it did not go on as it was left: `model.beta` was 0.36, now 0.03",
            [3, 10],
        ),
        (
            "unproven",
            f"{EARLY}, it resumed, and did not show that its steps are the same",
            [3],
        ),
        (
            "exits",
            f"{LATE}, and resumed, it ended with exit code 3 after step 20; its own words stand above",
            [3, 10, 15],
        ),
    ],
)
def test_the_verdict_is_what_the_runs_showed(
    cotenant: Cotenant,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    reason: str,
    stops: list[int],
) -> None:
    if kind == "gang":
        meets = "socket.create_server((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))).close()"
        Path(command[-1]).write_text(RANK.replace("place =", f"os.environ['RANK']\n{meets}\nplace =", 1))
    monkeypatch.setenv("WORLD_SIZE", "4")
    result = cotenant(*command, kind)
    told = json.loads(result.out)
    assert (told["schema"], told["steps"]) == ("checkpoint-verify/2", 20)
    assert (told["reason"], told["ok"], stops_of(told)) == (reason, not reason, stops)
    assert result.code == bool(reason)
    assert told["left_out"] == {
        "clocks": [each for each in told["left_out"] if each.startswith("events.")] + ["log.txt"],
        "unseeded": ["out.txt"],
    }.get(kind, [])
    compared = ["parameters after step 15"] if kind == "silent" else ["out.txt"]
    if not reason:
        assert told["compared"] == ["exit code 0", *compared]


def test_stops_are_told_with_their_place_and_proof(cotenant: Cotenant, command: list[str]) -> None:
    told = json.loads(cotenant(*command, "plain").out)
    assert told["stops"] == [
        {"step": 3, "place": "in epoch 1", "epoch_end": False, "proven_steps": 2},
        {"step": 10, "place": "at the end of epoch 1", "epoch_end": True, "proven_steps": 2},
        {"step": 15, "place": "in epoch 2", "epoch_end": False, "proven_steps": 2},
    ]
    command.remove("--json")
    screen = cotenant(*command, "refuses").out
    assert "resumable: exit code 0 and out.txt are those of a run that nobody stopped" in screen
    assert "stopped after step 15 of 20, in epoch 2: proven over 2 steps" in screen
    assert "not tried: no stop at an epoch's end: none was accepted there" in screen
    assert "not tried: a stop after step 10: it accepts no stop there" in screen


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("plain", ""),
        ("drifts", "parameters differ after step 14: `model.beta`"),
        ("fewer", "it made 13 steps, and 14 undisturbed"),
        ("unseeded", verify.UNSEEDED),
    ],
)
def test_with_steps_only_these_are_made_and_compared(
    cotenant: Cotenant, command: list[str], kind: str, reason: str
) -> None:
    command[2:2] = ["--steps", "14"]
    told = json.loads(cotenant(*command, kind).out)
    assert (told["ok"], told["steps"], told["reason"]) == (not reason, 14, reason)
    assert stops_of(told) == [3, 10]
    assert "what the command does after step 14: --steps 14" in told["not_reached"]
    assert told["compared"] == ([] if reason else ["parameters after step 14"])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("cannot", "error[refused]: this command cannot be resumed: it carries best; see docs/zero-code.md"),
        ("later", "this command cannot be resumed from step 15 on: line 7: it opens a database"),
        ("never", "the command could not be stopped after step 3: it accepts no stop there; after step 10"),
        ("short", "error[refused]: the command makes one step, and is over"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_the_reason(
    cotenant: Cotenant, command: list[str], kind: str, said: str
) -> None:
    command.remove("--json")
    result = cotenant(*command, kind)
    assert (result.code, result.out) == (1, "")
    assert said in result.err


def test_how_far_it_is_is_told_after_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = [0.0]
    progress = RunProgress("run 2 of 2, to its end", clock=lambda: now_s[0])
    for now_s[0], step in ((1.9, 0), (2.0, 0), (6.9, 7), (7.0, 8), (9.0, 30)):
        progress.tell(step, 40)
    assert capsys.readouterr().err.splitlines() == [
        "verify: run 2 of 2, to its end: starting, 2s",
        "verify: run 2 of 2, to its end: step 8 of 40, 7s",
    ]


WRITES = """
import os
from pathlib import Path
snapshot = Path("snapshot.pt")
assert Path("data/rows").read_text() == "rows" and Path("../beside").read_text() == "beside"
assert snapshot.read_text() == "mine" or os.environ["COTENANT_ATTEMPT"] != "1", snapshot.read_text()
snapshot.write_text("the trial's")
Path("data/new").write_text("")
"""


def test_it_runs_in_copies_of_the_folder(
    cotenant: Cotenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would write over the user's own snapshot, and a script that loads its own would go on from what
    another run has left."""
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    (tmp_path / "beside").write_text("beside")
    (work / "data" / "rows").write_text("rows")
    (work / "snapshot.pt").write_text("mine")
    (work / "train.py").write_text(WRITES + RANK)
    monkeypatch.chdir(work)
    result = cotenant("checkpoint", "verify", "--", sys.executable, "-S", "train.py", "plain")
    assert result.code == 0, result.err
    assert (work / "snapshot.pt").read_text() == "mine"
    assert sorted(path.name for path in work.rglob("*")) == ["data", "rows", "snapshot.pt", "train.py"]


def test_what_is_too_large_to_copy_is_linked_and_told(tmp_path: Path) -> None:
    work, place = tmp_path / "work", tmp_path / "place"
    (work / "many").mkdir(parents=True)
    (work / ".git").mkdir()
    place.mkdir()
    for number in range(ENTRIES_MAX + 1):
        (work / "many" / str(number)).touch()
    (work / "large").write_bytes(b"x" * (1 << 20))
    (work / "small").write_text("s")
    scratch = Scratch(work, place, copied_mib_max=0)
    first = scratch.make()
    assert sorted(scratch.linked) == ["large", "many", "small"]
    assert (first / "many").resolve() == work / "many"
    scratch = Scratch(work, place, copied_mib_max=2)
    second = scratch.make()
    assert scratch.linked == ["many"]
    assert not (second / "large").is_symlink()


def test_a_command_that_is_not_there_is_named(cotenant: Cotenant) -> None:
    result = cotenant("checkpoint", "verify", "--", "/nowhere/python", "train.py")
    assert (result.code, result.out) == (1, "")
    assert "error[failed]: /nowhere/python: No such file or directory" in result.err
    assert cotenant("checkpoint", "verify").code == 2
