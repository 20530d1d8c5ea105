"""Whatever a script or a job file says, the answer is a request or one line of ours: never a traceback."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cotenant.controller.slurm import sbatch
from cotenant.controller.submission.build import Submitter, submission
from cotenant.controller.submission.options import BY_FLAG, BY_KEY, BadSubmission
from cotenant.controller.wire import FROM_CLIENTS, BadMessage, Inadmissible, admit, decode, encode
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn

NINES = "9" * 400
LONG = ("9" * 30, NINES + ":1", "9" * 5_000, NINES + "G", "1-" + "9" * 30, "a" * 5_000, "a/" * 3_000)
ODD = (
    "", "1", "0", "-1", "1:2", "1e9", "8G", "0-9", "0-9%2", "~nobody-here/x", "~", "\0", "x\0y", "%j", "%",
    "%x", "gpu:2", "gpu:h100:2", "gpu:", ":", "afterok:7:8", "any:7", "any:", "ALL", "NONE", "A=1", "=", "A",
    "'", '"', "\\", "auto", "never", "full", "yes", "²", "\u0663", "\ud800", "\u2028", "é" * 200, "\x1b[2J",
)  # fmt: skip
VALUES = st.sampled_from((*LONG, *ODD)) | st.text(max_size=20)
FLAGS = st.sampled_from((*BY_FLAG, *sbatch.LONG, *sbatch.SAME, *sbatch.SlurmLines.TAKEN, *sbatch.LEFT_OUT))
KERNEL_LINES = (
    "#!/bin/bash", "#!/bin/sh -e", "#!", "#! ", "#!'", '#!/bin/bash "', "#!/bin/bash \\", "#!\0",
    "#!" + "x" * 5_000,
)  # fmt: skip
DIRECTIVES = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(("#SBATCH ", "#COTENANT ", "#SBATCH\t")),
    FLAGS,
    st.sampled_from((" ", "=")),
    VALUES,
)
LINES = st.lists(DIRECTIVES | st.text(max_size=30) | st.just("echo hello"), max_size=6)
FIRST = st.sampled_from(KERNEL_LINES) | st.text(max_size=20)
SCRIPTS = st.builds(lambda first, rest: "\n".join((first, *rest)), FIRST, LINES)
NODES = ('"\\UFFFFFFFF"', '"\\ud800"', '"\\0"', "!!x y", "&a [*a]", "{a: 1}", "[a, b]", "~", "null")
SCALARS = VALUES.map(lambda text: f'"{text}"') | VALUES | st.sampled_from(NODES)
KEYS = st.sampled_from(("command", *BY_KEY, "x"))
PAIRS = st.builds("{}: {}".format, KEYS, SCALARS)
WHOLE = ("%YAML " + "1" * 5_000 + ".1\n---\na: b", "[" * 5_000)
YAMLS = st.lists(PAIRS, max_size=5).map("\n".join) | st.text(max_size=60) | st.sampled_from(WHOLE)

fuzzed = settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def judge(folder: Path, name: str, content: bytes) -> None:
    """One line of ours, or a request that the controller can read."""
    path = folder / name
    path.write_bytes(content)
    try:
        made = submission([str(path)], {}, Submitter(folder=folder, environ={"PATH": os.environ["PATH"]}))
        frame = encode(wire.Request(request_id=1, body=made.request))
    except (BadSubmission, BadMessage):
        return
    request: wire.Request = decode(frame, wire.Request)
    with suppress(Inadmissible):
        admit(request.body, FROM_CLIENTS)


@fuzzed
@given(SCRIPTS)
@example("#!/bin/bash '")
@example('#!/bin/bash -c "\n#SBATCH -t 1\n')
@example("#!\n")
@example("#!/bin/bash\n#SBATCH -t " + "9" * 400 + "\n")
@example("#!/bin/bash\n#COTENANT --workdir ~nobody-here/x\n")
@example("#!/bin/bash\n#COTENANT --profile ~nobody-here/x\n")
@example("#!/bin/bash\n#COTENANT --workdir " + "a" * 3_000 + "\n")
@example("#!/bin/bash\n#COTENANT --output " + "a" * 3_000 + "/x\n")
def test_no_script_is_a_traceback(tmp_path: Path, script: str) -> None:
    judge(tmp_path, "job.sh", script.encode(errors="surrogatepass"))


@fuzzed
@given(YAMLS)
@example('command: "\\UFFFFFFFF"')
@example('command: ["echo", "\\0"]')
@example('command: ["echo", "\\ud800"]')
@example("command: [" + "a" * 5_000 + "]")
@example("command: " + "a" * 300)
def test_no_job_file_is_a_traceback(tmp_path: Path, text: str) -> None:
    judge(tmp_path, "job.yaml", text.encode(errors="surrogatepass"))


@fuzzed
@given(st.binary(max_size=200))
def test_no_bytes_are_a_traceback(tmp_path: Path, content: bytes) -> None:
    judge(tmp_path, "job.sh", content)
    judge(tmp_path, "job.yaml", content)


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("#!/bin/bash", ("/bin/bash",)),
        ("#! /usr/bin/env  python3 -u ", ("/usr/bin/env", "python3 -u")),
        ("#!/bin/bash '-e", ("/bin/bash", "'-e")),
    ],
)
def test_a_first_line_means_what_it_means_to_the_kernel(
    tmp_path: Path, line: str, argv: tuple[str, ...]
) -> None:
    """One argument, and quotes are characters."""
    path = tmp_path / "job.sh"
    path.write_text(f"{line}\necho\n")
    made = submission(
        [str(path)], {}, Submitter(folder=tmp_path, environ={"PATH": os.environ["PATH"]}, same_machine=False)
    )
    assert made.request.specs[0].launch.argv == (*argv, str(path))


@pytest.mark.parametrize("word", ["caf\udce9", "a\0b", "~nobody-here/run.sh", "x" * 5_000])
def test_a_command_that_no_program_can_be_given_is_exit_code_2(
    controller: StandIn, cotenant: Cotenant, word: str
) -> None:
    """A byte that is not UTF-8 comes from the shell as half a character."""
    flags = ("--workdir", word) if word.startswith("~") else ()
    result = cotenant("submit", *flags, "--", "echo" if len(word) < 100 else word, word)
    assert result.code == 2
    assert result.err.startswith("error[usage]: ")
    assert len(result.err.splitlines()) == 1


def test_a_name_taken_from_a_file_is_one_that_the_controller_admits(tmp_path: Path) -> None:
    path = tmp_path / "tra\x1b[2J\nin.sh"
    path.write_text("#!/bin/bash\necho\n")
    made = submission([str(path)], {}, Submitter(folder=tmp_path, environ={"PATH": os.environ["PATH"]}))
    assert made.request.specs[0].name == "tra\\x1b[2J\\nin"
    assert admit(made.request, FROM_CLIENTS) is made.request
