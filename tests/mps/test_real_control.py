"""The parsers against the real control daemon, where one is installed. It runs and answers without a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import pytest

from cotenant.mps import replies
from cotenant.mps.detection import CONTROL
from cotenant.mps.environment import read_back_agrees
from cotenant.mps.paths import checked

PROGRAM = shutil.which(CONTROL)
SENTINEL = "end-of-answer-5b20"
TIMEOUT_S = 20.0
Ask = Callable[[str], str]

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason=f"{CONTROL} is not on PATH (it comes with the driver)"
)


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """A question to a daemon of our own, in a folder of our own: no other daemon and no GPU is touched."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        directory = checked(PurePosixPath(name))
        env = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(directory),
            "CUDA_MPS_LOG_DIRECTORY": str(directory),
        }

        def front_end(*arguments: str, text: str = "") -> str:
            command = (str(PROGRAM), *arguments)
            return subprocess.run(
                command, input=text, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            ).stdout

        front_end("-d")
        if not (Path(name) / "control").exists():
            pytest.skip(f"{PROGRAM} -d does not start here; its control.log says why")
        yield lambda command: replies.answered(front_end(text=replies.query(command, SENTINEL)), SENTINEL)
        front_end(text="quit -t 5\n")


def test_nobody_is_there(ask: Ask) -> None:
    assert replies.pids(ask("get_server_list")) == ()


def test_errors_are_rejections(ask: Ask) -> None:
    with pytest.raises(replies.Rejected, match="999"):
        replies.pids(ask("get_client_list 999"))
    with pytest.raises(replies.Rejected):
        replies.processes(ask("ps -p 999"))
    with pytest.raises(replies.Rejected, match="Unknown command"):
        replies.percentage(ask("no_such_command"))
    assert replies.termination(ask("terminate_client 1 2")) is replies.Termination.REFUSED


def test_the_percentage_in_force_is_echoed(ask: Ask) -> None:
    assert replies.percentage(ask("set_default_active_thread_percentage 50")) == 50.0
    assert replies.percentage(ask("set_default_active_thread_percentage 0")) != 0.0
    assert replies.percentage(ask("set_default_active_thread_percentage 100")) == 100.0


def test_a_memory_limit_is_shown_truncated(ask: Ask) -> None:
    ask("set_default_device_pinned_mem_limit 0 1500M")
    assert read_back_agrees(ask("get_default_device_pinned_mem_limit 0"), 1500)


def test_under_concurrent_questions_an_answer_is_right_or_incomplete(ask: Ask) -> None:
    """The daemon loses answers then. What it must never do is make us believe a wrong one."""

    def attempt(_: int) -> float | None:
        try:
            return replies.percentage(ask("get_default_active_thread_percentage"))
        except replies.Incomplete:
            return None

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(attempt, range(100)))
    print(f"{answers.count(None)} of {len(answers)} answers were lost")
    assert set(answers) <= {100.0, None}
