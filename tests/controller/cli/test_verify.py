"""`checkpoint verify`: three runs of a command, of which one is stopped and resumed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cotenant.controller.cli.jobs import verify
from cotenant.controller.cli.jobs.verify import ENTRIES_MAX, Scratch

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant

RANK = """
import json, os, select, socket, sys
from pathlib import Path
kind, path = sys.argv[1], os.environ["COTENANT_SOCKET"]
root, attempt = Path(os.environ["COTENANT_CHECKPOINT_ROOT"]), int(os.environ["COTENANT_ATTEMPT"])
place = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
assert place == (["0", "1", "0"] if kind == "gang" else [None] * 3), "whatever the shell has left there"
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
inbox.bind(os.path.join(os.path.dirname(path), "rank-0.sock"))
saved = sorted(root.glob("a1-s*/manifest.json"))
state = json.loads(saved[0].read_text())["state"] if saved and kind != "forgets" else {"step": 0, "sum": 0}

def say(m, **fields):
    out.sendto(json.dumps({"v": 1, "m": m, "rank": 0, **fields}).encode(), path)

note = {"resumable_note": "it carries best"} if kind == "cannot" else {}
say("hello", world_size=1, resumable=kind != "cannot", accumulates=False, step=state["step"], **note)
print("training")
stop = None
while state["step"] < (3 if kind == "short" else 10**9):
    if stop is None or kind == "short":
        while select.select([inbox], [], [], 10.0 if stop is None and kind != "short" else 0)[0]:
            word = json.loads(inbox.recv(4096))
            if word["phase"] == "propose":
                say("confirm", proposal=word["proposal"], step=state["step"], ok=kind != "short")
            if word["phase"] == "commit":
                stop = word["step"]
                break
    state["step"] += 1
    state["sum"] += state["step"] + (attempt == 2 and kind == "drifts") + os.getpid() * (kind == "unseeded")
    if stop == state["step"]:
        folder = root / f"a{attempt}-s{stop}"
        folder.mkdir()
        manifest = {"parameters_sha256": str(state["sum"]), "exact": True, "note": "", "state": state}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        say("stopped", step=stop)
        sys.exit(0)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    return ["checkpoint", "verify", "--steps", "9", "--json", "--", sys.executable, "-S", str(script)]


@pytest.mark.parametrize(
    ("kind", "code", "expected"),
    [
        ("plain", 0, {"ok": True, "steps": 9, "stopped_at": 4, "exact": True, "reason": ""}),
        ("gang", 0, {"ok": True, "steps": 9, "stopped_at": 4}),
        ("unseeded", 1, {"ok": False, "steps": 9, "stopped_at": 4, "reason": verify.UNSEEDED}),
        ("drifts", 1, {"ok": False, "steps": 9, "reason": "parameters differ after step 9"}),
        ("forgets", 1, {"ok": False, "stopped_at": 4, "reason": "it resumed at step 0"}),
    ],
)
def test_the_verdict_is_what_the_runs_showed(
    cotenant: Cotenant,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    code: int,
    expected: dict[str, object],
) -> None:
    if kind == "gang":
        meets = "socket.create_server((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))).close()"
        Path(command[-1]).write_text(RANK.replace("place =", f"os.environ['RANK']\n{meets}\nplace =", 1))
    monkeypatch.setenv("WORLD_SIZE", "4")
    result = cotenant(*command, kind)
    assert result.code == code, result.err
    told = json.loads(result.out)
    assert told["schema"] == "checkpoint-verify/1"
    assert {key: told[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("cannot", "error[refused]: this command cannot be resumed: it carries best; see docs/zero-code.md"),
        ("short", "give a smaller --steps"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_the_reason(
    cotenant: Cotenant, command: list[str], kind: str, said: str
) -> None:
    result = cotenant(*command, kind)
    assert result.code == 1
    assert said in result.err


WRITES = """
import os
from pathlib import Path
snapshot = Path("snapshot.pt")
assert Path("data/rows").read_text() == "rows" and Path("../beside").read_text() == "beside"
assert snapshot.read_text() == "mine" or os.environ["COTENANT_ATTEMPT"] == "2", snapshot.read_text()
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
    result = cotenant("checkpoint", "verify", "--steps", "9", "--", sys.executable, "-S", "train.py", "plain")
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
    first = scratch.make("first")
    assert sorted(scratch.linked) == ["large", "many", "small"]
    assert (first / "many").resolve() == work / "many"
    scratch = Scratch(work, place, copied_mib_max=2)
    second = scratch.make("second")
    assert scratch.linked == ["many"]
    assert not (second / "large").is_symlink()


def test_a_command_that_is_not_there_is_named(cotenant: Cotenant) -> None:
    result = cotenant("checkpoint", "verify", "--", "/nowhere/python", "train.py")
    assert (result.code, result.out) == (1, "")
    assert "error[failed]: /nowhere/python: No such file or directory" in result.err
    assert cotenant("checkpoint", "verify").code == 2
