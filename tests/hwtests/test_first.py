"""The first nine minutes on a GPU: its table, its verdicts, and the whole script against stand-ins.

Rule: stand-ins show that every question is asked, ends and is judged. No verdict from here means anything.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hwtests.first import install
from hwtests.first.ask import WHERE
from hwtests.first.claims import CLAIMS
from hwtests.first.notes import TEXT_CHARS_MAX, Notes, read
from hwtests.first.page import write_page
from hwtests.first.questions import (
    BY_NAME,
    QUESTION_S_MAX,
    QUESTIONS,
    TOTAL_S_MAX,
    Asked,
    refusals,
    why_not,
)
from hwtests.first.verdicts import judge
from tests.agent.mock_gpus import build
from tests.building.limits import within_s

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "stand_in" / "libcuda.c"
STUB = ROOT / "tests" / "mps" / "stub"
UUID = "GPU-1a2b3c4d-0000-0000-0000-000000000000"
CONTRACT = [each.name for each in QUESTIONS if "product" not in each.needs]
"""What needs no cotenant; the rest is rehearsed in tests/live/test_gpu_first.py."""
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
"""That other accounts may run, too."""
ALL_S = within_s(300.0)
FOLDER_MIB = 4.0


# --- The table -----------------------------------------------------------------------------------------


def test_no_question_has_more_than_forty_seconds_and_all_have_nine_minutes() -> None:
    assert max(each.limit_s for each in QUESTIONS) <= QUESTION_S_MAX == 40.0
    assert sum(each.limit_s for each in QUESTIONS) <= TOTAL_S_MAX == 540.0
    assert set(WHERE) == set(BY_NAME), "each is asked by one function"
    for where in WHERE.values():
        module, _, function = where.partition(".")
        assert callable(getattr(importlib.import_module(f"hwtests.first.{module}"), function))
    assert {claim.question for claim in CLAIMS} >= set(BY_NAME) - {"install"}, "each decides something"
    assert [each.name for each in QUESTIONS if "faults" in each.needs] == [QUESTIONS[-1].name]


def over(**facts: object) -> Asked:
    return Asked("over", facts=facts)


REFUSED: tuple[tuple[str, dict[str, Asked], str], ...] = (
    ("mps-up", {"machine": Asked("over", facts={"no mps": "not on PATH"})}, "mps: not on PATH"),
    ("cuda", {"machine": Asked("over", facts={"no mps": "not on PATH"})}, ""),
    ("share", {"cuda": Asked("over", facts={"no gpu": "error 802"})}, "gpu: error 802"),
    ("share", {"install": Asked("failed", "no venv")}, "product: the kit did not install: no venv"),
    ("mps-stray", {"install": Asked("failed", "no venv")}, ""),
    ("mps-floor", {"mps-up": Asked("over", facts={"no mps": "none"})}, "mps: none"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "asked", "why"), REFUSED)
def test_what_a_refusal_has_decided_is_not_asked(name: str, asked: dict[str, Asked], why: str) -> None:
    assert why_not(BY_NAME[name], refusals(asked)) == why


# --- Verdicts ------------------------------------------------------------------------------------------

HASH, OTHER = "a" * 64, "b" * 64
ALONE = "kernels a second alone"
SHARE = "open folder: uid 1000 says get_default_active_thread_percentage"
OPENS = {"opened": True, "is client": False}
VERDICTS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("cuda", "NVML knows our", {"NVML knows our pid": False}, "refuted"),
    ("mps-up", "Small kernels", {ALONE: 900, "kernels a second of two": [880, 890]}, "holds"),
    ("mps-up", "Small kernels", {ALONE: 900, "kernels a second of two": [450, 440]}, "refuted"),
    ("mps-limits", "`0=2048M` is", {"by number": {"held_mib": 1728, "refused": 2}}, "holds"),
    ("mps-limits", "`0=2048M` is", {"by number": {"held_mib": 3072, "refused": 0}}, "refuted"),
    ("mps-limits", "`0=2048M,3", {"two numbers": {"error": "cuInit: 46"}}, "refuted"),
    ("mps-floor", "Too small", {"256 MiB": {"code": 46}, "512 MiB": {"held_mib": 192}}, "refuted"),
    ("mps-floor", "Too small", {"256 MiB": {"code": 2}}, "holds"),
    ("mps-terminate", "SIGKILL", {"SIGKILL: the neighbour after, kernels a second": 0.0}, "refuted"),
    ("mps-terminate", "Memory", {"SIGKILL: memory is back after, s": 0.2}, "holds"),
    ("mps-terminate", "Memory", {"SIGKILL: memory is back after, s": None}, "refuted"),
    ("mps-uid", "In an open", {SHARE: "10.0"}, "holds"),
    ("mps-uid", "In an open", {SHARE: "[PermissionError: no program]"}, "not measured"),
    ("mps-stray", "A daemon", {"who never asked": {"is client": False, "code": "waits"}}, "holds"),
    ("mps-stray", "A pipe", {"fenced": OPENS}, "holds"),
    ("mps-stray", "A pipe", {"fenced": OPENS | {"is client": True}}, "refuted"),
    ("mps-stray", "A pipe", {"not measured": "it is there already"}, "not measured"),
    ("share", "Two jobs", {"refuted": "job 1 failed"}, "refuted"),
    ("bits", "The resumed", {"steps": 9, "resumed": HASH, "whole": OTHER, "with 50 %": HASH}, "holds"),
    ("bits", "The resumed", {"steps": 9, "resumed": HASH, "whole": HASH, "with 50 %": OTHER}, "refuted"),
    ("bits", "The resumed", {"steps": 9, "resumed": HASH, "whole device": "it did not end"}, "not measured"),
    ("turns", "GPM", {"alone: matmul, counters": {"gpm": "not permitted"}}, "refuted"),
    ("warm", "A forked", {"start 1": {"launch": "cold", "why": "a .pth file runs code"}}, "not measured"),
    ("warm", "A forked", {"start 1": {"launch": "cold", "sha256": HASH},
                          "start 2": {"launch": "warm", "sha256": OTHER}}, "refuted"),
    ("torch-mps", "Half of", {"100 %": {"sha256": HASH, "multiprocessors": 132},
                              "50 %": {"sha256": HASH, "multiprocessors": 66}}, "holds"),
)  # fmt: skip


@pytest.mark.parametrize(("question", "says", "facts", "word"), VERDICTS)
def test_a_claim_is_judged_from_its_facts(question: str, says: str, facts: dict[str, Any], word: str) -> None:
    (claim,) = (each for each in CLAIMS if each.question == question and each.says.startswith(says))
    verdict = judge(claim, {question: Asked("cut off", "after 40 s", facts=facts)})
    assert (verdict.word, bool(verdict.seen)) == (word, True)


def test_the_page_says_first_what_was_there_and_why_the_rest_was_not_measured() -> None:
    machine = Asked("over", facts={"no gpu": "NVML does not answer"})
    text = write_page({"machine": machine}, "cuda")
    assert text.split("\n\n")[1].startswith("**No GPU answered: NVML does not answer.**")
    text = write_page({"machine": over(uuid=UUID), "cuda": Asked("failed", "Traceback | of a kind")}, "cuda")
    assert text.split("\n\n")[1].startswith(f"On {UUID}.") and "Traceback / of a kind" in text
    assert "A rehearsal" in write_page({"machine": over(uuid=UUID)}, "cpu")


def test_facts_of_a_question_that_was_killed_are_kept(tmp_path: Path) -> None:
    note = Notes(tmp_path / "x.jsonl")
    note("first", 1)
    note("long", "x" * 3 * TEXT_CHARS_MAX)
    note.close()
    with (tmp_path / "x.jsonl").open("a") as file:
        file.write('{"fact": "torn", "val')
    facts = read(tmp_path / "x.jsonl")
    assert facts["first"] == 1 and len(facts["long"]) < 2 * TEXT_CHARS_MAX and "torn" not in facts


# --- Installing ----------------------------------------------------------------------------------------


def test_wheels_are_chosen_for_this_python() -> None:
    names = ["a-1-cp311-cp311-linux.whl", "a-1-cp312-cp312-linux.whl", "b-1-py3-none-any.whl",
             "c-1-cp38-abi3-linux.whl", "d-1-cp313-abi3-linux.whl"]  # fmt: skip
    assert install.choose_wheels(names, (3, 12)) == [names[1], names[2], names[3]]


def test_a_machines_packages_are_linked_and_its_pth_files_are_not(tmp_path: Path) -> None:
    site, machine = tmp_path / "site", tmp_path / "machine"
    for path in (site / "ours", site / "ours-2.dist-info", machine / "torch", machine / "Ours-1.dist-info"):
        path.mkdir(parents=True)
    (machine / "hook.pth").write_text("import os")
    (machine / "single.py").touch()
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.writestr("pure/__init__.py", "")
        wheel.writestr("pure-1.data/purelib/other.py", "")
        wheel.writestr("pure-1.data/scripts/run", "")
    install.unpack(tmp_path / "w.whl", site)
    install.link_machine(site, [machine])
    assert sorted(path.name for path in site.iterdir()) == [
        "other.py", "ours", "ours-2.dist-info", "pure", "single.py", "torch",
    ]  # fmt: skip


@pytest.mark.skipif(sys.version_info[:2] not in install.PYTHONS, reason="a Python that no kit has wheels for")
def test_a_kit_installs_without_pip_and_runs_its_commands(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "tool-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tool.py", "def main():\n    import sys\n    print(sys.prefix)\n")
        wheel.writestr("tool-1.dist-info/entry_points.txt", "[console_scripts]\ntool = tool:main\n")
    python = install.install(tmp_path)
    done = subprocess.run([python.with_name("tool")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / ".venv")
    assert install.install(tmp_path) == python, "once"


# --- The whole script, against stand-ins ---------------------------------------------------------------


class World:
    """A machine with one GPU that is not there, open to other accounts."""

    def __init__(self, base: Path) -> None:
        self.base = base
        base.chmod(0o755)
        for name in ("lib", "bin", "claims", "stub"):
            (base / name).mkdir()
        (base / "claims").chmod(0o777)
        build(base / "lib")
        words = ("cc", "-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libcuda.so.1")
        subprocess.run([*words, "-o", str(base / "lib" / "libcuda.so.1"), str(STAND_IN)], check=True)
        for path in STUB.glob("*.py"):
            shutil.copy(path, base / "stub")
        for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
            program = base / "bin" / name
            program.write_text(
                f"#!{PYTHON} -IS\nimport sys\nsys.path.insert(0, {str(base / 'stub')!r})\n"
                "import control\nsys.exit(control.main())\n"
            )
            program.chmod(0o755)
        facts = (f"gpu 0 uuid {UUID}", "gpu 0 total 143771", f"claims {base / 'claims'}")
        (base / "facts").write_text("".join(f"{fact}\n" for fact in facts))
        (base / "world.json").write_text(json.dumps({"gpu": True, "claims": str(base / "claims")}))

    def living(self) -> list[str]:
        """Programs that have the GPU open."""
        claims = [path.name for path in (self.base / "claims").iterdir()]
        return [name for name in claims if Path("/proc", name.split(".")[1]).exists()]

    def start(self, out: Path, *words: str) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.base / "lib"),
            "PATH": f"{self.base / 'bin'}:{os.environ['PATH']}",
            "COTENANT_MOCK_NVML": str(self.base / "facts"),
            "MPS_STUB_WORLD": str(self.base / "world.json"),
            "STAND_IN_PIPE": str(self.base / "default"),
            "CUDA_VISIBLE_DEVICES": "0",
        }
        command = [sys.executable, "-m", "hwtests.first.run", "--out", str(out)]
        command += ["--default-pipe", str(self.base / "default"), *words]
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)

    def run(self, out: Path, *words: str) -> str:
        with self.start(out, *words) as script:
            said, _ = script.communicate(timeout=ALL_S)
        assert script.returncode == 0, said
        return said


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="first-", dir="/tmp"))
    try:
        yield World(folder)
    finally:
        shutil.rmtree(folder)


def results(out: Path) -> Mapping[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((out / "results.json").read_text())
    return found


def test_every_question_of_the_contract_is_answered_or_says_why_not(world: World, tmp_path: Path) -> None:
    world.run(tmp_path, "--only", ",".join(CONTRACT), "--allow-faults")
    found = results(tmp_path)
    assert list(found) == CONTRACT
    left_out = {name: one["why"] for name, one in found.items() if one["state"] == "not asked"}
    assert left_out == ({} if os.getuid() == 0 else {"mps-uid": left_out.get("mps-uid")})
    assert [name for name, one in found.items() if one["state"] == "failed"] == []
    asked = {name: Asked(**one) for name, one in found.items()}
    there = [claim for claim in CLAIMS if claim.question in asked]
    silent = {claim.question for claim in there if judge(claim, asked).word == "not measured"}
    assert silent == set(left_out), "each claim has its facts"
    assert found["mps-stray"]["facts"]["who never asked"]["is client"] is True
    assert found["mps-stray"]["facts"]["fenced"]["is client"] is False
    assert found["mps-floor"]["facts"]["256 MiB"]["code"] == 46
    assert "719" in found["fault"]["facts"]["MPS: the neighbour meets"]
    assert not (world.base / "default").exists() and world.living() == []
    size_mib = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) / 2**20
    assert size_mib < FOLDER_MIB


def test_a_script_that_is_killed_goes_on_and_repeats_nothing(world: World, tmp_path: Path) -> None:
    words = ("--only", "machine,cuda,mps-up,mps-limits")
    script = world.start(tmp_path, *words)
    assert script.stdout is not None
    for line in script.stdout:
        if "cuda: over" in line:
            script.send_signal(signal.SIGKILL)
            break
    script.wait()
    script.stdout.close()
    kept = results(tmp_path)
    assert list(kept) == ["machine", "cuda"] and "| cuda |" in (tmp_path / "page.md").read_text()
    said = world.run(tmp_path, *words)
    assert "machine: over before" in said and "cuda: over before" in said
    found = results(tmp_path)
    assert list(found) == ["machine", "cuda", "mps-up", "mps-limits"]
    assert {name: found[name] for name in kept} == kept
    assert {one["state"] for one in found.values()} == {"over"}


def test_without_time_nothing_is_begun_and_a_question_that_took_the_script_down_twice_is_left(
    world: World, tmp_path: Path
) -> None:
    assert "the time is over" in world.run(tmp_path, "--minutes", "0.05")
    assert results(tmp_path) == {}
    (tmp_path / "raw" / "machine.begun").write_text("2")
    world.run(tmp_path, "--only", "machine")
    assert results(tmp_path)["machine"]["state"] == "failed"


def test_a_question_whose_time_is_over_is_ended_with_all_that_it_started(
    world: World, tmp_path: Path
) -> None:
    """By a limit of the whole run that comes in the middle of it."""
    world.run(tmp_path, "--only", "machine")
    world.run(tmp_path, "--only", "mps-terminate", "--minutes", "0.2")
    one = results(tmp_path)["mps-terminate"]
    assert one["state"] == "not asked" and "time of the script was over" in one["why"], one
    assert "neighbour alone, kernels a second" in one["facts"], "what it noted is kept"
    assert world.living() == []
