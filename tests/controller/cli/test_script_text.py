"""Scripts whose text no interpreter reads as it was meant are refused with the cause, at submission."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from cotenant.controller.slurm.aliases import launches
from cotenant.controller.submission.build import Sbatch, Submission, Submitter, submission
from cotenant.controller.submission.options import BadSubmission
from cotenant.controller.submission.script_text import unreadable

BOM = b"\xef\xbb\xbf"
DIRECTIVE = b"#!/bin/bash\n#COTENANT -t 5\nfor i in 1 2; do\n echo $i\ndone\n"
PLAIN = b"#!/bin/bash\necho a\n"


def dos(text: bytes) -> bytes:
    return text.replace(b"\n", b"\r\n")


def sent(folder: Path, *words: str, command_only: bool = False, sbatch: Sbatch | None = None) -> Submission:
    where = Submitter(folder=folder, environ={"PATH": os.environ["PATH"]})
    return submission(words, {}, where, command_only=command_only, sbatch=sbatch)


def written(folder: Path, name: str, text: bytes) -> Path:
    path = folder / name
    path.write_bytes(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (dos(DIRECTIVE), 1),
        (DIRECTIVE.replace(b"do\n", b"do\r\n"), 3),
        (DIRECTIVE + b"cat <<E\r\nE\n", 6),
        (dos(PLAIN), 1),
    ],
)
def test_dos_line_breaks_anywhere_in_a_script(tmp_path: Path, text: bytes, line: int) -> None:
    path = written(tmp_path, "job.sh", text)
    for sbatch in (None, Sbatch()):
        with pytest.raises(BadSubmission, match=rf"job\.sh:{line}: ends in a DOS line break") as refused:
            sent(tmp_path, str(path), sbatch=sbatch)
        assert refused.value.hint == f"remove them: sed -i 's/\\r$//' {path}"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.py", dos(b"#!/usr/bin/env python3\nprint(1)\n"), "./x.py"),
        ("x", dos(PLAIN), "./x"),
        ("x", PLAIN + b"if true; then\r\n:\nfi\n", "./x"),
        ("x", b"#!/usr/bin/env bash\n" + dos(b"echo a\n"), "./x"),
        ("x", dos(b"echo a\n"), "bash -e x"),
        ("x", dos(b"echo a\n"), "/bin/sh x"),
    ],
)
def test_dos_line_breaks_in_a_command(tmp_path: Path, name: str, text: bytes, words: str) -> None:
    written(tmp_path, name, text)
    with pytest.raises(BadSubmission, match="ends in a DOS line break"):
        sent(tmp_path, *words.split(), command_only=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (dos(b"print(1)\n"), "python3 x.py"),
        (b"#!/usr/bin/env python3\n" + dos(b"print(1)\n"), "./x.py"),
        (b"#!/bin/bash\nprintf 'a\\r\\n'\n", "./x.py"),
        (b"\x7fELF\0\r\n", "./x.py"),
    ],
)
def test_what_its_interpreter_reads_is_taken(tmp_path: Path, text: bytes, words: str) -> None:
    written(tmp_path, "x.py", text)
    assert sent(tmp_path, *words.split(), command_only=True).request.specs


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "job", BOM + DIRECTIVE)
    for word, command_only in ((str(path), False), ("./job", True)):
        with pytest.raises(BadSubmission, match=r"job:1: begins with a byte order mark \(BOM\)"):
            sent(tmp_path, word, command_only=command_only)


def test_the_hints_mend_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "a b.sh", BOM + dos(PLAIN))
    while (problem := unreadable(path.read_bytes(), str(path))) is not None:
        assert os.system(problem.hint.partition(": ")[2]) == 0
    assert path.read_bytes() == PLAIN


@pytest.mark.parametrize("text", [b"echo a\n", b"", b"# a comment\n"])
def test_a_file_that_the_kernel_cannot_start(tmp_path: Path, text: bytes) -> None:
    written(tmp_path, "x", text)
    with pytest.raises(BadSubmission, match=r"\./x has no first line such as #!/bin/bash") as refused:
        sent(tmp_path, "./x", command_only=True)
    assert refused.value.hint == "add one, or start it with bash ./x"


def test_a_script_on_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(dos(DIRECTIVE)), encoding="utf-8"))
    with pytest.raises(Exception, match="sbatch:1: ends in a DOS line break"):
        launches.sbatch([])
